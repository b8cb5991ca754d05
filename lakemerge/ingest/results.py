"""What an ingest job tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakemerge.format.ledger import FileState
from lakemerge.results.html import Shown

__all__ = ["IngestFile", "IngestResult", "IngestStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult(Shown):
    """What a run did."""

    windows: int = 0
    """Committed with their records."""
    files: int = 0
    """That are in the table whole by now."""
    rows: int = 0
    """Records taken up."""
    rejected: int = 0
    """Records set aside; :meth:`lakemerge.ingest.IngestJob.rejects` shows them."""
    failed: int = 0
    """Files whose window failed; ``files(state="failed")`` says why."""
    to_retry: int = 0
    """Files that failed, in this run or before, and are passed over until :meth:`lakemerge.ingest.IngestJob.retry`
    puts them back, or another version of them lands."""
    waiting: str | None = None
    """Why the run ended before everything was taken up, if it did."""

    def __repr__(self) -> str:
        retry = f", to_retry={self.to_retry:,}" if self.to_retry else ""
        waiting = "" if self.waiting is None else f", waiting={self.waiting!r}"
        return (
            f"IngestResult(windows={self.windows}, files={self.files:,}, rows={self.rows:,}, "
            f"rejected={self.rejected:,}, failed={self.failed:,}{retry}{waiting})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestFile(Shown):
    """One version of a file, and what became of it."""

    path: str
    size: int
    modified_ms: int
    """By its source's clock, UTC epoch milliseconds."""
    state: FileState
    windows: tuple[int, ...] = ()
    """That have pieces of it, or that failed."""
    bytes: int = 0
    """Bytes of the file that are in the table."""
    rows: int = 0
    rejected: int = 0
    reason: str | None = None
    """Why it failed, why its bin was closed, what it was changed by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStatus(Shown):
    """What the table says of a job."""

    name: str
    window: int
    """The last one committed, notes without rows included."""
    generation: int
    files: Mapping[FileState, int]
    """How many versions of files are in each state."""
    rows: int
    rejected: int
    bytes: int
    """Bytes of files that were taken up."""
    source: Mapping[str, object]
    """Locations and format of the last run."""
    needs_reset: bool
    """Whether the table was restored since; runs refuse until ``reset``."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {state}" for state, count in self.files.items()) or "no files yet"
        reset = "; the table was restored: call reset" if self.needs_reset else ""
        return (
            f"{self.name}: window {self.window}, {counts}; {self.rows:,} rows of {self.bytes:,} bytes, "
            f"{self.rejected:,} rejected{reset}"
        )
