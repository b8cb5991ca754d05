"""Upserts of Spark DataFrames.

An append runs on the caller's partitions: each task packs its rows into a log file and reports what it wrote, and the
driver commits. There is no shuffle and no read of base files. The first write of a table is a bulk load. It runs inside
the JVM if that gives the same as the kernel (:mod:`lakemerge.spark.load`). Otherwise rows are packed as above, and
further tasks merge them into base files.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from lakemerge.delta import AddFile
from lakemerge.errors import FrameError, SchemaError
from lakemerge.format.names import KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.schema import from_delta_json, type_ddl
from lakemerge.spark.load import bulk_load
from lakemerge.spark.names import quoted
from lakemerge.spark.sessions import is_running, prepare_workers, session_settings
from lakemerge.spark.transport.jobs import RESULT_DDL, collect_results, map_in_tasks, result_batch
from lakemerge.spark.transport.portable import portable
from lakemerge.spark.transport.transit import batches_by_rows, send
from lakemerge.write.base_file import ordinals_needed
from lakemerge.write.first_load import load_file_slice
from lakemerge.write.moves import Moves
from lakemerge.write.overwrite import (
    AsStates,
    OverwriteRequest,
    check_once,
    finish_overwrite,
    repeated_key_of,
    start_overwrite,
)
from lakemerge.write.pack import Packed, PackSpec, pack
from lakemerge.write.start import Write, WriteRequest
from lakemerge.write.upsert import finish
from mergers import RowKind
from mergers.restart import SET
from mergers.type_names import type_name
from mergers.wording import argument

__all__ = [
    "frame_schema",
    "load_on_spark",
    "overwrite_dataframe",
    "pack_dry_dataframe",
    "pack_partition",
    "pack_rows",
    "upsert_dataframe",
]

_SIZE = re.compile(r"sizeInBytes=([0-9.]+(?:E[0-9]+)?) (EiB|PiB|TiB|GiB|MiB|KiB|B)")
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60}
_BELIEVABLE_BYTES = 2**40
_ROWS_TO_FILES = 4
"""Spark's estimate for a file source is the size of the files. As Arrow data the rows take about this many times as
much."""
_SHORT_PLANS = {"spark.sql.maxPlanStringLength": str(2**20)}
"""The estimate stands in the plan's first lines. A plan has all of a long literal."""


def upsert_dataframe(
    handle: Handle,
    begin: TableView,
    frame: DataFrame,
    request: WriteRequest,
) -> UpsertResult:
    """Upsert a Spark DataFrame; see :meth:`lakemerge.LakeTable.upsert`."""
    frame, schema = _typed(frame, begin, request.merge_schema)
    if request.before:
        moves = Moves.of(request.before, schema, begin.config, request.kind_column)
        _check_types(schema, moves)
        frame, schema, request = _expanded(frame, moves), moves.schema(schema), request.expanded(moves)
    estimated_bytes = _estimated_bytes(frame) if begin.is_empty else None
    write = Write.start(handle, begin, schema, request, estimated_bytes=estimated_bytes)
    if isinstance(write, UpsertResult):
        return write
    loaded = bulk_load(write, frame) if write.may_load else None
    if loaded is not None:
        return loaded
    packed = _packed(write, frame)
    return finish(write, packed, load_file_slices=partial(load_on_spark, frame.sparkSession))


def _check_types(schema: pa.Schema, moves: Moves) -> None:
    """Raise :class:`FrameError` if Spark would have to cast partition values: its casts change some."""
    for field, *names in zip(moves.partition, moves.now, moves.before, strict=True):
        for name in names:
            if schema.field(name).type != field.type:
                raise FrameError(
                    f"column {name!r} is {type_name(schema.field(name).type)}, the table has {type_name(field.type)}: "
                    f"with {argument('before')}, cast it",
                    column=name,
                )


def _expanded(frame: DataFrame, moves: Moves) -> DataFrame:
    """As :meth:`lakemerge.write.moves.Moves.expanded`. A row's delete stays before its record."""
    kind = functions.lit(RowKind.UPDATE_AFTER.symbol)
    given = kind if moves.given_kind is None else functions.col(quoted(moves.given_kind)).cast("string")
    moved, was = functions.lit(False), dict[str, Column]()
    types = {name: type_ddl(field.type) for name, field in zip(moves.now, moves.partition, strict=True)}
    for now, before in zip(moves.now, moves.before, strict=True):
        old, new = (functions.col(quoted(name)).cast(types[now]) for name in (before, now))
        moved = moved | functions.coalesce(old != new, functions.lit(False))
        was[now] = functions.coalesce(old, new)
    if moves.given_kind is not None:
        moved = moved & ~functions.coalesce(given.isin("-U", "update_preimage"), functions.lit(False))
    record, delete = [], []
    for name in moves.kept:
        column = functions.col(quoted(name))
        column = column.cast(types[name]) if name in types else column
        record.append(column.alias(name))
        standing = was.get(name, column) if name in moves.standing else functions.when(functions.lit(False), column)
        delete.append(standing.alias(name))
    record.append(given.alias(moves.kind_column))
    delete.append(functions.lit(RowKind.DELETE.symbol).alias(moves.kind_column))
    both = functions.array(functions.when(moved, functions.struct(*delete)), functions.struct(*record))
    rows = frame.select(functions.explode(functions.array_compact(both)).alias("_lm_row"))
    return rows.select("_lm_row.*")


def overwrite_dataframe(handle: Handle, begin: TableView, frame: DataFrame, request: OverwriteRequest) -> UpsertResult:
    """Overwrite with a Spark DataFrame; see :meth:`lakemerge.LakeTable.overwrite`."""
    request.checked(begin.config)
    frame, schema = _typed(frame, begin, request.merge_schema)
    estimated_bytes = _estimated_bytes(frame) if begin.config.buckets is None else None
    states = AsStates.of(schema, begin.config)
    write = start_overwrite(handle, begin, states.schema, request, estimated_bytes=estimated_bytes)
    if isinstance(write, UpsertResult):
        return write
    nulls = {field.name: functions.lit(None).cast(type_ddl(field.type)) for field in states.lacking}
    packed = _packed(write, frame.withColumns({**nulls, KIND_COLUMN: functions.lit(SET).cast("tinyint")}))
    spark = frame.sparkSession
    check, load = partial(_check_on_spark, spark), partial(load_on_spark, spark)
    return finish_overwrite(write, packed, request, check=check, load=load)


def _check_on_spark(spark: SparkSession, write: Write, file_slices: Sequence[FileSlice]) -> None:
    """A :data:`lakemerge.write.overwrite.CheckFileSlices` in tasks of Spark."""
    settings, spec = write.pack.settings, write.pack
    found = map_in_tasks(
        spark,
        lambda file_slice: repeated_key_of(spec, file_slice),
        list(file_slices),
        sizes=[file_slice.stored_bytes for file_slice in file_slices],
        target_bytes=settings.target_task_bytes,
    )
    check_once(found)


def _typed(frame: DataFrame, begin: TableView, merge_schema: bool) -> tuple[DataFrame, pa.Schema]:
    """The frame, and its schema in Arrow. Columns without a type (of nulls alone) get the table's types.

    Raises :class:`FrameError` for a frame that cannot be written as a whole, and for types that no table has.
    """
    if not is_running(frame.sparkSession):
        raise FrameError("the frame belongs to a Spark session that was stopped; make it again in one that runs")
    if frame.isStreaming:
        raise FrameError(
            "the frame is a stream, and this call takes frames that end: write it with "
            f"table.write_stream(frame, {argument('checkpoint', '...')})"
        )
    types = {field.name.lower(): field.type for field in begin.config.schema}
    typed: dict[str, Column] = {}
    for field in frame.schema:
        if field.dataType.typeName() == "void":
            if field.name.lower() not in types and merge_schema:
                raise FrameError(f"column {field.name!r} is new and has no type; cast it to the type it should get")
            if field.name.lower() not in types:
                raise FrameError(f"unknown column {field.name!r}; the table has {', '.join(begin.config.schema.names)}")
            typed[field.name] = functions.lit(None).cast(type_ddl(types[field.name.lower()]))
    frame = frame.withColumns(typed) if typed else frame
    return frame, frame_schema(frame.schema)


def pack_dry_dataframe(handle: Handle, begin: TableView, frame: DataFrame, request: WriteRequest) -> Sequence[Packed]:
    """:func:`lakemerge.write.upsert.pack_dry` in tasks of Spark."""
    frame, schema = _typed(frame, begin, request.merge_schema)
    write = Write.start(handle, begin, schema, request, estimated_bytes=None)
    if isinstance(write, UpsertResult):
        return []
    return _packed(replace(write, pack=replace(write.pack, dry=True)), frame)


def _packed(write: Write, frame: DataFrame) -> list[Packed]:
    """What tasks of Spark packed of a frame, in the order of its partitions."""
    prepare_workers(frame.sparkSession)
    kind = [] if write.frame.kind_column is None else [write.frame.kind_column]
    spec = portable(write.pack)
    wanted, sent = send(frame, [*write.frame.sources, *kind])

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pack_partition(map(sent.received, batches), spec)

    try:
        with batches_by_rows(frame.sparkSession, write.begin):
            tasks: Sequence[tuple[int, Packed]] = collect_results(wanted.mapInArrow(run, RESULT_DDL))
    except BaseException:
        write.discard()
        raise
    return [packed for _, packed in sorted(tasks, key=lambda task: task[0])]


def frame_schema(schema: StructType) -> pa.Schema:
    """The frame's schema in Arrow. Raises :class:`FrameError` for types that no table has."""
    try:
        return from_delta_json(schema.json(), of_frame=True)
    except SchemaError as error:
        raise FrameError(f"the frame does not fit the table: {error.message}", **error.facts) from error


def pack_partition(batches: Iterable[pa.RecordBatch], spec: PackSpec) -> pa.RecordBatch:
    """On an executor: pack one partition, and return the result of :func:`pack_rows` as a row."""
    return result_batch(lambda: pack_rows(batches, spec))


def pack_rows(batches: Iterable[pa.RecordBatch], spec: PackSpec) -> tuple[int, Packed]:
    """On an executor: pack one partition. Returns its number, too, which errors about a row also name."""
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    try:
        return number, pack(batches, spec, number)
    except FrameError as error:
        if "row" not in error.facts:
            raise
        raise FrameError(
            f"partition {number} of the frame: {error.message}", **error.facts, partition=number
        ) from error


def load_on_spark(spark: SparkSession, write: Write, file_slices: Sequence[FileSlice]) -> list[AddFile]:
    """Merge the file slices of a first load into base files, in tasks of Spark."""
    settings = write.pack.settings
    counts = [ordinals_needed(file_slice.stored_bytes, settings) for file_slice in file_slices]
    jobs = list(zip(file_slices, accumulate(counts[:-1], initial=write.first_ordinal), strict=True))
    spec, version = write.pack, write.begin.version
    parts = map_in_tasks(
        spark,
        lambda job: load_file_slice(spec, version, *job),
        jobs,
        sizes=[file_slice.stored_bytes for file_slice in file_slices],
        target_bytes=settings.target_task_bytes,
    )
    return [add for part in parts for add in part]


def _estimated_bytes(frame: DataFrame) -> int | None:
    """Spark's own estimate of the frame's size, if it is believable: for joins and filters Spark multiplies unknown
    sizes. ``EXPLAIN`` gives it in classic sessions and in Connect."""
    spark, view = frame.sparkSession, f"lakemerge_{uuid.uuid4().hex}"
    frame.createTempView(view)
    try:
        with session_settings(spark, _SHORT_PLANS):
            plan = str(spark.sql(f"EXPLAIN COST SELECT * FROM {view}").collect()[0][0])  # noqa: S608 - our own name
    finally:
        spark.catalog.dropTempView(view)
    match = _SIZE.search(plan)
    if match is None:
        return None
    estimate = float(match[1]) * 2 ** _UNITS[match[2]]
    return int(estimate * _ROWS_TO_FILES) if estimate < _BELIEVABLE_BYTES else None
