"""An object of a table that was removed, re-created or lost a commit neither reads nor writes what is there now."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, TableReplacedError
from lakemerge.delta import DeltaLog
from lakemerge.errors import CommitConflictError
from lakemerge.storage.local import LocalStore
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Fault, FaultStore, Lag
from tests.property.effort import some

OFF = {"lakemerge.maintenance": "off"}
SCHEMA = "id BIGINT NOT NULL, v STRING"


def row(number: int, value: str) -> pa.Table:
    return pa.table({"id": [number], "v": [value]})


def made(path: Path, commits: int, value: str, **given: Any) -> LakeTable:
    table = LakeTable.create(path, SCHEMA, key=["id"], **given)
    for number in range(commits):
        table.upsert(row(number, value))
    return table


def over(path: Path, store: Any) -> LakeTable:
    handle = replace(LakeTable.open(path).opened.handle, store=store, log=DeltaLog(store))
    return LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


WRITES: dict[str, Callable[[LakeTable], object]] = {
    "upsert": lambda table: table.upsert(row(5, "late")),
    "upsert with txn": lambda table: table.upsert(row(5, "late"), txn=("app", 1)),
    "delete": lambda table: table.delete(pa.table({"id": [5]})),
    "delete_where": lambda table: table.delete_where("id = 5"),
    "overwrite": lambda table: table.overwrite(table.to_arrow()),
    "alter": lambda table: table.alter(add_columns="note STRING"),
    "compact": lambda table: table.compact(),
    "compact_logs": lambda table: table.compact_logs(),
    "maintain": lambda table: table.maintain(),
    "rescale": lambda table: table.rescale(buckets=2),
    "vacuum": lambda table: table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False),
    "expire_tombstones": lambda table: table.expire_tombstones(),
    "savepoint": lambda table: table.savepoint("here"),
    "restore": lambda table: table.restore(version=1),
    "checkpoint": lambda table: table.opened.handle.log.checkpoint(table.opened.standing.snapshot),
}
READS: dict[str, Callable[[LakeTable], object]] = {
    "to_arrow": lambda table: table.to_arrow(),
    "scan": lambda table: table.scan().read_all(),
    "get": lambda table: table.get({"id": 77}),
    "changes": lambda table: table.changes(since=0).read_all(),
    "changes until": lambda table: table.changes(since=0, until=1).read_all(),
    "history": lambda table: table.history(),
    "savepoints": lambda table: table.savepoints(),
    "detail": lambda table: table.detail(),
    "version": lambda table: table.version,
}


@pytest.mark.parametrize("name", some([*WRITES, *READS]))
@pytest.mark.parametrize(("before", "after"), [(9, 1), (5, 9), (5, 5), (4, None)])
def test_an_object_of_a_removed_table_is_refused(name: str, before: int, after: int | None, tmp_path: Path) -> None:
    """The new table is shorter, longer, of the same length with files of the same sizes, or there is none."""
    path = tmp_path / "t"
    old = made(path, before, "old")
    shutil.rmtree(path)
    if after is not None:
        made(path, after, "new")
    there = files(path)
    with pytest.raises(TableReplacedError, match="removed or re-created"):
        (WRITES | READS)[name](old)
    assert files(path) == there
    if after is not None:
        assert LakeTable.check(path).ok
        assert sorted(LakeTable.open(path).to_arrow()["v"].to_pylist()) == ["new"] * after


def test_an_object_of_one_version_says_why_its_files_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, 4, "old")
    pinned = LakeTable.open(path, version=2)
    reader = pinned.scan()
    shutil.rmtree(path)
    made(path, 9, "new")
    for read in (pinned.to_arrow, lambda: pinned.get({"id": 0}), reader.read_all):
        with pytest.raises(TableReplacedError, match="removed or re-created after its version 2"):
            read()


def test_a_table_re_created_during_a_write_is_not_written(tmp_path: Path) -> None:
    """The frame is read after the write began, and before its commit."""
    path = tmp_path / "t"
    old = made(path, 3, "old")

    def batches() -> Any:
        yield row(7, "late").to_batches()[0]
        shutil.rmtree(path)
        made(path, 1, "new")

    with pytest.raises(TableReplacedError):
        old.upsert(pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64()), ("v", pa.string())]), batches()))
    assert LakeTable.check(path).ok
    assert LakeTable.open(path).to_arrow()["v"].to_pylist() == ["new"]


def test_a_copy_put_in_its_place_is_the_same_table(tmp_path: Path) -> None:
    """The files have other times and inodes; their content is what counts."""
    path = tmp_path / "t"
    table = made(path, 3, "old")
    assert table.version == 3
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    os.rename(tmp_path / "copy", path)
    assert table.upsert(row(9, "more")).version == 4
    shutil.copytree(path, tmp_path / "backup")
    assert table.upsert(row(10, "lost")).version == 5
    shutil.rmtree(path)
    os.rename(tmp_path / "backup", path)
    with pytest.raises(TableReplacedError, match="ends at version 4"):
        table.upsert(row(11, "late"))


def test_a_look_costs_one_listing_however_the_object_came_to_its_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, 3, "old")
    store = CountingStore(LocalStore(path))
    table = over(path, store)
    store.reset()
    assert table.version == 3
    assert dict(store.counts().calls) == {"list": 1}
    LakeTable.open(path).upsert(row(4, "theirs"))
    store.reset()
    assert table.version == 4
    assert dict(store.counts().calls) == {"list": 1, "get": 1}
    store.reset()
    assert table.version == 4
    assert dict(store.counts().calls) == {"list": 1}


def test_a_listing_that_lags_is_no_removed_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, 3, "old")
    table = over(path, LocalStore(path))
    store = FaultStore(LocalStore(path), Fault(action=Lag(100), method="list", after=True, lasting=True))
    stale = LakeTable(
        replace(table.opened.handle, store=store, log=DeltaLog(store)),
        table.opened.view.snapshot,
        pinned=False,
        spark=None,
    )
    assert stale.version == 3
    LakeTable.open(path).upsert(row(4, "theirs"))
    assert stale.upsert(row(5, "mine")).version == 5
    assert LakeTable.check(path).ok


def test_nothing_is_written_into_a_hole_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "t"
    properties = {"delta.checkpointInterval": "5", "lakemerge.maintenance": "off"}
    table = LakeTable.create(path, SCHEMA, key=["id"], properties=properties)
    for number in range(6):
        table.upsert(row(number, "a"))
    old = LakeTable.open(path)
    begin = old.opened.view
    for number in range(6, 13):
        table.upsert(row(number, "a"))
    hole = path / "_delta_log" / f"{7:020d}.json"
    hole.unlink()
    with pytest.raises(CommitConflictError, match="between version 6 and 13 were cleaned up or lost"):
        old.opened.handle.log.commit(begin.snapshot, lambda tip: pytest.fail("built"), operation="W", parameters={})
    assert old.upsert(row(777, "late")).version == 14
    assert LakeTable.open(path).get({"id": 777}) == {"id": 777, "v": "late"}
    assert not hole.exists()
    (finding,) = LakeTable.check(path).findings
    assert finding.path == f"_delta_log/{7:020d}.json"
    assert "missing" in finding.problem


@pytest.mark.parametrize("commits", [0, 1, 9])
def test_a_checkpoint_of_the_old_table_that_comes_late_does_not_count(tmp_path: Path, commits: int) -> None:
    """Its request was carried out when the folder held another table already, or its writer was killed before it could
    withdraw the file."""
    place, name = tmp_path / "t", f"_delta_log/{10:020d}.checkpoint.parquet"
    made(place, 10, "old", properties=OFF)
    late = {file: data for file, data in files(place).items() if "checkpoint" in file}
    assert name in late
    shutil.rmtree(place)
    table = made(place, commits, "new", properties=OFF)
    for file, data in late.items():
        (place / file).write_bytes(data)
    expected = [{"id": number, "v": "new"} for number in range(commits)]

    def look() -> None:
        for one in (table, LakeTable.open(place)):
            assert sorted(one.to_arrow().to_pylist(), key=lambda found: found["id"]) == expected
        for version in range(0, commits, 3):
            assert LakeTable.open(place, version=version).to_arrow().num_rows == version
        assert [entry.version for entry in table.history()] == [*range(commits, -1, -1)]

    look()
    table.vacuum(retention=dt.timedelta(0), enforce_retention=False)
    (finding,) = LakeTable.check(place).findings
    assert (finding.path, finding.kind) == (name, "checkpoint-of-another-table")
    while commits < 12:
        (table if commits % 2 else LakeTable.open(place)).upsert(row(commits, "new"))
        expected.append({"id": commits, "v": "new"})
        commits += 1
        if commits in (9, 10, 11):
            look()
    look()
    assert LakeTable.check(place).ok, "the table's own checkpoint took the place of the other"


def test_a_checkpoint_stands_in_for_commits_that_were_lost(tmp_path: Path) -> None:
    """One that is beyond the commits, and has the id of their table."""
    made(tmp_path / "t", 10, "x", properties=OFF)
    for version in (8, 9, 10):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    found = LakeTable.open(tmp_path / "t")
    assert (found.version, found.to_arrow().num_rows) == (10, 10)
