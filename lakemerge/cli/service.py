"""Maintenance as a process: once, or repeated until a signal ends it."""

from __future__ import annotations

import datetime as dt
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lakemerge.cli.spelling import one_line
from lakemerge.errors import LakeMergeError, NotATableError, TableReplacedError
from lakemerge.results.maintenance import MaintenanceResult
from lakemerge.table.table import LakeTable
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["run_maintenance", "stopping"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_logger = logger(__name__)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set. A second signal ends the process at once."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        _logger.info("stopping after the current step; press again to stop at once")
        for again in _SIGNALS:
            signal.signal(again, before[again])

    try:
        for number in _SIGNALS:
            signal.signal(number, handle)
        yield stop
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])


def run_maintenance(
    table: LakeTable,
    *,
    every: dt.timedelta | None,
    stop: threading.Event,
    show: Callable[[MaintenanceResult], None],
) -> None:
    """Maintain the table. With ``every``, repeat this until ``stop`` is set, with a pause of ``every`` in between.

    A repeating process goes on after errors. Each is one line in the log, and the services that were due stay due. It
    maintains whatever table is at the path: if the table is removed, it looks again each time, and if another one is
    made there, it goes on with that one. Both are lines in the log.
    """
    while not stop.is_set():
        try:
            show(table.maintain(stop=stop.is_set))
        except (LakeMergeError, OSError) as error:
            if every is None or is_foreign(error):
                raise
            if isinstance(error, TableReplacedError):
                table = _there_now(table)
            else:
                _failed(table, error)
        if every is None:
            return
        stop.wait(every.total_seconds())


def _there_now(table: LakeTable) -> LakeTable:
    """The table that is at the path of a table that was removed; the same object if there is none."""
    try:
        found = table.opened_anew()
    except NotATableError:
        _logger.warning("the table at %s was removed; maintenance looks again for another one", table.url)
    except (LakeMergeError, OSError) as error:
        if is_foreign(error):
            raise
        _failed(table, error)
    else:
        name = found.opened.view.snapshot.metadata.id
        _logger.warning(
            "the table at %s was removed or re-created; maintenance continues with the table %s", table.url, name
        )
        return found
    return table


def _failed(table: LakeTable, error: Exception) -> None:
    _logger.warning(
        "maintenance of %s failed, and will be tried again: %s", table.url, one_line(error, command="maintain")
    )
