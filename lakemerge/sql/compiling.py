"""Turns sqlglot's tree of an expression into a :class:`Node` that computes it.

This is the one place that knows what each construct means. Conditions outside of other expressions stay as they are
written (:class:`Condition`), until somebody asks for their nodes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from sqlglot import exp

from lakemerge.errors import FilterError
from lakemerge.sql import nested
from lakemerge.sql.arithmetic import arithmetic, negative
from lakemerge.sql.casts import cast
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
from lakemerge.sql.functions import FUNCTIONS, concat, like_java, substring, trim
from lakemerge.sql.intervals import interval_of, with_days, with_interval
from lakemerge.sql.logic import case, compare
from lakemerge.sql.nodes import Column, Constant, Node, all_nodes
from lakemerge.sql.parsing import is_explicit, only, sql, unsupported
from lakemerge.sql.times import parse_date, parse_timestamp
from lakemerge.sql.types import BIGINT, DATE, DOUBLE, INT, LOCAL, STRING, TIMESTAMP, is_time
from mergers.type_names import type_name

__all__ = ["check_zone", "compile_condition", "compile_value", "number_literal", "time_literal", "type_named"]

_BOOL = pa.bool_()
_COMPARISONS: dict[type, str] = {
    exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}  # fmt: skip
_ARITHMETIC: dict[type, str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div",
}  # fmt: skip
_NAMED = exp.DataType.Type
_TYPES: dict[Any, pa.DataType] = {
    _NAMED.BOOLEAN: _BOOL, _NAMED.TINYINT: pa.int8(), _NAMED.SMALLINT: pa.int16(), _NAMED.INT: INT,
    _NAMED.BIGINT: BIGINT,
    _NAMED.FLOAT: pa.float32(), _NAMED.DOUBLE: DOUBLE, _NAMED.TEXT: STRING, _NAMED.DATE: DATE,
    _NAMED.TIMESTAMP: TIMESTAMP,
    _NAMED.TIMESTAMPTZ: TIMESTAMP, _NAMED.TIMESTAMPLTZ: TIMESTAMP, _NAMED.TIMESTAMPNTZ: LOCAL,
}  # fmt: skip
_MAX_DIGITS = 38

AnyNode = TypeVar("AnyNode", bound=Node)


def compile_value(node: Any, schema: pa.Schema, zone: dt.tzinfo | None) -> Node:
    """The node that computes the expression over the schema's columns. The case of column names does not matter.

    :param zone: the session's time zone. If it is not UTC, expressions that compute with TIMESTAMPs are refused.
    :raises lakemerge.FilterError: for unknown columns, constructs and functions, and types that do not fit.
    """
    return check_zone(_Compiler(schema).value(node), zone)


def compile_condition(node: Any, schema: pa.Schema) -> Condition:
    """The condition that the expression states, over the schema's columns.

    :raises lakemerge.FilterError: for unknown columns, constructs and functions, and types of values that do not fit.
    """
    return _Compiler(schema).condition(node)


def check_zone(node: AnyNode, zone: dt.tzinfo | None) -> AnyNode:
    """The node. Raises :class:`FilterError` if it computes with TIMESTAMPs, and the session's zone is not UTC."""
    if zone is not dt.UTC and any(part.kind == TIMESTAMP for part in all_nodes(node)):
        raise FilterError(f"{node.text} computes with TIMESTAMPs, which a filter does in the time zone UTC only")
    return node


def type_named(node: Any) -> pa.DataType:
    """The Arrow type for a type's name in SQL. Raises :class:`FilterError` if filters do not cast to that type."""
    if node.this == _NAMED.DECIMAL:
        sizes = [int(size.name) for size in node.expressions] or [10]
        precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
        if 1 <= precision <= _MAX_DIGITS and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    elif node.this in _TYPES and not node.expressions:
        return _TYPES[node.this]
    return unsupported(node)


def number_literal(text: str) -> Constant:
    """A number that is written in SQL: an INT, a BIGINT or a decimal with the written digits. With an exponent it is a
    DOUBLE."""
    if text.isdecimal() or (text[1:].isdecimal() and text[0] == "-"):
        value = int(text)
        for kind in (INT, BIGINT):
            if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
                return Constant(value, kind, text, literal=True)
    if "e" in text.lower():
        return Constant(float(text), DOUBLE, text)
    number = Decimal(text)
    _, digits, exponent = number.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > _MAX_DIGITS:
        raise FilterError(f"{text} has more than {_MAX_DIGITS} digits")
    return Constant(number, pa.decimal128(precision, scale), text)


def time_literal(text: str, kind: pa.DataType) -> Constant | None:
    """A date or time that is written in SQL. ``None`` for a form that only a cast knows."""
    shown = f"{type_name(kind)} '{text}'"
    if pa.types.is_date(kind):
        day = parse_date(text)
        return None if day is None else Constant(day, kind, shown)
    written = parse_timestamp(text)
    try:
        if written is not None and kind == TIMESTAMP:
            instant = (written if written.tzinfo else written.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
            return Constant(instant, kind, shown, written=written)
    except OverflowError:  # Python has no such time in UTC
        return None
    return None if written is None else Constant(written.replace(tzinfo=None), kind, shown, written=written)


class _Compiler:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names = {name.lower(): name for name in schema.names}

    def value(self, node: Any) -> Node:
        found = _METHODS.get(type(node), _unsupported)(self, node)
        return found.node() if isinstance(found, Condition) else found

    def condition(self, node: Any) -> Condition:
        found = _METHODS.get(type(node), _unsupported)(self, node)
        return found if isinstance(found, Condition) else Truth(node, found)

    def paren(self, node: Any) -> Node | Condition:
        inner = node.this
        return _METHODS.get(type(inner), _unsupported)(self, inner)

    def column(self, node: Any) -> Node:
        first, *fields = (part.name for part in node.parts)
        name = self.names.get(first.lower())
        if name is None:
            known = ", ".join(self.schema.names)
            raise FilterError(f"the table has no column {first!r}; it has {known}", column=first)
        found: Node = Column(name, self.schema.field(name).type, name)
        for field in fields:
            found = nested.field(found, field, f"{found.text}.{field}")
        return found

    def dot(self, node: Any) -> Node:
        if not isinstance(node.expression, exp.Identifier):
            unsupported(node)
        return nested.field(self.value(node.this), node.expression.name, sql(node))

    def bracket(self, node: Any) -> Node:
        if len(node.expressions) != 1:
            unsupported(node)
        return nested.element(self.value(node.this), self.value(node.expressions[0]), sql(node))

    def null(self, node: Any) -> Node:
        return Constant(None, pa.null(), "NULL")

    def boolean(self, node: Any) -> Node:
        return Constant(bool(node.this), _BOOL, sql(node))

    def literal(self, node: Any) -> Node:
        if node.is_string:
            return Constant(str(node.this), STRING, sql(node))
        return number_literal(str(node.this))

    def raw(self, node: Any) -> Node:
        return Constant(str(node.this), STRING, sql(node))

    def binary(self, node: Any) -> Node:
        digits = str(node.this)
        return Constant(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), pa.binary(), sql(node))

    def cast(self, node: Any) -> Node:
        only(node, "this", "to", "safe")
        kind = type_named(node.to)
        if isinstance(node.this, exp.Literal) and node.this.is_string and is_time(kind):
            known = time_literal(str(node.this.this), kind)
            if known is not None:
                return known
        given = self.value(node.this)
        found = cast(given, kind, sql(node), lenient=isinstance(node, exp.TryCast))
        if isinstance(given, Constant) and given.literal and isinstance(found, Constant) and not is_explicit(node):
            # sqlglot reads 1L as such a cast. It is still a literal, so its digits count.
            return Constant(found.value, kind, sql(node), literal=pa.types.is_integer(kind))
        return found

    def negative(self, node: Any) -> Node:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string:
            return number_literal(f"-{inner.this}")
        return negative(self.value(inner), sql(node))

    def arithmetic(self, node: Any) -> Node:
        text, back = sql(node), isinstance(node, exp.Sub)
        if isinstance(node, exp.Add | exp.Sub):
            left, right = interval_of(node.this), interval_of(node.expression)
            if right is not None and left is None:
                return with_interval(self.value(node.this), right.negated() if back else right, text)
            if left is not None and right is None and not back:
                return with_interval(self.value(node.expression), left, text)
        values = self.value(node.this), self.value(node.expression)
        dated = with_days(*values, text, back=back) if isinstance(node, exp.Add | exp.Sub) else None
        return arithmetic(_ARITHMETIC[type(node)], *values, text) if dated is None else dated

    def concat(self, node: Any) -> Node:
        return concat([self.value(node.this), self.value(node.expression)], sql(node))

    def comparison(self, node: Any) -> Condition:
        left, right = self.value(node.this), self.value(node.expression)
        if isinstance(node, exp.NullSafeNEQ):
            return Not(node, Comparison(node, "<=>", left, right))
        return Comparison(node, _COMPARISONS[type(node)], left, right)

    def is_in(self, node: Any) -> Condition:
        only(node, "this", "expressions")
        if not node.expressions:
            unsupported(node)
        if not isinstance(node.this, exp.Tuple):
            return Among(node, self.value(node.this), tuple(map(self.value, node.expressions)))
        rows = [part if isinstance(part, exp.Tuple) else exp.Tuple() for part in node.expressions]
        values = [tuple(map(self.value, row.expressions)) for row in (node.this, *rows)]
        return RowsAmong(node, values[0], tuple(zip(map(sql, node.expressions), values[1:], strict=True)))

    def between(self, node: Any) -> Condition:
        only(node, "this", "low", "high")
        value, low, high = (self.value(part) for part in (node.this, node.args["low"], node.args["high"]))
        return Joined(node, (Comparison(node, ">=", value, low), Comparison(node, "<=", value, high)), is_or=False)

    def test(self, node: Any) -> Condition:
        if isinstance(node.expression, exp.Null):
            return NullTest(node, self.value(node.this))
        if not isinstance(node.expression, exp.Boolean):
            unsupported(node)
        return TruthTest(node, self.condition(node.this), bool(node.expression.this))

    def negation(self, node: Any) -> Condition:
        return Not(node, self.condition(node.this))

    def junction(self, node: Any) -> Condition:
        parts = tuple(self.condition(part) for part in node.flatten())
        return Joined(node, parts, isinstance(node, exp.Or))

    def like(self, node: Any) -> Condition:
        escape, of = "\\", node
        if isinstance(node, exp.Escape):
            given = self.value(node.expression)
            if not isinstance(given, Constant) or not isinstance(given.value, str) or len(given.value) != 1:
                unsupported(node)
            of, escape = node.this, given.value
        if not isinstance(of, exp.Like | exp.ILike) or isinstance(of.expression, exp.Any | exp.All):
            unsupported(node)
        only(of, "this", "expression")
        return Like(node, self.value(of.this), self.value(of.expression), escape, isinstance(of, exp.ILike))

    def java(self, node: Any) -> Node:
        only(node, "this", "expression")
        return like_java([self.value(node.this), self.value(node.expression)], sql(node))

    def case(self, node: Any) -> Node:
        only(node, "this", "ifs", "default")
        of, text = None if node.this is None else self.value(node.this), sql(node)
        branches = []
        for branch in node.args["ifs"]:
            test = self.value(branch.this)
            if of is not None:
                test = compare("=", of, test, text)
            elif test.kind == pa.null():  # Spark refuses it, though not in IF
                raise FilterError(f"{text}: NULL has no type; use CAST(NULL AS BOOLEAN)", construct=text)
            branches.append((test, self.value(branch.args["true"])))
        default = node.args.get("default")
        return case(branches, None if default is None else self.value(default), text)

    def choice(self, node: Any) -> Node:
        only(node, "this", "true", "false")
        other = node.args.get("false")
        if other is None:
            unsupported(node)
        return case([(self.value(node.this), self.value(node.args["true"]))], self.value(other), sql(node))

    def substring(self, node: Any) -> Node:
        only(node, "this", "start", "length")
        parts = [node.args.get(part) for part in ("this", "start", "length")]
        return substring([self.value(part) for part in parts if part is not None], sql(node))

    def trim(self, node: Any) -> Node:
        only(node, "this", "position", "expression")
        side = str(node.args.get("position") or "BOTH").upper()
        of, characters = self.value(node.this), node.args.get("expression")
        return trim(
            of,
            None if characters is None else self.value(characters),
            sql(node),
            at_start=side != "TRAILING",
            at_end=side != "LEADING",
        )

    def function(self, node: Any) -> Node:
        found = FUNCTIONS.get(node.name.lower())
        if found is None:
            unsupported(node)
        if not found.least <= len(node.expressions) <= found.most:
            counts = f"{found.least}" if found.least == found.most else f"{found.least} to {found.most}"
            raise FilterError(f"{sql(node)}: in a filter {node.name} takes {counts} argument(s)", construct=sql(node))
        return found.build([self.value(argument) for argument in node.expressions], sql(node))


def _unsupported(compiler: _Compiler, node: Any) -> NoReturn:
    unsupported(node)


_METHODS: Mapping[type, Callable[[_Compiler, Any], Node | Condition]] = {
    exp.Paren: _Compiler.paren,
    exp.Column: _Compiler.column,
    exp.Dot: _Compiler.dot,
    exp.Bracket: _Compiler.bracket,
    exp.Null: _Compiler.null,
    exp.Boolean: _Compiler.boolean,
    exp.Literal: _Compiler.literal,
    exp.RawString: _Compiler.raw,
    exp.HexString: _Compiler.binary,
    **dict.fromkeys((exp.Cast, exp.TryCast), _Compiler.cast),
    exp.Neg: _Compiler.negative,
    **dict.fromkeys(_ARITHMETIC, _Compiler.arithmetic),
    exp.DPipe: _Compiler.concat,
    **dict.fromkeys((*_COMPARISONS, exp.NullSafeNEQ), _Compiler.comparison),
    exp.In: _Compiler.is_in,
    exp.Between: _Compiler.between,
    exp.Is: _Compiler.test,
    exp.Not: _Compiler.negation,
    **dict.fromkeys((exp.And, exp.Or), _Compiler.junction),
    **dict.fromkeys((exp.Like, exp.ILike, exp.Escape), _Compiler.like),
    exp.RegexpLike: _Compiler.java,
    exp.Case: _Compiler.case,
    exp.If: _Compiler.choice,
    exp.Substring: _Compiler.substring,
    exp.Trim: _Compiler.trim,
    exp.Anonymous: _Compiler.function,
}
