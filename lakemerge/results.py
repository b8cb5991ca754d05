"""What operations tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CompactionResult", "UpsertResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertResult:
    """What a write did."""

    version: int
    """The version of the table that holds the records."""
    rows: int
    """Records given, duplicates included."""
    files: int
    """Objects written, the commit included."""
    bytes: int
    """Bytes of the data files written."""
    mode: str
    """``append``: log files; ``load``: base files, the first write of a table; ``repeated``:
    nothing, since ``txn`` was already there."""
    seconds: float

    def __repr__(self) -> str:
        return (
            f"UpsertResult(version={self.version}, mode={self.mode!r}, rows={self.rows:,}, files={self.files}, "
            f"bytes={self.bytes:,}, seconds={self.seconds:.2f})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """What a compaction did; with nothing to do, no version was made."""

    version: int
    tiles: int
    """Tiles whose logs were merged."""
    rows: int
    """Rows in the files written."""
    files: int
    """Base files written."""
    bytes: int
    """Bytes of those files."""
    replaced_files: int
    seconds: float

    def __repr__(self) -> str:
        return (
            f"CompactionResult(version={self.version}, tiles={self.tiles}, rows={self.rows:,}, files={self.files}, "
            f"bytes={self.bytes:,}, replaced_files={self.replaced_files}, seconds={self.seconds:.2f})"
        )
