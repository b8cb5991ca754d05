"""Reads the stored state and the records of one key from the files of its bucket that may hold it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.format.config import TableConfig
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import KIND_COLUMN, RECORDS_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.python_values import python_rows
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import PLACE, MergeSpec, block_schema, block_stream, stored_streams, tombstone_stream
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.portions import together
from mergers.restart import RecordKind

__all__ = ["KeyRecord", "KeyState", "nullable", "read_records", "read_state"]

_POSITION = PLACE.names[1]


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of a key: a row, a remembered delete, or nothing."""

    rows: pa.Table
    """No row or one row, with all columns of the table, nullable."""
    tombstones: pa.Table
    """See :func:`mergers.kernel.tombstone_schema`; empty if there is a row."""
    path: str | None = None
    """The base or winner file that the row is read from."""

    @property
    def row(self) -> dict[str, Any] | None:
        return next(iter(python_rows(self.rows)), None)

    @property
    def tombstone(self) -> dict[str, Any] | None:
        return next(iter(python_rows(self.tombstones)), None)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One record of the key."""

    version: int
    file: str
    row_index: int
    """Its position in the file, counted from 0."""
    kind: RecordKind
    rows: pa.Table
    """The record alone, with the columns that it carries."""
    is_packed: bool
    """Whether it is in a consolidated log."""
    stands_for: int = 1
    """How many records of its commit it stands for."""

    @property
    def values(self) -> dict[str, Any]:
        return python_rows(self.rows)[0]


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def read_state(handle: Handle, view: TableView, file_slice: FileSlice) -> KeyState:
    """The stored state of one key, from a file slice narrowed to the key, without its logs."""
    spec = MergeSpec(handle.store, view.config, handle.merger(view), handle.settings)
    schema = nullable(view.config.schema)
    rows, path = schema.empty_table(), None
    with ParquetFiles(handle.store, handle.footers) as files:
        for name, stream in stored_streams(spec, file_slice, schema, files, handle.settings.merge_budget_bytes):
            for table, _ in stream:
                if table.num_rows:
                    rows, path = table, name
        found = [table for table, _ in tombstone_stream(spec, file_slice, files)]
    forgotten = tombstone_schema(view.config.shape).empty_table()
    return KeyState(rows, together(pa.concat_tables([forgotten, *found])), path)


def read_records(handle: Handle, file_slice: FileSlice, config_at: Callable[[int], TableConfig]) -> list[KeyRecord]:
    """The records of one key in the logs of a file slice narrowed to the key, in the order of their commits.

    :param config_at: gives the table's definition at a version, because records are read as they were written.
    """
    by_file: dict[str, list[int]] = defaultdict(list)
    for number, block in enumerate(file_slice.blocks):
        by_file[block.file.path].append(number)

    def of_file(numbers: Sequence[int]) -> list[tuple[int, int, KeyRecord]]:
        found: list[tuple[int, int, KeyRecord]] = []
        with ParquetFiles(handle.store, handle.footers) as files:
            for number in numbers:
                block = file_slice.blocks[number]
                records = _of_block(handle, file_slice, block, config_at(block.version), files)
                found += [(number, place, record) for place, record in enumerate(records)]
        return found

    at_once = min(len(by_file), max(handle.settings.threads, handle.store.reads_at_once))
    with thread_pool(max(1, at_once)) as pool:
        read = [entry for part in pool.map(of_file, by_file.values()) for entry in part]
    # A commit's blocks are in the order of its tasks, and a consolidated log has each record's version.
    return [record for _, _, record in sorted(read, key=lambda entry: (entry[2].version, entry[0], entry[1]))]


def _of_block(
    handle: Handle, file_slice: FileSlice, block: LogBlock, config: TableConfig, files: ParquetFiles
) -> list[KeyRecord]:
    schema = block_schema(pa.schema([*nullable(config.schema), *PLACE]), block, config.names)
    schema = schema.append(pa.field(RECORDS_COLUMN, pa.int32()))
    budget = handle.settings.merge_budget_bytes
    found: list[KeyRecord] = []
    for table, _ in block_stream(block, schema, file_slice, config, files, budget):
        packed = block.packed_from is not None
        kinds = table.column(KIND_COLUMN).to_pylist()
        places = table.column(_POSITION).to_pylist()
        counts = table.column(RECORDS_COLUMN).to_pylist()
        versions = table.column(VERSION_COLUMN).to_pylist() if packed else [block.version] * table.num_rows
        carried = [name for name in table.column_names if name in config.schema.names]
        for row, (kind, place, version, count) in enumerate(zip(kinds, places, versions, counts, strict=True)):
            found.append(
                KeyRecord(
                    version=version,
                    file=block.file.path,
                    row_index=place,
                    kind=RecordKind.UPDATE_AFTER if kind is None else RecordKind(kind),
                    rows=table.slice(row, 1).select(carried),
                    is_packed=packed,
                    stands_for=count or 1,
                )
            )
    return found
