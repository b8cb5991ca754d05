"""How often this process reads a table between two of its writes. By this ``lakemerge.maintenance = auto`` decides.

Reads of other processes are not known. A process that has read a table takes itself for a typical one, and one that
only writes knows nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lakemerge.format.schedule import SCHEDULE_DEFAULTS
from lakemerge.layout.view import FileSlice, TableView

__all__ = ["note_read", "note_write", "reads_per_write"]

_NEW: Final = 1 / 8
"""The weight of the newest write's reads in the mean. After some ten writes, the mean forgets what came before."""
_FIRST: Final = float(SCHEDULE_DEFAULTS["lakemerge.maintenance.readsPerWrite"])
"""The mean before anything is known."""
_TABLES: Final = 1024


@dataclass(slots=True)
class _Counted:
    since: float = 0.0
    """Reads since the last write. A read of a part of the file slices is a part of a read."""
    mean: float = _FIRST
    has_read: bool = False


_tables: dict[tuple[str, str], _Counted] = {}
"""URL and id of each table that was read or written last, at most as many as are kept."""
_lock = threading.Lock()


def note_read(view: TableView, read: Sequence[FileSlice]) -> None:
    """A read of some file slices of a version begins."""
    there = view.file_slice_count
    if not there:
        return
    with _lock:
        counted = _of(view)
        counted.since += len(read) / there
        counted.has_read = True


def note_write(view: TableView) -> None:
    """A write has landed."""
    with _lock:
        counted = _of(view)
        if counted.has_read:
            counted.mean += _NEW * (counted.since - counted.mean)
            counted.since = 0.0


def reads_per_write(view: TableView) -> float | None:
    """About how many full reads follow each write of this process; ``None`` if it has read nothing yet."""
    with _lock:
        counted = _of(view)
        return counted.mean if counted.has_read else None


def _of(view: TableView) -> _Counted:
    key = (view.store.url, view.snapshot.metadata.id)
    found = _tables.pop(key, None) or _Counted()
    _tables[key] = found  # as the newest
    if len(_tables) > _TABLES:
        del _tables[next(iter(_tables))]
    return found
