"""Decides for each key which records act on its row, before any column is looked at.

The mergers that fold columns by the table's ordering, or by arrival, share this. A record is *newer* if its ordering is
not below the state's, else *older*. An older record acts on a row, but does nothing to a tombstone. Source:
docs/merge-semantics.md, sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mergers.builtin.segments import Segments
from mergers.contract import Bools, Groups, Ints, Kinds, RowKind, Status
from mergers.ordering import order_codes

__all__ = ["Events", "History", "carried", "first_from", "last_above", "next_below", "replay", "upserts_of"]


@dataclass(frozen=True, slots=True)
class Events:
    """The records of some groups, by what they do to the row. Masks have one entry for each record."""

    acts: Bools
    """Records that fold columns: upserts, and retractions if the merger has them."""
    removes: Bools
    """Deletes that leave a tombstone when they are newer."""
    resets: Bools
    """Deletes that leave nothing, not even a tombstone."""


@dataclass(frozen=True, slots=True)
class History:
    """The fold of the rows of each group, without their columns."""

    segments: Segments
    live: Bools
    """Records whose columns go into the row. There are none if the key has no row in the end."""
    newer: Bools
    """Live records that are not older than the row they meet."""
    creator: Ints
    """For each group, the live record that makes the row; -1 if there is no row."""
    status: Kinds
    winner: Ints
    """As in :class:`mergers.contract.Merged`: the record whose ordering the state has."""


def upserts_of(groups: Groups) -> Bools:
    """Records that are upserts; a stored row is one."""
    return (groups.kinds == RowKind.INSERT) | (groups.kinds == RowKind.UPDATE_AFTER)


def carried(groups: Groups, name: str) -> Bools:
    """Records that carry the column."""
    mask = groups.is_set(name)
    return np.ones(len(groups.kinds), dtype=np.bool_) if mask is None else mask


def replay(groups: Groups, events: Events) -> History:
    """Fold the rows of each group."""
    segments = Segments.of(groups.offsets)
    ordering = groups.shape.ordering
    tombstones = groups.stored & (groups.kinds == RowKind.DELETE)
    removes, acts = events.removes | tombstones, events.acts & ~tombstones
    start = np.maximum(segments.last(events.resets) + 1, segments.starts)
    if not ordering:
        valid = acts & (segments.index >= segments.spread(start))
        return _history(segments, valid, valid, np.zeros_like(valid))
    codes = order_codes([groups.column(name) for name in ordering])
    placed = groups.has_ordering
    # A retraction without an ordering starts a row if there is none, and that row has no ordering. So after a
    # tombstone, all later records have to be compared anew.
    valid = (acts | removes) & (segments.index >= segments.spread(start))
    loose = valid & acts & ~placed
    if loose.any() and removes.any():
        start = np.maximum(start, _last_restarts(segments, codes, valid & placed, removes, loose))
        valid &= segments.index >= segments.spread(start)
    highest = segments.at_highest(codes, valid & placed)
    return _history(segments, valid & acts, (highest & acts) | (loose & valid), highest & removes, highest)


def _last_restarts(segments: Segments, codes: Ints, placed: Bools, removes: Bools, loose: Bools) -> Ints:
    """For each group, the last record in ``loose`` that meets a tombstone; -1 if none does.

    From each record with an ordering there is one next record: the next one that is not below it. But if it leaves a
    tombstone, and a record in ``loose`` comes earlier, the record after that one is next. The walk from the first
    record takes strides that double.
    """
    counts = segments.any(removes) & segments.any(loose)
    part, records, groups = segments.within(np.repeat(counts, segments.sizes))
    found = np.full(len(segments.sizes), -1, dtype=np.int64)
    if not len(records):
        return found
    count, end, placed = len(records), part.spread(part.offsets[1:]), placed[records]
    ranks = np.unique(codes[records], return_inverse=True)[1].astype(np.int64)
    onward = next_below(np.where(placed, -ranks, 1), 1 - ranks, int(part.sizes.max()))
    met = first_from(loose[records])[:-1]
    restarts = placed & removes[records] & (met < np.minimum(onward, end))
    stride = np.where(restarts, first_from(placed)[np.minimum(met, count)], onward)
    stride = np.append(np.where(stride < end, stride, count), count)
    last = np.append(np.where(restarts, met, -1), -1)
    while (stride < count).any():
        last = np.where(last[stride] >= 0, last[stride], last)
        stride = stride[stride]
    first = part.first(placed)
    restart = np.where(first >= 0, last[first], -1)
    found[groups] = np.where(restart >= 0, records[restart], -1)
    return found


def _history(segments: Segments, acting: Bools, newer: Bools, deleting: Bools, placed: Bools | None = None) -> History:
    """``newer``: records that make a row where there is none. ``placed``: those that set the ordering."""
    deleted = segments.last(deleting)
    creator = segments.first(newer & (segments.index > segments.spread(deleted)))
    live = acting & (segments.spread(creator) >= 0) & (segments.index >= segments.spread(creator))
    status = np.where(creator >= 0, Status.ROW, np.where(deleted >= 0, Status.TOMBSTONE, Status.ABSENT)).astype(np.int8)
    newest = segments.last(live & (newer if placed is None else placed))
    winner = np.where(creator < 0, deleted, np.where(newest < 0, creator, newest))
    return History(segments, live, live & newer, creator, status, winner)


def last_above(values: Ints, bounds: Ints, longest: int) -> Ints:
    """For each record, the last one before it whose value is above the record's bound.

    If there is none within ``longest`` records, a record that is further back, or -1.
    """
    blocks = [values]
    """Entry ``i`` of block ``n``: the highest of the ``2**n`` values from ``i`` on."""
    while 2 ** len(blocks) <= min(longest, len(values)):
        half = 2 ** (len(blocks) - 1)
        blocks.append(np.maximum(blocks[-1][:-half], blocks[-1][half:]))
    end = np.arange(len(values), dtype=np.int64)
    while blocks:
        block = blocks.pop()
        begin = end - 2 ** len(blocks)
        skips = begin >= 0
        skips[skips] = block[begin[skips]] <= bounds[skips]
        end = np.where(skips, begin, end)
    return end - 1


def next_below(values: Ints, bounds: Ints, longest: int) -> Ints:
    """For each record, the first one after it whose value is below the record's bound.

    If there is none within ``longest`` records, a record that is further on, or the number of records.
    """
    return len(values) - 1 - last_above(~values[::-1], ~bounds[::-1], longest)[::-1]


def first_from(mask: Bools) -> Ints:
    """For each record, the first one in the mask from it on; the number of records if there is none. The result has one
    more entry at its end, for the place after the last record."""
    count = len(mask)
    found = np.append(np.where(mask, np.arange(count, dtype=np.int64), count), count)
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1])
