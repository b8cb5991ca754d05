"""The jar with the catalog, which this package ships."""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path

from lakemerge.spark.jar import JAR

__all__ = ["CATALOG_CLASS", "jar_path", "jar_version"]

CATALOG_CLASS = "lakemerge.spark.LakeMergeCatalog"
_VERSION = "lakemerge/spark/version"
"""The entry that names the sources of the jar."""


def jar_path() -> Path:
    """Where the jar is, for ``spark-submit --jars`` and servers."""
    return JAR


@functools.cache
def jar_version() -> str:
    """A digest of the sources that the jar was built from."""
    with zipfile.ZipFile(jar_path()) as jar:
        return jar.read(_VERSION).decode().strip()
