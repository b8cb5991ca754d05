"""Flows of change capture on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.streaming.query import StreamingQuery

from lakemerge.errors import FrameError, InputError
from lakemerge.flows.auto_cdc import KIND
from lakemerge.flows.history import derived_batches, history_schema
from lakemerge.flows.settings import DELETED, END, START, FlowSettings, HistoryView
from lakemerge.flows.snapshots import SNAPSHOT_VERSION, Version, next_version, stamp_of
from lakemerge.flows.target import opened_target
from lakemerge.flows.truncation import apply_truncate, truncated_below
from lakemerge.results.results import UpsertResult
from lakemerge.schema.schema import to_ddl
from lakemerge.spark.names import quoted
from lakemerge.spark.stream_write import BatchWriter, start_stream
from lakemerge.spark.transport.jobs import limited
from lakemerge.spark.workers import prepare_workers
from lakemerge.spark.writer import frame_schema
from lakemerge.table import LakeTable

__all__ = ["spark_auto_cdc", "spark_history", "spark_snapshot"]


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
        raise InputError("a stream needs a checkpoint, by which its batches are known, and takes no txn")
    table = opened_target(target, settings, frame_schema(source.schema), source.sparkSession)
    if not source.isStreaming:
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
        self._write = BatchWriter(table, None, kind_column=_kind_column(settings), merge_schema=False)

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
        (highest,) = batch.where(empties).agg(functions.max(functions.col(quoted(sequence)))).collect()
        if highest[0] is not None:
            apply_truncate(table, sequence, highest[0])
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


def _not_null(name: str) -> Column:
    told = functions.lit(f"sequence column {name!r} is null in an event; each event needs its place")
    value = functions.col(quoted(name))
    return functions.when(value.isNull(), functions.raise_error(told)).otherwise(value)


def _condition(given: Any) -> Column:
    return functions.expr(given) if isinstance(given, str) else cast("Column", given)


def spark_history(target: LakeTable, view: HistoryView) -> DataFrame:
    """See :func:`lakemerge.flows.history_df`."""
    events = target.to_df()
    prepare_workers(events.sparkSession)
    keys = [functions.col(quoted(name)) for name in view.keys]
    ordered = events.repartition(*keys).sortWithinPartitions(*keys, functions.col(START))
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] = _Deriving(view)
    return ordered.mapInArrow(limited(run), to_ddl(history_schema(target.schema)))


class _Deriving:
    """Derives the history in a task. Picklable."""

    def __init__(self, view: HistoryView) -> None:
        self._view = view

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return derived_batches(batches, self._view)


def spark_snapshot(frame: DataFrame, version: Version | None, target: Any, settings: FlowSettings) -> UpsertResult:
    """One snapshot of :func:`lakemerge.flows.auto_cdc_from_snapshot`."""
    if frame.isStreaming:
        raise InputError("a snapshot is a batch, not a stream")
    stamp = next_version(target) if version is None else version
    at = functions.lit(stamp).cast("bigint" if isinstance(stamp, int) else "timestamp")
    stamped = frame.withColumn(SNAPSHOT_VERSION, at)
    table = opened_target(target, settings, frame_schema(stamped.schema), frame.sparkSession)
    own = stamp_of(table, stamp)
    keys = [quoted(name) for name in settings.keys]
    if frame.groupBy(*keys).count().where("count > 1").limit(1).collect():
        raise FrameError(f"a key is twice in the snapshot; {', '.join(settings.keys)} must identify its rows")
    columns = [quoted(name) for name in frame.columns]
    has_history = settings.scd_type == 2
    there = spark_history(table, settings.view).where(f"{END} IS NULL") if has_history else table.to_df()
    changed = frame.select(*columns).exceptAll(there.select(*columns)).withColumn(KIND, functions.lit("+U"))
    gone = there.select(*columns).join(frame.select(*keys), list(settings.keys), "left_anti")
    changes = changed.unionByName(gone.withColumn(KIND, functions.lit("-D")))
    txn = cast("tuple[str, int]", own)
    if settings.scd_type == 1:
        return table.upsert(changes.withColumn(SNAPSHOT_VERSION, at), kind_column=KIND, txn=txn)
    events = changes.withColumn(START, at).withColumn(DELETED, functions.col(KIND) == "-D").drop(KIND)
    return table.upsert(events, txn=txn)
