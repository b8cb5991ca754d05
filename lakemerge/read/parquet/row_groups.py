"""Decides by statistics which row groups of a Parquet file a read can leave out."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.format.keys import Key, KeySpan, keys_at
from lakemerge.read.filter.filter import FileStats, Filter, prune
from lakemerge.read.parquet.extremes import extremes
from lakemerge.schema.names import ColumnNames

__all__ = ["RowGroups", "in_span", "key_bounds", "matching", "with_keys"]

RowGroups = Callable[[pq.FileMetaData, Sequence[int]], list[int]]
"""Chooses the row groups to read from the given ones of a file, in order."""


def in_span(key: Sequence[pa.Field], span: KeySpan) -> RowGroups:
    """Row groups that may hold keys of a span.

    :param key: the key columns, as files have them; the file is sorted by key.
    """

    def choose(footer: pq.FileMetaData, groups: Sequence[int]) -> list[int]:
        bounds = key_bounds(footer, groups, key)
        return [
            group for group, (least, greatest) in zip(groups, bounds, strict=True) if span.may_hold(least, greatest)
        ]

    return choose


def with_keys(key: Sequence[pa.Field], keys: Sequence[Key]) -> RowGroups:
    """Row groups that may hold one of some keys.

    :param key: the key columns, as files have them; the file is sorted by key.
    :param keys: ascending.
    """

    def may_hold(least: Key, greatest: Key) -> bool:
        # A bound may be only the beginning of a key. All keys with this beginning are within the bound.
        width = len(greatest)
        return bisect_left(keys, least) < bisect_right(keys, greatest, key=lambda one: one[:width])

    def choose(footer: pq.FileMetaData, groups: Sequence[int]) -> list[int]:
        bounds = key_bounds(footer, groups, key)
        return [group for group, ends in zip(groups, bounds, strict=True) if may_hold(*ends)]

    return choose


def key_bounds(footer: pq.FileMetaData, groups: Sequence[int], key: Sequence[pa.Field]) -> list[tuple[Key, Key]]:
    """For each row group, the beginning of its smallest and of its largest key, as far as statistics say. These are the
    values of the first columns, up to one that varies in the group. They are empty if there are no statistics."""
    leaves = [(field.type, _leaf(footer, field.name)) for field in key]
    return [_key_bounds(footer.row_group(group), leaves) for group in groups]


def _key_bounds(group: Any, leaves: Sequence[tuple[pa.DataType, int | None]]) -> tuple[Key, Key]:
    least: Key = ()
    greatest: Key = ()
    for kind, index in leaves:
        bounds = None if index is None else _bounds(group.column(index))
        if bounds is None:
            break
        try:
            typed = pa.array(bounds, kind)
        except (pa.ArrowException, OverflowError):
            break  # the file's column is of another type, which is said where its values are read
        low, high = keys_at((typed,), [0, 1])
        least, greatest = least + low, greatest + high
        if low != high:
            break
    return least, greatest


def matching(condition: Filter, names: ColumnNames) -> RowGroups:
    """Row groups that may hold rows that match. Only for rows that no merge changes any more.

    :param names: those that the table's columns have in files.
    """

    def choose(footer: pq.FileMetaData, groups: Sequence[int]) -> list[int]:
        found = [(field, _leaf(footer, names.of(field.name))) for field in condition.schema]
        leaves = [(field, index) for field, index in found if index is not None]
        stats = [_statistics(footer.row_group(group), leaves) for group in groups]
        return [group for group, kept in zip(groups, prune(condition, stats).tolist(), strict=True) if kept]

    return choose


def _statistics(group: Any, leaves: Sequence[tuple[pa.Field, int]]) -> FileStats:
    low, high, nulls = {}, {}, {}
    for field, index in leaves:
        chunk = group.column(index)
        bounds = _bounds(chunk)
        if bounds is not None:
            low[field.name], high[field.name] = (_typed(bound, field.type) for bound in bounds)
        if chunk.is_stats_set and chunk.statistics.has_null_count:
            nulls[field.name] = chunk.statistics.null_count
    return FileStats(min=low, max=high, null_count=nulls, num_rows=group.num_rows)


def _typed(bound: Any, kind: pa.DataType) -> Any:
    """A bound of a column whose type may have become wider since the file was written. Dates are the only type that
    Arrow does not convert to the wider one itself."""
    if pa.types.is_timestamp(kind) and isinstance(bound, dt.date) and not isinstance(bound, dt.datetime):
        return dt.datetime.combine(bound, dt.time())
    return bound


def _bounds(chunk: Any) -> tuple[Any, Any] | None:
    """Minimum and maximum. ``None`` for floats, whose bounds ignore NaN, and if Python has no such value: for instants
    and dates outside Python's years, and for strings that are not UTF-8."""
    if not chunk.is_stats_set or not chunk.statistics.has_min_max or chunk.physical_type in ("FLOAT", "DOUBLE"):
        return None
    try:
        return extremes(chunk.statistics)
    except (OverflowError, UnicodeDecodeError):
        return None


def _leaf(footer: pq.FileMetaData, name: str) -> int | None:
    """The index of a top-level column that has no fields. ``None`` if the file has no such column."""
    arrow = footer.schema.to_arrow_schema()
    at = arrow.get_field_index(name)
    if at < 0 or pa.types.is_nested(arrow.field(at).type):
        return None
    return sum(_width(arrow.field(i).type) for i in range(at))


def _width(kind: pa.DataType) -> int:
    """The number of leaves of a type."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_width(kind.field(i).type) for i in range(kind.num_fields))
