"""Leaving out file slices that cannot hold a row a filter asks for.

A clean file slice is judged by its file's statistics and partition values. Others are judged only by partition
values, which no merge changes. If a filter names the whole key by ``=`` or ``IN`` (an Arrow expression: as
:mod:`lakemerge.read.filter.points` finds it), file slices of other buckets and key ranges are left out, too, and so are
log blocks of other keys, because no merge changes a key.
"""

from __future__ import annotations

import datetime as dt
import decimal
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import compress, pairwise

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.collector import collector_paused
from lakemerge.errors import TableDamagedError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Key, KeySpan, Partition, SoughtKeys, keys_at
from lakemerge.format.log_block import LogBlock
from lakemerge.layout.partition import parse_partition_value
from lakemerge.layout.placement import PlacedRows, place_rows
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.filter.filter import FileStats, Filter, prune
from lakemerge.read.filter.predicates import Points
from lakemerge.read.runs import key_position
from lakemerge.read.splits import Part
from mergers.keys import KeyColumns, key_columns, sort_order

__all__ = ["file_slices_of_keys", "narrowed_to_keys", "prune_file_slices", "prune_parts"]

_FEW_KEYS = 100
_MAX_KEYS = 100_000
"""A filter that names more keys is judged by statistics alone."""
_UNTYPED = (ValueError, TypeError, ArithmeticError, pa.ArrowException)
"""Errors that values of other types than the column's may raise."""


def prune_file_slices(view: TableView, condition: Filter | None, *, exact: bool = False) -> list[FileSlice]:
    """The file slices that may hold matching rows. File slices without rows are left out, too.

    :param exact: see :func:`file_slices_of_keys`, for conditions that name keys.
    """
    keys = None if condition is None else _keys_asked(condition, view.config)
    there = (
        [file_slice for file_slice in view.file_slices if not file_slice.is_empty]
        if keys is None
        else file_slices_of_keys(view, keys, exact=exact)
    )
    if condition is None or not there:
        return there
    return list(compress(there, _may_match(there, condition, view.config)))


def _may_match(file_slices: Sequence[FileSlice], condition: Filter, config: TableConfig) -> list[bool]:
    """Whether statistics and partition values let each file slice hold matching rows."""
    with collector_paused():
        values = cache(partial(_partition_values, config=config, columns=condition.columns))
        stats = [
            _statistics(file_slice, values(file_slice.bucket_id.partition), config, condition.columns)
            for file_slice in file_slices
        ]
        try:
            return prune(condition, stats).tolist()
        except _UNTYPED as error:
            damage = _damaged_statistics(condition, file_slices, stats)
            if damage is None:
                raise
            raise damage from error


def prune_parts(parts: Sequence[Part], condition: Filter, config: TableConfig) -> list[Part]:
    """The parts that may hold matching rows, for whoever has no more of the version. If the condition names keys, the
    first part of a file slice gives all of its rows with these keys, and the others give none."""
    found = list(compress(parts, _may_match([part.file_slice for part in parts], condition, config)))
    if all(part.file_slice.wanted is not None for part in found):
        return found
    keys = _keys_asked(condition, config)
    if keys is None:
        return found
    places = cache(partial(_keys_by_bucket, keys, config))
    return [left for part in found if (left := _narrowed_part(part, places)) is not None]


def _narrowed_part(part: Part, places: Callable[[int], Mapping[BucketId, KeyColumns]]) -> Part | None:
    file_slice = part.file_slice
    if file_slice.wanted is not None:
        return part
    keys = places(file_slice.buckets).get(file_slice.bucket_id) if part.number == 0 else None
    narrowed = None if keys is None else narrowed_to_keys(file_slice, keys)
    return None if narrowed is None else Part(narrowed, 0, 1, part.stored_bytes)


def file_slices_of_keys(view: TableView, keys: pa.Table, *, exact: bool = False) -> list[FileSlice]:
    """The file slices that may hold some of the keys, narrowed to these.

    :param keys: the key columns, in key order and of the table's types, without nulls.
    :param exact: whether file slices carry the keys themselves, and not only their span. There may be many keys, so
        this is for reads in this process.
    """
    config, buckets = view.config, view.config.buckets or 1
    keys = _placeable(keys, config)
    placed = place_rows(keys, config, buckets)
    if view.layout.counts:
        # Several buckets of the table are one bucket here. It has the number of one of them.
        found, place = np.unique(placed.slots, return_inverse=True)
        parts = [view.layout.bucket_of(*placed.bucket(slot)) for slot in found.tolist()]
        own = [slot - slot % buckets + part.bucket for slot, part in zip(found.tolist(), parts, strict=True)]
        placed = replace(placed, slots=np.array(own, dtype=np.int64)[place])
    narrowed = [
        narrowed_to_keys(file_slice, asked, exact=exact)
        for bucket_id, asked in _by_bucket(keys, placed, config)
        for file_slice in view.file_slices_of(bucket_id)
    ]
    return [file_slice for file_slice in narrowed if file_slice is not None]


def _placeable(keys: pa.Table, config: TableConfig) -> pa.Table:
    for name in config.partition_by:
        if pa.types.is_string(keys.schema.field(name).type):
            keys = keys.filter(pc.not_equal(keys.column(name), ""))  # no row has it: "" is not a partition value
    return keys


def _keys_by_bucket(keys: pa.Table, config: TableConfig, buckets: int) -> Mapping[BucketId, KeyColumns]:
    keys = _placeable(keys, config)
    return dict(_by_bucket(keys, place_rows(keys, config, buckets), config))


def _by_bucket(keys: pa.Table, placed: PlacedRows, config: TableConfig) -> Iterator[tuple[BucketId, KeyColumns]]:
    """The keys of each bucket, in key order."""
    order = placed.by_bucket()  # the keys of a bucket stay in key order
    slots = placed.slots[order]
    columns = tuple(column.take(pa.array(order)) for column in key_columns(keys, config.key))
    starts = np.flatnonzero(np.diff(slots, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(slots)]):
        yield placed.bucket(int(slots[start])), tuple(column.slice(start, end - start) for column in columns)


def narrowed_to_keys(file_slice: FileSlice, keys: KeyColumns, *, exact: bool = False) -> FileSlice | None:
    """The file slice without the parts that surely hold none of the keys. ``None`` if nothing is left.

    :param keys: the keys of the file slice's bucket, ascending.
    """
    start = 0 if file_slice.lower is None else key_position(keys, file_slice.lower, after=False)
    end = len(keys[0]) if file_slice.upper is None else key_position(keys, file_slice.upper, after=False)
    if start >= end:
        return None
    inside = tuple(column.slice(start, end - start) for column in keys)
    low, high = keys_at(inside, [0, end - start - 1])
    # Only the ends of a long list of keys are compared with a block.
    listed = keys_at(inside, range(end - start)) if end - start <= _FEW_KEYS else None
    span = KeySpan.closed(low, high)
    blocks = tuple(block for block in file_slice.blocks if _may_hold(block, span, listed))
    narrowed = replace(file_slice, blocks=blocks, wanted=span, sought=SoughtKeys(inside) if exact else None)
    return None if narrowed.is_empty else narrowed


def _may_hold(block: LogBlock, span: KeySpan, listed: Sequence[Key] | None) -> bool:
    if listed is None:
        return span.may_hold(block.key_min or (), block.key_max or ())
    start = 0 if block.key_min is None else bisect_left(listed, block.key_min)
    end = len(listed) if block.key_max is None else bisect_right(listed, block.key_max)
    return start < end


def _keys_asked(condition: Filter, config: TableConfig) -> pa.Table | None:
    """The keys that matching rows can have, if the condition names few enough. Else ``None``."""
    found = _rows_asked(condition.points, config.key)
    if found is None:
        return None
    names, rows = found
    places = [names.index(name) for name in config.key]
    rows = list(dict.fromkeys(tuple(row[place] for place in places) for row in rows))
    schema = pa.schema([config.schema.field(name) for name in config.key])
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    keys = pa.table(columns, schema=schema)
    return keys.take(pa.array(sort_order(key_columns(keys, config.key))))


def _rows_asked(points: Points, key: Sequence[str]) -> tuple[list[str], list[tuple[object, ...]]] | None:
    """Names of columns with the whole key among them, and the only values that matching rows can have there, if they
    are few. Entries of more key columns go first, and then shorter ones."""
    names: list[str] = []
    rows: list[tuple[object, ...]] = [()]
    for columns in sorted(points, key=lambda columns: (-len(set(columns) & set(key)), len(points[columns]))):
        new = [place for place, name in enumerate(columns) if name in key and name not in names]
        if not new:
            continue
        values = list(dict.fromkeys(tuple(row[place] for place in new) for row in points[columns]))
        if len(rows) * len(values) > _MAX_KEYS:
            return None
        names += [columns[place] for place in new]
        rows = [(*row, *value) for row in rows for value in values]
    return (names, rows) if set(names) == set(key) and rows else None


def _partition_values(partition: Partition, config: TableConfig, columns: frozenset[str]) -> Mapping[str, object]:
    """The partition values of the wanted columns that are not null."""
    return {
        name: parse_partition_value(value, config.schema.field(name).type)
        for name, value in zip(config.partition_by, partition, strict=True)
        if value is not None and name in columns
    }


def _statistics(
    file_slice: FileSlice, partition: Mapping[str, object], config: TableConfig, columns: frozenset[str]
) -> FileStats:
    if not file_slice.is_clean or file_slice.base is None or file_slice.base.add.stats is None:
        return FileStats(min={}, max={}, null_count={}, num_rows=None, partition_values=partition)
    try:
        body, known = orjson.loads(file_slice.base.add.stats), config.names.of_table
        return FileStats(
            min=_bounds(known(body.get("minValues", {})), config.schema, columns, upper=False),
            max=_bounds(known(body.get("maxValues", {})), config.schema, columns, upper=True),
            null_count={name: int(n) for name, n in known(body.get("nullCount", {})).items() if name in columns},
            num_rows=int(body["numRecords"]),
            partition_values=partition,
        )
    except (*_UNTYPED, KeyError, AttributeError) as error:
        raise _damage(file_slice.base.add.path, error) from error


def _damaged_statistics(
    condition: Filter, file_slices: Sequence[FileSlice], stats: Sequence[FileStats]
) -> TableDamagedError | None:
    """The error for the first file whose statistics are not values of the columns."""
    for file_slice, one in zip(file_slices, stats, strict=True):
        try:
            prune(condition, [one])
        except _UNTYPED as error:
            return None if file_slice.base is None else _damage(file_slice.base.add.path, error)
    return None


def _damage(path: str, error: Exception) -> TableDamagedError:
    return TableDamagedError(f"the statistics of file {path!r} are damaged: {error!r}", path=path)


def _bounds(
    values: Mapping[str, object], schema: pa.Schema, columns: frozenset[str], *, upper: bool
) -> dict[str, object]:
    """Typed bounds of the wanted columns. Delta cuts timestamps to milliseconds, so an upper bound
    covers the whole millisecond."""
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
