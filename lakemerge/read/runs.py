"""Cutting sorted streams into common key ranges, so that a merge holds a bounded part of each.

A *run* is a stream of batches sorted by key: a base file, its tombstones, a log block. All runs of a
file slice advance together: each step takes from every run the rows up to a *cut*, the smallest last key
of what the unfinished runs have in memory. All records of a key come in one step. Only the first rows of
several runs are fetched at once, where the store is far away: later ones are asked for run by run.
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


class Run:
    """A sorted stream with the part of it that is in memory.

    :param batches: tables of one schema, each sorted by key, keys ascending from one to the next, and
        each with whether it is the last.
    :param schema: of the tables, for an empty stream.
    :param path: of the file that they come from, where it is one.
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
        self._key = key
        self.path = path
        self.held = schema.empty_table()
        self.finished = False

    def more(self) -> None:
        """Bring the next batch into memory; after the last the run is finished."""
        batch, self.finished = next(self._batches, (self.held.slice(0, 0), True))
        self.held = pa.concat_tables([self.held, batch]) if self.held.num_rows else batch

    def fill(self) -> None:
        """Have at least one row in memory, if there is one left."""
        while not self.finished and self.held.num_rows == 0:
            self.more()

    def last_key(self) -> Key:
        keys = key_columns(self.held.slice(self.held.num_rows - 1), self._key)
        return keys_at(keys, [0])[0]

    def take(self, cut: Key | None) -> pa.Table:
        """Remove and return the rows with a key up to and including the cut; all without a cut."""
        count = self.held.num_rows
        if cut is not None and count:
            count = key_position(key_columns(self.held, self._key), cut, after=True)
        taken, self.held = self.held.slice(0, count), self.held.slice(count)
        return taken


def each_file(items: Iterable[tuple[str | None, _Item]], do: Callable[[_Item], _Result], at_once: int) -> list[_Result]:
    """What ``do`` says of every item, file by file, of so many files at a time.

    :param items: each with the path of its file; no two of a file are done at a time, nor of those without one.
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
    """Per step the rows of each run in one key range; ranges ascend and do not overlap.

    :param at_once: files whose first rows are asked for at a time.
    """
    each_file(((run.path, run) for run in runs), Run.fill, at_once)
    while True:
        for run in runs:
            run.fill()
        open_runs = [run for run in runs if not run.finished]
        cut = min((run.last_key() for run in open_runs), default=None)
        for run in open_runs:
            # A key must not be split: read on where more records of the cut's key may follow.
            while not run.finished and run.last_key() == cut:
                run.more()
        step = [run.take(cut) for run in runs]
        if any(table.num_rows for table in step):
            yield step
        if cut is None:
            return


def key_position(keys: KeyColumns, bound: Key, *, after: bool) -> int:
    """The number of rows of sorted keys that are below ``bound``, or not above it (``after``)."""
    low, high = 0, len(keys[0])
    while low < high:
        middle = (low + high) // 2
        key = keys_at(keys, [middle])[0]
        if key < bound or (after and key == bound):
            low = middle + 1
        else:
            high = middle
    return low
