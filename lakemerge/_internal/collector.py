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
    """Of hundreds of thousands of values that all stay, Python's collector would search each time there are a
    quarter more, and find nothing: up to half of the time.

    It is off for all threads, so not while anything is waited for. Of pauses in several threads, the end of the one
    that turned it off turns it on.
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
