"""One bucket read by several Spark tasks: the same rows, in tasks of even size."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

from lakemerge import LakeTable, Settings
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.read.splits import Part
from lakemerge.spark import kernel
from lakemerge.spark.transport.sending import pickled
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import open_table
from tests.unit.faults import Row, frame

pytestmark = pytest.mark.usefixtures("by_unions")


ROWS = 2_000
SMALL = Settings(row_group_rows=100, target_task_bytes=4_000)


@pytest.fixture(scope="module")
def dirty(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeTable, list[Row]]:
    """One bucket of twenty row groups, every tenth key newer in a log, every tenth deleted in another."""
    path = tmp_path_factory.mktemp("splits")
    table = LakeTable.create(
        path, "k BIGINT, o BIGINT, v STRING", key=["k"], ordering=["o"], buckets=1, settings=SMALL, spark=spark
    )
    table.upsert(frame([(k, 1, f"v{k * 7919 % ROWS}") for k in range(ROWS)]))
    table.upsert(frame([(k, 2, "new") for k in range(5, ROWS, 10)]))
    table.delete(frame([(k, 2) for k in range(0, ROWS, 10)], ["k", "o"]))
    rows = {k: (k, 1, f"v{k * 7919 % ROWS}") for k in range(ROWS)} | {k: (k, 2, "new") for k in range(5, ROWS, 10)}
    return table, [row for k, row in sorted(rows.items()) if k % 10]


def test_a_slice_is_read_by_several_even_tasks(dirty: tuple[LakeTable, list[Row]]) -> None:
    table, expected = dirty
    (file_slice,) = table.opened.view.file_slices
    found = table.to_df().withColumn("task", functions.spark_partition_id()).collect()
    assert sorted((row.k, row.o, row.v) for row in found) == expected
    tasks = Counter(row.task for row in found)
    assert len(tasks) == min(20, -(-file_slice.stored_bytes // SMALL.target_task_bytes)) > 3
    assert max(tasks.values()) - min(tasks.values()) <= 100  # a row group
    assert table.to_df(columns=["v"], filter="k % 2 = 1").count() == ROWS // 2
    assert table.to_df(columns=[]).count() == len(expected)


@pytest.mark.parametrize(("parts", "tasks"), [(1, 16), (3, 16), (64, 2)])
def test_tasks_are_told_in_bundles_of_few_parts(
    parts: int, tasks: int, dirty: tuple[LakeTable, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task unpickles the parts of all tasks that it was told with."""
    table, expected = dirty
    told: list[list[int]] = []

    def listening(bundle: list[list[Part]]) -> bytes:
        told.append([len(task) for task in bundle])
        return pickled(bundle)

    monkeypatch.setattr(kernel, "pickled", listening)
    monkeypatch.setattr(kernel, "_PARTS_TOGETHER", parts)
    monkeypatch.setattr(kernel, "_TASKS_TOGETHER", tasks)
    assert sorted((row.k, row.o, row.v) for row in table.to_df().collect()) == expected
    each = [count for bundle in told for count in bundle]
    assert max(map(len, told)) == min(tasks, max(1, parts * len(each) // sum(each)))


class _SmallParts(LakeMergeDataSource):
    def _open(self) -> OpenTable:
        return open_table(self.options["path"], settings=SMALL)


def test_the_data_source_reads_the_same_parts(spark: SparkSession, dirty: tuple[LakeTable, list[Row]]) -> None:
    table, expected = dirty
    source = _SmallParts({"path": table.url}).reader(spark.createDataFrame([], "v STRING, k BIGINT").schema)
    tasks = [
        [(row["k"], row["v"]) for batch in cast("Iterator[pa.RecordBatch]", read) for row in batch.to_pylist()]
        for read in map(source.read, source.partitions())
    ]
    assert sorted(row for rows in tasks for row in rows) == [(k, v) for k, _, v in expected]
    assert len(tasks) > 3
    assert max(map(len, tasks)) - min(map(len, tasks)) <= 100
    sent = pickle.dumps(source)  # with each task, which has a partition of its own
    assert not any(
        file.path.encode() in sent for file_slice in table.opened.view.file_slices for file in file_slice.row_files
    )
    whole = spark.read.format("lakemerge").load(table.url)
    assert sorted((row.k, row.o, row.v) for row in whole.collect()) == expected
