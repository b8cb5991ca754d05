"""Turns sqlglot's tree of an expression into a :class:`Node` that computes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import exp

from lakemerge.errors import FilterError
from lakemerge.sql import nested
from lakemerge.sql.arithmetic import arithmetic, negative
from lakemerge.sql.casts import as_text, cast
from lakemerge.sql.functions import FUNCTIONS, concat, like_java, substring, trim
from lakemerge.sql.intervals import interval_of, with_days, with_interval
from lakemerge.sql.logic import case, compare, condition, is_null, junction, negation, null_safe, of_one_kind
from lakemerge.sql.nodes import Column, Constant, Node, all_nodes
from lakemerge.sql.parsing import is_explicit, only, sql, unsupported
from lakemerge.sql.patterns import like, like_regex, pattern_call
from lakemerge.sql.types import BIGINT, DATE, DOUBLE, INT, LOCAL, STRING, TIMESTAMP

__all__ = ["compile_value", "number_literal", "type_named"]

_BOOL = pa.bool_()
_COMPARISONS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
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


def compile_value(node: Any, schema: pa.Schema, zone: dt.tzinfo | None) -> Node:
    """The node that computes the expression over the schema's columns. The case of column names does not matter.

    :param zone: the session's time zone. If it is not UTC, expressions that compute with TIMESTAMPs are refused.
    :raises lakemerge.FilterError: for unknown columns, constructs and functions, and types that do not fit.
    """
    found = _Compiler(schema).value(node)
    if zone is not dt.UTC and any(part.kind == TIMESTAMP for part in all_nodes(found)):
        raise FilterError(f"{sql(node)} computes with TIMESTAMPs, which a filter does in the time zone UTC only")
    return found


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


def number_literal(text: str, shown: str) -> Constant:
    """A number that is written in SQL: an INT, a BIGINT or a decimal with the written digits. With an exponent it is a
    DOUBLE."""
    if text.isdecimal() or (text[1:].isdecimal() and text[0] == "-"):
        value = int(text)
        for kind in (INT, BIGINT):
            if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
                return Constant(value, kind, shown, literal=True)
        text = f"{value}."
    if "e" in text.lower():
        return Constant(float(text), DOUBLE, shown)
    number = Decimal(text)
    _, digits, exponent = number.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > _MAX_DIGITS:
        raise FilterError(f"{shown} has more than {_MAX_DIGITS} digits")
    return Constant(number, pa.decimal128(precision, scale), shown)


class _Compiler:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names = {name.lower(): name for name in schema.names}

    def value(self, node: Any) -> Node:
        for kind, method in _METHODS.items():
            if isinstance(node, kind):
                return method(self, node)
        return unsupported(node)

    def paren(self, node: Any) -> Node:
        return self.value(node.this)

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
        return number_literal(str(node.this), sql(node))

    def raw(self, node: Any) -> Node:
        return Constant(str(node.this), STRING, sql(node))

    def binary(self, node: Any) -> Node:
        digits = str(node.this)
        return Constant(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), pa.binary(), sql(node))

    def cast(self, node: Any) -> Node:
        only(node, "this", "to", "safe")
        kind, given = type_named(node.to), self.value(node.this)
        found = cast(given, kind, sql(node), lenient=isinstance(node, exp.TryCast))
        if isinstance(given, Constant) and given.literal and isinstance(found, Constant) and not is_explicit(node):
            # sqlglot reads 1L as such a cast. It is still a literal, so its digits count.
            return Constant(found.value, kind, sql(node), literal=pa.types.is_integer(kind))
        return found

    def negative(self, node: Any) -> Node:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string:
            return number_literal(f"-{inner.this}", sql(node))
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

    def comparison(self, node: Any) -> Node:
        left, right = self.value(node.this), self.value(node.expression)
        if isinstance(node, exp.NullSafeEQ):
            return null_safe(left, right, sql(node))
        if isinstance(node, exp.NullSafeNEQ):
            return negation(null_safe(left, right, sql(node)), sql(node))
        return compare(_COMPARISONS[type(node)], left, right, sql(node))

    def is_in(self, node: Any) -> Node:
        only(node, "this", "expressions")
        if not node.expressions:
            unsupported(node)
        text = sql(node)
        value, *items = of_one_kind([self.value(part) for part in (node.this, *node.expressions)], text)
        equal = [compare("=", value, item, text) for item in items]
        return junction(equal, text, is_or=True)

    def between(self, node: Any) -> Node:
        only(node, "this", "low", "high")
        value, low, high = (self.value(part) for part in (node.this, node.args["low"], node.args["high"]))
        ends = [compare(">=", value, low, sql(node)), compare("<=", value, high, sql(node))]
        return junction(ends, sql(node), is_or=False)

    def test(self, node: Any) -> Node:
        value = self.value(node.this)
        if isinstance(node.expression, exp.Null):
            return is_null(value, sql(node))
        if not isinstance(node.expression, exp.Boolean):
            unsupported(node)
        return null_safe(condition(value), Constant(bool(node.expression.this), _BOOL, ""), sql(node))

    def negation(self, node: Any) -> Node:
        return negation(self.value(node.this), sql(node))

    def junction(self, node: Any) -> Node:
        parts = [self.value(part) for part in node.flatten()]
        return junction(parts, sql(node), is_or=isinstance(node, exp.Or))

    def like(self, node: Any) -> Node:
        escape, of = "\\", node
        if isinstance(node, exp.Escape):
            given = self.value(node.expression)
            if not isinstance(given, Constant) or not isinstance(given.value, str) or len(given.value) != 1:
                unsupported(node)
            of, escape = node.this, given.value
        if not isinstance(of, exp.Like | exp.ILike):
            unsupported(node)
        only(of, "this", "expression", "negate")
        if isinstance(of.expression, exp.Any | exp.All):
            unsupported(node)
        texts, pattern = as_text(self.value(of.this)), as_text(self.value(of.expression))
        if isinstance(of, exp.ILike):
            texts, pattern = (FUNCTIONS["lower"].build([side], side.text) for side in (texts, pattern))
        known = isinstance(pattern, Constant)
        if isinstance(pattern, Constant) and pattern.value is not None:
            like_regex(pattern.value, escape)  # fails now if an escape character stands before anything but a wildcard
        found = pattern_call(partial(like, escape=escape), texts, pattern, sql(node), fails=not known)
        return negation(found, sql(node)) if of.args.get("negate") else found

    def java(self, node: Any) -> Node:
        only(node, "this", "expression", "negate")
        found = like_java([self.value(node.this), self.value(node.expression)], sql(node))
        return negation(found, sql(node)) if node.args.get("negate") else found

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


_METHODS: Mapping[Any, Callable[[_Compiler, Any], Node]] = {
    exp.Paren: _Compiler.paren,
    exp.Column: _Compiler.column,
    exp.Dot: _Compiler.dot,
    exp.Bracket: _Compiler.bracket,
    exp.Null: _Compiler.null,
    exp.Boolean: _Compiler.boolean,
    exp.Literal: _Compiler.literal,
    exp.RawString: _Compiler.raw,
    exp.HexString: _Compiler.binary,
    exp.Cast: _Compiler.cast,  # TryCast too, its subclass
    exp.Neg: _Compiler.negative,
    tuple(_ARITHMETIC): _Compiler.arithmetic,
    exp.DPipe: _Compiler.concat,
    (*_COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ): _Compiler.comparison,
    exp.In: _Compiler.is_in,
    exp.Between: _Compiler.between,
    exp.Is: _Compiler.test,
    exp.Not: _Compiler.negation,
    (exp.And, exp.Or): _Compiler.junction,
    (exp.Like, exp.ILike, exp.Escape): _Compiler.like,
    exp.RegexpLike: _Compiler.java,
    exp.Case: _Compiler.case,
    exp.If: _Compiler.choice,
    exp.Substring: _Compiler.substring,
    exp.Trim: _Compiler.trim,
    exp.Anonymous: _Compiler.function,
}
