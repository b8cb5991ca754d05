"""Earlier versions of a table: their history, names for them, the way back. Methods of :class:`lakemerge.LakeTable`."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod

from lakemerge.commits.restore import restore_table
from lakemerge.commits.savepoints import drop_savepoint, save_version
from lakemerge.delta import HistoryEntry
from lakemerge.errors import InputError
from lakemerge.format.savepoint import Savepoint, savepoints_of
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version, unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.results.results import RestoreResult

__all__ = ["TableVersions"]


class TableVersions(ABC):
    """History, savepoints and restore."""

    _handle: Handle
    _view: TableView

    @abstractmethod
    def _writable(self) -> TableView:
        """The tip; raises :class:`lakemerge.InputError` where the table stands at an earlier version."""

    @abstractmethod
    def _follow(self) -> None:
        """After a commit: stand at its version."""

    def history(self, *, limit: int | None = None) -> list[HistoryEntry]:
        """What each commit did, newest first.

        :param limit: so many commits at most.
        """
        self._handle.log.check_holds(self._view.snapshot)
        return self._handle.log.history(limit=limit)

    def savepoint(self, name: str, *, version: int | None = None) -> Savepoint:
        """Name a version, by default the latest: it stays readable, whatever is vacuumed, until
        :meth:`drop_savepoint`. ``LakeTable.open(path, savepoint=name)`` reads it.

        :raises lakemerge.InputError: the name is taken, or is none.
        :raises lakemerge.VersionNotFoundError: the version is not, or no longer, readable.
        """
        saved = save_version(self._handle, self._writable(), name, version)
        self._follow()
        return saved

    def savepoints(self) -> list[Savepoint]:
        """All savepoints that there are now, oldest version first."""
        return list(savepoints_of(self._handle.log.update(self._view.snapshot)).values())

    def drop_savepoint(self, name: str) -> None:
        """Take a savepoint's name back; the next vacuum may delete what it held.

        :raises lakemerge.InputError: there is no such savepoint.
        """
        drop_savepoint(self._handle, self._writable(), name)
        self._follow()

    def restore(
        self,
        *,
        version: int | None = None,
        timestamp: dt.datetime | str | None = None,
        savepoint: str | None = None,
    ) -> RestoreResult:
        """Make an earlier version the table's present one, by a new commit: its rows, with the logs that were
        live, and its definition (schema, merger, options, buckets). Nothing is written anew, history stays, and a
        restore can be restored.

        What concerns the table and not its rows stays as it is: application transactions (a stream goes on where
        it was), savepoints and table properties. Writes under way are refused when they commit.

        :param version: one of the three says which; as for :meth:`LakeTable.open`.
        :raises lakemerge.InputError: not exactly one is given, or it is the present version.
        :raises lakemerge.VersionNotFoundError: not, or no longer, readable; nothing was changed.
        :raises lakemerge.CommitConflictError: rows or the definition changed meanwhile, or a vacuum took files that
            were being read; nothing was changed.
        """
        begin = self._writable()
        if version is None and timestamp is None and savepoint is None:
            raise InputError("restore needs a version, a timestamp or a savepoint")
        target = find_version(
            self._handle.log, version=version, timestamp=timestamp, savepoint=savepoint, tip=begin.snapshot
        )
        log = self._handle.log
        with unless_vacuumed(log, begin.snapshot), unless_vacuumed(log, target):
            result = restore_table(self._handle, begin, target)
        self._follow()
        return result
