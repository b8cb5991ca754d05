"""Settings of one process that reads or writes a table. They change the cost, never rows. Limits may
refuse a write, or end a query."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from lakemerge._internal.arguments import flag, know, number, shown, whole
from lakemerge.errors import InputError

__all__ = ["ReadPolicy", "Settings"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """When a read through Spark premerges logs, and how many bitmaps it may carry (docs/spark.md has the reasons).

    A premerge merges the logs of file slices before the read, so that Spark's own reader can read what is stored.
    """

    premerge: bool = True
    """Whether there are premerges. Without them the logs are merged while the file slices are read."""
    premerge_from_bytes: int = 16 * _MIB
    """Below this many Parquet bytes of requested columns, merging during the read is cheaper than a premerge.
    LakeMerge's own scan does not ask this where a premerge gives places alone."""
    premerge_rows: int = 2**25
    """Stored rows of the file slices that one read premerges, at most. Their bitmaps take 4 MiB."""
    premerge_slices: int = 1024
    """File slices of which one read looks for places of records before it begins, at most. To open their files takes a
    millisecond or two for each, however few rows they have. Of more, tasks merge the logs while they read."""
    premerge_stored_per_record: float = 4
    """A file slice with fewer stored rows per log record is not premerged: the merge is much of the read anyway."""
    premerge_stored_per_place: float = 1
    """The same where the premerge gives places of records and no rows. LakeMerge's own scan does not ask this."""
    premerge_log_files: int = 256
    """With more log files than this, premerged rows are sent along instead of scanned in the logs."""
    scan_rows: int = 2**28
    """Rows whose bitmaps one scan carries, at most: 32 MiB in each task."""
    driver_rows: int = 2**25
    """The driver reads the bitmaps of up to this many rows: 4 MiB in the plan. A job reads those of more."""
    driver_files: int = 64
    """The same for the number of positions files."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            is_flag = each.name == "premerge"
            check: Any = flag if is_flag else number if each.type == "float" else whole
            try:
                found = check(value, each.name)
            except InputError:
                found = -1
            if found < 0:
                kind = "True or False" if is_flag else "a number that is not negative"
                raise InputError(f"ReadPolicy.{each.name} must be {kind}, not {shown(value)}", setting=each.name)
            object.__setattr__(self, each.name, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Budgets, sizes and a limit of schemas: positive integers. Bytes are of uncompressed Arrow data where nothing else
    is said. ``max_columns`` may refuse a write, and ``sandbox_memory_bytes`` may end a query."""

    write_budget_bytes: int = 256 * _MIB
    """A write task holds at most about this much of its input before it writes a log file."""
    merge_budget_bytes: int = 256 * _MIB
    """A merge task holds at most about this much of the logs and of the base at a time."""
    target_file_bytes: int = 128 * _MIB
    """Base files are closed when their Parquet data reaches this size."""
    target_task_bytes: int = 128 * _MIB
    """About how many Parquet bytes a task of a read or compaction gets. A read cannot split row groups, and a
    compaction cannot split buckets."""
    merge_first_bytes: int = 128 * _MIB
    """The driver holds at most this much of a premerge (:mod:`lakemerge.read.premerge`): places of records, or merged
    rows, compressed. Where it would be more, the logs are merged while the rest is read."""
    target_commit_bytes: int = 16 * 1024 * _MIB
    """A compaction commits buckets in groups that read about this many bytes. If it is interrupted, its committed
    groups stay."""
    row_group_rows: int = 64 * 1024
    """Rows per row group of base files and of large log blocks. A look-up reads a whole row group. With four times as
    many rows a scan on Spark is up to 3 % faster, and a look-up takes three times as long and four times the bytes.
    A bulk load on Spark leaves them to Spark (128 MiB each) until a compaction: its scans are up to a tenth faster."""
    inline_blocks: int = 256
    """Commits with more log blocks than this write a block index file instead of listing them."""
    threads: int = min(8, os.cpu_count() or 1)
    """Threads that reads and services use without Spark, and the driver for little work on Spark."""
    reads: ReadPolicy = ReadPolicy()
    """When reads through Spark premerge."""
    driver_bytes: int = 64 * _MIB
    """On Spark: services and premerges that read at most this many bytes run on the driver's ``threads``, because a job
    takes time to begin with. Stored rows count as Parquet, logs as Arrow data. In LakeMerge's own scan, a premerge that
    gives places alone counts the share of the columns that decide, a quarter at least. With 1 all run in tasks."""
    max_columns: int = 10_000
    """A merge of schemas (``merge_schema``) makes no table with more columns of Parquet than this: each value below
    structs, lists and maps is one, and so are the keys of a map. ``create`` and ``alter`` may."""

    sandbox_memory_bytes: int = 1024 * _MIB
    """How much memory DuckDB may take for ``LakeTable.query(sandbox=True)``. A query that needs more fails."""

    def __post_init__(self) -> None:
        if not isinstance(self.reads, ReadPolicy):
            raise InputError(f"Settings.reads must be a ReadPolicy, not {shown(self.reads)}", setting="reads")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "reads":
                continue
            try:
                found = whole(value, each.name)
            except InputError:
                found = 0
            if found < 1:
                raise InputError(
                    f"Settings.{each.name} must be a positive integer, not {shown(value)}", setting=each.name
                )
            object.__setattr__(self, each.name, found)


know(Settings)
