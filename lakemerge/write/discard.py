"""The one way in which the files of a failed write are deleted.

A file goes only if its commit surely did not land and cannot land: :class:`lakemerge.delta.Transaction` knows. All
other files that no version names are left to vacuum, whose fence is a proof of its own (docs/table-format.md, 4.5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile
from typing import Final

from lakemerge.delta import Transaction
from lakemerge.format.ingests import INGEST_FOLDER
from lakemerge.format.names import BASE_FOLDER, LOG_FOLDER, MERGED_FOLDER, TOMBSTONE_FOLDER
from lakemerge.storage.base import Store, is_own_failure
from mergers.logs import logger

__all__ = ["ROWS_FOLDERS", "discard", "discard_packed", "discard_rejects"]

ROWS_FOLDERS: Final = (TOMBSTONE_FOLDER, BASE_FOLDER, MERGED_FOLDER)
"""Where base, winner, positions and tombstone files are."""
_FOLDERS: Final = (LOG_FOLDER, *ROWS_FOLDERS, INGEST_FOLDER)

_logger = logger(__name__)


def discard(
    store: Store,
    transaction: Transaction,
    name: str,
    *,
    folders: Collection[str] | None = None,
    keep: Iterable[str] = (),
    others: Iterable[str] = (),
) -> None:
    """Delete the files of a write, unless its commit may be in the log or may get there yet.

    Their names begin with the write's name, so a listing also finds the files of tasks that never reported.

    :param name: :meth:`lakemerge.handle.Handle.write_name` of the write.
    :param folders: only files in these folders. By default all that a write may have files in.
    :param keep: paths of files that stay, for a commit that is still to be tried.
    :param others: paths of more files of the write, whose names are not made so.
    """
    if transaction.may_land:
        _logger.info("files of %s stay, because its commit may have landed; vacuum deletes them if it did not", name)
        return
    kept = frozenset(keep)
    for folder in _FOLDERS if folders is None else folders:
        _delete(store, f"{folder}/{name}", kept)
    if gone := [path for path in others if path not in kept]:
        _try_delete(store, gone, gone[0])


def discard_packed(store: Store, name: str) -> None:
    """Delete the log files of a first load whose base files were committed. No commit that was ever sent names them:
    the rows are packed to be merged, and are committed as logs only where the base files cannot be."""
    _delete(store, f"{LOG_FOLDER}/{name}", frozenset())


def discard_rejects(store: Store, name: str) -> None:
    """Delete the rejects files of a window that is read once more. Its commit never names them."""
    _delete(store, f"{INGEST_FOLDER}/{name}", frozenset())


def _delete(store: Store, prefix: str, keep: Collection[str]) -> None:
    """Delete the files whose path begins with ``prefix``: a folder and the start of a name.

    Nothing refers to these files, so a failure is only logged. It must neither hide the error that ended a write nor
    make a commit that landed look failed.
    """

    def paths() -> Iterator[str]:
        listed = store.list(prefix.rsplit("/", 1)[0], start_after=prefix)
        found = takewhile(lambda stat: stat.path.startswith(prefix), listed)
        yield from (stat.path for stat in found if stat.path not in keep)

    _try_delete(store, paths(), f"{prefix}*")


def _try_delete(store: Store, paths: Iterable[str], named: str) -> None:
    """:param paths: they are listed here, so that a list that fails is only logged, too."""
    try:
        store.delete(list(paths))
    except Exception as error:
        if not is_own_failure(error):
            raise
        _logger.warning("files at %s could not be deleted; they are in no version of the table", named, exc_info=True)
