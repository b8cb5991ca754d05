"""Equality of values of any type as equality of integers: the one equality of functions that compare elements.

Source: docs/merge-semantics.md, section 4."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.contract import Ints
from mergers.ordering import is_orderable, order_codes

__all__ = ["equality_codes", "grouped"]


def equality_codes(values: pa.Array) -> Ints:
    """Small integers that are equal where the values are: null equals null, NaN equals NaN and -0.0
    equals 0.0, at any depth. Maps are equal with the same entries in the same order. Comparable only
    within one call."""
    if is_orderable(values.type):
        return np.unique(order_codes([values]), return_inverse=True)[1].astype(np.int64)
    if pa.types.is_struct(values.type):
        codes = values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        for field in values.flatten():
            codes = grouped(codes, equality_codes(field))
        return codes
    if pa.types.is_map(values.type):
        values = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    # Arrow compares no lists: the codes of their elements do, as bytes.
    elements = equality_codes(pc.list_flatten(values))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    edges = [0, *np.cumsum(lengths).tolist()]
    seen: dict[bytes | None, int] = {}
    return np.array(
        [
            seen.setdefault(elements[start:end].tobytes() if there else None, len(seen))
            for (start, end), there in zip(pairwise(edges), values.is_valid().to_pylist(), strict=True)
        ],
        dtype=np.int64,
    )


def grouped(outer: Ints, codes: Ints) -> Ints:
    """One small integer for each pair of codes; their order is that of the pairs."""
    width = int(codes.max(initial=0)) + 1
    return np.unique(outer * width + codes, return_inverse=True)[1].astype(np.int64)
