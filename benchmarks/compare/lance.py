"""Lance: ``merge_insert`` writes new rows and marks those that they replace."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.compare.engine import Place
from benchmarks.compare.on_arrow import OnArrow, newest
from benchmarks.compare.queries import Bound, condition
from benchmarks.compare.workload import Frame

__all__ = ["Lance"]


class Lance(OnArrow):
    configuration: Mapping[str, str] = {
        "upsert": "merge_insert, when matched and newer update all, else insert all",
        "compaction": "optimize.compact_files",
        "reads": "dataset.to_table(columns=..., filter=...)",
    }

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "pylance": importlib.metadata.version("pylance")}

    def load(self, place: Place, rows: Path) -> None:
        import lance

        lance.write_dataset(pq.read_table(rows), place.path)

    def upsert(self, place: Place, frame: Frame) -> None:
        time = place.entity.ordering
        merge = self._dataset(place).merge_insert(list(place.entity.key))
        merge = merge.when_matched_update_all(condition=f"source.{time} >= target.{time}")
        merge.when_not_matched_insert_all().execute(newest(place.entity, frame))

    def delete(self, place: Place, frame: Frame) -> None:
        """The frame's times are after those of the rows that it meets."""
        keys = pq.read_table(frame.path, columns=list(place.entity.key))
        self._dataset(place).merge_insert(list(place.entity.key)).when_matched_delete().execute(keys)

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        rows = pq.read_table(frame.path, columns=[*place.entity.key, place.entity.ordering, *columns])
        self._dataset(place).merge_insert(list(place.entity.key)).when_matched_update_all().execute(rows)

    def compact(self, place: Place) -> None:
        self._dataset(place).optimize.compact_files()

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        return self._dataset(place).to_table(columns=list(columns) or None, filter=condition(bounds))

    @staticmethod
    def _dataset(place: Place) -> Any:
        import lance

        return lance.dataset(place.path)
