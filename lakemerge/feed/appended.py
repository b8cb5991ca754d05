"""The rows of a commit's keys before and after it, from one read of what was stored.

The rows after are what the merge kernel makes of the rows before and the commit's records: a state is a left fold, so
that it can be gone on with at any commit (docs/merge-semantics.md, section 1), as a compaction does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from lakemerge.nested import settled
from lakemerge.read.merge import frame_of, merge_tile
from lakemerge.read.parquet import ParquetFiles
from lakemerge.read.sources import MergeSpec, block_schema, block_stream
from lakemerge.slices.model import KeySpan, LogBlock, keys_at
from lakemerge.slices.view import Tile
from mergers import Frame, fold
from mergers.kernel import overlay_rows, tombstone_schema
from mergers.keys import key_columns, locate, sort_order

__all__ = ["before_and_after"]


def before_and_after(
    spec: MergeSpec, before: Tile, after: Tile, brought: Sequence[LogBlock], keys: pa.Table, files: ParquetFiles
) -> tuple[pa.Table, pa.Table]:
    """The rows of these keys in either version, all columns, sorted by key.

    :param before: the file slice without what the commit brought.
    :param keys: those of the commit's records in the file slice, sorted, each once.
    """
    shape = spec.config.shape
    names = shape.schema.names
    schema = pa.schema([field.with_nullable(True) for field in shape.schema])
    rows, tombstones = _state(spec, before, keys, schema, files)
    frames = [frame for block in brought for frame in _frames(spec, after, block, schema, files)]
    folded = fold(spec.merger, shape, base=rows, tombstones=tombstones, frames=frames, columns=names)
    return rows, settled(overlay_rows(rows, folded, names, sort=True)).cast(schema)


def _state(
    spec: MergeSpec, tile: Tile, keys: pa.Table, schema: pa.Schema, files: ParquetFiles
) -> tuple[pa.Table, pa.Table]:
    key = spec.config.key
    sought = key_columns(keys, key)
    rows, tombstones = [schema.empty_table()], [tombstone_schema(spec.config.shape).empty_table()]
    if keys.num_rows:
        wanted = _narrowed(tile, sought)
        # Tombstones come with sorted rows alone. Where there are none, nothing has to be folded.
        sort = not wanted.is_merged or wanted.tombstones is not None
        for part in merge_tile(spec, wanted, columns=schema.names, sort=sort, files=files):
            rows.append(_among(part.rows, sought, key).cast(schema))
            tombstones.append(_among(part.tombstones, sought, key))
    return _by_key(pa.concat_tables(rows), key), _by_key(pa.concat_tables(tombstones), key)


def _narrowed(tile: Tile, sought: tuple[pa.Array, ...]) -> Tile:
    """The file slice from the first key to the last. One without rows may have tombstones, which count."""
    span = KeySpan.closed(*keys_at(sought, [0, len(sought[0]) - 1]))
    blocks = tuple(block for block in tile.blocks if span.may_hold(block.key_min or (), block.key_max or ()))
    return replace(tile, blocks=blocks, wanted=span)


def _frames(spec: MergeSpec, tile: Tile, block: LogBlock, schema: pa.Schema, files: ParquetFiles) -> list[Frame]:
    budget = spec.settings.merge_budget_bytes
    stream = block_stream(block, block_schema(schema, block), tile, spec.config, files, budget)
    tables = [table for table, _ in stream if table.num_rows]
    return [frame_of(pa.concat_tables(tables).combine_chunks(), block)] if tables else []


def _among(rows: pa.Table, sought: tuple[pa.Array, ...], key: tuple[str, ...]) -> pa.Table:
    if not rows.num_rows:
        return rows
    plain = rows.combine_chunks()
    _, found = locate(sought, key_columns(plain, key))
    return plain.filter(pa.array(found))


def _by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    plain = rows.combine_chunks()
    return plain.take(pa.array(sort_order(key_columns(plain, key)))) if plain.num_rows else plain
