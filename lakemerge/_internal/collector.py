"""Python's garbage collector, out of the way of large plans."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["collector_paused"]

_turn = threading.RLock()
"""Between asking whether it is on and turning it off, no other thread may turn it on."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Python's collector is off in the block. Where hundreds of thousands of values are made that all stay, it would
    search each time there are a quarter more, and find nothing. That takes up to half of the time.

    It is off for all threads, so a block must not wait for anything. Where several threads pause it, the one that
    turned it off turns it on again.
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
