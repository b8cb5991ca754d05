"""The results of operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakemerge.results.failures import FailedRecord
from lakemerge.results.html import Shown
from lakemerge.results.plans import CompactionPlan, counted, counts, readable_bytes

__all__ = [
    "CompactionResult",
    "ExpiryResult",
    "LogCompactionResult",
    "LostGroup",
    "MaintenanceResult",
    "RescaleResult",
    "RestoreResult",
    "SkippedFileSlice",
    "UpsertResult",
    "VacuumResult",
]


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
class SkippedFileSlice:
    """A key whose merge fails, for example because its total does not fit its column. A compaction leaves its stored
    row and its records as they are. Once a later record makes the merge succeed, the next compaction takes them up."""

    partition: tuple[str | None, ...]
    """Values of the partition columns, as Delta writes them."""
    bucket: int
    key: Mapping[str, object]
    """The key. Of a part of a bucket that was left as a whole, it is one of those that fail."""
    column: str
    reason: str
    records: tuple[FailedRecord, ...] = ()
    """The first of its records in the logs, in the order of their commits."""
    more: int = 0
    """How many further records there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGroup:
    """A group of buckets that a compaction did not commit, because another compaction had changed one of its buckets
    meanwhile. Its files were discarded. The next run plans the rest again."""

    buckets: int
    bytes_read: int
    """How many bytes were read in vain."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult(Shown):
    """What a compaction did; with nothing to do, no version was made."""

    plan: CompactionPlan
    """The plan: what had to be done, and why."""
    version: int
    """The version of its last commit; the version read if it made none."""
    commits: int
    """How many commits it made: one for each group of buckets."""
    file_slices: int
    """File slices whose logs were merged."""
    rows: int
    """Rows in the files written."""
    files: int
    """Base files written; by a minor compaction, files of changed rows."""
    bytes: int
    """Bytes of those files."""
    bytes_read: int
    """Bytes of the base and winner files that were merged, and of the logs, uncompressed."""
    replaced_files: int
    """Base files that left the table."""
    log_blocks: int
    """How many log blocks were merged."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by what was done: ``plan``, ``merge`` (reading, merging, writing) and ``commit``."""
    skipped: tuple[SkippedFileSlice, ...] = ()
    """Keys that could not be merged. Reads of them fail, unless they skip such keys; writes do not."""
    lost: tuple[LostGroup, ...] = ()
    """Groups that another compaction merged first."""
    stopped: bool = False
    """Whether it ended before all groups were done, because its caller asked it to."""

    def __repr__(self) -> str:
        rest = {"skipped": len(self.skipped), "lost": len(self.lost), "stopped": self.stopped}
        text = "".join(f", {name}={value}" for name, value in rest.items() if value)
        return (
            f"CompactionResult(version={self.version}, file_slices={self.file_slices}, rows={self.rows:,}, "
            f"files={self.files}, bytes={self.bytes:,}, replaced_files={self.replaced_files}, commits={self.commits}, "
            f"seconds={self.seconds:.2f}{text})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """What to show to people: names and values, one a line."""
        written = f"{counts(file=self.files, row=self.rows)}, {readable_bytes(self.bytes)}"
        lines = [
            ("service", f"{self.plan.mode} compaction"),
            ("due", "; ".join(self.plan.reasons) or "nothing"),
            ("merged", counts(base_file=self.file_slices, log_block=self.log_blocks)),
            ("read", readable_bytes(self.bytes_read)),
            ("written", written),
            ("replaced", counted(self.replaced_files, "file")),
            ("commits", f"{self.commits}, the table is at version {self.version}"),
            ("seconds", _seconds(self.seconds, self.phases)),
        ]
        lines += [("skipped", part.reason) for part in self.skipped]
        lines += [("lost", f"{counted(group.buckets, 'bucket')}: {group.reason}") for group in self.lost]
        if self.stopped:
            lines.append(("stopped", "before everything was done; the rest is still due"))
        return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionResult(Shown):
    """What a log compaction did; with nothing to do, no version was made."""

    version: int
    commits: int
    """Log commits that were merged into others."""
    records: int
    """Records in them."""
    rows: int
    """How many records were written. There are fewer if the merger allows to drop records that do not decide."""
    blocks: int
    """Log blocks written, one per bucket, or a few."""
    files: int
    """How many objects were written, without the commit."""
    bytes: int
    """Bytes of the log files written."""
    bytes_read: int
    """Bytes of logs, uncompressed."""
    replaced_files: int
    """Log files that reads of the new version do not need any more. Earlier versions need them."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by what was done: ``plan``, ``merge`` (reading, sorting, writing) and ``commit``."""

    def __repr__(self) -> str:
        return (
            f"LogCompactionResult(version={self.version}, commits={self.commits}, records={self.records:,}, "
            f"rows={self.rows:,}, blocks={self.blocks}, files={self.files}, bytes={self.bytes:,}, "
            f"replaced_files={self.replaced_files}, seconds={self.seconds:.2f})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """What to show to people: names and values, one a line."""
        return (
            ("service", "log compaction"),
            ("merged", counts(commit=self.commits, file=self.replaced_files, record=self.records)),
            ("read", readable_bytes(self.bytes_read)),
            ("written", f"{counts(file=self.files, record=self.rows)}, {readable_bytes(self.bytes)}"),
            ("version", str(self.version)),
            ("seconds", _seconds(self.seconds, self.phases)),
        )


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
    """Number of files by kind: ``base``, ``log``, ``merged``, ``tombstones``, ``unfinished`` (what killed writers
    left half-written) and ``delta log`` (commits and checkpoints)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryResult(Shown):
    """What a tombstone expiry did."""

    version: int
    """The version from which on the deletes are forgotten; if nothing was due, the version looked at."""
    horizon: int | None
    """Deletes of versions up to and including this one are forgotten; ``None`` if nothing was due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleResult(Shown):
    """What a rescale did; with nothing to do, no version was made."""

    version: int
    before: int | None
    """The bucket count when it began; ``None``: not chosen yet."""
    buckets: int
    """The bucket count now."""
    commits: int
    written_buckets: int
    """Buckets written."""
    rows: int
    """Rows in the files written."""
    files: int
    """Base files written."""
    bytes: int
    """Bytes of those files."""
    bytes_read: int
    """Bytes of the base and winner files that were merged, and of the logs, uncompressed; once for each bucket that
    was made of them."""
    replaced_files: int
    """Base files that left the table."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by what was done: ``plan``, ``merge`` (reading, merging, writing) and ``commit``."""
    skipped: tuple[SkippedFileSlice, ...] = ()
    """Buckets that stay as they were, because a total in them does not fit its column. If buckets should be joined, the
    table then keeps its bucket count. Once the total is back in range, call rescale again."""

    def __repr__(self) -> str:
        skipped = f", skipped={len(self.skipped)}" if self.skipped else ""
        return (
            f"RescaleResult(version={self.version}, buckets={self.buckets}, before={self.before}, "
            f"commits={self.commits}, written_buckets={self.written_buckets}, rows={self.rows:,}, files={self.files}, "
            f"bytes={self.bytes:,}, replaced_files={self.replaced_files}, seconds={self.seconds:.2f}{skipped})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """What to show to people: names and values, one a line."""
        written = counts(bucket=self.written_buckets, file=self.files, row=self.rows)
        lines = [
            ("service", "rescale"),
            ("buckets", f"{self.before} before, {self.buckets} now"),
            ("read", readable_bytes(self.bytes_read)),
            ("written", f"{written}, {readable_bytes(self.bytes)}"),
            ("replaced", counted(self.replaced_files, "file")),
            ("commits", f"{self.commits}, the table is at version {self.version}"),
            ("seconds", _seconds(self.seconds, self.phases)),
        ]
        return (*lines, *(("skipped", part.reason) for part in self.skipped))


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


def _seconds(total: float, phases: Mapping[str, float]) -> str:
    return f"{total:.2f} ({', '.join(f'{name} {seconds:.2f}' for name, seconds in phases.items())})"
