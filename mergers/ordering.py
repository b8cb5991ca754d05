"""Order-preserving integer codes for columns.

The one order of LakeMerge (docs/merge-semantics.md, section 4): ascending, null below every
value, NaN the highest float and -0.0 = 0.0, strings by code point, binary unsigned, false < true.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.contract import Ints

__all__ = ["is_orderable", "order_codes", "plain_integers"]

_LONGEST_INT64_DECIMAL = 18


def is_orderable(kind: pa.DataType) -> bool:
    """Whether values of this type can be compared: anything but nested types."""
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def plain_integers(array: pa.Array) -> Ints | None:
    """The values as int64 in the same order, or ``None`` if the type has no such form.

    Integers, dates, timestamps, booleans and decimals of up to 18 digits have one. The array has no nulls.
    """
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if pa.types.is_date32(kind):
        return array.view(pa.int32()).cast(pa.int64()).to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind):
        return array.view(pa.int64()).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal128(kind) and kind.precision <= _LONGEST_INT64_DECIMAL:
        values = array.buffers()[1]
        if values is None:
            return np.empty(0, dtype=np.int64)
        # 16 bytes little endian each; 18 digits fit in the low 8.
        return np.frombuffer(values, dtype=np.int64)[2 * array.offset : 2 * (array.offset + len(array)) : 2].copy()
    return None


def order_codes(columns: Sequence[pa.Array]) -> Ints:
    """One int64 for each row. The codes compare as the tuples of the columns' values do.

    Codes can be compared only within one call.
    """
    if len(columns) == 1 and columns[0].null_count == 0:
        plain = _comparable_integers(columns[0])
        if plain is not None:
            return plain
    combined: Ints | None = None
    for column in columns:
        ranks = _dense_ranks(column)
        if combined is None:
            combined = ranks
        else:
            # Both factors are at most the number of rows, so the product fits in 63 bits.
            width = int(ranks.max(initial=0)) + 1
            combined = np.unique(combined * width + ranks, return_inverse=True)[1].astype(np.int64)
    if combined is None:
        raise ValueError("order_codes needs at least one column")
    return combined


def _comparable_integers(array: pa.Array) -> Ints | None:
    """As :func:`plain_integers`, also for floats."""
    if not pa.types.is_floating(array.type):
        return plain_integers(array)
    values = array.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # + 0.0 turns -0.0 into 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    # IEEE 754: the bits of positive floats ascend with the value, those of negative ones descend.
    codes = np.where(bits >= 0, bits, np.int64(-(2**63)) - bits - 1)
    codes[np.isnan(values)] = np.iinfo(np.int64).max
    return codes


def _dense_ranks(array: pa.Array) -> Ints:
    """0 for null, then 1, 2, ... in the order of the values."""
    ranks = np.zeros(len(array), dtype=np.int64)
    there = array.is_valid().to_numpy(zero_copy_only=False)
    present = array.drop_null() if array.null_count else array
    plain = _comparable_integers(present)
    if plain is None:
        dense = pc.rank(present, sort_keys="ascending", tiebreaker="dense")
        ranks[there] = dense.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        ranks[there] = np.unique(plain, return_inverse=True)[1] + 1
    return ranks
