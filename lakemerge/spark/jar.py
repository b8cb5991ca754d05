"""The jar for Spark, and how threads of a session find its classes."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JAR", "SWITCH", "hidden_jar", "is_forbidden", "show_jar"]

JAR = Path(__file__).resolve().parents[1] / "connector" / "lakemerge-spark.jar"
SWITCH = "LAKEMERGE_CONNECTOR"
"""The environment variable that forbids the jar: ``off``."""
_LOADERS = ("MutableURLClassLoader", "ChildFirstURLClassLoader")
"""Spark's class loaders that take another jar."""


def is_forbidden() -> bool:
    return os.environ.get(SWITCH, "on").lower() == "off"


def show_jar(spark: SparkSession) -> None:
    """Let all threads of a classic session's driver find the classes of the jar.

    ``ADD JAR`` does that for the thread that calls it, and sends the jar to executors. The loader that all threads
    share is the one that Spark was submitted with. A platform that has none, or that keeps it from Python, keeps to
    ``ADD JAR``.
    """
    if is_forbidden() or getattr(spark, "_jsparkSession", None) is None:
        return
    context: Any = cast("Any", spark).sparkContext
    if str(context.applicationId) in _shared:
        return
    jvm, shared = context._jvm, None
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        while loader is not None:
            if loader.getClass().getSimpleName() in _LOADERS:
                shared = loader
            loader = loader.getParent()
        if shared is not None:
            shared.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())
    except importlib.import_module("py4j.protocol").Py4JError:
        shared = None  # some platforms let Python call a few methods only
    _shared[str(context.applicationId)] = shared


_shared: dict[str, Any] = {}
"""Applications -> the loader that has the jar; ``None`` where there is none."""


@contextlib.contextmanager
def hidden_jar(spark: SparkSession) -> Iterator[None]:
    """The calling thread does not find the jar. Spark registers no Python data source of a name for which it finds a
    class, unless it knows a Python one before."""
    context: Any = None if getattr(spark, "_jsparkSession", None) is None else cast("Any", spark).sparkContext
    shared = None if context is None else _shared.get(str(context.applicationId))
    if shared is None:
        yield
        return
    thread = context._jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(shared.getParent())
    try:
        yield
    finally:
        thread.setContextClassLoader(before)
