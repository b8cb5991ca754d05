"""Opening a table: makes the store and the registry of mergers from a caller's arguments, and finds the version."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakemerge._internal.arguments import shown
from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.errors import InputError
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version
from lakemerge.options import Settings
from lakemerge.storage import open_store
from lakemerge.table.open_table import HasOpenTable, OpenTable
from lakemerge.table.session import TableSession
from mergers import Merger, default_registry
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_snapshot", "open_handle", "open_table", "opened"]


def open_handle(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None,
    mergers: Sequence[type[Merger]],
    settings: Settings | None,
) -> Handle:
    """What all operations on the table at ``path`` share. Nothing is read yet."""
    store = open_store(path, storage_options)
    registry = default_registry().extended(mergers) if mergers else default_registry()
    return Handle(store, DeltaLog(store), registry, settings or Settings())


def open_table(
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    timestamp: dt.datetime | str | None = None,
    savepoint: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    mergers: Sequence[type[Merger]] = (),
    settings: Settings | None = None,
    spark: SparkSession | None = None,
) -> OpenTable:
    """See :meth:`lakemerge.LakeTable.open`."""
    handle = open_handle(path, storage_options, mergers, settings)
    snapshot = find_snapshot(handle, version=version, timestamp=timestamp, savepoint=savepoint)
    pinned = any(given is not None for given in (version, timestamp, savepoint))
    return OpenTable(handle, snapshot, pinned=pinned, session=TableSession(spark))


def find_snapshot(
    handle: Handle,
    *,
    version: int | None = None,
    timestamp: dt.datetime | str | None = None,
    savepoint: str | None = None,
) -> Snapshot:
    """The latest version, or the one that is asked for.

    :raises lakemerge.NotATableError: there is no table, or its drop is not at its end.
    """
    return find_version(handle.log, version=version, timestamp=timestamp, savepoint=savepoint)


def opened(table: HasOpenTable | str | os.PathLike[str], name: str) -> OpenTable:
    """The table that a caller has, or the one at a path.

    :param name: the caller's argument, for errors.
    """
    if isinstance(table, str | os.PathLike):
        return open_table(table)
    found = getattr(table, "opened", None)
    if not isinstance(found, OpenTable):
        raise InputError(f"{argument(name)} must be a table or its path, not {shown(table)}")
    return found
