"""Publishes in time: keeps what other Delta engines see at most ``lakemerge.publish.maxLag`` behind.

With a lag of 0 each write publishes before it returns. Otherwise a write, and each run of maintenance, publishes once
the oldest commit that others do not see has half of the age that is allowed. No lease is taken: of two that publish at
once the second finds that it is not needed any more. Source: docs/table-format.md, section 11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.plan.plan import plan_compaction
from compaction.run.run import run_plan
from lakemerge.commits.lag import lag_ms
from lakemerge.errors import CommitConflictError
from lakemerge.format.publish import Publish
from lakemerge.handle import Handle
from lakemerge.layout.published import published_of
from lakemerge.layout.view import TableView
from lakemerge.results.compactions import CompactionResult, CompactionStrategy
from mergers.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FILE_LOG_BYTES",
    "WEEK_LOG_BYTES",
    "is_publish_due",
    "is_too_early",
    "pause_ms",
    "publish",
    "publish_through",
]

FILE_LOG_BYTES: Final = 1_200
"""About what a publication writes into the log for each file that it removes and adds again, or adds with its minor
entry, with bounds of eight columns."""
WEEK_LOG_BYTES: Final = 100 * 10**6
"""So many bytes of log at most are left by a week of publications that ``auto`` chose."""
_FEW_FILES: Final = 32
_WEEK_MS: Final = 7 * 86_400_000
_ATTEMPTS: Final = 5
"""How often a write tries to publish what it wrote, while others commit compactions of the same file slices."""

_logger = logger(__name__)


def is_publish_due(handle: Handle, view: TableView) -> bool:
    """Whether the table asks for a publication by now."""
    asked = Publish.of(view.snapshot.metadata.configuration)
    if not asked.is_on or asked.max_lag_ms is None:
        return False
    found = published_of(view)
    if found.oldest is None:
        return False
    return asked.max_lag_ms == 0 or lag_ms(handle, view, handle.store_now_ms, found) * 2 >= asked.max_lag_ms


def pause_ms(view: TableView) -> int:
    """How long ``auto`` waits from the first commit that other engines do not see to their publication. With up to 32
    base files it does not wait.

    Delta has no smaller change than a file that is removed and added again, with its statistics. A publication may do
    so with each base and winner file, and adds a winner file beside each base file. So what a week of publications
    writes grows with their number and with that of the files.
    """
    bases = len(view.base_files)
    if bases <= _FEW_FILES:
        return 0
    return (len(view.snapshot.files) + bases) * FILE_LOG_BYTES * _WEEK_MS // WEEK_LOG_BYTES


def is_too_early(handle: Handle, view: TableView) -> bool:
    """Whether a publication would leave too much log, by :func:`pause_ms`. A table that says how far others may lag is
    published by that."""
    asked = Publish.of(view.snapshot.metadata.configuration)
    pause = pause_ms(view) if asked.by_vectors and asked.max_lag_ms is None else 0
    return pause > 0 and lag_ms(handle, view, handle.store_now_ms) < pause


def publish(handle: Handle, view: TableView, *, spark: SparkSession | None = None) -> CompactionResult:
    """Show other engines the rows of a version: a minor compaction of all file slices that they do not see as they
    are."""
    plan = plan_compaction(handle, view, minor=True, strategy=CompactionStrategy())
    return run_plan(handle, view, plan, spark=spark)


def publish_through(handle: Handle, view: TableView, version: int, *, spark: SparkSession | None = None) -> TableView:
    """Publish until other engines see a version. Returns the version of the table after it.

    Raises :class:`CommitConflictError` if others were faster each time, or left it undone.
    """
    for _ in range(_ATTEMPTS):
        result = publish(handle, view, spark=spark)
        view = handle.latest(view)
        oldest = published_of(view).oldest
        if oldest is None or oldest > version:
            return view
        if result.skipped:
            raise CommitConflictError(f"records of {len(result.skipped)} keys cannot be merged: {result.skipped[0]}")
    raise CommitConflictError(f"other compactions were faster {_ATTEMPTS} times")
