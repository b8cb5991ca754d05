"""``auto_cdc_from_snapshot``: takes up whole snapshots of a source, one after the other, as rows or their history."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.arguments import checked, shown, whole
from lakemerge.errors import FrameError, InputError
from lakemerge.feed.difference import row_changes
from lakemerge.flows.auto_cdc import KIND
from lakemerge.flows.entry import cast_rows, entry_schema, whole_frame
from lakemerge.flows.history import history
from lakemerge.flows.settings import DELETED, END, START, FlowSettings
from lakemerge.flows.target import opened_target
from lakemerge.frames import is_spark_frame
from lakemerge.read.feed_columns import FeedColumns
from lakemerge.results.results import UpsertResult
from lakemerge.table import LakeTable
from lakemerge.write.upsert import OwnTxn
from mergers import RowKind
from mergers.contract import Bools, Ints
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import gather
from mergers.wording import argument

__all__ = [
    "SNAPSHOT_APP",
    "SNAPSHOT_VERSION",
    "Version",
    "auto_cdc_from_snapshot",
    "keys_of",
    "lacking_columns",
    "next_version",
    "snapshot_fields",
    "stamp_of",
    "stamped_schema",
    "twice",
]

SNAPSHOT_APP = "lakemerge.flow.snapshot"
"""The application id under which snapshots are committed. Its number is the version of the last one."""
SNAPSHOT_VERSION = "__SNAPSHOT"
"""The column that is the sequence while a snapshot is taken up."""

Version = int | dt.datetime


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
        raise InputError(f"the function tells versions: {argument('version')} is for a frame")
    return _all(source, target, settings)


def _all(
    source: Callable[[Version | None], tuple[Any, Version] | None], target: Any, settings: FlowSettings
) -> list[UpsertResult]:
    done: list[UpsertResult] = []
    last = _last_version(target)
    while (found := source(last)) is not None:
        frame, version = found
        done.append(_take_up(frame, version, target, settings))
        last = version
    return done


def _last_version(target: Any) -> Version | None:
    """The last version, for a function of snapshots. If versions are times, it is a time."""
    try:
        table = target if isinstance(target, LakeTable) else LakeTable.open(target)
    except InputError:
        return None
    done = table.view.snapshot.txns.get(SNAPSHOT_APP)
    if done is None:
        return None
    begins = [field.type for field in table.schema if field.name in (START, SNAPSHOT_VERSION)]
    return _version_of(done.version, begins[0])


def _take_up(frame: Any, version: Version | None, target: Any, settings: FlowSettings) -> UpsertResult:
    if is_spark_frame(frame):
        from lakemerge.flows.spark import spark_snapshot

        return spark_snapshot(frame, version, target, settings)
    given = whole_frame(frame)
    stamp = version if version is not None else next_version(target)
    table = opened_target(target, settings, stamped_schema(given.schema, stamp), None)
    own = stamp_of(table, stamp)
    changes = _changes(table, settings, snapshot_rows(given, table, settings))
    rows, kinds = changes.drop_columns([KIND]), changes.column(KIND)
    stamps = pa.chunked_array([pa.repeat(pa.scalar(stamp, _type(stamp)), rows.num_rows)])
    # The tuple type is for users' own; ids like these are the library's.
    txn = cast("tuple[str, int]", own)
    if settings.scd_type == 1:
        return table.upsert(changes.append_column(SNAPSHOT_VERSION, stamps), kind_column=KIND, txn=txn)
    events = rows.append_column(START, stamps)
    return table.upsert(events.append_column(DELETED, pc.equal(kinds, "-D")), txn=txn)


def stamped_schema(given: pa.Schema, version: Version) -> pa.Schema:
    """The columns of a snapshot, and the column that holds its version."""
    return given.append(pa.field(SNAPSHOT_VERSION, _type(version)))


def snapshot_fields(given: pa.Schema, table: LakeTable, settings: FlowSettings) -> tuple[pa.Schema, list[pa.Field]]:
    """The columns of a snapshot in the table's types, as the snapshot spells and orders them, and the same columns as
    the table spells them. Raises :class:`FrameError` for columns that do not fit the table."""
    own = {field.name.lower(): field for field in table.schema}
    stamp = table.schema.field(SNAPSHOT_VERSION if settings.scd_type == 1 else START)
    wanted = entry_schema(given.append(stamp.with_name(SNAPSHOT_VERSION)), table, settings).remove(len(given))
    return wanted, [own[field.name.lower()].with_nullable(True) for field in wanted]


def snapshot_rows(given: pa.Table, table: LakeTable, settings: FlowSettings) -> pa.Table:
    """A snapshot in the table's types and names."""
    wanted, own = snapshot_fields(given.schema, table, settings)
    return cast_rows(given, wanted).rename_columns([field.name for field in own])


def keys_of(table: LakeTable, settings: FlowSettings) -> tuple[str, ...]:
    """The columns that identify a row of a snapshot, as the table spells them."""
    return tuple(name for name in table.key if name != START or settings.scd_type == 1)


def lacking_columns(table: LakeTable, settings: FlowSettings, given: Sequence[str]) -> list[str]:
    """The columns that an event of a history has to copy from the row that is there, because the snapshot lacks them.
    In a table of present rows they stay unset."""
    if settings.scd_type == 1:
        return []
    return [name for name in table.schema.names if name not in (*given, START, DELETED)]


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


def twice(key: Sequence[str]) -> FrameError:
    """The error for a snapshot that has a key more than once."""
    return FrameError(f"a key is twice in the snapshot; {', '.join(key)} must identify its rows")


def stamp_of(table: LakeTable, version: Version) -> OwnTxn:
    """The transaction that takes a snapshot up. Raises :class:`InputError` if a later one was taken up."""
    number = _number(version)
    done = table.view.snapshot.txns.get(SNAPSHOT_APP)
    if done is not None and number < done.version:
        raise InputError(
            f"snapshot {version!r} comes after {_version_of(done.version, _type(version))!r} was taken up: versions "
            "must grow"
        )
    return OwnTxn(SNAPSHOT_APP, number)


def next_version(target: Any) -> int:
    """One more than the last snapshot's."""
    last = _last_version(target)
    if isinstance(last, dt.datetime):
        raise InputError(f"the versions of this target are times: give {argument('version')}")
    return 1 if last is None else last + 1


def _number(version: Any) -> int:
    if isinstance(version, dt.datetime) and version.tzinfo is not None:
        return (version - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)
    try:
        found = whole(version, "version")
    except InputError:
        found = -1
    if found < 0:
        raise InputError(
            f"a snapshot's version must be an integer from 0 on, or a datetime with a zone, not {shown(version)}"
        )
    return found


def _type(version: Version) -> pa.DataType:
    _number(version)
    return pa.timestamp("us", "UTC") if isinstance(version, dt.datetime) else pa.int64()


def _version_of(number: int, kind: pa.DataType) -> Version:
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=number)
    return number


def _by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, key))) if rows.num_rows else rows
