"""Engines that upsert with SQL's MERGE: Delta and Iceberg."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.engine import Place
from benchmarks.compare.on_spark import OnSpark, merge_source, partial_columns, pruned
from benchmarks.compare.workload import Frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OnMerge"]


class OnMerge(OnSpark):
    """An engine whose tables have a name in SQL."""

    format: str
    """As ``USING`` names it."""

    @abstractmethod
    def table(self, place: Place) -> str:
        """The table's name in SQL."""

    @abstractmethod
    def properties(self, place: Place) -> Mapping[str, str]:
        """Properties of a new table."""

    def load(self, place: Place, rows: Path) -> None:
        self.parquet(rows, place.entity).createOrReplaceTempView("source")
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self.properties(place).items())
        made = f"CREATE TABLE {self.table(place)} USING {self.format} TBLPROPERTIES ({properties})"
        self.spark.sql(f"{made} AS SELECT * FROM source")

    def upsert(self, place: Place, frame: Frame) -> None:
        self.frame(frame, place.entity)
        newer = f"s.{place.entity.ordering} >= t.{place.entity.ordering}"
        changes = f"WHEN MATCHED AND {newer} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        self._merge(place, merge_source(place.entity, frame), changes)

    def delete(self, place: Place, frame: Frame) -> None:
        self.frame(frame, place.entity)
        newer = f"s.{place.entity.ordering} >= t.{place.entity.ordering}"
        self._merge(place, merge_source(place.entity, frame), f"WHEN MATCHED AND {newer} THEN DELETE")

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        self.frame(frame, place.entity, partial_columns(place.entity, columns))
        changes = ", ".join(f"t.{name} = s.{name}" for name in (place.entity.ordering, *columns))
        self._merge(place, "source", f"WHEN MATCHED THEN UPDATE SET {changes}")

    def rows(self, place: Place, columns: Sequence[str], condition: str | None) -> DataFrame:
        return pruned(self.spark.table(self.table(place)), columns, condition)

    def _merge(self, place: Place, source: str, changes: str) -> None:
        keys = " AND ".join(f"t.{key} = s.{key}" for key in place.entity.key)
        self.spark.sql(f"MERGE INTO {self.table(place)} t USING {source} s ON {keys} {changes}")
