"""Slots, for which entries of maps or elements of arrays compete. Each slot is a segment."""

from __future__ import annotations

import numpy as np

from mergers.builtin.functions.base import ColumnEvents
from mergers.builtin.functions.equal import grouped
from mergers.builtin.segments import Segments
from mergers.contract import Ints

__all__ = ["slots_of"]


def slots_of(events: ColumnEvents, record: Ints, codes: Ints) -> tuple[Segments, Ints]:
    """The entries by slot: the segments, and the entry numbers in their order. Each code of each group has a slot.

    Entries are numbered in the order of their records; ``record`` is the record of each entry. A slot has its entries
    in fold order. The entries of an older record are reversed, because each goes in front of all that came before.
    """
    slot = grouped(events.segments.group[record], codes)
    place = np.arange(len(record), dtype=np.int64)
    order = np.lexsort((np.where(events.newer[record], place, -place), record, slot))
    starts = np.flatnonzero(np.diff(slot[order], prepend=-1))
    return Segments.of(np.append(starts, len(order)).astype(np.int64)), order
