"""SQL filters keep the rows that Spark keeps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge import LakeTable, ReadPolicy, Settings
from lakemerge.errors import FilterError
from lakemerge.read.filter.filter import parse_filter
from lakemerge.schema.schema import to_arrow_schema, to_ddl
from lakemerge.sql.times import parse_zone
from tests.property.effort import some

NAN = float("nan")
SCHEMA = to_arrow_schema(
    "id INT, i INT, n BIGINT, f DOUBLE, g FLOAT, d DECIMAL(10,2), s STRING, b BOOLEAN, day DATE, at TIMESTAMP, "
    "bin BINARY, `Odd Name` SMALLINT, st STRUCT<X: INT, y: STRUCT<z: STRING>>"
)
DAY = dt.date(2020, 1, 1)
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
NEXT = dt.date(2020, 1, 2)
MIDNIGHT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
VALUES: list[tuple[Any, ...]] = [
    (1, 10, 1.5, 0.1, Decimal("1.50"), "apple", True, DAY, NOON, b"\x00\xff", 1, {"X": 1, "y": {"z": "a"}}),
    (-5, 2**40, NAN, NAN, Decimal("-0.01"), "A%b_c", False, dt.date(1969, 7, 20), MIDNIGHT, b"", -3, None),
    (None,) * 12,
    (2**31 - 1, -1, -0.0, 1.0, Decimal("99999999.99"), "", True, NEXT, NOON, b"a", 0, {"X": None, "y": None}),
    (0, 0, 0.0, 0.25, Decimal(0), "it's\nback\\slash", None, DAY, None, None, 7, {"X": 3, "y": {"z": None}}),
]  # fmt: skip
FILTERS = [
    "i = 1", "NOT i = 1", "i <> 1 AND NOT (i > 0)", "i <=> NULL", "NOT (i <=> 1)", "i IS DISTINCT FROM n", "i = NULL",
    "b", "NOT b", "b IS NOT TRUE", "(i > 0) IS NOT FALSE", "b = 'true'", "i IN (1, -5)", "i NOT IN (1, NULL)",
    "f IN (0.0, double('nan'))", "f NOT IN (0.0)", "i NOT BETWEEN 0 AND 1", "i > 0.5", "i <= -4.5", "i < 3000000000",
    "(i, s) IN ((1, 'apple'), (-5, 'x'))", "(i, s) NOT IN ((1, 'apple'), (0, 'x'))",
    "(s, i) IN (('apple', 1), ('', -1))",
    "NOT ((i, s) IN ((1, 'apple')))", "((n, i) IN ((10L, 1))) IS NOT TRUE", "(i, day) IN ((1, DATE '2020-01-01'))",
    "(i = 1 AND s = 'apple') OR (s = 'A%b_c' AND i = -5)", "NOT ((i = 1 AND s = 'apple') OR (s = 'x' AND i = -5))",
    "(i = 1 AND s = 'apple' AND n > 5) OR (i = 0 AND s > 'a')", "i IN (1, -5) AND s IN ('apple', '') OR i = 0",
    "i = 1 OR i = 0 OR s IS NULL", "NOT (i = 1 OR i = 0)", "d = 1.5", "d > 1.499", "d < -0.005", "d >= '1.5'",
    "i = '1'", "f > 1000000", "NOT (f <= 1.5)", "f != 1.5", "f = 'NaN'", "f < double('NaN')", "f <= double('NaN')",
    "f = 0", "f = g", "f <= g", "f > g", "f != g", "f < i", "f >= n", "g = 0.1", "g = CAST(0.1 AS FLOAT)", "g = 0.25",
    "n > i", "d > i", "s LIKE 'a%'", "s ILIKE 'a%'", "s NOT LIKE 'a%'", r"s LIKE 'A\%b\_c'",
    "s LIKE 'A!%b!_c' ESCAPE '!'", "s LIKE '%back%'", r"s LIKE 'it\'s\nback\\\\slash'", r"s = 'it\'s\nback\\slash'",
    "s > 'B'", 's = "apple"', "day = '2020-01-01'", "day < DATE '2020-1-2'", "day > CAST('2020' AS DATE)",
    "day < TIMESTAMP '2020-01-01 00:00:01'", "at >= TIMESTAMP '2020-01-01 00:00:00'",
    "at = '2020-01-01T13:00:00+01:00'", "at < DATE '2020-01-01'", "at = TIMESTAMP '2020-01-01 13:00:00 Europe/Oslo'",
    "bin = X'00FF'", "bin > X''", "`odd name` + 1 > 1", "-i = 5", "n * 2 - 1 = 19", "d + 0.5 = 2", "f * 2 = 3",
    "n - i > 0", "st.x = 1", "ST.X IS NULL", "st.y.z = 'a'", "st IS NULL", "i = 1L OR i = -5S", "d = 1.5BD",
    "f = 1.5D", "f = 15e-1", "1 = 1", "TRUE AND NOT FALSE",
    "i > 0 AND upper(s) LIKE 'A%'", "i = 1 OR length(s) = 0", "NOT (i = 1 OR length(s) = 0)",
    "n % 7 = 0 AND day >= '2020-01-01'",
    "CASE WHEN i > 0 THEN n / i ELSE 0 END > 1", "coalesce(s, 'none') = 'none' AND id < 3",
    "year(at) = 2020 AND d >= 0",
    "day = date_sub(DATE '2020-01-03', 2)", "i IN (n + 11, -5, 0)", "st.x + 1 = 2 AND i = 1",
    "CAST(i AS STRING) LIKE '-%'",
    "at - INTERVAL 12 HOURS = TIMESTAMP '2020-01-01 00:00:00'", "(s RLIKE '^a') IS NOT TRUE", "(i > 0) = b",
]  # fmt: skip


def rows_of(values: Sequence[tuple[Any, ...]], first: int = 0) -> pa.Table:
    names = SCHEMA.names[1:]
    rows = [{"id": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(values, first)]
    return pa.Table.from_pylist(rows, SCHEMA)


def test_the_same_rows_as_spark(spark: SparkSession) -> None:
    table = rows_of(VALUES)
    frame = spark.createDataFrame(table, to_ddl(SCHEMA))
    kept = [F.collect_list(F.expr(f"CASE WHEN {sql} THEN id END")).alias(f"f{n}") for n, sql in enumerate(FILTERS)]
    theirs = frame.agg(*kept).collect()[0]
    for n, sql in enumerate(FILTERS):
        parsed = parse_filter(sql, SCHEMA)
        assert parsed is not None
        assert parsed.kept(table)["id"].to_pylist() == sorted(theirs[n]), sql


@pytest.mark.parametrize("state", ["compacted", "minor-compacted", "premerged", "merged in tasks"])
def test_a_table_keeps_the_same_rows(state: str, spark: SparkSession, tmp_path: Path) -> None:
    """Whatever is pruned, by us or by Spark's reader: files and row groups of two rows have statistics that tell."""
    policy = ReadPolicy(premerge=state == "premerged", premerge_from_bytes=0, premerge_stored_per_place=0.1)
    small = Settings(row_group_rows=2, reads=policy)
    table = LakeTable.create(tmp_path, SCHEMA, key=["id"], buckets=4, settings=small, spark=spark)
    first, second = rows_of(VALUES * 4), rows_of(VALUES[::-1] * 2, first=5)
    table.upsert(first)
    table.compact()
    table.upsert(second)
    if state in ("compacted", "minor-compacted"):
        table.compact(minor=state == "minor-compacted")
    plan = table.explain_read()
    assert (plan.first > 0, plan.merged > 0) == (state == "premerged", state == "merged in tasks")
    final = pa.concat_tables([first.slice(0, 5), second, first.slice(15)])
    filters = some(FILTERS)
    parsed = [parse_filter(sql, SCHEMA) for sql in filters]
    expected = [sorted(one.kept(final)["id"].to_pylist()) for one in parsed if one is not None]
    assert len(expected) == len(filters)
    pruned = [table.to_df(columns=["id"], filter=sql) for sql in filters]
    pushed = [table.to_df().where(sql).select("id") for sql in filters]
    for frames in (pruned, pushed):
        found: list[list[int]] = [[] for _ in filters]
        for row in reduce(DataFrame.union, (frame.select(F.lit(n), "id") for n, frame in enumerate(frames))).collect():
            found[row[0]].append(row[1])
        for n, sql in enumerate(filters):
            assert sorted(found[n]) == expected[n], sql
    for n, sql in enumerate(filters):
        assert sorted(table.to_arrow(columns=["id"], filter=sql)["id"].to_pylist()) == expected[n], sql


TIMES = [
    dt.datetime(2020, 3, 8, 5, tzinfo=dt.UTC) + dt.timedelta(minutes=30 * n)  # New York's clocks skip 2 to 3, at 07:00
    for n in range(12)
] + [
    dt.datetime(2020, 11, 1, 4, tzinfo=dt.UTC) + dt.timedelta(minutes=30 * n)  # and show 1 to 2 twice, from 05:00
    for n in range(8)
]  # fmt: skip
ZONED = [
    f"at {op} {literal}"
    for op in ("<", "<=", "=", ">=", ">", "!=")
    for literal in (
        "TIMESTAMP '2020-03-08 02:00:00'", "'2020-03-08 02:30:00'", "'2020-03-08 03:00:00'", "DATE '2020-11-01'",
        "TIMESTAMP '2020-11-01 01:30:00'", "'2020-11-01T01:30:00-05:00'", "'2020-03-08'", "TIMESTAMP '2020-11'",
        "CAST('2020-03-08 06:30' AS TIMESTAMP)", "TIMESTAMP_NTZ '2020-03-08 04:00:00'",
    )
] + [
    "at IN ('2020-03-08 02:30:00', '2020-11-01 01:00:00')", "at BETWEEN '2020-03-08 01:30' AND '2020-11-01 01:00'",
    "local < '2020-03-08 02:30:00'", "local >= DATE '2020-11-01'", "day = '2020-03-08'", "day > DATE '2020-03-08'",
    f"at IN ({', '.join(f'TIMESTAMP {chr(39)}2020-11-01 0{m // 60}:{m % 60:02}:00{chr(39)}' for m in range(60, 120))})",
]  # fmt: skip
FOR_SPARK_ALONE = [
    "day <= TIMESTAMP '2020-03-08 00:00:00'", "local < TIMESTAMP '2020-03-08 03:00:00'",
    "day < TIMESTAMP '2020-03-08 04:00:00Z'",
]  # fmt: skip


@pytest.mark.parametrize("zone", ["America/New_York", "+05:30", "UTC", "EST"])
def test_times_without_a_zone_are_the_sessions(spark: SparkSession, zone: str) -> None:
    """In a zone whose clocks jump, too. ``EST`` is not the same to Java and to Python."""
    kinds = {"id": pa.int32(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "day": pa.date32()}
    schema = pa.schema(list(kinds.items()))
    rows = [(n, time, time.replace(tzinfo=None), time.date()) for n, time in enumerate(TIMES)]
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(table, "id INT, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE")
        filters = ZONED + FOR_SPARK_ALONE
        kept = [F.collect_list(F.expr(f"CASE WHEN {sql} THEN id END")).alias(f"f{n}") for n, sql in enumerate(filters)]
        theirs = frame.agg(*kept).collect()[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    left = []
    for n, sql in enumerate(filters):
        try:
            parsed = parse_filter(sql, schema, zone=parse_zone(zone))
        except FilterError:
            left.append(sql)
            continue
        assert parsed is not None
        assert table.filter(parsed.expression)["id"].to_pylist() == sorted(theirs[n]), sql
    if zone == "EST":
        assert {sql for sql in ZONED if sql not in left} == {sql for sql in ZONED if "-05:00" in sql or sql[0] in "ld"}
    else:
        assert left == ([] if zone == "UTC" else FOR_SPARK_ALONE)
