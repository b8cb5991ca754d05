"""``LakeTable``: the public door to a table. Each method is a few lines over functions of other modules.

``compaction`` knows tables. Tables know it only inside the methods of services.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.commits.restore import restore_table
from lakemerge.commits.savepoints import drop_savepoint, save_version
from lakemerge.delta import HistoryEntry, Snapshot
from lakemerge.errors import CommitConflictError, InputError
from lakemerge.feed.changes import read_changes
from lakemerge.feed.consumers import Consumers
from lakemerge.feed.follow import Following, follow
from lakemerge.format.feed_offset import Offset
from lakemerge.format.ingests import check_job_name
from lakemerge.format.savepoint import Savepoint, savepoints_of
from lakemerge.frames import is_spark_frame
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version, guarded, unless_replaced, unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.provenance.explanation import Explanation
from lakemerge.read.lookup import look_up
from lakemerge.read.scan import ReadMode, in_mode, read_arrow, scan
from lakemerge.results.events import observed
from lakemerge.results.findings import CheckResult
from lakemerge.results.plans import CompactionPlan, CompactionStrategy, Order
from lakemerge.results.results import (
    CompactionResult,
    ExpiryResult,
    LogCompactionResult,
    MaintenanceResult,
    RescaleResult,
    RestoreResult,
    UpsertResult,
    VacuumResult,
)
from lakemerge.results.schedule import Auto, Schedule
from lakemerge.table.alter import SchemaChange, alter_table
from lakemerge.table.create import create_table
from lakemerge.table.describe import ReadPlan, SliceInfo, TableDetail, detail_of, html_of, plan_of, slices_of
from lakemerge.table.engine import deleting
from lakemerge.table.opening import open_handle
from lakemerge.table.session import TableSession
from lakemerge.write.delete import delete_where
from lakemerge.write.request import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers import Merger
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakemerge.ingest import Archive, Bins, Files, Fragments, IngestJob
    from lakemerge.provenance.lineage import Lineage
    from lakemerge.provenance.replay import ReplayResult
    from lakemerge.provenance.what_if import WhatIf

__all__ = ["LakeTable"]

_logger = logging.getLogger(__name__)


class LakeTable:
    """A LakeMerge table. Make one with :meth:`create` or :meth:`open`.

    A table opened without a version follows the tip: each call first looks for newer commits. One
    opened at a version or timestamp stands there, and is read-only.

    ::

        make      create, open
        write     upsert, delete, delete_where, ingest, write_stream, batch_writer
        read      to_arrow, scan, get, query, to_df, create_temp_view, explain_read
        follow    changes, changes_df, follow, consumers
        ask why   explain, lineage, what_if, replay
        look at   version, schema, key, ordering, buckets, url, detail, slices, history
        redefine  alter, rescale
        maintain  maintain, compact, compact_logs, vacuum, expire_tombstones, check
        go back   savepoint, savepoints, drop_savepoint, restore
    """

    def __init__(self, handle: Handle, snapshot: Snapshot, *, pinned: bool, spark: SparkSession | None) -> None:
        self._handle = handle
        self._view = handle.view(snapshot)
        self._pinned = pinned
        self._session = TableSession(spark)

    def __reduce__(self) -> tuple[object, ...]:
        again = partial(type(self), pinned=self._pinned, spark=None)
        return again, (self._handle, self._view.snapshot), {"_session": self._session}

    # Making and opening a table

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        schema: object,
        *,
        key: Sequence[str],
        ordering: Sequence[str] = (),
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        partition_by: Sequence[str] = (),
        buckets: int | None = None,
        name: str | None = None,
        description: str | None = None,
        properties: Mapping[str, str] | None = None,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
        spark: SparkSession | None = None,
    ) -> LakeTable:
        """Create an empty table.

        :param schema: a Spark ``StructType``, a Spark DDL string or a ``pa.Schema``.
        :param key: the columns that identify a row; never null.
        :param ordering: columns compared as a tuple to tell which of two records is newer.
        :param merger: a registered name, a strategy UUID or an instance; by default ``event-time``
            with ``ordering`` and ``commit-time`` without.
        :param options: the merger's options.
        :param partition_by: key columns whose values split the table.
        :param buckets: buckets per partition, a power of two; chosen at the first load by default.
        :param properties: Delta table properties, such as ``delta.checkpointInterval``.
        :param mergers: merger classes to know beside the registered ones.
        :raises lakemerge.SchemaError: columns or buckets cannot be used; every problem is listed.
        :raises lakemerge.MergerConfigurationError: options do not validate.
        :raises lakemerge.MergerMissingError: no such merger is registered.
        :raises lakemerge.TableExistsError: there is a table at the path.
        """
        handle = open_handle(path, storage_options, mergers, settings)
        snapshot = create_table(
            handle,
            schema,
            key=key,
            ordering=ordering,
            merger=merger,
            options=options,
            partition_by=partition_by,
            buckets=buckets,
            name=name,
            description=description,
            properties=properties,
        )
        return cls(handle, snapshot, pinned=False, spark=spark)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        version: int | None = None,
        timestamp: dt.datetime | str | None = None,
        savepoint: str | None = None,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
        spark: SparkSession | None = None,
    ) -> LakeTable:
        """Open a table, at its latest version or at an earlier one.

        :param timestamp: the last version committed at or before it, which must not be after the last
            commit; a datetime with a zone, or an ISO 8601 string (UTC where it names no zone).
        :param savepoint: the version that :meth:`savepoint` gave this name.
        :raises lakemerge.NotATableError: nothing is there, or a plain Delta table.
        :raises lakemerge.VersionNotFoundError: not in the table's history, or its files were vacuumed.
        """
        handle = open_handle(path, storage_options, mergers, settings)
        snapshot = find_version(handle.log, version=version, timestamp=timestamp, savepoint=savepoint)
        pinned = any(given is not None for given in (version, timestamp, savepoint))
        return cls(handle, snapshot, pinned=pinned, spark=spark)

    @staticmethod
    def check(
        path: str | os.PathLike[str],
        *,
        rebuild_checkpoints: bool = False,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
    ) -> CheckResult:
        """Verify the latest version of a table, also one that cannot be opened: its log and checkpoints, that
        files are there with their sizes, that rows are sorted, unique and where they belong, that text is UTF-8,
        that statistics are true, and that logs can be merged. Reads the columns of the key and those with text or
        decimals of everything, all columns where there are logs or winner files; changes nothing.

        :param rebuild_checkpoints: write damaged checkpoints anew, from what is older, and check again.
        :raises lakemerge.NotATableError: there is nothing, or a plain Delta table.
        """
        from compaction import check_table

        handle = open_handle(path, storage_options, mergers, settings)
        return check_table(handle, rebuild_checkpoints=rebuild_checkpoints)

    # What a table is

    @property
    def version(self) -> int:
        """The version that reads show."""
        return self._current().version

    @property
    def schema(self) -> pa.Schema:
        """Columns in the table's order; key columns are not nullable."""
        return self._current().config.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self._view.config.key

    @property
    def ordering(self) -> tuple[str, ...]:
        """The columns that tell which of two records is newer; empty where the order of commits does."""
        return self._view.config.ordering

    @property
    def buckets(self) -> int | None:
        """How many buckets each partition has; ``None`` before the first write, which chooses."""
        return self._current().config.buckets

    @property
    def url(self) -> str:
        """Where the table is."""
        return self._handle.store.url

    def detail(self) -> TableDetail:
        """The version at a glance: its definition, sizes, pending logs, read amplification, and what maintenance
        would do after a write now."""
        from compaction import told

        view = self._current()
        return detail_of(self._handle, view, maintenance=told(view))

    def slices(self) -> list[SliceInfo]:
        """What each bucket holds, and what reading it costs now."""
        return slices_of(self._current())

    def __repr__(self) -> str:
        config = self._view.config
        return (
            f"LakeTable({self.url!r}, version={self._view.version}, key={list(config.key)}, "
            f"merger={config.merger_name!r}, buckets={config.buckets})"
        )

    def _repr_html_(self) -> str:
        return html_of(self.detail())

    # Writing

    @observed
    def upsert(
        self,
        frame: object,
        *,
        kind_column: str | None = None,
        merge_schema: bool = False,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
    ) -> UpsertResult:
        """Write records: one commit, no read of the base, no shuffle.

        :param frame: a Spark DataFrame, or a pyarrow, pandas or polars frame (lazy ones are collected). It carries
            all key columns and any others; a column it lacks is unset, which is not null. (A field that a struct
            lacks is null.) Numbers of other types than the table's are taken where each has an equal one there.
        :param kind_column: the column that holds each row's kind (``+I``, ``+U``, ``-U``, ``-D``);
            it is not stored. Without it every row is an upsert.
        :param merge_schema: add columns, and fields of structs, that only the frame has to the table's
            schema, as nullable ones at the end, in the same commit; else such a frame is refused.
        :param txn: ``(application id, number)``: a write whose number is not above the last one
            committed for that application changes nothing. Ids that begin with ``lakemerge.`` are the library's own.
        :param info: further entries of ``commitInfo``, such as source files and job names.
        :raises lakemerge.FrameError: the frame does not fit; nothing was committed.
        :raises lakemerge.CommitConflictError: the definition changed meanwhile, such as a column of the
            same name and another type; nothing was committed.
        :raises lakemerge.OutcomeUnknownError: the store did not tell whether the commit landed.
        """
        request = WriteRequest(kind_column=kind_column, txn=txn, info=info or {}, merge_schema=merge_schema)
        return self._write(frame, request)

    @observed
    def delete(
        self, keys: object, *, txn: tuple[str, int] | None = None, info: Mapping[str, object] | None = None
    ) -> UpsertResult:
        """Write a ``-D`` record for each key. ``event-time``, ``commit-time`` and ``remove_record_on_delete``
        remove the row; elsewhere it may be a retraction, be ignored or be refused (docs/merge-semantics.md, section 5).

        :param keys: a frame as for :meth:`upsert`. With all ordering columns a delete applies only
            where it is newer; with none of them it is unconditional.
        """
        return self._write(keys, WriteRequest(deletes=True, txn=txn, info=info or {}))

    @observed
    def delete_where(self, condition: str, *, info: Mapping[str, object] | None = None) -> UpsertResult:
        """Delete the rows that meet a SQL condition, each at its own ordering: records that are
        older stay out, newer ones bring the row back.

        The condition is judged anew if other writers commit meanwhile. Times without a zone are in the
        session's where the table was opened with one, else in UTC.

        :raises lakemerge.FilterError: the condition is not understood, or a row's values cannot be computed with.
        :raises lakemerge.RecordRefusedError: with the table's merger deletes do not remove rows.
        :raises lakemerge.CommitConflictError: rows kept changing, or a vacuum took files that were being read;
            nothing was deleted.
        """
        begin = self._writable()
        with unless_vacuumed(self._handle.log, begin.snapshot):
            result = delete_where(
                self._handle,
                begin,
                condition,
                delete=deleting(self._handle, self._session.of_services(), condition, info or {}),
            )
        self._follow()
        self._maintain_inline(result.version)
        return result

    def ingest(
        self,
        name: str,
        source: Files | None = None,
        *,
        bins: Bins | None = None,
        fragments: Fragments | None = None,
        kind_column: str | None = None,
        envelope: Literal["debezium", "dms"] | None = None,
        bad_records: Literal["fail", "quarantine"] = "fail",
        max_bad_records: int | None = 0,
        rescued_column: str | None = None,
        merge_schema: bool = False,
        blocks_per_window: int = 200,
        bytes_per_window: int | str = "1GiB",
        after: Literal["keep", "delete", "archive"] | Archive = "keep",
        max_read_amplification: float | None = None,
    ) -> IngestJob:
        """A job that fills the table from files, each record exactly once (docs/guides/ingest.md). Nothing is listed or
        read before :meth:`lakemerge.ingest.IngestJob.run`.

        :param name: of the job; what it did is kept in the table under this name.
        :param source: where the files are. A job without one can be looked at, and told to retry or reset.
        :param bins: how files are gathered before they are worth a commit; by default they are not.
        :param fragments: sets of files that belong together, in the place of ``bins``.
        :param kind_column: the column of the files that holds each record's kind, as for :meth:`LakeTable.upsert`.
        :param envelope: what records are wrapped in.
        :param bad_records: whether a record that cannot be taken up makes its window fail, or is set aside.
        :param max_bad_records: how many of a window may be set aside; ``None``: any number.
        :param rescued_column: a STRING column that takes, as JSON, what files have and the table has no column for.
        :param merge_schema: add columns that only the files have, as for :meth:`LakeTable.upsert`.
        :param blocks_per_window: blocks that are committed at once, at most.
        :param bytes_per_window: the same in bytes of files.
        :param after: what becomes of files that are in the table.
        :param max_read_amplification: above it maintenance comes before the next window.
        :raises lakemerge.InputError: what contradicts itself; everything is listed.
        """
        from lakemerge.ingest.job import IngestJob
        from lakemerge.ingest.settings import JobSettings, OpenTable

        settings = None
        if source is not None:
            settings = JobSettings.checked(
                source,
                bins=bins,
                fragments=fragments,
                kind_column=kind_column,
                envelope=envelope,
                bad_records=bad_records,
                max_bad_records=max_bad_records,
                rescued_column=rescued_column,
                merge_schema=merge_schema,
                blocks_per_window=blocks_per_window,
                bytes_per_window=bytes_per_window,
                after=after,
                max_read_amplification=max_read_amplification,
            )
        opened = OpenTable(self, self._writable, self._maintain_inline, self._session.of_services())
        return IngestJob(opened, check_job_name(name), settings)

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
        return BatchWriter(self, app, kind_column=kind_column, merge_schema=merge_schema)

    # Reading

    @observed
    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | pc.Expression | None = None,
        mode: ReadMode = "merged",
    ) -> pa.Table:
        """The rows as an Arrow table, in no particular order.

        :param columns: the columns asked for, in that order.
        :param filter: SQL with Spark's meaning (docs/guides/filters.md lists what it may hold; times without a zone are
            UTC), or an Arrow expression with Arrow's.
        :param mode: ``base`` reads base files alone, without a merge: the table as other Delta readers see it, where
            each bucket stands at its last full compaction.
        """
        view = in_mode(self._current(), mode)
        with unless_replaced(self._handle.log, view.snapshot):
            return read_arrow(self._handle, view, columns=columns, filter=filter)

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | pc.Expression | None = None,
        mode: ReadMode = "merged",
    ) -> pa.RecordBatchReader:
        """As :meth:`to_arrow`, as a stream: memory is bounded by ``Settings.merge_budget_bytes``."""
        view = in_mode(self._current(), mode)
        return guarded(scan(self._handle, view, columns=columns, filter=filter), self._handle.log, view.snapshot)

    @overload
    def get(self, key: Mapping[str, object], *, columns: Sequence[str] | None = None) -> dict[str, Any] | None: ...

    @overload
    def get(self, key: object, *, columns: Sequence[str] | None = None) -> pa.Table: ...

    @observed
    def get(self, key: object, *, columns: Sequence[str] | None = None) -> dict[str, Any] | pa.Table | None:
        """Look up one key or many, reading one bucket a key and only row groups that can hold it.

        :param key: ``{"id": 7}``: the row as a dictionary of Python values, or ``None``. A list of such
            mappings, or a pyarrow, pandas or polars frame of the key columns: an Arrow table of the rows
            there are, in no particular order.
        :param columns: as for :meth:`to_arrow`.
        :raises lakemerge.FrameError: the keys are not those of the table.
        """
        one = isinstance(key, Mapping)
        view = self._current()
        with unless_replaced(self._handle.log, view.snapshot):
            rows = look_up(self._handle, view, [key] if one else key, columns)
        return next(iter(rows.to_pylist()), None) if one else rows

    @observed
    def query(self, sql: str) -> pa.Table:
        """The answer to a SQL query, which DuckDB computes (``lakemerge[query]``). The table is called ``self``:
        ``table.query("SELECT state, count(*) FROM self GROUP BY state")``.

        Only the columns that the query names are read, and only files that can hold what its conditions ask for.
        The SQL is DuckDB's; times without a zone are UTC.

        :raises lakemerge.DependencyMissingError: DuckDB is not installed.
        :raises lakemerge.InputError: DuckDB cannot answer the query; the message says why.
        """
        from lakemerge.read.query import query

        view = self._current()
        with unless_replaced(self._handle.log, view.snapshot):
            return query(self._handle, view, sql)

    @observed
    def to_df(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | Column | None = None,
        mode: ReadMode = "merged",
    ) -> DataFrame:
        """The rows as a Spark DataFrame of this version. What a task cannot merge fails Spark's action, with
        a ``PythonException`` that holds our error's text.

        Clean buckets are read by Spark's own Parquet reader where it reaches the store, and so are those whose logs are
        small beside them: this call then runs a job that merges the logs, and the table keeps what that came to for
        later reads of the version. Others go through the merge kernel. :meth:`explain_read` tells which do.

        :param filter: a SQL condition, which also prunes files, or a Spark Column; times without a zone
            are in the session's.
        :param mode: as for :meth:`to_arrow`.
        """
        from lakemerge.spark.reader import read_dataframe

        view = in_mode(self._current(), mode)
        return read_dataframe(self._session.of_dataframes(), self._handle, view, columns=columns, filter=filter)

    def create_temp_view(self, name: str, *, columns: Sequence[str] | None = None) -> None:
        """Make this version available to Spark SQL under a name."""
        self.to_df(columns=columns).createOrReplaceTempView(name)

    def explain_read(
        self, *, columns: Sequence[str] | None = None, filter: str | pc.Expression | None = None
    ) -> ReadPlan:
        """How such a read would be done now, and why: which parts are pruned, read as they are, or merged."""
        return plan_of(self._handle, self._current(), columns, filter, self._session.if_active())

    # Following what changed

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
        how = Following.checked(
            consumer, poll, since=since, until=until, max_rows=max_rows, before_images=before_images
        )
        start = self._begin(consumer, since)
        return follow(self._handle, self._tip, self.consumers, start, how)

    @property
    def consumers(self) -> Consumers:
        """Followers of the change feed that hold back vacuum for what they have yet to read (docs/streaming.md)."""
        return Consumers(self._handle, self._tip, self._writable)

    # Who won and why

    @observed
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

    @observed
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

    @observed
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

    # Changing the definition

    @observed
    def alter(
        self,
        *,
        add_columns: str | pa.Schema | None = None,
        nullable: Sequence[str] | None = None,
        comments: Mapping[str, str | None] | None = None,
        order: Sequence[str] | None = None,
        widen: Mapping[str, str | pa.DataType] | None = None,
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        properties: Mapping[str, str | None] | None = None,
    ) -> int:
        """Change the table's definition in one commit; returns the version.

        No file is rewritten, and versions before the change are read as ever. Another merger or other options
        fold the records written from then on, onto the rows as they stand. Key and ordering columns cannot
        change. What the table has already makes no commit. Columns change as the parameters are listed here:
        ``order`` may name one that ``add_columns`` adds. Fields inside of columns have dotted names as in Spark:
        ``address.zip``, ``points.element.x`` in lists, ``prices.value.net`` in maps; a name that itself has a
        dot goes into back quotes.

        :param add_columns: nullable columns (DDL or ``pa.Schema``) for the end of the schema. Earlier records do
            not carry them. New fields of a struct (``"address.zip STRING"``, or the struct column with more
            fields) are null in all that was written before.
        :param nullable: columns, but for those of the key, that are NOT NULL no longer.
        :param comments: comments of columns; ``None`` takes one away.
        :param order: columns that come first, in that order; the others follow as they stand.
        :param widen: wider types of columns, fields, elements of lists or values of maps (``{"n": "BIGINT"}``), but
            not of the key, as Delta's type widening has them. The first such change raises the table's Delta reader
            version to 3: readers that do not know ``typeWidening`` then refuse it.
        :param merger: as for :meth:`create`. Its options are those given with it, else its defaults.
        :param options: without ``merger``: all options of the present one.
        :param properties: table properties to set, such as when services are due; ``None`` takes one away.
        :raises lakemerge.SchemaError: the columns cannot be changed that way.
        :raises lakemerge.CompactFirstError: merger or options, or types that the merger computes in, would change
            under logs that are not compacted: call :meth:`compact` first.
        :raises lakemerge.MergerConfigurationError: options do not validate against the schema.
        :raises lakemerge.CommitConflictError: somebody else changed the definition meanwhile.
        """
        begin = self._writable()
        columns = SchemaChange(add_columns=add_columns, nullable=nullable, comments=comments, order=order, widen=widen)
        snapshot = alter_table(
            self._handle, begin, columns=columns, merger=merger, options=options, properties=properties
        )
        self._view = self._handle.view(snapshot)
        return snapshot.version

    # Earlier versions

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

    @observed
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

    # Services: each commits by itself, never blocks writers and never changes an answer

    @overload
    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: Literal[False] = False,
    ) -> CompactionResult: ...

    @overload
    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: Literal[True],
    ) -> CompactionPlan: ...

    @observed
    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
    ) -> CompactionResult | CompactionPlan:
        """Merge live logs into base files: all of them, unless told otherwise. Never blocks writers; never
        changes an answer.

        A *minor* compaction leaves base files as they are and writes the changed rows beside them, in
        proportion to what changed since the last one; reads then need no merge. Other Delta readers
        see what changed only after a full one.

        Buckets are committed in groups (``Settings.target_commit_bytes``): a run that is killed keeps those
        that it committed, and the next one goes on with the rest. A group that another compaction changed
        meanwhile is not committed; the result's ``lost`` names it, and nothing is lost.
        Where a total does not fit its column, that part of the table stays as it is; the result's
        ``skipped`` and a warning in the log name key and column.

        Runs on Spark where the table was opened with a session, else in this process. Progress goes to the
        logger ``compaction`` at level INFO.

        :param strategy: which base files are due, and in which order; an order alone
            (``"read-amplification"``) takes all that have logs.
        :param where: a SQL condition over partition columns: only these partitions.
        :param max_bytes: end after about so many bytes read and written, as estimated; the rest is for the
            next run.
        :param dry_run: only make the plan: what would be merged, why, at what cost and for what gain.
        :raises lakemerge.FilterError: ``where`` names a column that the table is not partitioned by.
        :raises lakemerge.CommitConflictError: a vacuum took the version that was being compacted.
        """
        from compaction import compact, plan_compaction

        view = self._writable()
        due = CompactionStrategy.of(strategy)
        with unless_vacuumed(self._handle.log, view.snapshot):
            if dry_run:
                return plan_compaction(self._handle, view, minor=minor, strategy=due, where=where, max_bytes=max_bytes)
            spark = self._session.of_services()
            result = compact(
                self._handle, view, minor=minor, strategy=due, where=where, max_bytes=max_bytes, spark=spark
            )
        self._follow()
        return result

    @observed
    def compact_logs(self, *, size_ratio: float = 2.0) -> LogCompactionResult:
        """Merge the logs of many commits into few consolidated logs, without touching base files: hundreds of
        small commits then stay cheap to read, for the price of rewriting their rows once.

        Where the table's merger allows it (merge semantics, section 6), only the records that decide are kept;
        elsewhere they are all kept in commit order. Never blocks writers, never changes an answer, and earlier
        versions still read the original logs.

        Runs on Spark where the table was opened with a session, else in this process.

        :param size_ratio: an older log joins the newer ones unless it is larger than so many times all of
            them together, so that a record is rewritten a logarithmic number of times over a table's life;
            ``math.inf`` merges all logs.
        :raises lakemerge.CommitConflictError: another compaction, or a vacuum, took some of these logs up meanwhile.
        """
        from compaction import compact_logs

        view = self._writable()
        with unless_vacuumed(self._handle.log, view.snapshot):
            result = compact_logs(self._handle, view, size_ratio=size_ratio, spark=self._session.of_services())
        self._follow()
        return result

    @observed
    def rescale(self, *, buckets: int) -> RescaleResult:
        """Change the number of buckets, to spread a table that grew over more buckets or to gather one that
        shrank into fewer. Readers and writers go on as ever, under the old count or the new one.

        No log is rewritten. Base files are, bucket by bucket, in commits that also merge their logs; tables of
        some size take several. Every version in between is a right one. A call that was killed, or lost too
        often against compactions, is finished by calling it again; calling it with the old count takes it back.

        Runs on Spark where the table was opened with a session, else in this process.

        :param buckets: buckets per partition, a power of two.
        :raises lakemerge.InputError: it is none.
        :raises lakemerge.CommitConflictError: somebody else changed the bucket count or the schema meanwhile,
            compactions were faster again and again, or a vacuum took the version that was being rewritten.
        """
        from compaction import rescale

        view = self._writable()
        with unless_vacuumed(self._handle.log, view.snapshot):
            result = rescale(self._handle, view, buckets, spark=self._session.of_services())
        self._follow()
        return result

    @observed
    def expire_tombstones(self, *, retention: dt.timedelta | None = None) -> ExpiryResult:
        """Forget old deletes, so that tombstones do not grow for ever: a record that is older than such a
        delete and arrives later than this is taken as new.

        Deletes are forgotten up to a version, and only where all logs up to it are compacted.

        :param retention: how long ago a delete must have been committed; by default the table property
            ``lakemerge.tombstoneRetention`` (7 days). Ages are by the store's clock.
        :raises lakemerge.CommitConflictError: a vacuum took the version that was looked at.
        """
        from compaction import expire_tombstones

        view = self._writable()
        with unless_vacuumed(self._handle.log, view.snapshot):
            result = expire_tombstones(self._handle, view, retention=retention)
        self._follow()
        return result

    @observed
    def vacuum(
        self, *, dry_run: bool = True, retention: dt.timedelta | None = None, enforce_retention: bool = True
    ) -> VacuumResult:
        """Delete the files that no version within the retention needs, those of killed writes, and old commits
        of the log. **By default a dry run**: it says what would be deleted.

        Versions older than the retention cannot be read, saved or restored afterwards, savepoints aside.
        Never blocks writers; one that began before the oldest version kept is refused when it commits,
        and nothing of it is lost but its time.

        :param retention: how long ago a version may have been replaced and is still readable; by default the table
            property ``delta.deletedFileRetentionDuration`` (7 days). Ages are by the store's clock; a dry run writes
            nothing, not even to ask for the store's time, and goes by this host's. Commits stay for
            ``delta.logRetentionDuration`` (30 days), and longer where they are needed.
        :param enforce_retention: whether to refuse a shorter one than that property.
        :raises lakemerge.InputError: the retention is too short, or a table property is no duration.
        :raises lakemerge.UnsupportedFeatureError: a newer library keeps files in the table that this one does not
            know; nothing was deleted.
        """
        from compaction import vacuum

        result = vacuum(
            self._handle,
            self._writable(),
            dry_run=dry_run,
            retention=retention,
            enforce_retention=enforce_retention,
        )
        self._follow()
        return result

    @observed
    def maintain(self, *, stop: Callable[[], bool] | None = None) -> MaintenanceResult:
        """Do what is due by the table's schedule: full or minor compaction, log compaction, forgetting old
        deletes, vacuum. Call it as often as you like: what is not due costs a look at the metadata.

        The schedule is in table properties (docs/guides/maintenance.md), which :meth:`alter` sets. Several
        maintainers at once waste work, never data. If a run is killed, the next run continues it.

        :param stop: asked between services, and between the commits of a compaction; true ends the run there.
        """
        from compaction import maintain

        result = maintain(self._handle, self._writable(), spark=self._session.of_services(), stop=stop)
        self._follow()
        return result

    # For the library's own packages; not part of the public API

    @property
    def handle(self) -> Handle:
        """For table services; not part of the public API."""
        return self._handle

    @property
    def view(self) -> TableView:
        """The version that reads show, decoded. For table services; not part of the public API."""
        return self._current()

    def maintain_inline(self) -> None:
        """What a write does in the end; for writers of streams. Not part of the public API."""
        self._maintain_inline()

    def _write(self, frame: Any, request: WriteRequest) -> UpsertResult:
        begin = self._writable()
        if is_spark_frame(frame):
            from lakemerge.spark.writer import upsert_dataframe

            result = upsert_dataframe(self._handle, begin, frame, request)
        else:
            result = upsert_arrow(self._handle, begin, frame, request)
        self._follow()
        self._maintain_inline(result.version)
        return result

    def _maintain_inline(self, version: int | None = None) -> None:
        """Maintenance after a write, where a table property asks for it. The write has landed, so a failure here must
        not make it look like a failure. What is due stays due.

        :param version: that of the write; by default the one where the table stands.
        """
        landed = self._view.version if version is None else version
        try:
            schedule = Schedule.of(self._view.snapshot.metadata.configuration)
            if schedule.inline:
                self.maintain()
            elif schedule.auto is not None:
                self._maintain_automatically(schedule.auto, landed)
        except CommitConflictError as conflict:
            _logger.info("maintenance of %s after a write: somebody was first: %s", self._handle.store.url, conflict)
        except Exception:
            _logger.warning("maintenance of %s after a write failed", self._handle.store.url, exc_info=True)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"this ended maintenance; the write before it has landed, as version {landed}")
            raise

    def _maintain_automatically(self, auto: Auto, version: int) -> None:
        from compaction import after_write

        with unless_vacuumed(self._handle.log, self._view.snapshot):
            decision = after_write(self._handle, self._view, auto, version=version, spark=self._session.of_services())
        if decision is not None and decision.service != "nothing":
            self._follow()

    def _writable(self) -> TableView:
        if self._pinned:
            raise InputError(
                f"this table was opened at version {self._view.version} and is read-only; to write, open it without "
                "a version or timestamp",
                version=self._view.version,
            )
        return self._current()

    def _current(self) -> TableView:
        """The version to read; for a table that follows the tip, the latest."""
        if not self._pinned:
            snapshot = self._handle.log.update(self._view.snapshot)
            if snapshot is not self._view.snapshot:
                self._view = self._handle.view(snapshot)
        return self._view

    def _follow(self) -> None:
        """After a commit: stand at its version. It is known, so the log is not asked, and no store can fail now and
        make a write that has landed look like a failure."""
        landed = self._handle.landed.snapshot
        if landed is not None and landed.version > self._view.version:
            self._view = self._handle.view(landed)

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
