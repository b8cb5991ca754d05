"""Dropping a table: a commit that ends it, then the deletion of its files, the log last.

Source: docs/table-format.md, section 4. The commit gives the table a new id and no rows, as a replacement does. So
whatever began before fails by name. A drop that was interrupted goes on when it is called again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice

from lakemerge.commits.replace import replacement
from lakemerge.delta import AlreadyDone, Attempt, Snapshot
from lakemerge.errors import InputError, NotATableError
from lakemerge.format.names import DROPPED
from lakemerge.format.operations import Operation
from lakemerge.format.savepoint import savepoints_of
from lakemerge.handle import Handle
from lakemerge.storage.base import FileStat, Store
from lakemerge.table.opening import find_snapshot

__all__ = ["drop_table", "table_exists"]

_LOG = "_delta_log/"
_BATCH = 1000


def table_exists(handle: Handle) -> bool:
    """See :meth:`lakemerge.LakeTable.exists`."""
    try:
        handle.view(find_snapshot(handle))
    except NotATableError:
        return False
    return True


def drop_table(handle: Handle) -> bool:
    """See :meth:`lakemerge.LakeTable.drop`."""
    if not handle.log.exists():
        return False
    # The end of the log can be read even if a drop was interrupted and its beginning is gone.
    try:
        newest = handle.log.history(limit=1)
    except NotATableError:
        return False  # another drop came to its end
    interrupted = bool(newest) and newest[0].operation == Operation.DROP
    _delete(handle.store, newest[0].version if interrupted else _ended(handle))
    return True


def _ended(handle: Handle) -> int:
    """Commit that the table is dropped. Returns the version.

    :raises lakemerge.NotATableError: it is a plain Delta table.
    :raises lakemerge.InputError: it has savepoints.
    """
    begin = handle.log.snapshot()
    if begin.metadata.configuration.get(DROPPED) == "true":
        return begin.version  # only a checkpoint is left, which was written late
    handle.view(begin)  # raises for a plain Delta table

    def build(tip: Snapshot | None) -> Attempt | AlreadyDone:
        if tip is None:
            raise AssertionError("the table exists: the commit began from a snapshot")
        view = handle.view(tip)
        names = list(savepoints_of(tip))
        if names:
            raise InputError(
                f"the table at {handle.store.url} has the savepoints {', '.join(map(repr, names))}: drop these first, "
                "if nobody needs the versions that they keep",
                savepoints=tuple(names),
            )
        metadata = dataclasses.replace(
            tip.metadata, id=handle.new_id(), configuration={**tip.metadata.configuration, DROPPED: "true"}
        )
        return replacement(view, metadata, tip.protocol, handle.now_ms())

    outcome = handle.log.commit(begin, build, operation=Operation.DROP, parameters={})
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("dropping a table is never done already")
    return outcome.snapshot.version


def _delete(store: Store, marker: int) -> None:
    """Delete all files. The commit that dropped the table goes last: as long as it is there, nobody takes what is left
    for a table, and the drop can go on. Each file is deleted as it was listed: if somebody makes a table in this place
    meanwhile, its files stay."""
    last = f"{_LOG}{marker:020d}.json"
    there = [file for file in store.list(_LOG.rstrip("/")) if file.path == last]
    for batch in _batches(file for file in store.list("") if not file.path.startswith(_LOG)):
        store.delete_exact(batch)
    # A writer may replace a file of the log between its listing and its deletion, so it is listed until none is left.
    before: list[FileStat] = []
    while (left := _left(store, last, there)) not in ([], before):
        for batch in _batches(iter(left)):
            store.delete_exact(batch)
        if not there:
            break  # nothing would tell the log of a table that was made meanwhile
        before = left
    store.delete_exact(there)
    store.delete_empty_folders("")


def _left(store: Store, last: str, there: list[FileStat]) -> list[FileStat]:
    """The files of the log but for the last one; none, if that is not there as it was."""
    listed = list(store.list(_LOG.rstrip("/")))
    if [file for file in listed if file.path == last] != there:
        return []
    return [file for file in listed if file.path != last]


def _batches(files: Iterator[FileStat]) -> Iterator[list[FileStat]]:
    while batch := list(islice(files, _BATCH)):
        yield batch
