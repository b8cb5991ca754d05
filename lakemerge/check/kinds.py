"""The kinds of damage that a check names, each with what to do.

docs/guides/when-something-is-wrong.md has a repair for each kind, or says why there can be none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakemerge.results.findings import Finding

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of damage."""

    name: str
    remedy: str
    is_repaired: bool = False
    """Whether ``check(repair=True)`` repairs it."""

    def found(self, path: str | None, problem: object, *, remedy: str | None = None) -> Finding:
        """:param remedy: in the place of the kind's own."""
        return Finding(path, str(problem).rstrip("."), remedy or self.remedy, self.name)


_BACKUP: Final = "Bring it back from a backup, or restore a version that does not need it (LakeTable.restore)"
_REPLACED: Final = (
    "The file was changed or made by something else: bring it back from a backup, or restore an earlier version"
)
_DELETED: Final = "No version needs it; `lakemerge check --repair` deletes it"

FILE_MISSING: Final = Kind("file-missing", _BACKUP)
FILE_SIZE: Final = Kind("file-size", _BACKUP)
FILE_CHANGED: Final = Kind("file-changed", _REPLACED)
VALUE_UNSOUND: Final = Kind(
    "value-unsound", "Write the rows of these keys again with values that are right, or restore an earlier version"
)
MERGE_FAILS: Final = Kind(
    "merge-fails", "Reads of these keys fail: write records that correct them, or restore an earlier version"
)
MERGER_UNKNOWN: Final = Kind("merger-unknown", "Its rows were not checked: pass or install the merger")
METADATA_DAMAGED: Final = Kind("metadata-damaged", _BACKUP)
COMMIT_MISSING: Final = Kind("commit-missing", _BACKUP)
COMMIT_DAMAGED: Final = Kind("commit-damaged", _BACKUP)
OLD_COMMIT_MISSING: Final = Kind(
    "old-commit-missing",
    "A checkpoint stands in for it, so the present rows are complete; earlier versions cannot be read. Bring it back "
    "from a backup, or let vacuum delete what is older",
)
LATEST_UNREADABLE: Final = Kind("latest-unreadable", "Bring the log back from a backup, or open an earlier version")
CHECKPOINT_DAMAGED: Final = Kind(
    "checkpoint-damaged",
    "Readers skip it; `lakemerge check --repair` writes it again if the older files are still there, and deletes it if "
    "a newer checkpoint stands in for it",
    is_repaired=True,
)
CHECKPOINT_FOREIGN: Final = Kind("checkpoint-of-another-table", _DELETED, is_repaired=True)
FILE_FOREIGN: Final = Kind("file-of-another-engine", _DELETED, is_repaired=True)
INGEST_FILE_CHANGED: Final = Kind(
    "ingest-file-changed",
    "The file was changed or made by something else: bring it back from a backup, or reset the ingest job",
)
LEDGER_DAMAGED: Final = Kind("ledger-damaged", "Bring the ledger back from a backup, or reset the ingest job")

KINDS: Final = tuple(value for value in list(vars().values()) if isinstance(value, Kind))
"""All kinds."""
