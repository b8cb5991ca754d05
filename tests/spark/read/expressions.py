"""Expressions that filters and Spark must compute alike, and the rows that they are computed on."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakemerge.schema.schema import to_arrow_schema

__all__ = ["EXPRESSIONS", "ROWS", "SCHEMA"]

NAN, INF = float("nan"), float("inf")
SCHEMA = to_arrow_schema(
    "id INT, t TINYINT, h SMALLINT, i INT, j INT, n BIGINT, o BIGINT, f DOUBLE, k DOUBLE, g FLOAT, d DECIMAL(10,2), "
    "e DECIMAL(38,10), w DECIMAL(38,0), s STRING, u STRING, num STRING, b BOOLEAN, c BOOLEAN, day DATE, due DATE, "
    "at TIMESTAMP, til TIMESTAMP, local TIMESTAMP_NTZ, txt STRING, bin BINARY, "
    "st STRUCT<X: INT, y: STRUCT<z: STRING>, l: ARRAY<INT>>, li ARRAY<INT>, lf ARRAY<DOUBLE>, ls ARRAY<STRING>, "
    "m MAP<STRING, INT>, mi MAP<INT, STRING>, la ARRAY<STRUCT<p: INT>>"
)
_UTC = dt.UTC


def _at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=_UTC)


def _row(**values: Any) -> dict[str, Any]:
    if values.get("at") is not None:
        values["local"] = values["at"].replace(tzinfo=None)
    return values


_VALUES = [
    _row(
        t=5, h=-7, i=10, j=3, n=2**40, o=-3, f=1.5, k=0.1, g=0.1, d=Decimal("1.50"), e=Decimal("1.0000000005"),
        w=Decimal(7), s="apple", u="ppl", num="12", b=True, c=False, day=dt.date(2020, 2, 29), due=dt.date(2021, 1, 31),
        at=_at("2020-02-29 12:34:56.789012"), til=_at("2021-01-31"), txt="2020-02-29", bin=b"\x00\xff",
        st={"X": 1, "y": {"z": "a"}, "l": [4, 5]}, li=[1, 2, 3], lf=[1.0, NAN], ls=["a", None], m={"a": 1, "b": 2},
        mi={1: "x", 3: "y"}, la=[{"p": 1}, {"p": None}],
    ),
    _row(
        t=-128, h=32767, i=-5, j=-3, n=-(2**63), o=2, f=NAN, k=NAN, g=NAN, d=Decimal("-0.05"), e=Decimal("-2.5"),
        w=Decimal(-25), s="ÀÉ straße ΑΣ", u="é", num=" -3.50 ", b=False, c=True, day=dt.date(1969, 7, 20),
        due=dt.date(1969, 12, 31), at=_at("1969-12-31 23:59:59.5"), til=_at("1960-01-01 00:00:01"),
        txt="1969-7-20 01:02:03.5", bin=b"", st=None, li=[], lf=[], ls=[], m={}, mi={}, la=[],
    ),
    _row(),
    _row(
        t=127, h=-32768, i=2**31 - 1, j=1, n=2**63 - 1, o=-1, f=-0.0, k=INF, g=-0.0, d=Decimal("99999999.99"),
        e=Decimal("123456789012345678901234.9999999999"), w=Decimal(10**38 - 1), s="", u="", num="9223372036854775808",
        b=True, c=True, day=dt.date(9999, 12, 31), due=dt.date(1, 1, 1), at=_at("9999-12-31 23:59:59.999999"),
        til=_at("0001-01-01"), txt="", bin=b"a", st={"X": None, "y": None, "l": None}, li=[None, 7], lf=[-0.0, None],
        ls=["", "é"], m={"é": None}, mi={-1: None}, la=None,
    ),
    _row(
        t=0, h=0, i=0, j=0, n=0, o=0, f=0.0, k=-0.0, g=2.5, d=Decimal(0), e=Decimal(0), w=Decimal(0),
        s="it's\nback\\%_",
        u="%", num="nan", b=None, c=False, day=dt.date(1970, 1, 1), due=dt.date(1970, 1, 1), at=_at("1970-01-01"),
        til=_at("1970-01-01 00:00:00.000001"), txt="2020", bin=None, st={"X": 3, "y": {"z": None}, "l": [None]}, li=[0],
        lf=[0.0], ls=["it's"], m={"": 0}, mi={0: ""}, la=[None],
    ),
    _row(
        t=None, h=12, i=-(2**31), j=-1, n=-1, o=-(2**63), f=2.675, k=-2.5, g=1e-10, d=Decimal("-12345678.45"),
        e=Decimal("0.3333333333"), w=Decimal(12345678901234567890), s="  日本 x ", u=" ", num="+0012", b=False, c=None,
        day=dt.date(2024, 12, 30), due=dt.date(2000, 2, 29), at=_at("2024-12-30 00:00:00"),
        til=_at("2000-02-29 23:00:00"),
        txt="2024-12-30T10:11:12+01:30", bin=b"xyz", st={"X": -1, "y": {"z": "é"}, "l": []}, li=[5, 5, None], lf=[INF,
        NAN],
        ls=["a", "a"], m={"a": -1, "z": 26}, mi={2: "z"}, la=[{"p": 7}],
    ),
    _row(
        t=-1, h=1, i=255, j=7, n=10**18, o=10, f=-1e300, k=1e300, g=3e38, d=Decimal("0.01"),
        e=Decimal("123456789.987654321"),
        w=Decimal(-1), s="Aba", u="ba", num="1e5", b=True, c=False, day=dt.date(2019, 3, 31), due=dt.date(2020, 3, 1),
        at=_at("2019-03-31 01:30:00.000001"), til=_at("2020-03-01 18:00:00"), txt="abc", bin=b"abc",
        st={"X": 2, "y": {"z": ""}, "l": [1]}, li=[-1], lf=[1.5], ls=["aba"], m={"k": 5}, mi={5: "k"}, la=[{"p": 0}],
    ),
    _row(
        t=100, h=100, i=7, j=-2, n=7, o=2, f=-7.5, k=2.0, g=-7.5, d=Decimal("2.25"), e=Decimal("-0.0000000001"),
        w=Decimal(3), s="xxabxx", u="x", num="true", b=False, c=False, day=dt.date(2023, 11, 5), due=dt.date(2023, 1,
        2),
        at=_at("2023-11-05 23:59:59"), til=_at("2023-01-02 03:04:05.06"), txt=" 2023-11-05 ", bin=b"x",
        st={"X": 9, "y": {"z": "zz"}, "l": [2, 3]}, li=[7, 8], lf=[2.0, -7.5], ls=["x", "xx"], m={"x": 100},
        mi={7: "seven"},
        la=[{"p": 3}, {"p": 4}],
    ),
    _row(
        t=1, h=2, i=3, j=4, n=5, o=6, f=1e15, k=0.5, g=16777216.0, d=Decimal("7.00"), e=Decimal("5.5"), w=Decimal(2),
        s="ǅ ﬁ İ", u="ﬁ", num="Infinity", b=True, c=None, day=dt.date(2021, 6, 15), due=dt.date(2021, 6, 14),
        at=_at("2021-06-15 06:07:08.1"), til=_at("2021-06-14 06:07:08.1"), txt="2021-06", bin=b"\xe9",
        st={"X": 0, "y": {"z": "q"}, "l": [0]}, li=[1], lf=[None], ls=[None], m={"a": None}, mi={1: "one"}, la=[],
    ),
]  # fmt: skip
ROWS = pa.Table.from_pylist([{"id": number, **row} for number, row in enumerate(_VALUES)], SCHEMA)

_ARITHMETIC = [
    f"{left} {operator} {right}"
    for operator in ("+", "-", "*", "/", "%")
    for left, right in (
        ("i", "j"), ("t", "h"), ("n", "o"), ("t", "t"), ("h", "i"), ("i", "n"), ("f", "k"), ("g", "g"), ("g", "i"),
        ("i", "f"),
        ("d", "d"), ("d", "e"), ("e", "e"), ("e", "w"), ("w", "w"), ("d", "i"), ("n", "e"), ("d", "f"), ("g", "d"),
        ("d", "3"),
        ("d", "0.75"), ("2", "e"), ("i", "1.5"), ("n", "2L"), ("i", "2.5D"), ("t", "1"), ("w", "0.1"), ("NULL", "i"),
    )
] + [
    f"{left} DIV {right}"
    for left, right in (("i", "j"), ("n", "o"), ("d", "d"), ("e", "d"), ("w", "2"), ("i", "0.5"), ("t", "h"), ("d",
    "i"))
] + [
    f"{function}({left}, {right})"
    for function in ("mod", "pmod")
    for left, right in (("i", "j"), ("n", "o"), ("f", "k"), ("d", "e"), ("t", "h"), ("-i", "3"), ("g", "g"), ("i",
    "-7"))
]  # fmt: skip
_NUMBERS = [
    *(f"{sign}{name}" for sign in ("-", "- -", "+") for name in ("t", "h", "i", "n", "f", "g", "d", "e")),
    *(f"{function}({name})" for function in ("abs", "round", "floor", "ceil") for name in "thinfgdew"),
    *(f"round({name}, {digits})" for name in "tinfgde" for digits in (0, 1, 2, -1, -2, 5, -25, 20)),
    *(f"sqrt({name})" for name in ("i", "f", "g", "d")), "ceiling(f)",
    "greatest(i, j)", "greatest(i, n, h)", "greatest(f, k)", "least(f, k, 0)", "least(d, e)", "greatest(s, u)",
    "least(day, due)",
    "greatest(at, til, day)", "least(b, c)", "greatest(d, i)", "least(g, f)", "greatest(NULL, i, 5)", "isnan(f)",
    "isnan(i)",
    "isnan(g)",
]  # fmt: skip
_CHOICES = [
    "CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN 'n' END", "CASE WHEN j <> 0 THEN i / j ELSE -1 END",
    "CASE i WHEN 10 THEN s WHEN -5 THEN u ELSE 'other' END", "CASE WHEN b THEN 1 WHEN c THEN 2.5 ELSE 3L END",
    "CASE b WHEN true THEN day ELSE at END", "CASE f WHEN double('NaN') THEN 1 ELSE 0 END",
    "CASE WHEN i = 0 THEN NULL ELSE n DIV i END", "CASE WHEN d IN (0, 1.5) THEN e ELSE d END",
    "CASE WHEN b THEN li END",
    "CASE d WHEN 1.5 THEN 'a' WHEN 0 THEN 'b' END", "if(i > j, i, j)", "if(b, s, NULL)", "if(c, d, f)",
    "if(b AND c, 1, 0)",
    "coalesce(i, 0)", "coalesce(s, u, 'none')", "coalesce(d, e)", "coalesce(b, c, true)", "coalesce(t, n)",
    "coalesce(day, at)",
    "coalesce(NULL, i)", "coalesce(if(i = 0, NULL, 10 DIV i), -1)", "coalesce(day, '2020-01-01')", "nvl(i, j)",
    "ifnull(f, 1)",
    "nvl2(i, s, u)", "nvl2(b, 1, 2.5)", "nullif(i, 0)", "nullif(s, '')", "nullif(f, double('NaN'))", "nullif(i, n)",
    "10 / nullif(i, 0)", "nullif(d, 1.5)", "isnull(i)", "isnotnull(s)", "isnull(li)",
]  # fmt: skip
_CONDITIONS = [
    *(f"i + 1 {op} j" for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")),
    *(f"f * 1 {op} k" for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")),
    *(f"g {op} f" for op in ("=", "<", ">=", "<=>")), *(f"lower(s) {op} u" for op in ("=", "<", ">=", "<=>")),
    "d > e", "e = w", "d = f", "w <= i", "day < at", "at = local", "day >= local", "at > til", "b < c", "b = (i > 0)",
    "(i > 0) = c", "(i > 0) <=> (j > 0)", "bin < X'61'", "i IN (j, 10, NULL)", "i IN (j, n)", "i NOT IN (j, 3)",
    "lower(s) IN ('apple', u)", "f IN (k, 0.0)", "i BETWEEN j AND n", "i + 0 NOT BETWEEN -5 AND j",
    "day BETWEEN due AND at",
    "s BETWEEN 'a' AND u", "i IS DISTINCT FROM j", "f IS NOT DISTINCT FROM k", "upper(s) IS NULL", "(i > j) IS TRUE",
    "(i > j) IS NOT FALSE", "(b AND c) IS NULL", "NOT (b OR c)", "NOT b", "b AND c", "b OR c", "b AND NULL",
    "c OR NULL",
    "b AND i / j > 1", "j = 0 OR i / j > 1", "j <> 0 AND i / j > 1", "i = 0 OR 10 DIV i > 1 AND b", "st.X + 1 = 2",
    "st IS NULL",
    "num = u", "i = 1 + 2 * 3 - 7 % 4", "day = date_sub(DATE '2020-03-01', 1)", "i < 9999999999 - 1", "d = 3 / 2.0",
]  # fmt: skip
_CASTS = [
    *(
        f"{function}({name} AS {kind})"
        for function in ("CAST", "try_cast")
        for kind in ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,20)",
        "DECIMAL(3,0)",
                     "BOOLEAN", "STRING")
        for name in ("t", "i", "n", "f", "g", "d", "e", "w", "b", "num", "s")
        if not (kind == "STRING" and name in "fg") and not (name == "s" and function == "CAST")
    ),
    *(
        f"{function}({name} AS {kind})"
        for function in ("CAST", "try_cast")
        for kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING")
        for name in ("day", "at", "local", "txt", "due", "til")
    ),
    *(f"CAST(at AS {kind})" for kind in ("BIGINT", "INT", "DOUBLE", "FLOAT", "DECIMAL(20,6)", "DECIMAL(12,1)")),
    *(f"CAST({name} AS TIMESTAMP)" for name in ("i", "n", "f", "g")), "try_cast(num AS DATE)", "num::decimal(8,1)",
    "i::string",
    "d::int", "int(d)", "bigint(i)", "double(i)", "float(d)", "string(d)", "boolean(i)", "date(at)", "timestamp(day)",
    "decimal(i)",
    "tinyint(h)", "smallint(i)", "CAST(1.5 AS INT) + i", "CAST(NULL AS INT) + i",
]  # fmt: skip
_POSITIONS = [(1, 2), (0, 2), (2, 1), (-2, 1), (-2, 9), (-9, 8), (3, -1), (2147483647, 2147483647), (-2147483648, 5)]
_TEXT = [
    *(f"{function}({name})" for function in ("lower", "upper", "lcase", "ucase", "trim", "ltrim", "rtrim",
    "length") for name in "su"),
    "char_length(s)", "character_length(u)", "len(s)", "length(bin)", "length(i)", "length(d)", "upper(b)",
    "length(day)",
    *(f"substring(s, {at}, {count})" for at, count in _POSITIONS), "substr(s, 2)", "substring(s, -3)",
    "substring(s, i, j)",
    "substring(s, t)", "substring(s FROM 2 FOR 3)", "substring(s FROM 3)", "substring(num, 1, 2)", "substring(i, 2)",
    "left(s, 3)", "left(s, -1)", "left(s, t)", "right(s, 3)", "right(s, 0)", "right(s, t)", "left(s, NULL)",
    "right(d, 2)",
    "concat(s, u)", "concat(s, i, b)", "concat(s)", "s || u", "s || '-' || i", "concat(day, at)", "d || e",
    "i + 1 || s",
    "replace(s, 'a', 'XY')", "replace(s, 'x')", "replace(s, '', 'y')", "replace(s, 'ß', 's')", "replace(s, NULL, 'a')",
    "startswith(s, 'a')", "startswith(s, u)", "endswith(s, u)", "endswith(s, 'ΑΣ')", "contains(s, u)",
    "contains(s, 'ba')",
    "contains(s, '')", "startswith(s, '')", "contains(i, '1')", "endswith(s, NULL)",
    "trim(BOTH 'x' FROM s)", "trim(LEADING 'ax' FROM s)", "trim(TRAILING 'éx ' FROM s)", "trim('' FROM s)",
    "trim(' ' FROM s)",
    "lpad(s, 8, 'xy')", "rpad(s, 8, 'éy')", "lpad(s, 3)", "rpad(s, 10)", "lpad(s, t, u)", "rpad(s, 0, 'x')",
    "lpad(s, 7, '')",
    "rpad(u, 3, s)", "split(s, 'a')", "split(s, ' ')[0]", "size(split(s, 'x'))",
    "s LIKE 'a%'", "s LIKE u", "s LIKE concat('%', u, '%')", "s NOT LIKE '%x_'", r"s LIKE '%\\%\\_'",
    "s LIKE '%!%!_' ESCAPE '!'",
    "s ILIKE 'A%'", "s ILIKE '%STRASSE%'", "s ILIKE '%Straße%'", "s ILIKE u", "upper(s) LIKE 'A%E'", "i LIKE '1%'",
    "s ILIKE 'i%'",
    "s NOT ILIKE 'A%'", "lower(s) NOT LIKE '%b%'", "s LIKE NULL",
    "s RLIKE '^a'", "s RLIKE 'x+ab'", "s RLIKE '[a-c]{2,}'", "s REGEXP 'p+l'", "regexp_like(s, 'a|b')",
    "regexp(s, '^.x')",
    r"s RLIKE '\\s'",
    r"s RLIKE '^\\w+$'", r"num RLIKE '^[ ]*[+-]?\\d+(\\.\\d*)?[ ]*$'", "s RLIKE '.a.'", "s NOT RLIKE 'a'",
    "s RLIKE '^$'",
    r"s RLIKE '(ap|Ab).*?[^x]$'", "rlike(s, 'é')", "s RLIKE '[é日]'", "i RLIKE '5'", "s RLIKE NULL", r"s RLIKE 's.b'",
    r"txt RLIKE '^(?:\\d{4})-\\d\\d?'",
]  # fmt: skip
_LEVELS = ("year", "YYYY", "yy", "quarter", "month", "MM", "mon", "week", "day", "DD", "hour", "minute", "second",
"millisecond",
           "MICROSECOND", "decade", "")  # fmt: skip
_TIMES = [
    *(
        f"{function}({name})"
        for function in ("year", "quarter", "month", "day", "dayofmonth", "dayofweek", "weekday", "dayofyear", "hour",
        "minute", "second")
        for name in ("day", "at", "til", "local")
    ),
    "year('2020-02-29')", "hour('2020-02-29 11:12:13')", "year(try_cast(txt AS DATE))", "month('2020-02-29 x') + i * 0",
    *(f"date_trunc('{level}', {name})" for level in _LEVELS for name in ("at", "til")), "date_trunc('day', day)",
    "date_trunc('hour', local)", "date_trunc(NULL, at)", "date_trunc('month', '2020-02-29 11:00:00') = at",
    *(f"trunc({name}, '{level}')" for level in _LEVELS[:10] for name in ("day", "at")), "trunc(day, NULL)",
    "to_date(at)", "to_date(day)", "to_date(try_cast(txt AS TIMESTAMP))", "to_date(CASE WHEN id < 2 THEN txt END)",
    "to_timestamp(day)", "to_timestamp(local)", "to_timestamp(CASE WHEN id IN (0, 1, 5) THEN txt END)",
    "to_timestamp(i)",
    "date_add(day, 1)", "date_add(day, t)", "date_add(at, -1)", "date_add(day, i)", "dateadd(day, h)",
    "date_sub(day, 31)",
    "date_sub(day, i)", "date_add('2020-02-28', h)", "day + 1", "day - 1", "1 + day", "day + t", "day - h",
    "datediff(day, due)", "datediff(at, til)", "date_diff(day, at)", "datediff('2020-03-01', day)",
    *(
        f"{name} {operator} INTERVAL {interval}"
        for name in ("day", "at", "local")
        for operator in "+-"
        for interval in ("1 MONTH", "1 YEAR", "13 MONTHS", "1 DAY", "2 WEEKS", "1 HOUR", "90 MINUTES", "1.5 SECONDS",
        "'-1' DAY",
                         "'1 day 2 hours'", "1 MILLISECOND", "7 MICROSECONDS", "-2 MONTHS")
    ),
    "INTERVAL 1 DAY + day", "day + INTERVAL 1 DAY - INTERVAL 1 MONTH", "day - INTERVAL 1 DAY 2 HOURS",
    "at + -INTERVAL 2 HOURS",
    "due + INTERVAL 1 MONTH > day", "at > TIMESTAMP '2020-01-01 00:00:00' - INTERVAL 1 DAY",
    "til + INTERVAL 1 YEAR < at",
    "day + (INTERVAL 1 DAY + INTERVAL 1 HOUR)", "unix_timestamp(at)", "unix_timestamp(til)", "unix_timestamp(day)",
    "unix_timestamp(local)",
]  # fmt: skip
_NESTED = [
    "st.x", "ST.Y.Z", "st['X']", "st.l[0]", "st.l", "st.y", "li[0]", "li[1]", "li[i]", "li[t]", "ls[0]", "lf[0]",
    "la[0].p",
    "m['a']", "m['z']", "m[s]", "m[u]", "mi[1]", "mi[i]", "m[NULL]", "mi[1] || 'x'", "m['a'] + 1", "size(li)",
    "size(m)", "cardinality(ls)",
    "size(st.l)", "array_contains(li, 5)", "array_contains(li, i)", "array_contains(lf, double('NaN'))",
    "array_contains(lf, 0)",
    "array_contains(ls, 'a')", "array_contains(ls, s)", "array_contains(lf, f)", "array_contains(st.l, 0)",
    "array_contains(li, t)",
    "array_distinct(li)", "array_distinct(ls)", "array_union(li, li)", "array_union(li, st.l)",
    "array_union(split(s, 'a'), ls)", "array_intersect(ls, split(u, 'b'))", "array_except(li, li)",
    "array_except(split(s, 'a'), split(u, 'a'))", "array_intersect(st.l, li)",
    "size(li) > 1 AND li[1] = 2", "if(size(li) > 2, li[2], -1)", "upper(st.y.z)", "st.y.z = 'a' OR li[0] = 5",
]  # fmt: skip
EXPRESSIONS = [*_ARITHMETIC, *_NUMBERS, *_CHOICES, *_CONDITIONS, *_CASTS, *_TEXT, *_TIMES, *_NESTED]
