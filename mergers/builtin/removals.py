"""Deletes that remove a row because they are newer in a sequence group. Everything then starts over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mergers.builtin.searches import first_from, last_above, next_below
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["Turns", "last_removals"]

_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Turns:
    """The sequence of one group."""

    codes: Ints
    there: Bools
    """Records whose sequence is not all null."""

    def of(self, records: Ints) -> Turns:
        return Turns(self.codes[records], self.there[records])


def last_removals(segments: Segments, upserts: Bools, deletes: Bools, removing: Sequence[Turns]) -> Ints:
    """For each group, the last record that removed the row, or one less than the group's first record.

    A delete removes a row if, in one of the given groups of columns, it is not older than all records since the row was
    made. So it depends on the removal before it. For every record we find the removal that would follow if that record
    made the row. The actual removals are then a walk from the first record, in strides that double.
    """
    result = segments.starts - 1
    if not removing:
        return result
    candidates = deletes & np.logical_or.reduce([turns.there for turns in removing])
    part, records, groups = segments.within(np.repeat(segments.any(candidates), segments.sizes))
    if not len(records):
        return result
    makes = upserts[records]
    removal = _removals(part, deletes[records], [turns.of(records) for turns in removing])
    end = part.spread(part.offsets[1:])
    removed = makes & (removal < end)
    next_made = first_from(makes)[np.minimum(removal + 1, len(records))]
    goes_on = removed & (next_made < end)
    goes_on[goes_on] = removed[next_made[goes_on]]
    stride = np.where(goes_on, next_made, part.index)
    while True:
        further = stride[stride]
        if np.array_equal(further, stride):
            break
        stride = further
    first = part.first(makes)
    found = (first >= 0) & removed[first]
    result[groups[found]] = records[removal[stride[first[found]]]]
    return result


def _removals(segments: Segments, deletes: Bools, removing: Sequence[Turns]) -> Ints:
    """For each record, the delete that would remove the row made by it; a record outside its group if none would."""
    longest = int(segments.sizes.max())
    # A delete removes a row if the row was made after the last record that is newer than the delete.
    after = np.full(len(deletes), len(deletes), dtype=np.int64)
    for turns in removing:
        newer = last_above(np.where(turns.there, turns.codes, _LOWEST), turns.codes, longest)
        after = np.where(deletes & turns.there, np.minimum(after, newer), after)
    return next_below(after, segments.index, longest)
