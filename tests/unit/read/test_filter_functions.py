"""What filters compute, by hand; :mod:`tests.spark.read.test_expressions` compares it with Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import re
import zoneinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge.errors import FilterError
from lakemerge.read.filter.filter import FileStats, Filter, parse_filter, prune
from lakemerge.sql.functions import FUNCTIONS
from lakemerge.sql.patterns import java_regex
from tests.spark.read.expressions import EXPRESSIONS

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "filters.md"
FIELDS: Any = [
    ("id", pa.int32()), ("i", pa.int32()), ("t", pa.int8()), ("n", pa.int64()), ("f", pa.float64()), ("d",
    pa.decimal128(10, 2)),
    ("s", pa.string()), ("b", pa.bool_()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("li",
    pa.list_(pa.int32())),
    ("m", pa.map_(pa.string(), pa.int32())), ("st", pa.struct([("X", pa.int32()), ("l", pa.list_(pa.string()))])),
]  # fmt: skip
SCHEMA = pa.schema(FIELDS)
ROWS: list[dict[str, Any]] = [
    {
        "id": 0, "i": 7, "t": 100, "n": 2**63 - 1, "f": 2.5, "d": Decimal("2.25"), "s": "Straße", "b": True,
        "day": dt.date(2020, 2, 29), "at": dt.datetime(2020, 2, 29, 23, 30, tzinfo=dt.UTC), "li": [1, 2], "m": {"a": 1},
        "st": {"X": 1, "l": ["p"]},
    },
    {
        "id": 1, "i": 0, "t": -128, "n": -7, "f": float("nan"), "d": Decimal("-0.05"), "s": " 12 ", "b": False,
        "day": dt.date(1969, 12, 31), "at": dt.datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=dt.UTC), "li": [],
        "m": {}, "st": {"X": None, "l": None},
    },
    {"id": 2},
    {
        "id": 3, "i": -5, "t": 1, "n": 3, "f": -0.0, "d": Decimal("99999999.99"), "s": "", "b": None,
        "day": dt.date(2021, 1, 31), "at": dt.datetime(2021, 1, 31, tzinfo=dt.UTC), "li": [None, 5], "m": {"a": None},
        "st": None,
    },
]  # fmt: skip
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)


def parsed(sql: str, zone: dt.tzinfo | None = dt.UTC) -> Filter:
    found = parse_filter(sql, SCHEMA, zone=zone)
    assert found is not None
    return found


def ids(sql: str) -> list[int]:
    found: Any = parsed(sql).kept(TABLE)["id"].to_pylist()
    return list(found)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i + t = 107", [0]),
        ("i / 2 = 3.5", [0]),
        ("n DIV 2 = -3", [1]),
        ("n % 2 = -1", [1]),
        ("pmod(n, 2) = 1", [0, 1, 3]),
        ("-i = 5", [3]),
        ("d * 3 = 6.75", [0]),
        ("d / 3 = 0.75", [0]),
        ("d / 3 = -0.016667", [1]),
        ("abs(i) = 5", [3]),
        ("round(f) = 3", [0]),
        ("round(d, 1) = 2.3 OR round(d, 1) = -0.1", [0, 1]),
        ("floor(f) = 2 OR ceil(f) = 3", [0]),
        ("greatest(f, 100) = double('NaN')", [1]),
        ("least(i, NULL, 3) = 3", [0, 2]),
        ("CASE WHEN i <> 0 THEN 100 / i ELSE 0 END = 0", [1, 2]),
        ("CASE i WHEN 7 THEN 'seven' WHEN 0 THEN 'none' END = 'none'", [1]),
        ("if(b, 1, 2) = 2", [1, 2, 3]),
        ("coalesce(b, true)", [0, 2, 3]),
        ("i = 0 OR 100 / i < 0", [1, 3]),
        ("nullif(i, 0) IS NULL", [1, 2]),
        ("nvl(i, 1) = 1", [2]),
        ("upper(s) = 'STRASSE'", [0]),
        ("s ILIKE 'STRA%'", [0]),
        ("CAST(trim(s) AS INT) = 12 AND id = 1", [1]),
        ("try_cast(s AS INT) = 12", [1]),
        ("s::STRING = '' OR try_cast(s AS BOOLEAN)", [3]),
        ("substring(s, -2, 1) = 'ß' OR substring(s, 0, 3) = ' 12'", [0, 1]),
        ("right(s, 2) = 'ße'", [0]),
        ("left(s, id + 2) = 'St'", [0]),
        ("lpad(s, 8, '*') LIKE '**S%'", [0]),
        ("rpad(s, 2, 'ab') = 'ab'", [3]),
        ("concat(s, '|', i) = '|-5'", [3]),
        ("s || d = 'Straße2.25'", [0]),
        ("replace(s, '12') = '  '", [1]),
        ("contains(s, 'aß') AND startswith(s, 'S') AND endswith(s, 'e')", [0]),
        ("s LIKE concat('%', trim(s), '%')", [0, 1, 3]),
        ("s RLIKE '^[A-Z]\\\\w+.e$'", [0]),
        ("length(s) = 6", [0]),
        ("year(day) = 2020 AND month(at) = 2 AND day(at) = 29", [0]),
        ("hour(at) = 23 AND second(at) = 59", [1]),
        ("dayofweek(day) = 7", [0]),
        ("date_trunc('month', at) = TIMESTAMP '2020-02-01 00:00:00'", [0]),
        ("trunc(day, 'year') = DATE '2021-01-01'", [3]),
        ("date_add(day, 1) = DATE '2020-03-01'", [0]),
        ("day + INTERVAL 1 MONTH = DATE '2021-02-28'", [3]),
        ("at + INTERVAL 30 MINUTES = TIMESTAMP '2020-03-01 00:00:00'", [0]),
        ("datediff(day, '2020-02-28') = 1", [0]),
        ("to_date(at) = day", [0, 1, 3]),
        ("CAST(day AS STRING) = '1969-12-31'", [1]),
        ("unix_timestamp(at) = 0", [1]),
        ("f <=> double('NaN') AND isnan(f)", [1]),
        ("(i > 0) IS NOT DISTINCT FROM b", [0, 1, 2]),
        ("i IN (pmod(n, 7), t - 6)", [1, 3]),
        ("i BETWEEN t - 99 AND n", [0, 3]),
        ("NOT (i BETWEEN t - 99 AND n)", [1]),
        ("li[0] = 1 AND id = 0", [0]),
        ("size(li) = 2 AND li[1] = 5", [3]),
        ("m['a'] = 1", [0]),
        ("m['zz'] IS NULL AND m IS NOT NULL", [0, 1, 3]),
        ("array_contains(li, 5)", [3]),
        ("NOT array_contains(li, 7)", [0, 1]),
        ("st.l[0] = 'p' OR st['x'] = 9", [0]),
    ],
)  # fmt: skip
def test_by_hand(sql: str, expected: list[int]) -> None:
    assert ids(sql) == expected


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("100 / i > 0", "100 / i: 100.0 / 0.0 divides by zero"),
        ("t * t > 0", "t * t: the result for 100 and 100 is not a valid TINYINT"),
        ("n + 1 > 0", "the result for 9223372036854775807 and 1 is not a valid BIGINT"),
        ("-t > 0", "the opposite of -128 is not a valid TINYINT"),
        ("CAST(s AS INT) > 0", "CAST(s AS INT): 'Straße' is not a valid INT; TRY_CAST gives NULL there"),
        ("CAST(f AS INT) > 0", "nan is not a valid INT"),
        ("CAST(d AS DECIMAL(4,2)) > 0", "99999999.99 is not a valid DECIMAL(4,2)"),
        ("li[1] > 0", "li[1]: an array of 0 elements has none at 1"),
        ("year(s) = 2020", "'Straße' is not a valid DATE"),
        ("d * 99999999999999999999999999999999999999 > 0", "is not a valid DECIMAL(38,2)"),
        (r"s LIKE concat(s, '\\a')", "the escape in the LIKE pattern"),
    ],
)
def test_a_row_that_cannot_be_judged_is_named(sql: str, why: str) -> None:
    found = parsed(sql)
    assert found.may_fail
    with pytest.raises(FilterError, match="the filter cannot be judged") as caught:
        found.kept(TABLE)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    ["i <> 0 AND 100 / i > 0", "100 / i > 0 AND i <> 0", "CASE WHEN i <> 0 THEN 100 / i END > 0",
    "100 / nullif(i, 0) > 0",
     "i > 0 AND (i = 0 OR 100 / i > 0)", "if(i = 0, false, 100 / i > 0)",
     "coalesce(i = 0, true) = false AND 100 / i > 0"],
)  # fmt: skip
def test_what_a_row_does_not_need_is_not_computed_for_it(sql: str) -> None:
    assert ids(sql) == [0]


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("soundex(s) = 'A'", "SOUNDEX(s)"),
        ("from_json(s, 'a INT').a = 1", "FROM_JSON"),
        ("i = (SELECT 1)", "SELECT 1"),
        ("sum(i) > 1", "SUM(i)"),
        ("s + 1 = 2", "s is STRING, not a number"),
        ("abs(s) = 2", "s is STRING, not a number"),
        ("length(s, 1) = 1", "length takes 1 argument"),
        ("CAST(day AS INT) = 1", "day is DATE; a filter does not cast it to INT"),
        ("CAST(f AS STRING) = '1'", "Java's versions"),
        ("CAST(i AS BINARY) = X'00'", "BINARY"),
        ("CASE WHEN i THEN 1 END = 1", "i is INT, not a condition"),
        ("coalesce(s, i) = 1", "use CAST"),
        ("i + 1 = s", "use CAST"),
        ("s RLIKE '(?i)a'", "(?i)a"),
        ("s RLIKE '[a&&b]'", "[a&&b]"),
        ("s RLIKE s", "text literal"),
        ("split(s, '|')[0] = 'a'", "plain text"),
        ("replace(s, s, 'x') = ''", "text literal"),
        ("round(f, i) = 1", "integer literal"),
        ("day - day = 1", "DATE, not a number"),
        ("day + n = day", "n is BIGINT"),
        ("at + INTERVAL 1 FORTNIGHT > at", "FORTNIGHT"),
        ("at + INTERVAL '1 2' DAY TO HOUR > at", "DAY TO HOUR"),
        ("li['a'] = 1", "no element"),
        ("st['zz'] = 1", "'zz'"),
        ("li[0].p = 1", "'p'"),
        ("array_contains(li, 'a')", "CAST"),
        ("size(s) = 1", "not an array"),
        ("1 = i < 2", "1 = i is BOOLEAN, 2 is INT"),
        ("s || i + 1 = ''", "s || i is STRING, not a number"),
        ("trim(s FROM s) = ''", "text literal"),
        ("unix_timestamp(s) = 1", "format"),
        ("i + 99999999999999999999999999999999999999999 > 0", "38 digits"),
        ("upper(nope) = 'A'", "it has id, i, t"),
        ("i IN (1,, 2)", "something is missing behind an operator or a comma"),
        ("i IN (1, )", "something is missing behind an operator or a comma"),
        ("greatest(, i) = 1", "something is missing behind an operator or a comma"),
        ("greatest(i,, 2) = 1", "something is missing behind an operator or a comma"),
        ("CASE WHEN b 2 END = 2", "WHEN lacks its THEN"),
        ("CASE i END = 2", "CASE lacks its WHEN"),
        ("CASE WHEN b THEN 2 = 2", "CASE lacks its END"),
        ("CASE WHEN THEN 2 END = 2", "something is missing"),
        ("CASE i WHEN 1 THEN 2 ELSE END = 2", "CASE lacks its END"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(sql: str, named: str) -> None:
    with pytest.raises(FilterError) as caught:
        parsed(sql)
    assert named in str(caught.value)


def test_the_list_of_what_is_supported_is_told_documented_and_compared_with_spark() -> None:
    with pytest.raises(FilterError) as caught:
        parsed("nope(i) = 1")
    guide = GUIDE.read_text()
    compared = " ".join(EXPRESSIONS).lower()
    for name in FUNCTIONS:
        assert re.search(rf"\b{name}\b", str(caught.value)), name
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", guide), f"{name} is not in the guide"
        assert f"{name}(" in compared, f"{name} is not compared with Spark"


def test_constants_are_computed_once_and_prune() -> None:
    found = parsed("day > date_sub(DATE '2020-01-10', 9) AND i < 2 * 3 + 1 AND upper(s) = 'A'")
    assert len(found.computed) == 1
    days = [FileStats({"day": dt.date(2019, 1, 1)}, {"day": day}) for day in (dt.date(2020, 1, 1), dt.date(2020, 1, 2))]
    assert prune(found, days).tolist() == [False, True]
    assert prune(parsed("i = 5 OR upper(s) = 'A'"), [FileStats({"i": 9}, {"i": 9})]).tolist() == [True]
    assert parsed("id = 3 AND upper(s) = 'A'").points == {("id",): [(3,)]}
    with pytest.raises(FilterError, match="divides by zero"):
        parsed("i = 1 / 0")


def test_only_what_may_fail_is_said_to() -> None:
    assert not parsed("upper(s) = 'A' OR coalesce(f * 2, 1) > 1 AND try_cast(s AS INT) = 1").may_fail
    assert parsed("i + 1 = 2").may_fail


def test_computed_filters_are_picklable_and_computed_in_bounded_batches() -> None:
    sql = "i + 1 > 5 AND upper(s) RLIKE 'SS' AND size(li) > 0 AND d * 2 > 4"
    found: Filter = pickle.loads(pickle.dumps(parsed(sql)))
    assert found.kept(TABLE)["id"].to_pylist() == [0]
    count = 150_000
    many = pa.table({"id": pa.array(range(count), pa.int32())})
    kept = parsed("id % 50000 = 49999").kept(many.select(["id"]))
    assert kept["id"].to_pylist() == [49_999, 99_999, 149_999]
    assert parsed("upper(s) = ''").kept(TABLE.slice(0, 0)).num_rows == 0


def test_slices_of_arrays_with_an_offset() -> None:
    """Values in the middle of their buffers, as readers pass them on."""
    cases = {
        "substring(s, 2, 1) = '1'": [1],
        "size(li) > 0 AND li[size(li) - 1] = 5": [3],
        "m['a'] IS NULL AND size(m) = 1": [3],
        "d + 1 > 0": [1, 3],
        "at > day": [1],
        "array_contains(li, 5) OR d * 1 = -0.05": [1, 3],
    }
    for sql, expected in cases.items():
        assert parsed(sql).kept(TABLE.slice(1))["id"].to_pylist() == expected, sql


def test_times_are_computed_in_utc_only() -> None:
    oslo = zoneinfo.ZoneInfo("Europe/Oslo")
    for sql in (
        "hour(at) = 1",
        "CAST(at AS DATE) = day",
        "to_timestamp(s) = at",
        "day + INTERVAL 1 HOUR > '2020-01-01'",
        "upper(s) = CAST(TIMESTAMP '2020-01-01 00:00:00Z' AS STRING)",
        "date_add(day, 1) = CAST(TIMESTAMP '2020-01-01 00:00:00Z' AS DATE)",
        "hour(TIMESTAMP '2020-01-01 00:00:00Z') = id + 1",
    ):
        with pytest.raises(FilterError, match="in the time zone UTC only"):
            parsed(sql, oslo)
        assert parsed(sql).computed
    for sql in ("s = CAST(TIMESTAMP '2020-01-01 00:00:00Z' AS STRING)", "i = hour(TIMESTAMP '2020-01-01 00:00:00Z')"):
        with pytest.raises(FilterError, match="in the time zone UTC only"):
            parsed(sql, oslo)
        assert not parsed(sql).computed
    assert parsed("year(day) = 2020 AND at > '2020-01-01'", oslo).computed


def test_a_large_table_is_deleted_from_by_functions_without_spark(tmp_path: Path) -> None:
    from lakemerge import LakeTable

    table = LakeTable.create(tmp_path, SCHEMA, key=["id"], buckets=2)
    table.upsert(TABLE)
    with pytest.raises(FilterError, match="divides by zero"):
        table.delete_where("100 / i > 0")
    assert table.to_arrow().num_rows == 4
    table.delete_where("i <> 0 AND 100 / i > 0")
    assert sorted(table.to_arrow(columns=["id"])["id"].to_pylist()) == [1, 2, 3]
    batches = table.scan(columns=["id"], filter="length(s) BETWEEN 0 AND 4 AND year(at) < 2021")
    assert batches.read_all()["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [
        ("abc", "abc"),
        (r"a\.b*?", r"a\.b*?"),
        (r"^\d+$", r"\A[0-9]+" + r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z"),
        (".", r"[^\n\r\x{85}\x{2028}\x{2029}]"),
        (r"[^\s\-a-f]|(?:x|y){2,3}", r"[^ \t\n\x{0B}\f\r\-a-f]|(?:x|y){2,3}"),
        ("(a(b)c)+", "(a(b)c)+"),
        *(
            (wrong, None)
            for wrong in (
                "(?i)a", "(?=a)", r"\bword", r"(a)\1", "a++", "[[a]]", "[a&&b]", "a$b", "a)", "(a", r"\p{L}", r"\x41",
                "[a", "*a", "a{,2}",
                "[]", r"[\d-z]", "^*", "a**", "]", "\\",
            )
        ),
    ],
)  # fmt: skip
def test_regular_expressions_that_java_and_re2_read_alike(pattern: str, regex: str | None) -> None:
    assert java_regex(pattern) == regex
