"""Cutting sorted streams into common key ranges, so that a merge holds a bounded part of each.

A *run* is a stream of batches sorted by key: a base file, its tombstones, a log block. All runs of a
file slice advance together. Each unfinished run has a last key in memory; the smallest of these is the *cut*. A step
takes the rows up to the cut from every run. All records of a key come in one step. If the store is far away, the first
rows of several runs are fetched at once. Later rows are fetched run by run.

A step costs time for each run and column, however few rows it has. If runs were read on only when they are empty, each
step would empty one of them and take a few rows of the others. So they are read on when they are half empty: then a
step has about half a batch of each.

Hundreds of runs may have one row each, of many MiB. So a run whose first key is known is opened only when its turn
comes: while it is closed, no step takes that key or a later one. And if the rows of a step are more than the budget,
the step is cut once more. Only the records of one key may exceed the budget, because they come together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.format.keys import Key, keys_at
from lakemerge.format.log_block import LogBlock
from mergers import portions
from mergers.keys import KeyColumns, key_columns
from mergers.portions import is_large

__all__ = ["Run", "block_budgets", "block_run", "each_file", "key_position", "key_ranges"]

_ARRAY_BYTES = 512
"""About what an array takes beside its values."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Run:
    """A sorted stream and the part of it that is in memory.

    :param batches: tables of one schema, each with whether it is the last. Each is sorted by key, and keys ascend
        from one table to the next.
    :param schema: the schema of the tables, needed if the stream is empty.
    :param path: the path of the file that the tables come from, if they come from one.
    :param first_key: no row has a lower key, if one is known.
    :param first_bytes: about how many bytes the first table has.
    """

    def __init__(
        self,
        batches: Iterator[tuple[pa.Table, bool]],
        schema: pa.Schema,
        key: Sequence[str],
        *,
        path: str | None = None,
        first_key: Key | None = None,
        first_bytes: int = 0,
    ) -> None:
        self._batches = batches
        self.key = key
        self.path = path
        self.first_key = first_key
        self.first_bytes = first_bytes
        self._none = schema.empty_table()
        self.held = self._none
        self.is_open = False
        self.finished = False
        self._batch_rows = 0
        """The rows of the last batch."""
        self._first: Key | None = None
        self._last: Key | None = None
        """The keys of the first and the last row in memory, once they are known. Most steps take rows of few runs."""

    def more(self) -> None:
        """Read the next batch into memory. After the last one the run is finished."""
        self.is_open = True
        batch, self.finished = next(self._batches, (None, True))
        if self.finished:
            self._batches = iter(())  # a stream keeps its last table in memory
        if batch is not None and batch.num_rows:
            self._batch_rows = batch.num_rows
            self._last = None
            self.held = pa.concat_tables([self.held, batch]) if self.held.num_rows else batch

    def fill(self) -> None:
        """Make sure that more than half a batch is in memory, if there is that much left. So there are at most one and
        a half."""
        while not self.finished and self.held.num_rows <= self._batch_rows // 2:
            self.more()

    def last_key(self) -> Key:
        if self._last is None:
            self._last = self._key_at(self.held.num_rows - 1)
        return self._last

    def first_held(self) -> Key:
        if self._first is None:
            self._first = self._key_at(0)
        return self._first

    def _key_at(self, place: int) -> Key:
        return keys_at(key_columns(self.held.select(self.key).slice(place, 1), self.key), [0])[0]

    def take(self, cut: Key | None, *, before: Key | None = None) -> pa.Table:
        """Remove and return the rows with a key up to and including the cut, and below ``before``. ``None`` is no
        limit."""
        count = self.held.num_rows
        if not count or (cut is not None and cut < self.first_held()):
            return self._none
        if cut is not None:
            count = _rows_up_to(self.held, self.key, cut, after=True)
        if before is not None:
            count = min(count, _rows_up_to(self.held, self.key, before, after=False))
        if not count:
            return self._none
        taken = self.held.slice(0, count)
        # A slice without rows would keep what it is a slice of in memory.
        self.held = self.held.slice(count) if count < self.held.num_rows else self._none
        self._first = None
        return taken


def block_budgets(blocks: Sequence[LogBlock], merge_budget_bytes: int, columns: int) -> tuple[int, int]:
    """About the most bytes of a table of each of these blocks, and of a step.

    All blocks are whole if they are a third of the budget, as stored rows may be another one: a run has up to one and
    a half tables in memory. A table of many columns may have more than its share, and so may a step then. With less,
    its arrays would take more than its values.
    """
    third = max(1, merge_budget_bytes // 3)
    if sum(block.data_bytes for block in blocks) <= third:
        return third, merge_budget_bytes
    share = max(1, third // len(blocks), min(third, _ARRAY_BYTES * columns))
    return share, max(merge_budget_bytes, 3 * sum(min(share, block.data_bytes) for block in blocks))


def block_run(
    stream: Iterator[tuple[pa.Table, bool]], schema: pa.Schema, key: Sequence[str], block: LogBlock, budget_bytes: int
) -> Run:
    """The run of a log block.

    :param budget_bytes: about the most bytes of a table of the stream.
    """
    row_bytes = block.data_bytes // max(1, block.rows)
    first_bytes = min(block.data_bytes, max(budget_bytes, row_bytes))
    return Run(stream, schema, key, path=block.file.path, first_key=block.key_min, first_bytes=first_bytes)


def each_file(items: Iterable[tuple[str | None, _Item]], do: Callable[[_Item], _Result], at_once: int) -> list[_Result]:
    """The result of ``do`` for every item. Up to ``at_once`` files are worked on at the same time.

    :param items: each with the path of its file. Items of one file are done one after the other, and so are items
        without a file.
    """
    by_file: dict[str | None, list[_Item]] = {}
    for path, item in items:
        by_file.setdefault(path, []).append(item)

    def turn(part: list[_Item]) -> list[_Result]:
        return [do(item) for item in part]

    workers = min(at_once, len(by_file))
    if workers < 2:
        return [result for part in by_file.values() for result in turn(part)]
    with thread_pool(workers) as pool:
        return [result for part in pool.map(turn, by_file.values()) for result in part]


def key_ranges(runs: Sequence[Run], *, at_once: int = 1, budget_bytes: int | None = None) -> Iterator[list[pa.Table]]:
    """For each step, the rows of each run in one key range. Ranges ascend and do not overlap.

    :param at_once: how many files are asked for their first rows at the same time.
    :param budget_bytes: about the most bytes of a step, and of what is open. ``None``: as many as one array holds, and
        everything is open. The records of a key are not divided.
    """
    waiting = deque(sorted((run for run in runs if run.first_key is not None), key=lambda run: run.first_key or ()))
    opened = [run for run in runs if run.first_key is None]
    each_file(((run.path, run) for run in [*opened, *_fitting(opened, waiting, budget_bytes)]), Run.fill, at_once)
    while True:
        for run in runs:
            if run.is_open:
                run.fill()
        while due := _due(runs, waiting, budget_bytes):
            each_file(((run.path, run) for run in due), Run.fill, at_once)
        barrier = waiting[0].first_key if waiting else None
        open_runs = [run for run in runs if run.is_open and not run.finished]
        cut = min((run.last_key() for run in open_runs), default=None)
        if cut is not None and barrier is not None and barrier <= cut:
            cut = None
        for run in open_runs:
            # A key must not be split, so read on while more records of the cut's key may follow.
            while cut is not None and not run.finished and run.last_key() == cut:
                run.more()
        step = [run.take(cut, before=barrier) for run in runs]
        if any(table.num_rows for table in step):
            yield from _divided(step, runs[0].key, budget_bytes)
        if not waiting and all(run.finished and not run.held.num_rows for run in runs):
            return


def _fitting(opened: Sequence[Run], waiting: deque[Run], budget_bytes: int | None) -> list[Run]:
    """The next runs to open, as far as the budget allows. They wait no longer."""
    size = sum(run.held.get_total_buffer_size() for run in opened)
    fitting: list[Run] = []
    while waiting and (budget_bytes is None or size + waiting[0].first_bytes <= budget_bytes):
        size += waiting[0].first_bytes
        fitting.append(waiting.popleft())
    return fitting


def _due(runs: Sequence[Run], waiting: deque[Run], budget_bytes: int | None) -> list[Run]:
    """The runs to open before the next step: those that fit the budget and, if no open run has a row in front of those
    that wait, the next ones in any case."""
    if not waiting:
        return []
    held = [run for run in runs if run.is_open and run.held.num_rows]
    due = _fitting(held, waiting, budget_bytes)
    if not due and not any(run.first_held() < (waiting[0].first_key or ()) for run in held):
        due = [waiting.popleft()]
        while waiting and waiting[0].first_key == due[0].first_key:
            due.append(waiting.popleft())
    return due


def _divided(step: list[pa.Table], key: Sequence[str], budget_bytes: int | None) -> Iterator[list[pa.Table]]:
    """The step in key ranges of at most so many bytes, or of one key."""
    limit = portions.LARGEST_BYTES if budget_bytes is None else min(budget_bytes, portions.LARGEST_BYTES)
    left = [step]
    while left:
        part = left.pop()
        if _is_small(part, limit) or not is_large(*part, than=limit) or (middle := _middle(part, key)) is None:
            yield part
            continue
        counts = [_rows_up_to(table, key, middle, after=True) for table in part]
        left.append([table.slice(count) for table, count in zip(part, counts, strict=True)])
        left.append([table.slice(0, count) for table, count in zip(part, counts, strict=True)])


def _is_small(step: Sequence[pa.Table], limit: int) -> bool:
    """Whether a step is surely not large. It counts whole buffers, which is far quicker than to look at what slices of
    hundreds of columns have of them."""
    return sum(table.get_total_buffer_size() for table in step) <= min(limit, portions.LARGEST_BYTES // 8)


def _middle(step: Sequence[pa.Table], key: Sequence[str]) -> Key | None:
    """A key in about the middle of the rows, below the greatest. ``None`` if all rows have one key."""
    found = [
        (keys_at(key_columns(table.slice(place, 1), key), [0])[0], table.nbytes)
        for table in step
        if table.num_rows
        for place in {0, table.num_rows // 2, table.num_rows - 1}
    ]
    found.sort(key=lambda entry: entry[0])
    below = [entry for entry in found if entry[0] < found[-1][0]]
    half, passed = sum(size for _, size in found) / 2, 0
    for place, size in below:
        passed += size
        if passed >= half:
            return place
    return below[-1][0] if below else None


def _rows_up_to(table: pa.Table, key: Sequence[str], bound: Key, *, after: bool) -> int:
    """The same as :func:`key_position`, for the sorted rows of a table. Its chunks are looked at one by one."""
    count = 0
    for batch in table.select(key).to_batches():
        inside = key_position(key_columns(batch, key), bound, after=after)
        count += inside
        if inside < batch.num_rows:
            break
    return count


def key_position(keys: KeyColumns, bound: Key, *, after: bool) -> int:
    """The number of rows of sorted keys that are below ``bound``. With ``after``, those not above it."""
    low, high = 0, len(keys[0])
    while low < high:
        middle = (low + high) // 2
        key = keys_at(keys, [middle])[0]
        if key < bound or (after and key == bound):
            low = middle + 1
        else:
            high = middle
    return low
