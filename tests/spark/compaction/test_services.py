"""Compaction groups and maintenance on Spark: the same plan, commits and rows as in this process."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import InputError, LakeTable, ReadPolicy, Settings
from lakemerge.spark.transport.jobs import map_evenly
from lakemerge.testing.faults import Call, Fault
from tests.spark.read.test_premerge import jobs_of
from tests.unit.faults import create, frame, open_over, state_of

NAMES = ["p", "k", "o", "v"]
IN_TASKS = Settings(driver_bytes=1)
PREMERGING = ReadPolicy(premerge_from_bytes=0, premerge_stored_per_record=1)
ONE_BY_ONE = Settings(target_commit_bytes=1, driver_bytes=1)


def dirty(path: Path) -> None:
    table = create(
        path, schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"],
        properties={"lakemerge.compaction.ratio": "off", "lakemerge.minorCompaction.afterCommits": "1"},
    )  # fmt: skip
    table.upsert(frame([(f"p{n}", k, 0, "base") for n in range(3) for k in range(10)], NAMES))
    table.upsert(frame([(f"p{n}", k, 1, "new") for n in range(3) for k in range(5)], NAMES))


def test_groups_are_committed_one_by_one_and_a_lost_one_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    dirty(path)
    expected = state_of(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact(where="p = 'p1'")

    # The tasks' stores count for themselves; the second commit of the driver is that of the first group.
    store_over, _ = open_over(path, Fault(action=overtake, method="put_if_absent", at=2), settings=ONE_BY_ONE)
    table = LakeTable(store_over.opened.handle, store_over.opened.view.snapshot, pinned=False, spark=spark)
    assert [len(group.buckets) for group in table.compact(dry_run=True).groups] == [1, 1, 1]
    result = table.compact()
    assert (result.commits, result.file_slices, len(result.lost)) == (2, 2, 1)
    assert state_of(path) == expected
    assert not LakeTable.open(path).opened.view.log_commits


def test_maintenance_runs_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    dirty(path)
    expected = state_of(path)
    result = LakeTable.open(path, spark=spark, settings=IN_TASKS).maintain()
    assert result.minor is not None
    assert result.minor.file_slices == 3
    assert result.vacuum is not None
    assert LakeTable.open(path, spark=spark).maintain().done == ()
    assert state_of(path) == expected


def test_small_work_stays_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """Up to ``driver_bytes`` a service and a premerge start no job. Both ways leave the same rows."""
    paths = [tmp_path / "driver", tmp_path / "tasks"]
    for path, settings in zip(paths, (Settings(), IN_TASKS), strict=True):
        dirty(path)
        table = LakeTable.open(path, settings=replace(settings, reads=PREMERGING), spark=spark)
        assert table.explain_read().first == 3
        jobs = [jobs_of(spark, "read", table.to_df, path), jobs_of(spark, "minor", partial(minor, table), path)]
        jobs.append(jobs_of(spark, "full", table.compact, path))
        assert jobs == ([1, 1, 1] if settings is IN_TASKS else [0, 0, 0])
    assert state_of(paths[0]) == state_of(paths[1])


def test_a_read_counts_the_columns_that_decide(spark: SparkSession, tmp_path: Path) -> None:
    """The newest record of a key stays: partition, key and ordering decide, three columns of four."""
    for share, jobs in ((0.75, [0, 1]), (0.5, [1, 1])):
        dirty(path := tmp_path / f"t{share}")
        whole = sum(file_slice.stored_bytes for file_slice in LakeTable.open(path).opened.view.file_slices)
        settings = Settings(driver_bytes=int(whole * share), reads=PREMERGING)
        table = LakeTable.open(path, settings=settings, spark=spark)
        assert [jobs_of(spark, f"read {share}", table.to_df, path), jobs_of(spark, "full", table.compact, path)] == jobs


def minor(table: LakeTable) -> None:
    assert table.compact(minor=True).file_slices == 3


def test_how_much_is_small(spark: SparkSession) -> None:
    settings, here = Settings(driver_bytes=100), os.getpid()

    def where(sizes: list[int]) -> set[bool]:
        return {
            each == here for each in map_evenly(spark, lambda _: os.getpid(), sizes, sizes=sizes, settings=settings)
        }

    assert (where([60, 40]), where([60, 41])) == ({True}, {False})


def test_an_error_of_small_work_is_raised(spark: SparkSession) -> None:
    def work(number: int) -> int:
        if number == 1:
            raise InputError("number one")
        return number

    with pytest.raises(InputError, match="number one"):
        map_evenly(spark, work, [0, 1, 2], sizes=[1, 1, 1], settings=Settings())
    assert map_evenly(spark, work, [2, 0], sizes=[1, 1], settings=Settings()) == [2, 0]
