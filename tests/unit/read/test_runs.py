"""Streaming merges: cut points by hand, what is fetched at once, one hot key, and the memory a large file slice
takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.handle import Handle
from lakemerge.read.runs import Run, block_budgets, key_position, key_ranges
from lakemerge.storage.local import LocalStore
from mergers import default_registry
from mergers.keys import key_columns
from tests.unit.faults import create, frame, rows_of
from tests.unit.pools import counted

SCHEMA = pa.schema([("k", pa.int64())])
_BLOCK = LogBlock(LogFile("f", 1, ("k",)), 0, 1, BucketId((), 0), 1, 1, 0, None, None)


def run(*batches: list[int], log: list[int] | None = None, path: str | None = None) -> Run:
    def stream() -> Iterator[tuple[pa.Table, bool]]:
        for number, batch in enumerate(batches):
            if log is not None:
                log.append(number)
            yield pa.table({"k": pa.array(batch, pa.int64())}), number == len(batches) - 1

    return Run(stream(), SCHEMA, ("k",), path=path)


def steps(*runs: Run, at_once: int = 1) -> list[list[list[int]]]:
    return [[table.column("k").to_pylist() for table in step] for step in key_ranges(runs, at_once=at_once)]


def test_steps_end_at_the_smallest_key_in_memory() -> None:
    assert steps(run([1, 2], [5, 9]), run([2, 3, 4, 8], [9])) == [
        [[1, 2], [2]],
        [[5], [3, 4, 8]],
        [[9], [9]],
    ]


def test_a_key_across_batches_comes_whole() -> None:
    """The hot key fills three batches of one run, and begins another."""
    assert steps(run([1, 7], [7, 7], [7, 8]), run([7, 9])) == [[[1, 7, 7, 7, 7], [7]], [[8], [9]]]


def test_empty_runs_and_empty_batches() -> None:
    assert steps(run()) == []
    assert steps(run([]), run([], [])) == []
    assert steps(run([], [1], [], [2]), run()) == [[[1], []], [[2], []]]


def test_a_run_is_read_no_further_than_needed() -> None:
    """While the keys of the first run are below those of the second, the second run reads no further batch."""
    read: list[int] = []
    ranges = key_ranges([run([1], [2], [3]), run([50], [60], log=read)])
    for _ in range(2):
        next(ranges)
    assert read == [0]


def test_a_step_has_rows_of_each_run() -> None:
    """Ten runs of 40 batches whose keys take turns. A run is read on when it has half a batch, so a step has half a
    batch of each, or more. If a run were read on when it has nothing, each step would empty one of them."""
    runs = [
        run(*(list(range(start * 10 + lag, start * 10 + 100, 10)) for start in range(0, 400, 10))) for lag in range(10)
    ]
    found: list[list[int]] = []
    for step in key_ranges(runs):
        sizes = [table.num_rows for table in step]
        assert min(sizes[:-1]) >= 5 or sum(len(part) for part in found) > 3900
        found.append([key for table in step for key in table.column("k").to_pylist()])
        assert all(one.held.num_rows <= 15 for one in runs)
    assert sorted(key for part in found for key in part) == list(range(4000))
    assert len(found) <= 80


def test_budgets_of_blocks() -> None:
    """Blocks that are a third of the budget come whole. Else each has its share, and hundreds of columns have more."""

    def block(size: int) -> LogBlock:
        return replace(_BLOCK, data_bytes=size)

    assert block_budgets([block(100)] * 10, 3000, 3) == (1000, 3000)
    assert block_budgets([block(10_000)] * 10, 30_000, 3) == (1536, 46_080)
    assert block_budgets([block(10**6)] * 10, 3 * 10**6, 3) == (100_000, 3 * 10**6)
    assert block_budgets([block(10**6)] * 10, 3 * 10**6, 400) == (204_800, 6_144_000)
    assert block_budgets([block(10**6)] * 10, 30, 400) == (10, 300)


def _waiting(first: int, *others: int, log: list[int], size: int = 8) -> Run:
    """A run of which the first key is known, and that notes it when it is opened."""

    def stream() -> Iterator[tuple[pa.Table, bool]]:
        log.append(first)
        yield pa.table({"k": pa.array([first, *others], pa.int64())}), True

    return Run(stream(), SCHEMA, ("k",), first_key=(first,), first_bytes=size)


def test_runs_are_opened_when_their_turn_comes() -> None:
    """Five runs of 8 bytes with a budget of 16: two are open at a time. A run whose rows come late waits longest."""
    opened: list[int] = []
    runs = [_waiting(key, log=opened) for key in (50, 10, 30, 20, 40)]
    ranges = key_ranges(runs, budget_bytes=16)
    seen = [(sorted(key for table in step for key in table.column("k").to_pylist()), list(opened)) for step in ranges]
    assert seen == [([10, 20], [10, 20]), ([30, 40], [10, 20, 30, 40]), ([50], [10, 20, 30, 40, 50])]


def test_a_key_is_not_divided_between_open_and_waiting_runs() -> None:
    """Three runs begin with the same key, and the budget is for one of them. Another one reaches beyond those that
    wait."""
    opened: list[int] = []
    runs = [_waiting(1, 5, 9, log=opened), _waiting(5, 6, log=opened), _waiting(5, log=opened), run([0], [5, 7])]
    steps = [[table.column("k").to_pylist() for table in step] for step in key_ranges(runs, budget_bytes=8)]
    assert steps == [
        [[], [], [], [0]],
        [[1], [], [], []],
        [[5], [5], [5], [5]],
        [[], [6], [], []],
        [[], [], [], [7]],
        [[9], [], [], []],
    ]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1, [[1], [2], [3], [8]]),
        (16, [[1], [2], [3], [8]]),
        (40, [[1, 2], [3, 8]]),
        (1000, [[1, 2, 3, 8]]),
    ],
)
def test_a_step_is_divided_down_to_keys(budget: int, expected: list[list[int]]) -> None:
    """A row has 8 bytes. The key 2 has four rows, which come together."""
    step = [[1, 2, 2, 2, 3], [2, 3, 8], [], [8]]
    ranges = key_ranges([run(keys) for keys in step], budget_bytes=budget)
    parts = [[table.column("k").to_pylist() for table in part] for part in ranges]
    assert [sorted({key for keys in part for key in keys}) for part in parts] == expected
    assert [[key for part in parts for key in part[place]] for place in range(4)] == step


def test_a_run_that_is_read_to_its_end_holds_nothing() -> None:
    before = pa.total_allocated_bytes()

    def stream(key: int) -> Iterator[tuple[pa.Table, bool]]:
        table = pa.table({"k": pa.array(np.arange(key, key + 10_000))})
        yield table, True

    runs = [Run(stream(key), SCHEMA, ("k",)) for key in range(0, 100_000, 10_000)]
    for step in key_ranges(runs):
        del step
    assert pa.total_allocated_bytes() - before < 10_000


_PATIENCE_S = 60


def test_the_first_rows_of_several_files_are_fetched_at_once() -> None:
    """The first runs of three files wait until all three are requested. Two runs of one file are never requested at
    once."""
    everybody = threading.Barrier(3)
    in_use = {path: threading.Lock() for path in "abc"}

    def slow(path: str, *keys: int, first: bool = True) -> Run:
        def stream() -> Iterator[tuple[pa.Table, bool]]:
            assert in_use[path].acquire(blocking=False)
            if first:
                everybody.wait(_PATIENCE_S)
            in_use[path].release()
            yield pa.table({"k": pa.array(keys, pa.int64())}), True

        return Run(stream(), SCHEMA, ("k",), path=path)

    runs = [slow("a", 1, 4), slow("a", 2, first=False), slow("b", 1), slow("c", 3), slow("c", 5, first=False)]
    assert steps(*runs, at_once=3) == [[[1, 4], [2], [1], [3], [5]]]


def test_a_store_next_to_us_is_asked_for_one_file_after_the_other() -> None:
    threads: list[threading.Thread] = []

    def noting(key: int) -> Iterator[tuple[pa.Table, bool]]:
        threads.append(threading.current_thread())
        yield pa.table({"k": pa.array([key], pa.int64())}), True

    assert steps(*(Run(noting(key), SCHEMA, ("k",), path=str(key)) for key in (1, 2))) == [[[1], [2]]]
    assert threads == [threading.current_thread()] * 2


def test_what_one_of_them_raises_is_raised() -> None:
    def broken(path: str) -> Iterator[tuple[pa.Table, bool]]:
        yield pa.table({"k": pa.array([], pa.int64())}), False
        raise OSError(f"{path} is gone")

    with pytest.raises(OSError, match="a is gone"):
        steps(Run(broken("a"), SCHEMA, ("k",), path="a"), run([1], path="b"), at_once=2)


class _FarAway(LocalStore):
    """Answers requests for log files only when three of them are requested at once."""

    reads_at_once: ClassVar[int] = 8
    together: ClassVar[threading.Barrier] = threading.Barrier(3)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        if path.startswith("_lakemerge/log"):
            self.together.wait(_PATIENCE_S)
        return super().open_input(path, size_bytes=size_bytes)


def _from_far_away(path: Path) -> LakeTable:
    store = _FarAway(path)
    log = DeltaLog(store)
    return LakeTable(Handle(store, log, default_registry(), Settings()), log.snapshot(), pinned=False, spark=None)


def test_reads_and_compaction_ask_a_far_store_for_all_logs_at_once(tmp_path: Path) -> None:
    near = create(tmp_path / "t", buckets=1)
    near.upsert(frame([(k, 0, "base") for k in range(9)]))
    for number in (1, 2, 3):
        near.upsert(frame([(k, number, f"c{number}") for k in range(number, 9, 3)]))
    expected = [(k, (k + 2) % 3 + 1 if k else 0, f"c{(k + 2) % 3 + 1}" if k else "base") for k in range(9)]
    far = _from_far_away(tmp_path / "t")
    assert rows_of(far.to_arrow()) == expected
    assert far.get({"k": 4}) == {"k": 4, "o": 1, "v": "c1"}
    far.compact(minor=True)
    assert rows_of(near.to_arrow()) == expected


def test_a_far_store_is_asked_at_once_which_logs_only_delete(tmp_path: Path) -> None:
    near = create(tmp_path / "t", buckets=1)
    near.upsert(frame([(k, 0, "base") for k in range(9)]))
    for number in (1, 2, 3):
        near.delete(frame([(number,)], ["k"]))
    _from_far_away(tmp_path / "t").compact(minor=True)
    assert rows_of(near.to_arrow()) == [(k, 0, "base") for k in (0, 4, 5, 6, 7, 8)]


@pytest.mark.parametrize(("bound", "before", "after"), [(0, 0, 0), (1, 0, 2), (2, 2, 2), (3, 2, 3), (9, 3, 3)])
def test_key_position(bound: int, before: int, after: int) -> None:
    keys = key_columns(pa.table({"k": [1, 1, 3]}), ["k"])
    assert key_position(keys, (bound,), after=False) == before
    assert key_position(keys, (bound,), after=True) == after


def test_a_hot_key_in_a_table(tmp_path: Path) -> None:
    """Thousands of records of one key in row groups of two rows, merged with a budget of one byte."""
    tiny = Settings(merge_budget_bytes=1, row_group_rows=2)
    table = create(tmp_path / "t", merger="commit-time", settings=tiny)
    table.upsert(frame([(k, 0, "base") for k in range(5)]))
    hot = [(2, n, f"v{n}", "-U" if n % 3 else "+U") for n in range(300)]
    table.upsert(frame([*hot, (4, 1, "x", "-D")], ["k", "o", "v", "op"]), kind_column="op")
    expected = [(0, 0, "base"), (1, 0, "base"), (2, 297, "v297"), (3, 0, "base")]
    assert rows_of(table.to_arrow()) == expected
    table.compact()
    assert rows_of(table.to_arrow()) == expected


def test_memory_is_bounded_by_the_budget(tmp_path: Path) -> None:
    """One file slice of 32 MiB with as much in its log, merged within 1 MiB: the peak is a small part of it."""
    rows, budget = 64_000, 1 << 20
    written = Settings(row_group_rows=2000)
    table = LakeTable.create(
        tmp_path / "t", "k BIGINT, o BIGINT, v BINARY", key=["k"], ordering=["o"], buckets=1, settings=written
    )
    # Bytes that no codec can compress, so that sizes in files and in memory are equal.
    noise = np.random.default_rng(1).integers(0, 256, rows * 512, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * 512
    values = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(noise.tobytes())]
    )
    del noise
    for ordering in (1, 2):
        keys = np.arange(rows) * ordering
        table.upsert(pa.table({"k": keys, "o": np.full(rows, ordering), "v": values}))
    del values
    small = LakeTable.open(tmp_path / "t", settings=Settings(merge_budget_bytes=budget, row_group_rows=2000, threads=1))
    before = pa.total_allocated_bytes()
    peak = total = seen = 0
    for batch in small.scan():
        total += batch.nbytes
        seen += batch.num_rows
        del batch
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert seen == rows + rows // 2
    assert total > 32 << 20
    assert peak < 12 * budget

    with counted() as pool:
        result = small.compact()
    assert result.rows == rows + rows // 2
    assert pool.max_memory() < 24 * budget
