"""A table that is open in this process: what services, ingest, streams, provenance and the public table work with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from lakemerge.delta import HistoryEntry, Snapshot
from lakemerge.errors import InputError
from lakemerge.feed.consumers import Consumers
from lakemerge.frames import is_spark_frame
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.results.writes import UpsertResult
from lakemerge.spark.installed import check_writes
from lakemerge.table.session import TableSession
from lakemerge.write.overwrite import OverwriteRequest, overwrite_arrow
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HasOpenTable", "OpenTable"]


class OpenTable:
    """A table's handle, the version that it stands at, and the Spark session that its services run on.

    A pinned table stays at its version, and is read-only. Each other one follows the latest version.
    """

    def __init__(self, handle: Handle, snapshot: Snapshot, *, pinned: bool, session: TableSession) -> None:
        self.handle = handle
        self.pinned = pinned
        self.session = session
        self.standing = handle.view(snapshot)
        """The version that the table was last seen at. Nothing is read to find it."""
        self.crowded = 0
        """How many commits have to be pending before a write maintains first again, after that did not help."""

    def __reduce__(self) -> tuple[object, ...]:
        again = partial(OpenTable, pinned=self.pinned, session=self.session)
        return again, (self.handle, self.standing.snapshot)

    @staticmethod
    def without_session(handle: Handle, snapshot: Snapshot) -> OpenTable:
        """A table at its latest version, whose services run in this process."""
        return OpenTable(handle, snapshot, pinned=False, session=TableSession(None))

    @property
    def url(self) -> str:
        return self.handle.store.url

    @property
    def view(self) -> TableView:
        """The version that reads show. For a table that is not pinned, it is the latest.

        :raises lakemerge.TableReplacedError: such a table was replaced.
        """
        if not self.pinned:
            latest = self.handle.latest(self.standing)
            if latest is not self.standing:
                self.move(latest.snapshot)
        return self.standing

    @property
    def version(self) -> int:
        return self.view.version

    @property
    def schema(self) -> pa.Schema:
        return self.view.config.schema

    @property
    def consumers(self) -> Consumers:
        return Consumers(self.handle, self.tip, self.writable)

    @property
    def services_session(self) -> SparkSession | None:
        """The session that services run on, or ``None`` if they run in this process."""
        return self.session.of_services()

    def writable(self) -> TableView:
        """The latest version. Raises :class:`lakemerge.InputError` if the table is pinned."""
        if self.pinned:
            raise InputError(
                f"this table was opened at version {self.standing.version} and is read-only; to write, open it without "
                "a version or timestamp",
                version=self.standing.version,
            )
        return self.view

    def tip(self) -> TableView:
        """The latest version, even if the table is pinned."""
        if not self.pinned:
            return self.view
        # An earlier version stays readable after the table was replaced.
        snapshot = self.handle.log.update(self.standing.snapshot)
        return self.standing if snapshot is self.standing.snapshot else self.handle.view(snapshot)

    def until(self, until: int | None) -> TableView:
        """A version of the table's history; by default the one that reads show."""
        current = self.view
        return current if until is None else self.handle.view_at(until, of=current.snapshot)

    def follow(self) -> None:
        """After a commit, move to its version. The version is known, so nothing is read from the log. So no failure of
        the store can make a write that has landed look failed."""
        landed = self.handle.landed.snapshot
        if landed is not None and landed.version > self.standing.version:
            self.move(landed)

    def move(self, snapshot: Snapshot) -> None:
        self.standing = self.handle.view(snapshot)
        self.handle.release(snapshot)

    def write(self, frame: Any, request: WriteRequest) -> UpsertResult:
        """Append the frame's records. No maintenance follows."""
        begin = self.writable()
        if is_spark_frame(frame):
            check_writes("an upsert of a Spark DataFrame")
            from lakemerge.spark.writer import upsert_dataframe

            result = upsert_dataframe(self.handle, begin, frame, request)
        else:
            result = upsert_arrow(self.handle, begin, frame, request)
        self.follow()
        return result

    def overwrite(self, frame: Any, request: OverwriteRequest) -> UpsertResult:
        """Put the frame's rows in the place of those that the request names. No maintenance follows."""
        begin = self.writable()
        with unless_vacuumed(self.handle.log, begin.snapshot):
            if is_spark_frame(frame):
                check_writes("an overwrite with a Spark DataFrame")
                from lakemerge.spark.writer import overwrite_dataframe

                # The session's zone may be another one than UTC.
                result = overwrite_dataframe(self.handle, begin, frame, replace(request, zone=None))
            else:
                result = overwrite_arrow(self.handle, begin, frame, request)
        self.follow()
        return result

    def history(self, *, limit: int | None = None) -> list[HistoryEntry]:
        """See :meth:`lakemerge.LakeTable.history`."""
        self.handle.log.check_holds(self.standing.snapshot)
        return self.handle.log.history(limit=limit, known=self.standing.version)

    def reopened(self) -> OpenTable:
        """The table that is at the path now, which may be another one.

        :raises lakemerge.NotATableError: there is no table any more.
        """
        old = self.handle
        # What a handle keeps of files is by their paths, and another table may have the same ones.
        handle = Handle(old.store, old.log, old.registry, old.settings)
        return OpenTable(handle, handle.log.snapshot(), pinned=False, session=self.session)


class HasOpenTable(Protocol):
    """What a user has of a table: :class:`lakemerge.LakeTable`."""

    @property
    def opened(self) -> OpenTable: ...
