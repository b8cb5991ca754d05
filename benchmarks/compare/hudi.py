"""Hudi on Spark: merge-on-read tables, with a bucket index or the default one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.on_spark import OnSpark, partial_columns, pruned
from benchmarks.compare.workload import WIDE, Frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BUCKET_INDEX", "SETTINGS", "Hudi"]

_JAR = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"
SETTINGS: Mapping[str, str] = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    "spark.jars.packages": _JAR,
}
"""Settings of a session."""
_TABLE = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
}
_COMPACTION = {
    "hoodie.compact.inline": "false",  # else every fifth commit compacts, where other engines have six pending
    "hoodie.compact.inline.max.delta.commits": "1",  # else one that is asked for is put off for want of commits
}
BUCKET_INDEX: Mapping[str, str] = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "SIMPLE",
    "hoodie.bucket.index.num.buckets": "4",
}


_INLINE = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "5"}


class Hudi(OnSpark):
    cannot: Mapping[str, str] = {"merge": "not measured: its MERGE INTO is its upsert with more to plan"}
    upkeeps = (Upkeep("inline compaction after 5 commits", _INLINE),)

    def __init__(self, spark: SparkSession, index: Mapping[str, str]) -> None:
        """``index``: the settings of the index; none for the default one."""
        super().__init__(spark)
        self._index = index

    @property
    def configuration(self) -> Mapping[str, str]:
        return {
            **SETTINGS,
            **_TABLE,
            **_COMPACTION,
            **self._index,
            "load": "operation bulk_insert",
            "upsert": "operation upsert, ordered by the time column",
            "partial update": "MERGE INTO ... WHEN MATCHED THEN UPDATE SET (changed columns)",
            "compaction": "run_compaction: schedule, run",
        }

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "hudi": _JAR}

    def load(self, place: Place, rows: Path) -> None:
        for name, value in {**_COMPACTION, **place.properties}.items():  # for SQL, which takes no options
            self.spark.conf.set(name, value)
        self._write(self.parquet(rows, place.entity), place, "bulk_insert")
        if place.entity is WIDE:  # SQL's MERGE knows tables by name
            properties = {"type": "mor", **self._index}
            listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            made = f"CREATE TABLE {place.path.name} USING hudi TBLPROPERTIES ({listed}) LOCATION '{place.path}'"
            self.spark.sql(made)

    def upsert(self, place: Place, frame: Frame) -> None:
        self._write(self.frame(frame, place.entity), place, "upsert")

    def delete(self, place: Place, frame: Frame) -> None:
        self._write(self.frame(frame, place.entity), place, "delete")

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        """By MERGE, which alone logs a partial update as one."""
        self.frame(frame, place.entity, partial_columns(place.entity, columns))
        keys = " AND ".join(f"t.{key} = s.{key}" for key in place.entity.key)
        changes = ", ".join(f"t.{name} = s.{name}" for name in (place.entity.ordering, *columns))
        self.spark.sql(
            f"MERGE INTO {place.path.name} t USING source s ON {keys} WHEN MATCHED THEN UPDATE SET {changes}"
        )

    def compact(self, place: Place) -> None:
        for step in ("schedule", "run"):
            self.spark.sql(f"CALL run_compaction(op => '{step}', path => '{place.path}')").collect()

    def rows(self, place: Place, columns: Sequence[str], condition: str | None) -> DataFrame:
        rows = self.spark.read.format("hudi").load(str(place.path))
        return pruned(rows, columns or place.entity.names, condition)

    def _write(self, rows: DataFrame, place: Place, operation: str) -> None:
        options = {
            **_TABLE,
            **_COMPACTION,
            **self._index,
            **place.properties,
            "hoodie.table.name": place.path.name,
            "hoodie.datasource.write.recordkey.field": ",".join(place.entity.key),
            "hoodie.datasource.write.precombine.field": place.entity.ordering,
            "hoodie.datasource.write.operation": operation,
        }
        mode = "overwrite" if operation == "bulk_insert" else "append"
        rows.write.format("hudi").options(**options).mode(mode).save(str(place.path))
