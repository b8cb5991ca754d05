"""The rows of a unit of the change feed: how the rows of some keys differ between two versions.

A record that lost, or that changed no value, is no change. The rows of both versions come from the same merge as in any
other read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from lakemerge.feed.units import FeedUnit, Side
from lakemerge.format.keys import KeySpan, keys_at
from lakemerge.format.log_block import LogBlock
from lakemerge.layout.view import FileSlice
from lakemerge.read.filter.prune import narrowed_to_keys
from lakemerge.read.merge import check_keys, fold_live, frame_of, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.runs import Run, each_file, key_ranges
from lakemerge.read.sources import MergeSpec, block_schema, block_stream, stored_streams, tombstone_stream
from lakemerge.schema.nested import settled
from mergers import Frame, RowKind, fold
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Bools, Ints
from mergers.kernel import Folded, overlay_rows, tombstone_schema
from mergers.keys import KeyColumns, group_starts, key_columns, locate, sort_order
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


class _OverAllowanceError(Exception):
    """The rows of some keys are more than may be held."""


class _Allowance:
    """How many bytes of rows may be held.

    :param limit: the bytes; ``None`` if it does not matter.
    """

    def __init__(self, limit: int | None) -> None:
        self._left = limit

    def take(self, rows: pa.Table) -> pa.Table:
        """The rows, which are held from now on. Raises :class:`_OverAllowanceError`."""
        if self._left is not None:
            self._left -= rows.nbytes
            if self._left < 0:
                raise _OverAllowanceError
        return rows


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
    with ParquetFiles(unit.after.spec.store, unit.after.spec.footers) as files:
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
        allowance = _Allowance(unit.after.spec.settings.merge_budget_bytes if keys.num_rows > 1 else None)
        try:
            old, new = _rows_of_keys(unit, keys, files, allowance)
        except _OverAllowanceError:
            half = keys.num_rows // 2
            left += [keys.slice(half), keys.slice(0, half)]
            continue
        yield keys, old, new


def _rows_of_keys(
    unit: FeedUnit, keys: pa.Table, files: ParquetFiles, allowance: _Allowance
) -> tuple[pa.Table, pa.Table]:
    # A key that is left out has no row, but its records go on from the state that it has.
    if unit.keys is not None and unit.is_one_commit and unit.after.spec.leave_out is None:
        (before,) = unit.before.file_slices
        return _before_and_after(unit.after.spec, before, unit.keys[1], keys, files, allowance)
    return _rows(unit.before, keys, files, allowance), _rows(unit.after, keys, files, allowance)


# The rows of a commit's keys before and after it come from one read of what was stored. Only these keys are merged. The
# merge kernel makes the rows after from the rows before and the commit's records. That is right because a state is a
# left fold: the fold can continue from any commit (docs/merge-semantics.md, section 1). A compaction does the same.


def _before_and_after(
    spec: MergeSpec,
    before: FileSlice,
    brought: Sequence[LogBlock],
    keys: pa.Table,
    files: ParquetFiles,
    allowance: _Allowance,
) -> tuple[pa.Table, pa.Table]:
    """The rows of these keys in both versions, with all columns, sorted by key. Raises :class:`_OverAllowanceError`.

    :param before: the file slice without the records of the commit.
    :param keys: the keys of the commit's records in the file slice, sorted, each once.
    """
    schema = pa.schema([field.with_nullable(True) for field in spec.config.schema])
    if not keys.num_rows:
        return schema.empty_table(), schema.empty_table()
    sought = key_columns(keys, spec.config.key)
    looked = _Looked(spec, _narrowed(before, sought), sought, schema, files, allowance)
    rows, tombstones = looked.state()
    folded = looked.fold(rows, tombstones, looked.frames(brought))
    return rows, looked.rows(rows, folded)


@dataclass(frozen=True, slots=True)
class _Looked:
    """The look-up of some keys in a file slice."""

    spec: MergeSpec
    file_slice: FileSlice
    sought: KeyColumns
    schema: pa.Schema
    files: ParquetFiles
    allowance: _Allowance

    def state(self) -> tuple[pa.Table, pa.Table]:
        """The rows and the tombstones of the keys."""
        file_slice, shape = self.file_slice, self.spec.config.shape
        budget = self.spec.settings.merge_budget_bytes // 2
        streams = stored_streams(self.spec, file_slice, self.schema, self.files, budget)
        stored = self._among((table for _, stream in streams for table, _ in stream), self.schema)
        remembered = tombstone_stream(self.spec, file_slice, self.files)
        tombstones = self._among((table for table, _ in remembered), tombstone_schema(shape))
        _, folded = fold_live(
            self.spec,
            file_slice,
            base=stored,
            tombstones=tombstones,
            frames=self.frames(file_slice.blocks),
            columns=self.schema.names,
        )
        return self.rows(stored, folded), folded.tombstones

    def fold(self, rows: pa.Table, tombstones: pa.Table, frames: Sequence[Frame]) -> Folded:
        shape, names = self.spec.config.shape, self.schema.names
        return fold(self.spec.merger, shape, base=rows, tombstones=tombstones, frames=frames, columns=names)

    def rows(self, before: pa.Table, folded: Folded) -> pa.Table:
        return settled(overlay_rows(before, folded, self.schema.names, sort=True)).cast(self.schema)

    def frames(self, blocks: Iterable[LogBlock]) -> list[Frame]:
        """The records of the keys, in commit order. Where the store is far away, several files are read at once."""
        numbered = [(block.file.path, (number, block)) for number, block in enumerate(blocks)]
        found = dict(each_file(numbered, self._frame, self.spec.store.reads_at_once))
        return [frame for _, frame in sorted(found.items()) if frame is not None]

    def _frame(self, numbered: tuple[int, LogBlock]) -> tuple[int, Frame | None]:
        number, block = numbered
        names = self.spec.config.names
        schema = block_schema(self.schema, block, names)
        budget = self.spec.settings.merge_budget_bytes
        stream = block_stream(block, schema, self.file_slice, self.spec.config, self.files, budget)
        # Within a block equal keys are in commit order, and a sort by key keeps that order.
        records = self._among((table for table, _ in stream), schema)
        return number, frame_of(records, block, names) if records.num_rows else None

    def _among(self, tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """The rows of the tables with these keys, sorted by key."""
        key = self.spec.config.key
        found = pa.concat_tables([schema.empty_table(), *self._parts(tables, key)])
        return gather(found, sort_order(key_columns(found, key))) if found.num_rows else found

    def _parts(self, tables: Iterable[pa.Table], key: tuple[str, ...]) -> Iterator[pa.Table]:
        for table in tables:
            if table.num_rows:
                check_keys(self.file_slice, key, [table])
                _, among = locate(self.sought, key_columns(table, key))
                yield self.allowance.take(together(table).filter(pa.array(among)))


def _narrowed(file_slice: FileSlice, sought: KeyColumns) -> FileSlice:
    """The file slice from the first key to the last. A file without rows stays, because it may have tombstones."""
    span = KeySpan.closed(*keys_at(sought, [0, len(sought[0]) - 1]))
    blocks = tuple(block for block in file_slice.blocks if span.may_hold(block.key_min or (), block.key_max or ()))
    return replace(file_slice, blocks=blocks, wanted=span)


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


def _rows(side: Side, keys: pa.Table, files: ParquetFiles, allowance: _Allowance) -> pa.Table:
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
