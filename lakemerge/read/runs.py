"""Cutting sorted streams into common key ranges, so that a merge holds a bounded part of each.

A *run* is a stream of batches sorted by key: a base file, its tombstones, a log block. All runs of a
file slice advance together. Each unfinished run has a last key in memory; the smallest of these is the *cut*. A step
takes the rows up to the cut from every run. All records of a key come in one step. If the store is far away, the first
rows of several runs are fetched at once. Later rows are fetched run by run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from lakemerge.format.keys import Key, keys_at
from mergers.keys import KeyColumns, key_columns

__all__ = ["Run", "each_file", "key_position", "key_ranges"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


_NOTHING = pa.table({})
"""What a run holds before its stream is asked for the first batch."""


class Run:
    """A sorted stream and the part of it that is in memory.

    :param batches: tables of one schema, each with whether it is the last. Each is sorted by key, and keys ascend
        from one table to the next.
    :param schema: the schema of the tables, needed if the stream is empty.
    :param path: the path of the file that the tables come from, if they come from one.
    """

    def __init__(
        self,
        batches: Iterator[tuple[pa.Table, bool]],
        schema: pa.Schema,
        key: Sequence[str],
        *,
        path: str | None = None,
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._key = key
        self.path = path
        self.held = _NOTHING
        self.finished = False

    def more(self) -> None:
        """Read the next batch into memory. After the last one the run is finished."""
        batch, self.finished = next(self._batches, (None, True))
        if batch is None:
            self.held = self._schema.empty_table() if self.held is _NOTHING else self.held
        else:
            self.held = pa.concat_tables([self.held, batch]) if self.held.num_rows else batch

    def fill(self) -> None:
        """Make sure that at least one row is in memory, if there is one left."""
        while not self.finished and self.held.num_rows == 0:
            self.more()

    def last_key(self) -> Key:
        keys = key_columns(self.held.slice(self.held.num_rows - 1), self._key)
        return keys_at(keys, [0])[0]

    def take(self, cut: Key | None) -> pa.Table:
        """Remove and return the rows with a key up to and including the cut. Without a cut, return all rows."""
        count = self.held.num_rows
        if cut is not None and count:
            count = key_position(key_columns(self.held, self._key), cut, after=True)
        taken, self.held = self.held.slice(0, count), self.held.slice(count)
        return taken


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
    with ThreadPoolExecutor(workers) as pool:
        return [result for part in pool.map(turn, by_file.values()) for result in part]


def key_ranges(runs: Sequence[Run], *, at_once: int = 1) -> Iterator[list[pa.Table]]:
    """For each step, the rows of each run in one key range. Ranges ascend and do not overlap.

    :param at_once: how many files are asked for their first rows at the same time.
    """
    each_file(((run.path, run) for run in runs), Run.fill, at_once)
    while True:
        for run in runs:
            run.fill()
        open_runs = [run for run in runs if not run.finished]
        cut = min((run.last_key() for run in open_runs), default=None)
        for run in open_runs:
            # A key must not be split, so read on while more records of the cut's key may follow.
            while not run.finished and run.last_key() == cut:
                run.more()
        step = [run.take(cut) for run in runs]
        if any(table.num_rows for table in step):
            yield step
        if cut is None:
            return


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
