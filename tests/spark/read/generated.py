"""Random expressions over the rows of :mod:`tests.spark.read.expressions`, well-typed and nested."""

from __future__ import annotations

from random import Random

__all__ = ["expression"]

_LEAVES = {
    "int": ["i", "j", "h", "t", "0", "1", "-3", "7", "id", "li[0]", "m['a']", "size(li)", "st.X", "CAST(NULL AS INT)"],
    "long": ["n", "o", "3L", "9999999999"],
    "double": ["f", "k", "0.5D", "double('NaN')", "-1e3", "lf[0]"],
    "float": ["g", "float(2.5)"],
    "decimal": ["d", "1.5", "-0.25", "e", "w", "CAST(0.1 AS DECIMAL(12,6))"],
    "text": ["s", "u", "'a'", "''", "'é日'", "num", "st.y.z", "mi[1]", "ls[0]"],
    "boolean": ["b", "c", "true", "CAST(NULL AS BOOLEAN)"],
    "date": ["day", "due", "DATE '2020-02-29'"],
    "time": ["at", "til", "TIMESTAMP '1969-12-31 23:59:59.5'"],
}
_NUMBERS = ("int", "long", "double", "decimal", "float")


def expression(random: Random, kind: str | None = None, depth: int = 3) -> str:
    """An expression of a kind; of any without one."""
    kind = random.choice(sorted(_LEAVES)) if kind is None else kind
    if depth == 0 or random.random() < 0.1:
        return random.choice(_LEAVES[kind])
    shapes = _SHAPES[kind] + _ANY
    shape = random.choice(shapes)
    while "{" in shape:
        start = shape.index("{")
        end = shape.index("}", start)
        asked = shape[start + 1 : end]
        asked = kind if asked == "same" else random.choice(_NUMBERS) if asked == "number" else asked
        shape = shape[:start] + _inside(random, asked, depth - 1) + shape[end + 1 :]
    return shape


def _inside(random: Random, kind: str, depth: int) -> str:
    found = expression(random, kind, depth)
    return found if found.isalnum() else f"({found})"


_ANY = [
    "CASE WHEN {boolean} THEN {same} ELSE {same} END", "CASE WHEN {boolean} THEN {same} WHEN {boolean} THEN {same} END",
    "if({boolean}, {same}, {same})", "coalesce({same}, {same})", "nullif({same}, {same})",
    "CASE {int} WHEN {int} THEN {same} END",
]  # fmt: skip
_ORDERED = ["greatest({same}, {same})", "least({same}, {same}, {same})"]
_ADDED = ["{same} + {same}", "{same} - {same}", "{same} * {same}", "-{same}", "abs({same})"]
_SHAPES = {
    "int": [
        *_ORDERED, *_ADDED, "{int} % {int}", "pmod({int}, {int})", "length({text})", "year({date})", "month({time})",
        "day({date})",
        "hour({time})", "second({time})", "dayofweek({date})", "datediff({date}, {time})", "try_cast({text} AS INT)",
        "try_cast({number} AS INT)", "CAST({boolean} AS INT)", "li[{int}]", "round({int}, -1)", "m[{text}]",
    ],
    "long": [
        *_ORDERED, *_ADDED, "{long} DIV {int}", "{decimal} DIV {decimal}", "{long} % {long}", "floor({double})",
        "ceil({float})",
        "try_cast({number} AS BIGINT)", "unix_timestamp({time})", "CAST({time} AS BIGINT)", "{int} + {long}",
    ],
    "double": [
        *_ORDERED, *_ADDED, "{double} / {double}", "{int} / {long}", "{double} % {double}", "sqrt({number})",
        "round({double}, 2)",
        "CAST({number} AS DOUBLE)", "try_cast({text} AS DOUBLE)", "{decimal} * {double}", "{float} + {int}",
    ],
    "float": [*_ORDERED, *_ADDED, "CAST({number} AS FLOAT)", "round({float}, 1)", "{float} % {float}"],
    "decimal": [
        *_ORDERED, *_ADDED, "{decimal} / {decimal}", "{decimal} % {decimal}", "{int} * {decimal}", "{decimal} / {int}",
        "round({decimal}, 1)", "round({decimal}, -2)", "floor({decimal})", "ceil({decimal})",
        "try_cast({number} AS DECIMAL(14,3))",
        "try_cast({text} AS DECIMAL(10,4))", "{long} - {decimal}", "pmod({decimal}, {int})",
        "CAST({time} AS DECIMAL(20,4))",
    ],
    "text": [
        *_ORDERED, "lower({text})", "upper({text})", "trim({text})", "rtrim({text})", "concat({text}, {text})",
        "{text} || {int}",
        "substring({text}, {int}, {int})", "left({text}, {int})", "right({text}, {int})", "replace({text}, 'a', 'é')",
        "lpad({text}, h % 9, {text})", "rpad({text}, 5, 'ab')", "CAST({int} AS STRING)", "CAST({decimal} AS STRING)",
        "CAST({date} AS STRING)", "CAST({time} AS STRING)", "CAST({boolean} AS STRING)", "trim(BOTH 'ax' FROM {text})",
    ],
    "boolean": [
        "{same} AND {same}", "{same} OR {same}", "NOT {same}", "{number} < {number}", "{number} = {number}",
        "{number} <=> {number}",
        "{text} >= {text}", "{text} LIKE 'a%'", "{text} LIKE {text}", "{text} RLIKE '^.[a-x]'",
        "startswith({text}, {text})",
        "contains({text}, {text})", "endswith({text}, {text})", "{date} > {time}", "{number} IN ({number}, {number})",
        "{number} BETWEEN {number} AND {number}", "{number} IS NULL", "{same} IS TRUE", "{same} IS NOT FALSE",
        "isnan({double})",
        "{text} ILIKE '%A%'", "{text} IS DISTINCT FROM {text}", "array_contains(li, {int})",
        "CAST({number} AS BOOLEAN)",
        "try_cast({text} AS BOOLEAN)", "{date} = '2020-02-29'", "{text} IN ('a', {text})",
    ],
    "date": [
        *_ORDERED, "date_add({date}, {int})", "date_sub({date}, h)", "{date} + INTERVAL 1 MONTH",
        "{date} - INTERVAL 3 DAYS",
        "to_date({time})", "trunc({date}, 'month')", "trunc({time}, 'week')", "try_cast({text} AS DATE)",
        "try_cast(txt AS DATE)",
    ],
    "time": [
        *_ORDERED, "{time} + INTERVAL 90 MINUTES", "{time} - INTERVAL 1 YEAR", "date_trunc('day', {time})",
        "date_trunc('quarter', {date})", "{date} + INTERVAL 5 HOURS", "to_timestamp({date})",
        "CAST({int} AS TIMESTAMP)",
    ],
}  # fmt: skip
