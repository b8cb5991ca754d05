"""Flows of change capture on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from lakemerge.datasource.stream_write import BatchWriter, start_stream
from lakemerge.errors import FrameError, InputError
from lakemerge.flows.derivation import derived_batches, history_schema
from lakemerge.flows.entry import cast_rows, entry_schema
from lakemerge.flows.settings import DELETED, END, KIND, START, FlowSettings, HistoryView
from lakemerge.flows.stamps import (
    SNAPSHOT_VERSION,
    Version,
    keys_of,
    lacking_columns,
    next_version,
    snapshot_fields,
    stamp_of,
    stamped_schema,
    twice,
)
from lakemerge.flows.target import opened_target
from lakemerge.flows.truncation import apply_truncate, last_place, truncated_below
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.schema import to_ddl, type_ddl
from lakemerge.spark.names import quoted, selected
from lakemerge.spark.sessions import prepare_workers
from lakemerge.spark.transport.jobs import limited
from lakemerge.spark.transport.transit import SentColumns, send
from lakemerge.spark.writer import frame_schema
from lakemerge.spark_errors import carrying, unwrap_errors
from lakemerge.table.table import LakeTable

__all__ = ["comparable", "source_schema", "spark_auto_cdc", "spark_history", "spark_snapshot"]

_PLACE = "_lm_place"


def spark_auto_cdc(
    source: DataFrame,
    target: Any,
    settings: FlowSettings,
    *,
    checkpoint: str | None,
    trigger: Mapping[str, Any] | None,
    txn: tuple[str, int] | None,
) -> UpsertResult | StreamingQuery:
    """See :func:`lakemerge.flows.auto_cdc`."""
    if not source.isStreaming and (checkpoint is not None or trigger is not None):
        raise InputError("checkpoint and trigger are for a streaming DataFrame; a batch takes txn")
    if source.isStreaming and (checkpoint is None or txn is not None):
        raise InputError("a stream needs a checkpoint, which identifies its batches, and takes no txn")
    table = opened_target(target, settings, source_schema(source), source.sparkSession)
    entry_schema(source_schema(source), table, settings)  # raises if the source does not fit
    if not source.isStreaming:
        with unwrap_errors():
            return table.upsert(_events(table, settings, source), kind_column=_kind_column(settings), txn=txn)
    chosen = {"availableNow": True} if trigger is None else dict(trigger)
    return start_stream(
        source,
        _Flow(table, settings),
        checkpoint=str(checkpoint),
        trigger=chosen,
        output_mode="append",
        query_name=None,
    )


class _Flow:
    """What ``foreachBatch`` calls."""

    def __init__(self, table: LakeTable, settings: FlowSettings) -> None:
        self._table = table
        self._settings = settings
        self._write = BatchWriter(
            table.opened, table.upsert, None, kind_column=_kind_column(settings), merge_schema=False
        )

    @carrying()
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if self._settings.truncates is None:
            self._write(_events(self._table, self._settings, batch), batch_id)
            return
        batch.persist()  # read twice: the first time only for truncates
        try:
            self._write(_events(self._table, self._settings, batch), batch_id)
        finally:
            batch.unpersist()


def _kind_column(settings: FlowSettings) -> str | None:
    return KIND if settings.scd_type == 1 else None


def _events(table: LakeTable, settings: FlowSettings, batch: DataFrame) -> DataFrame:
    """The events of a batch that are upserted. Truncates in the batch are applied."""
    sequence = settings.sequence_by[0]
    if settings.truncates is not None:
        empties = functions.coalesce(_condition(settings.truncates), functions.lit(False))
        last = _last_place(batch.where(empties), sequence, table)
        if last is not None:
            apply_truncate(table, sequence, last)
        batch = batch.where(~empties)
    if (below := truncated_below(table, sequence)) is not None:
        batch = batch.where(f"NOT coalesce({below}, false)")
    deletes = functions.lit(False)
    if settings.deletes is not None:
        deletes = functions.coalesce(_condition(settings.deletes), functions.lit(False))
    columns = [functions.col(quoted(name)) for name in settings.columns(batch.columns)]
    if settings.scd_type == 1:
        kind = functions.when(deletes, "-D").otherwise("+U").alias(KIND)
        for name in settings.sequence_by:
            batch = batch.withColumn(name, _not_null(name))
        return batch.select(*columns, kind)
    return batch.select(*columns, functions.col(quoted(sequence)).alias(START), deletes.alias(DELETED))


def _last_place(truncates: DataFrame, sequence: str, table: LakeTable) -> Any:
    """The greatest place of truncates, in the table's type. It is collected as Arrow data: as a row, a time would come
    without its zone, in the zone of this process."""
    if any(field.name.lower() == sequence.lower() and _is_void(field) for field in truncates.schema):
        return None
    found = truncates.agg(functions.max(functions.col(quoted(sequence))).alias(_PLACE)).toArrow()
    spelled = next(field for field in table.schema if field.name.lower() == sequence.lower())
    return last_place(cast_rows(found, pa.schema([pa.field(_PLACE, spelled.type)])).column(_PLACE))


def _not_null(name: str) -> Column:
    # Spark passes on nothing but the text. This is how an error of ours is found in it.
    told = functions.lit(
        f"\nFrameError: [{FrameError.code}] sequence column {name!r} is null in an event; each event needs its place\n"
    )
    value = functions.col(quoted(name))
    return functions.when(value.isNull(), functions.raise_error(told)).otherwise(value)


def _condition(given: Any) -> Column:
    return functions.expr(given) if isinstance(given, str) else cast("Column", given)


def source_schema(frame: DataFrame) -> pa.Schema:
    """The frame's columns in Arrow. Those of nulls alone, which have no type in Spark either, are of Arrow's null type.
    Raises :class:`FrameError`."""
    fields = list(frame.schema)
    typed = iter(frame_schema(StructType([field for field in fields if not _is_void(field)])))
    return pa.schema([pa.field(field.name, pa.null()) if _is_void(field) else next(typed) for field in fields])


def _is_void(field: StructField) -> bool:
    return field.dataType.typeName() == "void"


def spark_history(target: LakeTable, view: HistoryView) -> DataFrame:
    """See :func:`lakemerge.flows.history_df`."""
    events = target.to_df()
    prepare_workers(events.sparkSession)
    names = events.columns
    sent, columns = send(events, names)
    # The columns that are sent have plain names, by their places.
    place = {name.lower(): f"c{number}" for number, name in enumerate(names)}
    keys = [functions.col(place[name.lower()]) for name in view.keys]
    ordered = sent.repartition(*keys).sortWithinPartitions(*keys, functions.col(place[START.lower()]))
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] = _Deriving(view, columns)
    return ordered.mapInArrow(limited(run), to_ddl(history_schema(target.schema)))


class _Deriving:
    """Derives the history in a task. Picklable."""

    def __init__(self, view: HistoryView, sent: SentColumns) -> None:
        self._view, self._sent = view, sent

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return derived_batches(map(self._sent.received, batches), self._view)


class _Casting:
    """Casts the rows of a frame to the table's types in a task. Picklable."""

    def __init__(self, wanted: pa.Schema, sent: SentColumns) -> None:
        self._wanted, self._sent = wanted, sent

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carrying():
            for batch in batches:
                yield from cast_rows(pa.table(self._sent.received(batch)), self._wanted).to_batches()


def _cast(frame: DataFrame, wanted: pa.Schema, names: list[str]) -> DataFrame:
    """A frame's columns in the types of ``wanted`` and under other names. Rows cross to Python only if types differ."""
    given = source_schema(frame)
    typed = {
        field.name: functions.lit(None).cast(type_ddl(wanted.field(field.name).type))
        for field in frame.schema
        if _is_void(field)
    }
    frame = frame.withColumns(typed) if typed else frame
    if all(given.field(name).type in (wanted.field(name).type, pa.null()) for name in wanted.names):
        return frame.toDF(*names)
    prepare_workers(frame.sparkSession)
    sent, columns = send(frame, wanted.names)
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] = _Casting(wanted, columns)
    made = pa.schema([wanted.field(place).with_name(name) for place, name in enumerate(names)])
    return sent.mapInArrow(limited(run), to_ddl(made))


def spark_snapshot(frame: DataFrame, version: Version | None, target: Any, settings: FlowSettings) -> UpsertResult:
    """One snapshot of :func:`lakemerge.flows.auto_cdc_from_snapshot`."""
    if frame.isStreaming:
        raise InputError("a snapshot is a batch, not a stream")
    stamp = next_version(target) if version is None else version
    given = source_schema(frame)
    table = opened_target(target, settings, stamped_schema(given, stamp), frame.sparkSession)
    own = stamp_of(table, stamp)
    wanted, fields = snapshot_fields(given, table, settings)
    with unwrap_errors():
        changes = _changes(table, settings, frame, wanted, fields)
        at = functions.lit(stamp).cast("bigint" if isinstance(stamp, int) else "timestamp")
        txn = cast("tuple[str, int]", own)
        if settings.scd_type == 1:
            return table.upsert(changes.withColumn(SNAPSHOT_VERSION, at), kind_column=KIND, txn=txn)
        events = changes.withColumn(START, at).withColumn(DELETED, functions.col(KIND) == "-D").drop(KIND)
        return table.upsert(events, txn=txn)


def _changes(
    table: LakeTable, settings: FlowSettings, frame: DataFrame, wanted: pa.Schema, fields: list[pa.Field]
) -> DataFrame:
    """The rows that the table has to get, with their kinds. Columns that the snapshot lacks are not compared.

    Columns have plain names meanwhile: ``n0`` and so on in the snapshot, ``t0`` and so on in the table.
    """
    names = [field.name for field in fields]
    key = keys_of(table, settings)
    new = _cast(frame, wanted, [f"n{place}" for place in range(len(names))])
    keys = [names.index(name) for name in key]
    if new.groupBy(*(f"n{place}" for place in keys)).count().where("count > 1").selectExpr("1").limit(1).collect():
        raise twice(key)
    lacking = lacking_columns(table, settings, names)
    has_history = settings.scd_type == 2
    there = spark_history(table, settings.view).where(f"{END} IS NULL") if has_history else table.to_df()
    there = selected(there, [*names, *lacking]).toDF(*(f"t{place}" for place in range(len(names) + len(lacking))))
    is_key = functions.expr(" AND ".join(f"n{place} = t{place}" for place in keys))
    both = new.withColumn("n", functions.lit(1)).join(there.withColumn("t", functions.lit(1)), is_key, "full_outer")
    differs = " OR ".join(
        f"NOT ({comparable(f'n{place}', field.type)} <=> {comparable(f't{place}', field.type)})"
        for place, field in enumerate(fields)
    )
    kind = f"CASE WHEN n IS NULL THEN '-D' WHEN t IS NULL OR {differs} THEN '+U' END AS {KIND}"
    values = [f"IF(n IS NULL, t{place}, n{place}) AS {quoted(name)}" for place, name in enumerate(names)]
    values += [f"t{place} AS {quoted(name)}" for place, name in enumerate(lacking, start=len(names))]
    return both.selectExpr(*values, kind).where(f"{KIND} IS NOT NULL")


def comparable(value: str, kind: pa.DataType, depth: int = 0) -> str:
    """An SQL expression that can be compared, for a value that may have maps in it, which Spark does not compare. A map
    becomes its entries, sorted by key."""
    if not _has_map(kind):
        return value
    if pa.types.is_struct(kind):
        parts = (
            f"'f{place}', {comparable(f'{value}.{quoted(field.name)}', field.type, depth)}"
            for place, field in enumerate(kind)
        )
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    element = f"e{depth}"
    if pa.types.is_map(kind):
        item = comparable(f"{element}.value", kind.item_type, depth + 1)
        entry = f"named_struct('key', {element}.key, 'value', {item})"
        return f"array_sort(transform(map_entries({value}), {element} -> {entry}))"
    return f"transform({value}, {element} -> {comparable(element, kind.value_type, depth + 1)})"


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(place).type) for place in range(kind.num_fields))
