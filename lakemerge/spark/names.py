"""Names of columns in SQL text.

In a session with ``spark.sql.parser.quotedRegexColumnNames`` a quoted name is a pattern unless it is a plain word, and
an expression cannot contain a pattern. In such a session columns with other names are renamed, by their places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from sqlglot import tokenize
from sqlglot.errors import TokenError

__all__ = ["are_patterns", "filtered", "quoted", "selected", "sql_names"]

_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def quoted(name: str) -> str:
    """A column's name, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def are_patterns(spark: SparkSession, names: Sequence[str]) -> bool:
    """Whether the session takes some of the names, quoted, for patterns."""
    if all(map(_PLAIN.fullmatch, names)):
        return False
    return str(spark.conf.get("spark.sql.parser.quotedRegexColumnNames", "false")).lower() == "true"


def sql_names(frame: DataFrame, used: Sequence[str]) -> tuple[DataFrame, Mapping[str, str]]:
    """The frame, and the names in SQL text for the columns that it uses."""
    if not are_patterns(frame.sparkSession, used):
        return frame, {name: quoted(name) for name in used}
    names = frame.columns
    plain = [name if _PLAIN.fullmatch(name) else f"_lm_{number}" for number, name in enumerate(names)]
    return frame.toDF(*plain), dict(zip(names, map(quoted, plain), strict=True))


def selected(frame: DataFrame, names: Sequence[str], *, anew: bool = False) -> DataFrame:
    """The named columns.

    :param anew: make them new columns. Then the columns of two reads differ, and a query may join the reads.
    """
    frame, text = sql_names(frame, names)
    return frame.selectExpr(
        *(
            text[name] if text[name] == quoted(name) and not anew else f"{text[name]} AS {quoted(name)}"
            for name in names
        )
    )


def filtered(frame: DataFrame, condition: str) -> DataFrame:
    """The rows that meet a condition, in which a column's quoted name means that column in every session."""
    if "`" not in condition or not are_patterns(frame.sparkSession, names := frame.columns):
        return frame.where(condition)
    plain, text = sql_names(frame, names)
    return plain.where(_renamed(condition, text)).toDF(*names)


def _renamed(condition: str, text: Mapping[str, str]) -> str:
    """The condition over columns that have got other names."""
    renamed = {name.lower(): plain for name, plain in text.items() if plain != quoted(name)}
    try:
        tokens = tokenize(condition, read="spark")
    except TokenError:
        return condition  # Spark says what is wrong with it
    pieces, end, before = [], 0, ""
    for token in tokens:
        is_column = token.token_type.name == "IDENTIFIER" and before != "DOT"
        if is_column and token.text.lower() in renamed:
            pieces += [condition[end : token.start], renamed[token.text.lower()]]
            end = token.end + 1
        before = token.token_type.name
    return "".join([*pieces, condition[end:]])
