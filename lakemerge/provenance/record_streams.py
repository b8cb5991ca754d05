"""Records of commits as streams of frames, as they were written: with their kinds, and without unset columns. The
files of a commit may have different columns; those next to each other that have the same ones are a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby

import pyarrow as pa

from lakemerge.errors import FilterError, InputError
from lakemerge.format.block_index import LogCommit
from lakemerge.format.config import TableConfig
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.provenance.key_records import nullable
from lakemerge.read.filter.filter import Filter
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.sources import check_keys, check_kinds
from mergers.restart import RecordKind

__all__ = ["KIND", "kept_rows", "records_of", "with_kinds"]

KIND = "_row_kind"
"""The name of the kind column."""

_SYMBOLS = tuple(kind.symbol for kind in sorted(RecordKind))

Transform = Callable[[pa.Table], pa.Table]


def records_of(
    handle: Handle, log: LogCommit, config: TableConfig, where: Filter | None, transform: Transform | None
) -> list[pa.RecordBatchReader]:
    """The records of one commit, in streams one after the other. The records of a key are in their order.

    :param config: the table's definition at that commit.
    """
    alike = [
        (config.names.carried(columns), list(blocks))
        for columns, blocks in groupby(log.blocks, lambda block: block.file.columns)
    ]
    for columns, _ in alike:
        _check_where(where, set(columns), log.version)
    return [_records(handle, blocks, columns, config, where, transform) for columns, blocks in alike]


def _records(
    handle: Handle,
    blocks: Sequence[LogBlock],
    columns: Collection[str],
    config: TableConfig,
    where: Filter | None,
    transform: Transform | None,
) -> pa.RecordBatchReader:
    carried = [field for field in nullable(config.schema) if field.name in columns]
    stored = pa.schema([*carried, pa.field(KIND_COLUMN, pa.int8())])

    def tables() -> Iterator[pa.Table]:
        budget = handle.settings.merge_budget_bytes
        with ParquetFiles(handle.store) as files:
            for block in blocks:
                file = StoredFile(block.file.path, block.file.size_bytes)
                row_bytes = block.data_bytes / max(1, block.rows)
                stream = files.stream(
                    file,
                    schema=stored,
                    names=config.names,
                    budget_bytes=budget,
                    row_groups=block.groups,
                    row_bytes=row_bytes,
                )
                for table, _, _ in stream:
                    check_keys(table, config.key, block.file.path)
                    check_kinds(table, block.file.path)
                    kinds = table.column(KIND_COLUMN).fill_null(int(RecordKind.UPDATE_AFTER))
                    yield table.drop_columns([KIND_COLUMN]).append_column(KIND, _symbols(kinds))

    return _stream(tables(), pa.schema([*carried, pa.field(KIND, pa.string())]), where, transform)


def with_kinds(
    rows: pa.RecordBatchReader, kind: str, where: Filter | None, transform: Transform | None
) -> pa.RecordBatchReader:
    """Rows as records of one kind."""

    def tables() -> Iterator[pa.Table]:
        for batch in rows:
            yield pa.Table.from_batches([batch]).append_column(KIND, pa.repeat(kind, batch.num_rows))

    schema = pa.schema([*nullable(rows.schema), pa.field(KIND, pa.string())])
    return _stream(tables(), schema, where, transform)


def kept_rows(rows: pa.RecordBatchReader, where: Filter | None) -> pa.RecordBatchReader:
    """Rows without those that are not asked for."""
    return _stream((pa.Table.from_batches([batch]) for batch in rows), nullable(rows.schema), where, None)


def _symbols(kinds: pa.ChunkedArray) -> pa.ChunkedArray:
    symbols = pa.array(_SYMBOLS, pa.string())
    return pa.chunked_array([symbols.take(part) for part in kinds.chunks], pa.string())


def _stream(
    tables: Iterable[pa.Table], schema: pa.Schema, where: Filter | None, transform: Transform | None
) -> pa.RecordBatchReader:
    left = (table if where is None else where.kept(table) for table in tables)
    if transform is None:
        batches = (batch for table in left for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)
    changed = (_transformed(transform, table) for table in left)
    first = next(changed, None)
    if first is None:
        first = _transformed(transform, schema.empty_table())
    shape = first.schema
    every = (_shaped(table, shape) for table in chain([first], changed))
    return pa.RecordBatchReader.from_batches(shape, (batch for table in every for batch in table.to_batches()))


def _transformed(transform: Transform, table: pa.Table) -> pa.Table:
    changed = transform(table)
    if not isinstance(changed, pa.Table):
        raise InputError(f"the transform must give a pyarrow Table, not {type(changed).__name__}")
    if KIND not in changed.column_names:
        raise InputError(f"the transform must keep the column {KIND!r}, which holds the kinds of the records")
    return changed


def _shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if set(table.column_names) != set(schema.names):
        raise InputError(
            f"the transform must give the same columns for all records of a commit: {table.column_names} is not "
            f"{schema.names}"
        )
    return table.select(schema.names).cast(schema)


def _check_where(where: Filter | None, carried: set[str], version: int) -> None:
    if where is not None and (lacking := sorted(where.columns - carried)):
        raise FilterError(
            f"the records of version {version} do not carry {', '.join(lacking)}, so the condition cannot be evaluated "
            "for them; use columns that all records have, such as those of the key",
            columns=tuple(lacking),
        )
