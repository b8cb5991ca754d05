"""LakeMerge without Spark."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.compare.engine import Place
from benchmarks.compare.lakemerge_spark import DEFINITION, created, matching, newer
from benchmarks.compare.on_arrow import OnArrow
from benchmarks.compare.queries import Bound, condition
from benchmarks.compare.workload import Frame
from lakemerge import LakeTable

__all__ = ["LakeMergeOnArrow"]


class LakeMergeOnArrow(OnArrow):
    configuration: Mapping[str, str] = {**DEFINITION, "reads": "table.to_arrow(columns=..., filter=SQL)"}

    def __init__(self) -> None:
        self._tables: dict[Path, LakeTable] = {}

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "lakemerge": importlib.metadata.version("lakemerge")}

    def load(self, place: Place, rows: Path) -> None:
        self._tables[place.path] = created(place)
        self._tables[place.path].upsert(pq.read_table(rows))

    def upsert(self, place: Place, frame: Frame) -> None:
        self._tables[place.path].upsert(pq.read_table(frame.path))

    def merge(self, place: Place, frame: Frame) -> None:
        merge = self._tables[place.path].merge(pq.read_table(frame.path), matching(place.entity))
        merge.whenMatchedUpdateAll(newer(place.entity)).whenNotMatchedInsertAll().execute()

    def delete(self, place: Place, frame: Frame) -> None:
        keys = [*place.entity.key, place.entity.ordering]
        self._tables[place.path].delete(pq.read_table(frame.path, columns=keys))

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        self.upsert(place, frame)

    def compact(self, place: Place) -> None:
        self._tables[place.path].compact()

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        return self._tables[place.path].to_arrow(columns=columns or None, filter=condition(bounds))
