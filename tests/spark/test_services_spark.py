"""Compaction groups and maintenance on Spark: the same plan, commits and rows as in this process."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lakemerge import LakeTable, Settings
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over, state_of

NAMES = ["p", "k", "o", "v"]
ONE_BY_ONE = Settings(target_commit_bytes=1)


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
    table = LakeTable(store_over.handle, store_over.view.snapshot, pinned=False, spark=spark)
    assert [len(group.slices) for group in table.compact(dry_run=True).groups] == [1, 1, 1]
    result = table.compact()
    assert (result.commits, result.tiles, len(result.lost)) == (2, 2, 1)
    assert state_of(path) == expected
    assert not LakeTable.open(path).view.log_commits


def test_maintenance_runs_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    dirty(path)
    expected = state_of(path)
    result = LakeTable.open(path, spark=spark).maintain()
    assert result.minor is not None
    assert result.minor.tiles == 3
    assert result.vacuum is not None
    assert LakeTable.open(path, spark=spark).maintain().done == ()
    assert state_of(path) == expected
