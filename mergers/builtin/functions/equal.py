"""Equality of values of any type as equality of integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mergers.contract import Ints
from mergers.ordering import is_orderable, order_codes

__all__ = ["equality_codes", "grouped"]


def equality_codes(values: pa.Array) -> Ints:
    """Small integers that are equal where the values are: null equals null, NaN equals NaN and -0.0
    equals 0.0. Comparable only within one call."""
    if is_orderable(values.type):
        return np.unique(order_codes([values]), return_inverse=True)[1].astype(np.int64)
    if pa.types.is_struct(values.type):
        codes = values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        for field in values.flatten():
            codes = grouped(codes, equality_codes(field))
        return codes
    # Arrow compares no lists and no maps.
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(repr(value), len(seen)) for value in values.to_pylist()], dtype=np.int64)


def grouped(outer: Ints, codes: Ints) -> Ints:
    """One small integer for each pair of codes; their order is that of the pairs."""
    width = int(codes.max(initial=0)) + 1
    return np.unique(outer * width + codes, return_inverse=True)[1].astype(np.int64)
