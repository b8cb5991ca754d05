"""The sorted streams that a merge of one file slice reads: stored rows, tombstones and log records.

If a read asks only for a span of keys (``FileSlice.wanted``), row groups without such keys are not read, and rows
before and after the span are cut off. All streams of a file slice are cut alike. So every key that is left has all its
records, and adjoining spans share no row. If a read asks for single keys (``FileSlice.sought``), rows and row groups
between them are left out, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemerge.errors import TableDamagedError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import Key, KeySpan
from lakemerge.format.log_block import LogBlock
from lakemerge.format.minor import Positions, RowFile, read_superseded
from lakemerge.format.names import FILE_COLUMN, KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from lakemerge.options import Settings
from lakemerge.read.failures import LeaveOut
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.parquet.footers import LogFooters
from lakemerge.read.parquet.row_groups import RowGroups, in_span, with_keys
from lakemerge.read.runs import key_position
from lakemerge.schema.names import ColumnNames
from lakemerge.storage.base import Store
from mergers import Merger
from mergers.contract import Bools
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.keys import key_columns
from mergers.restart import RecordKind

__all__ = [
    "PLACE",
    "Batches",
    "MergeSpec",
    "block_schema",
    "block_stream",
    "check_keys",
    "check_kinds",
    "stored_streams",
    "tombstone_stream",
]

Batches = Iterator[tuple[pa.Table, bool]]
"""Tables, each with whether it is the last."""

PLACE = pa.schema([(FILE_COLUMN, pa.int32()), ("_lm_pos", pa.int32())])
"""The place of a row. For a stored row, the ordinal of its file and its position there. For a log record, the number of
its block in the file slice and its position in the file."""


@dataclass(frozen=True, slots=True)
class MergeSpec:
    """Settings that all merge tasks of one read or compaction share. Picklable."""

    store: Store
    config: TableConfig
    merger: Merger
    settings: Settings
    leave_out: LeaveOut | None = None
    """What is told of keys whose merge fails, if they are left out. Else their error is raised."""
    footers: LogFooters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "footers", LogFooters(self.settings.merge_budget_bytes))

    @staticmethod
    def of(handle: Handle, view: TableView) -> MergeSpec:
        return MergeSpec(handle.store, view.config, handle.merger(view), handle.settings, handle.leave_out)


def stored_streams(
    spec: MergeSpec,
    file_slice: FileSlice,
    schema: pa.Schema,
    files: ParquetFiles,
    budget: int,
    *,
    final: RowGroups | None = None,
    probed: KeySpan | None = None,
    whole: Mapping[int, pa.Schema] = MappingProxyType({}),
) -> list[tuple[str, Batches]]:
    """The file slice's stored rows without superseded ones, each stream with the path of its file: first the base file,
    then each winner file. Each stream is sorted by key, and no key is in two of them. Files without rows are left out.

    :param schema: the columns to read. If only some keys are wanted, the key is among them. If the caller wants the
        fields of :data:`PLACE`, they are at the end.
    :param final: chooses the row groups to read, if no log changes the rows.
    :param probed: the keys that the caller looks up, if it needs no others.
    :param whole: the columns to read of some files, by ordinal. All rows of these files are read, whatever ``probed``
        says.
    """
    parts = [file for file in file_slice.row_files if file.rows]
    looked_at = file_slice if probed is None else replace(file_slice, wanted=probed)
    superseded: Positions = read_superseded(spec.store, file_slice.minor)
    share = max(1, budget // max(1, len(parts)))
    return [
        (
            part.path,
            _stored(
                spec,
                file_slice if part.ordinal in whole else looked_at,
                part,
                superseded.get(part.ordinal),
                whole.get(part.ordinal, schema),
                files,
                share,
                final,
            ),
        )
        for part in parts
    ]


def _stored(
    spec: MergeSpec,
    file_slice: FileSlice,
    part: RowFile,
    superseded: Bools | None,
    schema: pa.Schema,
    files: ParquetFiles,
    budget: int,
    final: RowGroups | None,
) -> Batches:
    """The rows of one file that are not marked in ``superseded``. Tables may be empty."""
    file = StoredFile(part.path, part.size_bytes)
    groups: list[int] | None = None
    if file_slice.wanted is not None or final is not None:
        footer = files.column_footer(file)
        groups = _wanted_groups(spec.config, file_slice, footer, range(footer.num_row_groups))
        groups = groups if final is None else final(footer, groups)
    placed = FILE_COLUMN in schema.names
    columns = pa.schema([field for field in schema if field.name not in PLACE.names])
    names = spec.config.names
    for table, first, last in files.stream(file, schema=columns, names=names, budget_bytes=budget, row_groups=groups):
        check_keys(table, spec.config.key, part.path)
        left = _placed(table, part.ordinal, first) if placed else table
        here = np.empty(0, dtype=np.bool_) if superseded is None else superseded[first : first + table.num_rows]
        if here.any():
            keep = np.ones(table.num_rows, dtype=np.bool_)
            keep[: len(here)] = ~here
            left = left.filter(pa.array(keep))
        yield _wanted_rows(left, spec.config, file_slice), last


def check_keys(table: pa.Table, key: Sequence[str], path: str) -> None:
    """Raise :class:`TableDamagedError` if a key column that was read from the file has a null, which no writer puts
    there: what compares keys relies on it."""
    for name in key:
        if name in table.column_names and table.column(name).null_count:
            raise TableDamagedError(f"file {path!r}: key column {name!r} has nulls", path=path)


def check_kinds(table: pa.Table, path: str) -> None:
    """Raise :class:`TableDamagedError` if the kinds of a block's records are none that a writer puts there. Blocks of
    upserts have no kinds."""
    kinds = table.column(KIND_COLUMN) if KIND_COLUMN in table.column_names else None
    if kinds is None or kinds.null_count == len(kinds):
        return
    wrong = ~np.isin(kinds.fill_null(-1).to_numpy(), list(RecordKind))
    if wrong.any():
        found = sorted(set(kinds.filter(pa.array(wrong)).to_pylist()), key=str)
        raise TableDamagedError(
            f"file {path!r}: {KIND_COLUMN!r} holds {found[:3]}, which is no kind of record", path=path
        )


def _placed(table: pa.Table, ordinal: int, first: int) -> pa.Table:
    """Add the columns of :data:`PLACE`. ``first`` is the position of the first row in the file."""
    rows = table.num_rows
    places = [np.full(rows, ordinal, dtype=np.int32), np.arange(first, first + rows, dtype=np.int32)]
    for column, values in zip(PLACE, places, strict=True):
        table = table.append_column(column, pa.array(values))
    return table


def tombstone_stream(spec: MergeSpec, file_slice: FileSlice, files: ParquetFiles) -> Batches:
    """The file slice's tombstones, sorted by key."""
    if file_slice.tombstones is not None:
        file = StoredFile(file_slice.tombstones, file_slice.tombstone_bytes or None)
        groups = None
        if file_slice.wanted is not None:
            footer = files.column_footer(file)
            groups = _wanted_groups(spec.config, file_slice, footer, range(footer.num_row_groups))
        schema = tombstone_schema(spec.config.shape)
        budget = max(1, spec.settings.merge_budget_bytes // 3)
        names = spec.config.names
        for table, _, last in files.stream(file, schema=schema, names=names, budget_bytes=budget, row_groups=groups):
            check_keys(table, spec.config.key, file_slice.tombstones)
            yield _wanted_rows(table, spec.config, file_slice), last


def block_schema(schema: pa.Schema, block: LogBlock, names: ColumnNames) -> pa.Schema:
    """The columns to read of a block: the wanted columns that its records carry, the wanted ones of :data:`PLACE`, the
    records' kinds and, for a consolidated block, their versions.

    :param names: those that the table's columns have in files.
    """
    carried = {*names.carried(block.file.columns), *PLACE.names}
    told = [pa.field(KIND_COLUMN, pa.int8())]
    if block.packed_from is not None:
        told.append(pa.field(VERSION_COLUMN, pa.int64()))
    return pa.schema([*(field for field in schema if field.name in carried), *told])


def block_stream(
    block: LogBlock,
    schema: pa.Schema,
    file_slice: FileSlice,
    config: TableConfig,
    files: ParquetFiles,
    budget: int,
    *,
    number: int = 0,
) -> Batches:
    """The block's records that are live in the file slice, sorted by key. Equal keys are in commit order.

    :param schema: see :func:`block_schema`.
    :param number: the number of the block, if :data:`PLACE` is wanted.
    """
    file = StoredFile(block.file.path, block.file.size_bytes)
    groups: Sequence[int] = block.groups
    if file_slice.wanted is not None and len(groups) > 1:
        groups = _wanted_groups(config, file_slice, files.column_footer(file, groups), groups)
    row_bytes = block.data_bytes / max(1, block.rows)
    placed = FILE_COLUMN in schema.names
    columns = pa.schema([field for field in schema if field.name not in PLACE.names])
    stream = files.stream(
        file, schema=columns, names=config.names, budget_bytes=budget, row_groups=groups, row_bytes=row_bytes
    )
    for table, first, last in stream:
        check_keys(table, config.key, block.file.path)
        check_kinds(table, block.file.path)
        told = _placed(table, number, first).select(schema.names) if placed else table
        mine = _wanted_rows(_within(told, config.key, file_slice.lower, file_slice.upper), config, file_slice)
        if block.buckets < file_slice.buckets:
            numbers = bucket_numbers([mine.column(name) for name in config.key], file_slice.buckets)
            mine = mine.filter(pa.array(numbers == file_slice.bucket_id.bucket))
        if block.packed_from is not None and block.packed_from <= file_slice.merged_through:
            mine = mine.filter(pc.greater(mine.column(VERSION_COLUMN), file_slice.merged_through))
        yield mine, last


def _wanted_groups(
    config: TableConfig, file_slice: FileSlice, footer: pq.FileMetaData, groups: Sequence[int]
) -> list[int]:
    key = config.key_fields
    if file_slice.sought is not None:
        return with_keys(key, file_slice.sought.keys)(footer, groups)
    return list(groups) if file_slice.wanted is None else in_span(key, file_slice.wanted)(footer, groups)


def _wanted_rows(table: pa.Table, config: TableConfig, file_slice: FileSlice) -> pa.Table:
    if file_slice.sought is not None and table.num_rows:
        # Keys of several columns are searched column by column, so a few more rows than requested may remain.
        columns = zip(config.key, file_slice.sought.columns, strict=True)
        masks = (pc.is_in(table.column(name), value_set=values.unique()) for name, values in columns)
        return table.filter(reduce(pc.and_, masks))
    return (
        table
        if file_slice.wanted is None
        else _within(table, config.key, file_slice.wanted.low, file_slice.wanted.high)
    )


def _within(table: pa.Table, key: Sequence[str], lower: Key | None, upper: Key | None) -> pa.Table:
    """The rows with ``lower <= key < upper`` in a table sorted by key."""
    if (lower is None and upper is None) or not table.num_rows:
        return table
    keys = key_columns(table, key)
    start = 0 if lower is None else key_position(keys, lower, after=False)
    end = table.num_rows if upper is None else key_position(keys, upper, after=False)
    return table.slice(start, end - start)
