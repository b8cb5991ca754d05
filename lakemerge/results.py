"""What operations tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CompactionResult", "SkippedTile", "UpsertResult"]


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
class SkippedTile:
    """A key range of a slice that a compaction left as it was, logs included: a total in it does not
    fit its column. A later record that brings the total back into range lets the next one go on."""

    partition: tuple[str | None, ...]
    """Values of the partition columns, as Delta writes them."""
    bucket: int
    key: Mapping[str, object]
    """A key that does not fit; there may be others in the tile."""
    column: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """What a compaction did; with nothing to do, no version was made."""

    version: int
    tiles: int
    """Tiles whose logs were merged."""
    rows: int
    """Rows in the files written."""
    files: int
    """Base files written; by a minor compaction, files of changed rows."""
    bytes: int
    """Bytes of those files."""
    replaced_files: int
    """Base files that left the table."""
    seconds: float
    skipped: tuple[SkippedTile, ...] = ()
    """Tiles that could not be merged; reads of the keys named in them fail, writes do not."""

    def __repr__(self) -> str:
        skipped = f", skipped={len(self.skipped)}" if self.skipped else ""
        return (
            f"CompactionResult(version={self.version}, tiles={self.tiles}, rows={self.rows:,}, files={self.files}, "
            f"bytes={self.bytes:,}, replaced_files={self.replaced_files}, seconds={self.seconds:.2f}{skipped})"
        )
