"""DuckLake without a server: its catalog is a DuckDB file, and MERGE writes positions of deleted rows."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks.compare.engine import Place
from benchmarks.compare.on_arrow import OnArrow
from benchmarks.compare.queries import Answer, Bound, Query, condition, normalised
from benchmarks.compare.workload import Frame
from benchmarks.duckdb_with import duckdb_with

__all__ = ["DuckLake"]


class DuckLake(OnArrow):
    configuration: Mapping[str, str] = {
        "catalog": "a DuckDB file",
        "upsert": "MERGE INTO, when matched and newer update, else insert",
        "compaction": "ducklake_merge_adjacent_files, ducklake_rewrite_data_files with delete_threshold 0",
        "queries": "SQL in DuckDB",
    }

    def __init__(self) -> None:
        self._databases: dict[Path, duckdb.DuckDBPyConnection] = {}

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "ducklake": importlib.metadata.version("duckdb-extension-ducklake")}

    def load(self, place: Place, rows: Path) -> None:
        self._lake(place).execute(f"CREATE TABLE lake.t AS SELECT * FROM read_parquet('{rows}')")

    def upsert(self, place: Place, frame: Frame) -> None:
        time, key = place.entity.ordering, ", ".join(place.entity.key)
        source = f"read_parquet('{frame.path}/*.parquet')"
        if not frame.unique:
            newest = f"row_number() OVER (PARTITION BY {key} ORDER BY {time} DESC) = 1"
            source = f"(SELECT * FROM {source} QUALIFY {newest})"
        self._merge(place, source, f"WHEN MATCHED AND s.{time} >= t.{time} THEN UPDATE WHEN NOT MATCHED THEN INSERT")

    def delete(self, place: Place, frame: Frame) -> None:
        time = place.entity.ordering
        self._merge(
            place, f"read_parquet('{frame.path}/*.parquet')", f"WHEN MATCHED AND s.{time} >= t.{time} THEN DELETE"
        )

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        changes = ", ".join(f"{name} = s.{name}" for name in (place.entity.ordering, *columns))
        self._merge(place, f"read_parquet('{frame.path}/*.parquet')", f"WHEN MATCHED THEN UPDATE SET {changes}")

    def compact(self, place: Place) -> None:
        lake = self._lake(place)
        lake.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
        lake.execute("CALL ducklake_merge_adjacent_files('lake')")

    def answer(self, place: Place, query: Query) -> Answer:
        """DuckDB answers from the table, but for a query that wants all rows."""
        if not query.select:
            return super().answer(place, query)
        where = f" WHERE {query.condition}" if query.condition else ""
        return normalised(self._lake(place).execute(query.over(f"(SELECT * FROM lake.t{where})")).fetchall())

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        names, where = ", ".join(columns) or "*", f" WHERE {condition(bounds)}" if bounds else ""
        return self._lake(place).execute(f"SELECT {names} FROM lake.t{where}").to_arrow_table()

    def close(self) -> None:
        for database in self._databases.values():
            database.close()
        self._databases.clear()

    def _merge(self, place: Place, source: str, then: str) -> None:
        keys = " AND ".join(f"t.{key} = s.{key}" for key in place.entity.key)
        self._lake(place).execute(f"MERGE INTO lake.t AS t USING {source} AS s ON {keys} {then}")

    def _lake(self, place: Place) -> duckdb.DuckDBPyConnection:
        if place.path not in self._databases:
            place.path.mkdir(exist_ok=True)
            lake = duckdb_with("ducklake")
            lake.execute(f"ATTACH 'ducklake:{place.path}/catalog.ducklake' AS lake (DATA_PATH '{place.path}/data')")
            self._databases[place.path] = lake
        return self._databases[place.path]
