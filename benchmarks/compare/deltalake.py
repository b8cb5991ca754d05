"""Delta without Spark: deltalake, whose MERGE rewrites the files that it touches."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.compare.engine import Place
from benchmarks.compare.on_arrow import OnArrow, expression, newest
from benchmarks.compare.queries import Bound
from benchmarks.compare.workload import Frame

if TYPE_CHECKING:
    from deltalake.table import TableMerger

__all__ = ["Deltalake"]


class Deltalake(OnArrow):
    configuration: Mapping[str, str] = {
        "target_file_size": "a quarter of the table",
        "upsert": "DeltaTable.merge, when matched and newer update all, else insert all",
        "compaction": "DeltaTable.optimize.compact",
    }

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "deltalake": importlib.metadata.version("deltalake")}

    def load(self, place: Place, rows: Path) -> None:
        from deltalake import write_deltalake

        write_deltalake(place.path, pq.read_table(rows), target_file_size=place.file_bytes)

    def upsert(self, place: Place, frame: Frame) -> None:
        merge = self._merge(place, newest(place.entity, frame))
        newer = f"s.{place.entity.ordering} >= t.{place.entity.ordering}"
        merge.when_matched_update_all(predicate=newer).when_not_matched_insert_all().execute()

    def delete(self, place: Place, frame: Frame) -> None:
        newer = f"s.{place.entity.ordering} >= t.{place.entity.ordering}"
        self._merge(place, newest(place.entity, frame)).when_matched_delete(predicate=newer).execute()

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        changes = {name: f"s.{name}" for name in (place.entity.ordering, *columns)}
        self._merge(place, pq.read_table(frame.path)).when_matched_update(updates=changes).execute()

    def compact(self, place: Place) -> None:
        from deltalake import DeltaTable

        DeltaTable(place.path).optimize.compact(target_size=place.file_bytes)

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        from deltalake import DeltaTable

        dataset = DeltaTable(place.path).to_pyarrow_dataset()
        return dataset.to_table(columns=list(columns) or None, filter=expression(bounds))

    @staticmethod
    def _merge(place: Place, source: pa.Table) -> TableMerger:
        from deltalake import DeltaTable

        keys = " AND ".join(f"t.{key} = s.{key}" for key in place.entity.key)
        return DeltaTable(place.path).merge(source, keys, source_alias="s", target_alias="t")
