"""Settings of one process that reads or writes a table. They change cost, never an answer."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from lakemerge.errors import InputError

__all__ = ["Settings"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Budgets and sizes; every value is a positive integer, bytes are of uncompressed Arrow data."""

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
    """If a read through Spark has to merge no more bytes than this in the requested columns, it premerges
    (:mod:`lakemerge.read.premerge`). The driver then holds places or merged rows, compressed."""
    target_commit_bytes: int = 16 * 1024 * _MIB
    """A compaction commits buckets in groups that read about this many bytes. If it is interrupted, its committed
    groups stay."""
    row_group_rows: int = 256 * 1024
    """Rows per row group of base files and of large log blocks."""
    inline_blocks: int = 256
    """Commits with more log blocks than this write a block index file instead of listing them."""
    threads: int = min(8, os.cpu_count() or 1)
    """Threads that reads and compactions without Spark use."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"Settings.{field.name} must be a positive integer, not {value!r}", setting=field.name)
