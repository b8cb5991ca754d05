"""Functions whose result is one of the values: first, last, smallest, largest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mergers.builtin.functions.base import ColumnEvents, Function
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Ints
from mergers.ordering import is_orderable, order_codes

__all__ = [
    "BoolAnd",
    "BoolOr",
    "FirstNonNullValue",
    "FirstValue",
    "LastNonNullValue",
    "LastValue",
    "Max",
    "Min",
    "settle",
    "take",
]


def take(values: pa.Array, picks: Ints) -> pa.Array:
    """The picked values; null where the pick is -1."""
    return values.take(pa.array(picks, mask=picks < 0))


def settle(segments: Segments, sets: Bools, clears: Bools, fills: Bools) -> Ints:
    """The record that decides a slot; -1: it stays empty. Applied in record order, ``sets`` overwrite the slot,
    ``clears`` empty it, and ``fills`` take it only while it is empty. ``sets`` and ``fills`` are disjoint."""
    last = segments.last(sets | clears)
    decided = (last >= 0) & sets[last]
    filled = segments.first(fills & (segments.index > segments.spread(last)))
    return np.where(decided, last, filled)


@dataclass(frozen=True, slots=True)
class LastValue(Function):
    name = "last_value"
    types = "any"
    unites = True
    waits = True
    retractable = True
    forgets = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return True

    def fold(self, events: ColumnEvents) -> pa.Array:
        picks = settle(events.segments, events.adds & events.newer, events.retracts, np.zeros_like(events.adds))
        return take(events.values, picks)


@dataclass(frozen=True, slots=True)
class LastNonNullValue(Function):
    name = "last_non_null_value"
    types = "any"
    unites = True
    retractable = True
    forgets = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return True

    def fold(self, events: ColumnEvents) -> pa.Array:
        adds, filled = events.adds & events.filled, events.filled
        picks = settle(events.segments, adds & events.newer, events.retracts & filled, adds & ~events.newer)
        return take(events.values, picks)


@dataclass(frozen=True, slots=True)
class FirstValue(Function):
    name = "first_value"
    types = "any"
    unites = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return True

    def fold(self, events: ColumnEvents) -> pa.Array:
        return take(events.values, events.segments.last(events.adds & (events.first | ~events.newer)))


@dataclass(frozen=True, slots=True)
class FirstNonNullValue(Function):
    name = "first_non_null_value"
    types = "any"
    unites = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return True

    def fold(self, events: ColumnEvents) -> pa.Array:
        adds = events.adds & events.filled
        older = events.segments.last(adds & ~events.newer)
        return take(events.values, np.where(older >= 0, older, events.segments.first(adds)))


@dataclass(frozen=True, slots=True)
class _Extreme(Function):
    """The smallest or largest value. Nulls are skipped. Of equal values (0.0 and -0.0) the one in front is taken."""

    types = "anything that can be compared"
    commutative = True
    unites = True
    idempotent = True

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return is_orderable(kind)

    def codes(self, events: ColumnEvents) -> Ints:
        """Codes for the values: the highest wins."""
        return order_codes([events.values])

    def fold(self, events: ColumnEvents) -> pa.Array:
        segments, adds = events.segments, events.adds & events.filled
        ties = segments.highest(self.codes(events), adds)
        # The one in front is the last older one, or else the first of all.
        older = segments.last(ties & ~events.newer)
        return take(events.values, np.where(older >= 0, older, segments.first(ties)))


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    name = "max"


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    name = "min"

    def codes(self, events: ColumnEvents) -> Ints:
        return ~order_codes([events.values])


@dataclass(frozen=True, slots=True)
class BoolOr(Max):
    name = "bool_or"
    types = "boolean"

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_boolean(kind)


@dataclass(frozen=True, slots=True)
class BoolAnd(Min):
    name = "bool_and"
    types = "boolean"

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_boolean(kind)
