"""The rows of a unit of the change feed: how the rows of some keys differ between two versions.

A record that lost, or that changed no value, is no change. The rows of both versions come from the same merge as in any
other read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from lakemerge.feed.appended import Allowance, OverAllowanceError, before_and_after
from lakemerge.feed.units import FeedUnit, Side
from lakemerge.layout.view import FileSlice
from lakemerge.read.filter.prune import narrowed_to_keys
from lakemerge.read.merge import merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.runs import Run, key_ranges
from lakemerge.read.sources import MergeSpec, block_stream
from mergers import RowKind
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Bools, Ints
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import bounded_batches, gather, together

__all__ = [
    "CHANGE_TYPE",
    "CHANGE_TYPES",
    "KIND",
    "TIMESTAMP",
    "TOLD",
    "VERSION",
    "FeedShape",
    "row_changes",
    "unit_batches",
]

KIND, VERSION, TIMESTAMP = "_row_kind", "_commit_version", "_commit_timestamp"
"""Columns of the feed beside the table's: the kind (``+I``, ``-U``, ``+U`` or ``-D``), and the commit's version and
time."""
CHANGE_TYPE = "_change_type"
"""The kind column on Spark."""
TOLD = pa.schema([(KIND, pa.string()), (VERSION, pa.int64()), (TIMESTAMP, pa.timestamp("us", "UTC"))])
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
"""Delta's and Spark's words for the kinds, in the kinds' order."""
_WORDS = dict(zip(sorted(RowKind), CHANGE_TYPES, strict=True))


class Columns(Protocol):
    """The columns of a feed."""

    @property
    def schema(self) -> pa.Schema: ...

    def shaped(self, rows: pa.Table) -> pa.Table:
        """Rows of one of the table's versions, in these columns."""


@dataclass(frozen=True, slots=True)
class FeedShape:
    """The columns and words of a feed. Picklable."""

    columns: Columns
    before_images: bool = True
    """Whether an update also has the row as it was before."""
    spark_names: bool = False
    """Whether kinds are Delta's and Spark's words, in ``_change_type``."""

    @property
    def schema(self) -> pa.Schema:
        told = TOLD.set(0, pa.field(CHANGE_TYPE, pa.string())) if self.spark_names else TOLD
        return pa.schema([*self.columns.schema, *told])


def unit_batches(unit: FeedUnit, shape: FeedShape) -> Iterator[pa.RecordBatch]:
    """The changes of a unit, sorted by key; a row's before image comes before its after image. A unit of a version's
    rows gives them as inserts, in batches of bounded size."""
    with ParquetFiles(unit.after.spec.store) as files:
        for rows, kinds in _changes(unit, shape, files):
            if rows.num_rows:
                yield from bounded_batches(together(_told(unit, shape, rows, kinds)), rows=rows.num_rows)


def _changes(unit: FeedUnit, shape: FeedShape, files: ParquetFiles) -> Iterator[tuple[pa.Table, Ints]]:
    if unit.keys is None and not unit.before.file_slices:
        for file_slice in unit.after.file_slices:
            names = unit.after.spec.config.schema.names
            for part in merge_file_slice(unit.after.spec, file_slice, columns=names, sort=True, files=files):
                rows = shape.columns.shaped(part.rows)
                yield rows, np.full(rows.num_rows, RowKind.INSERT, dtype=np.int64)
        return
    key, before_images = unit.after.spec.config.key, shape.before_images
    for keys, old, new in _ranges(unit, files) if unit.keys is None else _portions(unit, files):
        yield row_changes(shape.columns, key, keys, old, new, before_images=before_images)


def _portions(unit: FeedUnit, files: ParquetFiles) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """The keys of the unit's records, and their rows before and after. If these exceed the merge budget, they come some
    keys at a time. How large rows are is not known before they are read."""
    left = [_keys(unit, files)]
    while left:
        keys = left.pop()
        allowance = Allowance(unit.after.spec.settings.merge_budget_bytes if keys.num_rows > 1 else None)
        try:
            old, new = _rows_of_keys(unit, keys, files, allowance)
        except OverAllowanceError:
            half = keys.num_rows // 2
            left += [keys.slice(half), keys.slice(0, half)]
            continue
        yield keys, old, new


def _rows_of_keys(
    unit: FeedUnit, keys: pa.Table, files: ParquetFiles, allowance: Allowance
) -> tuple[pa.Table, pa.Table]:
    # A key that is left out has no row, but its records go on from the state that it has.
    if unit.keys is not None and unit.is_one_commit and unit.after.spec.leave_out is None:
        (before,) = unit.before.file_slices
        return before_and_after(unit.after.spec, before, unit.keys[1], keys, files, allowance)
    return _rows(unit.before, keys, files, allowance), _rows(unit.after, keys, files, allowance)


def _ranges(unit: FeedUnit, files: ParquetFiles) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """All keys of a unit and their rows before and after, some keys at a time."""
    count = len(unit.before.file_slices)
    budget = unit.after.spec.settings.merge_budget_bytes
    share = max(1, budget // max(1, count + len(unit.after.file_slices)))
    runs: list[Run] = []
    schemas: list[pa.Schema] = []
    for side in (unit.before, unit.after):
        spec = replace(side.spec, settings=replace(side.spec.settings, merge_budget_bytes=share))
        schema = pa.schema([field.with_nullable(True) for field in spec.config.schema])
        schemas.append(schema)
        streams = (_stream(spec, file_slice, schema, files) for file_slice in side.file_slices)
        runs += (Run(stream, schema, spec.config.key) for stream in streams)
    for parts in key_ranges(runs, budget_bytes=budget):
        old, new = (
            _by_key(pa.concat_tables([schema.empty_table(), *found]), unit.after.spec.config.key)
            for schema, found in zip(schemas, (parts[:count], parts[count:]), strict=True)
        )
        yield _all_keys(unit, old, new), old, new


def _stream(
    spec: MergeSpec, file_slice: FileSlice, schema: pa.Schema, files: ParquetFiles
) -> Iterator[tuple[pa.Table, bool]]:
    for part in merge_file_slice(spec, file_slice, columns=schema.names, sort=True, files=files):
        yield part.rows.cast(schema), False


def _told(unit: FeedUnit, shape: FeedShape, rows: pa.Table, kinds: Ints) -> pa.Table:
    words = [_WORDS[kind] if shape.spark_names else kind.symbol for kind in sorted(RowKind)]
    count = rows.num_rows
    versions = pa.array(np.full(count, unit.version, dtype=np.int64))
    times = pa.array(np.full(count, unit.timestamp_ms * 1000), TOLD.field(TIMESTAMP).type)
    return pa.table([*rows.columns, pa.array(words).take(pa.array(kinds)), versions, times], schema=shape.schema)


def _keys(unit: FeedUnit, files: ParquetFiles) -> pa.Table:
    """The keys of the unit's records, each once and in key order."""
    if unit.keys is None:
        raise AssertionError("any key may have changed")
    limits, blocks = unit.keys
    config, settings = unit.after.spec.config, unit.after.spec.settings
    schema = pa.schema([config.schema.field(name) for name in config.key])
    found = [schema.empty_table()]
    for block in blocks:
        stream = block_stream(block, schema, limits, config, files, settings.merge_budget_bytes)
        found += [table for table, _ in stream]
    return _unique(pa.concat_tables(found), config.key)


def _all_keys(unit: FeedUnit, old: pa.Table, new: pa.Table) -> pa.Table:
    config = unit.after.spec.config
    schema = pa.schema([config.schema.field(name) for name in config.key])
    both = [rows.select(config.key).cast(schema) for rows in (old, new)]
    return _unique(pa.concat_tables(both), config.key)


def _unique(keys: pa.Table, key: tuple[str, ...]) -> pa.Table:
    ordered = _by_key(keys, key)
    return gather(ordered, group_starts(key_columns(ordered, key))) if ordered.num_rows else ordered


def _rows(side: Side, keys: pa.Table, files: ParquetFiles, allowance: Allowance) -> pa.Table:
    """The rows of a version for these keys, sorted by key."""
    spec = side.spec
    names = spec.config.schema.names
    schema = pa.schema([field.with_nullable(True) for field in spec.config.schema])
    found = [schema.empty_table()]
    for file_slice in side.file_slices:
        wanted = narrowed_to_keys(file_slice, key_columns(keys, spec.config.key))
        if wanted is not None:
            found += (allowance.take(rows.cast(schema)) for rows in _of_tile(spec, wanted, keys, names, files))
    return _by_key(pa.concat_tables(found), spec.config.key)


def _of_tile(
    spec: MergeSpec, file_slice: FileSlice, keys: pa.Table, names: list[str], files: ParquetFiles
) -> Iterator[pa.Table]:
    for part in merge_file_slice(spec, file_slice, columns=names, sort=False, files=files):
        rows = part.rows
        if rows.num_rows:
            _, among = locate(key_columns(keys, spec.config.key), key_columns(rows, spec.config.key))
            rows = rows.filter(pa.array(among))
        yield rows


def row_changes(
    columns: Columns, key: tuple[str, ...], keys: pa.Table, old: pa.Table, new: pa.Table, *, before_images: bool
) -> tuple[pa.Table, Ints]:
    """How the rows of some keys differ between two versions, as rows and their kinds.

    :param keys: sorted and unique, like ``old`` and ``new``.
    """
    sought = key_columns(keys, key)
    old_at, was = locate(key_columns(old, key), sought)
    new_at, now = locate(key_columns(new, key), sought)
    # The versions may differ in columns, fields and types. A new column or field was null before.
    both = together(pa.concat_tables([columns.shaped(old), columns.shaped(new)]))
    new_at = new_at + old.num_rows
    changed = was != now
    kept = np.flatnonzero(was & now)
    changed[kept] = _differ(both, old_at[kept], new_at[kept])
    images = [np.where(now, RowKind.UPDATE_BEFORE, RowKind.DELETE), np.where(was, RowKind.UPDATE_AFTER, RowKind.INSERT)]
    # Two places for each key: its row before, and its row after.
    told_before = was & changed if before_images else was & changed & ~now
    there = np.stack([told_before, now & changed], axis=1).ravel()
    rows = gather(both, np.stack([old_at, new_at], axis=1).ravel()[there])
    return rows, np.stack(images, axis=1).ravel()[there]


def _by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, key)))


def _differ(rows: pa.Table, left: Ints, right: Ints) -> Bools:
    """Whether two rows differ in some column; null is equal to null, and NaN to NaN."""
    differ = np.zeros(len(left), dtype=np.bool_)
    for column in rows.columns:
        codes = equality_codes(column.combine_chunks())
        differ |= codes[left] != codes[right]
    return differ
