"""Maintenance: runs the services that are due by the table's schedule, one after the other.

No lease is taken. Two maintainers at once waste work, but never data: the one that is second to commit finds that its
files are not needed any more, deletes them and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from compaction.logs.logs import compact_logs
from compaction.plan.plan import plan_compaction
from compaction.publish import is_publish_due, publish
from compaction.retention import expire_tombstones
from compaction.run.run import run_plan, shorten_log
from compaction.vacuum import vacuum
from lakemerge.commits.base import commit_to
from lakemerge.delta import Attempt, Txn
from lakemerge.errors import CommitConflictError
from lakemerge.format.names import LOG_DOMAIN_PREFIX, VACUUM_APPLICATION
from lakemerge.format.operations import Operation
from lakemerge.format.savepoint import savepoints_of
from lakemerge.format.schedule import Schedule
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.results.compactions import CompactionResult, CompactionStrategy, LogCompactionResult
from lakemerge.results.maintenance import ExpiryResult, MaintenanceResult, VacuumResult
from lakemerge.storage.clock import is_past
from lakemerge.table.open_table import OpenTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["maintain", "maintain_open"]

_MINUTE_MS = 60_000

R = TypeVar("R")


def maintain_open(
    table: OpenTable, *, stop: Callable[[], bool] | None = None, removes: bool = True
) -> MaintenanceResult:
    """See :meth:`lakemerge.LakeTable.maintain`.

    :param removes: whether tombstones may expire and files may be vacuumed.
    """
    maintenance = _Maintenance(table.handle, table.writable(), table.services_session, stop)
    result = maintenance.done(removes=removes)
    table.follow()
    return result


def maintain(
    handle: Handle, view: TableView, *, spark: SparkSession | None = None, stop: Callable[[], bool] | None = None
) -> MaintenanceResult:
    """See :meth:`lakemerge.LakeTable.maintain`."""
    return _Maintenance(handle, view, spark, stop).done()


class _Maintenance:
    """One run. Each service sees the table as the service before left it."""

    def __init__(
        self, handle: Handle, view: TableView, spark: SparkSession | None, stop: Callable[[], bool] | None
    ) -> None:
        self._handle = handle
        self._view = view
        self._spark = spark
        self._stop = stop
        self._schedule = Schedule.of(view.snapshot.metadata.configuration)
        self._conflicts: list[str] = []

    def done(self, *, removes: bool = True) -> MaintenanceResult:
        started = time.monotonic()
        schedule = self._schedule
        full = self._service("compaction", lambda: self._compact(schedule.compaction, minor=False))
        minor = self._service("minor compaction", lambda: self._compact(schedule.minor, minor=True))
        minor = self._service("publication", self._publish) or minor
        logs = self._service("log compaction", self._compact_logs)
        due = removes and self._is_vacuum_due()
        if due:
            self._look_at_the_time()
        tombstones = self._service("tombstone expiry", lambda: self._expire() if due else None)
        vacuumed = self._service("vacuum", lambda: self._vacuum() if due and not self._is_held() else None)
        return MaintenanceResult(
            version=self._view.version,
            compaction=full,
            minor=minor,
            logs=logs,
            tombstones=tombstones,
            vacuum=vacuumed,
            conflicts=tuple(self._conflicts),
            stopped=self._is_stopped(),
            seconds=time.monotonic() - started,
        )

    def _service(self, name: str, run: Callable[[], R | None]) -> R | None:
        """Run a service. Returns what it did; ``None`` if it was not due, or if somebody else was first."""
        if self._is_stopped():
            return None
        try:
            with unless_vacuumed(self._handle.log, self._view.snapshot):
                result = run()
        except CommitConflictError as error:
            self._conflicts.append(f"{name}: {error.message}")
            result = None
        self._view = self._handle.latest(self._view)
        return result

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop()

    def _compact(self, strategy: CompactionStrategy | None, *, minor: bool) -> CompactionResult | None:
        if strategy is None:
            return None
        began = time.monotonic()
        plan = plan_compaction(self._handle, self._view, minor=minor, strategy=strategy)
        if not plan.groups:
            return None
        result = run_plan(self._handle, self._view, plan, spark=self._spark, stop=self._stop, started=began)
        shorten_log(self._handle, self._handle.latest(self._view).snapshot)
        return result

    def _publish(self) -> CompactionResult | None:
        return (
            publish(self._handle, self._view, spark=self._spark) if is_publish_due(self._handle, self._view) else None
        )

    def _compact_logs(self) -> LogCompactionResult | None:
        commits = sum(name.startswith(LOG_DOMAIN_PREFIX) for name in self._view.snapshot.domains)
        after = self._schedule.logs_after_commits
        if after is None or commits < max(after, 2):
            return None
        return compact_logs(self._handle, self._view, spark=self._spark)

    def _is_vacuum_due(self) -> bool:
        after = self._schedule.vacuum_after_minutes
        last = self._view.snapshot.txns.get(VACUUM_APPLICATION)
        if after is None or last is None or last.last_updated_ms is None:
            return after is not None
        noted_ms, now_ms = last.last_updated_ms, self._handle.store_now_ms()
        what = f"the last vacuum of {self._handle.store.url}"
        return not is_past(noted_ms, now_ms, what=what) or now_ms - noted_ms >= after * _MINUTE_MS

    def _is_held(self) -> bool:
        """Whether nothing of the table may be deleted."""
        return any(savepoint.hold for savepoint in savepoints_of(self._view.snapshot).values())

    def _look_at_the_time(self) -> None:
        """Warn if a writer's clock was ahead: times of commits rise, so all later commits have such times, too."""
        tip = self._view.snapshot
        what = f"version {tip.version} of {self._handle.store.url}"
        is_past(tip.timestamp_ms, self._handle.store_now_ms(), what=what)

    def _expire(self) -> ExpiryResult:
        return expire_tombstones(self._handle, self._view, retention=None)

    def _vacuum(self) -> VacuumResult:
        result = vacuum(self._handle, self._view, dry_run=False, retention=None, enforce_retention=True)
        self._note_vacuum()
        return result

    def _note_vacuum(self) -> None:
        """Note that a vacuum ran, so that the next run knows when. The number of the transaction counts vacuums."""
        now_ms = self._handle.store_now_ms()

        def build(tip: TableView) -> Attempt:
            last = tip.snapshot.txns.get(VACUUM_APPLICATION)
            return Attempt([Txn(VACUUM_APPLICATION, 0 if last is None else last.version + 1, now_ms)])

        commit_to(self._handle, self._view, build, operation=Operation.MAINTENANCE, parameters={"done": "vacuum"})
