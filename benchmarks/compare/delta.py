"""Delta on Spark: MERGE with deletion vectors."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.on_merge import OnMerge

__all__ = ["SETTINGS", "Delta"]

SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.jars.packages": f"io.delta:delta-spark_4.2_2.13:{importlib.metadata.version('delta-spark')}",
}
"""Settings of a session."""
_PROPERTIES = {"delta.enableDeletionVectors": "true"}


_AUTO = {"delta.autoOptimize.autoCompact": "true", "delta.autoOptimize.optimizeWrite": "true"}


class Delta(OnMerge):
    format = "delta"
    upkeeps = (Upkeep("auto compaction and optimized writes", _AUTO),)
    configuration: Mapping[str, str] = {
        **SETTINGS,
        **_PROPERTIES,
        "spark.databricks.delta.optimize.maxFileSize": "a quarter of the table",
        "upsert": "MERGE ... WHEN MATCHED AND newer THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        "compaction": "OPTIMIZE, then REORG TABLE ... APPLY (PURGE)",
    }

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "delta-spark": importlib.metadata.version("delta-spark")}

    def table(self, place: Place) -> str:
        return f"delta.`{place.path}`"

    def properties(self, place: Place) -> Mapping[str, str]:
        return {**_PROPERTIES, **place.properties}

    def compact(self, place: Place) -> None:
        self.spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(place.file_bytes))
        self.spark.sql(f"OPTIMIZE {self.table(place)}")
        self.spark.sql(f"REORG TABLE {self.table(place)} APPLY (PURGE)")
