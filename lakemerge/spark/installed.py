"""Whether there is a PySpark that this package works with. Imports nothing else of Spark's, so that the answer comes
before an import fails."""

from __future__ import annotations

from lakemerge.errors import DependencyMissingError

__all__ = ["OLDEST_PYSPARK", "check_installed", "check_version"]

OLDEST_PYSPARK = (4, 1)
"""As in pyproject.toml."""
_REMEDY = "pip install 'lakemerge[spark]'"


def check_installed() -> None:
    """
    :raises DependencyMissingError: PySpark is not installed, or too old.
    """
    try:
        import pyspark
    except ImportError as error:
        raise DependencyMissingError(f"Spark is not installed: {_REMEDY}") from error
    check_version(pyspark.__version__)


def check_version(version: str) -> None:
    """
    :param version: of PySpark.
    :raises DependencyMissingError: it is too old.
    """
    if tuple(map(int, version.split(".")[:2])) < OLDEST_PYSPARK:
        oldest = ".".join(map(str, OLDEST_PYSPARK))
        raise DependencyMissingError(
            f"PySpark {version} is too old: LakeMerge needs {oldest} or newer, in this program and on the cluster. "
            f"{_REMEDY} installs it here"
        )
