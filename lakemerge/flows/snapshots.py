"""``auto_cdc_from_snapshot``: takes up whole snapshots of a source, one after the other, as rows or their history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.arguments import checked
from lakemerge.errors import FrameError, InputError
from lakemerge.feed.difference import row_changes
from lakemerge.flows.entry import cast_rows, whole_frame
from lakemerge.flows.history import history
from lakemerge.flows.settings import DELETED, END, KIND, START, FlowSettings
from lakemerge.flows.stamps import (
    SNAPSHOT_VERSION,
    Version,
    keys_of,
    lacking_columns,
    last_version,
    next_version,
    snapshot_fields,
    stamp_of,
    stamped_schema,
    twice,
    version_type,
)
from lakemerge.flows.target import opened_target
from lakemerge.frames import is_spark_frame
from lakemerge.read.feed_columns import FeedColumns
from lakemerge.results.writes import UpsertResult
from lakemerge.spark.installed import check_writes
from lakemerge.table.table import LakeTable
from mergers import RowKind
from mergers.contract import Bools, Ints
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import gather
from mergers.wording import argument

__all__ = ["auto_cdc_from_snapshot"]


@checked
def auto_cdc_from_snapshot(
    *,
    source: Any,
    target: Any,
    keys: str | Sequence[str],
    version: Version | None = None,
    stored_as_scd_type: int | str = 1,
    track_history_column_list: str | Sequence[str] | None = None,
    track_history_except_column_list: str | Sequence[str] | None = None,
) -> list[UpsertResult]:
    """Take up a whole snapshot of a source in one commit. Rows that are new or differ are upserted; rows that it lacks
    are deleted. A column that it lacks stays as it is: unset is not null.

    :param source: the snapshot: a batch DataFrame of Spark, or a pyarrow, pandas or polars frame. Or a function, which
        gets the last version that was taken up (``None`` before the first), and returns ``(snapshot, version)`` for
        the next snapshot, or ``None`` if there is none. It is called until it returns ``None``.
    :param target: as for :func:`lakemerge.flows.auto_cdc`. Nobody else may write to it.
    :param version: an integer, or a time with a zone, that grows from snapshot to snapshot. A version that was taken
        up already changes nothing. By default one more than the last.
    :returns: what was written, for each snapshot.
    :raises lakemerge.InputError: the version is below the last one, or a key is in the snapshot twice.
    """
    settings = FlowSettings.checked(
        keys=keys,
        sequence_by=SNAPSHOT_VERSION,
        deletes=None,
        truncates=None,
        ignore_null_updates=False,
        column_list=None,
        except_column_list=SNAPSHOT_VERSION,
        scd_type=stored_as_scd_type,
        track=track_history_column_list,
        untracked=track_history_except_column_list,
    )
    if not callable(source):
        return [_take_up(source, version, target, settings)]
    if version is not None:
        raise InputError(f"the function returns versions: {argument('version')} is for a frame")
    return _all(source, target, settings)


def _all(
    source: Callable[[Version | None], tuple[Any, Version] | None], target: Any, settings: FlowSettings
) -> list[UpsertResult]:
    done: list[UpsertResult] = []
    last = last_version(target)
    while (found := source(last)) is not None:
        frame, version = found
        done.append(_take_up(frame, version, target, settings))
        last = version
    return done


def _take_up(frame: Any, version: Version | None, target: Any, settings: FlowSettings) -> UpsertResult:
    if is_spark_frame(frame):
        check_writes("a flow of a Spark DataFrame")
        from lakemerge.flows.spark import spark_snapshot

        return spark_snapshot(frame, version, target, settings)
    given = whole_frame(frame)
    stamp = version if version is not None else next_version(target)
    table = opened_target(target, settings, stamped_schema(given.schema, stamp), None)
    own = stamp_of(table, stamp)
    changes = _changes(table, settings, snapshot_rows(given, table, settings))
    rows, kinds = changes.drop_columns([KIND]), changes.column(KIND)
    stamps = pa.chunked_array([pa.repeat(pa.scalar(stamp, version_type(stamp)), rows.num_rows)])
    # The tuple type is for users' own; ids like these are the library's.
    txn = cast("tuple[str, int]", own)
    if settings.scd_type == 1:
        return table.upsert(changes.append_column(SNAPSHOT_VERSION, stamps), kind_column=KIND, txn=txn)
    events = rows.append_column(START, stamps)
    return table.upsert(events.append_column(DELETED, pc.equal(kinds, "-D")), txn=txn)


def snapshot_rows(given: pa.Table, table: LakeTable, settings: FlowSettings) -> pa.Table:
    """A snapshot in the table's types and names."""
    wanted, own = snapshot_fields(given.schema, table, settings)
    return cast_rows(given, wanted).rename_columns([field.name for field in own])


def _changes(table: LakeTable, settings: FlowSettings, snapshot: pa.Table) -> pa.Table:
    """The rows that the table has to get, with their kinds. Columns that the snapshot lacks are not compared."""
    key = keys_of(table, settings)
    there = table.to_arrow() if settings.scd_type == 1 else history(table)
    if settings.scd_type == 2:
        there = there.filter(pc.is_null(there.column(END)))
    for name in key:
        if nulls := snapshot.column(name).null_count:
            raise FrameError(f"key column {name!r} is null in {nulls} row(s) of the snapshot; each row needs its key")
    new = _by_key(snapshot, key)
    if len(group_starts(key_columns(new, key))) < new.num_rows:
        raise twice(key)
    columns = FeedColumns.of([(1, new.schema)])
    old = _by_key(there, key)
    both = pa.concat_tables([rows.select(key).cast(pa.schema([new.field(k) for k in key])) for rows in (old, new)])
    every = _by_key(both, key)
    every = every.take(pa.array(group_starts(key_columns(every, key)))) if every.num_rows else every
    rows, kinds = row_changes(columns, key, every, old.select(new.column_names), new, before_images=False)
    if lacking := lacking_columns(table, settings, snapshot.column_names):
        at, was = locate(key_columns(old, key), key_columns(rows, key))
        rows, kinds = _with_columns_of(old.select(lacking), rows, kinds, at, was)
    words = pa.array(["-D" if kind is RowKind.DELETE else "+U" for kind in sorted(RowKind)])
    return rows.append_column(KIND, words.take(pa.array(kinds)))


def _with_columns_of(there: pa.Table, rows: pa.Table, kinds: Ints, at: Ints, was: Bools) -> tuple[pa.Table, Ints]:
    """The rows with further columns: those of the rows that are there, and null where there is none. First come the
    rows that were there, because no position may be gathered twice.

    :param at: for each row, where the one that is there is, if ``was``.
    """
    order = np.concatenate([np.flatnonzero(was), np.flatnonzero(~was)])
    found = gather(there, at[was]) if was.any() else there.slice(0, 0)
    rows = gather(rows, order)
    for name in there.column_names:
        gap = pa.nulls(len(was) - found.num_rows, there.schema.field(name).type)
        rows = rows.append_column(name, pa.chunked_array([*found.column(name).chunks, gap], gap.type))
    return rows, kinds[order]


def _by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, key))) if rows.num_rows else rows
