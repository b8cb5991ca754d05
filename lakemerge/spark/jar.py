"""The jar that this package ships, and how a session and its threads find its classes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CATALOG_CLASS",
    "PATHS",
    "SWITCH",
    "add_jar",
    "hidden_jar",
    "is_forbidden",
    "jar_class",
    "jar_path",
    "jar_version",
    "show_jar",
]

CATALOG_CLASS = "lakemerge.spark.LakeMergeCatalog"
PATHS = "lakemerge"
"""The name of the catalog whose tables are named by their paths."""

SWITCH = "LAKEMERGE_CONNECTOR"
"""The environment variable that forbids the jar: ``off``."""
_VERSION = "lakemerge/spark/version"
"""The entry that names the sources of the jar."""
_LOADERS = ("MutableURLClassLoader", "ChildFirstURLClassLoader")
"""Spark's class loaders that take another jar."""


def jar_path() -> Path:
    """Where the jar is, for ``spark-submit --jars`` and servers."""
    return Path(__file__).resolve().parents[1] / "connector" / "lakemerge-spark.jar"


@functools.cache
def jar_version() -> str:
    """A digest of the sources that the jar was built from."""
    with zipfile.ZipFile(jar_path()) as jar:
        return jar.read(_VERSION).decode().strip()


def is_forbidden() -> bool:
    return os.environ.get(SWITCH, "on").lower() == "off"


def add_jar(spark: SparkSession) -> None:
    """Give a session's driver and executors the jar, once. Under Connect the server gets it."""
    from lakemerge.spark.sessions import jvm_session, session_id

    if session_id(spark) in _added:
        return
    show_jar(spark)
    if jvm_session(spark) is None:
        spark.addArtifacts(str(jar_path()))
    elif f"/{jar_path().name}" not in cast("Any", spark).sparkContext._jsc.sc().listJars().mkString(","):
        spark.sql(f"ADD JAR '{jar_path().as_uri()}'")
    _added.add(session_id(spark))


_added: set[str] = set()
"""Sessions that have the jar."""


def jar_class(spark: SparkSession, name: str) -> Any:
    """A new object of a class of the jar, in the JVM of a classic session. Any thread may call this."""
    from lakemerge.spark.sessions import jvm_session

    add_jar(spark)
    gateway: Any = cast("Any", spark).sparkContext._gateway
    # Where no loader is shared by all threads, this one has what ADD JAR added.
    loader = jvm_session(spark).sharedState().jarClassLoader()
    found = gateway.jvm.java.lang.Class.forName(name, True, loader)
    none = gateway.new_array(gateway.jvm.java.lang.Class, 0)
    return found.getConstructor(none).newInstance(gateway.new_array(gateway.jvm.java.lang.Object, 0))


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
            shared.addURL(jvm.java.io.File(str(jar_path())).toURI().toURL())
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
    # The first thread that needs this state makes it, and its loader serves all: it has to find users' jars.
    cast("Any", spark)._jsparkSession.sessionState()
    thread = context._jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(shared.getParent())
    try:
        yield
    finally:
        thread.setContextClassLoader(before)
