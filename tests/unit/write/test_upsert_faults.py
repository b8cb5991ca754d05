"""Every store call of every kind of write fails once: the table stands before or after it, never between."""

from __future__ import annotations

import datetime as dt
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import CommitConflictError, LakeMergeError, LakeTable, OutcomeUnknownError, Settings, StoreError
from lakemerge.storage import LocalStore
from lakemerge.storage.base import Put
from lakemerge.storage.clock import CLOCK_FILE
from lakemerge.testing.faults import Call, Fail, Fault, FaultStore
from tests.unit.faults import Row, create, frame, listing, open_over, state_of

SPREAD = Settings(inline_blocks=1, threads=1, write_budget_bytes=100)
"""Several log blocks make a block index file; one thread makes the order of calls the same in every run. A frame that
is not in memory exceeds the budget."""

OLD = [(k, 10, "old") for k in range(6)]
NEW = [(1, 20, "new"), (2, 5, "stale"), (7, 20, "new")]


@dataclass(frozen=True)
class Deed:
    """One kind of write: the table before it, what is done, and the rows after it."""

    name: str
    prepare: Callable[[Path], None]
    do: Callable[[LakeTable], object]
    after: list[Row]

    def __str__(self) -> str:
        return self.name


def streamed(rows: list[Row]) -> pa.RecordBatchReader:
    """A frame that is not in memory, with a batch for each row. A first load packs it."""
    whole = frame(rows)
    return pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches(max_chunksize=1))


def _empty(path: Path) -> None:
    create(path, buckets=2, settings=SPREAD)


def _loaded(path: Path) -> None:
    _empty(path)
    LakeTable.open(path).upsert(frame(OLD))


def _dirty(path: Path) -> None:
    _loaded(path)
    LakeTable.open(path, settings=SPREAD).upsert(frame(NEW))
    LakeTable.open(path, settings=SPREAD).delete(frame([(3, 11), (8, 11)], ["k", "o"]))


MERGED = sorted([(0, 10, "old"), (1, 20, "new"), (2, 10, "old"), (7, 20, "new"), (4, 10, "old"), (5, 10, "old")])
UPSERTED = sorted([*MERGED, (3, 10, "old")])
MIXED = frame([(1, 20, "x", "+U"), (2, 20, "y", "-D"), (3, 20, "z", "+I")], ["k", "o", "v", "op"])

DEEDS = [
    Deed("load", _empty, lambda table: table.upsert(frame(OLD)), OLD),
    Deed("streamed load", _empty, lambda table: table.upsert(streamed(OLD)), OLD),
    Deed(
        "load with deletes",
        _empty,
        lambda table: table.upsert(MIXED, kind_column="op"),
        [(1, 20, "x"), (3, 20, "z")],
    ),
    Deed("append", _loaded, lambda table: table.upsert(frame(NEW)), UPSERTED),
    Deed("append with txn", _loaded, lambda table: table.upsert(frame(NEW), txn=("app", 1)), UPSERTED),
    Deed("compaction", _dirty, lambda table: table.compact(), MERGED),
    Deed("minor compaction", _dirty, lambda table: table.compact(minor=True), MERGED),
    Deed("delete_where", _dirty, lambda table: table.delete_where("v = 'old'"), [(1, 20, "new"), (7, 20, "new")]),
    Deed("overwrite", _dirty, lambda table: table.overwrite(frame(OLD)), OLD),
    Deed("streamed overwrite", _dirty, lambda table: table.overwrite(streamed(NEW)), NEW),
]


State = tuple[list[Row], int]


def whole(path: Path) -> State:
    """The rows, and how many commits made them; reservations of file ordinals change nothing."""
    operations = [entry.operation for entry in LakeTable.open(path).history()]
    return state_of(path), len(operations) - operations.count("RESERVE FILE NUMBERS")


@dataclass(frozen=True)
class Stage:
    """A deed's table, ready to be copied, and the calls that the deed makes on it."""

    deed: Deed
    folder: Path
    before: State
    after: State
    files: frozenset[str]
    calls: tuple[Call, ...]

    @staticmethod
    def of(deed: Deed, folder: Path) -> Stage:
        deed.prepare(folder / "ready")
        before, files = whole(folder / "ready"), frozenset(listing(folder / "ready"))
        shutil.copytree(folder / "ready", folder / "done")
        table, store = open_over(folder / "done", settings=SPREAD)
        deed.do(table)
        after = whole(folder / "done")
        assert after == (sorted(deed.after), before[1] + 1)
        return Stage(deed, folder, before, after, files, store.calls)

    def copies(self) -> Iterator[tuple[int, bool, Path, str]]:
        """Per call, and before and after its effect: a table of its own."""
        for number, call in enumerate(self.calls, start=1):
            for after in (False, True):
                path = self.folder / f"{number} {after}"
                shutil.copytree(self.folder / "ready", path)
                yield number, after, path, f"call {number} {call}, {'after' if after else 'before'} its effect"
                shutil.rmtree(path)


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_a_store_that_fails_once(deed: Deed, tmp_path: Path) -> None:
    """Errors at each call in turn. A caller who gets no error has the write; one who gets any but
    OutcomeUnknownError has not, and then no file is left of it, unless it was the cleaning that failed."""
    stage = Stage.of(deed, tmp_path)
    outcomes = set()
    for number, after, path, about in stage.copies():
        fault = Fault(action=Fail(ConnectionError("gone")), at=number, after=after)
        outcome = attempt(stage, path, fault, about)
        outcomes.add(outcome)
        # Reservations of ordinals and checkpoints are commits and log files of their own. The clock is never deleted.
        left = {file for file in listing(path) if not file.startswith("_delta_log/")} - stage.files - {CLOCK_FILE}
        if outcome == "failed" and stage.calls[number - 1].method not in ("list", "delete"):
            assert not left, f"{about}: left {left}"
        deed.do(open_over(path, settings=SPREAD)[0])
        assert state_of(path) == sorted(deed.after), f"{about}, and then again"
    assert {"failed", "done"} <= outcomes


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_a_store_that_goes_down(deed: Deed, tmp_path: Path) -> None:
    """As above, and every later call fails too. Where the commit is the last call, nothing can fail after it."""
    stage = Stage.of(deed, tmp_path)
    last = stage.calls[-1]
    # A stat looks whether the folder has moved. A checkpoint that fails is only logged.
    goes_on = last.method not in ("put_if_absent", "stat") or last.path.endswith("_last_checkpoint")
    outcomes = set()
    for number, after, path, about in stage.copies():
        fault = Fault(action=Fail(ConnectionError("gone")), at=number, after=after, lasting=True)
        outcomes.add(attempt(stage, path, fault, about))
    assert outcomes == {"failed", "unknown", *(["done"] if goes_on else [])}


def attempt(stage: Stage, path: Path, fault: Fault, about: str) -> str:
    """Do the deed with the fault; hold what each kind of outcome promises."""
    table, _ = open_over(path, fault, settings=SPREAD)
    try:
        stage.deed.do(table)
    except OutcomeUnknownError:
        assert whole(path) in (stage.before, stage.after), about
        return "unknown"
    except (ConnectionError, LakeMergeError):
        assert whole(path) == stage.before, about
        return "failed"
    assert whole(path) == stage.after, about
    return "done"


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_an_interrupt(deed: Deed, tmp_path: Path) -> None:
    """What is no Exception says nothing of the commit: files may stay, the rows are whole."""

    class Interrupt(BaseException):
        pass

    def interrupt(call: Call) -> None:
        raise Interrupt(call)

    stage = Stage.of(deed, tmp_path)
    states = set()
    for number, after, path, about in stage.copies():
        table, _ = open_over(path, Fault(action=interrupt, at=number, after=after), settings=SPREAD)
        with pytest.raises(Interrupt):
            deed.do(table)
        state = whole(path)
        states.add(state == stage.before)
        assert state in (stage.before, stage.after), about
    assert states == {True, False}


KILLED = """
import sys
import threading
import time
from pathlib import Path
from lakemerge.testing.faults import Fault, Kill
from tests.unit.faults import open_over
from tests.unit.write.test_upsert_faults import DEEDS, SPREAD
name, path, method, where, after = sys.argv[1:]
deed = next(deed for deed in DEEDS if deed.name == name)
fault = Fault(action=Kill(77), method=method, path=where, after=after == "after")
deed.do(open_over(Path(path), fault, settings=SPREAD)[0])
"""


@pytest.mark.parametrize(
    ("name", "method", "where", "after", "lands"),
    [
        ("load", "publish", "base/", "after", False),
        ("load", "put_if_absent", "_delta_log", "after", True),
        ("streamed load", "publish", "base/", "after", False),
        ("append", "put_if_absent", "_delta_log", "before", False),
        ("compaction", "put_if_absent", "00000000000000000005", "after", True),
    ],
)
def test_a_killed_process(name: str, method: str, where: str, after: str, lands: bool, tmp_path: Path) -> None:
    deed = next(deed for deed in DEEDS if deed.name == name)
    path = tmp_path / "table"
    deed.prepare(path)
    before = state_of(path)
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", KILLED, name, str(path), method, where, after]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    assert done.returncode == 77, done.stderr
    assert state_of(path) == (sorted(deed.after) if lands else before)
    deed.do(LakeTable.open(path))
    assert state_of(path) == sorted(deed.after)


@pytest.mark.parametrize("answer", [Put.UNKNOWN, Put.EXISTS, TimeoutError(errno.ETIMEDOUT, "no answer")], ids=repr)
def test_a_lost_answer_of_the_commit_is_no_second_commit(answer: Put | Exception, tmp_path: Path) -> None:
    """The commit landed and its answer was lost: the write succeeds, once."""

    class Lossy(FaultStore):
        def put_if_absent(self, path: str, data: bytes) -> Put:
            landed = super().put_if_absent(path, data)
            assert landed is Put.CREATED
            if isinstance(answer, Exception):
                raise answer
            return answer

    path = tmp_path / "table"
    _loaded(path)
    table, _ = open_over(path)
    store = Lossy(LocalStore(path))
    object.__setattr__(table.opened.handle, "store", store)
    table.opened.handle.log.store = store
    result = table.upsert(frame(NEW))
    assert (result.version, result.mode) == (2, "append")
    assert [entry.operation for entry in table.history()] == ["UPSERT", "UPSERT", "CREATE TABLE"]
    assert state_of(path) == UPSERTED


def test_an_unknown_outcome_keeps_the_files(tmp_path: Path) -> None:
    """Every answer about the commit is lost, and it did land: the error says where to look."""
    path = tmp_path / "table"
    _loaded(path)
    gone = Fail(ConnectionError("gone"))
    commit = f"{2:020d}.json"
    table, _ = open_over(
        path,
        Fault(action=gone, method="put_if_absent", path=commit, after=True),
        Fault(action=gone, method="get", path=commit, lasting=True),
    )
    with pytest.raises(OutcomeUnknownError) as caught:
        table.upsert(frame(NEW))
    assert caught.value.version == 2
    assert str(caught.value.txn_id) in LakeTable.open(path).history()[0].info.values()
    assert state_of(path) == UPSERTED


def test_a_load_whose_clean_up_fails_is_still_a_load(tmp_path: Path) -> None:
    """The packed logs of a load are scratch; failing to delete them must not undo what was committed."""
    path = tmp_path / "table"
    _empty(path)
    table, store = open_over(path, Fault(action=Fail(OSError("busy")), method="delete"), settings=SPREAD)
    assert table.upsert(streamed(OLD)).mode == "load"
    assert any(call.method == "delete" for call in store.calls)
    assert state_of(path) == OLD
    assert not table.compact().files


def test_a_load_whose_packed_rows_a_vacuum_took_is_a_conflict(tmp_path: Path) -> None:
    """It ran for longer than the retention: that is no damage, and it can be repeated."""
    path = tmp_path / "table"
    _empty(path)

    def overtake(call: Call) -> None:
        other = LakeTable.open(path)
        other.upsert(frame([(9, 1, "other")]))
        assert other.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False).files == {"log": 2}

    table, _ = open_over(path, Fault(action=overtake, method="open_input", path="_lakemerge/log"), settings=SPREAD)
    with pytest.raises(CommitConflictError, match="before the vacuum fence"):
        table.upsert(streamed(OLD))
    assert state_of(path) == [(9, 1, "other")]
    table.upsert(frame(OLD))
    assert state_of(path) == sorted([*OLD, (9, 1, "other")])


def test_a_disk_that_is_full_at_the_commit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is sure that nothing was created: the error is its own, at once, and no file stays."""
    path = tmp_path / "table"
    _loaded(path)
    before = listing(path)

    def link(_source: str, _target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        with pytest.raises(StoreError, match=r"No space left on device.*free some space"):
            LakeTable.open(path).upsert(frame(NEW))
    assert listing(path) == before
    LakeTable.open(path).upsert(frame(NEW))
    assert state_of(path) == UPSERTED


def test_a_load_that_fails_in_one_thread_waits_for_the_others(tmp_path: Path) -> None:
    """What they still write when the first has failed is deleted as well."""
    path = tmp_path / "table"
    create(path, buckets=4)
    before = listing(path)
    failed = threading.Event()

    def fail(call: Call) -> None:
        failed.set()
        raise ConnectionError("gone")

    def late(call: Call) -> None:
        assert failed.wait(60)
        time.sleep(0.2)

    table, store = open_over(
        path,
        Fault(action=fail, method="publish", path="base/"),
        Fault(action=late, method="publish", path="base/", at=2, lasting=True),
        settings=Settings(threads=4),
    )
    with pytest.raises(ConnectionError, match="gone"):
        table.upsert(frame([(k, 1, "x") for k in range(40)]))
    assert sum(call.method == "publish" and "base/" in call.path for call in store.calls) > 1
    assert listing(path) == before
