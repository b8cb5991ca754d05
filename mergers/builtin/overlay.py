"""The fold that ``event-time`` and ``commit-time`` share: later records overlay earlier ones.

A record is *applied* when its ordering is not below that of any record applied before it (with no
ordering: always), so the last applied record of a group decides; the columns that it lacks come
from the applied upserts before it, back to the last applied delete. An unconditional delete voids
all before it. A few passes of numpy over the records; per-column work only where frames are
partial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mergers.contract import Bools, Groups, Ints, Merged, RowKind, Status

__all__ = ["Overlay"]


@dataclass(frozen=True, slots=True)
class Overlay:
    """Records of some groups as the overlay sees them; one entry a record."""

    groups: Groups
    codes: Ints
    """Ordering codes (:func:`mergers.ordering.order_codes`); all equal where arrival alone decides."""
    deletes: Bools
    """Records that delete, unconditional deletes included."""
    resets: Bools
    """Unconditional deletes."""
    unset: Mapping[str, Bools] = field(default_factory=dict)
    """Columns of which some records carry no value although their frame has one; the records."""

    def fold(self) -> Merged:
        """The state of every group."""
        groups = self.groups
        valid = self._valid()
        winner = self._last(self._highest(valid))
        status = np.where(self.deletes[winner], Status.TOMBSTONE, Status.ROW).astype(np.int8)
        status[winner < 0] = Status.ABSENT
        partial = [
            (name, carried)
            for name in groups.rows.column_names
            if name in groups.shape.values and (carried := self._carried(name)) is not None
        ]
        columns: dict[str, pa.Array] = {}
        if partial:
            applied = valid & (self.codes == self._running_maximum(valid))
            upserts = applied & ~self.deletes
            upserts &= self._index > np.repeat(self._last(applied & self.deletes), groups.sizes)
            is_row = status == Status.ROW
            for name, carried in partial:
                pick = self._last(upserts & carried)
                if not np.array_equal(pick[is_row], winner[is_row]):
                    columns[name] = groups.column(name).take(pa.array(pick, mask=pick < 0))
        return Merged(status=status, winner=winner, columns=columns)

    def combine(self) -> Bools:
        """Which records of one frame to keep: the deciding one, where that is safe over any state.

        Safe are groups without deletes, groups that end in an unconditional delete, and groups
        without unconditional deletes that an ordered delete decides. In any other group a delete in
        the middle resets columns or orderings, so its records stay as they are.
        """
        groups = self.groups
        winner = self._last(self._highest(self._valid()))
        counted = groups.kinds != RowKind.UPDATE_BEFORE
        last = self._last(counted)
        has_delete = self._any(self.deletes)
        ends_in_reset = (last >= 0) & self.resets[last]
        single = (winner >= 0) & (~has_delete | (self.deletes[winner] & ~self._any(self.resets)))
        keep = np.repeat(~(single | ends_in_reset), groups.sizes)
        keep[winner[single]] = True
        keep[last[ends_in_reset]] = True
        return keep

    def _carried(self, name: str) -> Bools | None:
        """Which records set the column; ``None`` if all do."""
        carried = self.groups.is_set(name)
        if name not in self.unset:
            return carried
        return ~self.unset[name] if carried is None else carried & ~self.unset[name]

    @property
    def _index(self) -> Ints:
        return np.arange(len(self.groups.kinds), dtype=np.int64)

    def _last(self, mask: Bools) -> Ints:
        """Per group, the last record in the mask; -1 where there is none."""
        return np.maximum.reduceat(np.where(mask, self._index, -1), self.groups.offsets[:-1])

    def _any(self, mask: Bools) -> Bools:
        return np.logical_or.reduceat(mask, self.groups.offsets[:-1])

    def _valid(self) -> Bools:
        """Records that count: no retractions, nothing up to the group's last unconditional delete."""
        valid = self.groups.kinds != RowKind.UPDATE_BEFORE
        if self.resets.any():
            valid &= self._index > np.repeat(self._last(self.resets), self.groups.sizes)
        return valid

    def _highest(self, valid: Bools) -> Bools:
        """Valid records that have their group's highest ordering."""
        codes = np.where(valid, self.codes, np.iinfo(np.int64).min)
        highest = np.maximum.reduceat(codes, self.groups.offsets[:-1])
        return valid & (codes == np.repeat(highest, self.groups.sizes))

    def _running_maximum(self, valid: Bools) -> Ints:
        """Per record, the highest code of the valid records of its group up to it."""
        values, dense = np.unique(self.codes, return_inverse=True)
        # Ranks made larger from group to group, so that one accumulate never carries over.
        group = np.repeat(np.arange(len(self.groups.sizes), dtype=np.int64), self.groups.sizes)
        floor = group * (len(values) + 1)
        running = np.maximum.accumulate(floor + np.where(valid, dense + 1, 0)) - floor
        return np.where(running > 0, values[running - 1], np.iinfo(np.int64).min)
