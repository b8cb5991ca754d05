"""Listings, beside the work: at an interval, and when somebody asks for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from lakemerge.ingest.options import Files
from lakemerge.ingest.places import LISTING
from lakemerge.ingest.spill import Spool
from mergers.logs import logger

__all__ = ["Scanner", "listing_of"]

_logger = logger("lakemerge.ingest")

_BATCH_ROWS = 16_384


def listing_of(files: Files) -> Spool:
    """What is there now, sorted by path."""
    listing = Spool(LISTING)
    try:
        found = files.places.listed(files.locations(), recursive=files.recursive)
        if files.pattern is not None:
            found = (file for file in found if files.groups(file.path) is not None)
        while rows := list(islice(found, _BATCH_ROWS)):
            listing.add_rows(rows)
    except BaseException:
        listing.close()
        raise
    return listing


class Scanner:
    """Scans in a thread of its own, so that the next listing is ready when the work on the last one is done.

    :param trigger: set to ask for a scan at once, or right after the one that is under way.
    """

    def __init__(self, files: Files, every_s: float, trigger: threading.Event, stop: threading.Event) -> None:
        self._files, self._every_s = files, every_s
        self._trigger, self._stop = trigger, stop
        self._changed = threading.Condition()
        self._newest: Spool | Exception | None = None

    @contextmanager
    def running(self) -> Iterator[Callable[[], Spool | Exception | None]]:
        """Gives a function that waits for the next listing: the newest, or the error it ended with; ``None`` once it
        is stopped."""
        thread = threading.Thread(target=self._scan, name="lakemerge-ingest-scan", daemon=True)
        thread.start()
        try:
            yield self._next
        finally:
            self._stop.set()
            self._trigger.set()
            thread.join()
            if isinstance(self._newest, Spool):
                self._newest.close()

    def _scan(self) -> None:
        while not self._stop.is_set():
            self._trigger.clear()
            try:
                found: Spool | Exception = listing_of(self._files)
            except Exception as error:  # noqa: BLE001 - it is for the caller to judge
                found = error
            with self._changed:
                before, self._newest = self._newest, found
                self._changed.notify_all()
            if isinstance(before, Spool):
                # Nobody reads it any more, so an error while it is closed may not end the scans.
                with suppress(OSError):
                    before.close()
            self._trigger.wait(self._every_s)

    def _next(self) -> Spool | Exception | None:
        with self._changed:
            while self._newest is None:
                if self._stop.is_set():
                    return None
                self._changed.wait(0.2)
            found, self._newest = self._newest, None
            return found
