"""What vacuums, tombstone expiries and whole maintenance runs did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakemerge.results.compactions import CompactionResult, LogCompactionResult
from lakemerge.results.display import Shown

__all__ = ["CopyResult", "ExpiryResult", "MaintenanceResult", "VacuumResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult(Shown):
    """What a vacuum deleted or, as a dry run, would delete."""

    dry_run: bool
    version: int
    """The version with the fence; for a dry run, or if there was nothing to delete, the version looked at."""
    oldest_version: int
    """The oldest version that stays readable, except for savepoints. A transaction begun below it cannot commit any
    more."""
    files: Mapping[str, int]
    """Number of files by kind: ``base``, ``log``, ``merged``, ``tombstones``, ``former`` (what the table had before it
    was converted), ``unfinished`` (what killed writers left half-written) and ``delta log`` (commits and
    checkpoints)."""
    bytes: int
    paths: tuple[str, ...]
    """The paths of all these files."""
    seconds: float
    reasons: tuple[str, ...] = ()
    """Sentences on what is deleted and why, and on what stays although a bound asks for less."""

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in self.files.items())
        return (
            f"VacuumResult(dry_run={self.dry_run}, version={self.version}, oldest_version={self.oldest_version}, "
            f"files={{{kinds}}}, bytes={self.bytes:,}, seconds={self.seconds:.2f})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult(Shown):
    """What a copy of a table is, and what was sent for it."""

    url: str
    """Where the copy is."""
    version: int
    """Its latest version."""
    oldest_version: int
    """Its oldest version that can be read, except for savepoints."""
    files: int
    """Files of rows, records and vectors that were sent."""
    bytes: int
    """Their sizes."""
    files_there: int
    """Files that were there already, from an earlier copy or one that was interrupted."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryResult(Shown):
    """What a tombstone expiry did."""

    version: int
    """The version from which on the deletes are forgotten; if nothing was due, the version looked at."""
    horizon: int | None
    """Deletes of versions up to and including this one are forgotten; ``None`` if nothing was due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult(Shown):
    """What a maintenance run did; ``None`` for services that were not due, or if somebody else was first."""

    version: int
    """The version that it left."""
    compaction: CompactionResult | None
    minor: CompactionResult | None
    logs: LogCompactionResult | None
    tombstones: ExpiryResult | None
    vacuum: VacuumResult | None
    conflicts: tuple[str, ...]
    """Services that somebody else made needless or impossible while they ran. The next run checks them again."""
    stopped: bool
    """Whether its caller asked it to end early."""
    seconds: float

    @property
    def done(self) -> tuple[CompactionResult | LogCompactionResult | ExpiryResult | VacuumResult, ...]:
        """The results of the services that ran, in their order."""
        results = (self.compaction, self.minor, self.logs, self.tombstones, self.vacuum)
        return tuple(result for result in results if result is not None)

    def __repr__(self) -> str:
        ran = "".join(f", {result!r}" for result in self.done)
        conflicts = f", conflicts={len(self.conflicts)}" if self.conflicts else ""
        return f"MaintenanceResult(version={self.version}{ran}{conflicts}, seconds={self.seconds:.2f})"
