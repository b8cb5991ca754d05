"""The catalog in the jar, which this package ships."""

from __future__ import annotations

from lakemerge.spark.jar import jar_path, jar_version

__all__ = ["CATALOG_CLASS", "jar_path", "jar_version"]

CATALOG_CLASS = "lakemerge.spark.LakeMergeCatalog"
