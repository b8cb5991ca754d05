"""Comparisons of values. NaN equals itself and is above every number. Text is compared by its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.nodes import Node, call
from lakemerge.sql.types import name, widest

__all__ = ["compare", "equal_values", "extreme", "is_nan", "is_null", "null_safe", "of_one_kind"]

_BOOL = pa.bool_()


def compare(operator: str, left: Node, right: Node, text: str) -> Node:
    """``left operator right`` for ``= != < <= > >=``. Raises :class:`FilterError` if the types cannot be compared."""
    left, right = of_one_kind([left, right], text)
    return call(partial(_compared, operator=operator), [left, right], _BOOL, text)


def null_safe(left: Node, right: Node, text: str) -> Node:
    """``left <=> right``."""
    left, right = of_one_kind([left, right], text)
    return call(_null_safe, [left, right], _BOOL, text, strict=False)


def extreme(operator: str, nodes: Sequence[Node], text: str) -> Node:
    """``greatest`` for ``>``, ``least`` for ``<``. Nulls are ignored."""
    typed = of_one_kind(nodes, text)
    return call(partial(_extreme, operator=operator), typed, typed[0].kind, text, strict=False)


def is_null(node: Node, text: str) -> Node:
    return call(_is_null, [node], _BOOL, text, strict=False)


def is_nan(node: Node, text: str) -> Node:
    """``isnan``. It is false for null."""
    return call(_is_nan, [node], _BOOL, text, strict=False)


def of_one_kind(nodes: Sequence[Node], text: str) -> list[Node]:
    """The values, cast to Spark's common type for them. Raises :class:`FilterError` if there is no common type that can
    be compared."""
    kind = widest(nodes, text)
    if pa.types.is_nested(kind):
        raise FilterError(f"{text} cannot be compared: {nodes[0].text} is {name(kind)}", construct=text)
    return [cast(node, kind) for node in nodes]


def equal_values(left: pa.Array, right: pa.Array) -> pa.Array:
    """``=`` for arrays of one type."""
    return _compared(left, right, operator="=")


def _compared(left: pa.Array, right: pa.Array, *, operator: str) -> pa.Array:
    if pa.types.is_null(left.type):
        return pa.nulls(len(left), _BOOL)
    if pa.types.is_floating(left.type):
        return _FLOATS[operator](left, right)
    return _PLAIN[operator](left, right)


def _float_equal(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _float_less(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_(pc.less(left, right), pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


_PLAIN: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_FLOATS: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "=": _float_equal,
    "!=": lambda left, right: pc.invert(_float_equal(left, right)),
    "<": _float_less,
    "<=": lambda left, right: pc.invert(_float_less(right, left)),
    ">": lambda left, right: _float_less(right, left),
    ">=": lambda left, right: pc.invert(_float_less(left, right)),
}


def _null_safe(left: pa.Array, right: pa.Array) -> pa.Array:
    neither = pc.and_(left.is_null(), right.is_null())
    return pc.or_(neither, equal_values(left, right).fill_null(False))


def _extreme(*arrays: pa.Array, operator: str) -> pa.Array:
    best = arrays[0]
    for array in arrays[1:]:
        better = pc.or_kleene(best.is_null(), _compared(array, best, operator=operator))
        best = pc.if_else(pc.and_(array.is_valid(), better.fill_null(False)), array, best)
    return best


def _is_null(array: pa.Array) -> pa.Array:
    return array.is_null()


def _is_nan(array: pa.Array) -> pa.Array:
    if not pa.types.is_floating(array.type):
        return pa.repeat(pa.scalar(value=False), len(array))
    return pc.is_nan(array).fill_null(False)
