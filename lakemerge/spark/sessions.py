"""Spark sessions: how to tell them apart, whether one is still running, and which Python their workers run. Also how to
change settings of one while our job runs, if Spark has no option of a single job for them."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from lakemerge.errors import DependencyMissingError, InputError
from mergers.wording import argument

__all__ = [
    "OLDEST_PYARROW",
    "WORKERS_NEED",
    "active_session",
    "is_running",
    "jvm_session",
    "made_active",
    "prepare_workers",
    "running_session",
    "session_id",
    "session_settings",
    "unlike_here",
    "use_own_python",
    "why_unplanned",
]

_LOCAL = re.compile(r"local(\[.*\])?")
_UNSAID = "python3"
OLDEST_PYARROW = 19
"""The oldest major version, as in pyproject.toml."""
WORKERS_NEED = ("lakemerge", "mergers", "compaction", "fsspec", "numpy", "orjson", "pyarrow", "sqlglot")
"""What workers import: this package and what it always needs, as in pyproject.toml."""
_NOT_THAT_PYTHON = re.compile(r"Cannot run program.*|\[PYTHON_VERSION_MISMATCH\].*")
_checked: set[tuple[str, str]] = set()
"""Pairs of an application and its Python that passed the check."""
_chosen: set[str] = set()
"""Applications whose Python was chosen here."""


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


@contextmanager
def made_active(spark: SparkSession) -> Iterator[None]:
    """A classic session is the active one of the calling thread. Spark looks for data sources in the active session,
    also when it registers one in another. Some platforms let Python call a few methods only: there nothing changes."""
    session = jvm_session(spark)
    if session is None:
        yield
        return
    forbidden = (importlib.import_module("py4j.protocol").Py4JError, TypeError)
    restore: Callable[[], object] | None = None
    with suppress(*forbidden):
        sessions = cast("Any", spark).sparkContext._jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        again = partial(sessions.setActiveSession, before.get()) if before.isDefined() else sessions.clearActiveSession
        sessions.setActiveSession(session)
        restore = again
    try:
        yield
    finally:
        if restore is not None:
            with suppress(*forbidden):
                restore()


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


# The Python that runs our functions in Spark's tasks. If nobody says which Python to use, PySpark runs ``python3``. If
# the driver's virtual environment is not activated, this is another Python than the driver's. In local mode workers get
# the driver's Python. Elsewhere a job of one task checks that the workers' Python has this package, so that users get a
# clear error and no traceback from within Spark.


def prepare_workers(spark: SparkSession) -> None:
    """Call this before a job that runs our Python. The first call may run a job of its own.

    :raises DependencyMissingError: the workers' Python lacks this package, or has another version of it.
    """
    context = None if jvm_session(spark) is None else spark.sparkContext
    if context is not None:
        use_own_python(spark)
    key = (session_id(spark), "") if context is None else (str(context.applicationId), context.pythonExec)
    if key in _checked:
        return
    problem = None if context is not None and _is_own_python(context) else _problem_of_workers(spark)
    if problem is not None:
        whose = "the Connect server" if context is None else "this program"
        raise DependencyMissingError(
            f"Spark's Python workers cannot run LakeMerge: {problem}. Install it with what it needs for the Python "
            f"that they run, as it is here, or set PYSPARK_PYTHON for {whose}, before Spark starts, to a Python of "
            "theirs that has it, or send an environment with the job (spark.archives)"
        )
    _checked.add(key)


def why_unplanned(spark: SparkSession) -> str | None:
    """Why Spark cannot plan a read of a Python data source; ``None`` if it can. The driver's JVM does so by the Python
    that workers run, which the driver may lack where a job sends an environment."""
    if jvm_session(spark) is None:
        return None
    python = str(cast("Any", spark).sparkContext.pythonExec)
    if shutil.which(python) is not None:
        return None
    return f"the driver has no {python}, with which Spark plans tasks of a Python data source"


def use_own_python(spark: SparkSession) -> bool:
    """Let local workers run the driver's Python, unless somebody chose another. This holds for all functions of the
    session. Returns whether the Python of this application was chosen here."""
    if jvm_session(spark) is None:
        return False
    context: Any = spark.sparkContext
    is_said = "PYSPARK_PYTHON" in os.environ or context.pythonExec != _UNSAID
    if not is_said and _LOCAL.fullmatch(context.master) and not context._conf.contains("spark.pyspark.python"):
        context.pythonExec = sys.executable
        _chosen.add(str(context.applicationId))
    return str(context.applicationId) in _chosen


def _is_own_python(context: Any) -> bool:
    """Whether workers surely find this package: they run the driver's Python, and it finds the package by itself."""
    if not _LOCAL.fullmatch(context.master) or context.pythonExec != sys.executable:
        return False
    own = Path(__file__).resolve().parents[2]
    given = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return own in (*given, *(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")))


def _problem_of_workers(spark: SparkSession) -> str | None:
    """Why a worker cannot run this package; ``None`` where it can."""
    needed = WORKERS_NEED

    # Nested, so that it goes to the worker by value: it must not need what it looks for, nor pyarrow.
    def look(_: object) -> str:
        import json
        import sys
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec

        told = {"python": f"{sys.executable}, Python {sys.version.split()[0]}"}
        told["missing"] = ", ".join(name for name in needed if find_spec(name) is None)
        try:
            import lakemerge.write.pack  # noqa: F401 - and with it what the package depends on

            told["pyarrow"] = version("pyarrow")
            told["lakemerge"] = version("lakemerge")
        except PackageNotFoundError:
            pass  # the package is there as a folder, which has no version
        except Exception as error:  # noqa: BLE001 - the driver reports any error
            told["failed"] = str(error)
        return json.dumps(told)

    look_there = functions.udf(look, "string", useArrow=False)
    try:
        answer = spark.range(0, 1, 1, 1).select(look_there("id")).collect()[0][0]
    except (PySparkException, importlib.import_module("py4j.protocol").Py4JError) as error:
        reason = _NOT_THAT_PYTHON.search(str(error))
        if reason is None:
            raise
        return reason[0]
    return unlike_here(json.loads(answer))


def unlike_here(told: Mapping[str, str]) -> str | None:
    """Why packages of the workers do not do; ``None`` where they do.

    :param told: versions of ``lakemerge`` and ``pyarrow`` there, as far as they are known, which ``python`` they are
        of, what is ``missing`` there, and why an import ``failed``, if one did.
    """
    where = f"(in {told['python']})"
    if told.get("missing"):
        return f"they lack {told['missing']} {where}"
    if "failed" in told:
        return f"{told['failed']} {where}"
    own = _version("lakemerge")
    if own is not None and told.get("lakemerge", own) != own:
        return f"they have lakemerge {told['lakemerge']}, and this program has {own} {where}"
    if "pyarrow" in told and int(told["pyarrow"].split(".")[0]) < OLDEST_PYARROW:
        return f"they have pyarrow {told['pyarrow']}, and {OLDEST_PYARROW} is the oldest that does {where}"
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
