"""Spark's DDL notation for schemas, read without Spark.

``id BIGINT NOT NULL COMMENT 'key', m MAP<STRING, INT>, s STRUCT<x: INT, y: STRING NOT NULL>``.
Names are plain (letters, digits, ``_``) or in back quotes (a back quote inside is doubled); the
colon after a name is optional; type names and key words are case-insensitive.

It is not read by sqlglot, whose trees do not say where in the text a type stands, as errors do here. Its grammar is
another, too: it takes ``a INT,, b TEXT``, and no column of the name ``select``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from lakemerge._internal.near import nearest
from lakemerge.errors import SchemaError
from lakemerge.schema.lengths import LENGTH
from lakemerge.schema.limits import TOO_DEEP

__all__ = ["NO_LENGTHS", "PLACEHOLDER", "TIMESTAMP", "TIMESTAMP_NTZ", "parse_columns", "parse_ddl", "parse_path"]

PLACEHOLDER = pa.bool_()
"""It stands for a refused type until all problems are known. Arrow's null type cannot be used: it cannot be NOT
NULL."""
TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "TINYINT": pa.int8(),
    "SHORT": pa.int16(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
_DECIMAL = {"DECIMAL", "DEC", "NUMERIC"}
_BOUNDED_STRING = {"CHAR", "CHARACTER", "VARCHAR"}
NO_LENGTHS = "only whole columns have lengths; take STRING"
_TYPE_NAMES = [*_SIMPLE, *_DECIMAL, *_BOUNDED_STRING, "ARRAY", "MAP", "STRUCT"]
_REFUSED = {
    "VARIANT": "keep it as STRING",
    "INTERVAL": "keep it as BIGINT in one unit",
    "VOID": "name a type",
    "NULL": "name a type",
    "TIME": "keep it as BIGINT microseconds",
    "GEOMETRY": "keep it as BINARY",
    "GEOGRAPHY": "keep it as BINARY",
    "OBJECT": "keep it as BINARY",
}
_TOKEN = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)*)`|(?P<string>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|(?P<symbol>[<>(),:.]))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)|''|\"\"", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.upper() == word


def parse_ddl(text: str) -> pa.Schema:
    """The schema that ``text`` describes, in the table's Arrow types; comments become metadata ``comment``.

    ``CHAR(n)`` and ``VARCHAR(n)`` are strings with a note of the length. Names are not checked here.
    Raises :class:`SchemaError`: at a syntax error with its position (1-based), and for types no
    table can hold, all at once, with their names.
    """
    parser = _Parser(text)
    fields = parser.columns("end")
    parser.check()
    return pa.schema(fields)


def parse_columns(text: str) -> list[tuple[tuple[str, ...], pa.Field]]:
    """As :func:`parse_ddl`, but names of columns may be dotted: each field comes with the names before its own."""
    parser = _Parser(text)
    columns = [parser.dotted()]
    while parser.skip(","):
        columns.append(parser.dotted())
    parser.end()
    parser.check()
    return columns


def parse_path(text: str) -> tuple[str, ...]:
    """The names of a dotted name (``address.zip``). Raises :class:`SchemaError`."""
    if not isinstance(text, str):
        raise SchemaError(f"a column is named by a string, not {text!r}")
    parser = _Parser(text)
    names = [parser.name()]
    while parser.skip("."):
        names.append(parser.name())
    parser.end()
    return tuple(names)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.refused: list[str] = []
        self.lengths: list[tuple[_Token, str]] = []
        """The declared lengths within the type of the column that is being read."""
        self.tokens = list(self._tokenize())
        self.index = 0

    def _tokenize(self) -> Iterator[_Token]:
        position, end = 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None or match.lastgroup is None:
                blank = len(self.text[position:]) - len(self.text[position:].lstrip())
                self._fail(position + blank, f"cannot read {self.text[position + blank]!r}")
            yield _Token(match.lastgroup, match[match.lastgroup], match.end() - len(match[0].lstrip()))
            position = match.end()
        yield _Token("end", "", end)

    @property
    def head(self) -> _Token:
        return self.tokens[self.index]

    def take(self) -> _Token:
        token = self.head
        self.index += token.kind != "end"
        return token

    def columns(self, until: str) -> list[pa.Field]:
        """``name type [NOT NULL] [COMMENT '...'], ...`` up to and including the token ``until``."""
        fields = [self.column()]
        while self.skip(","):
            fields.append(self.column())
        if until == "end":
            self.end()
        else:
            self.expect(until)
        return fields

    def end(self) -> None:
        if self.head.kind != "end":
            self._fail(self.head.start, f"expected ',' or the end, found {self.head.text!r}")

    def check(self) -> None:
        """Raise for the types that were refused."""
        if self.refused:
            raise SchemaError("; ".join(self.refused), problems=tuple(self.refused))

    def name(self) -> str:
        token = self.take()
        if token.kind not in ("word", "quoted") or not token.text:
            self._fail(token.start, "expected a column name")
        return token.text.replace("``", "`") if token.kind == "quoted" else token.text

    def dotted(self) -> tuple[tuple[str, ...], pa.Field]:
        """A column whose name may be dotted, with the names before the last dot."""
        outer: list[str] = []
        while any(token.kind == "symbol" and token.text == "." for token in self.tokens[self.index + 1 :][:1]):
            outer.append(self.name())
            self.expect(".")
        return tuple(outer), self.column()

    def column(self) -> pa.Field:
        name = self.name()
        if self.head.kind == "symbol" and self.head.text == ".":
            self._fail(self.head.start, f"column {name!r} is not a path here; put a name with a dot in back quotes")
        self.skip(":")
        outer, self.lengths = self.lengths, []
        kind = self.data_type(name)
        own, self.lengths = self.lengths, outer
        nullable = True
        if self.head.is_word("NOT"):
            self.take()
            self.expect("NULL")
            nullable = False
        metadata: dict[str | bytes, str | bytes] | None = None
        if self.head.is_word("COMMENT"):
            self.take()
            comment = self.take()
            if comment.kind != "string":
                self._fail(comment.start, "expected a quoted comment")
            metadata = {"comment": _unescape(comment.text)}
        if own and pa.types.is_string(kind):
            metadata = {**(metadata or {}), LENGTH: own[0][1]}
        else:
            for token, told in own:
                self._refuse(token, name, told.upper(), NO_LENGTHS)
        return pa.field(name, kind, nullable=nullable, metadata=metadata)

    def data_type(self, column: str) -> pa.DataType:
        try:
            return self._data_type(column)
        except RecursionError:
            raise SchemaError(TOO_DEEP) from None

    def _data_type(self, column: str) -> pa.DataType:
        token = self.take()
        if token.kind != "word":
            self._fail(token.start, f"expected the type of column {column!r}")
        word = token.text.upper()
        if word in _SIMPLE:
            kind = _SIMPLE[word]
            if word == "STRING" and self.head.is_word("COLLATE"):
                self._refuse(token, column, "a collated STRING", "leave the collation out")
                self.take()
                self.take()
            return kind
        if word in _DECIMAL:
            return self.decimal(token)
        if word in _BOUNDED_STRING:
            lengths = self.numbers()
            if len(lengths) != 1 or lengths[0] < 1:
                self._refuse(
                    token, column, f"{word}({', '.join(map(str, lengths))})", "a length is one number from 1 on"
                )
                return PLACEHOLDER
            self.lengths.append((token, f"{'varchar' if word == 'VARCHAR' else 'char'}({lengths[0]})"))
            return pa.string()
        if word == "ARRAY":
            self.expect("<")
            element = self.data_type(column)
            self.expect(">")
            return pa.list_(pa.field("element", element))
        if word == "MAP":
            self.expect("<")
            key = self.data_type(column)
            self.expect(",")
            value = self.data_type(column)
            self.expect(">")
            return pa.map_(key, pa.field("value", value))
        if word == "STRUCT":
            self.expect("<")
            return pa.struct(self.columns(">"))
        if word in _REFUSED:
            self._refuse(token, column, word, _REFUSED[word])
            self.skip_refused()
            return PLACEHOLDER
        near = nearest(word, _TYPE_NAMES)
        hint = f" (did you mean {near}?)" if near else ""
        return self._fail(token.start, f"unknown type {token.text!r} of column {column!r}{hint}")

    def decimal(self, token: _Token) -> pa.DataType:
        numbers = self.numbers() if self.head.text == "(" else []
        precision, scale = [*numbers, *(10, 0)[len(numbers) :]][:2]
        if len(numbers) > 2 or not 1 <= precision <= 38 or scale > precision:
            self._fail(token.start, "a decimal has 1 to 38 digits, and at most all of them follow the point")
        return pa.decimal128(precision, scale)

    def numbers(self) -> list[int]:
        """``(n, ...)``"""
        self.expect("(")
        values = []
        while True:
            token = self.take()
            if not token.text.isdecimal():
                self._fail(token.start, "expected a number")
            values.append(int(token.text))
            if not self.skip(","):
                self.expect(")")
                return values

    def skip_refused(self) -> None:
        """Pass over the rest of a refused type (``INTERVAL DAY TO SECOND``, ``TIME(6)``), to report what follows."""
        if self.head.text == "(" and self.head.kind == "symbol":
            while self.head.kind != "end" and not self.skip(")"):
                self.take()
        while self.head.kind == "word" and not (self.head.is_word("NOT") or self.head.is_word("COMMENT")):
            self.take()

    def skip(self, symbol: str) -> bool:
        found = self.head.kind == "symbol" and self.head.text == symbol
        self.index += found
        return found

    def expect(self, text: str) -> None:
        token = self.take()
        if token.kind not in ("symbol", "word") or token.text.upper() != text:
            self._fail(token.start, f"expected {text!r}" + (f", found {token.text!r}" if token.text else ""))

    def _refuse(self, token: _Token, column: str, what: str, remedy: str) -> None:
        self.refused.append(f"column {column!r}, position {token.start + 1}: a table cannot hold {what}: {remedy}")

    def _fail(self, start: int, problem: str) -> NoReturn:
        excerpt = self.text[max(0, start - 30) : start] + "→" + self.text[start : start + 20]
        raise SchemaError(f"{problem} at position {start + 1}: {excerpt!r}", position=start + 1)


def _unescape(literal: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped is None:
            # A doubled quote stands for one quote only inside quotes of the same kind.
            return match[0][0] if match[0][0] == literal[0] else match[0]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(replace, literal[1:-1])
