"""The time by a store's own clock. The times of its files may be compared only with this clock."""

from __future__ import annotations

from typing import Final

from lakemerge.errors import StoreError
from lakemerge.storage.base import Store

__all__ = ["CLOCK_FILE", "store_time_ms"]

CLOCK_FILE: Final = "_lakemerge/.clock"
"""An empty file that is written to learn the time. It is never deleted, so that no other process misses it."""


def store_time_ms(store: Store) -> int:
    """UTC epoch milliseconds by the store's clock, never ahead of it."""
    store.put(CLOCK_FILE, b"")
    found = store.stat(CLOCK_FILE)
    if found is None:
        raise StoreError(f"{CLOCK_FILE} was just written to {store.url}, and is not there", path=CLOCK_FILE)
    return found.modified_ms
