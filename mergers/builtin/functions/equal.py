"""Equality of values of any type as equality of integers: the one equality of functions that compare elements.

Source: docs/merge-semantics.md, section 4."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.contract import Ints
from mergers.ordering import is_orderable, order_codes

__all__ = ["equality_codes", "grouped"]


def equality_codes(values: pa.Array) -> Ints:
    """Small integers that are equal if the values are. Null equals null, NaN equals NaN and -0.0 equals 0.0, at any
    depth. Maps are equal if they have the same entries, in whatever order. Codes can be compared only within one
    call."""
    if is_orderable(values.type):
        return np.unique(order_codes([values]), return_inverse=True)[1].astype(np.int64)
    if pa.types.is_struct(values.type):
        codes = values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        for field in values.flatten():
            codes = grouped(codes, equality_codes(field))
        return codes
    is_map = pa.types.is_map(values.type)
    if is_map:
        values = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    # Arrow cannot compare lists, so the codes of their elements are compared.
    lengths = pc.fill_null(pc.list_value_length(values), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    codes, sizes = equality_codes(pc.list_flatten(values)), np.maximum(lengths, 0)
    if is_map:
        # A map has no order. Sorted by their codes, the same entries are the same sequence.
        codes = codes[np.lexsort((codes, np.repeat(np.arange(len(sizes)), sizes)))]
    return grouped(lengths + 1, _sequence_codes(codes, sizes))


def _sequence_codes(codes: Ints, lengths: Ints) -> Ints:
    """One small integer for each run of so many codes. For runs of one length the integers are equal if the runs are.

    Neighbours are paired until one code is left for each run. That takes a round for each binary digit of the longest.
    """
    result = np.zeros(len(lengths), dtype=np.int64)
    runs = np.flatnonzero(lengths)
    sizes = lengths[runs]
    while len(runs):
        starts, alone = np.cumsum(sizes) - sizes, sizes == 1
        result[runs[alone]] = codes[starts[alone]]
        runs, starts, sizes = runs[~alone], starts[~alone], sizes[~alone]
        halves = (sizes + 1) // 2
        run = np.repeat(np.arange(len(runs)), halves)
        place = 2 * (np.arange(len(run)) - np.repeat(np.cumsum(halves) - halves, halves))
        left, paired = starts[run] + place, place + 1 < sizes[run]
        right = np.zeros(len(left), dtype=np.int64)
        right[paired] = codes[left[paired] + 1] + 1
        codes, sizes = grouped(codes[left], right), halves
    return result


def grouped(outer: Ints, codes: Ints) -> Ints:
    """One small integer for each pair of codes, in the order of the pairs."""
    width = int(codes.max(initial=0)) + 1
    return np.unique(outer * width + codes, return_inverse=True)[1].astype(np.int64)
