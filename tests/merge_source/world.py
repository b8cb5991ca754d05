"""LakeMerge tables of entities for tests, and a source over them that is driven as the acceptance cases say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.merge_source import MergeConfig, MergeSource
from lakemerge.schema.schema import to_arrow_schema

__all__ = ["World", "frame_of"]

Entity = dict[str, Any]


def frame_of(table: LakeTable, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Whole rows: what they lack is null."""
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


class World:
    """Tables by name, and one source."""

    def __init__(self, folder: Path, spark: SparkSession | None = None) -> None:
        self.spark = spark
        self.folder = folder
        self.paths: dict[str, str] = {}
        self.source: MergeSource | None = None

    def create(self, name: str, schema: str, rows: Sequence[Entity] = (), **options: Any) -> LakeTable:
        path = str(self.folder / f"{len(self.paths)}_{name}")
        key = options.pop("key", ["_id"])
        table = LakeTable.create(path, to_arrow_schema(schema), key=key, buckets=1, **options)
        self.paths[name] = path
        self.put(name, rows)
        return table

    def table(self, name: str) -> LakeTable:
        return LakeTable.open(self.paths[name])

    def put(self, name: str, rows: Sequence[Entity]) -> None:
        if rows:
            table = self.table(name)
            table.upsert(frame_of(table, rows))

    def apply(self, name: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """A batch of changes in one commit."""
        table = self.table(name)
        rows = [change["upsert"] if "upsert" in change else {"_id": change["delete"]} for change in changes]
        kinds = ["+U" if "upsert" in change else "-D" for change in changes]
        frame = frame_of(table, rows)
        table.upsert(frame.append_column("op", pa.array(kinds, pa.string())), kind_column="op")

    def rename(self, old: str, new: str) -> None:
        self.paths[new] = self.paths.pop(old)

    def config(self, sesam: Mapping[str, Any]) -> MergeConfig:
        return MergeConfig.from_sesam(sesam, self.paths)

    def run(self, sesam: Mapping[str, Any], **options: Any) -> list[Entity]:
        """One run with the configuration; what it emitted."""
        config = self.config(sesam)
        if self.source is None:
            self.source = MergeSource.create(self.folder / "out", config, spark=self.spark)
        before = max([entity["_updated"] for entity in self.source.entities()], default=-1)
        result = self.source.run(config=config, **options)
        emitted = self.source.entities(since=before)
        assert len(emitted) == result.emitted
        return emitted
