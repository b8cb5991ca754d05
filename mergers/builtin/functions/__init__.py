"""Aggregate functions by name, and the choice of one in a table's options."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from mergers.builtin.functions.base import ColumnEvents, Function
from mergers.builtin.functions.maps import MergeMap, MergeMapWithKeytime
from mergers.builtin.functions.nested import Collect, NestedUpdate
from mergers.builtin.functions.numbers import Count, Product, Sum
from mergers.builtin.functions.picks import (
    BoolAnd,
    BoolOr,
    FirstNonNullValue,
    FirstValue,
    LastNonNullValue,
    LastValue,
    Max,
    Min,
)
from mergers.builtin.functions.sketches import HllSketch, RoaringBitmap, ThetaSketch
from mergers.builtin.functions.texts import Listagg
from mergers.type_names import type_name

__all__ = ["FUNCTIONS", "ColumnEvents", "Function", "function_of"]

_ALL: tuple[type[Function], ...] = (
    Sum,
    Product,
    Count,
    Min,
    Max,
    LastValue,
    LastNonNullValue,
    FirstValue,
    FirstNonNullValue,
    BoolAnd,
    BoolOr,
    Listagg,
    Collect,
    MergeMap,
    MergeMapWithKeytime,
    NestedUpdate,
    HllSketch,
    ThetaSketch,
    RoaringBitmap,
)

FUNCTIONS: Mapping[str, type[Function]] = {function.name: function for function in _ALL}


def function_of(choice: object, kind: pa.DataType) -> Function:
    """The function that an option names for a column of type ``kind``. The option is a name, or an object of
    ``function`` and its options. Raises a :class:`ValueError` that says what is wrong."""
    options = dict(choice) if isinstance(choice, Mapping) else {"function": choice}
    name = options.pop("function", None)
    if not isinstance(name, str) or name not in FUNCTIONS:
        raise ValueError(f"unknown function {name!r}; there are: {', '.join(FUNCTIONS)}")
    function = FUNCTIONS[name]
    if not function.takes(kind):
        raise ValueError(f"{name} takes {function.types}, and the column is {type_name(kind)}")
    return function.build(kind, options)
