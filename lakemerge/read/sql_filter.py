"""SQL filters (Spark's dialect) as Arrow expressions.

sqlglot parses; here the tree becomes :class:`Predicate`\\ s. ``NOT`` is pushed down to the leaves, so
that three-valued logic needs no null-aware negation. Differences from Spark: numbers are compared
exactly (Spark goes through doubles where a literal is one), and integers are computed in 64 bits.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakemerge.errors import FilterError
from lakemerge.read import predicates as leaf
from lakemerge.read.literals import EXACT, Fit, Place, Value, cast_may_fail, fit, parse_date, parse_timestamp
from lakemerge.read.predicates import OPPOSITE, SWAPPED, Operand, Predicate, all_of, any_of, bind, constantly

__all__ = ["SUPPORTED", "compile_sql"]

SUPPORTED = (
    "columns and struct fields, literals, = == <> != < <= > >= <=>, AND, OR, NOT, IN, BETWEEN, IS [NOT] NULL, "
    "IS [NOT] TRUE, IS [NOT] FALSE, IS [NOT] DISTINCT FROM, LIKE, ILIKE, and + - * on numbers"
)

_COMPARISONS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}
_INTEGERS = {exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT}
_TIMESTAMPS = {exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ}


class _Literal:
    """A value without a column; ``None`` is SQL's NULL."""

    def __init__(self, value: Value | None) -> None:
        self.value = value


def compile_sql(text: str, schema: pa.Schema, zone: dt.tzinfo | None) -> tuple[Predicate, frozenset[str], bool]:
    """The predicate that ``text`` states, the top-level columns it uses, and whether Spark might fail on a row.

    ``zone`` is that of times without one (``None``: not known, they are refused). Column names match
    whatever their case. Raises :class:`FilterError` for syntax errors, unknown columns, constructs
    outside ``SUPPORTED`` and comparisons of types that do not compare.
    """
    try:
        statements = sqlglot.parse(text, read="spark")
    except SqlglotError as error:
        raise FilterError(f"the filter {text!r} is not SQL: {_plain(error)}", filter=text) from error
    except RecursionError:
        raise FilterError("the filter is nested too deeply", filter=text) from None
    if len(statements) != 1 or statements[0] is None:
        raise FilterError(f"the filter {text!r} is not one condition", filter=text)
    compiler = _Compiler(schema, zone)
    try:
        predicate = compiler.predicate(statements[0], negate=False)
        bind(predicate.expression, schema)
    except RecursionError:
        raise FilterError("the filter is nested too deeply", filter=text) from None
    return predicate, frozenset(compiler.columns), compiler.may_fail


def _plain(error: SqlglotError) -> str:
    """sqlglot's message without its terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).replace("\n", " ").strip()


class _Compiler:
    def __init__(self, schema: pa.Schema, zone: dt.tzinfo | None) -> None:
        self.schema = schema
        self.zone = zone
        self.names = {name.lower(): name for name in schema.names}
        self.columns: set[str] = set()
        self.may_fail = False

    def predicate(self, node: Any, *, negate: bool) -> Predicate:
        """Where ``node`` is true; with ``negate``, where it is false."""
        if isinstance(node, exp.Paren):
            return self.predicate(node.this, negate=negate)
        if isinstance(node, exp.Not):
            return self.predicate(node.this, negate=not negate)
        if isinstance(node, exp.And | exp.Or):
            parts = self.parts(node, negate=negate)
            return all_of(parts) if isinstance(node, exp.And) != negate else any_of(parts)
        if type(node) in _COMPARISONS:
            op = _COMPARISONS[type(node)]
            left, right = self.operand(node.this), self.operand(node.expression)
            return self.compare(OPPOSITE[op] if negate else op, left, right)
        if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
            return self.null_safe(node, negate=negate != isinstance(node, exp.NullSafeNEQ))
        if isinstance(node, exp.In):
            return self.is_in(node, negate=negate)
        if isinstance(node, exp.Between):
            _only(node, "this", "low", "high")
            value, low, high = (self.operand(part) for part in (node.this, node.args["low"], node.args["high"]))
            if negate:
                return any_of([self.compare("<", value, low), self.compare(">", value, high)])
            return all_of([self.compare(">=", value, low), self.compare("<=", value, high)])
        if isinstance(node, exp.Is):
            return self.test(node, negate=negate)
        if isinstance(node, exp.Like | exp.ILike | exp.Escape):
            return self.like(node, negate=negate)
        return self.truth(node, negate=negate)

    def parts(self, node: Any, *, negate: bool) -> list[Predicate]:
        """The parts of a chain of ``OR`` or ``AND``. ``a = 1 OR a = 2`` is taken as ``a IN (1, 2)``, and its
        opposite likewise: Arrow's time for expressions grows with the square of their length."""
        merged, merged_negate = (exp.EQ, negate) if isinstance(node, exp.Or) else (exp.NEQ, not negate)
        lists: dict[str, tuple[Operand, list[Fit]]] = {}
        parts = []
        for part in node.flatten():
            if type(part) is merged and isinstance(part.this, exp.Column):
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
                raise FilterError(f"{_sql(node)} is not a condition", construct=_sql(node))
            return constantly(holds=operand.value != negate)
        if not pa.types.is_boolean(operand.kind):
            raise FilterError(f"{operand.text} is {operand.kind}, not a condition", construct=operand.text)
        return leaf.compare_literal("=", operand, Fit(Place.AT, not negate))

    def compare(self, op: str, left: Operand | _Literal, right: Operand | _Literal) -> Predicate:
        if isinstance(left, _Literal):
            if isinstance(right, _Literal):
                return self.compare(op, _promote(left), right)
            return self.compare(SWAPPED[op], right, left)
        if isinstance(right, _Literal):
            if right.value is None:
                return constantly(holds=False)
            return leaf.compare_literal(op, left, self.fit(right.value, left))
        numbers = _is_number(left.kind) and _is_number(right.kind)
        if (not numbers and left.kind != right.kind) or pa.types.is_nested(left.kind):
            raise FilterError(f"{left.text} is {left.kind} and cannot be compared with {right.text}, {right.kind}")
        self.may_fail |= left.kind != right.kind
        floats = pa.types.is_floating(left.kind) or pa.types.is_floating(right.kind)
        if floats:
            left, right = _as_double(left), _as_double(right)
        found = leaf.compare_operands(op, left.expression, right.expression, floats=floats)
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
            _unsupported(node)
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
        _only(node, "this", "expressions")
        value = self.operand(node.this)
        items = [self.operand(item) for item in node.expressions]
        if not items:
            _unsupported(node)
        literals = [item for item in items if isinstance(item, _Literal)]
        if isinstance(value, _Literal) or len(literals) < len(items):
            parts = [self.compare("!=" if negate else "=", value, item) for item in items]
            return all_of(parts) if negate else any_of(parts)
        values = [item.value for item in literals if item.value is not None]
        if negate and len(values) < len(items):
            return constantly(holds=False)
        return leaf.is_in(value, [self.fit(v, value) for v in values], negate=negate)

    def test(self, node: Any, *, negate: bool) -> Predicate:
        """``IS NULL``, ``IS TRUE``, ``IS FALSE``; their negation also holds where the value is null."""
        against = node.expression
        if isinstance(against, exp.Null):
            operand = self.operand(node.this)
            if isinstance(operand, _Literal):
                return constantly(holds=(operand.value is None) != negate)
            return leaf.is_null(operand, negate=negate)
        if not isinstance(against, exp.Boolean):
            _unsupported(node)
        found = self.predicate(node.this, negate=not against.this)
        if not negate:
            return found
        return Predicate(~pc.coalesce(found.expression, pc.scalar(False)), None)

    def like(self, node: Any, *, negate: bool) -> Predicate:
        escape = "\\"
        if isinstance(node, exp.Escape):
            given = self.operand(node.expression)
            if not isinstance(given, _Literal) or not isinstance(given.value, str) or len(given.value) != 1:
                _unsupported(node)
            node, escape = node.this, given.value
        if not isinstance(node, exp.Like | exp.ILike):
            _unsupported(node)
        _only(node, "this", "expression", "negate")
        negate = negate != bool(node.args.get("negate"))
        value, pattern = self.operand(node.this), self.operand(node.expression)
        if isinstance(value, _Literal) or not isinstance(pattern, _Literal):
            _unsupported(node)
        if pattern.value is None:
            return constantly(holds=False)
        if not pa.types.is_string(value.kind) or not isinstance(pattern.value, str):
            raise FilterError(f"LIKE needs strings: {_sql(node)}", construct=_sql(node))
        return leaf.is_like(value, pattern.value, escape, ignore_case=isinstance(node, exp.ILike), negate=negate)

    def operand(self, node: Any) -> Operand | _Literal:
        if isinstance(node, exp.Paren):
            return self.operand(node.this)
        if isinstance(node, exp.Column | exp.Dot):
            return self.column(node)
        if isinstance(node, exp.Neg):
            return self.arithmetic(node, _Literal(0), self.operand(node.this), operator.sub)
        if type(node) in _ARITHMETIC:
            return self.arithmetic(
                node, self.operand(node.this), self.operand(node.expression), _ARITHMETIC[type(node)]
            )
        return _literal(node)

    def column(self, node: Any) -> Operand:
        parts: list[str] = []
        while isinstance(node, exp.Dot):
            if not isinstance(node.expression, exp.Identifier):
                _unsupported(node)
            parts.insert(0, node.expression.name)
            node = node.this
        if not isinstance(node, exp.Column):
            _unsupported(node)
        parts = [*(part.name for part in node.parts), *parts]
        name = self.names.get(parts[0].lower())
        if name is None:
            known = ", ".join(self.schema.names)
            raise FilterError(f"the table has no column {parts[0]!r}; it has {known}", column=parts[0])
        path, kind = [name], self.schema.field(name).type
        for part in parts[1:]:
            fields = {kind.field(i).name.lower(): kind.field(i) for i in range(kind.num_fields)}
            if not pa.types.is_struct(kind) or part.lower() not in fields:
                raise FilterError(f"{'.'.join(path)} has no field {part!r}", column=".".join(parts))
            field = fields[part.lower()]
            path.append(field.name)
            kind = field.type
        self.columns.add(name)
        judged = len(path) == 1 and not pa.types.is_nested(kind)
        return Operand(pc.field(*path), kind, ".".join(path), name if judged else None)

    def arithmetic(
        self, node: Any, left: Operand | _Literal, right: Operand | _Literal, compute: Callable[[Any, Any], Any]
    ) -> Operand | _Literal:
        values = [side.value if isinstance(side, _Literal) else None for side in (left, right)]
        if any(isinstance(side, _Literal) and not _is_number_value(side.value) for side in (left, right)):
            _unsupported(node)
        if isinstance(left, _Literal) and isinstance(right, _Literal):
            return _Literal(_compute(compute, *values))
        self.may_fail = True
        sides = [_promote(side) if isinstance(side, _Literal) else side for side in (left, right)]
        if not all(_is_number(side.kind) for side in sides):
            _unsupported(node)
        if any(pa.types.is_floating(side.kind) for side in sides):
            sides = [_as_double(side) for side in sides]
        else:
            sides = [_widened(side) for side in sides]
        expression = compute(sides[0].expression, sides[1].expression)
        return Operand(expression, bind(expression, self.schema), _sql(node), None)


def _literal(node: Any) -> _Literal:
    if isinstance(node, exp.Null):
        return _Literal(None)
    if isinstance(node, exp.Boolean):
        return _Literal(bool(node.this))
    if isinstance(node, exp.RawString):
        return _Literal(str(node.this))
    if isinstance(node, exp.HexString):
        digits = str(node.this)
        return _Literal(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)))
    if isinstance(node, exp.Literal):
        return _Literal(str(node.this) if node.is_string else _number(str(node.this)))
    if isinstance(node, exp.Cast | exp.TryCast):
        return _cast_literal(node)
    return _unsupported(node)


def _number(text: str) -> int | float | Decimal:
    if text.isdecimal():
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)


def _cast_literal(node: Any) -> _Literal:
    """``DATE '...'``, ``TIMESTAMP '...'``, ``1L``, ``1.5BD``, ``CAST('...' AS DATE)`` and the like."""
    inner, kind = _literal(node.this), node.to.this
    text = str(inner.value)
    value: Value | None = None
    try:
        if inner.value is None:
            return inner
        if kind == exp.DType.DATE:
            value = parse_date(text)
        elif kind in _TIMESTAMPS:
            value = parse_timestamp(text)
        elif kind in _INTEGERS:
            value = int(text)
        elif kind == exp.DType.DECIMAL:
            value = Decimal(text)
        elif kind == exp.DType.DOUBLE:
            value = float(text)
        elif kind == exp.DType.FLOAT:
            value = pa.scalar(float(text), pa.float32()).as_py()
    except (ValueError, InvalidOperation):
        value = None
    if value is None:
        _unsupported(node)
    return _Literal(value)


def _promote(literal: _Literal) -> Operand:
    """A literal as an operand of its own type."""
    value = literal.value
    kind = pa.string() if value is None else pa.scalar(value).type
    return Operand(leaf.constant(value, kind), kind, repr(value), None)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_number_value(value: Value | None) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _as_double(operand: Operand) -> Operand:
    return Operand(operand.expression.cast(pa.float64(), safe=False), pa.float64(), operand.text, None)


def _widened(operand: Operand) -> Operand:
    if not pa.types.is_integer(operand.kind):
        return operand
    return Operand(operand.expression.cast(pa.int64()), pa.int64(), operand.text, None)


def _compute(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> int | float | Decimal:
    if isinstance(left, float) or isinstance(right, float):
        return float(compute(float(left), float(right)))
    if isinstance(left, int) and isinstance(right, int):
        return int(compute(left, right))
    by_name = {operator.add: EXACT.add, operator.sub: EXACT.subtract, operator.mul: EXACT.multiply}
    return by_name[compute](Decimal(left), Decimal(right))


def _only(node: Any, *names: str) -> None:
    if any(value and name not in names for name, value in node.args.items()):
        _unsupported(node)


def _sql(node: Any) -> str:
    return str(node.sql(dialect="spark"))


def _unsupported(node: Any) -> NoReturn:
    text = _sql(node)
    raise FilterError(f"{text!r} is not supported in a filter; supported are {SUPPORTED}", construct=text)
