"""The leaves of filters: a condition on rows, and what files' statistics say about it.

Both are Arrow expressions, over the table's columns and over a table of statistics with one row per
file and, for a column ``c``, the columns ``min:c``, ``max:c``, ``nulls:c`` and ``rows:c`` (null: not
known). A condition that is null counts as false here. This is enough for a filter if negations are
pushed down to the leaves. So each leaf comes with its opposite.

Floats compare as in Spark: NaN equals itself and is above every number. Statistics say nothing
about NaN, so a float's maximum bounds only its other values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.read.filter.literals import Fit, Place

__all__ = [
    "OPPOSITE",
    "SWAPPED",
    "Operand",
    "Predicate",
    "all_of",
    "any_of",
    "bind",
    "compare_literal",
    "compare_operands",
    "constant",
    "constantly",
    "is_in",
    "is_like",
    "is_null",
    "like_regex",
]

OPPOSITE = {"<": ">=", "<=": ">", "=": "!=", "!=": "=", ">=": "<", ">": "<="}
SWAPPED = {"<": ">", "<=": ">=", "=": "=", "!=": "!=", ">=": "<=", ">": "<"}

_COMPARE: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    ">=": lambda left, right: left >= right,
    ">": lambda left, right: left > right,
}
_WHEN_ABOVE = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}
_IN_VALUES_PRUNED = 32
_WILDCARDS = frozenset("%_")


@dataclass(frozen=True, slots=True)
class Predicate:
    expression: pc.Expression | None
    """True on the rows to keep, false or null on the others. ``None`` if no Arrow expression can say this."""
    may_match: pc.Expression | None
    """Over the table of statistics: false only if no row can match. ``None`` if nothing is known."""
    points: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """By column, the only values that rows to keep can have. Float columns are never among them."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A column, or a field of one."""

    expression: pc.Expression
    kind: pa.DataType
    """Its Arrow type."""
    text: str
    """For messages."""
    column: str | None
    """The column whose statistics apply. ``None`` if the operand is not a column."""

    def statistic(self, which: str) -> pc.Expression:
        return pc.field(f"{which}:{self.column}")


def constantly(*, holds: bool) -> Predicate:
    """True on every row, or on none. (Not a constant: Arrow imports pandas for its first scalar.)"""
    return Predicate(pc.scalar(holds), pc.scalar(holds))


def all_of(parts: Sequence[Predicate]) -> Predicate:
    known = [part.may_match for part in parts if part.may_match is not None]
    both: Callable[[pc.Expression, pc.Expression], pc.Expression] = lambda left, right: left & right  # noqa: E731
    points: dict[str, tuple[Any, ...]] = {}
    for part in parts:
        for column, values in part.points.items():
            points[column] = min(points.get(column, values), values, key=len)
    return Predicate(_folded(parts, both), _fold(known, both) if known else None, points)


def any_of(parts: Sequence[Predicate]) -> Predicate:
    known = [part.may_match for part in parts if part.may_match is not None]
    either: Callable[[pc.Expression, pc.Expression], pc.Expression] = lambda left, right: left | right  # noqa: E731
    may_match = _fold(known, either) if len(known) == len(parts) else None
    return Predicate(_folded(parts, either), may_match)


def is_null(operand: Operand, *, negate: bool) -> Predicate:
    if negate:
        return Predicate(operand.expression.is_valid(), _has_values(operand))
    may_match = None if operand.column is None else operand.statistic("nulls") > pc.scalar(0)
    return Predicate(operand.expression.is_null(), may_match)


def compare_literal(op: str, operand: Operand, literal: Fit) -> Predicate:
    """``operand op literal`` for a literal placed among the operand's values."""
    if literal.place in (Place.OVER, Place.UNDER):
        holds = op in ("<", "<=", "!=") if literal.place is Place.OVER else op in (">", ">=", "!=")
        return is_null(operand, negate=True) if holds else constantly(holds=False)
    if literal.place is Place.ABOVE:
        if op in ("=", "!="):
            return is_null(operand, negate=True) if op == "!=" else constantly(holds=False)
        op = _WHEN_ABOVE[op]
    if pa.types.is_floating(operand.kind):
        return _compare_float(op, operand, literal.value)
    value = constant(literal.value, operand.kind)
    points = {operand.column: (literal.value,)} if op == "=" and operand.column is not None else {}
    return Predicate(_COMPARE[op](operand.expression, value), _may_compare(op, operand, value), points)


def compare_operands(op: str, left: pc.Expression, right: pc.Expression, *, floats: bool) -> Predicate:
    """``left op right`` for expressions of types that Arrow compares."""
    if op in (">", ">="):
        left, right, op = right, left, SWAPPED[op]
    plain = _COMPARE[op](left, right)
    if not floats:
        return Predicate(plain, None)
    left_nan, right_nan = _is_nan(left), _is_nan(right)
    if op == "<":
        return Predicate(plain | (~left_nan & right_nan), None)
    if op == "<=":
        return Predicate(plain | (left.is_valid() & right_nan), None)
    if op == "=":
        return Predicate(plain | (left_nan & right_nan), None)
    differ = (left < right) | (left > right)
    return Predicate(differ | (left_nan & ~right_nan) | (~left_nan & right_nan), None)


def is_in(operand: Operand, literals: Sequence[Fit], *, negate: bool) -> Predicate:
    """``operand [NOT] IN (literals)``. No literal is null."""
    values = [literal.value for literal in literals if literal.place is Place.AT]
    if not values:
        return is_null(operand, negate=True) if negate else constantly(holds=False)
    op = "!=" if negate else "="
    join = all_of if negate else any_of
    if pa.types.is_floating(operand.kind):
        # Arrow's is_in tells 0.0 from -0.0.
        return join([_compare_float(op, operand, value) for value in values])
    found = operand.expression.isin(pa.array(values, operand.kind))
    expression = operand.expression.is_valid() & ~found if negate else found
    if operand.column is None:
        return Predicate(expression, None)
    points = {} if negate else {operand.column: tuple(values)}
    if not negate and len(values) > _IN_VALUES_PRUNED:
        ends = [(">=", min(values)), ("<=", max(values))]
        within = all_of([compare_literal(op, operand, Fit(Place.AT, v)) for op, v in ends]).may_match
        return Predicate(expression, within, points)
    few = values[:_IN_VALUES_PRUNED]
    return Predicate(expression, join([compare_literal(op, operand, Fit(Place.AT, v)) for v in few]).may_match, points)


def is_like(operand: Operand, pattern: str, escape: str, *, negate: bool) -> Predicate:
    """``operand [NOT] LIKE pattern``. Raises :class:`FilterError` for a misplaced escape."""
    regex, prefix = like_regex(pattern, escape)
    matches = pc.match_substring_regex(operand.expression, regex)
    values = _has_values(operand)
    if negate:
        return Predicate(~matches, values)
    if values is None or not prefix:
        return Predicate(matches, values)
    lowest, start = operand.statistic("min"), pc.scalar(prefix)
    below = (lowest <= start) | pc.starts_with(lowest, prefix)
    return Predicate(matches, below & (operand.statistic("max") >= start) & values)


def constant(value: Any, kind: pa.DataType) -> pc.Expression:
    """The literal ``value`` of the Arrow type ``kind``."""
    return pc.scalar(pa.scalar(value, kind))


def bind(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    """The type of ``expression`` over ``schema``. Raises :class:`FilterError` if it has none."""
    import pyarrow.dataset as ds  # loads pandas where that is installed

    try:
        scanner = ds.dataset(schema.empty_table()).scanner(columns={"value": expression})
        return scanner.projected_schema.field(0).type
    # Arrow raises ArrowNotImplementedError for types that it cannot compare.
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, TypeError) as error:
        raise FilterError(f"the filter does not fit the table: {error}") from error


def _folded(
    parts: Sequence[Predicate], join: Callable[[pc.Expression, pc.Expression], pc.Expression]
) -> pc.Expression | None:
    found = [part.expression for part in parts]
    return None if any(expression is None for expression in found) else _fold(found, join)


def _fold(
    parts: Sequence[pc.Expression], join: Callable[[pc.Expression, pc.Expression], pc.Expression]
) -> pc.Expression:
    """Joined as a balanced tree: Arrow walks expressions recursively."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_fold(parts[:middle], join), _fold(parts[middle:], join))


def _has_values(operand: Operand) -> pc.Expression | None:
    return None if operand.column is None else operand.statistic("nulls") < operand.statistic("rows")


def _known(expression: pc.Expression | None) -> pc.Expression:
    return pc.scalar(True) if expression is None else expression


def like_regex(pattern: str, escape: str) -> tuple[str, str]:
    """The whole pattern as an RE2 expression, and the literal text that it starts with."""
    parts: list[str] = []
    prefix: list[str] | None = []
    fixed = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, "")
            if literal not in _WILDCARDS | {escape}:
                raise FilterError(f"the escape in the LIKE pattern {pattern!r} stands before no wildcard")
        elif character in _WILDCARDS:
            fixed = "".join(prefix) if prefix is not None else fixed
            prefix = None
            parts.append(".*" if character == "%" else ".")
            continue
        else:
            literal = character
        parts.append(re.escape(literal))
        if prefix is not None:
            prefix.append(literal)
    return rf"(?s)\A{''.join(parts)}\z", "".join(prefix) if prefix is not None else fixed


def _is_nan(expression: pc.Expression) -> pc.Expression:
    return pc.is_nan(expression)


def _may_compare(op: str, operand: Operand, value: pc.Expression) -> pc.Expression | None:
    if operand.column is None:
        return None
    low, high = operand.statistic("min"), operand.statistic("max")
    if op in ("<", "<="):
        inside = _COMPARE[op](low, value)
    elif op in (">", ">="):
        inside = _COMPARE[op](high, value)
    elif op == "=":
        inside = (low <= value) & (high >= value)
    else:
        inside = (low != value) | (high != value)
    return inside & _known(_has_values(operand))


def _compare_float(op: str, operand: Operand, number: float) -> Predicate:
    # A float against a number is a comparison of doubles, in Spark as here.
    column = operand.expression.cast(pa.float64()) if operand.kind != pa.float64() else operand.expression
    is_nan = _is_nan(column)
    if math.isnan(number):
        by_op = {"<": ~is_nan, "!=": ~is_nan, "=": is_nan, ">=": is_nan, "<=": column.is_valid(), ">": pc.scalar(False)}
        return Predicate(by_op[op], _has_values(operand))
    value = pc.scalar(number)
    if op in (">", ">="):
        return Predicate(_COMPARE[op](column, value) | is_nan, _has_values(operand))
    if op == "!=":
        return Predicate(_COMPARE[op](column, value), _has_values(operand))
    may_match: pc.Expression | None = None
    if operand.column is not None:
        # Matching rows hold a number, and every number is between minimum and maximum.
        low, high = operand.statistic("min"), operand.statistic("max")
        below = _COMPARE["<=" if op == "=" else op](low, value)
        inside = below & (high >= value) if op == "=" else below
        may_match = inside & _known(_has_values(operand))
    return Predicate(_COMPARE[op](column, value), may_match)
