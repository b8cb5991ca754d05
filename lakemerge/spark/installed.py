"""Whether there is a PySpark that this package works with. Imports nothing else of Spark's, so that the answer comes
before an import fails."""

from __future__ import annotations

from lakemerge.errors import DependencyMissingError

__all__ = ["OLDEST_PYSPARK", "OLDEST_TO_WRITE", "can_write", "check_installed", "check_version", "check_writes"]

OLDEST_PYSPARK = (4, 0)
"""The oldest for catalogs and reads, as in pyproject.toml."""
OLDEST_TO_WRITE = (4, 1)
"""The oldest for everything else: Spark 4.0 lacks Arrow functions, Arrow writers of streams and ``repartitionById``."""
_REMEDY = "pip install 'lakemerge[spark]'"


def check_installed() -> None:
    """
    :raises DependencyMissingError: PySpark is not installed, or too old for reads.
    """
    check_version(_installed())


def check_writes(what: str) -> None:
    """
    :param what: what needs a Spark that can do more than read, such as ``an upsert of a Spark DataFrame``.
    :raises DependencyMissingError: PySpark is not installed, or too old for it.
    """
    version = _installed()
    check_version(version)
    if not can_write(version):
        raise DependencyMissingError(
            f"{what} needs PySpark {_shown(OLDEST_TO_WRITE)} or newer, in this program and on the cluster, and this is "
            f"{version}. On 4.0 catalogs and reads work: SELECT, spark.read.format('lakemerge'), and to_df of a table "
            "that was opened without a session. Tables are written without Spark, too"
        )


def can_write(version: str) -> bool:
    """Whether a version of PySpark can do more than read."""
    return _numbers(version) >= OLDEST_TO_WRITE


def check_version(version: str) -> None:
    """
    :param version: of PySpark.
    :raises DependencyMissingError: it is too old for reads.
    """
    if _numbers(version) < OLDEST_PYSPARK:
        raise DependencyMissingError(
            f"PySpark {version} is too old: LakeMerge needs {_shown(OLDEST_PYSPARK)} or newer, in this program and on "
            f"the cluster. {_REMEDY} installs it here"
        )


def _installed() -> str:
    try:
        import pyspark
    except ImportError as error:
        raise DependencyMissingError(f"Spark is not installed: {_REMEDY}") from error
    return str(pyspark.__version__)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
