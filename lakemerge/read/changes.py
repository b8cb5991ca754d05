"""The change feed: what each commit changed in the rows, with before and after images.

Of a commit only the keys of its records are looked at: their rows in the version before, and in the
commit's own. A record that lost, or that brought what was there already, is no change; nor is a
compaction.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemerge.errors import InputError
from lakemerge.format.block_index import LogCommit
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock
from lakemerge.handle import Handle
from lakemerge.layout.travel import check_kept
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.feed_columns import FeedColumns
from lakemerge.read.lookup import find_rows
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.scan import scan, scan_part
from lakemerge.read.sources import MergeSpec
from lakemerge.read.splits import split_file_slices
from mergers import RowKind
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Bools, Ints
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.wording import argument

__all__ = ["KIND", "TIMESTAMP", "VERSION", "read_changes"]

KIND, VERSION, TIMESTAMP = "_row_kind", "_commit_version", "_commit_timestamp"
"""Columns beside the table's: ``+I``, ``-U``, ``+U`` or ``-D``; the commit's version, and its time."""
_TOLD = pa.schema([(KIND, pa.string()), (VERSION, pa.int64()), (TIMESTAMP, pa.timestamp("us", "UTC"))])


def read_changes(handle: Handle, until: TableView, since: int) -> pa.RecordBatchReader:
    """See :meth:`lakemerge.LakeTable.changes`."""
    if type(since) is not int or since > until.version:
        raise InputError(f"{argument('since')} must be a version up to {until.version}, not {since!r}")
    if hidden := [name for name in until.config.schema.names if name.lower() in _TOLD.names]:
        raise InputError(
            f"the table has column(s) {', '.join(hidden)}, which would be two in its changes: {KIND}, {VERSION} and "
            f"{TIMESTAMP} tell of the commit. Keep such values in columns of other names to read changes",
            columns=tuple(hidden),
        )
    before = handle.view(handle.log.snapshot(version=since))
    check_kept(since, handle.log.update(until.snapshot), savepoints=False)
    columns = FeedColumns.between(handle, before, until, reserved=_TOLD.names)
    schema = pa.schema([*columns.schema, *_TOLD])
    return pa.RecordBatchReader.from_batches(schema, _all(_Feed(handle, columns), before, until, schema))


@dataclass(frozen=True, slots=True)
class _Feed:
    handle: Handle
    columns: FeedColumns


def _all(feed: _Feed, before: TableView, until: TableView, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    handle = feed.handle
    for version in range(before.version + 1, until.version + 1):
        view = until if version == until.version else handle.view(handle.log.snapshot(version=version))
        for rows, kinds in _of_commit(feed, before, view):
            count = rows.num_rows
            versions = pa.array(np.full(count, version, dtype=np.int64))
            times = pa.array(np.full(count, view.snapshot.timestamp_ms * 1000), _TOLD.field(TIMESTAMP).type)
            told = pa.table([*rows.columns, kinds, versions, times], schema=schema)
            yield from told.combine_chunks().to_batches()
        before = view


def _of_commit(feed: _Feed, before: TableView, after: TableView) -> Iterator[tuple[pa.Table, pa.Array]]:
    """Changed rows, sorted by key within a bucket, and their kinds."""
    if before.state.restore_epoch != after.state.restore_epoch:
        yield from _of_restore(feed, before, after)
        return
    if before.is_empty and after.base_files:
        for batch in scan(feed.handle, after, columns=None, filter=None):
            kinds = np.full(batch.num_rows, RowKind.INSERT, dtype=np.int64)
            yield feed.columns.shaped(pa.Table.from_batches([batch])), _symbols(kinds)
        return
    for commit in after.log_commits:
        if commit.version == after.version:
            for keys in _keys_of(feed.handle, after, commit):
                yield _difference(feed, before, after, keys)


def _of_restore(feed: _Feed, before: TableView, after: TableView) -> Iterator[tuple[pa.Table, pa.Array]]:
    """The whole difference between two versions; what has the same files and logs in both is passed over."""
    handle = feed.handle
    for keys in _keys_apart(handle, before, after):
        yield _difference(feed, before, after, keys)
    for keys in _keys_apart(handle, after, before):
        old = _by_key(find_rows(handle, before, keys, before.config.key), before.config.key)
        _, told = locate(key_columns(old, before.config.key), key_columns(keys, before.config.key))
        yield _difference(feed, before, after, keys.filter(pa.array(~told)).combine_chunks())


def _keys_apart(handle: Handle, view: TableView, other: TableView) -> Iterator[pa.Table]:
    """The keys of the rows in file slices that another version does not have, in tables sorted by key."""
    same = set(map(_contents, other.file_slices)) if view.config == other.config else set()
    spec = MergeSpec(handle.store, view.config, handle.merger(view), handle.settings)
    file_slices = [file_slice for file_slice in view.file_slices if _contents(file_slice) not in same]
    for part in split_file_slices(file_slices, handle.settings.target_task_bytes):
        for keys in scan_part(spec, part, view.config.key, None):
            plain = keys.combine_chunks()
            yield plain.take(pa.array(sort_order(key_columns(plain, view.config.key))))


def _contents(file_slice: FileSlice) -> Hashable:
    """What decides of a file slice's rows."""
    base = None if file_slice.base is None else file_slice.base.add.path
    return (
        file_slice.bucket_id,
        file_slice.buckets,
        base,
        file_slice.lower,
        file_slice.upper,
        file_slice.blocks,
        file_slice.minor,
        file_slice.expiries,
    )


def _keys_of(handle: Handle, view: TableView, commit: LogCommit) -> Iterator[pa.Table]:
    """The keys of a commit's records, bucket by bucket, each once and in key order."""
    by_bucket: dict[BucketId, list[LogBlock]] = {}
    for block in commit.blocks:
        by_bucket.setdefault(block.bucket_id, []).append(block)
    schema = pa.schema([view.config.schema.field(name) for name in view.config.key])
    budget = handle.settings.merge_budget_bytes
    with ParquetFiles(handle.store) as files:
        for blocks in by_bucket.values():
            tables = []
            for block in blocks:
                file = StoredFile(block.file.path, block.file.size_bytes)
                stream = files.stream(file, schema=schema, budget_bytes=budget, row_groups=block.groups)
                tables += [table for table, _, _ in stream]
            keys = pa.concat_tables(tables).combine_chunks()
            ordered = keys.take(pa.array(sort_order(key_columns(keys, schema.names))))
            yield ordered.take(pa.array(group_starts(key_columns(ordered, schema.names))))


def _difference(feed: _Feed, before: TableView, after: TableView, keys: pa.Table) -> tuple[pa.Table, pa.Array]:
    """How the rows of some keys differ between two versions."""
    key = after.config.key
    old, new = (_by_key(find_rows(feed.handle, view, keys, view.config.schema.names), key) for view in (before, after))
    # The versions may differ in columns, and fields, and their types; what is new was null before.
    both = pa.concat_tables([feed.columns.shaped(old), feed.columns.shaped(new)]).combine_chunks()
    sought = key_columns(keys, key)
    old_at, was = locate(key_columns(old, key), sought)
    new_at, now = locate(key_columns(new, key), sought)
    new_at = new_at + old.num_rows
    changed = was != now
    kept = np.flatnonzero(was & now)
    changed[kept] = _differ(both, old_at[kept], new_at[kept])
    images = [np.where(now, RowKind.UPDATE_BEFORE, RowKind.DELETE), np.where(was, RowKind.UPDATE_AFTER, RowKind.INSERT)]
    # Two places a key: its row before, and its row after.
    there = np.stack([was & changed, now & changed], axis=1).ravel()
    rows = both.take(pa.array(np.stack([old_at, new_at], axis=1).ravel()[there]))
    return rows, _symbols(np.stack(images, axis=1).ravel()[there])


def _symbols(kinds: Ints) -> pa.Array:
    return pa.array([kind.symbol for kind in sorted(RowKind)]).take(pa.array(kinds))


def _by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    plain = rows.combine_chunks()
    return plain.take(pa.array(sort_order(key_columns(plain, key))))


def _differ(rows: pa.Table, left: Ints, right: Ints) -> Bools:
    """Whether two rows differ in some column; null is equal to null, and NaN to NaN."""
    differ = np.zeros(len(left), dtype=np.bool_)
    for column in rows.columns:
        codes = equality_codes(column.combine_chunks())
        differ |= codes[left] != codes[right]
    return differ
