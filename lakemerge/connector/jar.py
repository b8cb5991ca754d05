"""The catalog in the jar, which this package ships."""

from __future__ import annotations

from lakemerge.spark.jar import CATALOG_CLASS, jar_path, jar_version

__all__ = ["CATALOG_CLASS", "jar_path", "jar_version"]
