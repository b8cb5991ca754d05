"""Counts what Arrow allocates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

__all__ = ["counted"]

_made: list[Any] = []
"""They stay, because Python frees some of what was allocated of them later, and that crashes without them."""


@contextmanager
def counted() -> Iterator[Any]:
    """Arrow's memory comes from the pool that this gives, which counts it."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _made.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
