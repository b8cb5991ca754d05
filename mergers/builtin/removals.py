"""Deletes that remove a row because they are newer in a sequence group, and start everything over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["Turns", "last_removals"]

_ROUNDS = 8
"""Keys that were removed more often than this in one fold are scanned record by record."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The sequence of one group."""

    codes: Ints
    there: Bools
    """Records whose sequence is not all null."""

    def of(self, records: Ints) -> Turns:
        return Turns(self.codes[records], self.there[records])


def last_removals(segments: Segments, upserts: Bools, deletes: Bools, removing: Sequence[Turns]) -> Ints:
    """Per group, the last record that removed the row, or one less than its first record.

    A delete removes where there is a row and where it is not older, in one of the groups of columns
    given, than what that row has seen since it was made. So whether it does hangs on the removal
    before it: each round finds the next one of every key that may still have one.
    """
    result = segments.starts - 1
    if not removing:
        return result
    candidates = deletes & np.logical_or.reduce([turns.there for turns in removing])
    open_, part = np.repeat(segments.any(candidates), segments.sizes), segments
    records = segments.index
    for _ in range(_ROUNDS):
        _, chosen, _ = part.within(open_)
        if not len(chosen):
            return result
        records = records[chosen]
        part = _segments_of(segments.group[records])
        turns = [turn.of(records) for turn in removing]
        removed = part.first(_removals(part, upserts[records], deletes[records], turns))
        found = removed >= 0
        groups = segments.group[records[part.starts[found]]]
        result[groups] = records[removed[found]]
        # What is left of each key after its removal, where another delete may follow.
        left = (part.spread(removed) >= 0) & (part.index > part.spread(removed))
        open_ = left & np.repeat(part.any(left & candidates[records]), part.sizes)
    _, chosen, _ = part.within(open_)
    records = records[chosen]
    for place in np.split(records, np.flatnonzero(np.diff(segments.group[records])) + 1) if len(records) else ():
        last = _scan(upserts[place], deletes[place], [turn.of(place) for turn in removing])
        if last >= 0:
            result[segments.group[place[0]]] = place[last]
    return result


def _segments_of(group: Ints) -> Segments:
    return Segments.of(np.append(np.flatnonzero(np.diff(group, prepend=-1)), len(group)).astype(np.int64))


def _removals(segments: Segments, upserts: Bools, deletes: Bools, removing: Sequence[Turns]) -> Bools:
    """Deletes that remove, as long as none did before them."""
    creator = segments.spread(segments.first(upserts))
    live = (creator >= 0) & (segments.index >= creator)
    removes = np.zeros_like(live)
    for turns in removing:
        removes |= deletes & segments.at_highest(turns.codes, live & turns.there)
    return removes


def _scan(upserts: Bools, deletes: Bools, removing: Sequence[Turns]) -> int:
    """The last removal in the records of one key; -1 if none."""
    codes = [np.where(turns.there, turns.codes, -1).tolist() for turns in removing]
    present = [turns.there.tolist() for turns in removing]
    highest: list[int | None] | None = None
    last = -1
    for place, (upsert, delete) in enumerate(zip(upserts.tolist(), deletes.tolist(), strict=True)):
        if highest is None:
            if not upsert:
                continue
            highest = [None] * len(removing)
        removed = False
        for turn in range(len(removing)):
            before = highest[turn]
            if present[turn][place] and (before is None or codes[turn][place] >= before):
                highest[turn] = codes[turn][place]
                removed = removed or delete
        if removed:
            highest, last = None, place
    return last
