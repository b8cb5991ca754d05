"""One task of a rescale, on Spark or in a thread: it writes one bucket of the new bucket count.

It reads the buckets that hold its keys, merges them in key ranges, and keeps the rows and tombstones of its own keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from compaction.run.file_slice import skipped_file_slice
from lakemerge.delta import AddFile
from lakemerge.format.keys import BucketId
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from lakemerge.read.merge import MergedRange, MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.runs import Run, key_ranges
from lakemerge.results.results import SkippedTile
from lakemerge.write.base_file import BaseWriteSpec, write_base_files
from mergers.failing import FAILURES
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.keys import key_columns, sort_order
from mergers.portions import gather, together

__all__ = ["BucketJob", "RescaledBucket", "write_bucket"]

RescaledBucket: TypeAlias = list[AddFile] | SkippedTile
"""The files that were written, or why there are none."""


@dataclass(frozen=True, slots=True)
class BucketJob:
    """One bucket to write. Picklable."""

    sources: tuple[tuple[FileSlice, ...], ...]
    """The file slices of each bucket that holds its keys, in key order."""
    target: BucketId
    buckets: int
    first_ordinal: int
    ordinals: int

    @property
    def bytes(self) -> int:
        """How many stored bytes it reads."""
        return sum(file_slice.stored_bytes for source in self.sources for file_slice in source)


def write_bucket(job: BucketJob, merge: MergeSpec, write: BaseWriteSpec) -> RescaledBucket:
    """Merge the sources and write the base files of the target."""
    settings = replace(merge.settings, merge_budget_bytes=max(1, merge.settings.merge_budget_bytes // len(job.sources)))
    try:
        with ParquetFiles(merge.store) as files:
            return write_base_files(
                _ranges(job, replace(merge, settings=settings), files),
                write,
                job.target,
                lower=None,
                ordinals=range(job.first_ordinal, job.first_ordinal + job.ordinals),
                now_ms=Handle.now_ms(),
            )
    except FAILURES as error:
        return skipped_file_slice(job.target, error)


def _ranges(job: BucketJob, merge: MergeSpec, files: ParquetFiles) -> Iterator[MergedRange]:
    """The rows and tombstones of the target, range by range in key order."""
    config = merge.config
    schema = pa.schema([*(f.with_nullable(True) for f in config.schema), pa.field(VERSION_COLUMN, pa.int64())])
    streams = [_entries(job, source, schema, merge, files) for source in job.sources]
    if len(streams) == 1:
        steps: Iterator[Sequence[pa.Table]] = ([table] for table, _ in streams[0])
    else:
        budget = merge.settings.merge_budget_bytes * len(streams)
        steps = key_ranges([Run(stream, schema, config.key) for stream in streams], budget_bytes=budget)
    for tables in steps:
        entries = _by_key(pa.concat_tables(tables), config.key) if len(tables) > 1 else tables[0]
        is_row = pc.is_null(entries.column(VERSION_COLUMN))
        tombstones = entries.filter(pc.invert(is_row))
        forgotten = tombstone_schema(config.shape)
        yield MergedRange(
            entries.filter(is_row).drop_columns([VERSION_COLUMN]), tombstones.select(forgotten.names).cast(forgotten)
        )


def _entries(
    job: BucketJob, source: Sequence[FileSlice], schema: pa.Schema, merge: MergeSpec, files: ParquetFiles
) -> Iterator[tuple[pa.Table, bool]]:
    """Rows and, with a version, tombstones of one source that belong to the target, sorted by key."""
    config = merge.config
    for file_slice in source:
        for part in merge_file_slice(merge, file_slice, columns=config.schema.names, sort=True, files=files):
            entries = pa.concat_tables([schema.empty_table(), part.rows, part.tombstones], promote_options="default")
            if part.tombstones.num_rows:
                entries = _by_key(entries, config.key)
            if file_slice.buckets < job.buckets:
                keys = [entries.column(name) for name in config.key]
                entries = entries.filter(pa.array(bucket_numbers(keys, job.buckets) == job.target.bucket))
            yield together(entries), False


def _by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, key)))
