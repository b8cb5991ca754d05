"""LakeMerge on Spark: ``event-time``, and ``partial-update`` for updates of columns; as it comes, or with a minor
compaction after each commit, so that writers and not readers merge, as other engines have it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.on_spark import OnSpark, partial_columns
from benchmarks.compare.workload import WIDE, Frame
from benchmarks.tpch import Entity
from lakemerge import LakeTable
from lakemerge.read.reads_per_write import note_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AUTO", "DEFINITION", "INLINE", "LakeMergeOnSpark", "created", "matching", "newer"]

DEFINITION: Mapping[str, str] = {
    "merger": "event-time; for the wide table partial-update with ordering and unset=absent",
    "buckets": "chosen at the load",
    "compaction": "table.compact()",
}
INLINE: Mapping[str, str] = {
    "lakemerge.maintenance.inline": "true",
    "lakemerge.minorCompaction.afterCommits": "1",
    "lakemerge.compaction.ratio": "off",
}
"""Properties of a table whose upserts run a minor compaction themselves."""


def created(place: Place, spark: SparkSession | None = None, properties: Mapping[str, str] | None = None) -> LakeTable:
    """An empty table. Nothing is compacted unless the properties or a case say so."""
    entity, partial_update = place.entity, place.entity is WIDE
    return LakeTable.create(
        place.path,
        entity.ddl,
        key=list(entity.key),
        ordering=[entity.ordering],
        merger="partial-update" if partial_update else "event-time",
        options={"unset": "absent"} if partial_update else None,
        properties={"lakemerge.maintenance": "off", **(properties or {}), **place.properties},
        spark=spark,
    )


AUTO: Mapping[str, str] = {"lakemerge.maintenance": "auto"}
"""The default of a new table."""


def _set_to(reads: float) -> Upkeep:
    properties = {**AUTO, "lakemerge.maintenance.readsPerWrite": f"{reads:g}"}
    return Upkeep(f"readsPerWrite = {reads:g}", properties, reads_per_write=reads)


def _counting(reads: float) -> Upkeep:
    return Upkeep(f"auto, {reads:g} reads for each commit", AUTO, reads_per_write=reads, counts=True)


def matching(entity: Entity) -> str:
    """The condition of a merge."""
    return " AND ".join(f"target.{name} = source.{name}" for name in entity.key)


def newer(entity: Entity) -> str:
    """Whether a source row counts."""
    return f"source.{entity.ordering} >= target.{entity.ordering}"


class LakeMergeOnSpark(OnSpark):
    upkeeps = (Upkeep("auto", AUTO), _set_to(0.1), _counting(10), _counting(100))

    def __init__(self, spark: SparkSession, properties: Mapping[str, str] | None = None) -> None:
        """``properties``: of every table."""
        super().__init__(spark)
        self._properties = properties or {}
        self._tables: dict[Path, LakeTable] = {}

    @property
    def configuration(self) -> Mapping[str, str]:
        return {**DEFINITION, **self._properties, "reads": "table.to_df(columns=..., filter=...)"}

    @property
    def versions(self) -> Mapping[str, str | None]:
        project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
        return {**super().versions, "lakemerge": project["project"]["version"]}

    def load(self, place: Place, rows: Path) -> None:
        self._tables[place.path] = created(place, self.spark, self._properties)
        self._table(place).upsert(self.parquet(rows, place.entity))

    def upsert(self, place: Place, frame: Frame) -> None:
        self._table(place).upsert(self.frame(frame, place.entity))

    def merge(self, place: Place, frame: Frame) -> None:
        merge = self._table(place).merge(self.frame(frame, place.entity), matching(place.entity))
        merge.whenMatchedUpdateAll(newer(place.entity)).whenNotMatchedInsertAll().execute()

    def delete(self, place: Place, frame: Frame) -> None:
        keys = (*place.entity.key, place.entity.ordering)
        self._table(place).delete(self.frame(frame, place.entity, keys))

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        self._table(place).upsert(self.frame(frame, place.entity, partial_columns(place.entity, columns)))

    def compact(self, place: Place) -> None:
        self._table(place).compact()

    def note_reads(self, place: Place, reads: int) -> None:
        view = self._table(place).opened.view
        for _ in range(reads):
            note_read(view, view.file_slices)

    def rows(self, place: Place, columns: Sequence[str], condition: str | None) -> DataFrame:
        return self._table(place).to_df(columns=columns or None, filter=condition)

    def _table(self, place: Place) -> LakeTable:
        """It follows the tip, as other engines' cached tables do."""
        return self._tables[place.path]
