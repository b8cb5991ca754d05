"""The values that an Arrow expression asks of a column, so that a look-up of keys reads only their buckets.

Arrow does not show what is in an expression. So values are read from its text, and Arrow itself proves that they are
all: its simplifier finds that no row with another value can match. What cannot be proven is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.read.filter.simplifier import can_hold

__all__ = ["points_of"]

_MOST = 20
"""The proof takes 0.4 ms for one value, 10 ms for 20, and 200 ms for 100."""
_VALUE = r'(-?\d+|"(?:[^"\\]|\\.)*")'


def points_of(expression: pc.Expression, schema: pa.Schema) -> Mapping[str, tuple[int | str, ...]]:
    """For columns that the expression compares by ``==`` with integers or texts: the only values that matching rows can
    have, ascending. Other columns are left out.

    :param schema: the types of the columns that the expression reads.
    """
    text = str(expression)
    found = {field.name: _named(text, field) for field in schema}
    return {
        field.name: found[field.name]
        for field in schema
        if 0 < len(found[field.name]) <= _MOST and not can_hold(expression, schema, _others(field, found[field.name]))
    }


def _named(text: str, field: pa.Field) -> tuple[int | str, ...]:
    """Values that the text compares with the column."""
    whole = pa.types.is_integer(field.type)
    if not whole and not pa.types.is_string(field.type):
        return ()
    literals = re.findall(rf"(?<!\w){re.escape(field.name)} == {_VALUE}", text)
    try:
        values = {json.loads(literal) for literal in literals if literal.startswith('"') != whole}
        return tuple(pa.array(sorted(values), field.type).to_pylist())
    except (ValueError, pa.ArrowException):  # no text of JSON's, or no value of the type
        return ()


def _others(field: pa.Field, values: Sequence[int | str]) -> list[pc.Expression]:
    """Expressions of which one is true for every row with null or another value."""
    column, bounds = pc.field(field.name), [pa.scalar(value, field.type) for value in values]
    between = [(column > low) & (column < high) for low, high in pairwise(bounds)]
    return [column.is_null(), column < bounds[0], column > bounds[-1], *between]
