"""The maintenance that follows a write.

If the table has ``lakemerge.maintenance.inline``, what is due runs. If it has ``lakemerge.maintenance = auto``, the one
service that is worth its cost runs.

No lease is taken, as in :mod:`compaction.maintain`. With ``auto`` nothing is vacuumed and no tombstone expires: both
remove what somebody may still want to read, and no cost model knows that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from compaction.logs.logs import compact_logs
from compaction.maintain import maintain_open
from compaction.plan.auto import Decision, decide, is_turn
from compaction.plan.loads import FileSliceLoad, file_slice_loads
from compaction.plan.plan import plan_compaction
from compaction.publish import is_publish_due, is_too_early, publish_through
from compaction.run.run import run_plan
from lakemerge.errors import CommitConflictError
from lakemerge.events import observed
from lakemerge.format.block_index import log_version
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.format.publish import Publish
from lakemerge.format.schedule import Auto, Schedule
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.read.reads_per_write import note_write, reads_per_write
from lakemerge.results.compactions import CompactionStrategy
from lakemerge.results.display import counted
from lakemerge.table.open_table import OpenTable
from mergers.interrupts import is_foreign
from mergers.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["after_write", "maintain_after_write", "maintain_landed", "told"]

_logger = logger(__name__)


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
    _publish_in_time(table, landed)


def maintain_landed(handle: Handle, begun: int) -> None:
    """Maintenance after a write by a handle, in this process, if the last commit of the handle is after ``begun``."""
    tip = handle.landed.snapshot
    if tip is not None and tip.version > begun:
        maintain_after_write(OpenTable.without_session(handle, tip))


def _publish_in_time(table: OpenTable, landed: int) -> None:
    """Publish what was written, if the table asks for it by now. The write has landed, whatever comes of this."""
    try:
        publish = Publish.of(table.standing.snapshot.metadata.configuration)
        if publish.max_lag_ms is None or not is_publish_due(table.handle, table.standing):
            return
        with unless_vacuumed(table.handle.log, table.standing.snapshot):
            publish_through(table.handle, table.standing, landed, spark=table.services_session)
        table.follow()
    except BaseException as error:
        if is_foreign(error):
            error.add_note(f"this ended a publication; the write before it has landed, as version {landed}")
            raise
        _logger.warning("version %d of %s landed, unpublished: %s", landed, table.url, error, exc_info=True)


def _maintain_automatically(table: OpenTable, auto: Auto, version: int) -> None:
    with unless_vacuumed(table.handle.log, table.standing.snapshot):
        decision = after_write(table.handle, table.standing, auto, version=version, spark=table.services_session)
    if decision is not None and decision.service != "nothing":
        table.follow()


def after_write(
    handle: Handle,
    view: TableView,
    auto: Auto,
    *,
    version: int,
    spark: SparkSession | None = None,
    chance: Callable[[], float] = random.random,
) -> Decision | None:
    """Decide which service is due, and run it. ``None`` if it is not this writer's turn to decide.

    :param view: the latest version.
    :param version: the version of the write.
    """
    note_write(view)
    auto = _informed(auto, view, on_spark=spark is not None)
    if not is_turn(auto, live_commits(view, version), chance):
        return None
    began = time.monotonic()
    loads = file_slice_loads(view)
    decision = decide(auto, loads, version=view.version, commits=live_commits(view, view.version))
    if decision.service in ("minor compaction", "full compaction") and is_too_early(handle, view):
        decision = Decision(service="nothing", why="a publication would leave too much log by now")
        if auto.logs_after_commits is not None and live_commits(view, view.version) >= auto.logs_after_commits:
            decision = replace(decision, service="log compaction")
    _logger.info("maintenance of %s after version %d: %s", handle.store.url, version, decision)
    match decision.service:
        case "minor compaction" | "full compaction":
            _compact(handle, view, decision, loads, spark, began)
        case "log compaction":
            compact_logs(handle, view, spark=spark)
        case "nothing":
            pass
    return decision


def told(view: TableView, *, on_spark: bool) -> str:
    """Says in words what follows writes at a version, and what the last write would have decided."""
    schedule = Schedule.of(view.snapshot.metadata.configuration)
    if schedule.inline:
        return "inline: each write is followed by what is due"
    if schedule.auto is None:
        return "off: maintain() does what is due"
    commits = live_commits(view, view.version)
    auto = _informed(schedule.auto, view, on_spark=on_spark)
    decision = decide(auto, file_slice_loads(view), version=view.version, commits=commits)
    number = round(auto.reads_per_write, 2)
    return f"auto, for {counted(number, 'read')} per write: {decision}"


def _informed(auto: Auto, view: TableView, *, on_spark: bool) -> Auto:
    publishes = Publish.of(view.snapshot.metadata.configuration).by_vectors
    files = len(view.base_files) if publishes else 0
    learned = reads_per_write(view) if auto.learns else None
    reads = auto.reads_per_write if learned is None else learned
    return replace(auto, reads_per_write=reads, on_spark=on_spark, published_files=files)


def live_commits(view: TableView, version: int) -> int:
    """How many commits up to a version have live logs."""
    logs = [domain for name, domain in view.snapshot.domains.items() if name.startswith(LOG_DOMAIN_PREFIX)]
    if view.version == version:
        return len(logs)
    return sum(log_version(domain) <= version for domain in logs)


def _compact(
    handle: Handle,
    view: TableView,
    decision: Decision,
    loads: Sequence[FileSliceLoad],
    spark: SparkSession | None,
    began: float,
) -> None:
    def why(load: FileSliceLoad) -> tuple[str, ...]:
        return (f"auto: {decision.why}",) if (load.bucket_id, load.file) in decision.parts else ()

    minor = decision.service == "minor compaction"
    plan = plan_compaction(handle, view, minor=minor, strategy=CompactionStrategy(), loads=loads, why=why)
    run_plan(handle, view, plan, spark=spark, started=began)
