"""On Spark: tables whose merger changed, and totals that do not fit their column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from lakemerge import CommitConflictError, CompactFirstError, LakeTable
from lakemerge.layout.xxhash64 import buckets as buckets_of

DDL = "id BIGINT, at INT, n TINYINT"
SUM = {"aggregates": {"n": "sum"}}


def frame(spark: SparkSession, *rows: tuple[int, int, int]) -> DataFrame:
    return spark.createDataFrame(list(rows), DDL).coalesce(1)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def source(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("lakemerge").options(**options).load(path)


def test_readers_and_writers_take_the_merger_of_their_version(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = LakeTable.create(path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    table.upsert(frame(spark, (1, 5, 1), (2, 5, 2)))
    table.upsert(frame(spark, (1, 4, 9), (2, 6, 9)))
    before = table.to_df()
    with pytest.raises(CompactFirstError, match="compact first"):
        table.alter(merger="aggregate", options=SUM)
    table.compact()
    altered = table.alter(merger="aggregate", options=SUM)
    stood = [(1, 5, 1), (2, 6, 9)]
    assert rows(table.to_df()) == stood
    table.upsert(frame(spark, (1, 4, 9), (2, 6, 1)))
    frame(spark, (1, 1, 1), (3, 1, 3)).write.format("lakemerge").mode("append").save(path)
    added = [(1, 5, 11), (2, 6, 10), (3, 1, 3)]
    assert rows(table.to_df()) == rows(source(spark, path)) == rows(LakeTable.open(path, spark=spark).to_df()) == added
    table.compact()
    assert rows(table.to_df()) == rows(source(spark, path)) == added

    assert rows(before) == stood, "a frame made before the change is of its own version"
    assert rows(source(spark, path, version=2)) == stood
    assert rows(LakeTable.open(path, version=2, spark=spark).to_df()) == stood
    assert rows(source(spark, path, version=altered)) == stood


def test_a_write_planned_before_the_change_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The change lands while the frame is evaluated, from within it."""
    path = str(tmp_path / "t")
    table = LakeTable.create(path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    table.upsert(frame(spark, (1, 5, 1), (2, 5, 2)))
    files = {file for file in tmp_path.rglob("*.parquet") if "_delta_log" not in file.parts}

    def overtake(batches: Any) -> Any:
        LakeTable.open(path).alter(merger="aggregate", options=SUM)
        yield from batches

    slow = frame(spark, (1, 6, 1)).mapInArrow(overtake, DDL)
    with pytest.raises(CommitConflictError, match="merger or its options changed meanwhile"):
        table.upsert(slow)
    assert rows(table.to_df()) == [(1, 5, 1), (2, 5, 2)]
    assert table.opened.view.log_commits == ()
    assert {file for file in tmp_path.rglob("*.parquet") if "_delta_log" not in file.parts} == files
    table.upsert(frame(spark, (1, 6, 1)))
    assert rows(table.to_df()) == [(1, 6, 2), (2, 5, 2)]


def test_overflow_is_skipped_and_reported_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = LakeTable.create(path, DDL, key=["id"], merger="aggregate", options=SUM, buckets=2, spark=spark)
    numbers = buckets_of([pa.array(range(10), pa.int64())], 2).tolist()
    wide, other = numbers.index(0), numbers.index(1)
    # The first write overflows already, so that it stays a log.
    assert table.upsert(frame(spark, (wide, 1, 100), (wide, 2, 100), (other, 1, 1))).mode == "append"
    result = table.compact()
    assert (result.file_slices, result.rows) == (1, 1)
    [skipped] = result.skipped
    assert (skipped.bucket, skipped.key, skipped.column) == (0, {"id": wide}, "n")
    with pytest.raises(PythonException, match=rf"sum of column 'n' for key \{{'id': {wide}\}}"):
        table.to_df().collect()
    assert rows(table.to_df(columns=["id", "at"])) == sorted([(wide, 2), (other, 1)])
    back = spark.createDataFrame([(wide, 2, 100, "-U")], f"{DDL}, op STRING")
    table.upsert(back, kind_column="op")
    result = table.compact()
    assert (result.file_slices, result.skipped) == (1, ())
    assert rows(table.to_df(columns=["id", "n"])) == sorted([(wide, 100), (other, 1)])
    assert all(file_slice.is_clean for file_slice in table.opened.view.file_slices)
