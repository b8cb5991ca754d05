"""Plain Delta tables as datasets. They can only be read whole: what changed in them is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemerge.delta import AddFile, Snapshot
from lakemerge.handle import Handle
from lakemerge.layout.partition import parse_partition_value
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.schema.schema import from_delta_json

__all__ = ["PlainTable"]


@dataclass(frozen=True, slots=True)
class PlainTable:
    """A plain Delta table at one version. Features that this library cannot read, such as deletion vectors, are refused
    by name."""

    handle: Handle
    snapshot: Snapshot

    @staticmethod
    def latest(handle: Handle) -> PlainTable:
        return PlainTable(handle, handle.log.snapshot())

    def at(self, version: int) -> PlainTable:
        return PlainTable(self.handle, self.handle.log.snapshot(version=version))

    @property
    def url(self) -> str:
        return self.handle.store.url

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def schema(self) -> pa.Schema:
        return from_delta_json(self.snapshot.metadata.schema_string)

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The named columns of all rows, in tables of bounded size."""
        schema = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        partition = self.snapshot.metadata.partition_columns
        stored = pa.schema([field for field in schema if field.name not in partition])
        for add in self.snapshot.files.values():
            # Files lack the partition columns, but a file has to be read to know how many rows it has.
            asked = stored if len(stored) else self._any_column(partition)
            with ParquetFiles(self.handle.store) as files:
                file = StoredFile(add.path, add.size_bytes)
                budget = self.handle.settings.merge_budget_bytes
                for table, _, _ in files.stream(file, schema=asked, budget_bytes=budget):
                    yield _with_partition(table, schema, add)

    def _any_column(self, partition: Sequence[str]) -> pa.Schema:
        return pa.schema([next(field for field in self.schema if field.name not in partition)])


def _with_partition(table: pa.Table, schema: pa.Schema, add: AddFile) -> pa.Table:
    columns = []
    for field in schema:
        if field.name in add.partition_values:
            text = add.partition_values[field.name]
            value = None if text is None else parse_partition_value(text, field.type)
            columns.append(pa.array([value], field.type).take(pa.array(np.zeros(table.num_rows, dtype=np.int64))))
        else:
            columns.append(table.column(field.name))
    return pa.table(columns, schema=schema)
