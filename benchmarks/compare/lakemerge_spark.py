"""LakeMerge on Spark, as it comes: ``event-time``, and ``partial-update`` for updates of columns."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.engine import Place
from benchmarks.compare.on_spark import OnSpark, partial_columns
from benchmarks.compare.workload import WIDE, Frame
from lakemerge import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DEFINITION", "LakeMergeOnSpark", "created"]

DEFINITION: Mapping[str, str] = {
    "merger": "event-time; for the wide table partial-update with ordering and unset=absent",
    "buckets": "chosen at the load",
    "compaction": "table.compact()",
}


def created(place: Place, spark: SparkSession | None = None) -> LakeTable:
    """An empty table."""
    entity, partial_update = place.entity, place.entity is WIDE
    return LakeTable.create(
        place.path,
        entity.ddl,
        key=list(entity.key),
        ordering=[entity.ordering],
        merger="partial-update" if partial_update else "event-time",
        options={"unset": "absent"} if partial_update else None,
        spark=spark,
    )


class LakeMergeOnSpark(OnSpark):
    configuration: Mapping[str, str] = {**DEFINITION, "reads": "table.to_df(columns=..., filter=...)"}

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._tables: dict[Path, LakeTable] = {}

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "lakemerge": importlib.metadata.version("lakemerge")}

    def load(self, place: Place, rows: Path) -> None:
        self._tables[place.path] = created(place, self.spark)
        self._table(place).upsert(self.parquet(rows, place.entity))

    def upsert(self, place: Place, frame: Frame) -> None:
        self._table(place).upsert(self.frame(frame, place.entity))

    def delete(self, place: Place, frame: Frame) -> None:
        keys = (*place.entity.key, place.entity.ordering)
        self._table(place).delete(self.frame(frame, place.entity, keys))

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        self._table(place).upsert(self.frame(frame, place.entity, partial_columns(place.entity, columns)))

    def compact(self, place: Place) -> None:
        self._table(place).compact()

    def rows(self, place: Place, columns: Sequence[str], condition: str | None) -> DataFrame:
        return self._table(place).to_df(columns=columns or None, filter=condition)

    def _table(self, place: Place) -> LakeTable:
        """It follows the tip, as other engines' cached tables do."""
        return self._tables[place.path]
