"""A table's life on clusters: loads, upserts, reads by each route, SQL, changes, compactions and a user's merger.

Executors are processes of their own there, which have nothing of the driver's but what a job brings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge import LakeTable
from tests.clusters.life import COMPUTED, DELETED, LOADED, NEWEST, ROUTES, Told, live
from tests.spark.application import Application

pytestmark = [pytest.mark.serial, pytest.mark.cluster]


def check(told: Told, folder: Path) -> None:
    assert told.modes == ["load", "append", "append", "append"]
    assert told.ways["native, premerged"] == [4, 0, True, None]
    assert told.ways["native, kernel"] == [0, 4, True, None]
    assert told.ways["union, premerged"] == [4, 0, False, None]
    assert told.ways["union, kernel"] == [0, 4, False, None]
    for way in (*ROUTES, "through format()", "minor compaction", "compaction"):
        assert told.rows[way] == NEWEST, way
    assert told.rows["changes"] == sorted(("delete", k, 3, f"3.{k}") for k in DELETED)
    assert told.rows["filtered"] == [(10, 1, "1.10"), (360, 2, "2.360")]
    assert told.rows["in SQL"] == [(1, 2, "u"), (2, 1, "1.2"), (3, 1, "1.3"), (4, 1, "1.4"), (5, 3, "m"), (9, 3, "n")]
    assert told.rows["a user's merger"] == told.rows["a user's merger, compacted"] == COMPUTED
    assert told.ways["minor compaction"] == [4, 4]
    assert told.ways["compaction"] == [4, 4]
    table = LakeTable.open(folder / "newest")
    assert not table.opened.view.log_commits
    assert sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()) == NEWEST
    assert [LakeTable.check(folder / name).ok for name in ("newest", "lake/db/t")] == [True, True]
    assert len(NEWEST) == len(LOADED) + 50 - len(DELETED)


def test_a_life_on_a_local_cluster(one_try: Application, tmp_path: Path) -> None:
    told = one_try.run(live, tmp_path)
    assert (told.executors, len(told.processes)) == (2, 2)
    check(told, tmp_path)


def test_a_life_on_a_standalone_cluster(application: Application, tmp_path: Path) -> None:
    told = application.run(live, tmp_path)
    assert (told.executors, len(told.processes)) == (2, 2)
    check(told, tmp_path)
