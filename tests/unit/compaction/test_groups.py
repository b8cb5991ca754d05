"""Compaction group by group: killed, overtaken, stopped; and what it costs in bytes and memory."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compaction.plan.plan import plan_compaction
from compaction.run.run import run_plan
from lakemerge import CommitConflictError, CompactionStrategy, LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Call, Fault
from mergers import default_registry
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

ROOT = Path(__file__).resolve().parents[3]
ONE_BY_ONE = Settings(target_commit_bytes=1, threads=1)
"""Every bucket is committed by itself."""
NAMES = ["p", "k", "o", "v"]
PARTS = 5


def dirty(path: Path) -> LakeTable:
    """Five partitions, each a base file and a log; in version order p4, p3, ..."""
    table = create(
        path, schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"], settings=ONE_BY_ONE
    )
    table.upsert(frame([(f"p{n}", k, 0, "base") for n in range(PARTS) for k in range(10)], NAMES))
    for n in reversed(range(PARTS)):
        table.upsert(frame([(f"p{n}", k, 1, "new") for k in range(5)], NAMES))
    return table


def compacted(path: Path) -> list[str]:
    """Partitions without live logs."""
    return sorted(
        file_slice.bucket_id.partition[0] or ""
        for file_slice in LakeTable.open(path).opened.view.file_slices
        if not file_slice.blocks
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from lakemerge import Settings
from lakemerge.testing.faults import Fault
from tests.unit.faults import open_over

def kill(call):
    os.kill(os.getpid(), signal.SIGKILL)

where = {"base": ("open_output", "base/"), "commit": ("put_if_absent", "")}[sys.argv[2]]
fault = Fault(action=kill, method=where[0], path=where[1], at=int(sys.argv[3]))
table, _ = open_over(Path(sys.argv[1]), fault, settings=Settings(target_commit_bytes=1, threads=1))
table.compact(minor=sys.argv[4] == "minor")
"""


@pytest.mark.parametrize(("what", "at", "done"), [("base", 3, 2), ("commit", 4, 2)])
def test_a_killed_run_keeps_what_it_committed_and_the_next_does_the_rest(
    tmp_path: Path, what: str, at: int, done: int
) -> None:
    """Killed when it begins the third base file; killed at its fourth commit, after that of the ordinals and of two
    groups."""
    path = tmp_path / "t"
    dirty(path)
    expected = state_of(path)
    command = [sys.executable, "-c", KILLED, str(path), what, str(at), "full"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert compacted(path) == ["p3", "p4"][:done], "the oldest first"
    assert state_of(path) == expected
    table = LakeTable.open(path, settings=ONE_BY_ONE)
    result = table.compact()
    assert (result.commits, result.file_slices, result.lost) == (PARTS - done, PARTS - done, ())
    assert state_of(path) == expected
    assert not table.opened.view.log_commits
    assert [entry.operation for entry in table.history()].count("COMPACT") == PARTS


def test_a_group_that_another_run_was_first_with_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dirty(path)
    expected = state_of(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact(where="p = 'p3'")

    table, _ = open_over(path, Fault(action=overtake, method="open_output", path="base/", at=2), settings=ONE_BY_ONE)
    result = table.compact()
    assert (result.commits, result.file_slices, len(result.lost), result.stopped) == (PARTS - 1, PARTS - 1, 1, False)
    assert "compacted by somebody else" in result.lost[0].reason
    assert "lost=1" in repr(result)
    assert ("lost", f"1 bucket: {result.lost[0].reason}") in result.report()
    assert state_of(path) == expected
    view = LakeTable.open(path).opened.view
    assert not view.log_commits
    left = {file for file in listing(path) if file.startswith("base/")}
    assert {base.add.path for base in view.base_files} <= left
    first = {file for file in left if file.startswith("base/00000000000000000000")}
    assert len(left - first) == PARTS, "the lost group's file is gone"


def test_a_change_of_the_definition_ends_the_run_and_keeps_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dirty(path)

    def alter(call: Call) -> None:
        LakeTable.open(path).alter(add_columns="w INT")

    table, _ = open_over(path, Fault(action=alter, method="open_output", path="base/", at=2), settings=ONE_BY_ONE)
    with pytest.raises(CommitConflictError, match="schema or bucket count changed"):
        table.compact()
    assert compacted(path) == ["p4"]
    assert LakeTable.open(path).compact().file_slices == PARTS - 1
    assert len(state_of(path)) == PARTS * 10


def test_a_run_stops_between_groups_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = dirty(path)
    asked = iter([False, False, True])
    plan = plan_compaction(table.opened.handle, table.opened.view, minor=False, strategy=CompactionStrategy())
    result = run_plan(table.opened.handle, table.opened.view, plan, stop=lambda: next(asked))
    assert (result.commits, result.stopped) == (2, True)
    assert compacted(path) == ["p3", "p4"]
    assert result.report()[-1][0] == "stopped"


def test_a_report_says_what_and_why(tmp_path: Path) -> None:
    table = dirty(tmp_path / "t")
    result = table.compact(strategy=CompactionStrategy(after_commits=1), where="p < 'p2'")
    report = dict(result.report())
    assert report["service"] == "full compaction"
    assert report["due"] == "logs of at least 1 commit (2 buckets)"
    assert report["merged"] == "2 base files, 2 log blocks"
    assert report["written"].startswith("2 files, 20 rows, ")
    assert report["commits"] == f"2, the table is at version {table.version}"
    assert set(result.phases) == {"plan", "merge", "commit"}
    assert sum(result.phases.values()) <= result.seconds
    files = {base.add.path: base.add.size_bytes for base in table.opened.view.base_files}
    assert result.bytes == sum(size for path, size in files.items() if not path.startswith("base/" + "0" * 20))
    assert result.bytes_read == result.plan.bytes_read


def long_slice(path: Path, *, settings: Settings, keys: int) -> LakeTable:
    """One bucket of several base files, of keys from 0 on, whose values hardly compress."""
    table = create(path, settings=settings, schema="k BIGINT, o BIGINT, v BINARY")
    table.upsert(noisy(0, keys, ordering=0))
    return table


def noisy(start: int, end: int, *, ordering: int) -> pa.Table:
    rows = end - start
    values = np.random.default_rng(start + ordering).bytes(rows * 100)
    offsets = pa.array(np.arange(0, rows * 100 + 1, 100, dtype=np.int32))
    binary = pa.Array.from_buffers(pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(values)])
    return pa.table([pa.array(np.arange(start, end)), pa.array(np.full(rows, ordering)), binary], names=["k", "o", "v"])


def test_recent_keys_cost_in_proportion_to_the_files_they_touch(tmp_path: Path) -> None:
    """Two of a hundred keys, all in the last of some ten files: about a tenth of the bytes is read and written."""
    path = tmp_path / "t"
    settings = Settings(target_file_bytes=180_000, merge_budget_bytes=100_000, row_group_rows=500, threads=1)
    long_slice(path, settings=settings, keys=20_000)
    table = LakeTable.open(path, settings=settings)
    file_slices = table.opened.view.file_slices
    assert len(file_slices) >= 9
    base_bytes = sum(base.add.size_bytes for base in table.opened.view.base_files)
    last = max(file_slice.lower[0] for file_slice in file_slices if file_slice.lower is not None)
    assert isinstance(last, int)
    first = max(last, 19_600)
    table.upsert(noisy(first, 20_000, ordering=1))
    store = CountingStore(LocalStore(path))
    counted = LakeTable(
        Handle(store, DeltaLog(store), default_registry(), settings),
        DeltaLog(store).snapshot(),
        pinned=False,
        spark=None,
    )
    store.reset()
    result = counted.compact()
    assert (result.file_slices, result.replaced_files) == (1, 1)
    read = store.counts().bytes_read
    assert read < base_bytes * 2 / len(file_slices)
    assert result.bytes < base_bytes * 1.5 / len(file_slices)
    assert rows_of(counted.to_arrow(columns=["k", "o"])) == sorted(
        ((k, int(k >= first)) for k in range(20_000)), key=repr
    )


MEASURED = """
import json, sys
import pyarrow as pa
from lakemerge import LakeTable, Settings
budget = int(sys.argv[2])
settings = Settings(merge_budget_bytes=budget, row_group_rows=2000, threads=1)
table = LakeTable.open(sys.argv[1], settings=settings)
before = pa.total_allocated_bytes()
result = table.compact()
peak = pa.default_memory_pool().max_memory() - before
print(json.dumps({"peak": peak, "rows": result.rows, "parts": result.file_slices}))
"""


@pytest.mark.long
def test_memory_is_bounded_by_the_budget_not_by_the_slice(tmp_path: Path) -> None:
    """A bucket of ten times the budget, half of it in logs; with a budget beyond the bucket the peak is far higher,
    so the bound is the budget's doing."""
    budget = 4 << 20
    keys = 10 * budget // 150
    path = tmp_path / "t"
    settings = Settings(row_group_rows=2000, threads=1)
    table = long_slice(path, settings=settings, keys=keys)
    table.upsert(noisy(0, keys, ordering=1).slice(0, keys // 2))
    (file_slice,) = table.opened.view.file_slices
    assert file_slice.stored_bytes >= 10 * budget
    peaks = {}
    for name, size in (("bounded", budget), ("all at once", 1 << 30)):
        copy = tmp_path / name
        shutil.copytree(path, copy)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(copy), str(size)], cwd=ROOT, check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout)
        assert (found["parts"], found["rows"]) == (1, keys)
        peaks[name] = found["peak"]
    # Fetched, decoded, merged and encoded: what is held at a time is there in several forms.
    assert peaks["bounded"] < 8 * budget
    assert peaks["all at once"] > 4 * peaks["bounded"]


def repeated(start: int, end: int, *, ordering: int) -> pa.Table:
    """Twenty values of 200 bytes, over and over: a dictionary makes next to nothing of them in Parquet."""
    rows = end - start
    values = pa.array([bytes([65 + number]) * 200 for number in range(20)]).take(pa.array(np.arange(rows) % 20))
    return pa.table([pa.array(np.arange(start, end)), pa.array(np.full(rows, ordering)), values], names=["k", "o", "v"])


def test_what_counts_is_the_size_in_memory_not_in_parquet(tmp_path: Path) -> None:
    budget = 2 << 20
    keys = 10 * budget // 200
    path = tmp_path / "t"
    table = create(path, schema="k BIGINT, o BIGINT, v BINARY", settings=Settings(row_group_rows=20_000, threads=1))
    table.upsert(repeated(0, keys, ordering=0))
    table.upsert(repeated(0, keys, ordering=1))
    (file_slice,) = table.opened.view.file_slices
    assert file_slice.base is not None
    assert file_slice.base.add.size_bytes < budget
    assert file_slice.log_bytes >= 10 * budget
    measured = MEASURED.replace("row_group_rows=2000", "row_group_rows=20_000")
    done = subprocess.run(
        [sys.executable, "-c", measured, str(path), str(budget)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert (found["parts"], found["rows"]) == (1, keys)
    assert found["peak"] < 8 * budget
