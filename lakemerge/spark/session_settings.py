"""Changes settings of a session while a job of ours runs, if Spark has no option of a single job for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakemerge.spark.sessions import is_running, session_id

__all__ = ["session_settings"]

_lock = threading.Lock()


@dataclass(slots=True)
class _Held:
    value: str
    before: str | None
    users: int


_held: dict[tuple[str, str], _Held] = {}
"""Session and name -> the setting that blocks hold now."""


@contextmanager
def session_settings(spark: SparkSession, wanted: Mapping[str, str], *, only_unset: bool = False) -> Iterator[None]:
    """The session has the wanted settings while the block runs.

    Blocks in other threads do not wait: all blocks that want a setting share it, and the last one that ends restores
    the value from before the first. The user's own jobs that are planned meanwhile in the same session see the
    settings, too.

    :param only_unset: leave the session as it is if the user has set one of them.
    """
    session = session_id(spark)
    names = [(session, name) for name in wanted]
    with _lock:
        before = {key: spark.conf.get(key[1], None) for key in names if key not in _held}
        if only_unset and any(value is not None for value in before.values()):
            names = []
        for key in names:
            _take(spark, key, wanted[key[1]], before.get(key))
    try:
        yield
    finally:
        with _lock:
            for key in names:
                _give_back(spark, key)


def _take(spark: SparkSession, key: tuple[str, str], value: str, before: str | None) -> None:
    held = _held.get(key)
    if held is None:
        spark.conf.set(key[1], value)
        _held[key] = _Held(value, before, 1)
        return
    if held.value != value:
        raise AssertionError(f"{key[1]} is wanted as {value} while it is held as {held.value}")
    held.users += 1


def _give_back(spark: SparkSession, key: tuple[str, str]) -> None:
    held = _held[key]
    held.users -= 1
    if held.users:
        return
    del _held[key]
    if not is_running(spark):
        return
    if held.before is None:
        spark.conf.unset(key[1])
    else:
        spark.conf.set(key[1], held.before)
