"""Records that set or clear the state of their key: the fold of a key restarts at the last of them.

Transactions write such records. A *set* says that the state is exactly its row, and a *clear* that the key is absent,
whatever the merger makes of upserts and deletes. Mergers never see either: they get a set as the stored row of its
group, and a clear as a stored tombstone, or not at all. Source: docs/merge-semantics.md, section 11.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from mergers.contract import Bools, Groups, Ints, Kinds, Merged, Merger, RowKind, Status

__all__ = ["CLEAR", "SET", "RecordKind", "combine_restarted", "has_restarts", "merge_restarted"]

SET: Final = 4
"""Kind of a record that is the state of its key. It is no :class:`RowKind`: frames of users cannot have it."""
CLEAR: Final = 5
"""Kind of a record after which its key is absent."""


class RecordKind(enum.IntEnum):
    """All kinds of records in logs: those of :class:`RowKind`, and the two that transactions write."""

    INSERT = RowKind.INSERT
    UPDATE_BEFORE = RowKind.UPDATE_BEFORE
    UPDATE_AFTER = RowKind.UPDATE_AFTER
    DELETE = RowKind.DELETE
    SET = SET
    CLEAR = CLEAR

    @property
    def symbol(self) -> str:
        """That of the row kind, or ``set`` or ``clear``."""
        return ("+I", "-U", "+U", "-D", "set", "clear")[self]

    @property
    def row_kind(self) -> RowKind | None:
        """The same as a row kind; ``None`` for what no frame of users has."""
        return RowKind(self) if self < SET else None


def has_restarts(kinds: Kinds | None) -> bool:
    """Whether a record sets or clears its key."""
    return kinds is not None and bool((kinds >= SET).any())


def merge_restarted(merger: Merger, groups: Groups, merge: Callable[[Groups], Merged]) -> Merged:
    """What ``merge`` makes of groups of any kinds: it gets each group from its last set or clear on. Groups that end in
    one are settled without it, so that a set row stays as it is, whatever the merger would make of its values."""
    if not has_restarts(groups.kinds):
        return merge(groups)
    cut = _cut(merger, groups)
    count = len(groups.offsets) - 1
    status, winner = np.full(count, Status.ABSENT, dtype=np.int8), np.zeros(count, dtype=np.int64)
    status[cut.settled] = np.where(groups.kinds[cut.states] == SET, Status.ROW, Status.TOMBSTONE)
    winner[cut.settled] = cut.states
    if not len(cut.merged):
        return Merged(status, winner)
    merged = merge(cut.groups)
    status[cut.merged] = merged.status
    used = merged.status != Status.ABSENT
    winner[cut.merged[used]] = cut.records[merged.winner[used]]
    setters = winner.copy()
    if merged.setters is not None:
        dead = merged.status == Status.TOMBSTONE
        setters[cut.merged[dead]] = cut.records[merged.setters[dead]]
    columns = {name: _with_settled(cut, groups, name, values) for name, values in merged.columns.items()}
    return Merged(status, winner, columns, setters)


def _with_settled(cut: _Cut, groups: Groups, name: str, values: pa.Array) -> pa.Array:
    """The values of all groups in a column that the merger made."""
    places = np.full(len(groups.offsets) - 1, -1, dtype=np.int64)
    places[cut.merged] = np.arange(len(cut.merged))
    if len(cut.settled) and name in groups.rows.column_names:
        places[cut.settled] = len(values) + np.arange(len(cut.settled))
        own = groups.values_at([name], cut.states)[name]
        values = pa.concat_arrays([values, own.cast(values.type)])
    return values.take(pa.array(places, mask=places < 0))


def combine_restarted(groups: Groups, combine: Callable[[Groups], Bools | None] | None) -> Bools | None:
    """Which records of one frame to keep, of any kinds: of each group its last set or clear, and what ``combine`` keeps
    of those after it. ``combine``: ``None`` keeps all."""
    if not has_restarts(groups.kinds):
        return combine(groups) if combine else None
    last, starts = _last_restart(groups)
    index = np.arange(len(groups.kinds), dtype=np.int64)
    keep = index >= last
    later = np.flatnonzero(index > last)
    if combine is None or not len(later):
        return keep
    sizes = np.add.reduceat((index > last).astype(np.int64), starts)
    kept = combine(_chosen(groups, later, sizes[sizes > 0]))
    if kept is not None:
        keep[later] = kept
    return keep


@dataclass(frozen=True, slots=True)
class _Cut:
    """Groups from their last set or clear on. It stands at the beginning as the stored state."""

    groups: Groups
    """Those that have records after it, or that have none."""
    records: Ints
    """For each record of ``groups``, its number in the whole groups."""
    merged: Ints
    """For each of ``groups``, its number among the whole groups."""
    settled: Ints
    """The numbers of the groups that end in a set, or in a clear that is remembered. The rest are absent."""
    states: Ints
    """The number of that record, for each of ``settled``."""


def _cut(merger: Merger, groups: Groups) -> _Cut:
    last, starts = _last_restart(groups)
    at = np.unique(last[last >= 0])
    is_set = groups.kinds[at] == SET
    shape = groups.shape
    traits = merger.traits(shape)
    remembers = ~is_set & groups.has_ordering[at] & bool(shape.ordering and traits.uses_ordering and traits.tombstones)
    kinds, stored = groups.kinds.copy(), groups.stored.copy()
    sources, versions = groups.sources.copy(), groups.versions.copy()
    kinds[at] = np.where(is_set, RowKind.UPDATE_AFTER, RowKind.DELETE)
    stored[at] = True
    versions[at[is_set]] = 0
    presence = [*groups.presence, frozenset(shape.schema.names), frozenset((*shape.key, *shape.ordering))]
    sources[at] = np.where(is_set, len(presence) - 2, len(presence) - 1)
    keep = np.arange(len(kinds)) >= last
    keep[at[~is_set & ~remembers]] = False
    ends = last[groups.offsets[1:] - 1] == groups.offsets[1:] - 1
    lone = keep & np.repeat(ends, groups.sizes)
    states = np.flatnonzero(lone)
    settled = np.flatnonzero(np.add.reduceat(lone.astype(np.int64), starts))
    keep &= ~lone
    records = np.flatnonzero(keep)
    sizes = np.add.reduceat(keep.astype(np.int64), starts)
    # Mergers take a shortcut if every source carries all columns, so sources without records must go.
    used, sources_of = np.unique(sources[records], return_inverse=True)
    marked = replace(
        groups, kinds=kinds, stored=stored, versions=versions, presence=[*presence], sources=sources, _taken={}
    )
    chosen = _chosen(marked, records, sizes[sizes > 0])
    chosen = replace(chosen, presence=[presence[i] for i in used.tolist()], sources=sources_of.astype(np.int32))
    return _Cut(chosen, records, np.flatnonzero(sizes), settled, states)


def _last_restart(groups: Groups) -> tuple[Ints, Ints]:
    """For each record, the last set or clear of its group, -1 if there is none; and where the groups start."""
    starts = groups.offsets[:-1]
    index = np.arange(len(groups.kinds), dtype=np.int64)
    last = np.maximum.reduceat(np.where(groups.kinds >= SET, index, -1), starts)
    return np.repeat(last, groups.sizes), starts


def _chosen(groups: Groups, records: Ints, sizes: Ints) -> Groups:
    """Groups of these records alone; ``sizes``: how many each has."""
    return replace(
        groups,
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        kinds=groups.kinds[records],
        stored=groups.stored[records],
        sources=groups.sources[records],
        order=groups.order[records],
        versions=groups.versions[records],
        _taken={},
    )
