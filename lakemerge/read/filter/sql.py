"""SQL filters (Spark's dialect). Arrow evaluates one part as an expression, and the other part is computed.

Comparisons of a column with a literal, and what joins them, become :class:`Predicate`\\ s, which also say what files'
statistics tell. ``NOT`` is pushed down to them, so that three-valued logic needs no null-aware negation. Any other
condition is computed by a :class:`Node` on the rows that the first ones leave. One difference from Spark: a column is
compared with a literal exactly (Spark goes through doubles where a literal is one).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

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
from lakemerge.sql.compiling import compile_value
from lakemerge.sql.logic import condition
from lakemerge.sql.nodes import Column, Node, Rows, all_nodes
from lakemerge.sql.parsing import only, parsed, sql, unsupported
from lakemerge.sql.times import parse_date, parse_timestamp
from lakemerge.sql.types import is_number, wider

__all__ = ["Compiled", "compile_sql"]

_COMPARISONS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_NAMED = exp.DataType.Type
_TIMESTAMPS = {_NAMED.TIMESTAMP, _NAMED.TIMESTAMPTZ, _NAMED.TIMESTAMPLTZ, _NAMED.TIMESTAMPNTZ}


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


class _ComputedError(Exception):
    """A condition that no :class:`Predicate` can express."""


class _Literal:
    """A value without a column; ``None`` is SQL's NULL."""

    def __init__(self, value: Value | None) -> None:
        self.value = value


def compile_sql(text: str, schema: pa.Schema, zone: dt.tzinfo | None) -> Compiled:
    """The filter that ``text`` states.

    ``zone`` is the zone of times without one (``None``: not known; such times are refused). The case of column names
    does not matter. Raises :class:`FilterError` for syntax errors, unknown columns, constructs and functions that
    are not supported, and types that do not fit.
    """
    try:
        return _compiled(parsed(text), schema, zone)
    except RecursionError:
        raise FilterError("the filter is nested too deeply", filter=text) from None


def _compiled(statement: Any, schema: pa.Schema, zone: dt.tzinfo | None) -> Compiled:
    compiler = _Compiler(schema, zone)
    whole = compiler.predicate(statement, negate=False)
    expression, computed = whole.expression, []
    if expression is None:
        judged = []
        for part in _conditions(statement):
            if compiler.predicate(part, negate=False).expression is None:
                computed.append(condition(compile_value(part, schema, zone)))
            else:
                judged.append(part)
        if judged:
            expression = all_of(compiler.parts(judged, is_or=False, negate=False)).expression
    found = pc.scalar(value=True) if expression is None else expression
    for part in expressions_of(found):
        bind(part, schema)
    columns = frozenset(compiler.columns)
    return Compiled(
        found, tuple(computed), whole.may_match, whole.points, columns, compiler.may_fail, compiler.needs_ansi
    )


def _conditions(node: Any) -> list[Any]:
    """The conditions that must all be true."""
    if isinstance(node, exp.Paren):
        return _conditions(node.this)
    if isinstance(node, exp.And):
        return [found for part in node.flatten() for found in _conditions(part)]
    return [node]


class _Compiler:
    def __init__(self, schema: pa.Schema, zone: dt.tzinfo | None) -> None:
        self.schema = schema
        self.zone = zone
        self.names = {name.lower(): name for name in schema.names}
        self.columns: set[str] = set()
        self.may_fail = False
        self.needs_ansi = False

    def predicate(self, node: Any, *, negate: bool) -> Predicate:
        """Where ``node`` is true; with ``negate``, where it is false."""
        if isinstance(node, exp.Paren):
            return self.predicate(node.this, negate=negate)
        if isinstance(node, exp.Not):
            return self.predicate(node.this, negate=not negate)
        if isinstance(node, exp.And | exp.Or):
            parts = self.parts(list(node.flatten()), is_or=isinstance(node, exp.Or), negate=negate)
            return all_of(parts) if isinstance(node, exp.And) != negate else any_of(parts)
        try:
            return self.leaf(node, negate=negate)
        except _ComputedError:
            return self.computed(node, negate=negate)

    def leaf(self, node: Any, *, negate: bool) -> Predicate:
        if type(node) in _COMPARISONS:
            op = _COMPARISONS[type(node)]
            left, right = self.operand(node.this), self.operand(node.expression)
            return self.compare(OPPOSITE[op] if negate else op, left, right)
        if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
            return self.null_safe(node, negate=negate != isinstance(node, exp.NullSafeNEQ))
        if isinstance(node, exp.In):
            return self.is_in(node, negate=negate)
        if isinstance(node, exp.Between):
            only(node, "this", "low", "high")
            value, low, high = (self.operand(part) for part in (node.this, node.args["low"], node.args["high"]))
            if negate:
                return any_of([self.compare("<", value, low), self.compare(">", value, high)])
            return all_of([self.compare(">=", value, low), self.compare("<=", value, high)])
        if isinstance(node, exp.Is):
            return self.test(node, negate=negate)
        if isinstance(node, exp.Like | exp.Escape):
            return self.like(node, negate=negate)
        return self.truth(node, negate=negate)

    def computed(self, node: Any, *, negate: bool) -> Predicate:
        """A condition about which statistics say nothing."""
        value = condition(compile_value(node, self.schema, self.zone))
        names = {part.name for part in all_nodes(value) if isinstance(part, Column)}
        if not names:
            holds = value.evaluate(Rows.one())[0].as_py()
            return constantly(holds=holds is not None and holds != negate)
        self.columns |= names
        self.may_fail |= value.may_fail
        return Predicate(None, None)

    def parts(self, nodes: Sequence[Any], *, is_or: bool, negate: bool) -> list[Predicate]:
        """The parts of a chain of ``OR`` or ``AND``. ``a = 1 OR a = 2`` becomes ``a IN (1, 2)``, and its opposite
        likewise, because Arrow's time for expressions grows with the square of their length."""
        merged, merged_negate = (exp.EQ, negate) if is_or else (exp.NEQ, not negate)
        lists: dict[str, tuple[Operand, list[Fit]]] = {}
        parts = []
        for part in nodes:
            if type(part) is merged and isinstance(part.this, exp.Column) and part.expression.find(exp.Column) is None:
                column, literal = self.column(part.this), self.operand(part.expression)
                if isinstance(literal, _Literal) and literal.value is not None:
                    found = lists.setdefault(column.text, (column, []))
                    found[1].append(self.fit(literal.value, column))
                    continue
            parts.append(self.predicate(part, negate=negate))
        parts += [leaf.is_in(column, values, negate=merged_negate) for column, values in lists.values()]
        return parts

    def truth(self, node: Any, *, negate: bool) -> Predicate:
        """A boolean operand as a condition."""
        operand = self.operand(node)
        if isinstance(operand, _Literal):
            if operand.value is None:
                return constantly(holds=False)
            if not isinstance(operand.value, bool):
                raise FilterError(f"{sql(node)} is not a condition", construct=sql(node))
            return constantly(holds=operand.value != negate)
        if not pa.types.is_boolean(operand.kind):
            raise FilterError(f"{operand.text} is {operand.kind}, not a condition", construct=operand.text)
        return leaf.compare_literal("=", operand, Fit(Place.AT, not negate))

    def compare(self, op: str, left: Operand | _Literal, right: Operand | _Literal) -> Predicate:
        if isinstance(left, _Literal):
            if isinstance(right, _Literal):
                raise _ComputedError
            return self.compare(SWAPPED[op], right, left)
        if isinstance(right, _Literal):
            if right.value is None:
                return constantly(holds=False)
            return leaf.compare_literal(op, left, self.fit(right.value, left))
        if pa.types.is_nested(left.kind):
            raise FilterError(f"{left.text} is {left.kind} and cannot be compared with {right.text}, {right.kind}")
        if not _alike(left.kind, right.kind):
            raise _ComputedError
        self.may_fail |= left.kind != right.kind
        floats = pa.types.is_floating(left.kind) or pa.types.is_floating(right.kind)
        if floats:
            left, right = _as_double(left), _as_double(right)
        found = leaf.compare_operands(op, left.expression, right.expression, floats=floats)
        if isinstance(found.expression, pc.Expression):
            bind(found.expression, self.schema)
        return found

    def fit(self, value: Value, operand: Operand) -> Fit:
        self.may_fail |= cast_may_fail(value, operand.kind)
        return fit(value, operand.kind, operand.text, self.zone)

    def null_safe(self, node: Any, *, negate: bool) -> Predicate:
        left, right = self.operand(node.this), self.operand(node.expression)
        if isinstance(left, _Literal):
            left, right = right, left
        if isinstance(left, _Literal):
            raise _ComputedError
        if isinstance(right, _Literal) and right.value is None:
            return leaf.is_null(left, negate=negate)
        equal = self.compare("!=" if negate else "=", left, right)
        if isinstance(right, _Literal):
            return any_of([equal, leaf.is_null(left, negate=False)]) if negate else equal
        sides = [
            all_of([leaf.is_null(left, negate=False), leaf.is_null(right, negate=negate)]),
            all_of([leaf.is_null(left, negate=negate), leaf.is_null(right, negate=False)]),
        ]
        return any_of([equal, *sides])

    def is_in(self, node: Any, *, negate: bool) -> Predicate:
        only(node, "this", "expressions")
        if isinstance(node.this, exp.Tuple):
            return self.rows_in(node, negate=negate)
        value = self.operand(node.this)
        items = [self.operand(item) for item in node.expressions]
        if not items:
            unsupported(node)
        literals = [item for item in items if isinstance(item, _Literal)]
        if isinstance(value, _Literal) or len(literals) < len(items):
            raise _ComputedError
        values = [item.value for item in literals if item.value is not None]
        if not pa.types.is_string(value.kind) and any(isinstance(one, str) for one in values):
            self.needs_ansi = True  # otherwise Spark compares texts
        if negate and len(values) < len(items):
            return constantly(holds=False)
        return leaf.is_in(value, [self.fit(v, value) for v in values], negate=negate)

    def rows_in(self, node: Any, *, negate: bool) -> Predicate:
        """``(a, b) IN ((1, 'x'), ...)``. Rows are equal if all their values are. So a null in a column makes the row
        unlike all rows of values, and not the condition null."""
        columns = [self.operand(part) for part in node.this.expressions]
        problem = "rows are compared as (column, column) IN ((value, value), ...), without NULL"
        rows: list[tuple[Any, ...]] = []
        for item in node.expressions:
            row = [self.operand(part) for part in item.expressions] if isinstance(item, exp.Tuple) else []
            values = [part.value for part in row if isinstance(part, _Literal) and part.value is not None]
            operands = [column for column in columns if isinstance(column, Operand) and column.column is not None]
            if not len(values) == len(operands) == len(columns):
                raise FilterError(f"{sql(item)}: {problem}", construct=sql(item))
            fits = [self.fit(value, column) for value, column in zip(values, operands, strict=True)]
            if all(one.place is Place.AT for one in fits):
                rows.append(tuple(one.value for one in fits))
        if not rows:
            return constantly(holds=negate)
        names = [column.column for column in operands]
        if len(set(names)) < len(names) or any(pa.types.is_floating(column.kind) for column in operands):
            raise FilterError(f"{sql(node.this)}: {problem}; each column is there once, and none is a float")
        order = sorted(range(len(names)), key=lambda place: str(names[place]))
        fields = [operands[place].as_field for place in order]
        found = leaf.among_rows(fields, [tuple(row[place] for place in order) for row in rows])
        if not negate or found.expression is None:
            return found
        return Predicate(Untrue(found.expression), None)

    def test(self, node: Any, *, negate: bool) -> Predicate:
        """``IS NULL``, ``IS TRUE``, ``IS FALSE``. Their negation is also true if the value is null."""
        against = node.expression
        if isinstance(against, exp.Null):
            operand = self.operand(node.this)
            if isinstance(operand, _Literal):
                return constantly(holds=(operand.value is None) != negate)
            return leaf.is_null(operand, negate=negate)
        if not isinstance(against, exp.Boolean):
            unsupported(node)
        found = self.predicate(node.this, negate=not against.this)
        if not negate:
            return found
        if found.expression is None:
            raise _ComputedError
        if isinstance(found.expression, pc.Expression):
            return Predicate(~pc.coalesce(found.expression, pc.scalar(False)), None)
        return Predicate(Untrue(found.expression), None)

    def like(self, node: Any, *, negate: bool) -> Predicate:
        escape = "\\"
        if isinstance(node, exp.Escape):
            given = self.operand(node.expression)
            if not isinstance(given, _Literal) or not isinstance(given.value, str) or len(given.value) != 1:
                unsupported(node)
            node, escape = node.this, given.value
        if not isinstance(node, exp.Like) or isinstance(node.expression, exp.Any | exp.All):
            raise _ComputedError
        only(node, "this", "expression", "negate")
        negate = negate != bool(node.args.get("negate"))
        value, pattern = self.operand(node.this), self.operand(node.expression)
        if isinstance(value, _Literal) or not isinstance(pattern, _Literal):
            raise _ComputedError
        if pattern.value is None:
            return constantly(holds=False)
        if not pa.types.is_string(value.kind) or not isinstance(pattern.value, str):
            raise _ComputedError
        return leaf.is_like(value, pattern.value, escape, negate=negate)

    def operand(self, node: Any) -> Operand | _Literal:
        """A column, a field of one, or a value without columns. Raises :class:`_ComputedError` for anything else."""
        if isinstance(node, exp.Paren):
            return self.operand(node.this)
        if _is_path(node):
            return self.column(node)
        if node.find(exp.Column) is not None:
            raise _ComputedError
        found = _literal(node)
        return self.constant(node) if found is None else found

    def constant(self, node: Any) -> _Literal:
        value = compile_value(node, self.schema, self.zone)
        if pa.types.is_nested(value.kind):
            raise _ComputedError
        try:
            return _Literal(value.evaluate(Rows.one())[0].as_py())
        except (ValueError, OverflowError) as error:
            raise FilterError(f"{sql(node)} is outside the years 1 to 9999", construct=sql(node)) from error

    def column(self, node: Any) -> Operand:
        fields: list[str] = []
        while isinstance(node, exp.Dot):
            fields.insert(0, node.expression.name)
            node = node.this
        parts = [*(part.name for part in node.parts), *fields]
        name = self.names.get(parts[0].lower())
        if name is None:
            known = ", ".join(self.schema.names)
            raise FilterError(f"the table has no column {parts[0]!r}; it has {known}", column=parts[0])
        path, kind = [name], self.schema.field(name).type
        for part in parts[1:]:
            fields_of = {kind.field(i).name.lower(): kind.field(i) for i in range(kind.num_fields)}
            if not pa.types.is_struct(kind) or part.lower() not in fields_of:
                raise FilterError(f"{'.'.join(path)} has no field {part!r}", column=".".join(parts))
            field = fields_of[part.lower()]
            path.append(field.name)
            kind = field.type
        self.columns.add(name)
        judged = len(path) == 1 and not pa.types.is_nested(kind)
        return Operand(pc.field(*path), kind, ".".join(path), name if judged else None)


def _is_path(node: Any) -> bool:
    """A column, or a field of a field of one."""
    while isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        node = node.this
    return isinstance(node, exp.Column)


def _literal(node: Any) -> _Literal | None:
    """The value of a literal. ``None`` for a node that must be computed."""
    if isinstance(node, exp.Null):
        return _Literal(None)
    if isinstance(node, exp.Boolean):
        return _Literal(bool(node.this))
    if isinstance(node, exp.Literal) and not node.is_string and not str(node.this).isdecimal():
        text = str(node.this)
        return _Literal(float(text) if "e" in text.lower() else Decimal(text))
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        # A time without a zone stays one. The column that it is compared with says what it means.
        kind, value = node.to.this, None
        if kind == _NAMED.DATE:
            value = parse_date(str(node.this.this))
        elif kind in _TIMESTAMPS:
            value = parse_timestamp(str(node.this.this))
        return None if value is None else _Literal(value)
    return None


def _alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether Arrow compares the types as Spark does. It does not for decimals that Spark compares as floats, or that
    Spark cuts digits off."""
    if left == right:
        return True
    found = wider(left, right) if is_number(left) and is_number(right) else None
    decimals = [kind for kind in (left, right) if pa.types.is_decimal(kind)]
    if found is None or (decimals and pa.types.is_floating(found)):
        return False
    return all(kind.scale <= found.scale for kind in decimals)


def _as_double(operand: Operand) -> Operand:
    return Operand(operand.expression.cast(pa.float64(), safe=False), pa.float64(), operand.text, None)
