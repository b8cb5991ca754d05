"""``LakeTable``: the public door to a table. Each method is a few lines over functions of other modules.

``compaction`` imports tables. Tables import it only inside the methods that run services.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.arguments import checked
from lakemerge.commits.provenance import caller_info
from lakemerge.commits.restore import restore_table
from lakemerge.commits.savepoints import drop_savepoint, save_version
from lakemerge.datasource.registration import prepared
from lakemerge.delta import HistoryEntry, Snapshot
from lakemerge.errors import InputError
from lakemerge.events import observed
from lakemerge.feed.changes import read_changes
from lakemerge.feed.consumers import Consumers
from lakemerge.feed.follow import Following, follow
from lakemerge.format.feed_offset import Offset
from lakemerge.format.ingests import check_job_name
from lakemerge.format.savepoint import Savepoint, savepoints_of
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version, guarded, unless_replaced, unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.provenance.explanation import Explanation
from lakemerge.python_values import python_rows
from lakemerge.read.failed_keys import OnFailedKeys, find_failed_keys, on_failed_keys
from lakemerge.read.lookup import footers_ahead, look_up
from lakemerge.read.scan import ReadMode, in_mode, read_arrow, scan
from lakemerge.results.compactions import (
    CompactionPlan,
    CompactionResult,
    CompactionStrategy,
    LogCompactionResult,
    Order,
    RescaleResult,
)
from lakemerge.results.conversion import ConversionPlan, ConversionResult, UnconversionResult
from lakemerge.results.findings import CheckResult, FailedKeys
from lakemerge.results.forgetting import ForgetResult
from lakemerge.results.maintenance import CopyResult, ExpiryResult, MaintenanceResult, VacuumResult
from lakemerge.results.writes import RestoreResult, TransactionPlan, UpsertResult
from lakemerge.storage import open_store
from lakemerge.table.alter import SchemaChange, alter
from lakemerge.table.create import IfExists, create_table
from lakemerge.table.describe import BucketInfo, ReadPlan, TableDetail, buckets_of, detail_of, html_of, plan_of
from lakemerge.table.drop import drop_table, table_exists
from lakemerge.table.gauges import TableGauges, gauges_of
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import open_handle, open_table
from lakemerge.table.session import TableSession
from lakemerge.transactions.attempts import RETRIES
from lakemerge.transactions.builder import MergeBuilder
from lakemerge.transactions.changing import TransactionOptions, aliases_of, delete_where, merge_into, update_where
from lakemerge.transactions.clauses import Clause, MergeCall
from lakemerge.write.overwrite import OverwriteRequest
from lakemerge.write.start import WriteRequest
from mergers import Merger
from mergers.logs import logger
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakemerge.ingest import Archive, Bins, Files, Fragments, IngestJob
    from lakemerge.provenance.lineage import Lineage
    from lakemerge.provenance.replay import ReplayResult
    from lakemerge.provenance.verification import MergerVerification
    from lakemerge.provenance.what_if import WhatIf

__all__ = ["LakeTable"]

_logger = logger(__name__)


class LakeTable:
    """A LakeMerge table. Make one with :meth:`create` or :meth:`open`.

    A table that is opened without a version follows the latest one: each call first looks for newer commits.
    A table that is opened at a version, timestamp or savepoint stays there, and is read-only.

    ::

        make      create, open, exists, drop, convert, unconvert
        write     upsert, delete, update_where, delete_where, merge, overwrite, ingest, write_stream, batch_writer
        read      to_arrow, scan, get, query, to_df, create_temp_view, register, explain_read,
                  failed_keys
        follow    changes, changes_df, follow, consumers
        ask why   explain, lineage, what_if, verify_merger, replay
        note      record_send, associate
        look at   version, schema, key, ordering, bucket_count, url, detail, buckets, gauges, history
        redefine  alter, rescale
        maintain  maintain, compact, compact_logs, vacuum, expire_tombstones, copy_to, check
        erase     forget
        go back   savepoint, savepoints, drop_savepoint, restore
    """

    def __init__(self, handle: Handle, snapshot: Snapshot, *, pinned: bool, spark: SparkSession | None) -> None:
        self._open = OpenTable(handle, snapshot, pinned=pinned, session=TableSession(spark))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self)._of, (self._open,)

    @classmethod
    def _of(cls, opened: OpenTable) -> LakeTable:
        table = cls.__new__(cls)
        table._open = opened
        return table

    # Making and opening a table

    @classmethod
    @checked
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
        replace: bool = False,
        if_exists: IfExists = "error",
    ) -> LakeTable:
        """Create an empty table.

        :param schema: a Spark ``StructType``, a Spark DDL string or a ``pa.Schema``.
        :param key: the columns that identify a row. They are never null.
        :param ordering: the columns that say which of two records is newer. They are compared as a tuple.
        :param merger: a registered name, a strategy UUID or an instance. The default is ``event-time``
            with ``ordering`` and ``commit-time`` without. The class of an instance is used for this object, as if it
            were in ``mergers``. Whatever opens the table later must be given it.
        :param options: the merger's options.
        :param partition_by: key columns whose values split the table. Others are refused: a record goes to the
            partition of its key without a look at what is there.
        :param buckets: buckets per partition, a power of two. By default the first load chooses.
        :param properties: Delta table properties, such as ``delta.checkpointInterval``.
        :param mergers: merger classes that can be used in addition to the registered ones.
        :param replace: if there is a LakeMerge table at the path, replace it: one commit in its log gives it this
            definition and no rows. Earlier versions stay readable until vacuum takes them. Writes that began before
            cannot land after it, and other objects of the old table raise :class:`TableReplacedError`
            (docs/guides/schema.md, "Replace a table"). Do not remove the folder instead: what still runs then would
            mix with the new table.
        :param if_exists: ``open`` opens the table that is at the path already, if it has this definition. The bucket
            count counts only if it is given and the table has one, and a property only if it is given. Of several
            processes that make the table at once, one does, and the others open it.
        :raises lakemerge.SchemaError: columns or buckets cannot be used. The error lists every problem.
        :raises lakemerge.MergerConfigurationError: the merger's options are not valid.
        :raises lakemerge.MergerMissingError: no such merger is registered.
        :raises lakemerge.TableExistsError: there is already a table at the path; with ``replace``, a plain Delta table;
            with ``if_exists="open"``, one with another definition. The error lists every difference.
        """
        handle = open_handle(path, storage_options, mergers, settings).knowing(merger)
        session = prepared(spark)
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
            replace=replace,
            if_exists=if_exists,
        )
        return cls(handle, snapshot, pinned=False, spark=session)

    @classmethod
    @checked
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

        :param timestamp: opens the last version that was committed at or before this time: a datetime with a zone,
            or an ISO 8601 string (UTC if it names no zone). The time must not be after the last commit.
        :param savepoint: opens the version that :meth:`savepoint` gave this name.
        :raises lakemerge.NotATableError: there is nothing at the path, or a plain Delta table.
        :raises lakemerge.VersionNotFoundError: the version is not in the table's history, or its files were vacuumed.
        """
        opened = open_table(
            path,
            version=version,
            timestamp=timestamp,
            savepoint=savepoint,
            storage_options=storage_options,
            mergers=mergers,
            settings=settings,
            spark=prepared(spark),
        )
        return cls._of(opened)

    @staticmethod
    @checked
    def exists(path: str | os.PathLike[str], *, storage_options: Mapping[str, object] | None = None) -> bool:
        """Whether there is a LakeMerge table at the path. A plain Delta table is none.

        :raises lakemerge.TableDamagedError: there is one, and it cannot be read.
        """
        return table_exists(open_handle(path, storage_options, (), None))

    @staticmethod
    @checked
    def drop(path: str | os.PathLike[str], *, storage_options: Mapping[str, object] | None = None) -> bool:
        """Drop a table: all its versions and files. Returns whether there was one.

        First a commit ends the table, and everything that began before fails with :class:`TableReplacedError`. Then its
        files are deleted, the log last. If that is interrupted, call it again. A writer that sent its commit before,
        and whose store answers only after all of that, can leave a file behind, which :meth:`check` reports.

        :raises lakemerge.InputError: the table has savepoints. Drop them first.
        :raises lakemerge.NotATableError: it is a plain Delta table, which is never dropped.
        """
        return drop_table(open_handle(path, storage_options, (), None))

    @staticmethod
    @checked
    def convert(
        path: str | os.PathLike[str],
        *,
        key: Sequence[str],
        ordering: Sequence[str] = (),
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        partition_by: Sequence[str] | None = None,
        buckets: int | None = None,
        exclusive: bool = False,
        dry_run: bool = False,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
        spark: SparkSession | None = None,
    ) -> ConversionResult | ConversionPlan:
        """Make a plain Delta table a LakeMerge table, in place (docs/guides/bring-a-delta-table.md). One commit
        replaces its files by base files. Its rows, its id, its history for other engines and its properties stay.

        If it is interrupted, call it again: it goes on where it was, and after the commit it only cleans up. Vacuum
        deletes the former files after the retention. LakeMerge reads no version before the commit.

        :param key: as for :meth:`create`. Each row needs a key.
        :param ordering: as for :meth:`create`. Of several rows of a key the one with the highest ordering stays.
            Without an ordering such rows are refused.
        :param partition_by: key columns whose values split the table. By default those of its partition columns that
            are key columns; the others become columns like all others.
        :param exclusive: say that nobody else writes the table meanwhile. In an object store it has to be said, because
            other writers cannot be detected there. On a local disk a writer that commits meanwhile ends the
            conversion.
        :param dry_run: write nothing; say what it costs, and which keys are null or repeated.
        :param spark: a session whose tasks do the work. By default this process does it.
        :raises lakemerge.UnsupportedFeatureError: the table uses what would get lost. The error lists all of it.
        :raises lakemerge.FrameError: a key is null, or repeated without an ordering. Nothing was changed.
        :raises lakemerge.CommitConflictError: another writer has committed meanwhile. Nothing was changed.
        :raises lakemerge.NotATableError: there is no Delta table at the path.
        """
        from lakemerge.convert.converting import ConvertRequest, convert_table

        handle = open_handle(path, storage_options, mergers, settings).knowing(merger)
        session = prepared(spark)
        engine = None
        if session is not None:
            from lakemerge.convert.spark import OnSpark

            engine = OnSpark(session)
        request = ConvertRequest(
            key=key,
            ordering=ordering,
            merger=merger,
            options=options,
            partition_by=partition_by,
            buckets=buckets,
            exclusive=exclusive,
        )
        return convert_table(handle, request, dry_run=dry_run, engine=engine)

    @staticmethod
    @checked
    def check(
        path: str | os.PathLike[str],
        *,
        repair: bool = False,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
    ) -> CheckResult:
        """Verify the latest version of a table, even if the table cannot be opened. Changes no rows.

        The check verifies the log and the checkpoints, that files exist and have the right size, that rows are sorted,
        unique and in the right place, that text is UTF-8, that statistics are true, and that logs can be merged. It
        reads the key columns and the columns with text or decimals of all files. Where there are logs or winner files,
        it reads all columns. It goes on after a file that is damaged or cannot be read, and lists all of them. If the
        latest version cannot be read, it checks the newest one below the damage.

        :param repair: repair what can be repaired from what is there, and check again: damaged checkpoints are written
            again from older files of the log, or deleted where a newer one stands in for them. Files that no version
            names, of another engine or of an earlier table, are deleted. Rows are never changed.
        :raises lakemerge.NotATableError: there is nothing at the path, or a plain Delta table.
        """
        from lakemerge.check.check import check_table

        handle = open_handle(path, storage_options, mergers, settings)
        return check_table(handle, repair=repair)

    # What a table is

    @property
    def version(self) -> int:
        """The version that reads show."""
        return self._open.view.version

    @property
    def schema(self) -> pa.Schema:
        """The columns in the table's order. Key columns are not nullable."""
        return self._open.view.config.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self._open.standing.config.key

    @property
    def ordering(self) -> tuple[str, ...]:
        """The columns that say which of two records is newer. Empty if the order of commits decides."""
        return self._open.standing.config.ordering

    @property
    def bucket_count(self) -> int | None:
        """How many buckets each partition has. ``None`` until the first write chooses the number."""
        return self._open.view.config.buckets

    @property
    def url(self) -> str:
        """Where the table is."""
        return self._open.url

    def detail(self) -> TableDetail:
        """An overview of the version: its definition, sizes, live logs, read amplification, and what maintenance
        would do after a write now."""
        from compaction import told

        view = self._open.view
        return detail_of(self._open.handle, view, maintenance=told(view, on_spark=self._open.session.is_given))

    def gauges(self) -> TableGauges:
        """The version's numbers for a scraper. Only metadata is read. Its text is in OpenMetrics' format, as
        ``lakemerge metrics`` prints it."""
        consumers = {each.name: each.version for each in self._open.consumers.list()}
        return gauges_of(self._open.handle, self._open.view, consumers)

    def buckets(self) -> list[BucketInfo]:
        """What each bucket holds, and what reading it costs now."""
        return buckets_of(self._open.view)

    def __repr__(self) -> str:
        config = self._open.standing.config
        return (
            f"LakeTable({self.url!r}, version={self._open.standing.version}, key={list(config.key)}, "
            f"merger={config.merger_name!r}, buckets={config.buckets})"
        )

    def _repr_html_(self) -> str:
        return html_of(self.detail())

    # Writing

    @observed
    @checked
    def upsert(
        self,
        frame: object,
        *,
        kind_column: str | None = None,
        before: Mapping[str, str] | None = None,
        merge_schema: bool = False,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
    ) -> UpsertResult:
        """Write records in one commit. Base files are not read, and rows are not shuffled.

        :param frame: a Spark DataFrame, or a pyarrow, pandas or polars frame (a lazy frame is collected). It has
            all key columns and any others. A column that it lacks is unset, which is not the same as null. A field
            that a struct lacks is null. Numbers may have other types than the table's, if each value has an equal
            one in the table's type.
        :param kind_column: the column that holds each row's kind: ``+I``, ``+U``, ``-U``, ``-D``, or the words of
            change feeds, ``insert``, ``update_preimage``, ``update_postimage``, ``delete``. It is not stored.
            Without it every row is an upsert.
        :param before: for rows whose partition changes: partition column -> the frame's column with its value in the
            row before (null: there was none, or it is the same). Where the two differ, the key in the old partition
            gets a delete with the record's ordering, in the same commit. These columns are not stored.
        :param merge_schema: if the frame has columns or struct fields that the table lacks, add them to the end of
            the table's schema, as nullable ones, in the same commit. Without this, such a frame is refused.
        :param txn: ``(application id, number)``. The write changes nothing if its number is not above the last one
            committed for that application. Ids that begin with ``lakemerge.`` are reserved for the library.
        :param info: additional entries of ``commitInfo``, such as source files and job names.
        :raises lakemerge.FrameError: the frame does not fit the table. Nothing was committed.
        :raises lakemerge.CommitConflictError: the definition changed meanwhile, for example by a column of the
            same name and another type. Nothing was committed.
        :raises lakemerge.OutcomeUnknownError: the store did not say whether the commit landed.
        """
        request = WriteRequest(
            kind_column=kind_column, txn=txn, info=caller_info(info), merge_schema=merge_schema, before=before or {}
        )
        return self._write(frame, request)

    @observed
    @checked
    def delete(
        self, keys: object, *, txn: tuple[str, int] | None = None, info: Mapping[str, object] | None = None
    ) -> UpsertResult:
        """Write a ``-D`` record for each key. ``event-time``, ``commit-time`` and ``remove_record_on_delete``
        remove the row. Other mergers may retract it, ignore the delete or refuse it (docs/merge-semantics.md,
        section 5).

        :param keys: a frame as for :meth:`upsert`. If it has all ordering columns, a delete applies only
            where it is newer than the row. If it has none of them, the delete always applies.
        """
        return self._write(keys, WriteRequest(deletes=True, txn=txn, info=caller_info(info)))

    @overload
    def delete_where(
        self,
        condition: str | Column,
        *,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        explain: Literal[False] = False,
    ) -> UpsertResult: ...

    @overload
    def delete_where(
        self,
        condition: str | Column,
        *,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        explain: Literal[True],
    ) -> TransactionPlan: ...

    @observed
    @checked
    def delete_where(
        self,
        condition: str | Column,
        *,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        explain: bool = False,
    ) -> UpsertResult | TransactionPlan:
        """Delete the rows that meet a condition, whatever the table's merger, as a transaction.

        Where ordering decides, a deleted key remembers the ordering of its row: a later record that is older does not
        bring the row back, a newer one does. For parameters and errors see :meth:`update_where`.
        """
        options = TransactionOptions(
            txn=txn, info=caller_info(info), retries=retries, isolation=isolation, explain=explain
        )
        return self._transact(
            lambda begin: delete_where(self._open.handle, begin, condition, options, self._open.services_session),
            explain,
        )

    @overload
    def update_where(
        self,
        condition: str | Column,
        set: Mapping[str, object],
        *,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        explain: Literal[False] = False,
    ) -> UpsertResult: ...

    @overload
    def update_where(
        self,
        condition: str | Column,
        set: Mapping[str, object],
        *,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        explain: Literal[True],
    ) -> TransactionPlan: ...

    @observed
    @checked
    def update_where(
        self,
        condition: str | Column,
        set: Mapping[str, object],  # noqa: A002 - as in Delta
        *,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        explain: bool = False,
    ) -> UpsertResult | TransactionPlan:
        """Set columns of the rows that meet a condition, whatever the table's merger, as a transaction.

        The rows are read at one version. If another writer commits one of their keys meanwhile, all of it runs again
        on the newer version; upserts of other keys do not disturb it. What is upserted later is merged with the rows
        that the update left (docs/merge-semantics.md, section 11). Times without a zone are in the session's zone if
        the table was opened with a session, else in UTC.

        :param condition: the rows, as SQL; ``"true"`` for all. On Spark, a ``Column``, too.
        :param set: column -> its new value. Text is a SQL expression over the row, such as ``"price * 2"``; put
            quotes into it for a text, as ``"'new'"``. On Spark, a ``Column`` is an expression, too. Any other value is
            the value itself. Key and partition columns cannot be set.
        :param txn: see :meth:`upsert`.
        :param info: additional entries of ``commitInfo``.
        :param retries: how often it runs again after a conflict.
        :param isolation: with ``"serializable"`` any record that is committed meanwhile is a conflict.
        :param explain: only say what it would do. All checks are made, and nothing is written.
        :raises lakemerge.FilterError: the condition or an expression is not understood, or cannot be computed for a
            row's values.
        :raises lakemerge.FrameError: a column cannot be set, or a value does not fit its column.
        :raises lakemerge.CommitConflictError: other writers kept changing the same keys, or a vacuum deleted files
            that were being read. Nothing was written.
        """
        options = TransactionOptions(
            txn=txn, info=caller_info(info), retries=retries, isolation=isolation, explain=explain
        )
        return self._transact(
            lambda begin: update_where(self._open.handle, begin, condition, set, options, self._open.services_session),
            explain,
        )

    @checked
    def merge(
        self,
        source: object,
        on: str,
        *,
        target_alias: str = "target",
        source_alias: str | None = None,
        merge_schema: bool = False,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
        retries: int = RETRIES,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> MergeBuilder:
        """Begin a merge of a source into the table, as a transaction, whatever the table's merger. Add clauses with
        ``whenMatchedUpdate`` and so on, and then call ``execute``.

        :param source: a frame as for :meth:`upsert`. A Spark DataFrame is computed once, and kept in Spark's local
            storage until the merge is done with it. Rows of the table that are merged with it do not pass the driver.
        :param on: SQL that finds the source rows of a row, such as ``"target.id = source.id"``. It compares the whole
            key, and may have further conditions.
        :param target_alias: the name of the table's row in conditions and values.
        :param source_alias: the name of the source's row. By default ``source``, or the alias of a Spark DataFrame
            (``frame.alias("s")``) if ``on`` uses it.
        :param merge_schema: add columns that only the source has, as :meth:`MergeBuilder.withSchemaEvolution` does.

        For the other parameters see :meth:`update_where`.
        """

        def run(clauses: Sequence[Clause], evolves: bool, explain: bool) -> UpsertResult | TransactionPlan:
            options = TransactionOptions(
                txn=txn, info=caller_info(info), retries=retries, isolation=isolation, explain=explain
            )
            aliases = aliases_of(source, on, target_alias, source_alias)
            call = MergeCall(on=on, clauses=clauses, aliases=aliases, evolves=evolves)
            return self._transact(lambda begin: merge_into(self._open.handle, begin, source, call, options), explain)

        return MergeBuilder(self.url, run, evolves=merge_schema)

    @observed
    @checked
    def overwrite(
        self,
        frame: Any,
        where: str | None = None,
        *,
        partition_mode: Literal["static", "dynamic"] = "static",
        merge_schema: bool = False,
        txn: tuple[str, int] | None = None,
        info: Mapping[str, object] | None = None,
    ) -> UpsertResult:
        """Put the rows of a frame in the place of everything that the table has, or that some of its partitions have.

        Rows, remembered deletes and orderings there are forgotten: the new rows stand whatever their ordering, and no
        merger is called for them (docs/merge-semantics.md, section 12). What another writer commits before the
        overwrite lands is overwritten, too; what lands after it is newer.

        :param frame: as for :meth:`upsert`. It has one row of each key. Columns that it lacks are null.
        :param where: a SQL condition on partition columns: only the partitions for which it holds are overwritten. The
            frame has no rows of others. Times without a zone are in UTC; with a Spark frame they are refused.
        :param partition_mode: ``"dynamic"`` overwrites only the partitions that the frame has rows of. A table without
            partitions is overwritten as a whole all the same.
        :param merge_schema: see :meth:`upsert`.
        :param txn: see :meth:`upsert`.
        :param info: additional entries of ``commitInfo``.
        :raises lakemerge.FrameError: the frame does not fit the table, has a key twice, or rows outside of ``where``.
            Nothing was committed.
        :raises lakemerge.FilterError: ``where`` is not understood, or reads columns that are no partition columns.
        :raises lakemerge.CommitConflictError: the definition or the number of buckets changed meanwhile. No row was
            written.
        :raises lakemerge.OutcomeUnknownError: the store did not say whether the commit landed.
        """
        request = OverwriteRequest(
            where=where, partition_mode=partition_mode, merge_schema=merge_schema, txn=txn, info=caller_info(info)
        )
        from compaction import maintain_after_write

        result = self._open.overwrite(frame, request)
        maintain_after_write(self._open, result.version)
        return result

    def _transact(
        self, run: Callable[[TableView], UpsertResult | TransactionPlan], explain: bool
    ) -> UpsertResult | TransactionPlan:
        from compaction import maintain_after_write, make_room

        if not explain:
            make_room(self._open)
        result = run(self._open.writable())
        if not explain:
            self._open.follow()
            maintain_after_write(self._open, result.version)
        return result

    @checked
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
        """A job that loads files into the table, each record exactly once (docs/guides/ingest.md). Nothing is listed or
        read before :meth:`lakemerge.ingest.IngestJob.run`.

        :param name: the name of the job. The table keeps under this name what the job did.
        :param source: where the files are. Without it, the job can only be inspected, retried or reset.
        :param bins: how files are gathered until they are worth a commit. By default they are not gathered.
        :param fragments: sets of files that belong together. Used instead of ``bins``.
        :param kind_column: the column of the files that holds each record's kind, as for :meth:`LakeTable.upsert`.
        :param envelope: the envelope format of the records.
        :param bad_records: whether a record that cannot be loaded makes its window fail, or is quarantined.
        :param max_bad_records: how many records of a window may be quarantined. ``None``: any number.
        :param rescued_column: a STRING column for values that no column of the table can take, as JSON.
        :param merge_schema: add columns that only the files have, as for :meth:`LakeTable.upsert`.
        :param blocks_per_window: at most this many blocks are committed at once.
        :param bytes_per_window: at most this many bytes of files are committed at once.
        :param after: what happens to files once they are in the table.
        :param max_read_amplification: above this, maintenance runs before the next window.
        :raises lakemerge.InputError: the settings contradict each other. The error lists every problem.
        """
        from lakemerge.ingest.job import IngestJob
        from lakemerge.ingest.settings import JobSettings

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
        return IngestJob(self._open, check_job_name(name), settings)

    @checked
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
        """Start a query that upserts a streaming DataFrame, each micro-batch exactly once.

        The table knows what a query wrote by the query's id, which is kept in the checkpoint. A query with a new
        checkpoint is a new query: it writes everything that its source gives it.

        :param checkpoint: folder or URL of the query's checkpoint.
        :param kind_column: as for :meth:`LakeTable.upsert`. Delta's words (``insert``, ``update_preimage``, ...) are
            accepted, too.
        :param trigger: keywords of Spark's ``DataStreamWriter.trigger``. The default is ``{"availableNow": True}``.
        :param output_mode: ``update``, ``append`` or ``complete``. Rows that leave a complete result are not deleted.
        :raises lakemerge.InputError: the frame is not a stream, or it is of Spark Connect, where :meth:`batch_writer`
            is needed.
        """
        from lakemerge.datasource.stream_write import start_stream

        self._open.writable()
        chosen = {"availableNow": True} if trigger is None else dict(trigger)
        writer = self.batch_writer(kind_column=kind_column, merge_schema=merge_schema)
        return start_stream(
            frame, writer, checkpoint=checkpoint, trigger=chosen, output_mode=output_mode, query_name=query_name
        )

    @checked
    def batch_writer(
        self, app: str | None = None, *, kind_column: str | None = None, merge_schema: bool = False
    ) -> Callable[[DataFrame, int], None]:
        """A function for ``foreachBatch`` of your own stream. It upserts each micro-batch exactly once.

        :param app: a name that no other query that writes to the table has. Keep it as long as the checkpoint. The
            default is the query's id, which is not available in Spark Connect.
        :param kind_column: as for :meth:`write_stream`.
        :param merge_schema: as for :meth:`upsert`. The frames of two batches may have different columns.
        """
        from lakemerge.datasource.stream_write import BatchWriter

        self._open.writable()
        return BatchWriter(self._open, self.upsert, app, kind_column=kind_column, merge_schema=merge_schema)

    # Reading

    @observed
    @checked
    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | pc.Expression | None = None,
        mode: ReadMode = "merged",
        failed_keys: OnFailedKeys = "raise",
    ) -> pa.Table:
        """The rows as an Arrow table, in no particular order.

        :param columns: the columns to read, in this order.
        :param filter: SQL, which means what it means in Spark, or an Arrow expression, which means what it means in
            Arrow. docs/guides/filters.md lists the SQL that is supported. Times without a zone are UTC.
        :param mode: ``base`` reads only base files, without a merge. This is the table as other Delta readers see it:
            each bucket as its last full compaction left it.
        :param failed_keys: what happens if the merge of a key fails, for example because its total does not fit the
            column. ``raise`` raises an error that names the key. ``skip`` leaves such keys out, with a warning in the
            log. :meth:`failed_keys` lists them.
        """
        view, handle = in_mode(self._open.view, mode), on_failed_keys(self._open.handle, failed_keys)
        with unless_replaced(self._open.handle.log, view.snapshot):
            return read_arrow(handle, view, columns=columns, filter=filter)

    @checked
    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | pc.Expression | None = None,
        mode: ReadMode = "merged",
        failed_keys: OnFailedKeys = "raise",
    ) -> pa.RecordBatchReader:
        """The same as :meth:`to_arrow`, as a stream. ``Settings.merge_budget_bytes`` limits its memory."""
        view, handle = in_mode(self._open.view, mode), on_failed_keys(self._open.handle, failed_keys)
        return guarded(scan(handle, view, columns=columns, filter=filter), self._open.handle.log, view.snapshot)

    @overload
    def get(
        self, key: Mapping[str, object], *, columns: Sequence[str] | None = None, failed_keys: OnFailedKeys = "raise"
    ) -> dict[str, Any] | None: ...

    @overload
    def get(
        self, key: object, *, columns: Sequence[str] | None = None, failed_keys: OnFailedKeys = "raise"
    ) -> pa.Table: ...

    @observed
    @checked
    def get(
        self, key: object, *, columns: Sequence[str] | None = None, failed_keys: OnFailedKeys = "raise"
    ) -> dict[str, Any] | pa.Table | None:
        """Look up one key or many. For each key one bucket is read, and only row groups that can hold the key.

        :param key: one key such as ``{"id": 7}`` returns the row as a dictionary of Python values, or ``None``. What
            Python lacks, such as days after the year 9999, is text, as Spark shows it. A list of such mappings, or a
            pyarrow, pandas or polars frame of the key columns, returns an Arrow table of the rows that exist, in no
            particular order.
        :param columns: as for :meth:`to_arrow`.
        :param failed_keys: as for :meth:`to_arrow`.
        :raises lakemerge.FrameError: the keys do not fit the table's key columns.
        """
        one = isinstance(key, Mapping)
        keys = [key] if one else key
        with footers_ahead(self._open.handle, self._open.standing, keys):
            view, handle = self._open.view, on_failed_keys(self._open.handle, failed_keys)
        with unless_replaced(self._open.handle.log, view.snapshot):
            rows = look_up(handle, view, keys, columns)
        return next(iter(python_rows(rows)), None) if one else rows

    @observed
    @checked
    def query(self, sql: str, *, sandbox: bool = False, failed_keys: OnFailedKeys = "raise") -> pa.Table:
        """Run a SQL query with DuckDB (``lakemerge[query]``). In the query the table is called ``self``:
        ``table.query("SELECT state, count(*) FROM self GROUP BY state")``.

        Only the columns that the query names are read, and only files that can hold rows that meet its conditions.
        The SQL is DuckDB's. Times without a zone are UTC. ``COPY ... TO 'file'`` writes a file, and gives no rows.

        :param sandbox: for SQL from outside. A query is then one ``SELECT`` over the table. It can read and write no
            files, load no extensions, change no settings and see no variables. ``Settings.sandbox_memory_bytes`` and
            ``Settings.threads`` bound what DuckDB takes. Its time is not bounded.
        :param failed_keys: as for :meth:`to_arrow`.
        :raises lakemerge.DependencyMissingError: DuckDB is not installed.
        :raises lakemerge.InputError: DuckDB cannot answer the query, or the sandbox refuses it; the message says why.
        """
        from lakemerge.read.query import query

        view, handle = self._open.view, on_failed_keys(self._open.handle, failed_keys)
        with unless_replaced(self._open.handle.log, view.snapshot):
            return query(handle, view, sql, sandbox=sandbox)

    @observed
    @checked
    def to_df(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | Column | None = None,
        mode: ReadMode = "merged",
        failed_keys: OnFailedKeys = "raise",
    ) -> DataFrame:
        """The rows of this version as a Spark DataFrame. If a task cannot merge its rows, Spark's action fails with
        a ``PythonException`` that holds LakeMerge's error; :func:`lakemerge.unwrap_errors` raises the error itself.

        Spark's own Parquet reader reads stored rows, if it can reach the store, without those that logs supersede. If
        the merger picks records, or if the logs are small compared with their files, this call merges the logs, in a
        job if they are many, and keeps the result for later reads of the version. All other buckets go through the
        merge kernel. :meth:`explain_read` says which.

        :param filter: a SQL condition, which also prunes files, or a Spark Column. Times without a zone
            are in the session's zone.
        :param mode: as for :meth:`to_arrow`.
        :param failed_keys: as for :meth:`to_arrow`. Warnings are in the logs of Spark's workers.
        """
        spark = self._open.session.of_dataframes()
        from lakemerge.spark.reader import read_dataframe

        view, handle = in_mode(self._open.view, mode), on_failed_keys(self._open.handle, failed_keys)
        may_name = mode == "merged" and failed_keys == "raise"
        return read_dataframe(spark, handle, view, columns=columns, filter=filter, may_name=may_name)

    @checked
    def create_temp_view(
        self, name: str, *, columns: Sequence[str] | None = None, failed_keys: OnFailedKeys = "raise"
    ) -> None:
        """Make this version available to Spark SQL under a name."""
        self.to_df(columns=columns, failed_keys=failed_keys).createOrReplaceTempView(name)

    @checked
    def register(self, spark: SparkSession, name: str) -> None:
        """Make an entry in Spark's catalog by which all engines of it read the table as a Delta table:
        ``CREATE TABLE ... USING delta LOCATION``. They see the read-optimised view, as of the last compaction or
        publication (docs/guides/other-engines.md). No commit is made. The entry follows the table by itself; call this
        again after columns changed, for those who read the columns that the metastore keeps.

        :param name: the entry, such as ``db.orders``.
        :raises lakemerge.InputError: the catalog is none of Delta's, or has another table of that name. In the first
            case the error has the statement to run elsewhere.
        """
        from lakemerge.spark.registering import register_as_delta

        register_as_delta(spark, self._open.handle, name)

    @observed
    @checked
    def failed_keys(self, *, filter: str | pc.Expression | None = None) -> FailedKeys:
        """The keys whose merge fails, with their records: a total that does not fit its column, a value that cannot be
        merged, null in a NOT NULL column, or a merger of yours that breaks its contract. Empty if all rows can be
        read. Only files that have logs are read, with all columns.

        :param filter: as for :meth:`to_arrow`; only files that may hold rows that meet it are looked at.
        """
        view = self._open.view
        with unless_replaced(self._open.handle.log, view.snapshot):
            return find_failed_keys(self._open.handle, view, filter)

    @checked
    def explain_read(
        self, *, columns: Sequence[str] | None = None, filter: str | pc.Expression | None = None
    ) -> ReadPlan:
        """How a read with these arguments would be done now, and why: which parts are pruned, read as they are, or
        merged."""
        return plan_of(self._open.handle, self._open.view, columns, filter, self._open.session.if_active())

    # Following what changed

    @checked
    def changes(
        self,
        since: int,
        until: int | None = None,
        *,
        net: bool = False,
        before_images: bool = True,
        failed_keys: OnFailedKeys = "raise",
    ) -> pa.RecordBatchReader:
        """What each commit after version ``since`` changed in the rows, up to ``until`` (by default the
        version that reads show). The result has the table's columns, ``_row_kind``, ``_commit_version`` and
        ``_commit_timestamp``.

        A new row comes as ``+I``. A deleted row comes as ``-D``, with its last values. A changed row comes twice: as
        ``-U`` with the old values and as ``+U`` with the new ones. Compactions and records that changed nothing do not
        appear. Commits come in order. Within a commit, the rows of a bucket are sorted by key. If a commit is a
        restore, the feed has the columns of all its versions, in their widest types (docs/guides/retention.md,
        "Restore").

        :param net: return each key once, with the difference between its row at ``since`` and its row at ``until``.
        :param before_images: whether the old values of a changed row are returned, too.
        :param failed_keys: as for :meth:`to_arrow`. A key that is left out has no row in that version: it comes as
            ``-D``, and as ``+I`` once its merge succeeds.
        :raises lakemerge.VersionNotFoundError: a version is not in the table's history.
        """
        end, handle = self._open.until(until), on_failed_keys(self._open.handle, failed_keys)
        reader = read_changes(handle, end, since, net=net, before_images=before_images)
        return guarded(reader, self._open.handle.log, end.snapshot)

    @checked
    def changes_df(
        self,
        since: int,
        until: int | None = None,
        *,
        net: bool = False,
        before_images: bool = True,
        failed_keys: OnFailedKeys = "raise",
    ) -> DataFrame:
        """The same as :meth:`changes`, computed by Spark tasks and with Delta's and Spark's names: the kind is in
        ``_change_type`` (``insert``, ``update_preimage``, ``update_postimage`` or ``delete``)."""
        spark = self._open.session.of_dataframes()
        from lakemerge.spark.feed import changes_dataframe

        end, handle = self._open.until(until), on_failed_keys(self._open.handle, failed_keys)
        return changes_dataframe(spark, handle, end, since, net=net, before_images=before_images)

    @checked
    def follow(
        self,
        consumer: str | None = None,
        poll: str | float | None = "1s",
        *,
        since: int | None = None,
        until: int | None = None,
        max_rows: int | None = None,
        before_images: bool = True,
        failed_keys: OnFailedKeys = "raise",
    ) -> Iterator[pa.RecordBatch]:
        """The changes as they are committed, in batches with the columns of :meth:`changes`. Without a consumer and a
        version, the current rows come first, as ``+I``.

        When you ask for the next batch, you confirm that you are done with the one before. A consumer that is killed
        gets the changes of its last file slice again, and misses none. The batches of a version have the columns of
        that version.

        :param consumer: start at this consumer's position, and advance it. ``table.consumers.register`` makes one.
        :param poll: how long to wait if nothing is new, such as ``"500ms"``, ``"1s"``, or a number of seconds. With
            ``None`` the iterator ends instead.
        :param since: start after this version.
        :param until: the last version to return. The iterator ends after it.
        :param max_rows: a batch has at most this many rows.
        :param failed_keys: as for :meth:`changes`.
        :raises lakemerge.InputError: there is no such consumer.
        :raises lakemerge.VersionNotFoundError: a vacuum deleted what there was to read. The message says what to do.
        """
        how = Following.checked(
            consumer, poll, since=since, until=until, max_rows=max_rows, before_images=before_images
        )
        start, handle = self._begin(consumer, since), on_failed_keys(self._open.handle, failed_keys)
        return follow(handle, self._open.tip, self.consumers, start, how)

    @property
    def consumers(self) -> Consumers:
        """The consumers of the change feed. Vacuum keeps what they have yet to read (docs/streaming.md)."""
        return self._open.consumers

    # Who won and why

    @observed
    @checked
    def explain(self, key: Mapping[str, object], since: int | None = None) -> Explanation:
        """Every record of a key: where it came from, what it did to the row, and why.

        :param key: ``{"id": 7}``, as for :meth:`get`.
        :param since: show the records after this version; 0 shows them as far back as history goes. The default is
            the records since the key's files were last compacted.
        :raises lakemerge.FrameError: the key does not fit the table's key columns.
        :raises lakemerge.VersionNotFoundError: some records after ``since`` do not exist any more. The message
            says from which version on they do.
        """
        from lakemerge.provenance.explain import explain_key

        if not isinstance(key, Mapping):
            raise InputError(f"{argument('key')} must be a mapping such as {{'id': 7}}, not {key!r}")
        view = self._open.view
        with unless_replaced(self._open.handle.log, view.snapshot):
            return explain_key(self._open.handle, view, key, since)

    @observed
    @checked
    def lineage(
        self,
        version: int | None = None,
        *,
        key: Mapping[str, object] | None = None,
        kind: str | Sequence[str] | None = None,
        file: str | None = None,
        after: dt.datetime | str | None = None,
        before: dt.datetime | str | None = None,
        info: Mapping[str, object] | str | None = None,
    ) -> Lineage:
        """How the rows of a version, or of one key, came from source files to base files, and where they went, as
        events (docs/guides/provenance.md lists their kinds). An event is returned if it meets all conditions.

        :param version: the default is the version that reads show.
        :param key: only events that concern this key.
        :param kind: only events of this kind, such as ``SEND``, or of these kinds.
        :param file: only events of commits that name this file: a path, the end of one, or a pattern such as
            ``orders-*.csv``. Source files of ingest and of replayed tables, files of the table, and files in ``info``
            count.
        :param after: only events at or after this time, as for :meth:`open`.
        :param before: only events before this time.
        :param info: only events whose details have these entries, at any depth, or this text.
        :raises lakemerge.VersionNotFoundError: the version is not in the table's history.
        """
        from lakemerge.provenance.lineage import lineage_of
        from lakemerge.provenance.search import Search

        search = Search.checked(kind=kind, file=file, after=after, before=before, info=info)
        view = self._open.view
        with unless_replaced(self._open.handle.log, view.snapshot):
            return lineage_of(self._open.handle, view, version, key, search)

    @observed
    @checked
    def record_send(
        self,
        to: str,
        *,
        since: int | None = None,
        version: int | None = None,
        keys: object = None,
        info: Mapping[str, object] | None = None,
    ) -> int:
        """Note in the log that rows left the table by a way that it cannot see, such as an export of
        :meth:`to_arrow`. :meth:`lineage` tells of it as ``SEND``. What goes to a consumer of the change feed is
        noted by itself. Changes no row. Returns the version of the commit.

        :param to: who or what got them: a path, a URL or a name.
        :param since: the changes after this version were sent. By default all rows were.
        :param version: up to this version. The default is the latest.
        :param keys: only these keys were sent, as for :meth:`get`; up to 1,000.
        :param info: additional entries of ``commitInfo``.
        :raises lakemerge.InputError: there is no such version, or the keys are too many.
        """
        from lakemerge.provenance.notes import commit_sent

        view = self._open.writable()
        made = commit_sent(self._open.handle, view, to, since=since, version=version, keys=keys, info=caller_info(info))
        self._open.follow()
        return made

    @observed
    @checked
    def associate(
        self,
        uri: str,
        *,
        version: int | None = None,
        keys: object = None,
        info: Mapping[str, object] | None = None,
    ) -> int:
        """Note in the log what something in another system has to do with the table: a ticket, a run, a document.
        :meth:`lineage` tells of it as ``ADDINFO``. Changes no row. Returns the version of the commit.

        :param uri: the other system's name for it.
        :param version: it is about the records of this version. By default it is about the table.
        :param keys: it is about these keys, as for :meth:`get`; up to 1,000.
        :param info: additional entries of ``commitInfo``.
        :raises lakemerge.InputError: there is no such version, or the keys are too many.
        """
        from lakemerge.provenance.notes import commit_association

        view = self._open.writable()
        made = commit_association(self._open.handle, view, uri, version=version, keys=keys, info=caller_info(info))
        self._open.follow()
        return made

    @checked
    def what_if(
        self,
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        since: int | None = None,
    ) -> WhatIf:
        """What the rows would be if another merger or other options had merged the records. Nothing is written.

        :param merger: as for :meth:`create`. The default is the table's merger.
        :param options: the options of that merger. For the table's merger, they replace its present options.
        :param since: merge the records after this version, and those that were not compacted then, into the base files
            of that version. 0 goes as far back as history does. The default is the records that are not compacted now.
        :raises lakemerge.VersionNotFoundError: some records after ``since`` do not exist any more.
        :raises lakemerge.InputError: old deletes were forgotten in between. The message says where to begin.
        """
        from lakemerge.provenance.what_if import what_if

        view = self._open.view
        with unless_replaced(self._open.handle.log, view.snapshot):
            return what_if(self._open.handle, view, merger, options, since, self._open.session)

    @checked
    def verify_merger(
        self,
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        *,
        sample_keys: int = 10_000,
        since: int | None = 0,
        rounds: int = 3,
        seed: int = 0,
        require: Sequence[str] = (),
    ) -> MergerVerification:
        """Whether a merger keeps its laws on the table's own records. Nothing is written.

        The records of a sample of keys are delivered again: compacted on the way, read column by column, combined,
        twice, and late. Rows may differ only where the merger does not declare the law that says they do not. The
        result has the smallest history found for each law that does not hold.

        :param merger: as for :meth:`what_if`. The default is the table's merger.
        :param options: the options of that merger. For the table's merger, they replace its present options.
        :param sample_keys: the records of so many keys are taken, up to 64 of each.
        :param since: as for :meth:`what_if`: the records after this version. ``None``: those that are not compacted.
        :param rounds: how often the records are delivered in each way.
        :param seed: decides the sample and the deliveries. The same seed gives the same answer.
        :param require: laws that have to hold whether or not the merger declares them: ``associative``,
            ``commutative``, ``replay_safe``, ``selective``.
        :raises lakemerge.VersionNotFoundError: some records after ``since`` do not exist any more.
        """
        from lakemerge.provenance.verify import verify

        view = self._open.view
        with unless_replaced(self._open.handle.log, view.snapshot):
            return verify(
                self._open.handle,
                view,
                merger,
                options,
                since=since,
                sample_keys=sample_keys,
                rounds=rounds,
                seed=seed,
                require=require,
            )

    @observed
    @checked
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
        """Commit the records once more, in the order of their versions, into another table. If a replay is killed,
        the next call continues it. If a replay is repeated, it adds what was committed since. Each record lands once.

        :param into: path of the other table. If there is none, it is made with this table's columns, key, ordering,
            partitions, bucket count and merger, and without its name, description, properties and constraints.
        :param merger: the merger of a table that is made. The default is this table's merger.
        :param options: the options of that merger.
        :param transform: a function that gets the records of each commit as an Arrow table, with their kinds in
            ``_row_kind``, and returns the records to commit. The same input must always give the same output.
        :param since: begin with the rows of this version, and the records after it. By default, and with 0, the replay
            begins as far back as history goes.
        :param until: the last version to replay. The default is the version that reads show.
        :param where: a SQL condition on each record's own values. It is an error if a record lacks one of its columns.
        :param storage_options: the storage options of the other table. The default is none.
        :raises lakemerge.VersionNotFoundError: some records after ``since`` do not exist any more.
        :raises lakemerge.CommitConflictError: this table was restored to a version before some that were replayed.
        """
        from lakemerge.provenance.replay import Replay

        view = self._open.view
        with unless_replaced(self._open.handle.log, view.snapshot):
            replay = Replay(self._open.handle, view, transform=transform, since=since, until=until, where=where)
            return replay.into(into, merger=merger, options=options, storage_options=storage_options)

    # Changing the definition

    @observed
    @checked
    def alter(
        self,
        *,
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] | None = None,
        add_columns: str | pa.Schema | None = None,
        nullable: Sequence[str] | None = None,
        comments: Mapping[str, str | None] | None = None,
        order: Sequence[str] | None = None,
        widen: Mapping[str, str | pa.DataType] | None = None,
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        add_constraints: Mapping[str, str] | None = None,
        drop_constraints: Sequence[str] | None = None,
        properties: Mapping[str, str | None] | None = None,
        description: str | None = None,
    ) -> int:
        """Change the table's definition in one commit. Returns the version.

        No file is rewritten, and versions before the change can be read as before. A new merger or new options apply
        to records that are written from then on: they are merged into the rows as they are now. Key and ordering
        columns change only their names. If the table already has everything that is asked for, nothing is committed.
        The changes of columns are made in the order of the parameters: ``order`` may name a column that
        ``add_columns`` adds.
        Fields inside columns have dotted names as in Spark: ``address.zip``, ``points.element.x`` in lists,
        ``prices.value.net`` in maps. A name that has a dot itself goes into back quotes.

        :param rename_columns: new names of columns (``{"name": "title"}``). Key, ordering, partitions and options of
            the merger follow. The first such change, or the first dropped column, raises the table's Delta reader
            version to 3, with ``columnMapping``: readers that do not know it then refuse the table. A stream of changes
            stops there.
        :param drop_columns: columns that the table has no longer, by the names after ``rename_columns``. Files keep
            their values, for earlier versions. Columns of the key, the ordering or partitions, and those that options
            of the merger name, cannot be dropped.
        :param add_columns: nullable columns (DDL or ``pa.Schema``) for the end of the schema. Earlier records do
            not carry them. New fields of a struct (``"address.zip STRING"``, or the struct column with more
            fields) are null in everything that was written before.
        :param nullable: columns that are no longer NOT NULL. Key columns cannot be among them.
        :param comments: comments of columns. ``None`` removes a comment.
        :param order: the columns that come first, in this order. The others follow in their present order.
        :param widen: wider types of columns, fields, elements of lists or values of maps (``{"n": "BIGINT"}``), as
            Delta's type widening allows them. Key columns cannot be widened. The first such change raises the table's
            Delta reader version to 3: readers that do not know ``typeWidening`` then refuse the table.
        :param merger: as for :meth:`create`. Its options are those given with it, or else its defaults.
        :param options: without ``merger``, all options of the present merger.
        :param add_constraints: conditions in SQL by name (``{"positive": "amount > 0"}``) that every row meets; null
            does not meet one. All rows are read. From then on each upsert carries all columns of the condition. Only
            for mergers that take whole records (``Traits.whole_records``), since a write does not read the row that
            its record meets.
        :param drop_constraints: names of constraints to drop.
        :param properties: table properties to set, such as when services are due. ``None`` removes a property.
        :param description: a new description; an empty text removes it.
        :raises lakemerge.SchemaError: the columns cannot be changed that way.
        :raises lakemerge.CompactFirstError: the change concerns the merger, its options, or types that the merger
            computes in, and there are logs that are not compacted. Call :meth:`compact` first.
        :raises lakemerge.MergerConfigurationError: the options are not valid for the schema.
        :raises lakemerge.CommitConflictError: somebody else changed the definition meanwhile.
        """
        columns = SchemaChange(
            rename_columns=rename_columns,
            drop_columns=drop_columns,
            add_columns=add_columns,
            nullable=nullable,
            comments=comments,
            order=order,
            widen=widen,
        )
        return alter(
            self._open,
            columns,
            merger=merger,
            options=options,
            add_constraints=add_constraints,
            drop_constraints=drop_constraints,
            properties=properties,
            description=description,
        )

    # Earlier versions

    @checked
    def history(self, *, limit: int | None = None) -> list[HistoryEntry]:
        """What each commit did, newest first.

        :param limit: at most this many commits.
        """
        return self._open.history(limit=limit)

    @checked
    def savepoint(self, name: str, *, version: int | None = None, hold: bool = False) -> Savepoint:
        """Name a version, by default the latest. Vacuum keeps it readable until :meth:`drop_savepoint`.
        ``LakeTable.open(path, savepoint=name)`` opens it.

        :param hold: whether no file of the table may be deleted at all, as a law suit may ask for. Vacuum,
            :meth:`forget` and :meth:`drop` are refused until the hold is released. Maintenance leaves vacuum out.
        :raises lakemerge.InputError: the name is taken, or is not a valid name.
        :raises lakemerge.VersionNotFoundError: the version cannot be read, or not any more.
        """
        saved = save_version(self._open.handle, self._open.writable(), name, version, hold=hold)
        self._open.follow()
        return saved

    def savepoints(self) -> list[Savepoint]:
        """All present savepoints, oldest version first."""
        return list(savepoints_of(self._open.tip().snapshot).values())

    @checked
    def drop_savepoint(self, name: str, *, hold: bool = False) -> None:
        """Remove a savepoint. The next vacuum may delete the files that only the savepoint needed.

        :param hold: True releases a hold, too.
        :raises lakemerge.InputError: there is no such savepoint, or it is a hold.
        """
        drop_savepoint(self._open.handle, self._open.writable(), name, hold=hold)
        self._open.follow()

    @observed
    @checked
    def restore(
        self,
        *,
        version: int | None = None,
        timestamp: dt.datetime | str | None = None,
        savepoint: str | None = None,
    ) -> RestoreResult:
        """Return the table to an earlier version, by a new commit. The table gets that version's rows, with the logs
        that were live, and its definition (schema, merger, options, buckets). No file is rewritten, history is kept,
        and a restore can itself be undone by a restore.

        Application transactions, savepoints and table properties belong to the table, not to its rows, and stay as
        they are. So a stream continues where it was. Writes under way are refused when they commit.

        :param version: give exactly one of the three, as for :meth:`LakeTable.open`.
        :raises lakemerge.InputError: not exactly one is given, or it is the present version.
        :raises lakemerge.VersionNotFoundError: the version cannot be read, or not any more. Nothing was changed.
        :raises lakemerge.CommitConflictError: rows or the definition changed meanwhile, or a vacuum deleted files that
            were being read. Nothing was changed.
        """
        begin = self._open.writable()
        if version is None and timestamp is None and savepoint is None:
            raise InputError("restore needs a version, a timestamp or a savepoint")
        target = find_version(
            self._open.handle.log, version=version, timestamp=timestamp, savepoint=savepoint, tip=begin.snapshot
        )
        log = self._open.handle.log
        with unless_vacuumed(log, begin.snapshot), unless_vacuumed(log, target):
            result = restore_table(self._open.handle, begin, target)
        self._open.follow()
        return result

    # Services: each commits by itself, never blocks writers and never changes the result of a read

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
    @checked
    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
    ) -> CompactionResult | CompactionPlan:
        """Merge live logs into base files, all of them by default. Compaction never blocks writers and never
        changes the result of a read.

        A *minor* compaction leaves base files as they are, and writes the changed rows into files beside them. How much
        it writes depends on how much changed since the last one. Reads then need no merge. Other Delta readers see the
        changes only after a full compaction.

        Buckets are committed in groups (``Settings.target_commit_bytes``). If a run is killed, the groups that it
        committed stay, and the next run does the rest. A group that another compaction changed meanwhile is not
        committed. The result's ``lost`` names it, but no data is lost. If a total does not fit its column, that part
        of the table stays as it is. The result's ``skipped`` and a warning in the log name the key and the column.

        If the table was opened with a session, tasks of Spark do what reads more than ``Settings.driver_bytes``; with
        Spark Connect they do all. Else this process does it. The logger ``compaction`` reports progress at level INFO.

        :param strategy: which base files are due, and in which order. An order alone
            (``"read-amplification"``) takes all base files that have logs.
        :param where: a SQL condition over partition columns. Only partitions that meet it are compacted.
        :param max_bytes: end after about this many bytes were read and written, as estimated. The rest is left to
            the next run.
        :param dry_run: only make the plan: what would be merged, why, at what cost and for what gain.
        :raises lakemerge.FilterError: ``where`` names a column that the table is not partitioned by.
        :raises lakemerge.CommitConflictError: a vacuum deleted the version that was being compacted.
        """
        from compaction import compact_open, plan_compaction

        due = CompactionStrategy.of(strategy)
        if not dry_run:
            return compact_open(self._open, minor=minor, strategy=due, where=where, max_bytes=max_bytes)
        view, handle = self._open.writable(), self._open.handle
        with unless_vacuumed(handle.log, view.snapshot):
            # A dry run writes nothing, so it does not ask the store for the time.
            return plan_compaction(
                handle, view, minor=minor, strategy=due, where=where, max_bytes=max_bytes, clock=handle.now_ms
            )

    @observed
    @checked
    def compact_logs(self, *, size_ratio: float = 2.0) -> LogCompactionResult:
        """Merge the logs of many commits into few consolidated logs, without touching base files. Hundreds of
        small commits then stay cheap to read, at the price of rewriting their rows once.

        If the table's merger allows it (merge semantics, section 6), only the records that decide are kept.
        Otherwise all records are kept, in commit order. Log compaction never blocks writers and never changes the
        result of a read. Earlier versions still read the original logs.

        Where it runs: see :meth:`compact`.

        :param size_ratio: an older log joins the newer ones, unless it is larger than this many times all of
            them together. So a record is rewritten a logarithmic number of times over a table's life.
            ``math.inf`` merges all logs.
        :raises lakemerge.CommitConflictError: another compaction took some of these logs meanwhile, or a vacuum did.
        """
        from compaction import compact_logs

        view = self._open.writable()
        with unless_vacuumed(self._open.handle.log, view.snapshot):
            result = compact_logs(self._open.handle, view, size_ratio=size_ratio, spark=self._open.services_session)
        self._open.follow()
        return result

    @observed
    @checked
    def rescale(self, *, buckets: int) -> RescaleResult:
        """Change the number of buckets: more for a table that grew, fewer for a table that shrank. Readers and
        writers continue meanwhile, under the old count or the new one.

        Logs are not rewritten. Base files are rewritten bucket by bucket, in commits that also merge their logs.
        A larger table takes several commits, and every version in between is correct. If a call was killed, or lost
        too often against compactions, call it again to finish it, or call it with the old count to undo it.

        Where it runs: see :meth:`compact`.

        :param buckets: buckets per partition, a power of two.
        :raises lakemerge.InputError: ``buckets`` is not a power of two.
        :raises lakemerge.CommitConflictError: somebody else changed the bucket count or the schema meanwhile,
            compactions were faster again and again, or a vacuum deleted the version that was being rewritten.
        """
        from compaction import rescale

        view = self._open.writable()
        with unless_vacuumed(self._open.handle.log, view.snapshot):
            result = rescale(self._open.handle, view, buckets, spark=self._open.services_session)
        self._open.follow()
        return result

    @observed
    @checked
    def expire_tombstones(self, *, retention: dt.timedelta | None = None) -> ExpiryResult:
        """Forget old deletes, so that tombstones do not grow for ever. If a record arrives later that is older than
        a forgotten delete, it is taken as new.

        Deletes are forgotten up to a version, and only where all logs up to that version are compacted.

        :param retention: how long ago a delete must have been committed. The default is the table property
            ``lakemerge.tombstoneRetention`` (7 days). Ages are by the store's clock.
        :raises lakemerge.CommitConflictError: a vacuum deleted the version that was being read.
        """
        from compaction import expire_tombstones

        view = self._open.writable()
        with unless_vacuumed(self._open.handle.log, view.snapshot):
            result = expire_tombstones(self._open.handle, view, retention=retention)
        self._open.follow()
        return result

    @observed
    @checked
    def vacuum(
        self, *, dry_run: bool = True, retention: dt.timedelta | None = None, enforce_retention: bool = True
    ) -> VacuumResult:
        """Delete files that no version within the retention needs, files of killed writes, and old commits
        of the log. **By default this is a dry run**: it returns what would be deleted.

        Afterwards, versions older than the retention cannot be read, saved or restored, except savepoints. Vacuum
        never blocks writers. A write that began before the oldest version kept is refused when it commits, and can be
        repeated.

        :param retention: how long a version stays readable after it was replaced. The default is the table
            property ``delta.deletedFileRetentionDuration`` (7 days). Ages are by the store's clock. A dry run writes
            nothing, not even to learn the store's time, so it uses this host's clock. Commits stay for
            ``delta.logRetentionDuration`` (30 days), and longer if they are needed.
        :param enforce_retention: whether to refuse a retention that is shorter than that property.
        :raises lakemerge.InputError: the retention is too short, or a table property is not a duration.
        :raises lakemerge.UnsupportedFeatureError: a newer library keeps files in the table that this one does not
            know. Nothing was deleted.
        """
        from compaction import vacuum

        result = vacuum(
            self._open.handle,
            self._open.writable(),
            dry_run=dry_run,
            retention=retention,
            enforce_retention=enforce_retention,
        )
        self._open.follow()
        return result

    @observed
    @checked
    def forget(
        self,
        keys: object,
        *,
        drop_history: bool = False,
        drop_rejects: bool = False,
        search: Sequence[str] = (),
        salt: str | None = None,
        storage_options: Mapping[str, object] | None = None,
    ) -> ForgetResult:
        """Erase the rows of some keys, and everything that the table remembers of them: docs/guides/erase.md.

        **The history of the table ends**: versions before it cannot be read any more, and writes that began before it
        are refused when they commit. Records of the keys that come later bring them back. Call it again with the same
        keys until it says ``done``; a call that was killed is repeated in the same way.

        :param keys: as :meth:`get` takes them, at most 1,000.
        :param drop_history: whether savepoints, consumers that are behind, and records that
            ``lakemerge.recordRetention`` keeps may be given up. Otherwise they refuse it. Holds always do.
        :param drop_rejects: whether records that ingest jobs set aside are taken out if all values of a key stand in
            them as words. Otherwise they are reported.
        :param search: other folders to search, such as outputs and states of merge sources. They are not changed.
        :param salt: the salt of the digest. By default a random one.
        :param storage_options: options of the stores of ``search``. By default they are taken from the environment.
        :raises lakemerge.FrameError: the keys are no keys of the table.
        :raises lakemerge.InputError: something needs the history, records of other keys in the same files cannot be
            merged, or there are too many keys.
        :raises lakemerge.CommitConflictError: others wrote the keys again and again.
        """
        from compaction import ForgetOptions, forget_open

        options = ForgetOptions(
            drop_history=drop_history,
            drop_rejects=drop_rejects,
            search=tuple(search),
            salt=salt,
            storage_options=storage_options,
        )
        return forget_open(self._open, keys, options)

    @observed
    @checked
    def maintain(self, *, stop: Callable[[], bool] | None = None) -> MaintenanceResult:
        """Run the services that are due by the table's schedule: full or minor compaction, log compaction, expiry of
        tombstones, vacuum. Call it as often as you like: if nothing is due, it only reads metadata.

        The schedule is in table properties (docs/guides/maintenance.md), which :meth:`alter` sets. Several
        maintainers at once waste work, but never data. If a run is killed, the next run continues it.

        :param stop: called between services, and between the commits of a compaction. True ends the run there.
        """
        from compaction import maintain_open

        return maintain_open(self._open, stop=stop)

    @observed
    @checked
    def copy_to(
        self, path: str | os.PathLike[str], *, storage_options: Mapping[str, object] | None = None
    ) -> CopyResult:
        """Copy the table to another folder or store, as a backup: the version that this object shows, all versions
        before it that can be read, savepoints, and where consumers stand.

        Writers may go on meanwhile. A copy that was interrupted goes on if it is called again, and a later version can
        be copied over an earlier copy. Only files that are not there are sent. To restore a backup, copy it to an empty
        folder. The copy has the table's id, so streams and consumers go on from it; it ages from when it was made.

        :param path: a folder without a table, or with an earlier copy of this one.
        :param storage_options: options of that folder's store. By default they are taken from the environment.
        :raises lakemerge.InputError: the folder has another table or a later version.
        :raises lakemerge.TableDamagedError: a file is missing, perhaps because a vacuum deleted it meanwhile.
        """
        from compaction import copy_table

        return copy_table(self._open.handle, self._open.view, open_store(path, storage_options))

    @observed
    @checked
    def unconvert(self) -> UnconversionResult:
        """Make the table a plain Delta table, which other engines write (docs/guides/bring-a-delta-table.md).

        Records in logs are merged into files first, or published if the table publishes. Then one commit takes away
        what LakeMerge keeps in the log: its writer feature, its properties, the ledgers of ingest jobs, and what it
        remembers of deletes. Writers under way fail by name, and this object, too. Files below ``_lakemerge`` stay for
        readers of earlier versions; delete the folder when there are none.

        :raises lakemerge.InputError: the table has savepoints or consumers, or keys whose merge fails. Nothing was
            changed, but for compactions.
        :raises lakemerge.CommitConflictError: records were written faster than they could be compacted.
        """
        from lakemerge.convert.unconverting import unconvert_table

        return unconvert_table(self._open)

    # For the library's own packages; not part of the public API

    @property
    def opened(self) -> OpenTable:
        """For the library's own packages; not part of the public API."""
        return self._open

    def opened_anew(self) -> LakeTable:
        """The table that is at the path now, which may be another one, as it was opened. For processes that stay.
        Not part of the public API.

        :raises lakemerge.NotATableError: there is no table any more.
        """
        return self._of(self._open.reopened())

    def _write(self, frame: Any, request: WriteRequest) -> UpsertResult:
        from compaction import maintain_after_write, make_room

        make_room(self._open)
        result = self._open.write(frame, request)
        maintain_after_write(self._open, result.version)
        return result

    def _begin(self, consumer: str | None, since: int | None) -> Offset:
        if consumer is not None:
            return self.consumers.position(consumer)
        return Offset(self._open.tip().version, of_rows=True) if since is None else Offset(since + 1)
