"""Spark sessions: how to tell them apart, and whether one is still running."""

from __future__ import annotations

import importlib
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakemerge.errors import InputError
from mergers.wording import argument

__all__ = ["active_session", "is_running", "jvm_session", "running_session", "session_id"]


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
