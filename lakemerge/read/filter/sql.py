r"""SQL filters (Spark's dialect): what Arrow evaluates, what files' statistics say, and what is computed.

All of it comes from the compiled :class:`Condition`. Comparisons of a column with a literal, and what joins them,
become :class:`Predicate`\ s, which also say what files' statistics tell. ``NOT`` is pushed down to them, so that
three-valued logic needs no null-aware negation. Any other condition is computed by its :class:`Node` on the rows that
the first ones leave. One difference from Spark: a column is compared with a literal exactly (Spark goes through doubles
where a literal is one).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.read.filter import predicates as leaf
from lakemerge.read.filter.judging import Judgement, Untrue, expressions_of
from lakemerge.read.filter.literals import Fit, Place, Value, cast_may_fail, fit
from lakemerge.read.filter.predicates import (
    OPPOSITE,
    SWAPPED,
    Operand,
    Points,
    Predicate,
    all_of,
    any_of,
    bind,
    constantly,
)
from lakemerge.sql.compiling import check_zone, compile_condition
from lakemerge.sql.conditions import (
    Among,
    Comparison,
    Condition,
    Joined,
    Like,
    Not,
    NullTest,
    RowsAmong,
    Truth,
    TruthTest,
)
from lakemerge.sql.logic import condition as truth
from lakemerge.sql.nodes import Column, Constant, Field, Node, Rows, all_nodes
from lakemerge.sql.parsing import parsed
from lakemerge.sql.types import is_number, wider

__all__ = ["Compiled", "compile_sql"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A filter's parts, all of which a row must meet."""

    expression: Judgement
    """The conditions that Arrow evaluates."""
    computed: tuple[Node, ...]
    """The other conditions, in the order in which they are written."""
    may_match: Judgement | None
    """See :class:`Predicate`. This covers all conditions."""
    points: Points
    columns: frozenset[str]
    """The top-level columns it uses."""
    may_fail: bool
    """Whether this filter, or Spark, may fail on some rows."""
    needs_ansi: bool
    """See :class:`lakemerge.read.filter.filter.Filter`."""


@dataclass(frozen=True, slots=True)
class _Literal:
    """A value without a column."""

    value: Value | None
    """``None`` is SQL's NULL."""


def compile_sql(text: str, schema: pa.Schema, zone: dt.tzinfo | None) -> Compiled:
    """The filter that ``text`` states.

    ``zone`` is the zone of times without one (``None``: not known; such times are refused). The case of column names
    does not matter. Raises :class:`FilterError` for syntax errors, unknown columns, constructs and functions that
    are not supported, and types that do not fit.
    """
    try:
        return _compiled(compile_condition(parsed(text), schema), schema, zone)
    except RecursionError:
        raise FilterError("the filter is nested too deeply", filter=text) from None


def _compiled(whole: Condition, schema: pa.Schema, zone: dt.tzinfo | None) -> Compiled:
    derivation = _Derivation(zone)
    predicate = derivation.predicate(whole, negate=False)
    expression, computed = predicate.expression, []
    if expression is None:
        judged = []
        for part in _parts(whole):
            if derivation.predicate(part, negate=False).expression is None:
                computed.append(derivation.node(part))
            else:
                judged.append(part)
        if judged:
            expression = all_of(derivation.parts(judged, is_or=False, negate=False)).expression
    found = pc.scalar(value=True) if expression is None else expression
    for part in expressions_of(found):
        bind(part, schema)
    return Compiled(
        found,
        tuple(computed),
        predicate.may_match,
        predicate.points,
        frozenset(derivation.columns),
        derivation.may_fail,
        derivation.needs_ansi,
    )


def _parts(condition: Condition) -> list[Condition]:
    """The conditions that must all be true."""
    if isinstance(condition, Joined) and not condition.is_or:
        return [found for part in condition.parts for found in _parts(part)]
    return [condition]


@dataclass
class _Derivation:
    """Predicates of conditions, and what is learned on the way."""

    zone: dt.tzinfo | None
    columns: set[str] = field(default_factory=set)
    may_fail: bool = False
    needs_ansi: bool = False

    def predicate(self, condition: Condition, *, negate: bool) -> Predicate:
        """Where the condition is true; with ``negate``, where it is false."""
        match condition:
            case Not(_, of):
                return self.predicate(of, negate=not negate)
            case Joined(_, conditions, is_or):
                parts = self.parts(conditions, is_or=is_or, negate=negate)
                return any_of(parts) if is_or != negate else all_of(parts)
        found = self.leaf(condition, negate=negate)
        return self.computed(condition, negate=negate) if found is None else found

    def parts(self, conditions: Sequence[Condition], *, is_or: bool, negate: bool) -> list[Predicate]:
        """The parts of a chain of ``OR`` or ``AND``. ``a = 1 OR a = 2`` becomes ``a IN (1, 2)``, and its opposite
        likewise, because Arrow's time for expressions grows with the square of their length."""
        merged, merged_negate = ("=", negate) if is_or else ("!=", not negate)
        lists: dict[str, tuple[Operand, list[Fit]]] = {}
        parts = []
        for part in conditions:
            if isinstance(part, Comparison) and part.operator == merged:
                column = self.operand(part.left)
                literal = self.operand(part.right) if isinstance(column, Operand) else None
                if isinstance(column, Operand) and isinstance(literal, _Literal) and literal.value is not None:
                    # Not by its text: a column may have the name `a.b`, beside the field b of a.
                    found = lists.setdefault(str(column.expression), (column, []))
                    found[1].append(self.fit(literal.value, column))
                    continue
            parts.append(self.predicate(part, negate=negate))
        parts += [leaf.is_in(column, values, negate=merged_negate) for column, values in lists.values()]
        return parts

    def leaf(self, condition: Condition, *, negate: bool) -> Predicate | None:
        """The predicate of a condition on one column. ``None`` if the condition must be computed."""
        match condition:
            case Comparison():
                return self.comparison(condition, negate=negate)
            case Among():
                return self.among(condition, negate=negate)
            case RowsAmong():
                return self.rows_among(condition, negate=negate)
            case NullTest(_, value):
                return self.null_test(self.operand(value), negate=negate)
            case TruthTest(_, of, wanted):
                return self.truth_test(of, wanted=wanted, negate=negate)
            case Like():
                return self.like(condition, negate=negate)
            case Truth(_, value):
                return self.truth(value, self.operand(value), negate=negate)
        return None

    def computed(self, condition: Condition, *, negate: bool) -> Predicate:
        """A condition about which statistics say nothing."""
        node = self.node(condition)
        names = {part.name for part in all_nodes(node) if isinstance(part, Column)}
        if not names:
            holds = node.evaluate(Rows.one())[0].as_py()
            return constantly(holds=holds is not None and holds != negate)
        self.columns |= names
        self.may_fail |= node.may_fail
        return Predicate(None, None)

    def node(self, condition: Condition) -> Node:
        return check_zone(condition.node(), self.zone)

    def truth(self, value: Node, operand: Operand | _Literal | None, *, negate: bool) -> Predicate | None:
        """A boolean operand as a condition."""
        if operand is None:
            return None
        truth(value)
        if isinstance(operand, _Literal):
            return constantly(holds=operand.value is not None and operand.value != negate)
        return leaf.compare_literal("=", operand, Fit(Place.AT, not negate))

    def comparison(self, condition: Comparison, *, negate: bool) -> Predicate | None:
        left = self.operand(condition.left)
        right = None if left is None else self.operand(condition.right)
        if left is None or right is None:
            return None
        op = condition.operator
        if isinstance(left, _Literal):
            left, right, op = right, left, SWAPPED.get(op, op)
        if isinstance(left, _Literal):
            return None
        if op == "<=>":
            return self.null_safe(left, right, negate=negate)
        return self.compare(OPPOSITE[op] if negate else op, left, right)

    def compare(self, op: str, left: Operand, right: Operand | _Literal) -> Predicate | None:
        if isinstance(right, _Literal):
            if right.value is None:
                return constantly(holds=False)
            return leaf.compare_literal(op, left, self.fit(right.value, left))
        if not _alike(left.kind, right.kind):
            return None
        self.may_fail |= left.kind != right.kind
        floats = pa.types.is_floating(left.kind) or pa.types.is_floating(right.kind)
        if floats:
            left, right = _as_double(left), _as_double(right)
        return leaf.compare_operands(op, left.expression, right.expression, floats=floats)

    def null_safe(self, left: Operand, right: Operand | _Literal, *, negate: bool) -> Predicate | None:
        if isinstance(right, _Literal) and right.value is None:
            return leaf.is_null(left, negate=negate)
        equal = self.compare("!=" if negate else "=", left, right)
        if equal is None:
            return None
        if isinstance(right, _Literal):
            return any_of([equal, leaf.is_null(left, negate=False)]) if negate else equal
        sides = [
            all_of([leaf.is_null(left, negate=False), leaf.is_null(right, negate=negate)]),
            all_of([leaf.is_null(left, negate=negate), leaf.is_null(right, negate=False)]),
        ]
        return any_of([equal, *sides])

    def among(self, condition: Among, *, negate: bool) -> Predicate | None:
        column = self.operand(condition.value)
        if not isinstance(column, Operand):
            return None
        values: list[Value] = []
        for item in condition.items:
            literal = self.operand(item)
            if not isinstance(literal, _Literal):
                return None
            if literal.value is not None:
                values.append(literal.value)
        if not pa.types.is_string(column.kind) and any(isinstance(one, str) for one in values):
            self.needs_ansi = True  # otherwise Spark compares texts
        if negate and len(values) < len(condition.items):
            return constantly(holds=False)
        return leaf.is_in(column, [self.fit(v, column) for v in values], negate=negate)

    def rows_among(self, condition: RowsAmong, *, negate: bool) -> Predicate:
        """``(a, b) IN ((1, 'x'), ...)``. Rows are equal if all their values are. So a null in a column makes the row
        unlike all rows of values, and not the condition null."""
        columns = [self.operand(value) for value in condition.values]
        problem = "rows are compared as (column, column) IN ((value, value), ...), without NULL"
        operands = [column for column in columns if isinstance(column, Operand) and column.column is not None]
        rows: list[tuple[Any, ...]] = []
        for text, given in condition.rows:
            row = [self.operand(value) for value in given]
            values = [part.value for part in row if isinstance(part, _Literal) and part.value is not None]
            if not len(values) == len(operands) == len(columns):
                raise FilterError(f"{text}: {problem}", construct=text)
            fits = [self.fit(value, column) for value, column in zip(values, operands, strict=True)]
            if all(one.place is Place.AT for one in fits):
                rows.append(tuple(one.value for one in fits))
        if not rows:
            return constantly(holds=negate)
        names = [column.column for column in operands]
        if len(set(names)) < len(names) or any(pa.types.is_floating(column.kind) for column in operands):
            raise FilterError(f"{condition.text}: {problem}; each column is there once, and none is a float")
        order = sorted(range(len(names)), key=lambda place: str(names[place]))
        fields = [operands[place].as_field for place in order]
        found = leaf.among_rows(fields, [tuple(row[place] for place in order) for row in rows])
        if not negate or found.expression is None:
            return found
        return Predicate(Untrue(found.expression), None)

    def null_test(self, operand: Operand | _Literal | None, *, negate: bool) -> Predicate | None:
        if operand is None:
            return None
        if isinstance(operand, _Literal):
            return constantly(holds=(operand.value is None) != negate)
        return leaf.is_null(operand, negate=negate)

    def truth_test(self, of: Condition, *, wanted: bool, negate: bool) -> Predicate | None:
        """``IS TRUE``, ``IS FALSE``. Their negation is also true if the value is null."""
        found = self.predicate(of, negate=not wanted)
        if not negate:
            return found
        if found.expression is None:
            return None
        if isinstance(found.expression, pc.Expression):
            return Predicate(~pc.coalesce(found.expression, pc.scalar(False)), None)
        return Predicate(Untrue(found.expression), None)

    def like(self, condition: Like, *, negate: bool) -> Predicate | None:
        column = None if condition.ignores_case else self.operand(condition.value)
        pattern = self.operand(condition.pattern) if isinstance(column, Operand) else None
        if not isinstance(column, Operand) or not isinstance(pattern, _Literal):
            return None
        if pattern.value is None:
            return constantly(holds=False)
        if not pa.types.is_string(column.kind) or not isinstance(pattern.value, str):
            return None
        return leaf.is_like(column, pattern.value, condition.escape, negate=negate)

    def fit(self, value: Value, operand: Operand) -> Fit:
        self.may_fail |= cast_may_fail(value, operand.kind)
        return fit(value, operand.kind, operand.text, self.zone)

    def operand(self, node: Node) -> Operand | _Literal | None:
        """A column, a field of one, or a value without columns. ``None`` for anything else."""
        if isinstance(node, Column | Field):
            return self.column(node)
        if isinstance(node, Constant):
            if node.value is None or node.written is not None:
                return _Literal(node.written)
            return _Literal(check_zone(node, self.zone).value)
        if any(isinstance(part, Column) for part in all_nodes(node)) or pa.types.is_nested(node.kind):
            return None
        try:
            return _Literal(check_zone(node, self.zone).evaluate(Rows.one())[0].as_py())
        except (ValueError, OverflowError) as error:
            raise FilterError(f"{node.text} is outside the years 1 to 9999", construct=node.text) from error

    def column(self, node: Column | Field) -> Operand | None:
        path: list[str] = []
        at: Node = node
        while isinstance(at, Field):
            path.insert(0, at.of.kind.field(at.index).name)
            at = at.of
        if not isinstance(at, Column):
            return None
        path.insert(0, at.name)
        self.columns.add(at.name)
        judged = len(path) == 1 and not pa.types.is_nested(node.kind)
        return Operand(pc.field(*path), node.kind, ".".join(path), at.name if judged else None)


def _alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether Arrow compares the types as Spark does. It does not for decimals that Spark compares as floats, or that
    Spark cuts digits off."""
    if pa.types.is_nested(left):
        return False
    if left == right:
        return True
    found = wider(left, right) if is_number(left) and is_number(right) else None
    decimals = [kind for kind in (left, right) if pa.types.is_decimal(kind)]
    if found is None or (decimals and pa.types.is_floating(found)):
        return False
    return all(kind.scale <= found.scale for kind in decimals)


def _as_double(operand: Operand) -> Operand:
    return Operand(operand.expression.cast(pa.float64(), safe=False), pa.float64(), operand.text, None)
