"""Bins: gather many small items, until there are enough for a task, a file or a commit.

The rules are those of Apache NiFi's MergeRecord processor. Items go in oldest first, each into a bin of its key. The
key says what may not be mixed: a partition, a schema, a fragment set. A bin is *full* as soon as either maximum is
reached. It is *worth closing* once both minima are reached. An item that is beyond a maximum by itself is a bin of its
own. An item that is in no closed bin is in an open one, so no item is lost, and none is in two bins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from lakemerge.errors import InputError

__all__ = ["Bin", "BinItem", "BinLimits", "Closed", "Filled", "Filling", "fill"]

T = TypeVar("T")


class Closed(StrEnum):
    """Why a bin was closed."""

    FULL = "full"
    """It reached a maximum, or the next item would have gone beyond one."""
    MINIMUM = "minimum reached"
    TOO_OLD = "too old"
    TOO_MANY = "too many bins"
    """Another key needed a bin, and this was the oldest of the open ones."""
    COMPLETE = "complete"
    """Every item of its set is there."""
    BROKEN = "contradiction"
    """The items of its set contradict each other: two have the same index, or their counts differ."""
    FORCED = "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class BinLimits:
    """Limits of bins; ``None``: no such limit. Raises :class:`InputError` if limits contradict each other."""

    min_records: int = 1
    max_records: int | None = None
    min_bytes: int = 0
    max_bytes: int | None = None
    max_age_ms: int | None = None
    """A bin is closed when its oldest item has this age, whatever else is in it."""
    max_bins: int | None = None
    """How many bins are open at a time."""
    fit: bool = False
    """How an item finds its bin. ``False``: a key has one open bin at a time. So its bins hold its items in order, and
    only an item alone in its bin may be beyond a maximum. ``True``, as in NiFi: an item goes into the oldest open bin
    of its key with room for its bytes, however many records it has. If no bin has room, it begins another one."""

    def __post_init__(self) -> None:
        for what, least, most in (
            ("records", self.min_records, self.max_records),
            ("bytes", self.min_bytes, self.max_bytes),
        ):
            if least < 0 or (most is not None and most < max(least, 1)):
                raise InputError(f"a bin of {least} to {most} {what} cannot be: limits rise from 0, maxima from 1")
        if self.max_bins is not None and self.max_bins < 1:
            raise InputError(f"max_bins must be at least 1, not {self.max_bins}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinItem(Generic[T]):
    """One thing to gather."""

    value: T
    records: int
    bytes: int
    at_ms: int = 0
    """When the item came, UTC epoch milliseconds. If ages do not matter, any number that orders the items."""
    key: Hashable = None
    """Items of different keys never share a bin."""
    of: int | None = None
    """For items that belong together: how many items the key has in all. The bin is complete only with the last of
    them, and minima and maxima do not count. 0: they belong together, and another item says how many there are."""
    index: int | None = None
    """The item's place among those that belong together. Each has another place."""


@dataclass(frozen=True, slots=True)
class Bin(Generic[T]):
    """Items of one key, in the order of their times. Items with equal times are in the order in which they came."""

    key: Hashable
    items: tuple[BinItem[T], ...]
    closed: Closed | None = None
    """``None``: it is open."""

    @property
    def values(self) -> tuple[T, ...]:
        return tuple(item.value for item in self.items)

    @property
    def records(self) -> int:
        return sum(item.records for item in self.items)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def oldest_ms(self) -> int:
        return min(item.at_ms for item in self.items)


@dataclass(frozen=True, slots=True)
class Filled(Generic[T]):
    """The bins of the items."""

    closed: tuple[Bin[T], ...]
    """In the order in which they were closed."""
    open: tuple[Bin[T], ...]
    """The open bins, oldest first. Give them to the next :func:`fill`."""


def fill(
    items: Iterable[BinItem[T]],
    limits: BinLimits,
    *,
    now_ms: int,
    open: Sequence[Bin[T]] = (),  # noqa: A002 - the field of Filled that it comes from
    force: bool = False,
) -> Filled[T]:
    """Put items into bins, oldest first. Then close the bins that are worth closing or too old.

    :param now_ms: the time at which ages are measured.
    :param open: bins left open by an earlier call.
    :param force: close everything, such as at the end of the input.
    """
    filling = Filling[T](limits, open)
    for item in sorted(items, key=lambda item: item.at_ms):
        filling.put(item)
    left = filling.end(now_ms, force=force)
    return Filled(filling.taken(), left)


class _Open(Generic[T]):
    """An open bin while items go in."""

    def __init__(self, start: Bin[T]) -> None:
        self.key = start.key
        self.items = list(start.items)
        self.records, self.bytes = start.records, start.bytes
        self.oldest_ms = min((item.at_ms for item in start.items), default=0)
        self._counts = {item.of for item in start.items if item.of}
        self._indices = {item.index for item in start.items if item.index is not None}
        self._is_broken = False

    def add(self, item: BinItem[T]) -> None:
        self.oldest_ms = min(self.oldest_ms, item.at_ms) if self.items else item.at_ms
        self.items.append(item)
        self.records += item.records
        self.bytes += item.bytes
        self._counts |= {item.of} if item.of else set()
        self._is_broken |= item.index in self._indices
        self._indices |= {item.index} if item.index is not None else set()

    @property
    def set_is_done(self) -> Closed | None:
        """Why the bin has to close: its set is complete, or can no longer become complete. ``None``: it stays open."""
        if self._is_broken or len(self._counts) > 1 or (self._counts and len(self.items) > min(self._counts)):
            return Closed.BROKEN
        return Closed.COMPLETE if self._counts == {len(self.items)} else None

    def frozen(self, closed: Closed | None) -> Bin[T]:
        return Bin(self.key, tuple(self.items), closed)


class Filling(Generic[T]):
    """As :func:`fill`, for items that come one after the other.

    Give items to :meth:`put`, oldest first. Take closed bins at any time, and finish with :meth:`end`.
    """

    def __init__(self, limits: BinLimits, start: Iterable[Bin[T]] = ()) -> None:
        self._limits = limits
        self._open: dict[_Open[T], None] = {_Open(part): None for part in start}
        self._by_key: dict[Hashable, list[_Open[T]]] = {}
        for part in self._open:
            self._by_key.setdefault(part.key, []).append(part)
        self._closed: list[Bin[T]] = []

    def put(self, item: BinItem[T]) -> None:
        found = self._room_for(item)
        if found is None:
            if self._limits.max_bins is not None and len(self._open) >= self._limits.max_bins:
                self._close(min(self._open, key=lambda part: part.oldest_ms), Closed.TOO_MANY)
            found = _Open(Bin(item.key, ()))
            self._open[found] = None
            self._by_key.setdefault(item.key, []).append(found)
        found.add(item)
        why = found.set_is_done if item.of is not None else self._is_full(found)
        if why is not None:
            self._close(found, why)

    def taken(self) -> tuple[Bin[T], ...]:
        """The bins closed since the last call, in the order in which they were closed."""
        closed, self._closed = tuple(self._closed), []
        return closed

    def end(self, now_ms: int, *, force: bool = False) -> tuple[Bin[T], ...]:
        """Close the bins that are worth closing or too old, or all of them. Returns those that stay open, oldest
        first."""
        for part in sorted(self._open, key=lambda part: part.oldest_ms):
            why = self._why_close(part, now_ms) or (Closed.FORCED if force else None)
            if why is not None:
                self._close(part, why)
        return tuple(part.frozen(None) for part in sorted(self._open, key=lambda part: part.oldest_ms))

    def _room_for(self, item: BinItem[T]) -> _Open[T] | None:
        """The bin for an item; ``None``: a new one."""
        there = self._by_key.get(item.key, [])
        if item.of is not None:  # a set is closed when it is whole, whatever its size
            return there[0] if there else None
        if self._limits.fit:
            fitting = (part for part in there if self._has_room(part, item))
            return min(fitting, key=lambda part: part.oldest_ms, default=None)
        if there and not self._has_room(there[0], item):
            self._close(there[0], Closed.FULL)
            return None
        return there[0] if there else None

    def _why_close(self, part: _Open[T], now_ms: int) -> Closed | None:
        limits = self._limits
        awaited = part.items[-1].of is not None
        if not awaited and part.records >= limits.min_records and part.bytes >= limits.min_bytes:
            return Closed.MINIMUM
        if limits.max_age_ms is not None and now_ms - part.oldest_ms >= limits.max_age_ms:
            return Closed.TOO_OLD
        return None

    def _has_room(self, part: _Open[T], item: BinItem[T]) -> bool:
        most = self._limits
        few = most.fit or most.max_records is None or part.records + item.records <= most.max_records
        return few and (most.max_bytes is None or part.bytes + item.bytes <= most.max_bytes)

    def _is_full(self, part: _Open[T]) -> Closed | None:
        most = self._limits
        full = (most.max_records is not None and part.records >= most.max_records) or (
            most.max_bytes is not None and part.bytes >= most.max_bytes
        )
        return Closed.FULL if full else None

    def _close(self, part: _Open[T], why: Closed) -> None:
        del self._open[part]
        self._by_key[part.key].remove(part)
        if not self._by_key[part.key]:
            del self._by_key[part.key]
        self._closed.append(part.frozen(why))
