"""Which row groups of a Parquet file a read can leave out, by their statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.read.filter import FileStats, Filter, prune
from lakemerge.slices.model import KeySpan, keys_at

__all__ = ["RowGroups", "in_span", "matching"]

RowGroups = Callable[[pq.FileMetaData, Sequence[int]], list[int]]
"""Of the given row groups of a file, those to read, in order."""


def in_span(column: pa.Field, span: KeySpan) -> RowGroups:
    """Row groups that may hold keys of a span.

    :param column: the first key column; the file is sorted by key.
    """
    low, high = span.low[:1], span.high[:1]

    def choose(footer: pq.FileMetaData, groups: Sequence[int]) -> list[int]:
        index = _leaf(footer, column.name)
        kept = []
        for group in groups:
            bounds = None if index is None else _bounds(footer.row_group(group).column(index))
            if bounds is not None:
                first, last = keys_at((pa.array(bounds, column.type),), [0, 1])
                if last < low or high < first:
                    continue
            kept.append(group)
        return kept

    return choose


def matching(condition: Filter) -> RowGroups:
    """Row groups that may hold rows that match; of rows that are final."""

    def choose(footer: pq.FileMetaData, groups: Sequence[int]) -> list[int]:
        leaves = {field.name: index for field in condition.schema if (index := _leaf(footer, field.name)) is not None}
        stats = [_statistics(footer.row_group(group), leaves) for group in groups]
        return [group for group, kept in zip(groups, prune(condition, stats).tolist(), strict=True) if kept]

    return choose


def _statistics(group: Any, leaves: dict[str, int]) -> FileStats:
    low, high, nulls = {}, {}, {}
    for name, index in leaves.items():
        chunk = group.column(index)
        bounds = _bounds(chunk)
        if bounds is not None:
            low[name], high[name] = bounds
        if chunk.is_stats_set and chunk.statistics.has_null_count:
            nulls[name] = chunk.statistics.null_count
    return FileStats(min=low, max=high, null_count=nulls, num_rows=group.num_rows)


def _bounds(chunk: Any) -> tuple[Any, Any] | None:
    """Minimum and maximum; not of floats, where both pass over NaN."""
    if not chunk.is_stats_set or not chunk.statistics.has_min_max or chunk.physical_type in ("FLOAT", "DOUBLE"):
        return None
    return chunk.statistics.min, chunk.statistics.max


def _leaf(footer: pq.FileMetaData, name: str) -> int | None:
    """The index of a top-level column without fields of its own; ``None`` where the file has none."""
    arrow = footer.schema.to_arrow_schema()
    at = arrow.get_field_index(name)
    if at < 0 or pa.types.is_nested(arrow.field(at).type):
        return None
    return sum(_width(arrow.field(i).type) for i in range(at))


def _width(kind: pa.DataType) -> int:
    """Leaves below a type."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_width(kind.field(i).type) for i in range(kind.num_fields))
