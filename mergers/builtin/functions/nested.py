"""``collect`` and ``nested_update``: arrays folded element by element.

Without retractions the elements of all arrays are brought into order at once. What a retraction
removes depends on the elements that stand at that moment, so groups with one are folded in Python.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    def both(self, front: Sequence[Any], back: Sequence[Any]) -> list[Any]:
        """One addition, in Python values."""

    @abstractmethod
    def without(self, acc: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        """One retraction, in Python values."""

    def fold(self, events: ColumnEvents) -> pa.Array:
        segments, filled = events.segments, events.filled
        retracted = segments.any(events.retracts & filled)
        whole = self._arranged(events, retracted)
        if not retracted.any():
            return whole
        part, records, groups = segments.within(
            (events.adds | events.retracts) & filled & np.repeat(retracted, segments.sizes)
        )
        values = events.values.take(pa.array(records)).to_pylist()
        newer, adds = events.newer[records].tolist(), events.adds[records].tolist()
        folded = []
        for start, end in zip(part.starts.tolist(), part.offsets[1:].tolist(), strict=True):
            acc: Sequence[Any] | None = None
            for place in range(start, end):
                x = values[place]
                if not adds[place]:
                    acc = None if acc is None else self.without(acc, x)
                else:
                    acc = self.both(acc or (), x) if newer[place] else self.both(x, acc or ())
            folded.append(acc)
        source = np.arange(len(whole), dtype=np.int64)
        source[groups] = len(whole) + np.arange(len(groups))
        return pa.concat_arrays([whole, pa.array(folded, type=self.kind)]).take(pa.array(source))

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
        counts = np.bincount(group, minlength=len(segments.sizes))
        return pa.ListArray.from_arrays(
            pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
            elements.take(pa.array(kept)),
            type=self.kind,
            mask=pa.array(~segments.any(there)),
        )


def _distinct(items: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


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
            kept = np.unique(grouped(group, equality_codes(elements)), return_index=True)[1]
            kept.sort()
        return kept, group[kept]

    def both(self, front: Sequence[Any], back: Sequence[Any]) -> list[Any]:
        return _distinct([*front, *back]) if self.distinct else [*front, *back]

    def without(self, acc: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        left = list(acc)
        for item in x:
            if item in left:
                left.remove(item)
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
        fields = dict(zip((f.name for f in elements.type), elements.flatten(), strict=True))
        slot = group
        for name in self.nested_key:
            slot = grouped(slot, equality_codes(fields[name]))
        # An element stands where its key came first, with the value that came last.
        first, inverse = np.unique(slot, return_index=True, return_inverse=True)[1:]
        last = np.zeros_like(first)
        np.maximum.at(last, inverse, np.arange(len(slot)))
        order = np.argsort(first)
        return last[order], group[first[order]]

    def both(self, front: Sequence[Any], back: Sequence[Any]) -> list[Any]:
        if not self.nested_key:
            return [*front, *back]
        found: dict[tuple[str, ...], Any] = {}
        for item in (*front, *back):
            found[self._key(item)] = item
        return list(found.values())

    def without(self, acc: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        gone = {self._key(item) for item in x}
        return [item for item in acc if self._key(item) not in gone]

    def _key(self, item: Mapping[str, Any] | None) -> tuple[str, ...]:
        if item is None:
            return ("null",) if not self.nested_key else ("None",) * len(self.nested_key)
        return tuple(repr(item[name]) for name in self.nested_key or item)
