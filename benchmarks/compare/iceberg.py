"""Iceberg on Spark: format version 3, merge-on-read with deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.on_merge import OnMerge

__all__ = ["AWS_JAR", "JAR", "PROPERTIES", "SETTINGS", "SQLITE_JAR", "Iceberg", "name_of", "warehouse"]

JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
AWS_JAR = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""Iceberg's client of S3, for the benchmark of object storage."""
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.46.1.3"
"""For the catalog of that benchmark."""
_CATALOG = "compare"
SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    f"spark.sql.catalog.{_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
    f"spark.sql.catalog.{_CATALOG}.type": "hadoop",
    "spark.jars.packages": JAR,
}
"""Settings of a session, which also needs the warehouse: :func:`warehouse`."""
PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
"""Properties of a new table."""


def warehouse(scratch: Path) -> Mapping[str, str]:
    """The setting for tables that are folders of ``scratch``."""
    return {f"spark.sql.catalog.{_CATALOG}.warehouse": str(scratch.parent)}


def name_of(path: Path) -> str:
    """The name in SQL of the table in a folder. A Hadoop catalog's tables lie where their names say: namespace and
    table are folders of the warehouse."""
    return f"{_CATALOG}.{_below_catalog(path)}"


def _below_catalog(path: Path) -> str:
    return f"`{path.parent.name}`.`{path.name}`"


_REWRITE_AFTER = (5, 10, 20)
"""Commits between two runs of ``rewrite_data_files``; the best of the three counts."""


class Iceberg(OnMerge):
    format = "iceberg"
    upkeeps = tuple(Upkeep(f"rewrite_data_files after {commits} commits", {}, commits) for commits in _REWRITE_AFTER)
    configuration: Mapping[str, str] = {
        **SETTINGS,
        **PROPERTIES,
        "write.target-file-size-bytes": "a quarter of the table",
        "upsert": "MERGE ... WHEN MATCHED AND newer THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        "compaction": "rewrite_data_files with rewrite-all and remove-dangling-deletes",
    }

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "iceberg": JAR}

    def table(self, place: Place) -> str:
        return name_of(place.path)

    def properties(self, place: Place) -> Mapping[str, str]:
        return {**PROPERTIES, "write.target-file-size-bytes": str(place.file_bytes), **place.properties}

    def compact(self, place: Place) -> None:
        self._rewrite(place, ", options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')")

    def tidy(self, place: Place) -> None:
        """With the default options: small files are joined, and files with three tenths deleted are rewritten."""
        self._rewrite(place, "")

    def _rewrite(self, place: Place, options: str) -> None:
        table = _below_catalog(place.path)
        self.spark.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => '{table}'{options})")
