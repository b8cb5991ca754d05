"""``merge_map`` and ``merge_map_with_keytime``: maps folded entry by entry.

The entries of all maps are sorted by (group, map key, fold order), so that each key of each group is
a segment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mergers.builtin.functions.base import ColumnEvents, Function, list_offsets
from mergers.builtin.functions.equal import equality_codes
from mergers.builtin.functions.picks import settle
from mergers.builtin.functions.slots import slots_of
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints
from mergers.ordering import is_orderable, order_codes

__all__ = ["MergeMap", "MergeMapWithKeytime"]


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of the maps that take part, sorted."""

    segments: Segments
    """One for each key of each group."""
    group: Ints
    """For each segment, its group."""
    record: Ints
    keys: pa.Array
    items: pa.Array

    @staticmethod
    def of(events: ColumnEvents, there: Bools) -> _Entries:
        records = np.flatnonzero(there)
        maps = events.values.take(pa.array(records))
        offsets = maps.offsets.to_numpy()
        sizes = np.diff(offsets)
        record = np.repeat(records, sizes)
        # If a map has a key twice, the last entry counts. If the map goes in front of others, it must come first.
        segments, order = slots_of(events, record, equality_codes(maps.keys))
        record = record[order]
        group = events.segments.group[record[segments.starts]]
        taken = pa.array(order)
        return _Entries(segments, group, record, maps.keys.take(taken), maps.items.take(taken))

    def maps(self, picks: Ints, there: Bools, kind: pa.DataType) -> pa.Array:
        """For each group a map of the picked entries, one for each segment; -1 picks none. Null if the group is not
        ``there``."""
        chosen = picks >= 0
        counts = np.bincount(self.group[chosen], minlength=len(there))
        taken = pa.array(picks[chosen])
        return pa.MapArray.from_arrays(
            list_offsets(counts),
            self.keys.take(taken),
            self.items.take(taken),
            type=kind,
            mask=pa.array(~there),
        )


@dataclass(frozen=True, slots=True)
class MergeMap(Function):
    name = "merge_map"
    types = "maps"
    retractable = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_map(kind)

    def fold(self, events: ColumnEvents) -> pa.Array:
        filled = events.filled
        entries = _Entries.of(events, (events.adds | events.retracts) & filled)
        adds, newer = events.adds[entries.record], events.newer[entries.record]
        picks = settle(entries.segments, adds & newer, ~adds, adds & ~newer)
        return entries.maps(picks, events.segments.any(events.adds & filled), self.kind)


@dataclass(frozen=True, slots=True)
class MergeMapWithKeytime(Function):
    """``ts_field`` is the field of the map's values that says which value is newest; among equals the later one is.

    A null value removes the key, and is not remembered: an entry that comes after it counts again.
    """

    name = "merge_map_with_keytime"
    types = "maps of structs"
    keeps_lone = False

    ts_field: str = ""

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_map(kind) and pa.types.is_struct(kind.item_type)

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> MergeMapWithKeytime:
        field = options.get("ts_field")
        if set(options) != {"ts_field"} or not isinstance(field, str):
            raise ValueError("merge_map_with_keytime needs the option ts_field, a name, and has no other")
        place = kind.item_type.get_field_index(field)
        if place < 0 or not is_orderable(kind.item_type.field(place).type):
            raise ValueError(f"the map's values have no field {field!r} that can be compared")
        return cls(kind, field)

    def fold(self, events: ColumnEvents) -> pa.Array:
        adds = events.adds & events.filled
        entries = _Entries.of(events, adds)
        segments, newer = entries.segments, events.newer[entries.record]
        present = entries.items.is_valid().to_numpy(zero_copy_only=False)
        place = entries.items.type.get_field_index(self.ts_field)
        times = entries.items.flatten()[place]
        timed = times.is_valid().to_numpy(zero_copy_only=False) & present
        cleared = segments.last(~present & newer)
        timed &= segments.index > segments.spread(cleared)
        # An older map removes no entry that was there before. It removes only its own entries further in front.
        removed = segments.last_before(~present)
        timed &= newer | (removed < 0) | (entries.record[removed] != entries.record)
        ties = segments.highest(order_codes([times]), timed)
        latest = segments.last(ties & newer)
        picks = np.where(latest >= 0, latest, segments.first(ties))
        return entries.maps(picks, events.segments.any(adds), self.kind)
