"""Back-pressure: a write to a table with too many commits that wait for a compaction maintains first.

The limit is the table property ``lakemerge.maxPendingCommits``. A commit is pending while any file slice has live logs
of it, so all file slices with logs are merged, and not only those that the write will touch
(docs/guides/maintenance.md).

The write goes on whatever becomes of the maintenance. If it were refused, a key whose merge fails could never get the
record that corrects it.
"""

from __future__ import annotations

from typing import Final

from compaction.automatic import live_commits
from compaction.maintain import maintain_open
from compaction.run.run import compact_open
from lakemerge.errors import CommitConflictError
from lakemerge.events import observed
from lakemerge.format.schedule import max_pending
from lakemerge.layout.view import TableView
from lakemerge.table.open_table import OpenTable
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["make_room"]

_ROUNDS: Final = 3
"""How often a write compacts at most, if other writers commit as much meanwhile."""

_logger = logger(__name__)


def make_room(table: OpenTable) -> None:
    """Before a write: maintain, if as many commits are pending as the table allows. A table without a limit is asked
    nothing. A table that is pinned is left to the write, which refuses it."""
    if table.pinned:
        return
    try:
        most = max_pending(table.standing.snapshot.metadata.configuration)
        if most is not None:
            _make_room(table, most)
    except CommitConflictError as conflict:
        table.crowded = 0
        _logger.info("maintenance of %s before a write: another process was first: %s", table.url, conflict)
    except BaseException as error:
        if is_foreign(error):
            table.crowded = 0
            error.add_note("this ended maintenance before a write, of which nothing was committed")
            raise
        _logger.warning("maintenance of %s before a write failed, and the write goes on", table.url, exc_info=True)


def _make_room(table: OpenTable, most: int) -> None:
    pending = _pending(table.view, most)
    if pending < most:
        table.crowded = 0
    if pending < max(most, table.crowded):
        return
    table.crowded = most + pending
    for _ in range(_ROUNDS):
        _logger.info("%d commits of %s are pending, the limit is %d: maintenance first", pending, table.url, most)
        observed(maintain_open, "maintain")(table, removes=False)
        if _pending(table.view, most) >= most:
            observed(compact_open, "compact")(table, minor=True)
        before, pending = pending, _pending(table.view, most)
        if pending < most:
            table.crowded = 0
            return
        table.crowded = most + pending
        if pending >= before:
            break
    _logger.warning(
        "%d commits of %s are pending after maintenance, and the limit is %d: the write goes on",
        pending,
        table.url,
        most,
    )


def _pending(view: TableView, most: int) -> int:
    """How many commits no compaction has taken up. Only if there may be as many as the limit, block indexes are read:
    the logs of a commit may be named for a while after nothing needs them any more."""
    named = live_commits(view, view.version)
    return named if named < most else named - len(view.dead_log_commits())
