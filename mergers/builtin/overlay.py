"""The fold that ``event-time`` and ``commit-time`` share: later records overlay earlier ones.

A record is *applied* if its ordering is not below that of any record applied before it; without an ordering it always
is. So the last applied record of a group decides. The columns that it lacks come from the applied upserts before it,
back to the last applied delete. An unconditional delete voids everything before it. This takes a few passes of numpy
over the records, and work for each column only if frames are partial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mergers.builtin.functions.picks import take
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Groups, Ints, Merged, RowKind, Status

__all__ = ["Overlay"]


@dataclass(frozen=True, slots=True)
class Overlay:
    """The records of some groups, with one entry for each record."""

    groups: Groups
    codes: Ints
    """Ordering codes (:func:`mergers.ordering.order_codes`). They are all equal if only arrival decides."""
    deletes: Bools
    """Records that delete, unconditional deletes included."""
    resets: Bools
    """Unconditional deletes."""
    unset: Mapping[str, Bools] = field(default_factory=dict)
    """Column -> the records that carry no value for it, although their frame has the column."""

    def fold(self) -> Merged:
        """The state of every group."""
        groups, segments = self.groups, Segments.of(self.groups.offsets)
        valid = self._valid(segments)
        winner = segments.last(segments.highest(self.codes, valid))
        status = np.where(self.deletes[winner], Status.TOMBSTONE, Status.ROW).astype(np.int8)
        status[winner < 0] = Status.ABSENT
        partial = [
            (name, carried)
            for name in groups.rows.column_names
            if name in groups.shape.values and (carried := self._carried(name)) is not None
        ]
        columns: dict[str, pa.Array] = {}
        if partial:
            applied = segments.at_highest(self.codes, valid)
            upserts = applied & ~self.deletes
            upserts &= segments.index > segments.spread(segments.last(applied & self.deletes))
            is_row = status == Status.ROW
            # Columns that the same records carry share the answer.
            picks: dict[bytes, Ints | None] = {}
            for name, carried in partial:
                same = carried.tobytes()
                if same not in picks:
                    pick = segments.last(upserts & carried)
                    picks[same] = None if np.array_equal(pick[is_row], winner[is_row]) else pick
                if (differing := picks[same]) is not None:
                    columns[name] = take(groups.column(name), differing)
        return Merged(status=status, winner=winner, columns=columns)

    def combine(self) -> Bools:
        """Which records of one frame to keep: only the deciding one, if that is safe over any state.

        It is safe for groups without deletes, groups that end in an unconditional delete, and groups without
        unconditional deletes that an ordered delete decides. In any other group a delete in the middle resets columns
        or orderings, so all its records stay.
        """
        segments = Segments.of(self.groups.offsets)
        winner = segments.last(segments.highest(self.codes, self._valid(segments)))
        last = segments.last(self.groups.kinds != RowKind.UPDATE_BEFORE)
        has_delete = segments.any(self.deletes)
        ends_in_reset = (last >= 0) & self.resets[last]
        single = (winner >= 0) & (~has_delete | (self.deletes[winner] & ~segments.any(self.resets)))
        keep = np.repeat(~(single | ends_in_reset), segments.sizes)
        keep[winner[single]] = True
        keep[last[ends_in_reset]] = True
        return keep

    def _carried(self, name: str) -> Bools | None:
        """Which records set the column; ``None`` if all do."""
        carried = self.groups.is_set(name)
        if name not in self.unset:
            return carried
        return ~self.unset[name] if carried is None else carried & ~self.unset[name]

    def _valid(self, segments: Segments) -> Bools:
        """Records that count: no retractions, nothing up to the group's last unconditional delete."""
        valid = self.groups.kinds != RowKind.UPDATE_BEFORE
        if self.resets.any():
            valid &= segments.index > segments.spread(segments.last(self.resets))
        return valid
