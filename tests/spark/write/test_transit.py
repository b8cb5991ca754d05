"""How many rows Spark hands to Python at a time while it writes, and what becomes of the session's settings.

Batch sizes are counted inside Spark's own tasks.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.spark.transport.transit import batches_by_rows

RECORDS, BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"


def loaded(path: Path, *, width: int) -> LakeTable:
    """A table of a few rows that take about so many bytes each, even compressed."""
    table = LakeTable.create(path, "id BIGINT, v BINARY", key=["id"], buckets=1)
    noise = pa.array([random.Random(i).randbytes(width) for i in range(4)])
    table.upsert(pa.table({"id": range(4), "v": noise}))
    return table


def batch_sizes(spark: SparkSession, rows: int = 10_000) -> list[int]:
    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    return [row.n for row in spark.range(0, rows, 1, 1).mapInArrow(count, "n BIGINT").collect()]


def settings(spark: SparkSession) -> tuple[str | None, str | None]:
    return spark.conf.get(RECORDS, None), spark.conf.get(BYTES, None)


def test_batches_are_counted_in_rows_while_a_table_of_small_rows_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = loaded(tmp_path / "t", width=8)
    with batches_by_rows(spark, table.opened.view):
        assert batch_sizes(spark) == [4096, 4096, 1808]
    assert batch_sizes(spark) == [10_000]
    assert settings(spark) == (None, None)


@pytest.mark.parametrize("empty", [True, False])
def test_spark_bounds_the_bytes_of_rows_that_are_large_or_not_known(
    spark: SparkSession, tmp_path: Path, empty: bool
) -> None:
    table = LakeTable.create(tmp_path / "e", "id BIGINT", key=["id"]) if empty else loaded(tmp_path / "t", width=60_000)
    with batches_by_rows(spark, table.opened.view):
        assert settings(spark) == (None, None)


def test_what_the_session_has_set_stays(spark: SparkSession, tmp_path: Path) -> None:
    table = loaded(tmp_path / "t", width=8)
    spark.conf.set(BYTES, "1m")
    try:
        with batches_by_rows(spark, table.opened.view):
            assert settings(spark) == (None, "1m")
        assert settings(spark) == (None, "1m")
    finally:
        spark.conf.unset(BYTES)


def test_the_last_of_several_writes_takes_the_settings_back(spark: SparkSession, tmp_path: Path) -> None:
    table = loaded(tmp_path / "t", width=8)
    with contextlib.ExitStack() as second:
        with batches_by_rows(spark, table.opened.view):
            second.enter_context(batches_by_rows(spark, table.opened.view))
        assert batch_sizes(spark) == [4096, 4096, 1808]
    assert settings(spark) == (None, None)


def test_a_write_that_fails_takes_the_settings_back(spark: SparkSession, tmp_path: Path) -> None:
    table = loaded(tmp_path / "t", width=8)
    with pytest.raises(ValueError, match="the job failed"), batches_by_rows(spark, table.opened.view):
        raise ValueError("the job failed")
    assert settings(spark) == (None, None)


def test_an_upsert_runs_so_and_leaves_the_session_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.open(loaded(tmp_path / "t", width=8).url, spark=spark)

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"id": [batch.num_rows], "v": [b""]})

    # The number of rows of each batch becomes a key.
    frame = spark.range(0, 5000, 1, 1).mapInArrow(look, "id BIGINT NOT NULL, v BINARY")
    table.upsert(frame)
    assert settings(spark) == (None, None)
    assert {4096, 904} <= set(table.to_arrow().column("id").to_pylist())
