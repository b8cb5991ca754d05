"""``auto_cdc``: takes up events of a change capture, in any order, as present rows or as their history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from lakemerge._internal.arguments import checked, shown
from lakemerge.errors import FrameError, InputError
from lakemerge.flows.entry import entered, whole_frame
from lakemerge.flows.settings import DELETED, KIND, START, FlowSettings
from lakemerge.flows.target import opened_target
from lakemerge.flows.truncation import apply_truncate, last_place, truncated_below
from lakemerge.frames import is_spark_frame
from lakemerge.read.filter.filter import parse_filter
from lakemerge.results.writes import UpsertResult
from lakemerge.spark.installed import check_writes
from lakemerge.table.table import LakeTable
from mergers.contract import Bools

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["auto_cdc", "mask_of"]

_PLACE = "_lm_place"


@checked
def auto_cdc(
    *,
    source: Any,
    target: Any,
    keys: str | Sequence[str],
    sequence_by: str | Sequence[str],
    apply_as_deletes: Any = None,
    apply_as_truncates: Any = None,
    ignore_null_updates: bool = False,
    column_list: str | Sequence[str] | None = None,
    except_column_list: str | Sequence[str] | None = None,
    stored_as_scd_type: int | str = 1,
    track_history_column_list: str | Sequence[str] | None = None,
    track_history_except_column_list: str | Sequence[str] | None = None,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    txn: tuple[str, int] | None = None,
) -> UpsertResult | StreamingQuery:
    """Take up events of a change capture. From a stream each event is taken up exactly once.

    Events may come late and in any order: the sequence says which is newer. Type 1 keeps the present row of each key.
    Type 2 keeps every event; :func:`lakemerge.flows.history` and :func:`lakemerge.flows.history_df` show the rows of
    each key with ``__START_AT`` and ``__END_AT``.

    :param source: a batch or streaming DataFrame of Spark, or a pyarrow, pandas or polars frame. Its columns may have
        other types than the table's, as in :meth:`lakemerge.LakeTable.upsert`.
    :param target: a table or its path. If there is no table at the path, the flow makes it.
    :param keys: the columns that identify a row.
    :param sequence_by: the columns that say which of two events is newer; never null. A table of type 1 keeps them,
        also if ``except_column_list`` names them, because they show which events are late.
    :param apply_as_deletes: the SQL condition of events that delete; on Spark also a Column.
    :param apply_as_truncates: the SQL condition of events that delete all older rows. Only for type 1.
    :param ignore_null_updates: whether a null in an event leaves the column as it was.
    :param column_list: the columns of the target; by default all.
    :param except_column_list: columns that the target does not get.
    :param stored_as_scd_type: 1 or 2.
    :param track_history_column_list: the columns whose change begins a new row of the history; by default all. A
        change in other columns changes the newest row in place.
    :param track_history_except_column_list: the columns whose change begins no new row.
    :param checkpoint: the checkpoint of a stream's query. A stream needs one.
    :param trigger: for a stream, as for :meth:`lakemerge.LakeTable.write_stream`.
    :param txn: for a batch, as for :meth:`lakemerge.LakeTable.upsert`.
    :raises lakemerge.InputError: arguments contradict each other, or the target's definition; everything is listed.
    """
    settings = FlowSettings.checked(
        keys=keys,
        sequence_by=sequence_by,
        deletes=apply_as_deletes,
        truncates=apply_as_truncates,
        ignore_null_updates=ignore_null_updates,
        column_list=column_list,
        except_column_list=except_column_list,
        scd_type=stored_as_scd_type,
        track=track_history_column_list,
        untracked=track_history_except_column_list,
    )
    if is_spark_frame(source):
        check_writes("a flow of a Spark DataFrame")
        from lakemerge.flows.spark import spark_auto_cdc

        return spark_auto_cdc(source, target, settings, checkpoint=checkpoint, trigger=trigger, txn=txn)
    if checkpoint is not None or trigger is not None:
        raise InputError("checkpoint and trigger are for a streaming DataFrame; a batch takes txn")
    given = whole_frame(source)
    table = opened_target(target, settings, given.schema, None)
    return _apply(table, settings, entered(given, table, settings), txn)


def _apply(table: LakeTable, settings: FlowSettings, events: pa.Table, txn: tuple[str, int] | None) -> UpsertResult:
    sequence = settings.sequence_by[0]
    if settings.truncates is not None:
        empties = mask_of(events, settings.truncates)
        if empties.any():
            places = events.column(_spelled(events, sequence)).filter(pa.array(empties))
            if (last := last_place(places)) is not None:
                apply_truncate(table, sequence, last)
        events = events.filter(pa.array(~empties))
    if (below := truncated_below(table, sequence)) is not None:
        events = events.filter(pa.array(~mask_of(events, below)))
    _check_sequence(events, settings)
    deletes = np.zeros(events.num_rows, dtype=np.bool_)
    if settings.deletes is not None:
        deletes = mask_of(events, settings.deletes)
    rows = events.select(settings.columns(events.column_names))
    if settings.scd_type == 2:
        rows = rows.append_column(START, events.column(_spelled(events, sequence)))
        return table.upsert(rows.append_column(DELETED, pa.array(deletes)), txn=txn)
    kinds = pa.array(["+U", "-D"]).take(pa.array(deletes.astype(np.int64)))
    return table.upsert(rows.append_column(KIND, kinds), kind_column=KIND, txn=txn)


def mask_of(rows: pa.Table, condition: object) -> Bools:
    """Which rows meet a SQL condition; null counts as no."""
    if not isinstance(condition, str):
        raise InputError(f"a condition on a frame that is not Spark's must be SQL text, not {shown(condition)}")
    judged = parse_filter(condition, rows.schema)
    mask = np.zeros(rows.num_rows, dtype=np.bool_)
    if judged is None:
        raise InputError("a condition must not be empty")
    placed = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
    mask[judged.kept(placed).column(_PLACE).to_numpy()] = True
    return cast("Bools", mask)


def _spelled(rows: pa.Table, column: str) -> str:
    return next(name for name in rows.column_names if name.lower() == column.lower())


def _check_sequence(events: pa.Table, settings: FlowSettings) -> None:
    for name in settings.sequence_by:
        if nulls := events.column(_spelled(events, name)).null_count:
            raise FrameError(f"sequence column {name!r} is null in {nulls} event(s); each event needs its place")
