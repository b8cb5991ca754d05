"""Spark sessions: how to tell them apart, whether one is still running, and how to change settings of one while our job
runs, if Spark has no option of a single job for them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakemerge.errors import InputError
from mergers.wording import argument

__all__ = ["active_session", "is_running", "jvm_session", "running_session", "session_id", "session_settings"]


def jvm_session(spark: SparkSession) -> Any:
    """The session object in the JVM; ``None`` under Spark Connect, where the JVM is on another host."""
    return getattr(spark, "_jsparkSession", None)


def session_id(spark: SparkSession) -> str:
    """An id that differs from those of all other sessions, also of those before a restart."""
    session = jvm_session(spark)
    return str(cast("Any", spark).session_id if session is None else session.sessionUUID())


def is_running(spark: SparkSession) -> bool:
    """Whether the session was not stopped, in Python or in the JVM."""
    if jvm_session(spark) is None:
        return not cast("Any", spark).is_stopped
    context = cast("Any", spark)._sc._jsc
    try:
        return context is not None and not context.sc().isStopped()
    except (importlib.import_module("py4j.protocol").Py4JError, OSError):
        return False  # its JVM is gone


def active_session() -> SparkSession | None:
    """The running session of the calling thread, or else of the process."""
    try:
        session = SparkSession.active()
    except PySparkException:
        return None
    return session if is_running(session) else None


def running_session(given: SparkSession | None) -> SparkSession:
    """The session, or the active one if none is given or it was stopped.

    :raises InputError: there is none.
    """
    if given is not None and is_running(given):
        return given
    session = active_session()
    if session is None and given is None:
        raise InputError(
            f"there is no active Spark session; start one, or pass {argument('spark', '...')} to LakeTable.open"
        )
    if session is None:
        raise InputError(
            "the Spark session that this table was opened with was stopped, and no other one is active; start one and "
            f"call again, or open the table without {argument('spark', '...')} to work in this process"
        )
    return session


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
