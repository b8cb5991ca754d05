"""Leaving out tiles that cannot hold a row a filter asks for.

A clean tile is judged by its file's statistics and partition values; others only by partition values,
which no merge changes. Where a filter names the whole key by ``=`` or ``IN``, tiles of other slices
and key ranges go too, and log blocks of other keys: no merge changes a key.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pyarrow as pa

from lakemerge.config import TableConfig
from lakemerge.errors import TableDamagedError
from lakemerge.read.filter import FileStats, Filter, prune
from lakemerge.slices.model import Key, KeySpan, LogBlock, SliceId, keys_at
from lakemerge.slices.partition import parse_partition_value, partition_value
from lakemerge.slices.view import TableView, Tile
from lakemerge.slices.xxhash64 import buckets as bucket_numbers
from mergers.keys import key_columns, sort_order

__all__ = ["prune_tiles", "tiles_of_keys"]

_MAX_KEYS = 10_000
"""A filter that names more keys is judged by statistics alone."""


def prune_tiles(view: TableView, condition: Filter | None) -> list[Tile]:
    """The tiles that may hold matching rows; tiles without any row are left out too."""
    keys = None if condition is None else _keys_asked(condition, view.config)
    there = [tile for tile in view.tiles if not tile.is_empty] if keys is None else tiles_of_keys(view, keys)
    if condition is None or not there:
        return there
    keep = prune(condition, [_statistics(tile, view.config, condition.columns) for tile in there])
    return [tile for tile, kept in zip(there, keep.tolist(), strict=True) if kept]


def tiles_of_keys(view: TableView, keys: pa.Table) -> list[Tile]:
    """The tiles that may hold some of the keys, narrowed to these.

    :param keys: the key columns, in key order and of the table's types, without nulls.
    """
    config = view.config
    found = keys_at(key_columns(keys, config.key), range(keys.num_rows))
    numbers = bucket_numbers([keys.column(name) for name in config.key], config.buckets or 1).tolist()
    values = keys.select(list(config.partition_by)).to_pylist() if config.partition_by else [{}] * keys.num_rows
    by_slice: dict[SliceId, list[Key]] = defaultdict(list)
    for key, number, row in zip(found, numbers, values, strict=True):
        if "" not in row.values():  # no row has it: it is no partition value
            by_slice[SliceId(tuple(partition_value(value) for value in row.values()), number)].append(key)
    # Of rows in key order those of a slice are in key order too.
    narrowed = (
        _narrowed(tile, asked) for slice_id, asked in by_slice.items() for tile in view.tiles_by_slice.get(slice_id, ())
    )
    return [tile for tile in narrowed if tile is not None]


def _narrowed(tile: Tile, keys: Sequence[Key]) -> Tile | None:
    """:param keys: those of the tile's slice, ascending."""
    start = 0 if tile.lower is None else bisect_left(keys, tile.lower)
    end = len(keys) if tile.upper is None else bisect_left(keys, tile.upper)
    if start >= end:
        return None
    inside = keys[start:end]
    blocks = tuple(block for block in tile.blocks if _may_hold(block, inside))
    tile = replace(tile, blocks=blocks, wanted=KeySpan(inside[0], inside[-1]))
    return None if tile.is_empty else tile


def _may_hold(block: LogBlock, keys: Sequence[Key]) -> bool:
    start = 0 if block.key_min is None else bisect_left(keys, block.key_min)
    end = len(keys) if block.key_max is None else bisect_right(keys, block.key_max)
    return start < end


def _keys_asked(condition: Filter, config: TableConfig) -> pa.Table | None:
    """The keys that matching rows can have, where the condition names few enough."""
    values = [condition.points.get(name) for name in config.key]
    if not all(values) or math.prod(len(part) for part in values if part) > _MAX_KEYS:
        return None
    rows = list(itertools.product(*(dict.fromkeys(part) for part in values if part)))
    schema = pa.schema([config.schema.field(name) for name in config.key])
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    keys = pa.table(columns, schema=schema)
    return keys.take(pa.array(sort_order(key_columns(keys, config.key))))


def _statistics(tile: Tile, config: TableConfig, columns: frozenset[str]) -> FileStats:
    partition = {
        name: parse_partition_value(value, config.schema.field(name).type)
        for name, value in zip(config.partition_by, tile.slice.partition, strict=True)
        if value is not None and name in columns
    }
    if not tile.is_clean or tile.base is None or tile.base.add.stats is None:
        return FileStats(min={}, max={}, null_count={}, num_rows=None, partition_values=partition)
    try:
        body = orjson.loads(tile.base.add.stats)
        return FileStats(
            min=_bounds(body.get("minValues", {}), config.schema, columns, upper=False),
            max=_bounds(body.get("maxValues", {}), config.schema, columns, upper=True),
            null_count={name: int(n) for name, n in body.get("nullCount", {}).items() if name in columns},
            num_rows=int(body["numRecords"]),
            partition_values=partition,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        path = tile.base.add.path
        raise TableDamagedError(f"the statistics of file {path!r} are damaged: {error!r}", path=path) from error


def _bounds(
    values: Mapping[str, object], schema: pa.Schema, columns: frozenset[str], *, upper: bool
) -> dict[str, object]:
    """Typed bounds of the wanted columns. Delta cuts timestamps to milliseconds, so an upper bound
    holds for the whole millisecond."""
    bounds: dict[str, object] = {}
    for name, value in values.items():
        if name not in columns or value is None:
            continue
        kind = schema.field(name).type
        if pa.types.is_timestamp(kind):
            instant = dt.datetime.fromisoformat(str(value))
            bounds[name] = instant + dt.timedelta(microseconds=999) if upper else instant
        elif pa.types.is_date(kind):
            bounds[name] = dt.date.fromisoformat(str(value))
        elif pa.types.is_decimal(kind):
            bounds[name] = decimal.Decimal(str(value))
        else:
            bounds[name] = value
    return bounds
