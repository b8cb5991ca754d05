"""Merging one tile: stored rows plus live log blocks through the kernel, in key ranges.

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
from lakemerge.slices.minor import Positions, read_positions
from lakemerge.slices.model import FILE_COLUMN, POSITION_COLUMN, Key, LogBlock, hidden_fields
from lakemerge.slices.view import Tile
from lakemerge.slices.xxhash64 import buckets as bucket_numbers
from lakemerge.storage.base import Store
from lakemerge.write.pack import KIND_COLUMN
from mergers import Frame, Merger, fold
from mergers.contract import Bools
from mergers.kernel import Folded, overlay_rows, tombstone_schema
from mergers.keys import key_columns, sort_order

__all__ = ["ChangedRange", "MergeSpec", "MergedRange", "changed_ranges", "merge_tile"]


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
    :param sort: whether rows are sorted by key within a range (else only the ranges are, and of a tile
        without logs not even those).
    """
    shape = spec.config.shape
    names = [name for name in shape.schema.names if name in columns]
    if tile.is_merged and not sort:
        # Nothing to merge and no tombstones to keep: key and ordering need not be read.
        schema = _nullable(shape.schema, names)
        for stream in _stored(spec, tile, schema, files, spec.settings.merge_budget_bytes):
            for table, _ in stream:
                yield MergedRange(table, tombstone_schema(shape).empty_table())
        return
    needed = spec.merger.needs(shape, names) | set(shape.key) | set(shape.ordering)
    schema = _nullable(shape.schema, needed)
    for base, folded in _fold_ranges(spec, tile, schema, schema, names, files):
        yield MergedRange(overlay_rows(base, folded, names, sort=sort), folded.tombstones)


@dataclass(frozen=True, slots=True)
class ChangedRange:
    """What the live logs of a tile change in a key range."""

    superseded: pa.Table
    """``_lm_file`` and ``_lm_pos`` of stored rows that are no longer the row of their key."""
    rows: pa.Table
    """The rows in their place, and new ones, sorted by key; the columns asked for, nullable."""
    tombstones: pa.Table
    """All of the range after the fold; see :func:`mergers.kernel.tombstone_schema`."""


def changed_ranges(
    spec: MergeSpec, tile: Tile, *, columns: Collection[str], files: ParquetFiles
) -> Iterator[ChangedRange]:
    """What the live logs change in a tile, range by range in key order.

    Where the merger gives back one of its inputs whole, of the stored rows only the columns that
    decide are read: one that wins stays where it is.
    """
    shape = spec.config.shape
    names = [name for name in shape.schema.names if name in columns]
    full = all(len(block.file.columns) == len(shape.schema) for block in tile.blocks)
    decided_by = () if spec.merger.laws(shape, full_frames=full).selective else names
    always = set(shape.key) | set(shape.ordering)
    stored = _nullable(shape.schema, spec.merger.needs(shape, decided_by) | always)
    logs = _nullable(shape.schema, spec.merger.needs(shape, names) | always)
    for base, folded in _fold_ranges(spec, tile, _with_positions(stored), logs, names, files):
        gone = base.select([FILE_COLUMN, POSITION_COLUMN]).take(pa.array(folded.superseded))
        yield ChangedRange(gone, folded.rows, folded.tombstones)


def _fold_ranges(
    spec: MergeSpec, tile: Tile, stored: pa.Schema, logged: pa.Schema, columns: Sequence[str], files: ParquetFiles
) -> Iterator[tuple[pa.Table, Folded]]:
    """Per key range, the stored rows sorted by key, and what the live logs change in them.

    :param stored: what to read of stored rows.
    :param logged: what to read of log records.
    """
    config, shape = spec.config, spec.config.shape
    budget = spec.settings.merge_budget_bytes // 2
    per_block = budget if tile.log_bytes <= budget else max(1, budget // len(tile.blocks))
    runs = [Run(stream, stored, shape.key) for stream in _stored(spec, tile, stored, files, budget)]
    count = len(runs)
    runs.append(Run(_tombstones(spec, tile, files), tombstone_schema(shape), shape.key))
    for block in tile.blocks:
        schema = _block_schema(logged, block)
        runs.append(Run(_block(block, schema, tile, config, files, per_block), schema, shape.key))
    for parts in key_ranges(runs):
        base = _interleaved(parts[:count], stored, shape.key)
        tombstones, logs = parts[count], parts[count + 1 :]
        folded = fold(
            spec.merger,
            shape,
            base=base,
            tombstones=tombstones,
            frames=[_frame(rows, block) for rows, block in zip(logs, tile.blocks, strict=True) if rows.num_rows],
            columns=columns,
        )
        yield base, folded


def _nullable(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema if field.name in names])


def _with_positions(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, *hidden_fields()])


def _stored(spec: MergeSpec, tile: Tile, schema: pa.Schema, files: ParquetFiles, budget: int) -> list[_Batches]:
    """The tile's stored rows: the base file's, then each winner file's, without superseded ones. Each
    stream is sorted by key, and no key is in two of them."""
    if tile.base is None:
        return []
    base = tile.base
    parts = [(base.add.path, base.add.size_bytes, base.ordinal, base.rows)]
    gone: Positions = {}
    if tile.minor is not None:
        gone = read_positions(spec.store, tile.minor.positions)
        parts += [(winner.path, winner.size_bytes, winner.ordinal, winner.rows) for winner in tile.minor.winners]
    share = max(1, budget // len(parts))
    return [
        _left(files.stream(path, size_bytes=size, schema=schema, budget_bytes=share), gone.get(ordinal))
        for path, size, ordinal, rows in parts
        if rows
    ]


def _left(stream: _Batches, gone: Bools | None) -> _Batches:
    """The rows that are not superseded; tables may come out empty."""
    at = 0
    for table, last in stream:
        here = np.empty(0, dtype=np.bool_) if gone is None else gone[at : at + table.num_rows]
        at += table.num_rows
        if here.any():
            keep = np.ones(table.num_rows, dtype=np.bool_)
            keep[: len(here)] = ~here
            yield table.filter(pa.array(keep)), last
        else:
            yield table, last


def _interleaved(parts: Sequence[pa.Table], schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Sorted tables without a common key as one sorted table."""
    filled = [part for part in parts if part.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else schema.empty_table()
    both = pa.concat_tables(filled).combine_chunks()
    return both.take(pa.array(sort_order(key_columns(both, key))))


def _tombstones(spec: MergeSpec, tile: Tile, files: ParquetFiles) -> _Batches:
    if tile.tombstones is not None:
        schema = tombstone_schema(spec.config.shape)
        budget = spec.settings.merge_budget_bytes // 2
        yield from files.stream(tile.tombstones, size_bytes=None, schema=schema, budget_bytes=budget)


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
