"""Parses SQL text into sqlglot's tree, by Spark's grammar. Functions keep the names that the text has."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import sqlglot
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lakemerge.errors import FilterError
from lakemerge.read.sql.functions import FUNCTIONS

__all__ = ["SUPPORTED", "is_explicit", "joints_of", "only", "parsed", "sql", "unsupported"]

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


def _explicit_cast(parser: Any) -> Any:
    """Mark a cast that is written as ``CAST(1 AS BIGINT)``. sqlglot makes the same tree of ``1L``."""
    found = _SparkParser.FUNCTION_PARSERS["CAST"](parser)
    if found is not None:
        found.meta[_EXPLICIT] = True
    return found


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


def parsed(text: str) -> Any:
    """The tree of one condition. Raises :class:`FilterError` for anything else."""
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
