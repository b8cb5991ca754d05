"""Leaving out tiles that cannot hold a row a filter asks for.

A clean tile is judged by its file's statistics and partition values; a dirty one only by partition
values, which no merge changes.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence

import orjson
import pyarrow as pa

from lakemerge.config import TableConfig
from lakemerge.errors import TableDamagedError
from lakemerge.read.filter import FileStats, Filter, prune
from lakemerge.slices.partition import parse_partition_value
from lakemerge.slices.view import TableView, Tile

__all__ = ["prune_tiles"]


def prune_tiles(view: TableView, tiles: Sequence[Tile], condition: Filter | None) -> list[Tile]:
    """The tiles that may hold matching rows; tiles without any row are left out too."""
    there = [tile for tile in tiles if not tile.is_empty]
    if condition is None or not there:
        return there
    keep = prune(condition, [_statistics(tile, view.config, condition.columns) for tile in there])
    return [tile for tile, kept in zip(there, keep.tolist(), strict=True) if kept]


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
