"""An exception between any two lines after the request of a commit never costs a file that the log names.

Signal handlers (Celery, RQ, alarms), Ctrl-C and tools that raise into threads end a call anywhere. Here the exception
is raised at each line of the library that runs once the commit file is there, for every operation that deletes files
when it fails. ``make test`` takes some of the lines.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable, Settings
from lakemerge.ingest import Files
from mergers.interrupts import is_foreign, is_interrupt
from tests.interrupting import AlarmError, raised_in, raising_at
from tests.property.effort import examples
from tests.unit.faults import create, frame, state_of

SPREAD = Settings(threads=1, write_budget_bytes=400, inline_blocks=1)
OFF = {"lakemerge.maintenance": "off"}


@dataclass(frozen=True)
class Deed:
    """One operation."""

    name: str
    prepare: Callable[[Path], object]
    do: Callable[[Path], object]
    """On the table in the folder ``t``."""

    def __str__(self) -> str:
        return self.name


def _opened(folder: Path) -> LakeTable:
    return LakeTable.open(folder / "t", settings=SPREAD)


def _empty(folder: Path) -> LakeTable:
    return create(folder / "t", settings=SPREAD, buckets=2, properties=OFF)


def _dirty(folder: Path) -> LakeTable:
    table = _empty(folder)
    table.upsert(frame([(k, 1, "a") for k in range(6)]))
    for o in (2, 3, 4):
        table.upsert(frame([(k, o, "b") for k in range(o)]))
    return table


def _streamed() -> pa.RecordBatchReader:
    rows = frame([(k, 1, "a" * 100) for k in range(20)])
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=4))


def _landing(folder: Path) -> LakeTable:
    table = _dirty(folder)
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"k": 1, "o": 9, "v": "i"}\n{"k": 2, "o": 9, "v": "i"}\n')
    return table


def _ingested(folder: Path) -> None:
    _landing(folder).ingest("job", Files(folder / "in", format="json")).run()
    create(folder / "t2", buckets=2, properties=OFF)


def _ingest(folder: Path) -> object:
    return _opened(folder).ingest("job", Files(folder / "in", format="json")).run()


def _replay_windows(folder: Path) -> object:
    job = _opened(folder).ingest("job", Files(folder / "in", format="json"))
    return job.replay(into=folder / "t2")


def _replay(folder: Path) -> object:
    return _opened(folder).replay(into=folder / "t2")


DEEDS = [
    Deed("load", _empty, lambda f: _opened(f).upsert(frame([(1, 1, "a"), (2, 1, "a")]))),
    Deed("streamed load", _empty, lambda f: _opened(f).upsert(_streamed())),
    Deed("append", _dirty, lambda f: _opened(f).upsert(frame([(1, 9, "c")]))),
    Deed("delete_where", _dirty, lambda f: _opened(f).delete_where("v = 'a'")),
    Deed("overwrite", _dirty, lambda f: _opened(f).overwrite(frame([(1, 1, "n")]))),
    Deed("streamed overwrite", _dirty, lambda f: _opened(f).overwrite(_streamed())),
    Deed("compaction", _dirty, lambda f: _opened(f).compact()),
    Deed("minor compaction", _dirty, lambda f: _opened(f).compact(minor=True)),
    Deed("log compaction", _dirty, lambda f: _opened(f).compact_logs()),
    Deed("rescale", _dirty, lambda f: _opened(f).rescale(buckets=4)),
    Deed("ingest", _landing, _ingest),
    Deed("replay of windows", _ingested, _replay_windows),
    Deed("replay of records", _dirty, _replay),
]


# A file may be open at the line at which it raises. Python closes it and says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_an_exception_after_a_commit_was_sent_costs_no_file(deed: Deed, tmp_path: Path) -> None:
    deed.prepare(tmp_path / "ready")
    shutil.copytree(tmp_path / "ready", tmp_path / "count")
    with raising_at(tmp_path / "count", 0) as counted:
        deed.do(tmp_path / "count")
    assert counted["lines"] > 20
    done = {path.name: state_of(path) for path in (tmp_path / "count").glob("t*")}
    stride = max(1, counted["lines"] // max(10, examples(16)))
    raised = 0
    for number in range(1, counted["lines"] + 1, stride):
        folder = tmp_path / "at"
        shutil.copytree(tmp_path / "ready", folder)
        raised += raised_in(partial(deed.do, folder), folder, number)
        for path in folder.glob("t*"):
            found = LakeTable.check(path)
            assert found.ok, (number, found)
        deed.do(folder)
        again = {path.name: state_of(path) for path in folder.glob("t*")}
        assert again == done, number
        shutil.rmtree(folder)
    assert raised >= 8


def test_an_alarm_is_told_apart_from_errors(tmp_path: Path) -> None:
    class OnAlarm:
        def __call__(self, number: int, frame: FrameType | None) -> None:
            raise ValueError("time is up")

        def method(self, number: int, frame: FrameType | None) -> None:
            self(number, frame)

    def function(number: int, frame: FrameType | None) -> None:
        raise LakeMergeError("time is up")

    before = signal.getsignal(signal.SIGALRM)
    try:
        for handler in (OnAlarm(), OnAlarm().method, function):
            signal.signal(signal.SIGALRM, handler)
            with pytest.raises((ValueError, LakeMergeError), match="time is up") as caught:
                signal.raise_signal(signal.SIGALRM)
            assert is_interrupt(caught.value)
    finally:
        signal.signal(signal.SIGALRM, before)
    for error, foreign in (
        (ValueError("x"), False),
        (OSError(5, "x"), False),
        (TimeoutError(110, "x"), False),
        (TimeoutError("x"), True),
        (AlarmError(), True),
        (KeyboardInterrupt(), True),
        (LakeMergeError("x"), False),
    ):
        assert is_foreign(error) is foreign, error
