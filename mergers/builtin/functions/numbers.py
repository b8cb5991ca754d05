"""``sum``, ``product`` and ``count``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.functions.base import ColumnEvents, Function
from mergers.builtin.functions.exact import exceeds, sum_decimals, sum_integers
from mergers.builtin.functions.products import multiply_exactly
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints

__all__ = ["Count", "Product", "Sum", "fold_steps"]


_LIMITS = {8: 2**7, 16: 2**15, 32: 2**31, 64: 2**63}


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)


def _integers(values: pa.Array) -> Ints:
    return pc.fill_null(values, 0).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _integer_column(events: ColumnEvents, totals: Ints, outside: Bools, there: Bools, function: str) -> pa.Array:
    """Totals in the column's type, null if there is none. Raises an error if one does not fit."""
    kind = events.values.type
    limit = _LIMITS[kind.bit_width]
    if kind.bit_width < 64:
        outside = outside | (totals < -limit) | (totals >= limit)
    events.overflow(outside & there, function)
    return pa.array(totals, mask=~there).cast(kind)


def _floats(events: ColumnEvents, *, by: str) -> pa.Array:
    """The fold in the column's own precision, step by step, because rounding depends on the order."""
    values = pc.fill_null(events.values, 0).to_numpy(zero_copy_only=False)
    there = events.filled & (events.adds | events.retracts)
    kind = values.dtype
    if by == "sum":
        signed = np.where(events.retracts, -values, values).astype(kind)
        totals = fold_steps(events.segments, signed, there, np.add)
        counted = events.segments.any(there)
    else:
        # A retraction from null gives null: a product begins with its first addition.
        begun = events.segments.first(there & events.adds)
        there &= (events.segments.spread(begun) >= 0) & (events.segments.index >= events.segments.spread(begun))
        totals = fold_steps(events.segments, values, there, np.multiply, inverse=(events.retracts, np.divide))
        counted = begun >= 0
    return pa.array(totals, mask=~counted, type=events.values.type, from_pandas=False)


@dataclass(frozen=True, slots=True)
class Sum(Function):
    name = "sum"
    types = "numbers"
    retractable = True
    commutative = True
    unites = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return _is_number(kind)

    def fold(self, events: ColumnEvents) -> pa.Array:
        if pa.types.is_floating(self.kind):
            return _floats(events, by="sum")
        adds, retracts = events.adds & events.filled, events.retracts & events.filled
        there = events.segments.any(adds | retracts)
        if pa.types.is_decimal(self.kind):
            sums, outside = sum_decimals(events.segments, events.values, adds, retracts)
            events.overflow(outside & there, "sum")
            return pc.if_else(pa.array(there), sums, pa.scalar(None, self.kind))
        totals, outside = sum_integers(events.segments, _integers(events.values), adds, retracts)
        return _integer_column(events, totals, outside, there, "sum")


@dataclass(frozen=True, slots=True)
class Count(Function):
    """The stored value is the count so far. The values of other records do not matter."""

    name = "count"
    types = "integers"
    retractable = True
    commutative = True
    associative = False
    """False: records are combined as they are, and a record cannot hold a partial count."""
    keeps_lone = False

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_integer(kind)

    def fold(self, events: ColumnEvents) -> pa.Array:
        adds, retracts = events.adds & events.filled, events.retracts & events.filled
        steps = np.where(events.groups.stored, _integers(events.values), 1)
        totals, outside = sum_integers(events.segments, steps, adds, retracts)
        return _integer_column(events, totals, outside, events.segments.any(adds | retracts), "count")


@dataclass(frozen=True, slots=True)
class Product(Function):
    """A retraction divides. Each step is rounded to the column: integers are truncated, decimals
    rounded half up, away from zero."""

    name = "product"
    types = "numbers"
    retractable = True
    associative = False

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return _is_number(kind)

    def check_retractions(self, values: pa.Array) -> str | None:
        zero = pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py()
        return "a product cannot take back a zero" if zero else None

    def fold(self, events: ColumnEvents) -> pa.Array:
        if pa.types.is_floating(self.kind):
            return _floats(events, by="product")
        there = events.filled & (events.adds | events.retracts)
        begun = events.segments.first(there & events.adds)
        there &= (events.segments.spread(begun) >= 0) & (events.segments.index >= events.segments.spread(begun))
        totals, outside = multiply_exactly(events.segments, events.values, there, events.retracts)
        if pa.types.is_decimal(self.kind):
            outside = outside | (exceeds(totals) & (begun >= 0))
            events.overflow(outside, "product")
            return pc.if_else(pa.array(begun >= 0), totals, pa.scalar(None, self.kind))
        return _integer_column(events, totals, outside, begun >= 0, "product")


def fold_steps(
    segments: Segments,
    values: np.ndarray[Any, Any],
    there: Bools,
    step: np.ufunc,
    *,
    inverse: tuple[Bools, np.ufunc] | None = None,
) -> np.ndarray[Any, Any]:
    """The left fold of the values in the mask for each group, in their own type; 0 if there are none.

    The first value of a group is taken as it is. ``inverse`` marks records that use the inverse function. The first
    record of a group is never marked.
    """
    part, records, groups = segments.within(there)
    taken = values[records]
    back = np.zeros(len(records), dtype=np.bool_) if inverse is None else inverse[0][records]
    folded = taken[part.starts]
    # Records are cut into runs of one function; even runs use the one, odd runs the other. All first runs are folded
    # at once, then all second runs, and so on. Each record is touched only in its own run.
    turns = np.diff(back, prepend=False)
    turns[part.starts] = False
    run = np.cumsum(turns)
    run -= part.spread(run[part.starts])
    rest = np.ones(len(records), dtype=np.bool_)
    rest[part.starts] = False
    order = np.flatnonzero(rest)
    if run.any():
        order = order[np.argsort(run[order], kind="stable")]
    with np.errstate(all="ignore"):
        for chosen in np.split(order, np.flatnonzero(np.diff(run[order])) + 1) if len(order) else ():
            function = inverse[1] if inverse is not None and run[chosen[0]] % 2 else step
            # ``at`` takes one element after the other, from left to right; ``reduceat`` would add in pairs.
            function.at(folded, part.group[chosen], taken[chosen])
    result = np.zeros(len(segments.sizes), dtype=values.dtype)
    result[groups] = folded
    return result
