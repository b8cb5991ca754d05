"""Streams into a table, and changes out of it. Methods of :class:`lakemerge.LakeTable`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from lakemerge.errors import InputError
from lakemerge.feed.changes import read_changes
from lakemerge.feed.consumers import Consumers
from lakemerge.feed.follow import Following, follow
from lakemerge.format.feed_offset import Offset
from lakemerge.handle import Handle
from lakemerge.layout.travel import guarded
from lakemerge.layout.view import TableView
from lakemerge.quantities import milliseconds_of
from lakemerge.table.session import TableSession
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from lakemerge.table import LakeTable

__all__ = ["TableStreams"]


class TableStreams(ABC):
    """Structured Streaming into a table; the change feed, as a batch, a stream or an iterator."""

    _handle: Handle
    _view: TableView
    _session: TableSession

    @abstractmethod
    def _writable(self) -> TableView:
        """The tip; raises :class:`lakemerge.InputError` where the table stands at an earlier version."""

    @abstractmethod
    def _current(self) -> TableView:
        """The version to read."""

    def changes(
        self, since: int, until: int | None = None, *, net: bool = False, before_images: bool = True
    ) -> pa.RecordBatchReader:
        """What each commit after version ``since`` changed in the rows, up to ``until`` (by default the
        version that reads show): the table's columns, ``_row_kind``, ``_commit_version`` and
        ``_commit_timestamp``.

        A new row is ``+I``, one that went ``-D`` with the row as it was; a changed row comes twice, ``-U``
        as it was and ``+U`` as it is. Records that changed nothing do not show, and compactions neither.
        Commits come in order; within one, rows of a bucket are sorted by key. If one is a restore, the feed has
        the columns of all its versions, in their widest types (docs/guides/retention.md, "Restore").

        :param net: tell each key once: how its row at ``until`` differs from the one at ``since``.
        :param before_images: whether a changed row comes as it was, too.
        :raises lakemerge.VersionNotFoundError: not in the table's history.
        """
        end = self._until(until)
        reader = read_changes(self._handle, end, since, net=net, before_images=before_images)
        return guarded(reader, self._handle.log, end.snapshot)

    def changes_df(
        self, since: int, until: int | None = None, *, net: bool = False, before_images: bool = True
    ) -> DataFrame:
        """As :meth:`changes`, computed by tasks of Spark, under Delta's and Spark's names: the kind is in
        ``_change_type`` (``insert``, ``update_preimage``, ``update_postimage`` or ``delete``)."""
        from lakemerge.spark.feed import changes_dataframe

        end = self._until(until)
        spark = self._session.of_dataframes()
        return changes_dataframe(spark, self._handle, end, since, net=net, before_images=before_images)

    @property
    def consumers(self) -> Consumers:
        """Followers of the change feed that hold back vacuum for what they have yet to read (docs/streaming.md)."""
        return Consumers(self._handle, self._tip, self._writable)

    def follow(
        self,
        consumer: str | None = None,
        poll: str | float | None = "1s",
        *,
        since: int | None = None,
        until: int | None = None,
        max_rows: int | None = None,
        before_images: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The changes as they are committed, in batches of :meth:`changes`'s columns. Without a consumer and a
        version, the present rows come first, as ``+I``.

        Asking for the next batch says that the one before is done with. A consumer that is killed gets its last
        file slice of changes again, never less. The batches of a version have the columns of that version.

        :param consumer: whose position to go on from, and to advance; ``table.consumers.register`` makes one.
        :param poll: how long to wait where nothing is new, such as ``"500ms"``, ``"1s"``, or seconds; ``None``: the
            iterator ends.
        :param since: the version after which to begin.
        :param until: the last version to tell of; the iterator ends after it.
        :param max_rows: rows of a batch, at most.
        :raises lakemerge.InputError: there is no such consumer.
        :raises lakemerge.VersionNotFoundError: a vacuum took what there was to read; the message says what to do.
        """
        if consumer is not None and since is not None:
            raise InputError("a consumer has a position of its own: give a consumer or a version, not both")
        for name, given in (("since", since), ("until", until)):
            if given is not None and (type(given) is not int or given < 0):
                raise InputError(f"{argument(name)} must be a version, not {given!r}")
        if max_rows is not None and (type(max_rows) is not int or max_rows < 1):
            raise InputError(f"{argument('max_rows')} must be a positive number of rows, not {max_rows!r}")
        how = Following(
            consumer=consumer,
            poll_seconds=None if poll is None else milliseconds_of(poll, argument("poll")) / 1000,
            until=until,
            max_rows=max_rows,
            before_images=before_images,
        )
        start = self._begin(consumer, since)
        return follow(self._handle, self._tip, self.consumers, start, how)

    def write_stream(
        self,
        frame: DataFrame,
        *,
        checkpoint: str,
        kind_column: str | None = None,
        merge_schema: bool = False,
        trigger: Mapping[str, Any] | None = None,
        output_mode: str = "update",
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Upsert a streaming DataFrame, each micro-batch exactly once. The query is started.

        What a query wrote is known by its id, which its checkpoint keeps. With a new checkpoint it is a new query,
        which writes everything that its source gives it.

        :param checkpoint: folder or URL of the query's checkpoint.
        :param kind_column: as for :meth:`LakeTable.upsert`; Delta's words (``insert``, ``update_preimage``, ...) are
            taken, too.
        :param trigger: keywords of Spark's ``DataStreamWriter.trigger``; by default ``{"availableNow": True}``.
        :param output_mode: ``update``, ``append`` or ``complete``. Rows that leave a complete result are not deleted.
        :raises lakemerge.InputError: the frame is no stream, or Spark Connect, where :meth:`batch_writer` is needed.
        """
        from lakemerge.spark.stream_write import start_stream

        self._writable()
        chosen = {"availableNow": True} if trigger is None else dict(trigger)
        writer = self.batch_writer(kind_column=kind_column, merge_schema=merge_schema)
        return start_stream(
            frame, writer, checkpoint=checkpoint, trigger=chosen, output_mode=output_mode, query_name=query_name
        )

    def batch_writer(
        self, app: str | None = None, *, kind_column: str | None = None, merge_schema: bool = False
    ) -> Callable[[DataFrame, int], None]:
        """The function for ``foreachBatch`` of a stream of your own: it upserts each micro-batch exactly once.

        :param app: what tells the query from all others that write to the table; as lasting as its checkpoint. By
            default the query's id, which Spark Connect does not tell.
        :param kind_column: as for :meth:`write_stream`.
        """
        from lakemerge.spark.stream_write import BatchWriter

        self._writable()
        return BatchWriter(cast("LakeTable", self), app, kind_column=kind_column, merge_schema=merge_schema)

    def _until(self, until: int | None) -> TableView:
        current = self._current()
        return current if until is None else self._handle.view_at(until, of=current.snapshot)

    def _tip(self) -> TableView:
        """The latest version, also of a table that stands at an earlier one."""
        found = self._current()
        snapshot = self._handle.log.update(found.snapshot)
        return found if snapshot is found.snapshot else self._handle.view(snapshot)

    def _begin(self, consumer: str | None, since: int | None) -> Offset:
        if consumer is not None:
            return self.consumers.position(consumer)
        return Offset(self._tip().version, of_rows=True) if since is None else Offset(since + 1)
