"""Log compaction and rescale on Spark: written by its tasks, and read through both of its doors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakemerge import LakeTable, OutcomeUnknownError, Settings
from lakemerge.testing.faults import Fail, Fault
from tests.unit.faults import create, frame, open_over, state_of

Row = tuple[Any, ...]

ROWS = [(k, 1, f"base{k}") for k in range(60)]
TASKWISE = Settings(target_task_bytes=1, driver_bytes=1)
"""Several tasks of a log compaction, several commits of a rescale."""


def both_doors(spark: SparkSession, table: LakeTable) -> list[Row]:
    rows = sorted(map(tuple, table.to_df().collect()), key=repr)
    loaded = spark.read.format("lakemerge").load(table.url)
    assert sorted(map(tuple, loaded.collect()), key=repr) == rows
    return rows


@pytest.mark.long
def test_logs_packed_by_tasks_and_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, buckets=4).upsert(frame(ROWS))
    table = LakeTable.open(path, spark=spark, settings=TASKWISE)
    for number in range(5):
        rows = [(k, 2 + k * number % 3, f"log {number}") for k in range(number, 60, 7)]
        table.upsert(spark.createDataFrame(rows, "k BIGINT, o BIGINT, v STRING"))
    table.delete(spark.createDataFrame([(3,), (4,)], "k BIGINT"))
    expected = state_of(path)
    assert both_doors(spark, table) == expected
    result = table.compact_logs(size_ratio=math.inf)
    # The upserts of each bucket and the deletes, which have other columns.
    assert (result.commits, result.files) == (6, 5)
    assert len({block.file for log in table.opened.view.log_commits for block in log.blocks}) == 5
    assert {file.packed_from is not None for file in table.opened.view.log_commits} == {True}
    assert both_doors(spark, table) == expected == state_of(path)
    counted = table.to_df(columns=["o"], filter="v = 'log 4'").count()
    assert counted == sum(row[2] == "log 4" for row in expected)
    table.compact(minor=True)
    assert both_doors(spark, table) == expected


@pytest.mark.long
def test_spark_reads_slices_of_two_bucket_counts(spark: SparkSession, tmp_path: Path) -> None:
    """A rescale on Spark that dies on the way leaves what Spark reads right, and the next one finishes it."""
    path = tmp_path / "t"
    create(path, buckets=2).upsert(frame(ROWS))
    LakeTable.open(path).delete(frame([(5, 3)], ["k", "o"]))
    LakeTable.open(path).upsert(frame([(6, 3, "new"), (5, 2, "late")]))
    expected = sorted([(6, 3, "new"), *(row for row in ROWS if row[0] not in (5, 6))], key=repr)
    faulty, _ = open_over(path, Fault(action=Fail(ConnectionError("gone")), method="put_if_absent", at=4, lasting=True),
                          settings=TASKWISE)  # fmt: skip
    dying = LakeTable(faulty.opened.handle, faulty.opened.view.snapshot, pinned=False, spark=spark)
    try:
        dying.rescale(buckets=8)
    except OutcomeUnknownError:
        table = LakeTable.open(path, spark=spark, settings=TASKWISE)
    assert {base.buckets for base in table.opened.view.base_files} == {2, 8}
    assert both_doors(spark, table) == expected == state_of(path)
    assert table.to_df(filter="k = 7").collect()[0]["v"] == "base7"
    table.upsert(spark.createDataFrame([(5, 2, "too late"), (7, 9, "newer")], "k BIGINT, o BIGINT, v STRING"))
    expected = sorted([(7, 9, "newer"), *(row for row in expected if row[0] != 7)], key=repr)
    assert both_doors(spark, table) == expected
    assert table.rescale(buckets=8).written_buckets == 4
    assert {base.buckets for base in table.opened.view.base_files} == {8}
    assert both_doors(spark, table) == expected
    table.rescale(buckets=1)
    table.compact()
    assert both_doors(spark, table) == expected
    shown = spark.read.format("delta").load(str(path)).select("k", "o", "v").collect()
    assert sorted(map(tuple, shown), key=repr) == expected
    assert DeltaTable(path).to_pyarrow_table().num_rows == len(expected)
