"""Vacuum: what goes, what stays, whose clock decides, and what happens to those who are at work.

What a version needs is found out by reading it through a store that notes what it is asked.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakemerge import (
    CommitConflictError,
    InputError,
    LakeMergeError,
    LakeTable,
    OutcomeUnknownError,
    Settings,
    StoreError,
    TableDamagedError,
    UnsupportedFeatureError,
    VacuumResult,
    VersionNotFoundError,
)
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.storage.clock import CLOCK_FILE
from lakemerge.storage.local import LocalStore
from lakemerge.table.opening import open_handle
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Call, Fail, Fault, FaultStore
from tests.unit.faults import UNKNOWN, Row, commit_domains, create, frame, listing, open_over, rows_of, state_of

NOW = dt.timedelta(0)
KILLED = "00000000-dead-dead-dead-000000000000"
WRITES = ("put", "put_if_absent", "open_output", "delete", "delete_exact", "replace_exact")
SERVICES: dict[str, Callable[[LakeTable], object]] = {
    "compaction": lambda table: table.compact(),
    "minor compaction": lambda table: table.compact(minor=True),
    "log compaction": lambda table: table.compact_logs(size_ratio=1e9),
    "rescale": lambda table: table.rescale(buckets=4 if table.opened.view.config.buckets == 2 else 2),
    "delete_where": lambda table: table.delete_where("k > 7", retries=0),
}
"""What reads files of the present version to write others."""


def vacuum(table: LakeTable, *, dry_run: bool = False) -> VacuumResult:
    """Everything but the latest version goes."""
    return table.vacuum(retention=NOW, enforce_retention=False, dry_run=dry_run)


def busy(path: Path, **options: str) -> tuple[LakeTable, dict[int, list[Row]]]:
    """A table with every kind of file, and the rows of its versions."""
    table = create(path, buckets=2, settings=Settings(inline_blocks=1), properties=options)
    seen = {}
    for number in range(6):
        table.upsert(frame([(k, number, f"{number}.{k}") for k in range(number, number + 5)]))
        seen[table.version] = rows_of(table.to_arrow())
        table.delete(frame([(number, number)], ["k", "o"]))
        seen[table.version] = rows_of(table.to_arrow())
        if number % 2:
            table.compact(minor=number != 3)
            seen[table.version] = rows_of(table.to_arrow())
    return table, seen


def check_readable(path: Path, seen: dict[int, list[Row]], oldest: int, *, saved: int | None = None) -> set[str]:
    """Versions from ``oldest`` on, and a saved one, read as they did, the others are refused; the files
    that were opened."""
    opened: set[str] = set()
    for version, rows in seen.items():
        if version >= oldest or version == saved:
            assert rows_of(LakeTable.open(path, version=version).to_arrow()) == rows
            store = FaultStore(LocalStore(path))
            handle = open_handle(path, None, (), None)
            view = Handle(store, DeltaLog(store), handle.registry, handle.settings).view(
                DeltaLog(store).snapshot(version=version)
            )
            LakeTable(
                Handle(store, DeltaLog(store), handle.registry, handle.settings), view.snapshot, pinned=True, spark=None
            ).to_arrow()
            opened |= {call.path for call in store.calls if call.method in ("get", "open_input")}
            named = [
                *(file_slice.tombstones for file_slice in view.file_slices),
                *(base.tombstones for base in view.base_files),
            ]
            opened |= {path for path in named if path is not None}
        else:
            with pytest.raises(VersionNotFoundError, match=f"version {version} "):
                LakeTable.open(path, version=version)
    return opened


def data_files(path: Path) -> set[str]:
    return {name for name in listing(path) if not name.startswith("_delta_log/")} - {CLOCK_FILE}


def age(path: Path, *, days: float, folder: str = "") -> None:
    """Make all files look older by the clock of the store."""
    for file in (path / folder).rglob("*"):
        seconds = file.stat().st_mtime - days * 86_400
        os.utime(file, (seconds, seconds))


def test_a_dry_run_says_what_a_run_then_deletes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, seen = busy(path)
    version, before = table.version, listing(path)
    told = vacuum(table, dry_run=True)
    assert told.dry_run
    assert (told.version, told.oldest_version) == (version, version)
    assert listing(path) == before, "nothing was changed"
    assert set(told.files) == {"base", "log", "merged", "tombstones"}
    done = vacuum(table)
    assert (done.paths, done.files, done.bytes) == (told.paths, told.files, told.bytes)
    assert done.bytes == sum(before[name] for name in done.paths)
    assert before.keys() - listing(path).keys() == set(done.paths)
    assert (done.version, done.oldest_version) == (version + 1, version)
    assert f"oldest_version={version}, files={{base: " in repr(done)
    assert check_readable(path, seen, version) >= data_files(path), "what is left is what the version reads"
    again = vacuum(table)
    assert (again.files, again.version) == ({}, version + 1), "a fence is made only where something goes"
    table.upsert(frame([(0, 99, "on")]))
    table.compact()
    assert (0, 99, "on") in state_of(path)


def test_every_version_within_the_retention_stays(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, seen = busy(path)
    oldest = sorted(seen)[5]
    for commit in (path / "_delta_log").glob("*.json"):
        if int(commit.stem) <= oldest:
            os.utime(commit, (commit.stat().st_mtime - 8 * 86_400,) * 2)
    result = table.vacuum(dry_run=False)
    assert result.oldest_version == oldest
    assert result.files
    assert check_readable(path, seen, oldest) >= data_files(path)
    with pytest.raises(VersionNotFoundError, match=f"kept the versions from {oldest} on"):
        table.savepoint("old", version=oldest - 1)
    with pytest.raises(VersionNotFoundError, match=f"kept the versions from {oldest} on"):
        table.restore(version=oldest - 1)
    with pytest.raises(VersionNotFoundError, match=f"the oldest version kept is {oldest}"):
        table.changes(since=oldest - 1)
    table.restore(version=oldest)
    assert state_of(path) == seen[oldest]


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """Byte for byte, with the times of files and folders; who may only read gets the same answer."""

    def folder() -> dict[Path, tuple[int, bytes]]:
        found = [path, *path.rglob("*")]
        return {entry: (entry.stat().st_mtime_ns, entry.read_bytes() if entry.is_file() else b"") for entry in found}

    path = tmp_path / "t"
    busy(path)
    age(path, days=8)
    before = folder()
    told = LakeTable.open(path).vacuum()
    assert told.paths
    refusals = [Fault(action=Fail(PermissionError("no")), method=method, lasting=True) for method in WRITES]
    for retention in (None, NOW):
        reader, _ = open_over(path, *refusals)
        result = reader.vacuum(retention=retention, enforce_retention=False)
        assert (result.paths, result.bytes) == (told.paths, told.bytes)
    assert folder() == before
    assert LakeTable.open(path).vacuum(dry_run=False).paths == told.paths


def test_the_clock_of_this_machine_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of a machine whose clock is a year ahead, or behind."""
    for days in (-365, 365):
        shift = days * 86_400_000
        real = Handle.now_ms()
        with monkeypatch.context() as clock:
            clock.setattr("lakemerge.delta.log._now_ms", lambda: real + shift)  # noqa: B023 - used within the loop
            clock.setattr("time.time_ns", lambda: (real + shift) * 1_000_000)  # noqa: B023
            table, _ = busy(tmp_path / str(days))
            assert table.vacuum(dry_run=False).files == {}
            age(tmp_path / str(days), days=8)
            assert table.vacuum(dry_run=False).files


def test_a_retention_shorter_than_the_tables_is_refused(tmp_path: Path) -> None:
    table, _ = busy(tmp_path / "t", **{"delta.deletedFileRetentionDuration": "interval 2 days"})
    with pytest.raises(InputError, match=r"shorter than the table's .*2 days.*enforce_retention=False"):
        table.vacuum(retention=dt.timedelta(days=1))
    with pytest.raises(InputError, match="not negative"):
        table.vacuum(retention=dt.timedelta(days=-1))
    age(tmp_path / "t", days=3)
    assert table.vacuum(retention=dt.timedelta(days=4)).files == {}
    assert table.vacuum().files
    assert table.vacuum(retention=dt.timedelta(days=2)).files


def test_savepoints_hold_back_what_they_need(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, seen = busy(path)
    saved = sorted(seen)[4]
    table.savepoint("kept", version=saved)
    seen[table.version] = rows_of(table.to_arrow())
    result = vacuum(table)
    assert result.files
    opened = check_readable(path, seen, result.oldest_version, saved=saved)
    assert opened >= data_files(path)
    table.savepoint("again", version=saved)
    table.drop_savepoint("kept")
    assert vacuum(table).files == {}
    table.restore(savepoint="again")
    assert state_of(path) == seen[saved]
    table.drop_savepoint("again")
    assert vacuum(table).files, "what the restore gave up"
    assert state_of(path) == seen[saved]
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(path, version=saved)


def orphan(path: Path, version: int, *, days: float) -> list[str]:
    """Files as a killed write that began at a version leaves them."""
    names = [
        f"_lakemerge/log/{version:020d}-{KILLED}-00000-00000-0.parquet",
        f"base/{version:020d}-{KILLED}/00000-0000000077.parquet",
        f"_lakemerge/merged/{version:020d}-{KILLED}/00000-0000000078.parquet",
        f"_lakemerge/tombstones/{version:020d}-{KILLED}-0000000077.parquet",
    ]
    for name in names:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"orphan")
        os.utime(file, (file.stat().st_mtime - days * 86_400,) * 2)
    return names


def test_files_of_killed_writes_go(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, seen = busy(path)
    table.vacuum(dry_run=False)
    early = orphan(path, 1, days=0)
    vacuum(table)
    assert not set(early) & listing(path).keys(), "who began before the fence cannot commit any more"
    young = orphan(path, table.version, days=0)
    for _ in range(2):
        table.vacuum(dry_run=False)
        assert set(young) <= listing(path).keys(), "somebody may be at it"
    assert state_of(path) == seen[max(seen)]


def test_files_of_a_write_killed_on_a_quiet_table_go(tmp_path: Path) -> None:
    """Nothing was committed since: a write that is under way may have begun where the killed one did. So the
    first vacuum makes a version, and one after the retention deletes."""
    path = tmp_path / "t"
    table, _ = busy(path)
    vacuum(table)
    quiet = table.version
    left = orphan(path, quiet, days=0)
    age(path, days=8)
    assert table.vacuum().files == {}
    table.vacuum(dry_run=False)
    assert table.version == quiet + 1
    assert set(left) <= listing(path).keys()
    table.vacuum(dry_run=False)
    assert table.version == quiet + 1, "once is enough"
    age(path, days=8)
    table.vacuum(dry_run=False)
    assert not set(left) & listing(path).keys()


def test_half_written_files_of_killed_writers_go(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(1, 1, "a")]))
    folder = path / "base" / f"{1:020d}-{KILLED}"
    folder.mkdir()
    for name, days in (("old", 8), ("young", 0.5)):
        file = folder / f".lakemerge-tmp-{name}"
        file.write_bytes(b"half")
        os.utime(file, (file.stat().st_mtime - days * 86_400,) * 2)
    told = table.vacuum()
    assert (told.files, told.bytes) == ({"unfinished": 1}, 4)
    assert (folder / ".lakemerge-tmp-old").exists()
    table.vacuum(dry_run=False)
    assert [file.name for file in folder.iterdir()] == [".lakemerge-tmp-young"]
    vacuum(table)
    assert [file.name for file in folder.iterdir()] == [".lakemerge-tmp-young"], "a day, whatever the retention"


@pytest.mark.parametrize("work", ["upsert", "compact", "minor", "logs", "load"])
def test_a_write_begun_before_the_fence_is_refused_and_can_be_repeated(tmp_path: Path, work: str) -> None:
    path = tmp_path / "t"
    table = create(path)
    expected = []
    if work != "load":
        table.upsert(frame([(1, 1, "a")]))
        table.upsert(frame([(2, 1, "b")]))
        expected = [(1, 1, "a"), (2, 1, "b")]

    def overtake(call: Call) -> None:
        other = LakeTable.open(path)
        other.upsert(frame([(3, 1, "c")]))
        orphan(path, 0, days=0)
        assert vacuum(other).files

    first = "_delta_log" if work in ("upsert", "load", "logs") else "base" if work == "compact" else "_lakemerge/merged"
    method = "put_if_absent" if first == "_delta_log" else "publish"
    table.upsert(frame([(9, 1, "z")])) if work == "logs" else None
    late, _ = open_over(path, Fault(method=method, path=first, action=overtake))
    does: dict[str, Callable[[], object]] = {
        "upsert": lambda: late.upsert(frame([(4, 1, "d")])),
        "load": lambda: late.upsert(frame([(4, 1, "d")])),
        "compact": late.compact,
        "minor": lambda: late.compact(minor=True),
        "logs": lambda: late.compact_logs(size_ratio=float("inf")),
    }
    with pytest.raises(CommitConflictError, match=r"before the vacuum fence \d+"):
        does[work]()
    rest = [*expected, (3, 1, "c"), *([(9, 1, "z")] if work == "logs" else [])]
    assert state_of(path) == rest
    does[work]()
    assert state_of(path) == [*rest, *([(4, 1, "d")] if work in ("upsert", "load") else [])]
    LakeTable.open(path).compact()
    vacuum(LakeTable.open(path))
    assert state_of(path) == [*rest, *([(4, 1, "d")] if work in ("upsert", "load") else [])]


def test_what_is_saved_or_restored_before_the_fence_stays(tmp_path: Path) -> None:
    """Between the listing and the fence an old version is named, and another one restored."""
    path = tmp_path / "t"
    _, seen = busy(path)
    saved, restored = sorted(seen)[2], sorted(seen)[5]

    def meanwhile(call: Call) -> None:
        other = LakeTable.open(path)
        other.savepoint("just-in-time", version=saved)
        other.restore(version=restored)

    table, _ = open_over(path, Fault(method="put_if_absent", path="_delta_log", action=meanwhile))
    assert vacuum(table).files
    assert state_of(path) == seen[restored]
    assert rows_of(LakeTable.open(path, savepoint="just-in-time").to_arrow()) == seen[saved]
    LakeTable.open(path).compact()
    assert state_of(path) == seen[restored]


def test_what_comes_after_the_fence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _, seen = busy(path)
    old = sorted(seen)[2]
    refused = []

    def meanwhile(call: Call) -> None:
        other = LakeTable.open(path)
        for work in (lambda: other.savepoint("late", version=old), lambda: other.restore(version=old)):
            with pytest.raises(VersionNotFoundError, match="cannot be read any more"):
                work()
            refused.append(work)

    table, _ = open_over(path, Fault(method="delete", path="_lakemerge/log", action=meanwhile))
    vacuum(table)
    assert len(refused) == 2
    assert state_of(path) == seen[max(seen)]


def test_a_vacuum_that_fails_anywhere_leaves_a_right_table(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    _, seen = busy(whole)
    shutil.copytree(whole, tmp_path / "count")
    table, store = open_over(tmp_path / "count")
    vacuum(table)
    left = data_files(tmp_path / "count")
    places = [at for at, call in enumerate(store.calls, start=1) if call.method in WRITES]
    assert len(places) > 5
    for number, at in enumerate(places):
        path = tmp_path / str(number)
        shutil.copytree(whole, path)
        for after in (False, True):
            table, _ = open_over(path, Fault(at=at, action=Fail(StoreError("gone")), after=after, lasting=True))
            try:
                vacuum(table)
            except (StoreError, OutcomeUnknownError):
                assert state_of(path) == seen[max(seen)]
        vacuum(LakeTable.open(path))
        assert data_files(path) == left
        assert state_of(path) == seen[max(seen)]


def test_half_written_files_are_not_worth_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    busy(tmp_path / "t")
    table, _ = open_over(tmp_path / "t", Fault(method="clean_up", action=Fail(StoreError("not allowed"))))
    assert vacuum(table).files
    assert "half-written files" in caplog.text


def test_two_vacuums_at_once(tmp_path: Path) -> None:
    """The other one goes further, and takes block indexes that this one is about to read."""
    path = tmp_path / "t"
    _, seen = busy(path)
    for commit in (path / "_delta_log").glob("*.json"):
        if int(commit.stem) <= sorted(seen)[3]:
            os.utime(commit, (commit.stat().st_mtime - 8 * 86_400,) * 2)
    done: list[VacuumResult] = []
    table, _ = open_over(
        path, Fault(method="get", path="index", action=lambda call: done.append(vacuum(LakeTable.open(path))))
    )
    result = table.vacuum(dry_run=False)
    assert done[0].files
    assert result.oldest_version == done[0].oldest_version > sorted(seen)[3]
    assert state_of(path) == seen[max(seen)]
    LakeTable.open(path, settings=Settings(inline_blocks=1)).upsert(frame([(k, 1, "x") for k in range(70, 80)]))
    (path / next(name for name in data_files(path) if name.endswith("index.parquet"))).unlink()
    with pytest.raises(TableDamagedError, match="block index"):
        table.vacuum()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_a_vacuum_overtakes_says_so(name: str, tmp_path: Path) -> None:
    """What it reads is gone before it reads it, and the table is fine. Where it is not, that is said."""
    path = tmp_path / "t"
    table, _ = busy(path)
    for number in (7, 8):
        table.upsert(frame([(k, number, f"{number}.{k}") for k in range(number, number + 5)]))

    def overtake(_: Call) -> None:
        other = LakeTable.open(path)
        other.compact()
        assert vacuum(other).files

    before = state_of(path)
    slow, store = open_over(path, Fault(action=overtake, method="open_input"), settings=Settings(inline_blocks=1))
    with pytest.raises(CommitConflictError, match=r"a vacuum was faster, .* kept the versions from .*try again"):
        SERVICES[name](slow)
    assert store.injected.total() == 1
    assert state_of(path) == before
    assert LakeTable.check(path).ok
    SERVICES[name](LakeTable.open(path))
    for number in (9, 10):
        table.upsert(frame([(k, number, f"{number}.{k}") for k in range(number, number + 5)]))
    for file in (path / "_lakemerge" / "log").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(TableDamagedError, match=r"(file|block index) .* is missing"):
        SERVICES[name](LakeTable.open(path))


@pytest.mark.parametrize(
    ("method", "file", "at", "error", "message"),
    [
        ("get", "index", 1, CommitConflictError, r"a vacuum was faster, .* kept the versions from .*try again"),
        ("list", "", 1, VersionNotFoundError, "vacuum kept the versions from"),
        ("list", "", 3, VersionNotFoundError, "vacuum kept the versions from"),
    ],
)
def test_a_restore_that_a_vacuum_overtakes_says_so(
    method: str, file: str, at: int, error: type[LakeMergeError], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    _, seen = busy(path)
    before = state_of(path)
    vacuumed = Fault(action=lambda _: vacuum(LakeTable.open(path)), method=method, path=file, at=at)
    slow, store = open_over(path, vacuumed, settings=Settings(inline_blocks=1))
    with pytest.raises(error, match=message):
        slow.restore(version=sorted(seen)[3])
    assert store.injected.total() == 1
    assert state_of(path) == before
    assert LakeTable.check(path).ok


def test_old_commits_go_and_other_readers_still_open_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    properties = {"delta.checkpointInterval": "4", "delta.logRetentionDuration": "interval 10 days"}
    table, seen = busy(path, **properties)
    saved, old = sorted(seen)[5], table.version
    table.savepoint("kept", version=saved)
    age(path, days=20)
    for number in range(6):
        table.upsert(frame([(50, number, "new")]))
        seen[table.version] = rows_of(table.to_arrow())
    oldest = old + 1  # the savepoint's commit
    told = table.vacuum()
    first = saved - saved % 4
    gone = {f"_delta_log/{version:020d}.json" for version in range(first)}
    gone |= {f"_delta_log/{version:020d}.checkpoint.parquet" for version in range(4, first, 4)}
    assert {name for name in told.paths if name.startswith("_delta_log/")} == gone
    before = listing(path).keys()
    done = table.vacuum(dry_run=False)
    assert (done.oldest_version, done.files["delta log"], done.paths) == (oldest, len(gone), told.paths)
    assert before - listing(path).keys() == set(done.paths)
    check_readable(path, seen, oldest, saved=saved)
    table.drop_savepoint("kept")
    done = table.vacuum(dry_run=False)
    left = {int(name[11:31]) for name in listing(path) if name.startswith("_delta_log/0")}
    assert min(left) == oldest - oldest % 4, "the checkpoint below the oldest version"
    check_readable(path, seen, oldest)
    for version in (None, oldest, table.version):
        delta = deltalake.DeltaTable(path, version=version)
        assert len(delta.file_uris()) == len(LakeTable.open(path, version=version).opened.view.base_files)
    table.compact()
    assert rows_of(deltalake.DeltaTable(path).to_pyarrow_table()) == state_of(path)
    assert [entry.version for entry in table.history()][-1] == min(left)


def test_commits_younger_than_an_hour_stay(tmp_path: Path) -> None:
    """Followers of the log take it for granted."""
    table, _ = busy(
        tmp_path / "t", **{"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 days"}
    )
    assert "delta log" not in vacuum(table).files
    age(tmp_path / "t", days=0.05)
    assert vacuum(table).files["delta log"]


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, _ = busy(path)
    commit_domains(path, UNKNOWN)
    before = listing(path)
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge.newer.thing'.*newer lakemerge"):
        vacuum(table)
    assert listing(path) == {**before, CLOCK_FILE: 0}


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, _ = busy(path)
    foreign = {"readme.txt", "base/notes.txt", "_lakemerge/log/0-x", f"base/{0:020d}.parquet", "other/0.parquet"}
    for name in foreign:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x")
    vacuum(table)
    assert foreign <= listing(path).keys()


def test_deletes_go_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["compaction.vacuum"], "_BATCH", 10)
    path = tmp_path / "t"
    table, _ = busy(path)
    vacuum(table)
    for number in range(25):
        orphan(path, 1 + number % 3, days=0)
        (path / f"_lakemerge/log/{2:020d}-{KILLED}-{number}.parquet").write_bytes(b"x")
    store = CountingStore(LocalStore(path))
    handle = table.opened.handle
    counted = Handle(store, DeltaLog(store), handle.registry, handle.settings)
    found = LakeTable(counted, DeltaLog(store).snapshot(), pinned=False, spark=None)
    store.reset()
    assert vacuum(found).files["log"] == 28
    counts = store.counts()
    # By kind: 28 logs in three, three base files, three of minor compactions, three tombstones.
    assert (counts.calls["delete"], counts.files_deleted) == (3 + 3, 28 + 9)


def without_domains(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.is_null(table.column("domainMetadata"))), path)


@pytest.mark.parametrize("damage", [without_domains, lambda path: path.write_bytes(b"PAR1")], ids=["lost", "cut"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_checkpoint_that_readers_pass_over_is_no_reason_to_delete_commits(
    damage: Callable[[Path], None], saved: bool, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    table = create(path, properties={"delta.checkpointInterval": "10"})
    for k in range(12):
        table.upsert(frame([(k, 0, "x")]))
    if saved:
        table.savepoint("s", version=11)
    expected = state_of(path)
    checkpoint = path / "_delta_log" / f"{10:020d}.checkpoint.parquet"
    damage(checkpoint)
    age(path, days=40, folder="_delta_log")
    for _ in range(2):
        vacuum(LakeTable.open(path))
        assert state_of(path) == expected
    assert (path / "_delta_log" / f"{0:020d}.json").exists()


def test_one_time_that_is_wrong_makes_no_version_old(tmp_path: Path) -> None:
    """A clock that was set back, or a tool that keeps times of files: the newest commit looks old."""
    path = tmp_path / "t"
    table, seen = busy(path)
    newest = path / "_delta_log" / f"{table.version:020d}.json"
    then = newest.stat().st_mtime - 8 * 86_400
    os.utime(newest, (then, then))
    assert not LakeTable.open(path).vacuum(dry_run=False).paths
    check_readable(path, seen, 0)
