"""The versions of snapshots, and the columns of a snapshot beside those of its target."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakemerge._internal.arguments import shown, whole
from lakemerge.errors import FrameError, InputError
from lakemerge.flows.entry import entry_schema
from lakemerge.flows.settings import DELETED, START, FlowSettings
from lakemerge.table.table import LakeTable
from lakemerge.write.start import OwnTxn
from mergers.wording import argument

__all__ = [
    "SNAPSHOT_APP",
    "SNAPSHOT_VERSION",
    "Version",
    "keys_of",
    "lacking_columns",
    "last_version",
    "next_version",
    "snapshot_fields",
    "stamp_of",
    "stamped_schema",
    "twice",
    "version_type",
]

SNAPSHOT_APP = "lakemerge.flow.snapshot"
"""The application id under which snapshots are committed. Its number is the version of the last one."""
SNAPSHOT_VERSION = "__SNAPSHOT"
"""The column that is the sequence while a snapshot is taken up."""
Version = int | dt.datetime


def last_version(target: Any) -> Version | None:
    """The last version, for a function of snapshots. If versions are times, it is a time."""
    try:
        table = target if isinstance(target, LakeTable) else LakeTable.open(target)
    except InputError:
        return None
    done = table.opened.view.snapshot.txns.get(SNAPSHOT_APP)
    if done is None:
        return None
    begins = [field.type for field in table.schema if field.name in (START, SNAPSHOT_VERSION)]
    return _version_of(done.version, begins[0])


def stamped_schema(given: pa.Schema, version: Version) -> pa.Schema:
    """The columns of a snapshot, and the column that holds its version."""
    return given.append(pa.field(SNAPSHOT_VERSION, version_type(version)))


def snapshot_fields(given: pa.Schema, table: LakeTable, settings: FlowSettings) -> tuple[pa.Schema, list[pa.Field]]:
    """The columns of a snapshot in the table's types, as the snapshot spells and orders them, and the same columns as
    the table spells them. Raises :class:`FrameError` for columns that do not fit the table."""
    own = {field.name.lower(): field for field in table.schema}
    stamp = table.schema.field(SNAPSHOT_VERSION if settings.scd_type == 1 else START)
    wanted = entry_schema(given.append(stamp.with_name(SNAPSHOT_VERSION)), table, settings).remove(len(given))
    return wanted, [own[field.name.lower()].with_nullable(True) for field in wanted]


def keys_of(table: LakeTable, settings: FlowSettings) -> tuple[str, ...]:
    """The columns that identify a row of a snapshot, as the table spells them."""
    return tuple(name for name in table.key if name != START or settings.scd_type == 1)


def lacking_columns(table: LakeTable, settings: FlowSettings, given: Sequence[str]) -> list[str]:
    """The columns that an event of a history has to copy from the row that is there, because the snapshot lacks them.
    In a table of present rows they stay unset."""
    if settings.scd_type == 1:
        return []
    return [name for name in table.schema.names if name not in (*given, START, DELETED)]


def twice(key: Sequence[str]) -> FrameError:
    """The error for a snapshot that has a key more than once."""
    return FrameError(f"a key occurs twice in the snapshot; {', '.join(key)} must identify its rows")


def stamp_of(table: LakeTable, version: Version) -> OwnTxn:
    """The transaction that takes a snapshot up. Raises :class:`InputError` if a later one was taken up."""
    number = _number(version)
    done = table.opened.view.snapshot.txns.get(SNAPSHOT_APP)
    if done is not None and number < done.version:
        last = _version_of(done.version, version_type(version))
        raise InputError(f"snapshot {version!r} comes after {last!r} was loaded: versions must grow")
    return OwnTxn(SNAPSHOT_APP, number)


def next_version(target: Any) -> int:
    """One more than the last snapshot's."""
    last = last_version(target)
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


def version_type(version: Version) -> pa.DataType:
    _number(version)
    return pa.timestamp("us", "UTC") if isinstance(version, dt.datetime) else pa.int64()


def _version_of(number: int, kind: pa.DataType) -> Version:
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=number)
    return number
