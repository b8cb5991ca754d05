"""Maintenance of all tables of a warehouse by one process."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass

from lakemerge._internal.pools import thread_pool
from lakemerge.cli.output import document, say
from lakemerge.cli.spelling import one_line
from lakemerge.cli.tables import shown_maintenance
from lakemerge.connector.places import Places
from lakemerge.errors import LakeMergeError, NotATableError
from lakemerge.results.display import counted
from lakemerge.results.maintenance import MaintenanceResult
from lakemerge.table.table import LakeTable
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["Visit", "Visits", "WarehouseMaintenance", "shown_visit", "shown_visits", "visit_document"]

_logger = logger(__name__)


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of one table in a round: a result or an error."""

    table: str
    result: MaintenanceResult | None
    error: LakeMergeError | OSError | None


@dataclass(frozen=True, slots=True)
class Visits:
    """What came of a round."""

    tables: int
    busy: int
    """Tables for which a service ran."""
    failed: int
    unfinished: int
    """Tables that had a turn in which something ran, and that have more to do."""
    seconds: float


class WarehouseMaintenance:
    """Visits each table of a warehouse in turn, so that none waits for ever and none stops the others.

    A round looks for tables anew, and visits those first whose last visit is longest ago. A table has a turn; what is
    left then is due in the next round. A table that fails is a line in the log.
    """

    def __init__(
        self,
        warehouse: str,
        storage_options: Mapping[str, object],
        *,
        at_once: int,
        turn: dt.timedelta,
        stop: threading.Event,
        show: Callable[[Visit], None],
    ) -> None:
        """
        :param at_once: tables that are maintained at the same time. Each may use the memory of
            ``Settings.threads`` merges.
        :param turn: the longest that one table is maintained in a round, up to the end of the commit under way.
        :param show: called with each visit, in the thread that runs the rounds.
        """
        self._places = Places(warehouse, storage_options)
        self._storage = storage_options
        self._at_once = at_once
        self._turn = turn.total_seconds()
        self._stop = stop
        self._show = show
        self._visited: dict[str, float] = {}

    def run(self, every: dt.timedelta | None, show_round: Callable[[Visits], None]) -> None:
        """One round, or rounds with a pause in between until ``stop`` is set.

        A round follows without a pause while a table has work left. In one round alone, the first error is raised after
        all tables were visited. Otherwise errors, also of the look for tables, are lines in the log.
        """
        while not self._stop.is_set():
            try:
                done = self._round(may_fail=every is not None)
            except (LakeMergeError, OSError) as error:
                if every is None or is_foreign(error):
                    raise
                _logger.warning("%s, and will be tried again", one_line(error, command="maintain"))
            else:
                show_round(done)
                if every is not None and done.unfinished and not self._stop.is_set():
                    continue
            if every is None:
                return
            self._stop.wait(every.total_seconds())

    def _round(self, *, may_fail: bool) -> Visits:
        began = time.monotonic()
        tables = self._places.everywhere()
        self._visited = {table: self._visited.get(table, 0.0) for table in tables}
        visits = []
        with thread_pool(self._at_once, name="maintain") as pool:
            waiting = [pool.submit(self._visit, table) for table in sorted(tables, key=self._visited.__getitem__)]
            for future in as_completed(waiting):
                visit = future.result()
                if visit is not None:
                    visits.append(visit)
                    self._show(visit)
        errors = [visit.error for visit in visits if visit.error is not None]
        if errors and not may_fail:
            raise errors[0]
        results = [visit.result for visit in visits if visit.result is not None]
        return Visits(
            tables=len(visits),
            busy=sum(bool(result.done) for result in results),
            failed=len(errors),
            unfinished=sum(bool(result.stopped and result.done) for result in results),
            seconds=time.monotonic() - began,
        )

    def _visit(self, table: str) -> Visit | None:
        """None if the process is to stop, or if the folder has no LakeMerge table."""
        if self._stop.is_set():
            return None
        self._visited[table] = time.monotonic()
        try:
            opened = LakeTable.open(table, storage_options=self._storage or None)
            end = time.monotonic() + self._turn
            result = opened.maintain(stop=lambda: self._stop.is_set() or time.monotonic() > end)
        except NotATableError as error:
            _logger.info("%s is left out: %s", table, error.message)
            return None
        except (LakeMergeError, OSError) as error:
            if is_foreign(error):
                raise
            _logger.warning("maintenance of %s failed: %s", table, one_line(error, command="maintain"))
            return Visit(table, None, error)
        return Visit(table, result, None)


def shown_visit(visit: Visit) -> None:
    """Print what was done to a table. Nothing is printed if nothing was due; an error is in the log."""
    if visit.result is not None and (visit.result.done or visit.result.conflicts):
        say(visit.table)
        shown_maintenance(visit.result)


def visit_document(visit: Visit) -> None:
    """Print a JSON object: the table, and the fields of its result or the error."""
    if visit.result is None:
        document({"table": visit.table, "error": one_line(visit.error or OSError(), command="maintain")})
    else:
        fields = {field.name: getattr(visit.result, field.name) for field in dataclasses.fields(visit.result)}
        document({"table": visit.table, **fields})


def shown_visits(visits: Visits) -> None:
    """Print a line about a round."""
    left = f", {visits.unfinished} with work left" if visits.unfinished else ""
    failed = f", {visits.failed} failed" if visits.failed else ""
    say(f"{counted(visits.tables, 'table')}: something was due in {visits.busy}{failed}{left}; {visits.seconds:.1f} s")
