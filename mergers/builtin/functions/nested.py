"""``collect`` and ``nested_update``: arrays folded element by element.

Elements that are equal, or that share a nested key, compete for one slot. An addition or retraction in one slot does
not affect other slots. So the slots of all groups are decided at once, and then the remaining elements are put in
order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.functions.base import ColumnEvents, Function, list_offsets
from mergers.builtin.functions.equal import equality_codes, grouped
from mergers.builtin.functions.picks import settle
from mergers.builtin.functions.slots import slots_of
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["Collect", "NestedUpdate"]


@dataclass(frozen=True, slots=True)
class _Arrays(Function):
    retractable = True

    @abstractmethod
    def standing(self, events: ColumnEvents, elements: pa.Array, record: Ints) -> tuple[Ints, Ints]:
        """The elements of the results: for each the number of the element whose place it has, and of the element whose
        value it has. ``record`` is the record of each element, and numbers ascend from front to back."""

    def fold(self, events: ColumnEvents) -> pa.Array:
        segments, added = events.segments, events.adds & events.filled
        records = np.flatnonzero(added | (events.retracts & events.filled))
        records = records[np.lexsort((events.front_to_back[records], segments.group[records]))]
        arrays = events.values.take(pa.array(records))
        elements = pc.list_flatten(arrays)
        record = records[pc.list_parent_indices(arrays).to_numpy()]
        places, values = self.standing(events, elements, record)
        counts = np.bincount(segments.group[record[places]], minlength=len(segments.sizes))
        return pa.ListArray.from_arrays(
            list_offsets(counts),
            elements.take(pa.array(values[np.argsort(places)])),
            type=self.kind,
            mask=pa.array(~segments.any(added)),
        )


@dataclass(frozen=True, slots=True)
class Collect(_Arrays):
    """``distinct`` keeps the first of equal elements."""

    name = "collect"
    types = "arrays"
    keeps_lone = False

    distinct: bool = False

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_list(kind)

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Collect:
        distinct = options.get("distinct", False)
        if set(options) - {"distinct"} or not isinstance(distinct, bool):
            raise ValueError("collect has one option, distinct, which is true or false")
        return cls(kind, distinct)

    def standing(self, events: ColumnEvents, elements: pa.Array, record: Ints) -> tuple[Ints, Ints]:
        if not self.distinct:
            kept = _appended(events, elements, record, _not_taken_back)
            return kept, kept
        segments, order = slots_of(events, record, equality_codes(elements))
        adds, newer = events.adds[record[order]], events.newer[record[order]]
        # An older element goes to the front, wherever an equal one stands. A newer one has no effect if there is an
        # equal one.
        picks = settle(segments, adds & ~newer, ~adds, adds & newer)
        kept = order[picks[picks >= 0]]
        return kept, kept


@dataclass(frozen=True, slots=True)
class NestedUpdate(_Arrays):
    """``nested_key``: the fields that identify an element. Without it every element is appended."""

    name = "nested_update"
    types = "arrays of structs"
    keeps_lone = False

    nested_key: tuple[str, ...] = ()

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> NestedUpdate:
        fields = options.get("nested_key", ())
        names = {kind.value_type.field(i).name for i in range(kind.value_type.num_fields)}
        if set(options) - {"nested_key"} or isinstance(fields, str) or not isinstance(fields, Sequence):
            raise ValueError("nested_update has one option, nested_key, which is a list of field names")
        unknown = [name for name in fields if name not in names]
        if unknown:
            raise ValueError(f"the elements have no field {', '.join(map(repr, unknown))}")
        return cls(kind, tuple(fields))

    def standing(self, events: ColumnEvents, elements: pa.Array, record: Ints) -> tuple[Ints, Ints]:
        if not self.nested_key:
            kept = _appended(events, elements, record, _since_retraction)
            return kept, kept
        segments, order = slots_of(events, record, self._keys(elements))
        adds, newer = events.adds[record[order]], events.newer[record[order]]
        # A newer element gives its value and keeps the old place. An older one gives its place and keeps the old value.
        places = settle(segments, adds & ~newer, ~adds, adds & newer)
        values = settle(segments, adds & newer, ~adds, adds & ~newer)
        return order[places[places >= 0]], order[values[places >= 0]]

    def _keys(self, elements: pa.Array) -> Ints:
        """Small integers, equal for elements with the same key."""
        fields = dict(zip((f.name for f in elements.type), elements.flatten(), strict=True))
        keys = np.zeros(len(elements), dtype=np.int64)
        for name in self.nested_key:
            keys = grouped(keys, equality_codes(fields[name]))
        return keys


def _appended(
    events: ColumnEvents, elements: pa.Array, record: Ints, left: Callable[[Segments, Bools, Bools], Bools]
) -> Ints:
    """The remaining elements if each added element has a place of its own. ``left`` decides which elements remain in a
    slot of equal elements. Its arguments say which elements are added (the others are taken back), and which are
    newer."""
    adds = events.adds[record]
    part = np.flatnonzero(events.segments.any(events.retracts & events.filled)[events.segments.group[record]])
    if len(part):
        segments, order = slots_of(events, record[part], equality_codes(elements.take(pa.array(part))))
        at = part[order]
        adds[at] = left(segments, adds[at], events.newer[record[at]])
    return np.flatnonzero(adds)


def _since_retraction(segments: Segments, adds: Bools, newer: Bools) -> Bools:
    """The elements that remain if a retraction takes back all elements before it."""
    return adds & (segments.index > segments.spread(segments.last(~adds)))


def _not_taken_back(segments: Segments, adds: Bools, newer: Bools) -> Bools:
    """The elements that remain if a retraction takes back the one in front, if any. Newer elements queue up behind;
    they are taken back only if no older element is stacked in front of them."""
    stacked, queued = adds & ~newer, adds & newer
    height = _counts(segments, stacked, ~adds)
    span = len(adds) + 1
    lifted = height + segments.group * span
    # A stacked element stays unless the stack later gets lower than it was with this element.
    left = stacked & (lifted == np.minimum.accumulate(lifted[::-1])[::-1])
    before = np.concatenate([[0], height[:-1]])
    before[segments.starts] = 0
    ends = segments.offsets[1:] - 1
    length = _counts(segments, queued, ~adds & (before == 0))[ends]
    # The last elements of the queue stay.
    joined = np.cumsum(queued, dtype=np.int64)
    behind = segments.spread(joined[ends]) - joined
    return np.asarray(left | (queued & (behind < segments.spread(length))))


def _counts(segments: Segments, comes: Bools, goes: Bools) -> Ints:
    """How many elements there are after each entry. A removal without an element changes nothing."""
    steps = comes.astype(np.int64) - goes
    walk = np.cumsum(steps)
    walk -= segments.spread(walk[segments.starts] - steps[segments.starts])
    # The values get lower from segment to segment, so that one accumulate never carries over.
    drop = segments.group * (2 * len(steps) + 1)
    return walk - np.minimum(np.minimum.accumulate(walk - drop) + drop, 0)
