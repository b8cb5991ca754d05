"""``listagg``: texts joined in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.functions.base import ColumnEvents, Function, list_offsets
from mergers.contract import Bools, Ints

__all__ = ["Listagg"]


@dataclass(frozen=True, slots=True)
class Listagg(Function):
    """Joins texts. Blank texts (white space only) are skipped. ``distinct`` keeps the first of equal parts; a part is
    the text between delimiters."""

    name = "listagg"
    types = "strings"
    keeps_lone = False
    blanks = True

    delimiter: str = ","
    distinct: bool = False

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_string(kind)

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Listagg:
        unknown = sorted(set(options) - {"delimiter", "distinct"})
        if unknown:
            raise ValueError(f"listagg has no option {', '.join(map(repr, unknown))}")
        delimiter, distinct = options.get("delimiter", ","), options.get("distinct", False)
        if not isinstance(delimiter, str) or not isinstance(distinct, bool):
            raise ValueError("listagg takes a string as delimiter, and true or false as distinct")
        if distinct and not delimiter:
            raise ValueError("listagg with distinct needs a delimiter that is not empty")
        return cls(kind, delimiter, distinct)

    def fold(self, events: ColumnEvents) -> pa.Array:
        texts = events.values
        blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
        adds = events.adds & ~pc.fill_null(blank, True).to_numpy(zero_copy_only=False)
        if self.distinct:
            adds = self._without_hollow(events, adds)
        counts = events.segments.count(adds)
        chosen = np.flatnonzero(adds)
        group = events.segments.group[chosen]
        chosen = chosen[np.lexsort((events.front_to_back[chosen], group))]
        parts = texts.take(pa.array(chosen))
        if self.distinct:
            parts, counts = self._first_of_each(parts, group, len(counts))
        lists = pa.ListArray.from_arrays(list_offsets(counts), parts)
        joined = pc.binary_join(lists, self.delimiter)
        return pc.if_else(pa.array(counts > 0), joined, pa.scalar(None, self.kind))

    def _first_of_each(self, texts: pa.Array, group: Ints, groups: int) -> tuple[pa.Array, Ints]:
        """The parts of all texts in order, each once in its group, and the number of parts of each group."""
        split = pc.split_pattern(texts, self.delimiter)
        parts, parents = pc.list_flatten(split), group[pc.list_parent_indices(split).to_numpy()]
        codes = parts.dictionary_encode().indices.to_numpy().astype(np.int64)
        first = np.unique(parents * (int(codes.max(initial=0)) + 1) + codes, return_index=True)[1]
        first.sort()
        return parts.take(pa.array(first)), np.bincount(parents[first], minlength=groups).astype(np.int64)

    def _without_hollow(self, events: ColumnEvents, adds: Bools) -> Bools:
        """The texts to fold. If a text becomes blank once each part is kept once, such as a lone delimiter, the next
        addition finds a blank accumulator and skips it."""
        segments = events.segments
        texts = adds | (events.adds & events.groups.stored & events.filled)
        records = np.flatnonzero(texts)
        parts, counts = self._first_of_each(
            events.values.take(pa.array(records)), np.arange(len(records), dtype=np.int64), len(records)
        )
        lists = pa.ListArray.from_arrays(list_offsets(counts), parts)
        joined = pc.utf8_trim_whitespace(pc.binary_join(lists, self.delimiter))
        hollow = np.zeros_like(adds)
        hollow[records] = pc.equal(joined, "").to_numpy(zero_copy_only=False)
        if not hollow.any():
            return adds
        solid = segments.first(texts & ~hollow)
        begin = np.where(solid < 0, segments.last(events.adds), solid)
        return texts & (segments.index >= segments.spread(begin))
