"""Slots: what entries of maps and elements of arrays compete for, a segment each."""

from __future__ import annotations

import numpy as np

from mergers.builtin.functions.base import ColumnEvents
from mergers.builtin.functions.equal import grouped
from mergers.builtin.segments import Segments
from mergers.contract import Ints

__all__ = ["slots_of"]


def slots_of(events: ColumnEvents, record: Ints, codes: Ints) -> tuple[Segments, Ints]:
    """Entries by slot, one for each code of each group: the segments, and the entry numbers in their order.

    Entries are numbered as they stand in their records; ``record`` says which one that is. A slot has
    them in fold order, those of an older record from its last to its first, for it goes in front of
    all that came before.
    """
    slot = grouped(events.segments.group[record], codes)
    place = np.arange(len(record), dtype=np.int64)
    order = np.lexsort((np.where(events.newer[record], place, -place), record, slot))
    starts = np.flatnonzero(np.diff(slot[order], prepend=-1))
    return Segments.of(np.append(starts, len(order)).astype(np.int64)), order
