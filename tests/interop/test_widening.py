"""Tables whose columns got wider types, through Spark's own reader, the kernel on Spark, delta-spark and others."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemerge import LakeTable, Settings

# Column, type, wider type, a value of the narrower type, that value in the wider type, and a value that needs it.
NOON = dt.datetime(2024, 5, 6, 12)  # noqa: DTZ001 - the type has no zone
MIDNIGHT = dt.datetime(2020, 2, 29)  # noqa: DTZ001 - as above
COLUMNS: list[tuple[str, str, str, Any, Any, Any]] = [
    ("b", "TINYINT", "SMALLINT", -7, -7, 300),
    ("i", "INT", "BIGINT", -(2**31), -(2**31), 2**40),
    ("id2", "INT", "DOUBLE", 2**31 - 1, 2.0**31 - 1, 0.5),
    ("ic", "INT", "DECIMAL(12,2)", -5, Decimal("-5.00"), Decimal("0.25")),
    ("l", "BIGINT", "DECIMAL(22,2)", 2**62, Decimal(2**62).quantize(Decimal("0.01")), Decimal("0.25")),
    ("f", "FLOAT", "DOUBLE", 0.5, 0.5, 0.1),
    ("c", "DECIMAL(6,2)", "DECIMAL(10,4)", Decimal("1.25"), Decimal("1.2500"), Decimal("0.0001")),
    ("cl", "DECIMAL(6,2)", "DECIMAL(24,4)", Decimal("1.25"), Decimal("1.2500"), Decimal("0.0001")),
    ("d", "DATE", "TIMESTAMP_NTZ", dt.date(2020, 2, 29), MIDNIGHT, NOON),
]
NAMES = [name for name, *_ in COLUMNS]
DDL = "k BIGINT, o INT, s STRUCT<x: INT, y: DATE>, a ARRAY<INT>, m MAP<STRING, FLOAT>, " + ", ".join(
    f"{name} {kind}" for name, kind, *_ in COLUMNS
)
WIDEN = {name: wider for name, _, wider, *_ in COLUMNS} | {
    "s.x": "BIGINT",
    "s.y": "TIMESTAMP_NTZ",
    "a.element": "DOUBLE",
    "m.value": "DOUBLE",
}
Row = dict[str, Any]


def narrow(k: int) -> Row:
    nested = {"s": {"x": k, "y": dt.date(2020, 2, 29)}, "a": [k, None], "m": [("a", 0.5)]}
    return {"k": k, "o": 1} | nested | {name: None if k % 5 == 0 else old for name, _, _, old, _, _ in COLUMNS}


def as_wide(k: int) -> Row:
    nested = {"s": {"x": k, "y": MIDNIGHT}, "a": [float(k), None], "m": [("a", 0.5)]}
    return {"k": k, "o": 1} | nested | {name: None if k % 5 == 0 else same for name, *_, same, _ in COLUMNS}


def wide(k: int) -> Row:
    nested = {"s": {"x": 2**40, "y": NOON}, "a": [0.5], "m": [("a", 0.1)]}
    return {"k": k, "o": 2} | nested | {name: new for name, *_, new in COLUMNS}


def of_spark(frame: DataFrame) -> list[Row]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(({**row, "m": list(row["m"].items())} for row in rows), key=lambda row: row["k"])


def in_order(rows: dict[int, Row]) -> list[Row]:
    return [rows[k] for k in sorted(rows)]


@pytest.mark.long
@pytest.mark.parametrize("loaded_by", ["Spark", "Arrow"])
def test_every_reader_sees_the_wider_types(
    spark: SparkSession, tmp_path: Path, reads: Settings, loaded_by: str
) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["k"], ordering=["o"], buckets=2, settings=reads, spark=spark)
    frame = pa.Table.from_pylist([narrow(k) for k in range(40)], schema=table.schema)
    table.upsert(spark.createDataFrame(frame) if loaded_by == "Spark" else frame)
    base = {k: as_wide(k) for k in range(40)}
    expected = dict(base)
    if reads.reads.premerge:
        logged = [narrow(k) | {"o": 2} for k in (7, 10, 43)]
        table.upsert(pa.Table.from_pylist(logged, schema=table.schema))
        expected |= {row["k"]: as_wide(row["k"]) | {"o": 2} for row in logged}
        assert table.explain_read().first
    table.alter(widen=WIDEN)
    kinds = {field.name: field.type for field in table.schema}

    def check() -> None:
        rows = in_order(expected)
        assert of_spark(table.to_df()) == rows
        assert of_spark(spark.read.format("lakemerge").load(str(tmp_path))) == rows
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["k"]) == rows
        for name, condition in [("i", "i > 5000000000"), ("id2", "id2 = 0.5"), ("c", "c < 1"), ("ic", "ic = -5.00")]:
            found = sorted(row.k for row in table.to_df(columns=["k"], filter=condition).collect())
            assert found == [row["k"] for row in rows if MEETS[condition](row)], name
        day = "d = TIMESTAMP_NTZ '2020-02-29 00:00:00'"
        found = sorted(row.k for row in table.to_df(columns=["k"], filter=day).collect())
        assert found == [row["k"] for row in rows if row["d"] == MIDNIGHT]

    check()  # clean, or with a log of the narrower types: Spark's own reader
    assert of_spark(spark.read.format("delta").load(str(tmp_path))) == in_order(base)
    new = {k: wide(k) for k in (3, 41)}
    table.upsert(pa.Table.from_pylist(list(new.values()), schema=table.schema))
    expected |= new
    assert bool(table.explain_read().first) == reads.reads.premerge
    check()  # dirty: the kernel, or logs of both types in one scan
    table.compact(minor=True)
    check()  # base and winner files of both types in one scan
    assert of_spark(spark.read.format("delta").load(str(tmp_path))) == in_order(base)
    table.compact()
    check()
    delta = spark.read.format("delta").load(str(tmp_path))
    assert of_spark(delta) == in_order(expected)
    assert delta.schema["i"].dataType.typeName() == "long"
    assert kinds["d"] == pa.timestamp("us")


MEETS: dict[str, Any] = {
    "i > 5000000000": lambda row: row["i"] is not None and row["i"] > 5_000_000_000,
    "id2 = 0.5": lambda row: row["id2"] == 0.5,
    "c < 1": lambda row: row["c"] is not None and row["c"] < 1,
    "ic = -5.00": lambda row: row["ic"] == -5,
}


def test_readers_that_do_not_know_the_feature_refuse_the_table(tmp_path: Path) -> None:
    """None reads wrong values; before the first change all of them read the table."""
    table = LakeTable.create(tmp_path, "k BIGINT, n INT", key=["k"], buckets=1)
    table.upsert(pa.table({"k": [1], "n": pa.array([1], pa.int32())}))
    assert pl.read_delta(str(tmp_path)).rows() == [(1, 1)]
    table.alter(widen={"n": "BIGINT"})
    for read in (
        lambda: pl.read_delta(str(tmp_path)).rows(),
        lambda: deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist(),
    ):
        with pytest.raises(Exception, match=r"(?i)typewidening|reader"):
            read()
