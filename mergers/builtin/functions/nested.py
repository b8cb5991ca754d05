"""``collect`` and ``nested_update``: arrays folded element by element.

Without retractions the elements of all arrays are brought into order at once. What a retraction
removes depends on the elements that stand at that moment, so groups with one are folded in Python, over
the numbers of elements. Both ways go by the same slots, so that it does not show which one was taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.functions.base import ColumnEvents, Function
from mergers.builtin.functions.equal import equality_codes, grouped
from mergers.contract import Ints

__all__ = ["Collect", "NestedUpdate"]


@dataclass(frozen=True, slots=True)
class _Arrays(Function):
    retractable = True

    @abstractmethod
    def arrange(self, elements: pa.Array, group: Ints) -> tuple[Ints, Ints]:
        """Of elements in order, sorted by group: which ones stay, and per element that stays its group."""

    @abstractmethod
    def slots(self, elements: pa.Array) -> Ints:
        """Small integers, equal for elements that take each other's place or are taken back by each other."""

    @abstractmethod
    def both(self, front: Sequence[int], back: Sequence[int], slots: Sequence[int]) -> list[int]:
        """One addition: element numbers, by which ``slots`` is indexed."""

    @abstractmethod
    def without(self, acc: Sequence[int], x: Sequence[int], slots: Sequence[int]) -> list[int]:
        """One retraction, likewise."""

    def fold(self, events: ColumnEvents) -> pa.Array:
        segments, filled = events.segments, events.filled
        retracted = segments.any(events.retracts & filled)
        whole = self._arranged(events, retracted)
        if not retracted.any():
            return whole
        part, records, groups = segments.within(
            (events.adds | events.retracts) & filled & np.repeat(retracted, segments.sizes)
        )
        arrays = events.values.take(pa.array(records))
        elements = pc.list_flatten(arrays)
        slots, edges = self.slots(elements).tolist(), [0, *np.cumsum(pc.list_value_length(arrays).to_numpy()).tolist()]
        numbers = [range(start, end) for start, end in pairwise(edges)]
        newer, adds = events.newer[records].tolist(), events.adds[records].tolist()
        folded: list[Sequence[int] | None] = []
        for start, end in zip(part.starts.tolist(), part.offsets[1:].tolist(), strict=True):
            acc: Sequence[int] | None = None
            for place in range(start, end):
                x = numbers[place]
                if not adds[place]:
                    acc = None if acc is None else self.without(acc, x, slots)
                else:
                    acc = self.both(acc or (), x, slots) if newer[place] else self.both(x, acc or (), slots)
            folded.append(acc)
        kept = np.fromiter(chain.from_iterable(acc or () for acc in folded), dtype=np.int64)
        lists = self._lists(elements, kept, [len(acc or ()) for acc in folded], [acc is not None for acc in folded])
        source = np.arange(len(whole), dtype=np.int64)
        source[groups] = len(whole) + np.arange(len(groups))
        return pa.concat_arrays([whole, lists]).take(pa.array(source))

    def _arranged(self, events: ColumnEvents, retracted: np.ndarray[Any, Any]) -> pa.Array:
        """The arrays of all groups without retractions."""
        segments = events.segments
        there = events.adds & events.filled & ~np.repeat(retracted, segments.sizes)
        records = np.flatnonzero(there)
        records = records[np.lexsort((events.front_to_back[records], segments.group[records]))]
        arrays = events.values.take(pa.array(records))
        elements = pc.list_flatten(arrays)
        group = segments.group[records][pc.list_parent_indices(arrays).to_numpy()]
        kept, group = self.arrange(elements, group)
        return self._lists(elements, kept, np.bincount(group, minlength=len(segments.sizes)), segments.any(there))

    def _lists(self, elements: pa.Array, kept: Ints, counts: Any, there: Any) -> pa.Array:
        """Arrays of so many of the elements kept each; null where not ``there``."""
        return pa.ListArray.from_arrays(
            pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
            elements.take(pa.array(kept)),
            type=self.kind,
            mask=pa.array(~np.asarray(there, dtype=np.bool_)),
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

    def arrange(self, elements: pa.Array, group: Ints) -> tuple[Ints, Ints]:
        kept = np.arange(len(elements), dtype=np.int64)
        if self.distinct:
            kept = np.unique(grouped(group, self.slots(elements)), return_index=True)[1]
            kept.sort()
        return kept, group[kept]

    def slots(self, elements: pa.Array) -> Ints:
        return equality_codes(elements)

    def both(self, front: Sequence[int], back: Sequence[int], slots: Sequence[int]) -> list[int]:
        if not self.distinct:
            return [*front, *back]
        found: dict[int, int] = {}
        for item in (*front, *back):
            found.setdefault(slots[item], item)
        return list(found.values())

    def without(self, acc: Sequence[int], x: Sequence[int], slots: Sequence[int]) -> list[int]:
        gone = Counter(slots[item] for item in x)
        left = []
        for item in acc:
            if gone[slots[item]]:
                gone[slots[item]] -= 1
            else:
                left.append(item)
        return left


@dataclass(frozen=True, slots=True)
class NestedUpdate(_Arrays):
    """``nested_key``: the fields that tell elements apart; without it every element is appended."""

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

    def arrange(self, elements: pa.Array, group: Ints) -> tuple[Ints, Ints]:
        if not self.nested_key:
            return np.arange(len(elements), dtype=np.int64), group
        slot = grouped(group, self.slots(elements))
        # An element stands where its key came first, with the value that came last.
        first, inverse = np.unique(slot, return_index=True, return_inverse=True)[1:]
        last = np.zeros_like(first)
        np.maximum.at(last, inverse, np.arange(len(slot)))
        order = np.argsort(first)
        return last[order], group[first[order]]

    def slots(self, elements: pa.Array) -> Ints:
        if not self.nested_key:
            return equality_codes(elements)
        fields = dict(zip((f.name for f in elements.type), elements.flatten(), strict=True))
        slot = np.zeros(len(elements), dtype=np.int64)
        for name in self.nested_key:
            slot = grouped(slot, equality_codes(fields[name]))
        return slot

    def both(self, front: Sequence[int], back: Sequence[int], slots: Sequence[int]) -> list[int]:
        if not self.nested_key:
            return [*front, *back]
        found: dict[int, int] = {}
        for item in (*front, *back):
            found[slots[item]] = item
        return list(found.values())

    def without(self, acc: Sequence[int], x: Sequence[int], slots: Sequence[int]) -> list[int]:
        gone = {slots[item] for item in x}
        return [item for item in acc if slots[item] not in gone]
