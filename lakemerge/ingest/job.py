"""An ingest job: what :meth:`lakemerge.LakeTable.ingest` gives. A job that goes on lists its source beside the work, at
an interval and when somebody asks for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import Final, Literal

import pyarrow as pa

from lakemerge._internal.arguments import checked, items, shown, whole
from lakemerge.commits.provenance import DomainChangedError
from lakemerge.errors import CommitConflictError, InputError, RetryError, StoreError, VersionNotFoundError
from lakemerge.events import observed
from lakemerge.format.ingests import ingests_of
from lakemerge.format.ledger import REJECTS, Entry, FileState
from lakemerge.ingest.committing import Standing, note, standing_of
from lakemerge.ingest.discovery import Candidate, found_by
from lakemerge.ingest.options import Files
from lakemerge.ingest.places import LISTING, whole_path
from lakemerge.ingest.results import (
    IngestFile,
    IngestResult,
    IngestStatus,
    entries_of,
    files_of,
    ledger_of,
    rejects_of,
    status_of,
)
from lakemerge.ingest.runner import Runner
from lakemerge.ingest.settings import JobSettings
from lakemerge.ingest.spill import Spill
from lakemerge.ingest.window_replay import replayed
from lakemerge.layout.travel import unless_replaced
from lakemerge.quantities import milliseconds_of
from lakemerge.table.open_table import HasOpenTable, OpenTable
from lakemerge.table.opening import opened
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["IngestJob", "Scanner", "listing_of"]


_logger = logger("lakemerge.ingest")

_TRIES: Final = 20
_NEW = frozenset({FileState.SEEN, FileState.SETTLING, FileState.CHANGED})
"""States that also need a listing of the source."""


class IngestJob:
    """Files on their way into a table. Made by :meth:`lakemerge.LakeTable.ingest`.

    All that a job knows is in the table, so any number of processes may run it, look at it and change it. If two
    processes run it at the same time, one of them commits each window, and the other plans anew.
    """

    def __init__(self, table: OpenTable, name: str, settings: JobSettings | None) -> None:
        self._table = table
        self._name = name
        self._settings = settings
        self._stop = threading.Event()
        self._trigger = threading.Event()
        self._running = threading.Lock()

    def __repr__(self) -> str:
        files = "" if self._settings is None else f", {self._settings.files!r}"
        return f"IngestJob({self._name!r}{files})"

    @property
    def name(self) -> str:
        """What the table knows the job by."""
        return self._name

    @property
    def url(self) -> str:
        """The URL of the table."""
        return self._table.url

    @property
    def sources(self) -> tuple[str, ...]:
        """The folders and files that the job was given by name; none if it has no source here."""
        return () if self._settings is None else self._settings.files.names

    @checked
    def run(self, *, every: object = None, drain: bool = False) -> IngestResult:
        """Take up the files that are there now; with ``every``, go on until :meth:`stop`.

        A window that fails is reported and noted in the ledger, and the others go on. An error of the table or a store
        is raised. With ``every``, an error that may pass by itself is only logged, and the next scan tries again.

        :param every: time between scans, such as ``"30s"``. Scans go on beside the work.
        :param drain: also merge bins that are below their minima.
        :raises lakemerge.InputError: the table was restored (call :meth:`reset`), or the job cannot be run on it.
        """
        return observed(IngestJob._taken_up, "ingest")(self, every, drain)

    def _taken_up(self, every: object, drain: bool) -> IngestResult:
        settings = self._needed()
        interval_ms = None if every is None else milliseconds_of(every, "every")
        if not self._running.acquire(blocking=False):
            raise InputError(f"ingest job {self._name!r} is running in another thread")
        try:
            runner = settings.runner(self._table, self._name, self._stop.is_set)
            if interval_ms is None:
                self._run_once(runner, drain=drain)
            else:
                self._run_on(runner, interval_ms / 1000, drain=drain)
            return runner.result
        finally:
            self._stop.clear()
            self._running.release()

    def trigger(self) -> None:
        """Scan at once. If a scan is under way, the next one follows it directly."""
        self._trigger.set()

    def stop(self) -> None:
        """End the run after the window that is under way. Called before a run, it ends that run."""
        self._stop.set()

    def status(self) -> IngestStatus:
        """What the table says about the job."""
        return status_of(self._table.handle, self._standing())

    @checked
    def files(self, *, state: str | Collection[str] | None = None) -> list[IngestFile]:
        """Versions of files by path, and what became of them. If the job has a source, it is listed, too, to find new
        files.

        :param state: only those in one of these states.
        """
        states = _states(state)
        versions: Iterable[list[Entry]] = entries_of(self._table.handle, self._standing())
        if self._settings is not None and states & _NEW:
            versions = chain(versions, self._new(self._settings))
        found = files_of(versions, states)
        return sorted(found, key=lambda file: (file.path, file.modified_ms))

    def rejects(self) -> pa.Table:
        """Records that were set aside: window, path, byte offset (or number of the row), text and reason."""
        tables = rejects_of(self._table.handle, self._standing())
        return pa.concat_tables(tables) if tables else REJECTS.empty_table()

    @checked
    def retry(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> int:
        """Put back files that failed or were refused because they changed. A new window takes them. Returns how many.
        A version that another one has replaced meanwhile is not put back.

        :param paths: only these files.
        :raises lakemerge.InputError: one of them did not fail.
        """
        given = [] if paths is None else items(paths, "paths", "a list of paths")
        asked = None if paths is None else {whole_path(path) for path in given}
        again: list[Entry] = []

        def chosen(standing: Standing) -> list[Entry]:
            again.clear()
            versions = entries_of(self._table.handle, standing)
            for path, group in groupby(versions, key=lambda entries: entries[0].path):
                if asked is None or path in asked:
                    last = _latest(list(group))
                    if last is not None and last.state in (FileState.FAILED, FileState.CHANGED):
                        again.append(last._replace(state=FileState.SEEN, reason=None))
            missing = set() if asked is None else asked - {entry.path for entry in again}
            if missing:
                raise InputError(f"{len(missing)} files did not fail, such as {min(missing)}", paths=tuple(missing))
            return again

        self._noted(chosen, {"retried": True})
        return len(again)

    @checked
    def reset(self, *, seen: Literal["keep", "forget"] = "keep") -> None:
        """Begin a new generation: after a restore, or to take everything up again.

        :param seen: ``keep``: files of the ledger keep their state, whether their records are in the table or not;
            ``forget``: all files are new, and are taken up once more.
        """
        if seen not in ("keep", "forget"):
            raise InputError(f"seen must be 'keep' or 'forget', not {seen!r}")
        standing = self._writable()
        view = standing.view
        changed = replace(
            standing.ingest,
            generation=standing.ingest.generation + 1,
            restore_epoch=view.state.restore_epoch,
            table_id=view.snapshot.metadata.id,
        )
        if seen == "forget":
            changed = replace(changed, ledger=(), rejects=())
        about = {"reset": seen, "generation": changed.generation}
        note(self._table.handle, standing, (), about=about, changed=changed)

    @checked
    def replay(
        self,
        *,
        windows: int | Iterable[int] | None = None,
        into: HasOpenTable | str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> IngestResult:
        """Read the files of windows once more, in the same blocks, and upsert their records.

        :param windows: by default all.
        :param into: another table, or its path; each window lands in it once. By default it is the job's own table, if
            its merger is replay-safe.
        :param force: replay also where records may count twice: into the job's own table with a merger that is not
            replay-safe, or into a table that has the window already.
        :raises lakemerge.InputError: a file of a window is missing or was changed. Then nothing of that window was
            written.
        """
        runner = self._needed().runner(self._table, self._name, self._stop.is_set)
        numbers = None if windows is None else _numbers(windows)
        target = self._table if into is None else opened(into, "into")
        return replayed(runner, self._standing(), target.handle, numbers, force=force)

    def _run_once(self, runner: Runner, *, drain: bool) -> None:
        while not self._stop.is_set():
            self._trigger.clear()
            with listing_of(runner.gathering.files) as listing:
                self._work_off(runner, listing, drain=drain)
            if not self._trigger.is_set():
                return

    def _run_on(self, runner: Runner, every_s: float, *, drain: bool) -> None:
        scanner = Scanner(runner.gathering.files, every_s, self._trigger, self._stop)
        with scanner.running() as next_listing:
            while (listing := next_listing()) is not None:
                try:
                    if isinstance(listing, Exception):
                        raise listing
                    with listing:
                        self._work_off(runner, listing, drain=drain)
                except (RetryError, StoreError, OSError) as error:
                    if error is not listing and is_foreign(error):
                        raise
                    _logger.warning("ingest %s continues with the next scan: %s", self._name, error)

    def _work_off(self, runner: Runner, listing: Spill, *, drain: bool) -> None:
        runner.result = replace(runner.result, waiting=None)
        runner.work_off(listing, drain=drain)
        if runner.afterwards is not None:
            runner.afterwards.keep_in_bounds()

    def _new(self, settings: JobSettings) -> Iterator[list[Entry]]:
        """The files that a listing has and the ledger lacks, as the entries of one version at a time."""
        standing = self._standing()
        places = settings.files.places
        # To be shown only. To ask the store for the time, a file would be written.
        now_ms = self._table.handle.now_ms() if settings.now_ms is None else settings.now_ms()
        with listing_of(settings.files) as listing:
            found = found_by(
                listing,
                ledger_of(self._table.handle, standing),
                settling=settings.settling,
                overwrites=settings.files.overwrites,
                exists=lambda path: places.of(path).stat(path) is not None,
                keeps_done=False,
                now_ms=now_ms,
            )
            for candidate in found:
                if not candidate.binned and not candidate.block:
                    yield [candidate.entry(FileState.SEEN, 0)]
            for file in found.settling:
                settling = Candidate(file.modified_ns, file.path, file.size, file.token, now_ms)
                yield [settling.entry(FileState.SETTLING, 0)]
            yield from ([entry] for entry in found.notes if entry.state is FileState.CHANGED and not entry.window)
            found.close()

    def _noted(self, entries: Callable[[Standing], list[Entry]], about: dict[str, object]) -> None:
        """Commit entries made from the job's present state. If somebody else commits first, they are made anew."""
        for _ in range(_TRIES):
            standing = self._writable()
            try:
                with unless_replaced(self._table.handle.log, standing.view.snapshot):
                    chosen = entries(standing)
                    if chosen:
                        note(self._table.handle, standing, chosen, about=about)
            except (DomainChangedError, VersionNotFoundError):  # of another runner, or of one and a vacuum
                continue
            return
        raise CommitConflictError(f"other runners of ingest job {self._name!r} were first each time; try again later")

    def _standing(self) -> Standing:
        """The version that reads of the table show, and what it says about the job."""
        return standing_of(self._table.view, self._name)

    def _writable(self) -> Standing:
        standing = standing_of(self._table.writable(), self._name)
        if standing.configuration is None:
            jobs = ", ".join(ingests_of(standing.view.snapshot)) or "none"
            raise InputError(f"the table has no ingest job {self._name!r}; it has {jobs}", name=self._name)
        return standing

    def _needed(self) -> JobSettings:
        if self._settings is None:
            raise InputError(
                f"say which files: table.ingest({self._name!r}, Files('s3://landing/orders/', format='json'))"
            )
        return self._settings


def _latest(versions: Sequence[Sequence[Entry]]) -> Entry | None:
    """The last entry of the version of a file that the job found last; ``None`` if that is not certain.

    The commit that notes a version as replaced, or one after it, has its successor in another state. A version that
    is refused is noted after all others.
    """
    most = max(entries[-1].window for entries in versions)
    last = [entries[-1] for entries in versions if entries[-1].window == most]
    if len(last) > 1:
        last = [entry for entry in last if entry.state is not FileState.CHANGED]
    return last[0] if len(last) == 1 else None


def _numbers(windows: object) -> set[int]:
    """One number of a window or several."""
    if isinstance(windows, Iterable):
        return {whole(one, "windows") for one in items(windows, "windows", "a number of a window, or a list of them")}
    return {whole(windows, "windows")}


def _states(state: str | Collection[str] | None) -> frozenset[FileState]:
    known = {str(one) for one in FileState}
    what = f"states of files, which are {', '.join(sorted(known))}"
    given = [*FileState] if state is None else [state] if isinstance(state, str) else items(state, "state", what)
    strange = [one for one in given if not isinstance(one, str) or one not in known]
    if strange:
        raise InputError(f"states of files are {', '.join(sorted(known))}, not {shown(strange[0])}")
    return frozenset(FileState(one) for one in given)


_BATCH_ROWS = 16_384


def listing_of(files: Files) -> Spill:
    """What is there now, sorted by path."""
    listing = Spill(LISTING)
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
        self._newest: Spill | Exception | None = None

    @contextmanager
    def running(self) -> Iterator[Callable[[], Spill | Exception | None]]:
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
            if isinstance(self._newest, Spill):
                self._newest.close()

    def _scan(self) -> None:
        while not self._stop.is_set():
            self._trigger.clear()
            try:
                found: Spill | Exception = listing_of(self._files)
            except Exception as error:  # noqa: BLE001 - it is for the caller to judge
                found = error
            with self._changed:
                before, self._newest = self._newest, found
                self._changed.notify_all()
            if isinstance(before, Spill):
                # Nobody reads it any more, so an error while it is closed may not end the scans.
                with suppress(OSError):
                    before.close()
            self._trigger.wait(self._every_s)

    def _next(self) -> Spill | Exception | None:
        with self._changed:
            while self._newest is None:
                if self._stop.is_set():
                    return None
                self._changed.wait(0.2)
            found, self._newest = self._newest, None
            return found
