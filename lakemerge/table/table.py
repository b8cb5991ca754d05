"""``LakeTable``: the public door to a table. Everything behind it is a function over a version."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.delta import Snapshot
from lakemerge.errors import InputError
from lakemerge.frames import is_spark_frame
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version, guarded, unless_replaced, unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.read.lookup import look_up
from lakemerge.read.scan import ReadMode, in_mode, read_arrow, scan
from lakemerge.results.results import UpsertResult
from lakemerge.table.create import create_table
from lakemerge.table.definition import TableDefinition
from lakemerge.table.describe import ReadPlan, SliceInfo, TableDetail, detail_of, plan_of, slices_of
from lakemerge.table.engine import deleting
from lakemerge.table.opening import open_handle
from lakemerge.table.provenance import TableProvenance
from lakemerge.table.services import TableServices
from lakemerge.table.session import TableSession
from lakemerge.table.streams import TableStreams
from lakemerge.table.versions import TableVersions
from lakemerge.write.delete import delete_where
from lakemerge.write.request import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers import Merger

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["LakeTable"]

_logger = logging.getLogger(__name__)


class LakeTable(TableServices, TableVersions, TableDefinition, TableProvenance, TableStreams):
    """A LakeMerge table. Make one with :meth:`create` or :meth:`open`.

    A table opened without a version follows the tip: each call first looks for newer commits. One
    opened at a version or timestamp stands there, and is read-only.
    """

    def __init__(self, handle: Handle, snapshot: Snapshot, *, pinned: bool, spark: SparkSession | None) -> None:
        self._handle = handle
        self._view = handle.view(snapshot)
        self._pinned = pinned
        self._session = TableSession(spark)

    def __reduce__(self) -> tuple[object, ...]:
        again = partial(type(self), pinned=self._pinned, spark=None)
        return again, (self._handle, self._view.snapshot), {"_session": self._session}

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
        return self._view.config.key

    @property
    def ordering(self) -> tuple[str, ...]:
        return self._view.config.ordering

    @property
    def buckets(self) -> int | None:
        """How many buckets each partition has; ``None`` before the first write, which chooses."""
        return self._current().config.buckets

    @property
    def url(self) -> str:
        return self._handle.store.url

    @property
    def handle(self) -> Handle:
        """For table services; not part of the public API."""
        return self._handle

    @property
    def view(self) -> TableView:
        """The version that reads show, decoded. For table services; not part of the public API."""
        return self._current()

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

    def delete(
        self, keys: object, *, txn: tuple[str, int] | None = None, info: Mapping[str, object] | None = None
    ) -> UpsertResult:
        """Write a ``-D`` record for each key. ``event-time``, ``commit-time`` and ``remove_record_on_delete``
        remove the row; elsewhere it may be a retraction, be ignored or be refused (docs/merge-semantics.md, section 5).

        :param keys: a frame as for :meth:`upsert`. With all ordering columns a delete applies only
            where it is newer; with none of them it is unconditional.
        """
        return self._write(keys, WriteRequest(deletes=True, txn=txn, info=info or {}))

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

    @overload
    def get(self, key: Mapping[str, object], *, columns: Sequence[str] | None = None) -> dict[str, Any] | None: ...
    @overload
    def get(self, key: object, *, columns: Sequence[str] | None = None) -> pa.Table: ...

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

    def explain_read(
        self, *, columns: Sequence[str] | None = None, filter: str | pc.Expression | None = None
    ) -> ReadPlan:
        """How such a read would be done now, and why: which parts are pruned, read as they are, or merged."""
        return plan_of(self._handle, self._current(), columns, filter, self._session.if_active())

    def slices(self) -> list[SliceInfo]:
        """What each bucket holds, and what reading it costs now."""
        return slices_of(self._current())

    def detail(self) -> TableDetail:
        """The version at a glance: its definition, sizes, pending logs, read amplification, and what maintenance
        would do after a write now."""
        view = self._current()
        return detail_of(self._handle, view, maintenance=self._maintenance_told(view))

    def create_temp_view(self, name: str, *, columns: Sequence[str] | None = None) -> None:
        """Make this version available to Spark SQL under a name."""
        self.to_df(columns=columns).createOrReplaceTempView(name)

    def __repr__(self) -> str:
        config = self._view.config
        return (
            f"LakeTable({self.url!r}, version={self._view.version}, key={list(config.key)}, "
            f"merger={config.merger_name!r}, buckets={config.buckets})"
        )

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

    def _current(self) -> TableView:
        """The version to read; for a table that follows the tip, the latest."""
        if not self._pinned:
            snapshot = self._handle.log.update(self._view.snapshot)
            if snapshot is not self._view.snapshot:
                self._view = self._handle.view(snapshot)
        return self._view

    def _follow(self) -> None:
        """After a write: stand at its version. It has landed, so a store that fails now may not make
        it look like a failure; the next call looks again."""
        try:
            self._current()
        except Exception:
            _logger.info("the version after a write could not be read", exc_info=True)

    def _writable(self) -> TableView:
        if self._pinned:
            raise InputError(
                f"this table was opened at version {self._view.version} and is read-only; to write, open it without "
                "a version or timestamp",
                version=self._view.version,
            )
        return self._current()
