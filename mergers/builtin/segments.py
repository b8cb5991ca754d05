"""Reductions over groups of records, as a few passes of numpy.

Records are numbered 0, 1, ... in fold order and a group is a run of them; "none" is record -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mergers.contract import Bools, Ints

__all__ = ["Segments"]

_CODE_SPACE = 2**62


@dataclass(frozen=True, slots=True)
class Segments:
    """Where groups begin and end. Masks and codes given to the methods have one entry for each record."""

    offsets: Ints
    """Group ``i`` holds the records ``offsets[i]`` to ``offsets[i + 1]``, end excluded. No group is empty."""
    sizes: Ints
    index: Ints
    """0, 1, ... up to the number of records."""
    group: Ints
    """For each record, the number of its group."""

    @classmethod
    def of(cls, offsets: Ints) -> Segments:
        sizes = np.diff(offsets)
        index = np.arange(int(offsets[-1]), dtype=np.int64)
        return cls(offsets, sizes, index, np.repeat(np.arange(len(sizes), dtype=np.int64), sizes))

    @property
    def starts(self) -> Ints:
        """For each group, its first record."""
        return self.offsets[:-1]

    def spread(self, per_group: Ints) -> Ints:
        """Values of groups, repeated for each of their records."""
        return np.repeat(per_group, self.sizes)

    def last(self, mask: Bools) -> Ints:
        """For each group, the last record in the mask; -1 if there is none."""
        return np.maximum.reduceat(np.where(mask, self.index, -1), self.starts)

    def first(self, mask: Bools) -> Ints:
        """For each group, the first record in the mask; -1 if there is none."""
        end = len(self.index)
        found = np.minimum.reduceat(np.where(mask, self.index, end), self.starts)
        return np.where(found == end, -1, found)

    def any(self, mask: Bools) -> Bools:
        return np.logical_or.reduceat(mask, self.starts)

    def count(self, mask: Bools) -> Ints:
        return np.add.reduceat(mask.astype(np.int64), self.starts)

    def last_before(self, mask: Bools) -> Ints:
        """For each record, the last record in the mask that comes before it in its group; -1 if there is none."""
        if not len(self.index):
            return self.index
        before = np.empty_like(self.index)
        before[0] = -1
        before[1:] = np.where(mask, self.index, -1)[:-1]
        found = np.maximum.accumulate(before)
        return np.where(found < self.spread(self.starts), -1, found)

    def at_highest(self, codes: Ints, mask: Bools) -> Bools:
        """Records in the mask whose code is not below any code in the mask before it in the group."""
        chosen = codes[mask]
        if not len(chosen):
            return mask
        low, high = int(chosen.min()), int(chosen.max())
        if (high - low + 2) * len(self.sizes) < _CODE_SPACE:
            span = high - low + 2
            ranks = np.where(mask, codes - low + 1, 0)
        else:
            values, dense = np.unique(chosen, return_inverse=True)
            span = len(values) + 1
            ranks = np.zeros(len(codes), dtype=np.int64)
            ranks[mask] = dense + 1
        # Ranks get larger from group to group, so that one accumulate never carries over.
        lifted = ranks + self.group * span
        return mask & (lifted == np.maximum.accumulate(lifted))

    def highest(self, codes: Ints, mask: Bools) -> Bools:
        """Records in the mask that have the highest code in the mask of their group."""
        best = np.maximum.reduceat(np.where(mask, codes, np.iinfo(np.int64).min), self.starts)
        return mask & (codes == self.spread(best))

    def within(self, mask: Bools) -> tuple[Segments, Ints, Ints]:
        """The groups that have a record in the mask, reduced to these records. Returns the new segments, and the
        numbers that its records and its groups have here."""
        records = np.flatnonzero(mask)
        counts = self.count(mask) if len(mask) else np.empty(0, dtype=np.int64)
        groups = np.flatnonzero(counts)
        offsets = np.concatenate([[0], np.cumsum(counts[groups])]).astype(np.int64)
        return Segments.of(offsets), records, groups
