"""SQL filters keep the rows that Spark keeps."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge.read.filter import parse_filter
from lakemerge.schema import to_arrow_schema, to_ddl

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
]  # fmt: skip


def test_the_same_rows_as_spark(spark: SparkSession) -> None:
    names = SCHEMA.names[1:]
    rows = [{"id": n, **dict(zip(names, values, strict=True))} for n, values in enumerate(VALUES)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    frame = spark.createDataFrame(table, to_ddl(SCHEMA))
    kept = [F.collect_list(F.expr(f"CASE WHEN {sql} THEN id END")).alias(f"f{n}") for n, sql in enumerate(FILTERS)]
    theirs = frame.agg(*kept).collect()[0]
    for n, sql in enumerate(FILTERS):
        parsed = parse_filter(sql, SCHEMA)
        assert parsed is not None
        assert table.filter(parsed.expression)["id"].to_pylist() == sorted(theirs[n]), sql
