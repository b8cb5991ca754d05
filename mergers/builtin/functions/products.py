"""Exact products over groups. Every step is rounded to the column's scale, however large it gets.

Magnitudes and signs are computed separately, because rounding treats both signs alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mergers.builtin.functions.exact import decimals_of, limbs_of
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["multiply_exactly"]

_SAFE = 2.0**62
_LOW = (1 << 32) - 1
_FEW = 16
"""If no more than so many groups still have steps, they are folded one after the other."""
_Sizes = np.ndarray[Any, Any]
"""Magnitudes of unscaled values, as int64 or as Python's integers."""
_bit_length = np.frompyfunc(int.bit_length, 1, 1)


def multiply_exactly(
    segments: Segments, values: pa.Array, there: Bools, retracts: Bools
) -> tuple[Ints | pa.Array, Bools]:
    """For each group the product of the values in the mask, and whether it is too large for its type's physical form.
    Records in ``retracts`` divide; the first record of a group does not. Integers come as int64, decimals as they are.
    """
    rounds = pa.types.is_decimal(values.type)
    one = 10**values.type.scale if rounds else 1
    part, records, groups = segments.within(there)
    taken = values.take(pa.array(records))
    small, sizes, negative = _magnitudes(taken)
    back = retracts[records]
    # Zero stays zero, whatever comes after it. A one changes nothing. A zero that is taken back changes nothing
    # either, and no frame may hold one.
    nothing = small & (sizes == 0)
    zero = part.any(nothing & ~back)
    moves = ~nothing & ~(small & (sizes == one)) & ~np.repeat(zero, part.sizes)
    moves[part.starts] = True
    steps = _Steps(part.within(moves)[0], sizes[moves], back[moves], one, rounds)
    totals, wide = _multiply_small(steps, small[moves])
    totals[zero], wide = 0, wide & ~zero
    odd = part.count(negative & ~nothing) % 2 == 1
    parts = [(groups[~wide], np.where(odd, -totals, totals)[~wide])]
    bits = 127 if rounds else 63
    if wide.any():
        chosen = np.repeat(wide, steps.segments.sizes)
        sizes = _unbounded(taken.filter(pa.array(moves)).filter(pa.array(chosen)))
        large = _Steps(steps.segments.within(chosen)[0], sizes, steps.back[chosen], one, rounds)
        totals = _multiply_large(large, bits)
        parts.append((groups[wide], np.where(odd[wide], -totals, totals)))
    return _put_together(values.type, len(segments.sizes), parts, bits)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The values that multiply or, in ``back``, divide the totals of some groups. The first value of a group is its
    start. Only the start may be zero."""

    segments: Segments
    sizes: _Sizes
    back: Bools
    one: int
    rounds: bool
    """Whether steps round half up; else they truncate."""

    def step(self, totals: _Sizes, at: Ints) -> _Sizes:
        """The totals of some groups after one step each."""
        back, sizes = self.back[at], self.sizes[at]
        return self._rounded(totals * np.where(back, self.one, sizes), np.where(back, sizes, self.one))

    def fits(self, totals: Ints, at: Ints) -> Bools:
        """Whether int64 holds all intermediate values of such a step."""
        back, sizes = self.back[at], self.sizes[at].astype(np.float64)
        products = totals.astype(np.float64) * np.where(back, self.one, sizes) + np.where(back, sizes, self.one)
        return np.asarray(products < _SAFE)

    def run(self, total: int, start: int, end: int, limits: Ints) -> int:
        """The total after these steps, one after the other."""
        steps = zip(
            self.sizes[start:end].tolist(), self.back[start:end].tolist(), limits[start:end].tolist(), strict=True
        )
        for size, back, limit in steps:
            total = self._rounded(total * self.one, size) if back else self._rounded(total * size, self.one)
            if total.bit_length() > limit:
                break
        return total

    def limits(self, bits: int) -> Ints:
        """For each step, how many bits a total may have after it, so that the steps to come could bring it back to
        ``bits``."""
        size, unit = np.log2(self.sizes.astype(np.float64)), math.log2(self.one)
        down = np.cumsum(np.maximum(np.where(self.back, size - unit, unit - size), 0.0))
        to_come = self.segments.spread(down[self.segments.offsets[1:] - 1]) - down
        return bits + 2 + np.ceil(to_come).astype(np.int64)

    def _rounded(self, top: Any, bottom: Any) -> Any:
        return (top + bottom // 2) // bottom if self.rounds else top // bottom


def _multiply_small(steps: _Steps, small: Bools) -> tuple[Ints, Bools]:
    """The totals in int64, and the groups that are not done: int64 is too small for them, or they are too few to be
    worth vectorised steps."""
    part = steps.segments
    wide = part.any(~small) | ((part.sizes > 1) & (steps.one >= _SAFE))
    totals = steps.sizes[part.starts]
    open_, rank = np.flatnonzero((part.sizes > 1) & ~wide), 1
    while len(open_) > _FEW:
        at = part.starts[open_] + rank
        fits = steps.fits(totals[open_], at)
        wide[open_[~fits]] = True
        open_, at = open_[fits], at[fits]
        totals[open_] = steps.step(totals[open_], at)
        rank += 1
        open_ = open_[part.sizes[open_] > rank]
    wide[open_] = True
    return totals, wide


def _multiply_large(steps: _Steps, bits: int) -> _Sizes:
    """The totals in Python's integers. If the total of a group cannot come back to ``bits`` or less, some total with
    more bits is given.

    All groups take a step at a time, until they are few. These have long histories. Every step needs the rounded result
    of the step before, so their steps have to be taken one after the other.
    """
    part, limits = steps.segments, steps.limits(bits)
    totals = steps.sizes[part.starts]
    open_, rank = np.flatnonzero(part.sizes > 1), 1
    while len(open_) > _FEW:
        at = part.starts[open_] + rank
        totals[open_] = steps.step(totals[open_], at)
        rank += 1
        lost = np.asarray(_bit_length(totals[open_])).astype(np.int64) > limits[at]
        open_ = open_[~lost & (part.sizes[open_] > rank)]
    for group in open_.tolist():
        start, end = int(part.starts[group]) + rank, int(part.offsets[group + 1])
        totals[group] = steps.run(totals[group], start, end, limits)
    return totals


def _put_together(
    kind: pa.DataType, count: int, parts: Iterable[tuple[Ints, _Sizes]], bits: int
) -> tuple[Ints | pa.Array, Bools]:
    """Put the totals of parts together. A total is zero if its group is in no part, or if it has too many bits; the
    latter groups are returned, too."""
    limbs = [np.zeros(count, dtype=np.int64) for _ in range(4)]
    outside = np.zeros(count, dtype=np.bool_)
    for groups, totals in parts:
        widest = 63
        if totals.dtype == np.object_:
            widest = bits
            outside[groups] = (totals < -(1 << bits)) | (totals >= 1 << bits)
        fitting = np.where(outside[groups], 0, totals)
        for place, limb in enumerate(limbs):
            limb[groups] = (fitting >> min(32 * place, widest)) & _LOW
    if pa.types.is_decimal(kind):
        return decimals_of(limbs, kind), outside
    return limbs[0] | (limbs[1] << 32), outside


def _magnitudes(values: pa.Array) -> tuple[Bools, Ints, Bools]:
    """Which values have a magnitude that fits int64, the magnitudes, and which values are negative."""
    if not pa.types.is_decimal(values.type):
        whole = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return np.abs(whole) >= 0, np.abs(whole), whole < 0
    low, next_, third, high = limbs_of(values)
    whole = (next_ << 32) | low
    sign = whole >> 63
    small = (high == sign) & (third == (sign & _LOW)) & (np.abs(whole) >= 0)
    return small, np.abs(whole), high < 0


def _unbounded(values: pa.Array) -> _Sizes:
    """Magnitudes as Python's integers."""
    if not pa.types.is_decimal(values.type):
        return np.abs(values.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.object_))
    low, next_, third, high = (limb.astype(np.object_) for limb in limbs_of(values))
    return np.abs((high << 96) + (third << 64) + (next_ << 32) + low)
