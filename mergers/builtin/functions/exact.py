"""Exact sums over groups, however large the intermediate totals are."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["decimals_of", "exceeds", "limbs_of", "sum_decimals", "sum_integers"]

_HALF = 32
_LOW = (1 << _HALF) - 1


def sum_integers(segments: Segments, values: Ints, adds: Bools, retracts: Bools) -> tuple[Ints, Bools]:
    """For each group the sum of added minus retracted values, and whether it is outside int64.

    If it is outside, the sum is meaningless. Groups have fewer than 2**31 records.
    """
    # The values are summed as two halves of 32 bits, whose sums cannot overflow.
    low, high = _signed_sums(segments, [values & _LOW, values >> _HALF], adds, retracts)
    high = high + (low >> _HALF)
    outside = (high < -(1 << 31)) | (high >= 1 << 31)
    return (high << _HALF) | (low & _LOW), outside


def sum_decimals(segments: Segments, values: pa.Array, adds: Bools, retracts: Bools) -> tuple[pa.Array, Bools]:
    """As :func:`sum_integers` for decimals, and whether the sum is outside the precision of their type."""
    limbs = _signed_sums(segments, limbs_of(values), adds, retracts)
    for place in range(3):
        limbs[place + 1] = limbs[place + 1] + (limbs[place] >> _HALF)
        limbs[place] = limbs[place] & _LOW
    outside = (limbs[3] < -(1 << 31)) | (limbs[3] >= 1 << 31)
    sums = decimals_of(limbs, values.type)
    return sums, outside | exceeds(sums)


def limbs_of(values: pa.Array) -> list[Ints]:
    """Unscaled decimals as four limbs of 32 bits, lowest first. All except the highest are unsigned. The limbs of a
    null are undefined."""
    words = np.frombuffer(values.buffers()[1], dtype=np.uint32).reshape(-1, 4)
    words = words[values.offset : values.offset + len(values)]
    return [*(words[:, i].astype(np.int64) for i in range(3)), words[:, 3].view(np.int32).astype(np.int64)]


def decimals_of(limbs: list[Ints], kind: pa.DataType) -> pa.Array:
    """The reverse of :func:`limbs_of`; precision is not checked."""
    words = np.empty((len(limbs[0]), 4), dtype=np.uint32)
    for place, limb in enumerate(limbs):
        words[:, place] = (limb & _LOW).astype(np.uint32)
    return pa.Array.from_buffers(kind, len(words), [None, pa.py_buffer(words.tobytes())])


def exceeds(values: pa.Array) -> Bools:
    """Which decimals have more digits than their type allows."""
    kind = values.type
    # Compared in the widest type, because a decimal of the type's own precision cannot hold the limit.
    wide = pa.decimal128(38, kind.scale)
    largest = decimal.Decimal((0, (9,) * kind.precision, -kind.scale))
    limit, floor = pa.scalar(largest, wide), pa.scalar(largest.copy_negate(), wide)
    values = pa.Array.from_buffers(wide, len(values), values.buffers(), offset=values.offset)
    beyond = pc.or_(pc.greater(values, limit), pc.less(values, floor))
    return beyond.to_numpy(zero_copy_only=False)


def _signed_sums(segments: Segments, parts: list[Ints], adds: Bools, retracts: Bools) -> list[Ints]:
    sign = adds.astype(np.int64) - retracts.astype(np.int64)
    return [np.add.reduceat(part * sign, segments.starts) for part in parts]
