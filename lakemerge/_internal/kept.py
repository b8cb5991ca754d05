"""A cache for facts about files. Files of a table never change, so the facts do not change either."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Kept"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Keeps the values that were used last, up to ``limit_bytes`` in all. It is thread-safe. A pickle of it is
    empty."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type[Kept[K, V]], tuple[int]]:
        return Kept, (self._limit_bytes,)

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key][0]

    def keep(self, key: K, value: V, size_bytes: int) -> None:
        with self._lock:
            if key in self._known or size_bytes > self._limit_bytes:
                return
            self._known[key] = (value, size_bytes)
            self._bytes += size_bytes
            while self._bytes > self._limit_bytes:
                _, (_, oldest) = self._known.popitem(last=False)
                self._bytes -= oldest
