"""Caches for small files, and for facts about files. Files of a table never change, so both stay true."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Final, Generic, TypeVar

from mergers.interrupts import is_foreign

__all__ = ["Cache", "Fetched"]

_FEW: Final = 16

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Keeps the values that were used last, up to ``limit_bytes`` in all. It is thread-safe. A pickle of it is
    empty.

    :param entry_bytes: each value counts as so many bytes more than its size. So their number is bounded, too.
    """

    def __init__(self, limit_bytes: int, entry_bytes: int = 0) -> None:
        self._limit_bytes = limit_bytes
        self._entry_bytes = entry_bytes
        self._left = _FEW
        """How many values the last :meth:`prune` left."""
        self._lock = threading.Lock()
        self._known: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type[Cache[K, V]], tuple[int, ...]]:
        return Cache, (self._limit_bytes, self._entry_bytes)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key][0]

    def has_room(self, size_bytes: int) -> bool:
        """Whether a value of that size can be kept without forgetting another one."""
        with self._lock:
            return self._bytes + size_bytes + self._entry_bytes <= self._limit_bytes

    def keep(self, key: K, value: V, size_bytes: int) -> None:
        size_bytes += self._entry_bytes
        with self._lock:
            if key in self._known or size_bytes > self._limit_bytes:
                return
            self._known[key] = (value, size_bytes)
            self._bytes += size_bytes
            while self._bytes > self._limit_bytes:
                _, (_, oldest) = self._known.popitem(last=False)
                self._bytes -= oldest

    def prune(self, of_use: Callable[[], Callable[[K], bool] | None]) -> None:
        """Forget the values that are of no use any more. It does so only when twice as many are kept as the last time
        left. So calls are cheap however often they are made.

        :param of_use: gives a function that tells by the key whether a value is still of use; ``None``: nobody knows.
        """
        with self._lock:
            if len(self._known) < 2 * self._left:
                return
        is_of_use = of_use()
        if is_of_use is None:
            return
        with self._lock:
            for key in [key for key in self._known if not is_of_use(key)]:
                self._bytes -= self._known.pop(key)[1]
            self._left = max(_FEW, len(self._known))


class Fetched:
    """Bytes that are fetched once and kept like values of :class:`Cache`. Threads that ask for the same bytes at the
    same time wait for one fetch."""

    def __init__(self, limit_bytes: int, entry_bytes: int = 0) -> None:
        self._kept: Cache[str, bytes] = Cache(limit_bytes, entry_bytes)
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[bytes]] = {}

    def get(self, key: str, fetch: Callable[[], bytes]) -> bytes:
        """The bytes of ``key``. If ``fetch`` raises, everybody who waits gets the error, and nothing is kept. What
        interrupts one thread is no answer for the others: one of them fetches then."""
        while True:
            own: Future[bytes] = Future()
            try:
                with self._lock:
                    known = self._kept.get(key)
                    if known is not None:
                        return known
                    other = self._under_way.get(key)
                    if other is None or other.done():
                        other = self._under_way[key] = own
                if other is own:
                    data = fetch()
                    self._kept.keep(key, data, len(data))
                    own.set_result(data)
                    return data
            except BaseException as error:
                if not own.done() and not is_foreign(error):
                    own.set_exception(error)
                raise
            finally:
                # An exception may come between any two lines. Nobody may wait for ever for this thread.
                if not own.done():
                    own.cancel()
                with self._lock:
                    if self._under_way.get(key) is own:
                        del self._under_way[key]
            with contextlib.suppress(CancelledError):
                return other.result()
