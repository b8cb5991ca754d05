"""What Python's garbage collector need not search, and when it is off."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["collector_paused", "spare_survivors"]

_ALL_AGAIN: Final = 128
"""After so many works the collector searches everything once."""

_works = itertools.count(1)

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


def spare_survivors() -> None:
    """Call this where work of a Spark worker begins: a task, or a request of the driver's JVM. The collector then
    passes over what is there already.

    After each work Spark's worker has the collector search the whole process. With this library, and the tables that it
    keeps, that takes longer than to answer a small request. What is there when the next work begins has survived such
    a search. It is freed as ever where nothing refers to it. Only what refers to itself waits, until everything is
    searched again.
    """
    if "SPARK_REUSE_WORKER" not in os.environ:
        return
    if next(_works) % _ALL_AGAIN:
        gc.freeze()
    else:
        gc.unfreeze()
