"""What Python's garbage collector need not search, and when it is off."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

__all__ = ["collector_paused", "spare_survivors", "watch_searches"]

_FULL: Final = 2
"""The generation of a search of the whole process."""
_ALL_AGAIN: Final = 128
"""One in so many full searches passes over nothing."""

_searches = itertools.count(1)
_watching: Final[list[Callable[[str], None]]] = []

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


def watch_searches(watch: Callable[[str], None]) -> None:
    """In a Spark worker, call ``watch("start")`` before each search of the whole process for garbage, and
    ``watch("stop")`` after it. After each task, and each request of the driver's JVM, the worker has the collector do
    such a search."""
    if "SPARK_REUSE_WORKER" in os.environ and watch not in _watching:
        _watching.append(watch)
        if _tell not in gc.callbacks:
            gc.callbacks.append(_tell)


def _tell(phase: str, info: Mapping[str, int]) -> None:
    if info["generation"] == _FULL:
        for watch in _watching:
            watch(phase)


def spare_survivors() -> None:
    """In a Spark worker, let each full search for garbage pass over what survived the one before it.

    With this library, and the tables that it keeps, such a search takes longer than to answer a small request. What
    survived a search is still freed as soon as nothing refers to it. What refers to itself waits until everything is
    searched again.
    """
    watch_searches(_spare)


def _spare(phase: str) -> None:
    if phase == "stop":
        gc.freeze()
    elif not next(_searches) % _ALL_AGAIN:
        gc.unfreeze()
