"""What reads and table services cost, in seconds. By this model ``lakemerge.maintenance = auto`` decides.

The constants were measured on two cores and a local disk, with tables of 200,000 and 1,600,000 rows of 10 columns, each
with eight commits of 1 %: those of Spark with its own sessions and 4 buckets, the others without Spark and with 1, 4
and 8. Another machine is faster or slower at all of them alike, so only their ratios matter. They are explained in
docs/guides/maintenance.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from compaction.plan.loads import FileSliceLoad

__all__ = [
    "SPARK_LOGS",
    "SPARK_WRITE",
    "WRITES",
    "SliceSize",
    "log_penalty",
    "merge_cost",
    "rewrite_cost",
    "stored_penalty",
    "write_seconds",
]

_MIB: Final = 2**20

SCAN: Final = 0.005
"""Reading a MiB of a base or winner file."""
OPEN: Final = 0.0015
"""Opening a winner file."""
MASK: Final = 0.001
"""Leaving out superseded rows, for each MiB of the base file."""
MERGE_BASE: Final = 0.002
"""Merging while reading: reading the keys of a MiB of the base file, if there is any log."""
MERGE_LOG: Final = 0.02
"""Merging while reading: a MiB of logs, uncompressed."""
BLOCK: Final = 0.002
"""Merging while reading: opening a log block."""

COMMIT: Final = 0.02
"""A commit of a write or of a service."""
FILE_SLICE: Final = 0.02
"""What a service does for a file slice, however small."""
PROBE: Final = 0.002
"""Minor compaction: reading the keys of a MiB of the base file."""
MERGE: Final = 0.045
"""Minor compaction: a MiB of logs. This includes the winner files that are written again with them."""
REWRITE: Final = 0.03
"""Full compaction: a MiB of everything."""
WRITE: Final = 0.015
"""Writing a MiB of logs."""
WRITE_BLOCK: Final = 0.002
"""Writing a log block."""

SPARK_LOGS: Final = 0.1
"""Merging while reading on Spark, whatever its size: the plan and the premerge of LakeMerge's own scan. To leave out
superseded rows takes such a scan no time that is seen."""
SPARK_WRITE: Final = 0.15
"""A write on Spark, whatever its size: a job."""

LOG_TO_FILE: Final = 0.36
"""The MiB of winner file that a MiB of uncompressed logs becomes."""
TOMBSTONE_BYTES: Final = 12
"""The size of a stored tombstone."""

WRITES: Final = 2.0
"""Minor compactions take at most this many times as long as the writes took, and so do full ones. If ``readsPerWrite``
is above 1, the limit is multiplied by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSize:
    """What the model needs to know about a file slice."""

    base_mib: float = 0.0
    winner_mib: float = 0.0
    winner_files: int = 0
    deleted_mib: float = 0.0
    """About how much of the base file's rows was deleted since it was written."""
    log_mib: float = 0.0
    log_blocks: int = 0

    @staticmethod
    def of(load: FileSliceLoad) -> SliceSize:
        deleted = load.new_tombstone_bytes / TOMBSTONE_BYTES
        share = min(1.0, deleted / load.base_rows) if load.base_rows else 0.0
        return SliceSize(
            base_mib=load.base_bytes / _MIB,
            winner_mib=load.winner_bytes / _MIB,
            winner_files=load.winner_files,
            deleted_mib=share * load.base_bytes / _MIB,
            log_mib=load.log_bytes / _MIB,
            log_blocks=load.log_blocks,
        )

    def merged(self) -> SliceSize:
        """About what the file slice has after a minor compaction."""
        if not self.log_blocks:
            return self
        more = self.winner_mib + self.log_mib * LOG_TO_FILE
        return replace(self, winner_mib=more, winner_files=max(1, self.winner_files), log_mib=0.0, log_blocks=0)


def log_penalty(size: SliceSize) -> tuple[float, float]:
    """What logs add to a full read: first the cost of having any log, then the cost that grows with the logs."""
    if not size.log_blocks:
        return 0.0, 0.0
    return size.base_mib * MERGE_BASE, size.log_mib * MERGE_LOG + size.log_blocks * BLOCK


def stored_penalty(size: SliceSize) -> float:
    """What winner files and deleted rows add to a full read, because rows are read in vain."""
    masked = size.base_mib * MASK if size.winner_files or size.deleted_mib else 0.0
    return masked + size.winner_files * OPEN + (size.winner_mib + size.deleted_mib) * SCAN


def merge_cost(size: SliceSize) -> float:
    """The cost of a minor compaction, without its commit."""
    return FILE_SLICE + size.base_mib * PROBE + size.log_mib * MERGE


def rewrite_cost(size: SliceSize) -> float:
    """The cost of a full compaction, without its commit."""
    return FILE_SLICE + (size.base_mib + size.winner_mib + size.log_mib * LOG_TO_FILE) * REWRITE


def write_seconds(*, commits: float, log_mib: float, log_blocks: float) -> float:
    """How long writes took."""
    return commits * COMMIT + log_mib * WRITE + log_blocks * WRITE_BLOCK
