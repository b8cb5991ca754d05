"""The Python that runs our functions in Spark's tasks.

If nobody says which Python to use, PySpark runs ``python3``. If the driver's virtual environment is not activated, this
is another Python than the driver's. In local mode workers get the driver's Python. Elsewhere a job of one task checks
that the workers' Python has this package, so that users get a clear error and no traceback from within Spark.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from lakemerge.errors import DependencyMissingError
from lakemerge.spark.sessions import jvm_session, session_id

__all__ = ["prepare_workers", "use_own_python"]

_LOCAL = re.compile(r"local(\[.*\])?")
_UNSAID = "python3"
_NOT_THAT_PYTHON = re.compile(r"Cannot run program.*|\[PYTHON_VERSION_MISMATCH\].*")
_checked: set[tuple[str, str]] = set()
"""Pairs of an application and its Python that passed the check."""


def prepare_workers(spark: SparkSession) -> None:
    """Call this before a job that runs our Python. The first call may run a job of its own.

    :raises DependencyMissingError: the workers' Python lacks this package.
    """
    context = None if jvm_session(spark) is None else spark.sparkContext
    if context is not None:
        use_own_python(spark)
    key = (session_id(spark), "") if context is None else (str(context.applicationId), context.pythonExec)
    if key in _checked:
        return
    problem = None if context is not None and _is_own_python(context) else _problem(spark)
    if problem is not None:
        raise DependencyMissingError(
            f"Spark's Python workers cannot run LakeMerge: {problem}. Install it for the Python that they run, or "
            f"set PYSPARK_PYTHON {'for the Connect server' if context is None else 'for this program'}, before Spark "
            "starts, to a Python of theirs that has it"
        )
    _checked.add(key)


def use_own_python(spark: SparkSession) -> None:
    """Let local workers run the driver's Python, unless somebody chose another. This holds for all functions of the
    session."""
    if jvm_session(spark) is None:
        return
    context: Any = spark.sparkContext
    is_said = "PYSPARK_PYTHON" in os.environ or context.pythonExec != _UNSAID
    if not is_said and _LOCAL.fullmatch(context.master) and not context._conf.contains("spark.pyspark.python"):
        context.pythonExec = sys.executable


def _is_own_python(context: Any) -> bool:
    """Whether workers surely find this package: they run the driver's Python, and it finds the package by itself."""
    if not _LOCAL.fullmatch(context.master) or context.pythonExec != sys.executable:
        return False
    own = Path(__file__).resolve().parents[2]
    given = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return own in (*given, *(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")))


def _problem(spark: SparkSession) -> str | None:
    """Why a worker cannot import this package; ``None`` if it can."""

    # Nested, so that it is sent to the worker by value. It must not need the package that it looks for, nor pyarrow.
    def look(_: object) -> str | None:
        import sys

        try:
            import lakemerge.write.pack  # noqa: F401 - and with it what the package depends on
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told
            return f"{error} (in {sys.executable}, Python {sys.version.split()[0]})"
        return None

    look_there = functions.udf(look, "string", useArrow=False)
    try:
        answer = spark.range(0, 1, 1, 1).select(look_there("id")).collect()[0][0]
    except (PySparkException, importlib.import_module("py4j.protocol").Py4JError) as error:
        reason = _NOT_THAT_PYTHON.search(str(error))
        if reason is None:
            raise
        return reason[0]
    return None if answer is None else str(answer)
