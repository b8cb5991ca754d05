"""``spark.read.format("lakemerge")`` and ``df.write.format("lakemerge")``.

Where Spark finds the jar, its class ``lakemerge.DefaultSource`` has the table read by LakeMerge's own scan, which is
planned here. Else every row moves through Python, and Spark prunes no columns (``.option("columns", "a,b")`` or
``.schema(...)`` do that).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructField, StructType

from compaction import maintain_landed, make_room
from lakemerge._internal.collector import collector_paused
from lakemerge._internal.near import nearest
from lakemerge._internal.pools import thread_pool
from lakemerge.commits.provenance import Isolation
from lakemerge.datasource.feed_options import FEED_NAMES, FEED_OPTIONS, FeedOptions, either, flag, number, wants_feed
from lakemerge.datasource.instants import Moments, Named, without_zone
from lakemerge.datasource.partitions import KernelPartition
from lakemerge.datasource.plans import plan
from lakemerge.datasource.stream_sink import StreamWriter
from lakemerge.datasource.stream_source import FeedReader, FeedStreamReader, RowsShown, batch_plan, stream_schema
from lakemerge.delta import check_table_id
from lakemerge.errors import DependencyMissingError, InputError, LakeMergeError
from lakemerge.feed.difference import CHANGE_TYPE
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView, build_file_slices
from lakemerge.read.failed_keys import on_failed_keys
from lakemerge.read.filter.filter import Filter, parse_filter
from lakemerge.read.filter.prune import prune_file_slices, prune_parts
from lakemerge.read.merge import MergeSpec
from lakemerge.read.scan import asked_columns, in_mode, scan_part
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.schema import from_delta_json, to_ddl, to_delta_json
from lakemerge.spark.installed import can_write, check_writes
from lakemerge.spark.jar import hidden_jar, jar_version, show_jar
from lakemerge.spark.native import KERNEL_OPTION, KernelRead
from lakemerge.spark.sessions import is_running, jvm_session, made_active, session_id, use_own_python
from lakemerge.spark.transport.answers import answering
from lakemerge.spark.transport.jobs import even_tasks, in_limit
from lakemerge.spark.transport.portable import portable
from lakemerge.spark.writer import frame_schema, pack_rows
from lakemerge.spark_errors import carrying
from lakemerge.sql.times import parse_zone
from lakemerge.table.create import define_table
from lakemerge.table.kept import kept_table
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import open_handle, open_table
from lakemerge.table.staging import StagedTable
from lakemerge.transactions.errors import MultipleMatchesError
from lakemerge.write.discard import discard
from lakemerge.write.overwrite import (
    AsStates,
    OverwriteRequest,
    check_in_process,
    finish_overwrite,
    repeated_key_of,
    start_overwrite,
)
from lakemerge.write.pack import Packed
from lakemerge.write.start import Write, WriteRequest
from lakemerge.write.upsert import finish, load_in_process
from mergers import Merger, default_registry
from mergers.wording import argument, in_python

__all__ = ["LakeMergeDataSource", "prepare_session", "register_in", "register_source"]

_TABLE_ID = "lakemerge.tableid"
"""An internal option: the id of the table for which a DataFrame was made."""
_NAMES = (
    *("path", "columns", "version", "versionAsOf", "timestamp", "timestampAsOf", "mode", "failedKeys", *FEED_NAMES),
    *("kindColumn", "mergeSchema", "txnAppId", "txnVersion", "checkpointLocation", "queryName", "repeatedBatch"),
    *("replaceWhere", "partitionOverwriteMode", "skipDeletes"),
)
_COLUMNS = "lakemerge.columns"
"""An internal option: the columns that a scan of a catalog reads, as JSON: pairs of the name that the query has and
that of the table."""
_FILTER = "lakemerge.filter"
"""An internal option: what all rows that the query needs meet. Spark checks it again."""
_JAR = "lakemerge.jar"
"""An internal option: the version of the jar that asks for the schema. If it is ours, the schema also names the version
of the table, and the jar reads that by its own scan."""
_REQUEST = "lakemerge.request"
"""An internal option: the jar's request for the plan of a scan, as JSON; see :mod:`lakemerge.datasource.plans`."""
_NAMED = "lakemerge.named"
"""An entry of the first column's metadata, which the jar takes away again: which version the schema is of."""
_WRITE = "lakemerge.write"
"""An internal option: what a statement in SQL says of its write, as JSON; see :class:`_Statement`."""
_ROWS = "lakemerge.rows"
"""An internal option: a stream of a catalog's table has the table's columns alone."""
_INTERNAL = (_TABLE_ID, _COLUMNS, _FILTER, KERNEL_OPTION, _JAR, _REQUEST, _WRITE, _ROWS)
_OWN_OPTIONS = frozenset(name.lower() for name in (*_NAMES, *_INTERNAL))
_VERSIONS = ("version", "versionAsOf", "timestamp", "timestampAsOf")
_OF_OVERWRITES = ("replaceWhere", "partitionOverwriteMode", "overwriteSchema")
_PINS = frozenset(name.lower() for name in _VERSIONS)
_NO_CATALOG = (
    "Spark does not tell a Python data source where that is. Make a view of it: table.create_temp_view(name), or "
    "CREATE TEMPORARY VIEW name USING lakemerge OPTIONS (path '...')"
)
_BATCH_ROWS = 64 * 1024
_READ_TASKS = 8
"""At least so many read tasks, if there are as many file slices. The source does not know the cluster's size."""
_LOAD_HERE_TASKS = 8
"""A first load that would make up to so many tasks is merged on the driver, in a Spark process without a session. A
larger one stays in logs, which the next compaction merges on the executors."""


class LakeMergeDataSource(DataSource):
    """Options: ``path``; for reads ``columns``, ``version`` or ``versionAsOf``, ``timestamp`` or ``timestampAsOf``
    (Delta's names), ``mode``, ``failedKeys``; for writes ``kindColumn``, ``mergeSchema``, ``txnAppId`` (not one that
    begins with ``lakemerge.``) and ``txnVersion``; for ``mode("overwrite")`` ``replaceWhere`` and
    ``partitionOverwriteMode`` (Delta's names); for changes, as a batch or a stream, ``readChangeFeed`` and those
    that docs/streaming.md lists. All others are storage options.

    A DataFrame shows one version: the latest when it was loaded, unless an option says another. If the caller gives a
    schema, the version is chosen at the first action.

    Spark makes data sources in its own Python processes. These know the mergers that are installed, and those in
    :attr:`mergers`.
    """

    mergers: ClassVar[Sequence[type[Merger]]] = ()
    """Merger classes in addition to the installed ones."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if options.get("provider") == self.name():  # Spark adds this option for a new table of its catalog
            raise InputError(f"a LakeMerge table cannot be a table of Spark's catalog: {_NO_CATALOG}")

    @classmethod
    def name(cls) -> str:
        return "lakemerge"

    def __getstate__(self) -> dict[str, object]:
        """The state that Spark keeps for a load. Each action makes a reader from it, in another process."""
        with contextlib.suppress(LakeMergeError):  # the reader will raise the error
            if not self._is_pinned() and not self._reads_feed():
                self._pinned()
        return self.__dict__

    @carrying()
    def schema(self) -> str | StructType:
        if _REQUEST in self.options:
            request = json.loads(self.options[_REQUEST])
            return answering(plan(request, request["storage"], self.mergers))
        if "create" in _told(self.options):
            return "made BOOLEAN"  # there is no table yet, and Spark asks all the same
        if "skipDeletes" in self.options:
            raise InputError("skipDeletes is for spark.readStream.table")
        if self._reads_feed():
            return to_ddl(pa.schema([field.with_nullable(True) for field in self._feed_schema()]))
        view, columns = self._pinned(), self.options.get("columns")
        names = asked_columns(view, None if columns is None else [c.strip() for c in columns.split(",")])
        shown = pa.schema([view.config.schema.field(name).with_nullable(True) for name in names])
        if self.options.get(_JAR) == jar_version() and self._named() is None:
            return _naming(shown, view.version, view.snapshot.metadata.id, self._storage())
        return to_ddl(shown)

    @carrying()
    def reader(self, schema: StructType) -> DataSourceReader:
        if _COLUMNS in self.options:
            self._check_of_rows()
        if self._reads_feed():
            if "failedKeys" in self.options:
                hint = in_python("; table.changes_df has failed_keys")
                raise InputError(f"a read of changes takes no option failedKeys{hint}")
            return FeedReader(self._open(), schema, FeedOptions.of(self.options))
        names, mode = list(schema.names), self.options.get("mode", "merged")
        failed = self.options.get("failedKeys", "raise")
        named = self._named()
        if _COLUMNS in self.options:
            told = self.options.get(KERNEL_OPTION)
            kept, view = self._kept()
            return _Reader(
                kept.handle,
                view,
                names,
                mode,
                failed,
                columns=dict(json.loads(self.options[_COLUMNS])),
                types=from_delta_json(schema.json(), of_frame=True),
                condition=self.options.get(_FILTER),
                kernel=None if told is None else KernelRead.of_json(told),
            )
        if named is None:
            table = self._open()
            return _Reader(table.handle, table.view, names, mode, failed)
        time, tables = named
        readers = [(at, _Reader(table.handle, table.view, names, mode, failed)) for at, table in tables]
        return _AnyReader(time, readers)

    @carrying()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        check_writes("a write by format('lakemerge')")
        if (create := _told(self.options).get("create")) is not None:
            handle = open_handle(self.options["path"], self._storage() or None, self.mergers, None)
            return _CreatingWriter(handle, schema, create)
        request = _overwriting(self.options) if overwrite else None
        if request is None and (given := [name for name in _OF_OVERWRITES if name in self.options]):
            raise InputError(f'{", ".join(given)} is for mode("overwrite"), and mode("append") is an upsert')
        return _Writer(self._open(), schema, self.options, request)

    @carrying()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_writes("a stream of changes")
        if _ROWS in self.options:
            return self._row_stream(schema)
        if CHANGE_TYPE not in schema.names:
            raise InputError(
                "a stream of a LakeMerge table shows changes, deletes among them, so it needs the column "
                f"{CHANGE_TYPE}: add .option('readChangeFeed', 'true')"
            )
        self._check_stream()
        return FeedStreamReader(self._open_tip(), schema, FeedOptions.of(self.options))

    def _row_stream(self, schema: StructType) -> DataSourceStreamReader:
        """A stream that has no column for the kind of a change: Spark takes its columns from the catalog's table."""
        for name in ("readChangeFeed", "readChangeData", "beforeImages"):
            if name in self.options:
                raise InputError(
                    f"option {name}: Spark gives a stream of a catalog's table the table's columns. The table "
                    "`NAME$changes` has the columns of changes, and spark.readStream.changes(NAME) reads them"
                )
        self._check_stream()
        table = self._open_tip()
        stream_schema(table)  # raises an error if the table has a column of that name
        shown = RowsShown(skip_deletes=flag(self.options, "skipDeletes"))
        return FeedStreamReader(table, schema, FeedOptions.of(self.options), shown)

    @carrying()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        check_writes("a stream into a table")
        if overwrite:
            raise InputError(
                'a LakeMerge table takes outputMode("append"), an upsert; for the output mode complete use '
                f"table.write_stream(df, ..., {argument('output_mode', repr('complete'))})"
            )
        return StreamWriter(self._open_tip(), schema, self.options)

    def _reads_feed(self) -> bool:
        """Whether changes are requested. Spark asks for the schema without saying whether it is for a stream, so an
        option has to say so."""
        named = {name.lower() for name in self.options}
        if _ROWS in named:
            return True
        if named & {"readchangefeed", "readchangedata"}:
            return wants_feed(self.options)
        return bool(named & FEED_OPTIONS)

    def _check_of_rows(self) -> None:
        """Refuse options of streams and changes, of which a catalog's read of a table takes none."""
        if "skipDeletes" in self.options:
            raise InputError("skipDeletes is for spark.readStream.table")
        if self._reads_feed():
            given = sorted(name for name in self.options if name.lower() in FEED_OPTIONS)
            raise InputError(
                f"option {', '.join(given)} is for changes, and this reads a table's rows: use CHANGES FROM "
                "VERSION, or the table `NAME$changes`"
            )

    def _feed_schema(self) -> pa.Schema:
        table, options = self._open(), FeedOptions.of(self.options)
        if options.has_first and not options.consumer:
            return batch_plan(table, options)[0].schema
        return stream_schema(table)

    def _check_stream(self) -> None:
        """Raises :class:`InputError` for options that are only for batches."""
        batch = [name for name in (*_VERSIONS, "mode", "columns", "failedKeys") if name in self.options]
        # Without an option of the feed, the version may be one that was pinned for a batch.
        if batch and self._reads_feed():
            raise InputError(
                f"a stream of changes takes no option {', '.join(batch)}; startingVersion says where it begins"
            )
        if FeedOptions.of(self.options).net:
            raise InputError(
                "a stream tells each commit's changes: deduplicationMode netChanges is for batches, spark.read with "
                "readChangeFeed"
            )

    def _pinned(self) -> TableView:
        """The version that is read. If no option says it, it becomes an option here."""
        view = self._open().view
        if not self._is_pinned():
            self.options["version"] = str(view.version)
        self.options[_TABLE_ID] = view.snapshot.metadata.id
        return view

    def _is_pinned(self) -> bool:
        return any(name in self.options for name in _VERSIONS)

    def _named(self) -> tuple[Named, list[tuple[Moments, OpenTable]]] | None:
        """The versions that the time of the read may mean; ``None`` if it says its zone, or there is none."""
        option = either(self.options, "timestamp", "timestampAsOf")
        time = without_zone(self.options.get(option))
        if time is None or any(name in self.options for name in ("version", "versionAsOf")):
            return None
        return Named.of(option, time, self._open_at)

    def _open_at(self, version: int | None) -> OpenTable:
        """The table at a version, or at its latest."""
        plain = {name: value for name, value in self.options.items() if name.lower() not in _PINS}
        pin = {} if version is None else {"version": str(version)}
        return type(self)(cast("Any", type(self.options))({**plain, **pin}))._open()

    def _open_tip(self) -> OpenTable:
        """The table at its tip, whatever version a load was pinned at, because a streaming query runs for long."""
        return self._open_at(None)

    def _kept(self) -> tuple[OpenTable, TableView]:
        """The table and the version of a catalog's scan. Later scans in this process find both decoded."""
        path, version = self.options.get("path"), number(self.options, "version")
        if not path or version is None:
            table = self._open()
            return table, table.view
        kept = kept_table(path, self._storage(), self.mergers)
        view = kept.at(version)
        if _TABLE_ID in self.options:
            check_table_id(kept.table.handle.store, self.options[_TABLE_ID], view.snapshot, since=view.version)
        return kept.table, view

    def _storage(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() not in _OWN_OPTIONS}

    def _open(self) -> OpenTable:
        path = self.options.get("path")
        if not path:
            raise InputError(
                "give the table's path: .load(path), .save(path) or .option(\"path\", path). A table of Spark's "
                f"catalog (CREATE TABLE ... USING lakemerge, saveAsTable) cannot be used: {_NO_CATALOG}"
            )
        storage = self._storage()
        _check_spelling(storage)
        named = self._named()
        if named is not None:
            return named[1][-1][1]  # any of them: they have the same schema
        table = open_table(
            path,
            version=number(self.options, either(self.options, "version", "versionAsOf")),
            timestamp=self.options.get(either(self.options, "timestamp", "timestampAsOf")),
            storage_options=storage or None,
            mergers=self.mergers,
        )
        if _TABLE_ID in self.options:
            check_table_id(table.handle.store, self.options[_TABLE_ID], table.view.snapshot, since=table.view.version)
        return table


def _naming(schema: pa.Schema, version: int, table_id: str, storage: Mapping[str, str]) -> StructType:
    """A schema that tells the jar which version it is of, and which options are the store's."""
    told = json.dumps({"version": version, "tableId": table_id, "storage": sorted(storage)})
    first, *others = StructType.fromJson(json.loads(to_delta_json(schema))).fields
    metadata = {**first.metadata, _NAMED: told}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def _overwriting(options: Mapping[str, str]) -> OverwriteRequest:
    """The options of ``mode("overwrite")``, which has Delta's names. Raises :class:`InputError`."""
    if "overwriteSchema" in options:
        raise InputError(
            "overwriteSchema: an overwrite keeps the table's definition; create the table again to give it "
            "another one; mergeSchema adds columns"
        )
    if "kindColumn" in options:
        raise InputError('kindColumn: the rows of mode("overwrite") are states and have no kinds')
    mode = options.get("partitionOverwriteMode", "static").lower()
    if mode not in ("static", "dynamic"):
        raise InputError(f"partitionOverwriteMode is static or dynamic, not {options['partitionOverwriteMode']!r}")
    return OverwriteRequest(
        where=options.get("replaceWhere"),
        partition_mode="dynamic" if mode == "dynamic" else "static",
        merge_schema=flag(options, "mergeSchema"),
        txn=_txn(options),
        zone=None,
    )


def _txn(options: Mapping[str, str]) -> tuple[str, int] | None:
    app, batch = options.get("txnAppId"), number(options, "txnVersion")
    if (app is None) != (batch is None):
        raise InputError("txnAppId and txnVersion are given together or not at all")
    return None if app is None or batch is None else (app, batch)


def _check_spelling(storage: Collection[str]) -> None:
    """Refuse an option that is nearly one of ours. It would be taken for one of the storage, where it may do nothing.

    :param storage: names of options that are not ours.
    """
    for name in storage:
        near = nearest(name, _NAMES, cutoff=0.85)
        if near is not None:
            raise InputError(f"format('lakemerge') has no option {name!r}; did you mean {near!r}?", option=name)


_registered: set[str] = set()
"""Sessions that our data source was registered in, perhaps with mergers, so that this stays."""


def prepare_session(spark: SparkSession) -> None:
    """Call this when a session is given to a table. If Spark would run ``python3``, its workers get the driver's
    Python. Then ``format("lakemerge")`` is registered, too: Spark still looks for data sources with ``python3``. From
    then on the session's own catalog refuses tables of ours.
    """
    if jvm_session(spark) is None or not is_running(spark):
        return
    show_jar(spark)
    if use_own_python(spark) and session_id(spark) not in _registered:
        try:
            register_source(spark, ())
        except AnalysisException as error:
            # Another session has one, and Python may not say which session is active, or Spark could not look.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def register_source(spark: SparkSession, mergers: Sequence[type[Merger]]) -> None:
    """Let ``format("lakemerge")`` in a session know merger classes; see :func:`lakemerge.register`."""
    show_jar(spark)
    use_own_python(spark)
    default_registry().extended(mergers)  # raises errors here, and not later in Spark's processes
    sent = portable(tuple(mergers))

    class Registered(LakeMergeDataSource):
        mergers = sent

    register_in(spark, Registered, mergers)
    _registered.add(session_id(spark))


def register_in(spark: SparkSession, source: type[DataSource], mergers: Sequence[type[Merger]]) -> None:
    """Make a data source known to a session. Spark 4.0 keeps the one that it found installed, which has no mergers.

    :param mergers: those that the source has.
    """
    try:
        with hidden_jar(spark), made_active(spark):
            spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or can_write(spark.version):
            raise
        if mergers:
            raise DependencyMissingError(
                f"Spark {spark.version} takes mergers only from packages, by an entry point: install them where "
                "Spark's Python finds them; with Spark 4.1 or newer they can be passed"
            ) from error


class _Reader(DataSourceReader):
    def __init__(
        self,
        handle: Handle,
        view: TableView,
        names: Sequence[str],
        mode: str,
        failed_keys: str,
        *,
        columns: Mapping[str, str] = MappingProxyType({}),
        types: pa.Schema | None = None,
        condition: str | None = None,
        kernel: KernelRead | None = None,
    ) -> None:
        """
        :param names: the names of the columns that are read.
        :param columns: the table's columns with other names than those.
        :param types: the types of the columns that are read. Structs may lack fields of the table's.
        :param condition: what all rows that are needed meet.
        :param kernel: how the parts of file slices are read that a plan gave to tasks. By default, tasks read all file
            slices.
        """
        view, handle = in_mode(view, mode), on_failed_keys(handle, failed_keys)
        wanted = [columns.get(name, name) for name in names]
        # A statement may need a column twice, under two names.
        once = list(dict.fromkeys(wanted))
        self._columns = asked_columns(view, once)
        known = dict(zip(once, self._columns, strict=True))
        self._shown = [known[name] for name in wanted]
        self._spec = MergeSpec.of(handle, view)
        fields = (view.config.schema.field(name).with_nullable(True) for name in self._shown)
        # The names are those of the caller's schema, which may have another case.
        self._schema = pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])
        if types is not None:
            self._schema = pa.schema([types.field(name).with_nullable(True) for name in names])
        zone = None
        if kernel is not None:
            self._spec = replace(self._spec, settings=kernel.settings)
            conditions = [f"({text}\n)" for text in (kernel.filter, condition) if text is not None]
            condition = " AND ".join(conditions) or None
            zone = kernel.zone
        self._condition = _parsed(condition, view.config.schema, zone)
        self._has_plan = kernel is not None
        if kernel is not None and self._condition is not None and not kernel.computed:
            self._condition = replace(self._condition, computed=())
        self._file_slices = [] if self._has_plan else prune_file_slices(view, self._condition)

    def __getstate__(self) -> dict[str, object]:
        """The state that Spark sends to each task. File slices are not part of it: each task gets its own."""
        return self.__dict__ | {"_file_slices": ()}

    @carrying()
    def partitions(self) -> Sequence[InputPartition]:
        with collector_paused():
            tasks = even_tasks(self._file_slices, self._spec.settings, at_least=_READ_TASKS)
            # If this list is empty, Spark runs one task without a partition.
            return [KernelPartition.of(parts) for parts in tasks] or [KernelPartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, KernelPartition):
            return
        with carrying():
            parts = partition.parts()
            if self._has_plan and self._condition is not None:
                parts = prune_parts(parts, self._condition, self._spec.config)
            for part in parts:
                for table in scan_part(self._spec, part, self._columns, self._condition):
                    columns = [table.column(name) for name in self._shown]
                    shown = pa.table(columns, names=self._schema.names).cast(self._schema)
                    yield from in_limit(shown.to_batches(max_chunksize=_BATCH_ROWS))


def _parsed(condition: str | None, schema: pa.Schema, zone: str | None) -> Filter | None:
    if zone is None:
        return parse_filter(condition, schema)
    return parse_filter(condition, schema, zone=parse_zone(zone))


class _Planned(InputPartition):
    def __init__(self, moments: Moments, number: int, partition: InputPartition) -> None:
        super().__init__(None)
        self.moments, self.number, self.partition = moments, number, partition


class _AnyReader(DataSourceReader):
    """Reads the version that a time without a zone means. Only tasks know which."""

    def __init__(self, time: Named, readers: Sequence[tuple[Moments, _Reader]]) -> None:
        self._time, self._readers = time, readers

    @carrying()
    def partitions(self) -> Sequence[InputPartition]:
        return [
            _Planned(moments, number, partition)
            for number, (moments, reader) in enumerate(self._readers)
            for partition in reader.partitions()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Planned):
            return
        with carrying():
            meant = self._time.means(partition.moments)
        if meant:
            yield from self._readers[partition.number][1].read(partition.partition)


class _Message(WriterCommitMessage):
    def __init__(self, task: int, packed: Packed) -> None:
        self.task = task
        self.packed = packed


def _told(options: Mapping[str, str]) -> dict[str, Any]:
    """What a statement in SQL says of its write."""
    found: dict[str, Any] = json.loads(options.get(_WRITE, "{}"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """What a statement in SQL says of its write."""

    table_id: str | None = None
    """The table that it was planned for."""
    version: int | None = None
    """The version that it read; ``None``: it reads nothing of the table."""
    operation: str | None = None
    states: bool = False
    """Whether its records are those of a transaction."""
    isolation: Isolation | None = None
    """For what has read: with which later commits it conflicts."""
    once: bool = False
    """Whether two records of one key are an error."""
    txn: tuple[str, int] | None = None

    @staticmethod
    def of(options: Mapping[str, str]) -> _Statement:
        told = _told(options)
        txn = told.pop("txn", None)
        table_id = told.pop("tableId", None)
        return _Statement(table_id=table_id, txn=None if txn is None else (txn[0], txn[1]), **told)

    def begin(self, table: OpenTable) -> TableView:
        """The version that the write is judged by."""
        if self.table_id is not None:
            check_table_id(table.handle.store, self.table_id, table.view.snapshot, since=table.view.version)
        return table.view if self.version is None else table.handle.view_at(self.version, of=table.view.snapshot)


class _Writer(DataSourceArrowWriter):
    """Packs on the executors, and commits on the driver. Spark pickles it to send it to both."""

    def __init__(
        self, table: OpenTable, schema: StructType, options: Mapping[str, str], overwrite: OverwriteRequest | None
    ) -> None:
        self._overwrite, self._states, self._statement = overwrite, None, _Statement.of(options)
        if overwrite is None:
            make_room(table)
        begin = self._statement.begin(table)
        if overwrite is not None:
            overwrite = self._overwrite = replace(
                overwrite, txn=self._statement.txn or overwrite.txn, isolation=self._statement.isolation
            )
            overwrite.checked(begin.config)
            self._states = AsStates.of(frame_schema(schema), begin.config)
            given = self._states.schema
            write = start_overwrite(table.handle, begin, given, overwrite, estimated_bytes=None)
        else:
            request = WriteRequest(
                kind_column=options.get("kindColumn"),
                txn=self._statement.txn or _txn(options),
                merge_schema=flag(options, "mergeSchema"),
                states=self._statement.states,
                isolation=self._statement.isolation,
                operation=self._statement.operation,
                info={} if self._statement.isolation is None else {"isBlindAppend": False},
            )
            write = Write.start(table.handle, begin, frame_schema(schema), request, estimated_bytes=None)
        # Tasks need only the pack. The snapshot may be large, so the commit reads it again.
        self._handle = table.handle
        self._begin_version = begin.version
        self._table_id = begin.snapshot.metadata.id
        self._plan = None
        if not isinstance(write, UpsertResult):
            # A task must not join the records of a key if two are an error.
            pack_spec = replace(write.pack, combines=False) if self._statement.once else write.pack
            self._plan = (pack_spec, write.provenance, write.started)

    @carrying()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._plan is None:
            return _Message(0, Packed((), 0))
        rows = iterator if self._states is None else self._states.batches(iterator)
        return _Message(*pack_rows(rows, self._plan[0]))

    @carrying()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._plan is None:
            return
        pack_spec, provenance, started = self._plan
        try:
            snapshot = self._handle.log.snapshot(version=self._begin_version)
            check_table_id(self._handle.store, self._table_id, snapshot, since=self._begin_version)
        except BaseException:
            discard(self._handle.store, provenance.transaction, pack_spec.name)
            raise
        # The schema includes columns that the write brings.
        begin = TableView(snapshot, pack_spec.config, self._handle.store, self._handle.decoded)
        write = Write(self._handle, begin, pack_spec.frame, pack_spec, provenance, started)
        tasks = sorted((m for m in messages if isinstance(m, _Message)), key=lambda message: message.task)
        packed = [message.packed for message in tasks]
        if self._overwrite is not None:
            finish_overwrite(write, packed, self._overwrite, check=check_in_process, load=load_in_process)
        else:
            if self._statement.once:
                self._check_once(write, packed)
            size = sum(file.size_bytes for task in packed for file in task.files)
            here = size <= _LOAD_HERE_TASKS * pack_spec.settings.target_task_bytes
            finish(write, packed, load_file_slices=load_in_process if here else None)
        maintain_landed(self._handle, self._begin_version)

    def _check_once(self, write: Write, packed: Sequence[Packed]) -> None:
        blocks = [replace(block, version=write.begin.version + 1) for task in packed for block in task.blocks]
        file_slices = list(build_file_slices([], blocks, buckets=write.pack.buckets))
        with thread_pool(write.pack.settings.threads) as pool:
            keys = pool.map(partial(repeated_key_of, write.pack), file_slices)
            key = next((found for found in keys if found is not None), None)
        if key is not None:
            write.discard()
            raise MultipleMatchesError(f"the merge would insert several rows of one key, such as that of {key}")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing. Spark calls this in another process than :meth:`commit`, also if that raised or was killed.
        So it cannot know whether the commit may land. Vacuum deletes the files if it did not."""


class _CreatingWriter(DataSourceArrowWriter):
    """Writes the rows of a table that does not exist yet, and commits it with them."""

    def __init__(self, handle: Handle, schema: StructType, create: Mapping[str, Any]) -> None:
        self._handle, self._create = handle, create
        begin = self._staged().begin
        write = Write.start(handle, begin, frame_schema(schema), WriteRequest(), estimated_bytes=None)
        if isinstance(write, UpsertResult):
            raise AssertionError("a table that is not there has no transactions")
        self._begun, self._plan = begin.version, (write.pack, write.provenance, write.started)

    def _staged(self) -> StagedTable:
        told = dict(self._create)
        replace_, must_exist = told.pop("replace"), told.pop("mustExist")
        definition = define_table(self._handle, from_delta_json(told.pop("schema"), of_frame=True), **told)
        return StagedTable.of(self._handle, definition, replace=replace_, must_exist=must_exist)

    @carrying()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Message(*pack_rows(iterator, self._plan[0]))

    @carrying()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = self._staged()
        spec, provenance, started = self._plan
        write = Write(self._handle, staged.begin, spec.frame, spec, provenance, started)
        tasks = sorted((m for m in messages if isinstance(m, _Message)), key=lambda message: message.task)
        staged.finish(write, [message.packed for message in tasks], begun=self._begun, load=load_in_process)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing; see the other writer."""
