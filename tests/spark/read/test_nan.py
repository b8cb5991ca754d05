"""Filters on floats that Spark's reader would skip rows for: NaN, which is above every number and in no file's
statistics, and -0.0, which is 0.0 but has another place in a dictionary."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.property.effort import some

DDL = "id BIGINT, f DOUBLE, g FLOAT, s STRUCT<f: DOUBLE>"
ROWS = [(1, 1.0), (2, math.nan), (3, None), (4, -1.5)]
NESTED = pa.struct({"f": pa.float64()})


def arrow_frame() -> pa.Table:
    floats = [value for _, value in ROWS]
    nested = pa.array([{"f": value} for value in floats], NESTED)
    return pa.table({"id": [key for key, _ in ROWS], "f": floats, "g": pa.array(floats, pa.float32()), "s": nested})


@pytest.fixture(params=["loaded by Arrow", "compacted", "loaded by Spark"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> LakeTable:
    made = LakeTable.create(tmp_path, DDL, key=["id"], buckets=1, spark=spark)
    if request.param == "loaded by Spark":
        rows = [(key, value, value, (value,)) for key, value in ROWS]
        result = made.upsert(spark.createDataFrame(rows, DDL))
    else:
        result = made.upsert(arrow_frame())
    assert result.mode == "load"
    if request.param == "compacted":
        made.upsert(pa.table({"id": [1], "f": [1.0]}))
        assert made.compact().file_slices == 1
    return made


@pytest.mark.long
@pytest.mark.parametrize("column", some(["s.f", "f", "g"]))
def test_nan_is_found_above_every_number(column: str, table: LakeTable, spark: SparkSession) -> None:
    path = table.url.removeprefix("file://")
    frames = {
        "where": table.to_df().where(f"{column} > 100"),
        "delta": spark.read.format("delta").load(path).where(f"{column} > 100"),
        "nan": spark.read.format("delta").load(path).where(f"{column} = double('NaN')"),
    }
    if "." not in column:  # our conditions name columns
        frames["filter"] = table.to_df(filter=f"{column} > 100")
        assert table.to_arrow(columns=["id"], filter=f"{column} > 100").to_pylist() == [{"id": 2}]
    for name, frame in frames.items():
        assert [row.id for row in frame.collect()] == [2], name


@pytest.mark.parametrize("writer", ["loaded by Arrow", "compacted", "loaded by Spark"])
def test_minus_zero_is_found_as_zero(writer: str, spark: SparkSession, tmp_path: Path) -> None:
    """There are so many rows that a dictionary pays."""
    table = LakeTable.create(tmp_path, DDL, key=["id"], buckets=1, spark=spark)
    zeros = [-0.0] * 500
    nested = pa.array([{"f": zero} for zero in zeros], NESTED)
    frame = pa.table({"id": range(500), "f": zeros, "g": pa.array(zeros, pa.float32()), "s": nested})
    assert table.upsert(spark.createDataFrame(frame) if writer == "loaded by Spark" else frame).mode == "load"
    if writer == "compacted":
        table.delete(pa.table({"id": [0]}))
        assert table.compact().file_slices == 1
    expected = 499 if writer == "compacted" else 500
    for condition in ("f = 0D", "f IN (0D, 8D)", "f <=> 0D", "g = 0F", "s.f = 0D"):
        assert table.to_df().where(condition).count() == expected, condition
        assert table.to_df(filter=condition).count() == expected, condition
        assert table.to_arrow(columns=["id"], filter=condition).num_rows == expected, condition
