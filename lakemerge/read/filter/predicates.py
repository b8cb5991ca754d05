"""The leaves of filters: a condition on rows, and what files' statistics say about it.

Both are Arrow expressions, over the table's columns and over a table of statistics with one row per
file and, for a column ``c``, the columns ``min:c``, ``max:c``, ``nulls:c`` and ``rows:c`` (null: not
known). A condition that is null counts as false here. This is enough for a filter if negations are
pushed down to the leaves. So each leaf comes with its opposite.

Floats compare as in Spark: NaN equals itself and is above every number. Statistics say nothing
about NaN, so a float's maximum bounds only its other values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.read.filter.judging import AmongRows, Judgement, joined, projected
from lakemerge.read.filter.literals import Fit, Place
from lakemerge.sql.patterns import like_regex

__all__ = [
    "OPPOSITE",
    "SWAPPED",
    "Operand",
    "Points",
    "Predicate",
    "all_of",
    "among_rows",
    "any_of",
    "bind",
    "compare_literal",
    "compare_operands",
    "constant",
    "constantly",
    "is_in",
    "is_like",
    "is_null",
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
_PRODUCT_ROWS = 1000
"""``a IN (...) AND b IN (...)`` becomes a list of at most this many rows."""


Points = Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]]
"""By columns, in ascending order: the only values that rows to keep can have in these. Float columns are never among
them."""


@dataclass(frozen=True, slots=True)
class Predicate:
    expression: Judgement | None
    """True on the rows to keep, false or null on the others. ``None`` if only a computation can say this."""
    may_match: Judgement | None
    """Over the table of statistics: false only if no row can match. ``None`` if nothing is known."""
    points: Points = field(default_factory=dict)
    exact: tuple[pa.Field, ...] | None = None
    """The columns of the one entry of ``points`` that says the same as the predicate, in their order there. ``None`` if
    there is none."""


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

    @property
    def as_field(self) -> pa.Field:
        """The column."""
        return pa.field(self.column, self.kind)

    def statistic(self, which: str) -> pc.Expression:
        return pc.field(f"{which}:{self.column}")


def constantly(*, holds: bool) -> Predicate:
    """True on every row, or on none. (Not a constant: Arrow imports pandas for its first scalar.)"""
    return Predicate(pc.scalar(holds), pc.scalar(holds))


def all_of(parts: Sequence[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    known = [part.may_match for part in parts if part.may_match is not None]
    points: dict[tuple[str, ...], Sequence[tuple[Any, ...]]] = {}
    for part in parts:
        for columns, values in part.points.items():
            points[columns] = min(points.get(columns, values), values, key=len)
    exact = _product(parts, points)
    may_match = joined(known, is_or=False) if known else None
    return Predicate(_folded(parts, is_or=False), may_match, points, exact)


def any_of(parts: Sequence[Predicate]) -> Predicate:
    """Parts that name values of the same columns become one look-up of these values."""
    parts = _gathered(parts)
    if len(parts) == 1:
        return parts[0]
    known = [part.may_match for part in parts if part.may_match is not None]
    may_match = joined(known, is_or=True) if len(known) == len(parts) else None
    shared = set(parts[0].points).intersection(*(part.points for part in parts[1:]))
    points = {columns: [row for part in parts for row in part.points[columns]] for columns in shared}
    return Predicate(_folded(parts, is_or=True), may_match, points)


def among_rows(columns: Sequence[pa.Field], rows: Sequence[tuple[Any, ...]]) -> Predicate:
    """Whether the values of the columns are among the rows.

    :param columns: in ascending order of their names; none of floats.
    :param rows: at least one; without nulls.
    """
    values = [list(column) for column in zip(*dict.fromkeys(rows), strict=True)]
    operands = [Operand(pc.field(column.name), column.type, column.name, column.name) for column in columns]
    arrays = [pa.array(part, column.type) for part, column in zip(values, columns, strict=True)]
    table = pa.table(arrays, list(_names(columns)))
    lists = [
        is_in(operand, [Fit(Place.AT, value) for value in dict.fromkeys(part)], negate=False)
        for operand, part in zip(operands, values, strict=True)
    ]
    if len(columns) == 1:
        return lists[0]
    known = [one.may_match for one in lists if one.may_match is not None]
    rows = list(zip(*values, strict=True))
    points = {key: found for one in lists for key, found in one.points.items()} | {_names(columns): rows}
    return Predicate(AmongRows(table), joined(known, is_or=False) if known else None, points, tuple(columns))


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
    asked, may_match = _COMPARE[op](operand.expression, value), _may_compare(op, operand, value)
    if op != "=" or operand.column is None:
        return Predicate(asked, may_match)
    points: Points = {(operand.column,): [(literal.value,)]}
    return Predicate(asked, may_match, points, (operand.as_field,))


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
    if negate:
        few = values[:_IN_VALUES_PRUNED]
        return Predicate(expression, join([compare_literal(op, operand, Fit(Place.AT, v)) for v in few]).may_match)
    points: Points = {(operand.column,): [(value,) for value in values]}
    exact = (operand.as_field,)
    if len(values) > _IN_VALUES_PRUNED:
        ends = [(">=", min(values)), ("<=", max(values))]
        within = all_of([compare_literal(op, operand, Fit(Place.AT, v)) for op, v in ends]).may_match
        return Predicate(expression, within, points, exact)
    equal = [_may_compare(op, operand, constant(value, operand.kind)) for value in values]
    may_match = joined([one for one in equal if one is not None], is_or=True)
    return Predicate(expression, may_match, points, exact)


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
    try:
        return projected(schema.empty_table(), [expression]).schema.field(0).type
    # Arrow raises ArrowNotImplementedError for types that it cannot compare.
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, TypeError) as error:
        raise FilterError(f"the filter does not fit the table: {error}") from error


def _folded(parts: Sequence[Predicate], *, is_or: bool) -> Judgement | None:
    found = [part.expression for part in parts if part.expression is not None]
    return joined(found, is_or=is_or) if len(found) == len(parts) else None


def _product(
    parts: Sequence[Predicate], points: dict[tuple[str, ...], Sequence[tuple[Any, ...]]]
) -> tuple[pa.Field, ...] | None:
    """Adds the rows of values that all exact parts allow together, if they are few. Returns their columns if they say
    the same as all parts."""
    exact = [part for part in parts if part.exact is not None]
    columns = [column for part in exact for column in part.exact or ()]
    names = _names(columns)
    if len(exact) < 2 or len(set(names)) < len(names):
        return None
    choices = [part.points[_names(part.exact or ())] for part in exact]
    if math.prod(map(len, choices)) > _PRODUCT_ROWS:
        return None
    order = sorted(range(len(names)), key=lambda place: names[place])
    rows = [[value for row in choice for value in row] for choice in itertools.product(*choices)]
    points[tuple(names[place] for place in order)] = [tuple(row[place] for place in order) for row in rows]
    return tuple(columns[place] for place in order) if len(exact) == len(parts) else None


def _gathered(parts: Sequence[Predicate]) -> Sequence[Predicate]:
    """The parts of an ``OR``, with those that name values of the same columns as one part."""
    by_columns: dict[tuple[str, ...], list[Predicate]] = {}
    for part in parts:
        if part.exact is not None:
            by_columns.setdefault(_names(part.exact), []).append(part)
    gathered = {names: found for names, found in by_columns.items() if len(found) > 1}
    rest = [part for part in parts if part.exact is None or _names(part.exact) not in gathered]
    lists = [
        among_rows(found[0].exact or (), [row for part in found for row in part.points[names]])
        for names, found in gathered.items()
    ]
    return [*rest, *lists]


def _names(columns: Sequence[pa.Field]) -> tuple[str, ...]:
    return tuple(column.name for column in columns)


def _has_values(operand: Operand) -> pc.Expression | None:
    return None if operand.column is None else operand.statistic("nulls") < operand.statistic("rows")


def _known(expression: pc.Expression | None) -> pc.Expression:
    return pc.scalar(True) if expression is None else expression


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
