"""What is acknowledged is durable: a power cut after any operation, or just after a commit file got its name, loses
nothing of it."""

from __future__ import annotations

import datetime as dt
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import LakeTable, OutcomeUnknownError
from lakemerge.ingest import Files
from lakemerge.merge_source import MergeConfig, MergeSource
from lakemerge.storage import LocalStore, local
from tests.unit.faults import Row, create, frame, rows_of
from tests.unit.ingest.landing import land
from tests.unit.storage.durable import Disk

ROWS = [(k, 1, f"v{k}") for k in range(40)]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(monkeypatch, tmp_path / "disk")


@pytest.fixture
def path(tmp_path: Path, disk: Disk) -> Path:
    """The place of a table, in folders that are not there yet."""
    return tmp_path / "disk" / "lake" / "silver" / "t"


def survives(disk: Disk, path: Path, tmp_path: Path, expected: list[Row]) -> None:
    assert disk.commits
    assert {name: lost for name, lost in disk.commits.items() if lost} == {}
    assert disk.lost() == []
    after = disk.cut(tmp_path / "after") / path.relative_to(tmp_path / "disk")
    assert LakeTable.check(after).ok
    assert rows_of(LakeTable.open(after).to_arrow()) == sorted(expected, key=repr)


def appended(path: Path) -> LakeTable:
    """A table with logs and base files."""
    table = create(path, buckets=2)
    for begin in range(0, 40, 10):
        table.upsert(frame(ROWS[begin : begin + 10]))
    return table


def test_the_disk_loses_what_was_not_synced(disk: Disk, tmp_path: Path) -> None:
    """The model of the disk itself, which must be able to fail."""
    root = tmp_path / "disk"
    (root / "folder").mkdir()
    (root / "folder" / "file").write_bytes(b"x")
    file, folder, top = (os.open(at, os.O_RDONLY) for at in (root / "folder" / "file", root / "folder", root))
    assert disk.lost() == ["folder/file"]
    for known in (file, folder):
        os.fsync(known)
        assert disk.left() == {}
    os.fsync(top)
    assert disk.left() == {"folder/file": b"x"}
    (root / "folder" / "file").write_bytes(b"xy")
    assert disk.lost() == ["folder/file"]
    for known in (file, folder, top):
        os.close(known)


ROUTES: dict[str, Callable[[LakeTable], object]] = {
    "append": lambda table: table.upsert(frame([(0, 0, "older")])),
    "delete": lambda table: table.delete(pa.table({"k": [99]})),
    "delete where": lambda table: table.delete_where("k = 99"),
    "overwrite": lambda table: table.overwrite(table.to_arrow()),
    "compact": lambda table: table.compact(),
    "minor compaction": lambda table: table.compact(minor=True),
    "log compaction": lambda table: table.compact_logs(),
    "rescale": lambda table: table.rescale(buckets=4),
    "alter": lambda table: table.alter(properties={"delta.checkpointInterval": "3"}),
    "savepoint": lambda table: table.savepoint("here"),
    "restore": lambda table: (table.delete(pa.table({"k": [5]})), table.restore(version=4)),
    "consumer": lambda table: table.consumers.register("me"),
    "checkpoint": lambda table: table.opened.handle.log.checkpoint(table.opened.view.snapshot),
    "vacuum": lambda table: (
        table.compact(),
        table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False),
    ),
}


@pytest.mark.parametrize("route", [*ROUTES])
def test_a_power_cut_after_an_operation_loses_nothing(route: str, disk: Disk, path: Path, tmp_path: Path) -> None:
    table = appended(path)
    ROUTES[route](table)
    survives(disk, path, tmp_path, ROWS)


def test_a_power_cut_after_each_commit_of_a_first_load(disk: Disk, path: Path, tmp_path: Path) -> None:
    table = create(path, buckets=4)
    table.upsert(frame(ROWS))
    assert any(file.startswith("base/") for file in table.opened.view.snapshot.files), (
        "rows that came first are base files"
    )
    survives(disk, path, tmp_path, ROWS)


def test_a_power_cut_after_an_ingest_loses_neither_rows_nor_ledger(disk: Disk, path: Path, tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    land(tmp_path / "landing", "a.json", [{"k": k, "o": 1, "v": f"v{k}"} for k in range(40)])
    table = create(path)
    job = table.ingest("feed", Files(tmp_path / "landing", format="json"), after="delete")
    assert job.run().rows == 40
    survives(disk, path, tmp_path, ROWS)
    after = LakeTable.open(tmp_path / "after" / path.relative_to(tmp_path / "disk"))
    assert [file.state for file in after.ingest("feed").files()] == ["committed"]


def test_a_power_cut_after_a_merge_source_run_loses_neither_output_nor_state(
    disk: Disk, path: Path, tmp_path: Path
) -> None:
    tables = {name: str(path.parent / name) for name in ("crm", "shop")}
    for name, place in tables.items():
        table = LakeTable.create(place, "_id STRING, mail STRING", key=["_id"])
        table.upsert(pa.table({"_id": [name], "mail": ["x"]}))
    told = {"type": "merge", "version": 2, "datasets": ["crm c", "shop s"], "equality": ["c.mail = s.mail"]}
    source = MergeSource.create(path.parent / "out", MergeConfig.from_sesam(told, tables))
    assert source.run().emitted
    assert {name: lost for name, lost in disk.commits.items() if lost} == {}
    assert disk.lost() == []
    after = disk.cut(tmp_path / "after") / path.parent.relative_to(tmp_path / "disk")
    assert rows_of(LakeTable.open(after / "out").to_arrow()) == rows_of(source.table.to_arrow())
    assert MergeSource.open(after / "out").report() == source.report()


def test_folders_that_others_made_are_synced_too(disk: Disk, path: Path, tmp_path: Path) -> None:
    """Another process made them a moment ago, and may not have synced them; so may a user, with mkdir."""
    (path / "_delta_log").mkdir(parents=True)
    for kind in ("base", "log", "tombstones"):
        (path / "_lakemerge" / kind).mkdir(parents=True)
    create(path).upsert(frame(ROWS))
    survives(disk, path, tmp_path, ROWS)


def test_a_folder_made_anew_is_synced_anew(disk: Disk, path: Path, tmp_path: Path) -> None:
    for number in range(3):
        create(path).upsert(frame([(number, 1, "x")]))
        assert disk.lost() == []
        if number < 2:
            shutil.rmtree(path.parent)
    survives(disk, path, tmp_path, [(2, 1, "x")])


def test_files_of_another_writer_are_synced_with_their_folders(disk: Disk, tmp_path: Path) -> None:
    root = tmp_path / "disk" / "new" / "t"
    paths = ["a/1", "a/2", "a/b/c/3", "4"]
    for name in paths:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    (root / "a" / "other").write_bytes(b"not asked for")
    LocalStore(root).sync(paths)
    assert disk.lost() == ["new/t/a/other"]
    with pytest.raises(FileNotFoundError):
        LocalStore(root).sync(["a/1", "missing"])


def test_a_sync_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        LocalStore(tmp_path).sync(["file"])


def test_what_was_deleted_does_not_come_back(disk: Disk, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "disk" / "t")
    for name in ("a/1", "a/2", "b/3"):
        store.put(name, b"x")
    store.delete(["a/1", "b/3", "missing"])
    assert [*disk.left()] == ["t/a/2"]


class _KilledError(BaseException):
    """Ends the process just after a commit file got its name, before the name is on the disk."""


def killed_before_the_name_is_durable(monkeypatch: pytest.MonkeyPatch, commit: Callable[[], object]) -> None:
    really_sync = local._sync_folder

    def sync(folder: str) -> None:
        if os.path.basename(folder) == "_delta_log":
            raise _KilledError
        really_sync(folder)

    with monkeypatch.context() as patched:
        patched.setattr(local, "_sync_folder", sync)
        with pytest.raises(_KilledError):
            commit()


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen at the beginning", "seen at the commit"])
def test_a_repeated_write_acknowledges_only_what_is_durable(
    disk: Disk, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    rows = frame(ROWS)
    table = create(path, buckets=2)
    killed_before_the_name_is_durable(monkeypatch, lambda: table.upsert(rows, txn=("load", 1)))
    after = LakeTable.open(path) if is_seen else table
    assert f"lake/silver/t/_delta_log/{1:020d}.json" in disk.lost()
    assert after.upsert(rows, txn=("load", 1)).mode == "repeated"
    assert disk.lost() == []


def test_a_file_is_deleted_only_after_its_commit_is_durable(
    disk: Disk, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    land(landing, "a.json", [{"k": 1, "o": 1, "v": "x"}])
    files = Files(landing, format="json")
    table = create(path, buckets=2)
    killed_before_the_name_is_durable(monkeypatch, lambda: table.ingest("job", files, after="delete").run())
    lost: list[list[str]] = []
    really_unlink = os.unlink

    def unlink(name: str, **given: object) -> None:
        if os.path.basename(name) == "a.json":
            lost.append(disk.lost())
        really_unlink(name, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", unlink)
    LakeTable.open(path).ingest("job", files, after="delete").run()
    assert not (landing / "a.json").exists()
    assert lost == [[]]


@pytest.mark.parametrize("failures", [1, 2, 20])
def test_a_commit_whose_name_cannot_be_made_durable_is_not_acknowledged(
    disk: Disk, path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    table = create(path, buckets=2)
    really_sync, left = local._sync_folder, [failures]

    def sync(folder: str) -> None:
        if os.path.basename(folder) == "_delta_log" and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), folder)
        really_sync(folder)

    monkeypatch.setattr(local, "_sync_folder", sync)
    if failures < 20:
        table.upsert(frame(ROWS))
        assert disk.lost() == []
    else:
        with pytest.raises(OutcomeUnknownError):
            table.upsert(frame(ROWS))
        monkeypatch.setattr(local, "_sync_folder", really_sync)
        assert rows_of(LakeTable.open(path).to_arrow()) == sorted(ROWS, key=repr), "its files stay"
