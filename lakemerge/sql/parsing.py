"""Parses SQL text into sqlglot's tree, by Spark's grammar. Functions keep the names that the text has."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lakemerge.errors import FilterError
from lakemerge.sql.functions import FUNCTIONS

__all__ = ["SUPPORTED", "is_explicit", "joints_of", "mark_explicit", "only", "parsed", "renamed", "sql", "unsupported"]

SUPPORTED = (
    "columns, fields of structs, a[0] and m['k'], literals and INTERVALs of one unit, = == <> != < <= > >= <=>, "
    "+ - * / % DIV ||, AND, OR, NOT, IN, BETWEEN, IS [NOT] NULL, IS [NOT] TRUE, IS [NOT] FALSE, IS [NOT] DISTINCT "
    "FROM, LIKE, ILIKE, RLIKE, CASE, IF, CAST, TRY_CAST, ::, and the functions " + ", ".join(sorted(FUNCTIONS))
)
_SparkParser: Any = Spark.Parser
_SPECIAL_SYNTAX = ("TRY_CAST", "SUBSTRING", "TRIM")
"""Calls with words between their arguments."""


_JOINTS = ("AND", "OR")
_EXPLICIT = "explicit"
_COMPARISONS: dict[Any, Any] = {**_SparkParser.EQUALITY, **_SparkParser.COMPARISON}
_SUMS: dict[Any, Any] = {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub, TokenType.DPIPE: exp.DPipe}
_PATTERNS: dict[Any, Any] = {
    TokenType.LIKE: exp.Like,
    TokenType.ILIKE: exp.ILike,
    TokenType.RLIKE: exp.RegexpLike,
}
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\{[^}\s]+\}")
"""Spark's own pattern of a variable in SQL text (``spark.sql.variable.substitute``)."""


def _explicit_cast(parser: Any) -> Any:
    """Mark a cast that is written as ``CAST(1 AS BIGINT)``. sqlglot makes the same tree of ``1L``."""
    found = _SparkParser.FUNCTION_PARSERS["CAST"](parser)
    return found if found is None else mark_explicit(found)


def renamed(text: str, names: Mapping[str, str], sides: Collection[str]) -> str:
    """An expression with other names of columns, where they stand after one of the ``sides`` and a dot.

    :param names: name -> new name; case does not matter.
    """
    known = {name.lower(): new for name, new in names.items()}
    pieces, end, before = [], 0, ("", "", "")
    for token in sqlglot.tokenize(text, read="spark"):
        outer, side, dot = before
        if dot == "." and side.lower() in sides and outer != "." and token.text.lower() in known:
            new = known[token.text.lower()]
            pieces += [text[end : token.start], new if _PLAIN.fullmatch(new) else f"`{new.replace('`', '``')}`"]
            end = token.end + 1
        before = (side, dot, token.text)
    return "".join([*pieces, text[end:]])


def mark_explicit(cast: Any) -> Any:
    """The cast, as one that is written as ``CAST(...)``."""
    cast.meta[_EXPLICIT] = True
    return cast


class _Filters(Spark):
    """Spark's dialect without its functions. sqlglot would translate functions into its own, which serve all
    dialects."""

    class Parser(_SparkParser):  # type: ignore[misc]
        STRICT_CAST = True
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012 - as the base class has it
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012
        FUNCTION_PARSERS = {  # noqa: RUF012
            **{name: parser for name, parser in _SparkParser.FUNCTION_PARSERS.items() if name in _SPECIAL_SYNTAX},
            "CAST": _explicit_cast,
        }
        UNARY_PARSERS = {  # noqa: RUF012 - NOT stands before conditions, not before values
            token: parser for token, parser in _SparkParser.UNARY_PARSERS.items() if token != TokenType.NOT
        }

        # Precedence as in Spark's grammar (SqlBaseParser.g4, booleanExpression and valueExpression): all comparison
        # operators are equal, from left to right. A condition is a value, with one predicate behind it at most, whose
        # operands are values with comparisons, too.

        def _parse_equality(self, *_: object, **__: object) -> Any:
            if self._match(TokenType.NOT):
                return self.expression(exp.Not(this=self._needed(self._parse_equality())))
            value = self._value()
            return value if value is None else self._predicate(value)

        def _value(self) -> Any:
            found = self._parse_bitwise()
            while found is not None and self._match_set(_COMPARISONS):
                kind = _COMPARISONS[self._prev.token_type]
                found = self.expression(kind(this=found, expression=self._needed(self._parse_bitwise())))
            return found

        def _predicate(self, value: Any) -> Any:
            """The condition on a value that the next words state, or else the value."""
            if self._match(TokenType.IS):
                return self._is(value)
            negate = self._curr is not None and self._curr.text != "!" and self._match(TokenType.NOT)
            if self._match(TokenType.BETWEEN):
                if self._match_text_seq("SYMMETRIC") or self._match_text_seq("ASYMMETRIC"):
                    self.raise_error(f"{self._prev.text} is not supported")
                low = self._needed(self._value())
                if not self._match(TokenType.AND):
                    self.raise_error("BETWEEN lacks its AND")
                found = self.expression(exp.Between(this=value, low=low, high=self._needed(self._value())))
            elif self._match(TokenType.IN):
                if not self._match(TokenType.L_PAREN, advance=False):
                    self.raise_error("IN lacks its list")
                found = self._parse_in(value)
            elif self._match_set(_PATTERNS):
                kind = _PATTERNS[self._prev.token_type]
                found = self._parse_escape(self.expression(kind(this=value, expression=self._needed(self._value()))))
            elif negate:
                return self.raise_error("NOT stands before a condition, or before BETWEEN, IN, LIKE, ILIKE or RLIKE")
            else:
                return value
            return self.expression(exp.Not(this=found)) if negate else found

        def _is(self, value: Any) -> Any:
            negate = self._match(TokenType.NOT)
            if self._match_text_seq("DISTINCT", "FROM"):
                found = self.expression(exp.NullSafeNEQ(this=value, expression=self._needed(self._value())))
            elif self._match(TokenType.NULL):
                found = self.expression(exp.Is(this=value, expression=exp.Null()))
            elif self._match_set((TokenType.TRUE, TokenType.FALSE)):
                told = exp.Boolean(this=self._prev.token_type == TokenType.TRUE)
                found = self.expression(exp.Is(this=value, expression=told))
            else:
                return self.raise_error("IS stands before NULL, TRUE, FALSE and DISTINCT FROM")
            return self.expression(exp.Not(this=found)) if negate else found

        def _parse_term(self, *arguments: Any, **named: Any) -> Any:
            found = self._parse_factor(*arguments, **named)
            while found is not None and self._match_set(_SUMS):
                kind = _SUMS[self._prev.token_type]
                right = self._needed(self._parse_factor(*arguments, **named))
                found = self.expression(kind(this=found, expression=right))
            return found

        def _parse_csv(self, parse_method: Any, sep: Any = TokenType.COMMA) -> Any:
            """Parts between commas. Nothing is not a part, but in an empty list."""
            first = parse_method()
            items = [] if first is None else [first]
            while self._match(sep):
                self._needed(first)
                items.append(self._needed(parse_method()))
            return items

        def _parse_case(self) -> Any:
            starts = self._match(TokenType.WHEN, advance=False)
            of = None if starts else self._needed(self._parse_disjunction())
            branches = []
            while self._match(TokenType.WHEN):
                test = self._needed(self._parse_disjunction())
                if not self._match(TokenType.THEN):
                    self.raise_error("WHEN lacks its THEN")
                branches.append(self.expression(exp.If(this=test, true=self._needed(self._parse_disjunction()))))
            default = self._needed(self._parse_disjunction()) if self._match(TokenType.ELSE) else None
            if not branches or not self._match(TokenType.END):
                self.raise_error("CASE lacks its END" if branches else "CASE lacks its WHEN")
            return self.expression(exp.Case(this=of, ifs=branches, default=default))

        def _parse_unary(self) -> Any:
            """A minus before a number belongs to the number, also before ``::``."""
            found = super()._parse_unary()
            inner = found.this if isinstance(found, exp.Neg) else None
            if not isinstance(inner, exp.Cast) or is_explicit(inner):
                return found
            last = inner
            while isinstance(last.this, exp.Cast) and not is_explicit(last.this):
                last = last.this
            if not isinstance(last.this, exp.Literal) or last.this.is_string:
                return found
            last.set("this", exp.Neg(this=last.this))
            return inner

        def _needed(self, found: Any) -> Any:
            return self.raise_error("something is missing behind an operator or a comma") if found is None else found


def parsed(text: str) -> Any:
    """The tree of one condition. Raises :class:`FilterError` for anything else."""
    if (variable := _VARIABLE.search(text)) is not None:
        raise FilterError(
            f"{variable[0]}: in a session Spark puts a variable's value here. Write the value, or '$' || '{{...}}' for "
            "such a text",
            filter=text,
        )
    try:
        statements = sqlglot.parse(text, read=_Filters)
    except SqlglotError as error:
        raise FilterError(f"the filter {text!r} is not SQL: {_plain(error)}", filter=text) from error
    if len(statements) != 1 or statements[0] is None:
        raise FilterError(f"the filter {text!r} is not one condition", filter=text)
    return statements[0]


def joints_of(text: str) -> int:
    """How many times a condition has the words AND and OR, outside of its texts."""
    try:
        return sum(token.token_type.name in _JOINTS for token in sqlglot.tokenize(text, read=_Filters))
    except SqlglotError:
        return 0


def sql(node: Any) -> str:
    """The text of a node, for messages."""
    return str(node.sql(dialect=_Filters))


def is_explicit(cast: Any) -> bool:
    """Whether a cast is written as ``CAST(...)``."""
    return bool(cast.meta.get(_EXPLICIT))


def only(node: Any, *names: str) -> None:
    """Raise :class:`FilterError` if a node has parts with other names."""
    if any(value and name not in names for name, value in node.args.items()):
        unsupported(node)


def unsupported(node: Any) -> NoReturn:
    text = sql(node)
    raise FilterError(f"{text!r} is not supported in a filter; supported are {SUPPORTED}", construct=text)


def _plain(error: SqlglotError) -> str:
    """The message of sqlglot's error, without terminal colours and names of its classes."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).replace("\n", " ").strip()
    return re.sub(r"Required keyword: '\w+' missing for <class '[^']*'>", "something is missing", text)
