"""Exact products over groups: every step rounded to the column's scale, however large it gets."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa

from mergers.builtin.functions.exact import decimals_of, limbs_of
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["multiply_exactly"]

_SAFE = 2.0**62
_FEW = 16
"""So few groups that still have steps are folded one by one."""


def multiply_exactly(
    segments: Segments, values: pa.Array, there: Bools, retracts: Bools
) -> tuple[Ints | pa.Array, Bools]:
    """Per group the product of the values in the mask, and whether it is too large for its type's
    physical form. Records in ``retracts`` divide. Integers come as int64, decimals as they are.

    Steps of all groups are taken together in int64; a group in which one does not fit there is
    folded in Python's integers.
    """
    rounds = pa.types.is_decimal(values.type)
    scale = 10**values.type.scale if rounds else 1
    part, records, groups = segments.within(there)
    taken = values.take(pa.array(records))
    small, unscaled = _as_int64(taken)
    back = retracts[records]
    wide = np.ones(len(groups), dtype=np.bool_)
    if len(records) and scale < _SAFE:
        wide = ~np.logical_and.reduceat(small, part.starts)
    totals = unscaled[part.starts].copy()
    open_, rank = np.flatnonzero((part.sizes > 1) & ~wide), 1
    while len(open_) > _FEW:
        at = part.starts[open_] + rank
        totals[open_], fits = _step(totals[open_], unscaled[at], back[at], scale, rounds=rounds)
        wide[open_[~fits]] = True
        rank += 1
        open_ = open_[fits & (part.sizes[open_] > rank)]
    wide[open_] = True
    large = {
        group: _fold_python(_unscaled(taken.slice(start, end - start)), back[start:end].tolist(), scale, rounds=rounds)
        for group, start, end in zip(
            np.flatnonzero(wide).tolist(), part.starts[wide].tolist(), part.offsets[1:][wide].tolist(), strict=True
        )
    }
    return _result(values.type, len(segments.sizes), groups, totals, large)


def _result(
    kind: pa.DataType, n: int, groups: Ints, totals: Ints, large: dict[int, int]
) -> tuple[Ints | pa.Array, Bools]:
    outside = np.zeros(n, dtype=np.bool_)
    bits = 127 if pa.types.is_decimal(kind) else 63
    fitting = {}
    for group, total in large.items():
        if -(1 << bits) <= total < 1 << bits:
            fitting[group] = total
        else:
            outside[groups[group]] = True
    if not pa.types.is_decimal(kind):
        whole = np.zeros(n, dtype=np.int64)
        whole[groups] = totals
        for group, total in fitting.items():
            whole[groups[group]] = total
        return whole, outside
    limbs = [np.zeros(n, dtype=np.int64) for _ in range(4)]
    for place, limb in enumerate(limbs):
        limb[groups] = totals >> min(32 * place, 63)
        for group, total in fitting.items():
            limb[groups[group]] = (total >> 32 * place) & 0xFFFFFFFF
    return decimals_of(limbs, kind), outside


def _step(total: Ints, x: Ints, back: Bools, scale: int, *, rounds: bool) -> tuple[Ints, Bools]:
    """One multiplication or division each, rounded half away from zero (integers: truncated), and
    whether int64 could hold what it takes."""
    sizes = np.abs(total.astype(np.float64)), np.abs(x.astype(np.float64))
    fits = np.where(back, sizes[0] * scale + sizes[1], sizes[0] * sizes[1]) < _SAFE
    top = np.where(fits, np.where(back, total * scale, total * x), 0)
    bottom = np.where(back, x, scale)
    bottom = np.where(bottom == 0, 1, bottom)
    quotient, rest = np.divmod(np.abs(top), np.abs(bottom))
    if rounds:
        quotient += rest >= np.abs(bottom) - rest
    return np.where((top < 0) != (bottom < 0), -quotient, quotient), fits


def _as_int64(values: pa.Array) -> tuple[Bools, Ints]:
    """Unscaled values as int64, and where they fit."""
    if not pa.types.is_decimal(values.type):
        whole = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return np.ones(len(values), dtype=np.bool_), whole
    low, next_, third, high = limbs_of(values)
    whole = (next_ << 32) | low
    sign = whole >> 63
    return (high == sign) & (third == (sign & 0xFFFFFFFF)), whole


def _unscaled(values: pa.Array) -> list[int]:
    if not pa.types.is_decimal(values.type):
        return list(values.to_pylist())
    with decimal.localcontext(prec=80):
        return [int(value.scaleb(values.type.scale)) for value in values.to_pylist()]


def _fold_python(values: list[int], back: list[bool], scale: int, *, rounds: bool) -> int:
    total = values[0]
    for x, divide in zip(values[1:], back[1:], strict=True):
        top, bottom = (total * scale, x) if divide else (total * x, scale)
        quotient, rest = divmod(abs(top), abs(bottom))
        if rounds and 2 * rest >= abs(bottom):
            quotient += 1
        total = -quotient if (top < 0) != (bottom < 0) else quotient
    return total
