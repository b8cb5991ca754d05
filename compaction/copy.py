"""Copy a table to another folder or store, as it was at a version, with the history that is kept.

A copy has the same bytes under the same names, so it is checked, read and written as the table itself. Files go before
the commits that name them, and commits go in their order. So if a copy is interrupted, there is no table yet, or an
earlier version of this one, whole. Called again, it goes on. It does not send again what is there with its size: names
of files hold transaction ids, and stores show only whole files.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Final

from compaction.vacuum import needed_files
from lakemerge._internal.pools import thread_pool
from lakemerge.delta import Snapshot, earliest_version
from lakemerge.delta.listing import commit_path, fetch, list_log, no_log
from lakemerge.errors import InputError, StoreError, TableDamagedError
from lakemerge.format.consumers import registrations_of, sent_to, stored_position
from lakemerge.format.feed_offset import Offset
from lakemerge.format.record_retention import records_from
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.results.maintenance import CopyResult
from lakemerge.storage.base import FileStat, Put, Store
from mergers.logs import logger

__all__ = ["copy_table"]

_logger = logger(__name__)

_PIECE: Final = 8 * 2**20
"""So many bytes of a file are in memory at a time."""
_WINDOW: Final = 256
"""Files between two lines of progress."""


def copy_table(handle: Handle, view: TableView, target: Store) -> CopyResult:
    """See :meth:`lakemerge.LakeTable.copy_to`."""
    started = time.monotonic()
    source, tip = handle.store, view.snapshot
    if target.url.rstrip("/") == source.url.rstrip("/"):
        raise InputError(f"the table is at {source.url} already: give another folder for the copy")
    _check_target(source, target, tip.version)
    oldest = max(view.state.oldest_version, earliest_version(source, until=tip.version))
    sending = _Sending(handle, target)
    sending.files(needed_files(handle, tip, oldest=oldest, records=min(oldest, records_from(tip))))
    _send_log(source, target, tip.version)
    _send_positions(source, target, tip)
    return CopyResult(
        url=target.url,
        version=tip.version,
        oldest_version=oldest,
        files=sending.sent,
        bytes=sending.bytes,
        files_there=sending.there,
        seconds=time.monotonic() - started,
    )


def _check_target(source: Store, target: Store, version: int) -> None:
    """Raises :class:`InputError` if the folder has another table, or a later version of this one."""
    newest = max(list_log(target).commits, default=None)
    if newest is None:
        return
    if newest > version:
        raise InputError(
            f"{target.url} has version {newest} already, which is later than {version}: give a new folder for the copy",
            version=newest,
        )
    try:
        is_ours = source.get(commit_path(newest)) == target.get(commit_path(newest))
    except FileNotFoundError:
        is_ours = False
    if not is_ours:
        raise InputError(
            f"{target.url} has another table, or an old copy whose last commit is gone from {source.url}: give a new "
            "folder for the copy"
        )


class _Sending:
    """Sends files that the target lacks, several at a time."""

    def __init__(self, handle: Handle, target: Store) -> None:
        self._source, self._target = handle.store, target
        self._threads = handle.settings.threads
        self._sizes = {file.path: file.size_bytes for file in target.list("")}
        self.sent = self.bytes = self.there = 0

    def files(self, paths: Collection[str]) -> None:
        """Raises :class:`TableDamagedError` for a file that the source lacks."""
        ordered = sorted(paths)
        with thread_pool(self._threads, name="copy") as pool:
            for start in range(0, len(ordered), _WINDOW):
                for size in pool.map(self._send, ordered[start : start + _WINDOW]):
                    if size is None:
                        self.there += 1
                    else:
                        self.sent, self.bytes = self.sent + 1, self.bytes + size
                done = min(start + _WINDOW, len(ordered))
                _logger.info("copied %d of %d files to %s", done, len(ordered), self._target.url)

    def _send(self, path: str) -> int | None:
        """The size of the file in bytes; None if it was there."""
        found = self._source.stat(path)
        if found is None:
            raise TableDamagedError(
                f"{self._source.url} lacks {path}. If a vacuum deleted it, copy a version within the retention",
                path=path,
            )
        if self._sizes.get(path) == found.size_bytes:
            return None
        with (
            self._source.open_input(path, size_bytes=found.size_bytes) as source,
            self._target.open_output(path) as target,
        ):
            left = found.size_bytes
            while piece := source.read(_PIECE):
                target.write(piece)
                left -= len(piece)
            if left:
                raise StoreError(f"{path} was not read whole from {self._source.url}: copy again", path=path)
        return found.size_bytes


def _send_log(source: Store, target: Store, version: int) -> None:
    """Send commits in their order, each before the checkpoint of its version: a log grows so."""
    log, there = list_log(source, until=version), list_log(target)
    first = log.earliest
    if first is None:
        raise no_log(source)
    checkpoints = {
        checkpoint.version: checkpoint.parts
        for checkpoint in log.checkpoints
        if first <= checkpoint.version and checkpoint not in there.checkpoints
    }
    commits = {number for number in log.commits if number >= first} - there.commits.keys()
    numbers = sorted(commits | checkpoints.keys())
    paths = [path for number in numbers for path in _of_version(number, commits, checkpoints)]
    for path, data in zip(paths, fetch(source, paths), strict=True):
        if target.put_if_absent(path, data) is not Put.CREATED and target.get(path) != data:
            raise InputError(f"somebody else writes to {target.url}: give a new folder for the copy", path=path)


def _of_version(number: int, commits: Container[int], checkpoints: Mapping[int, Sequence[FileStat]]) -> Iterator[str]:
    if number in commits:
        yield commit_path(number)
    yield from (part.path for part in checkpoints.get(number, ()))


def _send_positions(source: Store, target: Store, tip: Snapshot) -> None:
    """Where consumers stand, but not beyond the copy: what follows may be committed anew, with other contents."""
    for registration in registrations_of(tip).values():
        position = min(stored_position(source, registration), Offset(tip.version + 1))
        sent = [part for part in sent_to(source, registration) if part.last <= tip.version]
        target.put(registration.path, registration.position(position, sent))
