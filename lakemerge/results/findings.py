"""The findings of a check of a table."""

from __future__ import annotations

from dataclasses import dataclass

from mergers.wording import printable

__all__ = ["CheckResult", "Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    path: str | None
    """The path of the file at fault, inside the table."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = "" if self.path is None or self.path in self.problem else f"{self.path}: "
        return printable(f"{where}{self.problem}. {self.remedy}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check examined, and what is wrong."""

    version: int | None
    """The version that was checked: the latest or, if that cannot be read, the newest one below the damage. ``None`` if
    no version can be read."""
    commits: int
    checkpoints: int
    files: int
    """Base, winner, positions, tombstone, log and index files."""
    rows: int
    """Keys read: of stored rows and of log records."""
    seconds: float
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        looked = f"version {self.version}: {self.commits} commits, {self.checkpoints} checkpoints, {self.files} files, "
        head = f"{looked}{self.rows:,} keys in {self.seconds:.1f} s"
        return "\n".join([f"{head}: {'nothing is wrong' if self.ok else 'damaged'}", *map(str, self.findings)])
