"""What writes return: upserts, deletes and overwrites, plans of transactions, restores."""

from __future__ import annotations

from dataclasses import dataclass

from lakemerge.results.display import Shown

__all__ = ["RestoreResult", "TransactionPlan", "UpsertResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertResult(Shown):
    """What a write did."""

    version: int
    """The version of the table that holds the records."""
    rows: int
    """How many records were given, including duplicates."""
    files: int
    """How many objects were written, including the commit."""
    bytes: int
    """Bytes of the data files written."""
    mode: str
    """What was written. ``append``: log files; ``load``: base files, on the first write of a table; ``repeated``:
    nothing, because ``txn`` was already there."""
    seconds: float

    def __repr__(self) -> str:
        return (
            f"UpsertResult(version={self.version}, mode={self.mode!r}, rows={self.rows:,}, files={self.files}, "
            f"bytes={self.bytes:,}, seconds={self.seconds:.2f})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan:
    """What a transaction would do with the table as it is at one version. Nothing was written, and another writer may
    change the rows meanwhile."""

    operation: str
    """``UPDATE``, ``DELETE`` or ``MERGE``, as in the history."""
    version: int
    """The version that was read."""
    matched: int
    """Rows of the table that meet the condition; of a merge, rows of the table that a source row matches."""
    updated: int
    deleted: int
    inserted: int
    partitions: int
    """Partitions that would get records; 1 for a table without partitions."""
    buckets: int
    """Buckets of all partitions that would get records."""
    files: int
    """Objects that would be written, including the commit."""
    bytes: int
    """Bytes of the data files that would be written."""
    seconds: float
    """How long it took to find this out."""

    @property
    def keys(self) -> int:
        """Keys whose row would be written: a record for each row that is updated, deleted or inserted."""
        return self.updated + self.deleted + self.inserted


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult(Shown):
    """What a restore brought back."""

    version: int
    """The new version."""
    restored_version: int
    """The version whose rows and definition it has."""
    added_files: int
    """Base files that came back."""
    removed_files: int
    """Base files that left the table; they stay for time travel until they are vacuumed."""
    live_logs: int
    """Log commits that are live again, or still."""
    bytes: int
    """Bytes of the base files that came back."""
    seconds: float
