"""The time by a store's own clock. The times of its files may be compared only with this clock.

Clocks of hosts may be wrong by any amount. So whatever one host notes for others to compare, and whatever age decides
anything, is by this clock. A noted time that is later than the present one was noted by a wrong clock all the same, in
an earlier version or by another program; it is reported (:func:`is_past`), and counts for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from lakemerge.errors import StoreError
from lakemerge.storage.base import Store
from mergers.logs import logger

__all__ = ["CLOCK_FILE", "StoreClock", "is_past", "store_time_ms"]

_logger = logger(__name__)

CLOCK_FILE: Final = "_lakemerge/.clock"
"""An empty file that is written to learn the time. It is never deleted, so that no other process misses it."""

_SLACK_MS: Final = 300_000
"""Differences of clocks that are no matter."""
_TRUSTED_MS: Final = 3_600_000
_SAME_MS: Final = 1_000


def store_time_ms(store: Store) -> int:
    """UTC epoch milliseconds by the store's clock, never ahead of it."""
    store.put(CLOCK_FILE, b"")
    found = store.stat(CLOCK_FILE)
    if found is None:
        raise StoreError(f"{CLOCK_FILE} was just written to {store.url}, and is not there", path=CLOCK_FILE)
    return found.modified_ms


def is_past(then_ms: int, now_ms: int, *, what: str) -> bool:
    """Whether a noted time may be true. If it is to come, some clock was wrong, and a warning says so.

    :param now_ms: the time by the store's clock.
    :param what: what was noted, and where, such as ``"the last vacuum of lake/orders"``.
    """
    if then_ms <= now_ms + _SLACK_MS:
        return True
    _logger.warning(
        "%s has a time that is %.1f hours to come by the store's clock, so it is not trusted: the clock of the host "
        "that wrote it was wrong",
        what,
        (then_ms - now_ms) / 3_600_000,
    )
    return False


class StoreClock:
    """The time by a store's clock, at a cost of two requests an hour. In between, the host's clocks measure how much
    time has passed; if they differ, because one was set or the host slept, the store is asked again. A pickle holds no
    time."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        running_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._wall_ms = wall_ms
        self._running_ms = running_ms
        self._asked: tuple[int, int, int] | None = None
        """The time by the store's clock, by the host's, and by the one that nobody sets."""

    def __reduce__(self) -> tuple[type[StoreClock], tuple[()]]:
        return type(self), ()

    def now_ms(self, store: Store) -> int:
        """UTC epoch milliseconds. It may be a little behind the store's clock, and never ahead of it by more than the
        host's clocks run wrong within an hour."""
        asked = self._asked
        wall_ms, running_ms = self._wall_ms(), self._running_ms()
        if asked is not None:
            passed_ms = running_ms - asked[2]
            if 0 <= passed_ms <= _TRUSTED_MS and abs(wall_ms - asked[1] - passed_ms) <= _SAME_MS:
                return asked[0] + passed_ms
        now_ms = store_time_ms(store)
        self._asked = (now_ms, wall_ms, running_ms)
        return now_ms
