"""Processes that write, compact, expire, vacuum and read one table at once, with no retention at all.

The harshest setting: whatever is not in the latest version goes at once. Writers that are overtaken by a fence
are refused and repeat their write; nobody loses a record, and a savepoint reads as it did throughout.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import multiprocessing
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from lakemerge import CommitConflictError, LakeTable
from tests.property.batches import DDL, SETTINGS, batch_of, fold
from tests.property.test_concurrency import UPSERTS, Report, collect, guarded

WRITERS = 3
NOW = dt.timedelta(0)

_SPAWN = multiprocessing.get_context("spawn")


def write(path: str, writer: int, vacuumed: Event, reports: Queue[Report]) -> None:
    """The second half when a vacuum has deleted something, so that no run depends on who is faster."""
    table = LakeTable.open(path, settings=SETTINGS)
    for number in range(UPSERTS):
        if number == UPSERTS // 2:
            assert vacuumed.wait(240), "vacuum found nothing to delete although half of the writes have landed"
        name = f"{writer}.{number}"
        landed = False
        while not landed:
            with contextlib.suppress(CommitConflictError):
                result = table.upsert(batch_of(writer, number), txn=(f"writer {writer}", number), info={"batch": name})
                landed = True
        reports.put(("acknowledged", (name, result.version, result.mode)))


def serve(path: str, done: Event, reports: Queue[Report]) -> None:
    table = LakeTable.open(path, settings=SETTINGS)
    minor = False
    while not done.is_set():
        # Without any retention a vacuum is often faster.
        with contextlib.suppress(CommitConflictError):
            table.compact(minor=minor)
        minor = not minor
        with contextlib.suppress(CommitConflictError):
            table.expire_tombstones(retention=NOW)


def vacuum(path: str, vacuumed: Event, done: Event, reports: Queue[Report]) -> None:
    table = LakeTable.open(path, settings=SETTINGS)
    while not done.is_set():
        result = table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
        deleted = sum(result.files.values())
        reports.put(("compacted", deleted))
        if deleted:
            vacuumed.set()


def read(path: str, done: Event, reports: Queue[Report]) -> None:
    """The savepoint, which nobody may touch."""
    expected = sorted(batch_of(99, 0).to_pylist(), key=str)
    while not done.is_set():
        rows = sorted(LakeTable.open(path, savepoint="first").to_arrow().to_pylist(), key=str)
        reports.put(("read", len(rows)) if rows == expected else ("error", f"the savepoint reads {rows}"))


@pytest.mark.serial
def test_vacuum_beside_everybody(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = LakeTable.create(path, DDL, key=["k"], ordering=["o"], settings=SETTINGS)
    table.upsert(batch_of(99, 0))
    table.savepoint("first")
    reports: Queue[Report] = _SPAWN.Queue()
    done = _SPAWN.Event()
    vacuumed = _SPAWN.Event()
    writers = [
        _SPAWN.Process(target=guarded, args=(write, path, number, vacuumed, reports)) for number in range(WRITERS)
    ]
    others = [
        *(_SPAWN.Process(target=guarded, args=(run, path, done, reports)) for run in (serve, read)),
        *(_SPAWN.Process(target=guarded, args=(vacuum, path, vacuumed, done, reports)) for _ in range(2)),
    ]
    for process in (*writers, *others):
        process.start()
    found = collect(reports, writers=WRITERS, others=len(others), done=done)
    for process in (*writers, *others):
        process.join(60)
        assert process.exitcode == 0, found["error"]
    assert not found["error"], "\n".join(map(str, found["error"]))
    assert found["read"]
    assert sum(found["compacted"]), "vacuum found nothing to delete"

    order = sorted(found["acknowledged"], key=lambda fact: int(fact[1]))
    assert len(order) == len({name for name, _, _ in order}) == WRITERS * UPSERTS
    expected = fold(["99.0", *(name for name, _, _ in order)])
    for _ in range(2):
        rows = [tuple(row.values()) for row in LakeTable.open(path).to_arrow().to_pylist()]
        assert sorted(rows) == expected
        LakeTable.open(path).compact()
