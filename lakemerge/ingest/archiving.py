"""What becomes of files once they are in the table: kept, deleted, or moved to an archive that is kept in bounds.

A file is touched only while it is the version that was read. If a run is killed before it is done, the next run does
the rest, because the ledger still says that the file is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from lakemerge.ingest.options import Archive, Files
from lakemerge.ingest.places import whole_path
from lakemerge.ingest.source import Outcome, SourceFile
from mergers.logs import logger

__all__ = ["ARCHIVE_FOLDER", "Afterwards"]

_logger = logger(__name__)

ARCHIVE_FOLDER: Final = "_archive"
"""Hidden from listings by its underscore."""
_DIGITS: Final = 20


@dataclass(slots=True)
class Afterwards:
    """``archive``: where files are moved to; ``None``: they are deleted."""

    files: Files
    archive: Archive | None
    now_ms: Callable[[], int]

    def do(self, files: Iterable[tuple[SourceFile, int]]) -> None:
        """Delete or move files, each given with the window that took up its last piece. A file with another version by
        now stays."""
        for file, window in files:
            self._do(file, window)

    def keep_in_bounds(self) -> None:
        """Delete files of the archive that are too old, and then the oldest while it has too many bytes."""
        if self.archive is None or (self.archive.max_age_ms is None and self.archive.limit_bytes is None):
            return
        for folder in self._folders():
            self._trim(folder, self.archive)

    def archived_path(self, path: str, window: int) -> str:
        """Where a file is moved to. Paths begin with the window, so the oldest files sort first."""
        root = self._root(path)
        archive = f"{root}{ARCHIVE_FOLDER}/" if self.archive is None or self.archive.folder is None else ""
        if self.archive is not None and self.archive.folder is not None:
            archive = whole_path(self.archive.folder).rstrip("/") + "/"
        return f"{archive}{window:0{_DIGITS}d}/{path[len(root) :]}"

    def _do(self, file: SourceFile, window: int) -> None:
        source = self.files.places.of(file.path)
        if self.archive is None:
            outcome = source.delete(file)
        else:
            outcome = source.move(file, self.archived_path(file.path, window))
        if outcome is Outcome.CHANGED:
            _logger.info("%s stays: it is no longer the version that was ingested", file.path)

    def _root(self, path: str) -> str:
        """The folder named by the caller in which a file was found."""
        roots = [name.rstrip("/") + "/" for name in self.files.names]
        return max((root for root in roots if path.startswith(root)), key=len, default=path.rpartition("/")[0] + "/")

    def _folders(self) -> list[str]:
        if self.archive is not None and self.archive.folder is not None:
            return [whole_path(self.archive.folder).rstrip("/") + "/"]
        return [f"{name.rstrip('/')}/{ARCHIVE_FOLDER}/" for name in self.files.names]

    def _trim(self, folder: str, archive: Archive) -> None:
        source = self.files.places.of(folder)
        limit, oldest_ms = archive.limit_bytes, None
        if archive.max_age_ms is not None:
            oldest_ms = self.now_ms() - archive.max_age_ms
        held = sum(file.size for file, _ in source.archived(folder)) if limit is not None else 0
        for file, since_ms in source.archived(folder):
            too_old = oldest_ms is not None and since_ms < oldest_ms
            if not too_old and (limit is None or held <= limit):
                if oldest_ms is None:
                    return
                continue
            source.delete(file)
            held -= file.size
