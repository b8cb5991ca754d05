"""Comparisons, ``AND``, ``OR``, ``NOT``, ``CASE`` and ``COALESCE``.

NaN equals itself and is above every number. Text is compared by its bytes. Each part of a condition or choice is
computed only on the rows that still need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.nodes import Constant, Node, Rows, assembled, call, positions_of
from lakemerge.sql.types import widest
from mergers.type_names import type_name

__all__ = [
    "Junction",
    "case",
    "coalesce",
    "compare",
    "condition",
    "equal_values",
    "extreme",
    "is_nan",
    "is_null",
    "junction",
    "negation",
    "null_safe",
    "of_one_kind",
]

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
        raise FilterError(f"{text} cannot be compared: {nodes[0].text} is {type_name(kind)}", construct=text)
    return [cast(node, kind) for node in nodes]


def equal_values(left: pa.Array, right: pa.Array) -> pa.Array:
    """``=`` for arrays of one type."""
    return _compared(left, right, operator="=")


def condition(node: Node) -> Node:
    """The node as a truth value. Raises :class:`FilterError` if it is not one."""
    if pa.types.is_null(node.kind):
        return Constant(None, _BOOL, node.text)
    if not pa.types.is_boolean(node.kind):
        raise FilterError(f"{node.text} is {type_name(node.kind)}, not a condition", construct=node.text)
    return node


def junction(nodes: Sequence[Node], text: str, *, is_or: bool) -> Node:
    parts = tuple(map(condition, nodes))
    return Junction(parts, is_or, _BOOL, text, any(part.may_fail for part in parts))


def negation(node: Node, text: str) -> Node:
    return call(pc.invert, [condition(node)], _BOOL, text)


def case(branches: Sequence[tuple[Node, Node]], otherwise: Node | None, text: str) -> Node:
    """``CASE WHEN condition THEN value ... ELSE otherwise END``. Without ``ELSE`` the result is null."""
    conditions = tuple(condition(test) for test, _ in branches)
    given = [value for _, value in branches] + ([] if otherwise is None else [otherwise])
    kind = widest(given, text)
    values = tuple(cast(value, kind) for value in given)
    may_fail = any(node.may_fail for node in (*conditions, *values))
    return _Case(conditions, values, kind, text, may_fail)


def coalesce(nodes: Sequence[Node], text: str) -> Node:
    kind = widest(nodes, text)
    values = tuple(cast(node, kind) for node in nodes)
    return _Coalesce(values, kind, text, any(value.may_fail for value in values))


@dataclass(frozen=True, slots=True)
class Junction(Node):
    """``AND`` or ``OR``: each part is computed on the rows that the parts before it left undecided. Null decides
    nothing."""

    parts: tuple[Node, ...]
    is_or: bool
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return self.parts

    def evaluate(self, rows: Rows) -> pa.Array:
        join = pc.or_kleene if self.is_or else pc.and_kleene
        found = self.parts[0].evaluate(rows)
        for part in self.parts[1:]:
            if not part.may_fail:
                found = join(found, part.evaluate(rows))
                continue
            asked = (pc.invert(found) if self.is_or else found).fill_null(True)
            values = part.evaluate(rows.where(asked))
            spread = assembled([(positions_of(asked), values)], rows.count, _BOOL)
            found = join(found, spread)  # null on the rows that are already decided; null changes nothing there
        return found


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


@dataclass(frozen=True, slots=True)
class _Case(Node):
    conditions: tuple[Node, ...]
    values: tuple[Node, ...]
    """One value for each condition, and one more if there is an ``ELSE``."""
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return self.conditions + self.values

    def evaluate(self, rows: Rows) -> pa.Array:
        parts = []
        left, places = rows, np.arange(rows.count)
        for test, value in zip(self.conditions, self.values, strict=False):
            holds = test.evaluate(left).fill_null(False)
            parts.append((places[positions_of(holds)], value.evaluate(left.where(holds))))
            others = pc.invert(holds)
            left, places = left.where(others), places[positions_of(others)]
        if len(self.values) > len(self.conditions):
            parts.append((places, self.values[-1].evaluate(left)))
        return assembled(parts, rows.count, self.kind)


@dataclass(frozen=True, slots=True)
class _Coalesce(Node):
    values: tuple[Node, ...]
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return self.values

    def evaluate(self, rows: Rows) -> pa.Array:
        parts = []
        left, places = rows, np.arange(rows.count)
        for value in self.values:
            found = value.evaluate(left)
            there, missing = found.is_valid(), found.is_null()
            parts.append((places[positions_of(there)], found.filter(there)))
            left, places = left.where(missing), places[positions_of(missing)]
        return assembled(parts, rows.count, self.kind)
