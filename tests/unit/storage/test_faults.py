"""What a table makes of each way in which a store fails. By lot and all at once: ``tests/property/test_storms.py``."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lakemerge import LakeMergeError, LakeTable, OutcomeUnknownError, Settings, StoreError, TableExistsError
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fault, FaultStore, Lag, Refuse, Short, Slow, Throttle
from mergers import default_registry
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

SPREAD = Settings(inline_blocks=1, threads=1, row_group_rows=2)
BASE = [(k, 10, "old") for k in range(6)]
NEW = [(1, 20, "new"), (7, 20, "new")]
HELD = [(1, 20, "new"), (2, 10, "old"), (3, 10, "old"), (4, 10, "old"), (5, 10, "old"), (0, 10, "old"), (7, 20, "new")]
WRITES: dict[str, Callable[[LakeTable], object]] = {
    "append": lambda table: table.upsert(frame([(8, 1, "more")])),
    "compaction": lambda table: table.compact(),
    "minor compaction": lambda table: table.compact(minor=True),
    "log compaction": lambda table: table.compact_logs(size_ratio=1e9),
    "rescale": lambda table: table.rescale(buckets=4),
}
SEVEN_TRIES = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Base files and live logs of two commits."""
    table = create(tmp_path / "t", buckets=2, settings=SPREAD)
    table.upsert(frame(BASE))
    table.upsert(frame(NEW[:1]))
    table.upsert(frame(NEW[1:]))
    assert state_of(tmp_path / "t") == sorted(HELD)
    return tmp_path / "t"


def rows_after(name: str) -> list[tuple[object, ...]]:
    return sorted([*HELD, (8, 1, "more")] if name == "append" else HELD)


def throttled(path: Path, *faults: Fault, naps: list[float]) -> LakeTable:
    store = FaultStore(LocalStore(path), *faults)
    handle = Handle(store, DeltaLog(store, sleep=naps.append), default_registry(), SPREAD)
    return LakeTable(handle, DeltaLog(LocalStore(path)).snapshot(), pinned=False, spark=None)


def test_a_throttled_commit_is_tried_again_ever_later(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    naps: list[float] = []
    faults = [Fault(action=Throttle(), method="put_if_absent", at=at) for at in (1, 2, 3)]
    table = throttled(path, *faults, naps=naps)
    with caplog.at_level(logging.WARNING, logger="lakemerge"):
        assert table.upsert(frame([(8, 1, "more")])).version == 4
    assert naps == SEVEN_TRIES[:3]
    told = [record.getMessage() for record in caplog.records]
    for number, (text, nap) in enumerate(zip(told, naps, strict=True), start=1):
        assert f"{4:020d}.json (try {number} of 7, next after {nap} s)" in text
    assert state_of(path) == rows_after("append")
    assert [entry.version for entry in table.history()] == [4, 3, 2, 1, 0]


def test_a_store_that_throttles_for_good_ends_in_an_unknown_outcome(path: Path) -> None:
    """The tries are bounded; the error says which file tells, and the file does."""
    naps: list[float] = []
    table = throttled(path, Fault(action=Throttle(), method="put_if_absent", lasting=True), naps=naps)
    with pytest.raises(OutcomeUnknownError, match=r"00000000000000000004\.json was written.* Look for txnId") as caught:
        table.upsert(frame([(8, 1, "more")]))
    assert naps == SEVEN_TRIES
    assert caught.value.version == 4
    entries = {entry.version: entry.info["txnId"] for entry in LakeTable.open(path).history()}
    assert 4 not in entries
    assert caught.value.txn_id not in entries.values()
    assert state_of(path) == sorted(HELD)


@pytest.mark.parametrize("method", ["list", "open_input", "read"])
def test_a_throttled_read_is_the_stores_error(path: Path, method: str) -> None:
    table, _ = open_over(path, Fault(action=Throttle(), method=method), settings=SPREAD)
    with pytest.raises(StoreError, match="SlowDown"):
        table.to_arrow() if method != "list" else table.history()
    assert rows_of(table.to_arrow()) == sorted(HELD)


@pytest.mark.parametrize("name", ["read", *WRITES])
def test_a_short_read_gives_no_wrong_row(name: str, path: Path, tmp_path: Path) -> None:
    """Each read of each file in turn."""
    outcomes = set()
    for at in range(1, 200):
        copy = copied(path, tmp_path / str(at))
        fault = Fault(action=Short(), method="read", at=at, after=True)
        table, store = open_over(copy, fault, settings=SPREAD)
        refused = None
        try:
            if name == "read":
                assert rows_of(table.to_arrow()) == sorted(HELD)
            else:
                WRITES[name](table)
        except LakeMergeError as error:
            refused = str(error)
        assert refused is None or ".parquet" in refused
        assert state_of(copy) == (rows_after(name) if refused is None else sorted(HELD))
        outcomes.add("done" if refused is None else "refused")
        if not store.injected.total():
            break
    else:
        raise AssertionError("more reads than expected")
    assert outcomes == ({"done"} if name == "append" else {"done", "refused"})


@pytest.mark.parametrize("newest", [1, 3, 100])
@pytest.mark.parametrize("name", WRITES)
def test_a_listing_that_lags_loses_nothing(name: str, newest: int, path: Path) -> None:
    """Every listing lags: a caller who gets an answer has what it says, one who gets an error has not."""
    stale = Fault(action=Lag(newest), method="list", after=True, lasting=True)
    table, _ = open_over(path, stale, settings=SPREAD)
    try:
        WRITES[name](table)
    except LakeMergeError:
        assert state_of(path) == sorted(HELD)
    else:
        assert state_of(path) == rows_after(name)
    table, _ = open_over(path, stale, settings=SPREAD)
    with contextlib.suppress(LakeMergeError):
        table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert state_of(path) in (sorted(HELD), rows_after(name))
    assert LakeTable.check(path).ok


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["read", *WRITES])
def test_a_slow_store_changes_no_answer(name: str, after: bool, path: Path) -> None:
    """Each call takes half a minute, in which somebody else could have done whatever he likes; nobody does."""
    naps: list[float] = []
    slow = Slow(30.0, naps.append)
    faults = [Fault(action=slow, method=method, after=after, lasting=True) for method in (None, "read", "write")]
    table, store = open_over(path, *faults, settings=SPREAD)
    if name == "read":
        assert rows_of(table.to_arrow()) == sorted(HELD)
    else:
        WRITES[name](table)
    assert naps == [30.0] * len(store.calls) == [30.0] * store.injected.total()
    assert {"read", "write"} & {call.method for call in store.calls}
    assert state_of(path) == (sorted(HELD) if name == "read" else rows_after(name))


@pytest.mark.parametrize(("after", "version"), [(False, 5), (True, 4)])
def test_a_commit_that_takes_long_may_be_overtaken(after: bool, version: int, path: Path) -> None:
    """Somebody else writes while the store takes its time: with the request, then he was first; or with the answer,
    then the slow one was. Both land once."""

    def nap(_: float) -> None:
        LakeTable.open(path).upsert(frame([(9, 1, "meanwhile")]))

    table, store = open_over(path, Fault(action=Slow(30.0, nap), method="put_if_absent", after=after), settings=SPREAD)
    assert table.upsert(frame([(8, 1, "more")])).version == version
    assert store.injected.total() == 1
    assert state_of(path) == sorted([*rows_after("append"), (9, 1, "meanwhile")])
    assert [entry.version for entry in table.history()] == [5, 4, 3, 2, 1, 0]


def test_no_table_is_made_over_one_that_a_listing_does_not_show(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lagging = FaultStore(LocalStore(path), Fault(action=Lag(100), method="list", after=True))
    monkeypatch.setattr("lakemerge.table.opening.open_store", lambda url, options: lagging)
    with pytest.raises(TableExistsError):
        create(path)
    assert state_of(path) == sorted(HELD)


@pytest.mark.parametrize("method", ["open_output", "write", "publish", "put_if_absent"])
@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_leaves_nothing_and_says_so(name: str, method: str, path: Path) -> None:
    before = set(listing(path))
    table, _ = open_over(path, Fault(action=Refuse(errno.ENOSPC), method=method, lasting=True), settings=SPREAD)
    with pytest.raises((OSError, StoreError), match="No space left on device"):
        WRITES[name](table)
    assert {file for file in listing(path) if not file.startswith("_delta_log/")} <= before
    assert state_of(path) == sorted(HELD)
    WRITES[name](LakeTable.open(path, settings=SPREAD))
    assert state_of(path) == rows_after(name)


def test_a_read_only_store_is_read_and_not_written(path: Path) -> None:
    refusals = [
        Fault(action=Refuse(errno.EROFS), method=method, lasting=True)
        for method in ("put", "put_if_absent", "delete", "open_output", "clean_up")
    ]
    table, _ = open_over(path, *refusals, settings=SPREAD)
    before = dict(listing(path))
    assert rows_of(table.to_arrow()) == sorted(HELD)
    assert table.get({"k": 7}) == {"k": 7, "o": 20, "v": "new"}
    assert table.changes(0).read_all().num_rows > 0
    for write in WRITES.values():
        with pytest.raises((OSError, StoreError), match="Read-only file system"):
            write(table)
    with pytest.raises(OSError, match="Read-only file system"):
        table.vacuum(dry_run=False)
    assert listing(path) == before


def test_a_store_without_put_if_absent_is_read_and_not_written(path: Path) -> None:
    """Whatever fsspec knows; here a file system in memory."""
    memory = importlib.import_module("fsspec").filesystem("memory")
    for file in listing(path):
        memory.pipe_file(f"/read-only/{file}", (path / file).read_bytes())
    table = LakeTable.open("memory://read-only", settings=SPREAD)
    before = sorted(memory.find("/read-only"))
    assert rows_of(table.to_arrow()) == sorted(HELD)
    for write in WRITES.values():
        with pytest.raises(StoreError, match="cannot be written: keep tables that change elsewhere"):
            write(table)
    assert sorted(memory.find("/read-only")) == before
    memory.rm("/read-only", recursive=True)


TORN = """
import os
import resource
import sys
from lakemerge import LakeTable, Settings
from tests.unit.storage.test_faults import SPREAD, WRITES
path, name, how = sys.argv[1:]
table = LakeTable.open(path, settings=SPREAD)
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
else:
    setattr(os, how, lambda *_: os._exit(77))
try:
    WRITES[name](table)
except OSError as error:
    sys.exit(error.errno)
"""


def torn(path: Path, name: str, how: str) -> int:
    """The exit status of a process that does it, and dies where it would link or rename, or may write files of 300
    bytes alone."""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", TORN, str(path), name, how]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    assert done.returncode, done.stderr
    return done.returncode


@pytest.mark.parametrize("name", ["append", "compaction"])
@pytest.mark.parametrize("how", ["link", "replace"])
def test_a_crash_between_writing_and_naming_a_file(how: str, name: str, path: Path) -> None:
    """The temporary file stays, hidden; the table is as it was; a vacuum takes it, and what else stayed."""
    before = set(listing(path))
    assert torn(path, name, how) == 77
    left = [file for file in path.rglob(".lakemerge-tmp-*") if file.stat().st_size]
    assert len(left) == 1
    assert state_of(path) == sorted(HELD)
    assert LakeTable.check(path).ok
    # A compaction reserves the numbers of its files by a commit of its own, which is the first to be torn.
    orphans = {file for file in listing(path) if not file.startswith("_delta_log/")} - before
    assert bool(orphans) == (name == "append" and how == "link")
    WRITES[name](LakeTable.open(path, settings=SPREAD))
    for file in path.rglob("*"):
        os.utime(file, (file.stat().st_mtime - 8 * 86_400,) * 2)
    LakeTable.open(path).upsert(frame([]))
    LakeTable.open(path).vacuum(dry_run=False)
    LakeTable.open(path).vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert not [*path.rglob(".lakemerge-tmp-*")]
    assert not orphans & set(listing(path))
    assert state_of(path) == rows_after(name)


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows cannot limit the size of the files that a process writes (RLIMIT_FSIZE)"
)
def test_a_write_that_the_system_cuts_short(path: Path) -> None:
    """Not by our store's double: the operating system takes 300 bytes of a file and refuses the rest."""
    before = listing(path)
    assert torn(path, "append", "limit") == errno.EFBIG
    assert listing(path) == before
    assert not [*path.rglob(".lakemerge-tmp-*")]
    assert state_of(path) == sorted(HELD)


def copied(path: Path, to: Path) -> Path:
    store = LocalStore(to)
    for file in listing(path):
        store.put(file, (path / file).read_bytes())
    return to


def test_a_fault_names_what_it_does(path: Path) -> None:
    """The kinds by themselves: an answer in place of the store's, or after it, without the effect or with it."""
    store = FaultStore(
        LocalStore(path),
        Fault(action=Throttle(), method="put_if_absent"),
        Fault(action=Short(), method="read", after=True),
        Fault(action=Lag(2), method="list", after=True),
    )
    assert store.put_if_absent("a", b"1").value == "unknown"
    assert store.stat("a") is None
    store.put("a", b"12345678")
    with store.open_input("a") as file:
        assert file.read(8) == b"1234"
    files = [file.path for file in LocalStore(path).list("")]
    assert len([*store.list("")]) == len(files) - 2
    assert [file.path for file in store.list("")] == files
    assert store.injected == {"put_if_absent": 1, "read": 1, "list": 1}
    assert Call("read", "a") in store.calls
