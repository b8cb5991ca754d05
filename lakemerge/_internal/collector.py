"""Pauses Python's garbage collector while large plans are made."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["collector_paused"]

_turn = threading.RLock()
"""A lock: no other thread may turn the collector on between the check that it is on and turning it off."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Python's collector is off in the block. If hundreds of thousands of values are made that all stay, the collector
    would search all of them each time their number has grown by a quarter, and find nothing. That takes up to half of
    the time.

    It is off for all threads, so a block must not wait for anything. If several threads pause it, the one that turned
    it off turns it on again.
    """
    was_on = False
    try:
        with _turn:
            was_on = gc.isenabled()
            gc.disable()
        yield
    finally:
        if was_on:
            with _turn:
                gc.enable()
