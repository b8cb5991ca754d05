"""Operating-system processes that write, compact and read one local table at the same time."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from lakemerge import CommitConflictError, LakeTable
from lakemerge.delta import AddFile
from tests.property.batches import BATCH, DDL, SETTINGS, batch_of, fold

WRITERS = int(os.environ.get("LAKEMERGE_WRITERS", "6"))
UPSERTS = 10

_SPAWN = multiprocessing.get_context("spawn")
"""As on other systems; a fork would copy the threads of Arrow in an unknown state."""

Report = tuple[str, object]


@dataclass(frozen=True)
class Stage:
    """Who has come to something. Each service begins when the one that slower ones lose against has not yet
    begun, and writers go on past their middle when all have, so that no run depends on who is faster."""

    done: Event
    packed: Event
    compacted: Event
    rescaled: Event

    def await_services(self) -> None:
        for event in (self.packed, self.compacted, self.rescaled):
            assert event.wait(240), "a service came to nothing although half of the writes have landed"


def write(path: str, writer: int, stage: Stage, reports: Queue[Report]) -> None:
    table = LakeTable.open(path, settings=SETTINGS)
    for number in range(UPSERTS):
        if number == UPSERTS // 2:
            stage.await_services()
        result = table.upsert(
            batch_of(writer, number), txn=(f"writer {writer}", number), info={"batch": f"{writer}.{number}"}
        )
        reports.put(("acknowledged", (f"{writer}.{number}", result.version, result.mode)))


def compact(path: str, stage: Stage, reports: Queue[Report]) -> None:
    while not stage.packed.wait(0.1):
        if stage.done.is_set():  # no service came to anything, which the writers tell
            return
    table = LakeTable.open(path, settings=SETTINGS)
    for minor in itertools.cycle([True, True, False]):
        if stage.done.is_set():
            return
        try:
            result = table.compact(minor=minor)
        except CommitConflictError as error:  # the bucket count changed
            reports.put(("lost", str(error)))
            continue
        reports.put(("compacted", result.file_slices))
        reports.put(("lost", len(result.lost)))  # the other compactor was first
        if result.file_slices:
            stage.compacted.set()


def reshape(path: str, stage: Stage, reports: Queue[Report]) -> None:
    """Logs into logs; then also buckets into more or fewer."""
    table = LakeTable.open(path, settings=SETTINGS)
    for buckets in itertools.cycle([None, None, 4, None, 32, None, 8]):
        if stage.done.is_set():
            return
        try:
            if buckets is None:
                packed = table.compact_logs().commits
                reports.put(("packed", packed))
                if packed:
                    stage.packed.set()
            elif stage.compacted.is_set():
                rescaled = table.rescale(buckets=buckets).written_buckets
                reports.put(("rescaled", rescaled))
                if rescaled:
                    stage.rescaled.set()
        except CommitConflictError as error:  # a compactor was first
            reports.put(("lost", str(error)))


def read(path: str, stage: Stage, reports: Queue[Report]) -> None:
    """Every version seen holds whole batches, and all that the versions before it held."""
    table = LakeTable.open(path, settings=SETTINGS)
    last: set[str] = set()
    version = -1
    while not stage.done.is_set():
        rows = [row for row in table.to_arrow().to_pylist() if row["k"].startswith("own")]
        counts = Counter(row["batch"] for row in rows)
        torn = {batch: count for batch, count in counts.items() if count != BATCH}
        if torn or not last <= counts.keys() or len({row["k"] for row in rows}) != len(rows):
            reports.put(("error", f"after version {version}: torn {torn}, lost {last - counts.keys()}"))
        last, version = set(counts), table.version
        reports.put(("read", len(counts)))


def guarded(run: Callable[..., None], *arguments: Any) -> None:
    reports = arguments[-1]
    try:
        run(*arguments)
    except BaseException:
        reports.put(("error", traceback.format_exc()))
        raise
    finally:
        reports.put(("ended", run.__name__))


@pytest.mark.serial
def test_many_processes_on_one_table(tmp_path: Path) -> None:
    check_many_processes(str(tmp_path / "table"), writers=WRITERS)


def check_many_processes(path: str, *, writers: int) -> None:
    """A new table, so many processes that write it, two that compact, one that repacks and rescales, one that reads.

    Writers maintain nothing: they could leave one log when half of the writes have landed, and none to pack it with."""
    properties = {"lakemerge.maintenance": "off"}
    table = LakeTable.create(path, DDL, key=["k"], ordering=["o"], properties=properties, settings=SETTINGS)
    reports: Queue[Report] = _SPAWN.Queue()
    stage = Stage(*(_SPAWN.Event() for _ in range(4)))
    writing = [_SPAWN.Process(target=guarded, args=(write, path, number, stage, reports)) for number in range(writers)]
    others = [
        _SPAWN.Process(target=guarded, args=(run, path, stage, reports)) for run in (compact, compact, reshape, read)
    ]
    for process in (*writing, *others):
        process.start()
    found = collect(reports, writers=writers, others=len(others), done=stage.done)
    for process in (*writing, *others):
        process.join(60)
        assert process.exitcode == 0, found["error"]
    assert not found["error"], "\n".join(map(str, found["error"]))
    assert found["read"]
    for what in ("compacted", "packed", "rescaled"):
        assert sum(count for count in found[what] if isinstance(count, int)), f"nothing was {what}"

    acknowledged: dict[str, tuple[int, str]] = {name: rest for name, *rest in found["acknowledged"]}
    names = {f"{writer}.{number}" for writer in range(writers) for number in range(UPSERTS)}
    assert acknowledged.keys() == names
    order = sorted(names, key=lambda name: acknowledged[name][0])
    assert len({version for version, _ in acknowledged.values()}) == len(names), "a version of its own for each"
    by_info = {entry.info["batch"]: entry.version for entry in table.history() if "batch" in entry.info}
    assert by_info == {name: version for name, (version, _) in acknowledged.items()}
    assert [mode for _, mode in acknowledged.values()].count("load") <= 1

    expected = fold(order)
    for _ in range(2):
        rows = [tuple(row.values()) for row in LakeTable.open(path).to_arrow().to_pylist()]
        assert sorted(rows) == expected
        LakeTable.open(path).compact()
    assert not LakeTable.open(path).opened.view.log_commits
    check_files(path)


def collect(reports: Queue[Report], *, writers: int, others: int, done: Event) -> dict[str, list[Any]]:
    """All reports by kind; the others are told to stop when the last writer has ended."""
    kinds = ("acknowledged", "compacted", "ended", "error", "lost", "packed", "read", "rescaled")
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    while len(found["ended"]) < writers + others:
        kind, fact = reports.get(timeout=240)
        found[kind].append(fact)
        if found["ended"].count("write") == writers:
            done.set()
    return found


def check_files(path: str) -> None:
    """Base files are those of some version: whoever lost a race took its files away."""
    log = LakeTable.open(path).opened.handle.log
    actions = [action for _, commit in log.commits(since=-1) for action in commit]
    named = {action.path for action in actions if isinstance(action, AddFile)}
    assert {stat.path for stat in log.store.list("base")} == named
