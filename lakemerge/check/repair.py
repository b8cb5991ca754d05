"""Repairs what can be repaired from what is there, without any choice of whose rows count.

That is little: checkpoints are made from older files of the log, and what no version names is deleted. Rows are in one
place each, so nothing here writes rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakemerge.check.kinds import CHECKPOINT_DAMAGED, CHECKPOINT_FOREIGN, FILE_FOREIGN
from lakemerge.delta.listing import Checkpoint, Listing, list_log
from lakemerge.delta.log_replay import own_part, read_accepted
from lakemerge.errors import TableError
from lakemerge.format.names import STATE_DOMAIN
from lakemerge.handle import Handle
from lakemerge.results.findings import Finding
from lakemerge.storage.base import FileStat
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["repaired"]

_logger = logger(__name__)


def repaired(handle: Handle, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Repair what can be, and say what was done. Files are deleted exactly as they were listed here."""
    listing = list_log(handle.store)
    named = {finding.path: finding for finding in findings if finding.path is not None}
    done: list[str] = []
    for checkpoint in listing.checkpoints:
        finding = named.get(checkpoint.parts[0].path)
        if finding is not None and finding.kind == CHECKPOINT_DAMAGED.name:
            done += _checkpoint_repaired(handle, listing, checkpoint)
        elif finding is not None and finding.kind == CHECKPOINT_FOREIGN.name:
            done += _deleted(handle, checkpoint.parts)
    strays = {path for path, finding in named.items() if finding.kind == FILE_FOREIGN.name}
    if strays:
        there = [file for file in handle.store.list("") if file.path in strays]
        done += _deleted(handle, list(_unnamed(handle, listing, there)))
    return tuple(done)


def _checkpoint_repaired(handle: Handle, listing: Listing, checkpoint: Checkpoint) -> Iterator[str]:
    path = checkpoint.parts[0].path
    try:
        handle.log.checkpoint(handle.log.snapshot(version=checkpoint.version))
    except TableError as error:
        _logger.warning("%s cannot be written again: %s", path, error.message)
    else:
        yield f"wrote {path} again, from older files of the log"
        return
    own = own_part(handle.store, listing, STATE_DOMAIN)
    if any(newer.version > checkpoint.version and _is_whole(handle, own, newer) for newer in own.checkpoints):
        yield from _deleted(handle, checkpoint.parts)


def _is_whole(handle: Handle, listing: Listing, checkpoint: Checkpoint) -> bool:
    try:
        read_accepted(handle.store, listing, checkpoint, STATE_DOMAIN)
    except (TableError, OSError) as error:
        if is_foreign(error):
            raise
        return False
    return True


def _unnamed(handle: Handle, listing: Listing, files: Sequence[FileStat]) -> Iterator[FileStat]:
    """The files that no commit and no checkpoint names. If a commit or a checkpoint cannot be read, there is none."""
    named: set[str] = set()
    try:
        commits = [handle.store.get(commit.path) for commit in listing.commits.values()]
        own = own_part(handle.store, listing, STATE_DOMAIN)
        for checkpoint in own.checkpoints:
            named |= read_accepted(handle.store, own, checkpoint, STATE_DOMAIN).files.keys()
    except (TableError, OSError) as error:
        if is_foreign(error):
            raise
        _logger.warning("files of other engines stay: it cannot be told whether a version names them: %s", error)
        return
    for file in files:
        if file.path not in named and not any(file.path.encode() in commit for commit in commits):
            yield file


def _deleted(handle: Handle, files: Sequence[FileStat]) -> Iterator[str]:
    left = handle.store.delete_exact(files)
    for file in files:
        if file not in left:
            yield f"deleted {file.path}, which no version needs"
