"""Maintenance of an open table: when its owner calls for it, and after its writes."""

from __future__ import annotations

from collections.abc import Callable

from compaction.automatic import after_write
from compaction.maintain import maintain
from compaction.run.run import compact
from lakemerge.errors import CommitConflictError
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.results.events import observed
from lakemerge.results.plans import CompactionStrategy
from lakemerge.results.results import CompactionResult, MaintenanceResult
from lakemerge.results.schedule import Auto, Schedule
from lakemerge.table.open_table import OpenTable
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["compact_open", "maintain_after_write", "maintain_open"]

_logger = logger(__name__)


def compact_open(
    table: OpenTable,
    *,
    minor: bool = False,
    strategy: CompactionStrategy | None = None,
    where: str | None = None,
    max_bytes: int | None = None,
) -> CompactionResult:
    """See :meth:`lakemerge.LakeTable.compact`."""
    view = table.writable()
    with unless_vacuumed(table.handle.log, view.snapshot):
        result = compact(
            table.handle,
            view,
            minor=minor,
            strategy=strategy,
            where=where,
            max_bytes=max_bytes,
            spark=table.services_session,
        )
    table.follow()
    return result


def maintain_open(table: OpenTable, *, stop: Callable[[], bool] | None = None) -> MaintenanceResult:
    """See :meth:`lakemerge.LakeTable.maintain`."""
    result = maintain(table.handle, table.writable(), spark=table.services_session, stop=stop)
    table.follow()
    return result


def maintain_after_write(table: OpenTable, version: int | None = None) -> None:
    """Maintenance after a write, if a table property asks for it. The write has landed, so a failure of maintenance
    must not make the write look failed. What is due stays due.

    :param version: the version of the write. The default is the version that the table stands at.
    """
    landed = table.standing.version if version is None else version
    try:
        schedule = Schedule.of(table.standing.snapshot.metadata.configuration)
        if schedule.inline:
            observed(maintain_open, "maintain")(table)
        elif schedule.auto is not None:
            _maintain_automatically(table, schedule.auto, landed)
    except CommitConflictError as conflict:
        _logger.info("maintenance of %s after a write: another process was first: %s", table.url, conflict)
    except BaseException as error:
        if is_foreign(error):
            error.add_note(f"this ended maintenance; the write before it has landed, as version {landed}")
            raise
        _logger.warning("maintenance of %s after a write failed", table.url, exc_info=True)


def _maintain_automatically(table: OpenTable, auto: Auto, version: int) -> None:
    with unless_vacuumed(table.handle.log, table.standing.snapshot):
        decision = after_write(table.handle, table.standing, auto, version=version, spark=table.services_session)
    if decision is not None and decision.service != "nothing":
        table.follow()
