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
from lakemerge.delta.actions import decode_commit_info
from lakemerge.delta.checkpoint_reader import read_checkpoint
from lakemerge.delta.listing import LOG_FOLDER, Checkpoint, checkpoint_path, commit_path
from lakemerge.errors import InputError, NotATableError, StoreError
from lakemerge.format.names import DROPPED
from lakemerge.format.operations import Operation
from lakemerge.format.savepoint import savepoints_of
from lakemerge.handle import Handle
from lakemerge.storage.base import FileStat, Store
from lakemerge.table.opening import find_snapshot

__all__ = ["drop_table", "table_exists"]

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


def _delete(store: Store, version: int) -> None:
    """Delete all files. The commit that dropped the table goes last: as long as it is there, nobody takes what is left
    for a table, and the drop can go on. If somebody makes a table in this place meanwhile, its files stay: each file is
    deleted as it was listed, and only if the commit was there afterwards.

    :param version: that of the commit. If it is gone, a checkpoint of it that came late stands for it.
    """
    log = {file.path: file for file in store.list(LOG_FOLDER)}
    last = log.get(commit_path(version)) or log.get(checkpoint_path(version))
    if last is None or not _drops(store, last, version):
        return  # another drop came to its end
    for batch in _batches(file for file in store.list("") if not file.path.startswith(f"{LOG_FOLDER}/")):
        if not last.is_same(store.stat(last.path)):
            return
        store.delete_exact(batch)
    # A writer may replace a file of the log between its listing and its deletion, so it is listed until none is left.
    before: list[FileStat] = []
    while left := _left(store, last):
        if left == before:
            raise StoreError(f"{store.url} keeps {left[0].path}, which was deleted: drop the table again later")
        for batch in _batches(iter(left)):
            store.delete_exact(batch)
        before = left
    store.delete_exact([last])
    store.delete_empty_folders("")


def _drops(store: Store, last: FileStat, version: int) -> bool:
    """Whether a commit, or a checkpoint of it, drops a table."""
    try:
        if last.path == checkpoint_path(version):
            metadata = read_checkpoint(store, Checkpoint(version, (last,))).metadata
            return metadata is not None and metadata.configuration.get(DROPPED) == "true"
        info = decode_commit_info(store.get(last.path), last.path)
        return info is not None and info.fields.get("operation") == Operation.DROP
    except FileNotFoundError:
        return False


def _left(store: Store, last: FileStat) -> list[FileStat]:
    """The files of the log but for the last one; none, if that is not there any more."""
    log = {file.path: file for file in store.list(LOG_FOLDER)}
    return list(log.values()) if last.is_same(log.pop(last.path, None)) else []


def _batches(files: Iterator[FileStat]) -> Iterator[list[FileStat]]:
    while batch := list(islice(files, _BATCH)):
        yield batch
