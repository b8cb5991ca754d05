"""Provenance as methods of :class:`lakemerge.LakeTable`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lakemerge.errors import InputError
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_replaced
from lakemerge.layout.view import TableView
from lakemerge.provenance.explanation import Explanation
from lakemerge.results.html import definition_html
from lakemerge.results.plans import readable_bytes
from lakemerge.table.describe import detail_of
from lakemerge.table.session import TableSession
from mergers import Merger
from mergers.wording import argument

if TYPE_CHECKING:
    from lakemerge.provenance.lineage import Lineage
    from lakemerge.provenance.replay import ReplayResult
    from lakemerge.provenance.what_if import WhatIf

__all__ = ["TableProvenance"]


class TableProvenance(ABC):
    """Who won and why, where rows came from, and what else the records could make."""

    _handle: Handle
    _session: TableSession

    @abstractmethod
    def _current(self) -> TableView:
        """The version to read."""

    def explain(self, key: Mapping[str, object], since: int | None = None) -> Explanation:
        """Every record of a key, where it came from, and what it did to the row and why.

        :param key: ``{"id": 7}``, as for :meth:`get`.
        :param since: the records after this version; 0: as far as history goes. By default those since the key's
            files were last compacted.
        :raises lakemerge.FrameError: the key is none of the table.
        :raises lakemerge.VersionNotFoundError: the records after ``since`` are not all there any more; the message
            says from where on they are.
        """
        from lakemerge.provenance.explain import explain_key

        if not isinstance(key, Mapping):
            raise InputError(f"{argument('key')} must be a mapping such as {{'id': 7}}, not {key!r}")
        view = self._current()
        with unless_replaced(self._handle.log, view.snapshot):
            return explain_key(self._handle, view, key, since)

    def lineage(self, version: int | None = None, *, key: Mapping[str, object] | None = None) -> Lineage:
        """The way of the rows of a version, or of one key, from source files to base files, as events.

        :param version: by default the one that reads show.
        :param key: only what has to do with this key.
        :raises lakemerge.VersionNotFoundError: the version is not in the table's history.
        """
        from lakemerge.provenance.lineage import lineage_of

        view = self._current()
        with unless_replaced(self._handle.log, view.snapshot):
            return lineage_of(self._handle, view, version, key)

    def what_if(
        self,
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        since: int | None = None,
    ) -> WhatIf:
        """What the rows would be, had another merger or other options folded the records. Nothing is written.

        :param merger: as for :meth:`create`; by default the table's own.
        :param options: of that merger; of the table's own merger, in the place of those it has.
        :param since: the records after this version, and those that were not compacted then, on the base files as they
            were then; 0: as far as history goes. By default the records that are not compacted now.
        :raises lakemerge.VersionNotFoundError: the records after ``since`` are not all there any more.
        :raises lakemerge.InputError: old deletes were forgotten in between; the message says where to begin.
        """
        from lakemerge.provenance.what_if import what_if

        view = self._current()
        with unless_replaced(self._handle.log, view.snapshot):
            return what_if(self._handle, view, merger, options, since, self._session)

    def replay(
        self,
        into: str | os.PathLike[str],
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        transform: Callable[[pa.Table], pa.Table] | None = None,
        since: int | None = None,
        until: int | None = None,
        where: str | None = None,
        *,
        storage_options: Mapping[str, object] | None = None,
    ) -> ReplayResult:
        """Commit the records once more, in the order of their versions, into another table. A replay that was killed
        goes on where it ended, and one that is repeated takes up what came since; each record lands once.

        :param into: path of the other table. It is made, with this table's definition, where there is none.
        :param merger: of the table that is made; by default this table's.
        :param options: of that merger.
        :param transform: is given the records of each commit as an Arrow table, with their kinds in ``_row_kind``, and
            gives back those to commit. It must give the same for the same.
        :param since: begin with the rows of this version, and the records after it; by default, and with 0, as far
            back as history goes.
        :param until: the last version to replay; by default the one that reads show.
        :param where: a SQL condition on each record's own values. A record that lacks a column of it is an error.
        :param storage_options: of the other table; by default none.
        :raises lakemerge.VersionNotFoundError: the records after ``since`` are not all there any more.
        :raises lakemerge.CommitConflictError: this table was restored to a version below what was replayed.
        """
        from lakemerge.provenance.replay import Replay

        view = self._current()
        with unless_replaced(self._handle.log, view.snapshot):
            replay = Replay(self._handle, view, transform=transform, since=since, until=until, where=where)
            return replay.into(into, merger=merger, options=options, storage_options=storage_options)

    def _repr_html_(self) -> str:
        detail = detail_of(self._handle, self._current())
        live = f"{detail.log_blocks:,} blocks of {detail.log_commits} commits, {readable_bytes(detail.log_bytes)}"
        facts = [
            ("table", detail.url),
            ("version", detail.version),
            ("merger", detail.merger),
            ("key", ", ".join(detail.key)),
            ("ordering", ", ".join(detail.ordering) or "commit order"),
            ("buckets", "not chosen yet" if detail.buckets is None else detail.buckets),
            ("base", f"{detail.base_files} files, {detail.base_rows:,} rows, {readable_bytes(detail.base_bytes)}"),
            ("live logs", live),
            ("read amplification", f"{detail.read_amplification:.2f}"),
        ]
        return definition_html(facts)
