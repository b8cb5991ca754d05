"""Searches from every record at once, for folds that start over in the middle of a group.

A search looks at blocks of 1, 2, 4, ... records. So the number of numpy passes is the number of binary digits of the
longest group's length, whatever the records hold.
"""

from __future__ import annotations

import numpy as np

from mergers.contract import Bools, Ints

__all__ = ["first_from", "last_above", "next_below"]


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
