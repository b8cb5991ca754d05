"""Merging one tile: base file plus live log blocks through the kernel, in key ranges.

Readers and compaction both come here; the kernel does not know which of them asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemerge.config import TableConfig
from lakemerge.options import Settings
from lakemerge.read.parquet import ParquetFiles
from lakemerge.read.runs import Run, key_position, key_ranges
from lakemerge.slices.model import Key, LogBlock
from lakemerge.slices.view import Tile
from lakemerge.slices.xxhash64 import buckets as bucket_numbers
from lakemerge.storage.base import Store
from lakemerge.write.pack import KIND_COLUMN
from mergers import Frame, Merger, fold
from mergers.kernel import overlay_rows, tombstone_schema
from mergers.keys import key_columns

__all__ = ["MergeSpec", "MergedRange", "merge_tile"]


_Batches = Iterator[tuple[pa.Table, bool]]
"""Tables, each with whether it is the last."""


@dataclass(frozen=True, slots=True)
class MergeSpec:
    """What every merge task of one read or compaction knows. Picklable."""

    store: Store
    config: TableConfig
    merger: Merger
    settings: Settings


@dataclass(frozen=True, slots=True)
class MergedRange:
    """A key range of a tile after the merge."""

    rows: pa.Table
    """The columns asked for, in the schema's order; nullable fields throughout."""
    tombstones: pa.Table
    """See :func:`mergers.kernel.tombstone_schema`."""


def merge_tile(
    spec: MergeSpec, tile: Tile, *, columns: Collection[str], sort: bool, files: ParquetFiles
) -> Iterator[MergedRange]:
    """The rows of a tile, range by range in key order.

    :param columns: the columns of the result; at least one.
    :param sort: whether rows are sorted by key within a range (else only the ranges are).
    """
    config, shape = spec.config, spec.config.shape
    names = [name for name in shape.schema.names if name in columns]
    if tile.is_clean and not sort:
        # Nothing to merge and no tombstones to keep: key and ordering need not be read.
        schema = pa.schema([shape.schema.field(name).with_nullable(True) for name in names])
        for table, _ in _base(spec, tile, schema, files, spec.settings.merge_budget_bytes):
            yield MergedRange(table, tombstone_schema(shape).empty_table())
        return
    needed = spec.merger.needs(shape, names) | set(shape.key) | set(shape.ordering)
    schema = pa.schema([field.with_nullable(True) for field in shape.schema if field.name in needed])
    budget = spec.settings.merge_budget_bytes // 2
    per_block = budget if tile.log_bytes <= budget else max(1, budget // len(tile.blocks))
    runs = [
        Run(_base(spec, tile, schema, files, budget), schema, shape.key),
        Run(_tombstones(spec, tile, files), tombstone_schema(shape), shape.key),
    ]
    for block in tile.blocks:
        block_schema = _block_schema(schema, block)
        runs.append(Run(_block(block, block_schema, tile, config, files, per_block), block_schema, shape.key))
    for base, tombstones, *logs in key_ranges(runs):
        folded = fold(
            spec.merger,
            shape,
            base=base,
            tombstones=tombstones,
            frames=[_frame(rows, block) for rows, block in zip(logs, tile.blocks, strict=True) if rows.num_rows],
            columns=names,
        )
        yield MergedRange(overlay_rows(base, folded, names, sort=sort), folded.tombstones)


def _base(spec: MergeSpec, tile: Tile, schema: pa.Schema, files: ParquetFiles, budget: int) -> _Batches:
    if tile.base is not None and tile.base.rows:
        add = tile.base.add
        yield from files.stream(add.path, size_bytes=add.size_bytes, schema=schema, budget_bytes=budget)


def _tombstones(spec: MergeSpec, tile: Tile, files: ParquetFiles) -> _Batches:
    if tile.base is not None and tile.base.tombstones is not None:
        schema = tombstone_schema(spec.config.shape)
        budget = spec.settings.merge_budget_bytes // 2
        yield from files.stream(tile.base.tombstones, size_bytes=None, schema=schema, budget_bytes=budget)


def _block_schema(schema: pa.Schema, block: LogBlock) -> pa.Schema:
    """The wanted columns that the block's records carry, and their kinds."""
    carried = set(block.file.columns)
    return pa.schema([*(field for field in schema if field.name in carried), pa.field(KIND_COLUMN, pa.int8())])


def _block(
    block: LogBlock, schema: pa.Schema, tile: Tile, config: TableConfig, files: ParquetFiles, budget: int
) -> _Batches:
    """The block's records that belong to the tile."""
    groups = range(block.first_row_group, block.first_row_group + block.row_groups)
    stream = files.stream(
        block.file.path, size_bytes=block.file.size_bytes, schema=schema, budget_bytes=budget, row_groups=groups
    )
    for table, last in stream:
        clipped = _clip(table, config.key, tile.lower, tile.upper)
        if block.buckets < tile.buckets:
            numbers = bucket_numbers([clipped.column(name) for name in config.key], tile.buckets)
            clipped = clipped.filter(pa.array(numbers == tile.slice.bucket))
        yield clipped, last


def _clip(table: pa.Table, key: Sequence[str], lower: Key | None, upper: Key | None) -> pa.Table:
    """Rows with ``lower <= key < upper`` of a table sorted by key."""
    if lower is None and upper is None:
        return table
    keys = key_columns(table, key)
    start = 0 if lower is None else key_position(keys, lower, after=False)
    end = table.num_rows if upper is None else key_position(keys, upper, after=False)
    return table.slice(start, end - start)


def _frame(rows: pa.Table, block: LogBlock) -> Frame:
    kinds = rows.column(KIND_COLUMN)
    return Frame(
        rows.drop_columns([KIND_COLUMN]),
        None if kinds.null_count == len(kinds) else kinds.to_numpy().astype(np.int8),
        block.version,
        frozenset(block.file.columns),
    )
