"""The values that an Arrow expression asks of a column, so that a look-up of keys reads only their buckets.

Arrow does not show what is in an expression, but its pickled form holds each literal. Arrow itself then proves which of
them are meant: its simplifier finds that no row with another value can match. What cannot be proven is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.read.filter.predicates import Points
from lakemerge.read.filter.simplifier import can_hold

__all__ = ["MOST_LITERALS", "MOST_VALUES", "points_of"]

MOST_LITERALS = 20
"""The proof for ``==`` joined by ``OR`` takes 0.5 ms for one literal, 7 ms for 20, and 160 ms for 100."""
MOST_VALUES = 50
"""Arrow's simplifier leaves a longer ``IN`` as it is."""


def points_of(expression: pc.Expression, schema: pa.Schema) -> Points:
    """For columns that the expression compares by ``==`` or ``isin``, or integers with a short range: the only values
    that matching rows can have, ascending. Other columns, and all columns of floats, are left out.

    :param schema: the types of the columns that the expression reads.
    """
    literals = _literals(expression)
    if len(literals) > MOST_LITERALS:
        return {}
    proven = {field.name: _proven(expression, schema, field, _values(literals, field.type)) for field in schema}
    return {(name,): [(value,) for value in values] for name, values in proven.items() if values}


def _literals(expression: pc.Expression) -> list[pa.Array]:
    """Each literal as an array of one value, and the values of each ``isin``. Two values may be one after a cast, which
    the simplifier overlooks: so floats, to which integers are cast, are left out, and all if the expression casts."""
    if "cast(" in str(expression):
        return []
    try:
        _, (pickled, *_) = expression.__reduce__()
        columns = pa.ipc.open_file(pickled).get_batch(0).columns
    except (pa.ArrowException, TypeError, ValueError):  # Arrow cannot pickle it, or in another form
        return []
    found = [column for column in columns if not pa.types.is_nested(column.type)]
    options = [column for column in columns if pa.types.is_struct(column.type)]
    lists = [column.field(n) for column in options if (n := column.type.get_field_index("value_set")) >= 0]
    found += [values.flatten() for values in lists if pa.types.is_list(values.type)]
    return [values for values in found if len(values) <= MOST_VALUES and not pa.types.is_floating(values.type)]


def _values(literals: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """The different values of a type among the literals, ascending. Integers that are near each other get those between
    them, too: DuckDB makes a range of ``IN (7, 8, 9)``."""
    found = pa.array([], kind)
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return found
    for literal in literals:
        try:
            found = pa.concat_arrays([found, literal.cast(kind)])
        except pa.ArrowException:  # it is of another kind
            continue
    found = found.drop_null().unique().sort()
    if pa.types.is_integer(kind) and len(found) > 1 and found[-1].as_py() - found[0].as_py() < MOST_VALUES:
        return pa.array(range(found[0].as_py(), found[-1].as_py() + 1), kind)
    return found


def _proven(expression: pc.Expression, schema: pa.Schema, field: pa.Field, values: pa.Array) -> tuple[Any, ...]:
    """Those of the values that matching rows can have. Nothing if they can have others, or null."""
    if not 0 < len(values) <= MOST_VALUES:
        return ()
    column = pc.field(field.name)
    whole = pa.types.is_integer(field.type)  # the simplifier does not know that nothing is between 7 and 8
    gaps = [pair for pair in pairwise(values) if not whole or pair[1].as_py() - pair[0].as_py() > 1]
    between = [(column > low) & (column < high) for low, high in gaps]
    others = [column.is_null(), column < values[0], column > values[-1], *between]
    if can_hold(expression, schema, others):
        return ()
    held = can_hold(expression, schema, [column == value for value in values])
    return tuple(values.take(pa.array(sorted(held), pa.int64())).to_pylist())
