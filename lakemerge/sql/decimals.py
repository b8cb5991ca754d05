"""Decimals as the integers that store them: ``1.50`` as DECIMAL(10,2) is 150.

A vector is int64 if 18 digits are enough. Otherwise it holds Python's integers. NumPy computes with both alike. Arrow's
own decimals are no replacement: they have at most 76 digits, cut off quotients, and have no remainder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.sql.vectors import Mask, valid

__all__ = ["Integers", "beyond", "from_unscaled", "halves_up", "rescaled", "roomy", "to_unscaled"]

Integers = npt.NDArray[Any]
"""int64, or Python's integers."""

_SHORT = 18
"""This many digits always fit into int64."""
_LOW = 2**64 - 1


def to_unscaled(array: pa.Array) -> Integers:
    """The integers of a decimal128 or integer array. Nulls become zero."""
    if pa.types.is_integer(array.type):
        return array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    words = np.frombuffer(array.buffers()[1], dtype="<i8").reshape(-1, 2)[array.offset : array.offset + len(array)]
    known = valid(array)
    low = np.where(known, words[:, 0], 0)
    if array.type.precision <= _SHORT:
        return low
    high = np.where(known, words[:, 1], 0)
    return high.astype(object) * 2**64 + low.view(np.uint64).astype(object)


def from_unscaled(values: Integers, known: Mask, kind: pa.DataType) -> pa.Array:
    """The decimal128 array of these integers. They must fit. It is null where ``known`` is false."""
    words = np.empty((len(values), 2), dtype="<i8")
    if values.dtype == object:
        values = np.where(known, values, 0)
        words[:, 0] = (values & _LOW).astype(np.uint64).view(np.int64)
        words[:, 1] = (values >> 64).astype(np.int64)
    else:
        words[:, 0] = values
        words[:, 1] = values >> 63
    bitmap = None if known.all() else pa.array(known).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(words)])


def roomy(values: Integers, digits: int) -> Integers:
    """The same integers in a vector that has room for results of ``digits`` digits."""
    return values if digits <= _SHORT or values.dtype == object else values.astype(object)


def rescaled(values: Integers, digits: int, scale: int, to: int) -> Integers:
    """Integers of up to ``digits`` digits at another scale. Halves are rounded away from zero."""
    if to >= scale:
        return roomy(values, digits + to - scale) * 10 ** (to - scale)
    return halves_up(roomy(values, digits + 1), 10 ** (scale - to))


def halves_up(values: Integers, divisor: int | Integers) -> Integers:
    """``values / divisor``. Halves are rounded away from zero. The vector must have room for twice the values."""
    # NumPy would make 10**19 an integer of 64 bits. Twice that number does not fit into 64 bits.
    by = abs(divisor) if isinstance(divisor, int) else np.abs(divisor)
    whole = (2 * np.abs(values) + by) // (2 * by)
    negative = (values < 0) != (divisor < 0)
    return np.where(negative, -whole, whole)


def beyond(values: Integers, known: Mask, digits: int) -> Mask:
    """Where the integers have more than ``digits`` digits."""
    if values.dtype != object and digits > _SHORT:
        return np.zeros(len(values), dtype=np.bool_)
    over = np.abs(values) >= 10**digits
    return over.astype(np.bool_) & known
