"""Processes that count in one row by transactions, beside others that upsert and compact: nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import CommitConflictError, LakeTable

COUNTERS = 2

_SPAWN = multiprocessing.get_context("spawn")


def count(path: str, own: int, counts: int, done: Event, counted: Event, errors: Queue[str]) -> None:
    """Two counters: one that all share, and one of its own. Each call is known by its number."""
    table = LakeTable.open(path)
    for number in range(counts):
        txn = (f"counter {own}", number)
        table.update_where(f"k IN (1, {10 + own})", {"n": "n + 1"}, txn=txn, retries=1000)
        counted.set()


def note(path: str, done: Event, counted: Event, errors: Queue[str]) -> None:
    """Upserts another column of the counters' rows: after each count, so that counters go on however slow they are."""
    table = LakeTable.open(path)
    for number in itertools.count():
        while not counted.wait(0.1):
            if done.is_set():
                return
        counted.clear()
        table.upsert(pa.table({"k": [1], "note": [str(number)]}))


def stream(path: str, done: Event, counted: Event, errors: Queue[str]) -> None:
    """Upserts other keys, as fast as it can."""
    table = LakeTable.open(path)
    for number in itertools.count():
        if done.is_set():
            return
        table.upsert(pa.table({"k": list(range(5000, 5100)), "note": [str(number)] * 100}))


def compact(path: str, done: Event, counted: Event, errors: Queue[str]) -> None:
    table = LakeTable.open(path)
    for minor in itertools.cycle([True, False]):
        if done.wait(0.2):
            return
        with contextlib.suppress(CommitConflictError):
            table.compact(minor=minor)
        with contextlib.suppress(CommitConflictError):
            table.compact_logs()


def guarded(run: Callable[..., None], *arguments: Any) -> None:
    try:
        run(*arguments)
    except BaseException:
        arguments[-1].put(traceback.format_exc())
        raise


@pytest.mark.serial
@pytest.mark.long
def test_no_count_is_lost(tmp_path: Path) -> None:
    check_counters(str(tmp_path / "t"), counts=10, long=3)


def check_counters(path: str, *, counts: int, long: int) -> None:
    """
    :param counts: how often each counter counts.
    :param long: how many commands there are that take long.
    """
    table = LakeTable.create(
        path, "k BIGINT, n BIGINT, note STRING", key=["k"], buckets=2, properties={"lakemerge.maintenance": "off"}
    )
    keys = [1, *(10 + own for own in range(COUNTERS)), *range(1000, 2000)]
    table.upsert(pa.table({"k": keys, "n": [0] * len(keys), "note": ["-"] * len(keys)}))
    shared = _SPAWN.Event(), _SPAWN.Event(), _SPAWN.Queue()
    done, _, errors = shared
    others = [_SPAWN.Process(target=guarded, args=(run, path, *shared)) for run in (note, stream, compact)]
    counting = [_SPAWN.Process(target=guarded, args=(count, path, own, counts, *shared)) for own in range(COUNTERS)]
    for process in (*others, *counting):
        process.daemon = True
        process.start()
    # A long command beside all that lands at its first attempt, since nobody writes its keys.
    for _ in range(long):
        assert table.update_where("k >= 1000 AND k < 2000", {"n": "n + 1"}, retries=0).rows == 1000
    for process in counting:
        process.join(300)
    done.set()
    for process in others:
        process.join(60)
    assert errors.empty(), errors.get()
    assert [process.exitcode for process in (*counting, *others)] == [0] * 5
    rows = {row["k"]: row for row in LakeTable.open(path).to_arrow().to_pylist()}
    assert rows[1]["n"] == COUNTERS * counts
    assert [rows[10 + own]["n"] for own in range(COUNTERS)] == [counts] * COUNTERS
    assert {rows[key]["n"] for key in range(1000, 2000)} == {long}
    notes = [e for e in LakeTable.open(path).history() if e.operation == "UPSERT"]
    assert len(notes) > 2
    assert rows[1]["note"] != "-"
    assert LakeTable.check(path).ok
