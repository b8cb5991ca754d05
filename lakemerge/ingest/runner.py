"""Works off one scan: new files become windows, one commit after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lakemerge.errors import (
    CommitConflictError,
    InputError,
    LakeMergeError,
    MergeValueError,
    RetryError,
    TableDamagedError,
)
from lakemerge.format.config import TableConfig
from lakemerge.format.ledger import Entry, FileState, ledger_tables
from lakemerge.handle import Handle
from lakemerge.ingest.archiving import Afterwards
from lakemerge.ingest.committing import Member, Standing, WindowWork, commit_window, note, standing_of
from lakemerge.ingest.discovery import Settling, found_by
from lakemerge.ingest.formats.base import Peek
from lakemerge.ingest.formats.record_rows import joined_fields, within
from lakemerge.ingest.packing import Done, Job, RunTasks, Task, new_fields, run_task, split_tasks
from lakemerge.ingest.reading import BadRecordError, NewFieldsError, Reading
from lakemerge.ingest.results import IngestResult
from lakemerge.ingest.source import FileChangedError, FileGoneError, FileUnreadableError, SourceFile
from lakemerge.ingest.spill import Spill
from lakemerge.ingest.window_columns import ColumnOptions, WindowFrame
from lakemerge.ingest.windows import Failure, Gathering, Window, Windows
from lakemerge.layout.view import TableView
from lakemerge.results.writes import UpsertResult
from lakemerge.write.start import Write, WriteRequest
from lakemerge.write.upsert import LoadFileSlices
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["Engine", "Runner", "fails_window"]

_logger = logger("lakemerge.ingest")

_MOST_REPLANS: Final = 100
_MOST_READS: Final = 4
"""So often a window is read again without a file that cannot be read."""
_INFLATED: Final = {"parquet": 4, "orc": 4, "avro": 2}
"""About how many bytes of Arrow data one byte of a file makes."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where windows are read and packed."""

    run: RunTasks
    load_file_slices: LoadFileSlices
    at_a_time: Callable[[], int]


class _PlanAnewError(RetryError):
    """The plan is out of date."""


@dataclass(slots=True)
class Runner:
    """A job's settings, and what a run of it has done so far."""

    handle: Handle
    latest: Callable[[], TableView]
    """The tip."""
    name: str
    gathering: Gathering
    shape_of: Callable[[TableConfig], ColumnOptions]
    """Gives the shape for the table's present columns."""
    engine: Engine
    settling: Settling
    limit: int | None
    """How many records of a window may be set aside; ``None``: any number."""
    afterwards: Afterwards | None
    source: Mapping[str, Any]
    pressure: Callable[[], str | None]
    """Gives the reason why no window may be committed now; ``None``: it may."""
    committed: Callable[[], None]
    """Called after each window."""
    is_stopped: Callable[[], bool]
    result: IngestResult = field(default_factory=IngestResult)
    _unreadable: int = 0
    _told_failed: int = 0

    def standing(self) -> Standing:
        """The table as it is now, and what it says about the job."""
        return standing_of(self.latest(), self.name)

    def work_off(self, listing: Spill, *, drain: bool) -> None:
        """Take up the files that a listing has and the ledger lacks. If somebody else commits first, plan anew."""
        leave: set[tuple[str, str]] = set()
        tries, window = 0, -1
        while True:
            standing = self.standing()
            standing.check_runnable()
            tries = tries + 1 if standing.ingest.window == window else 0
            window = standing.ingest.window
            try:
                self._work_off(standing, listing, drain=drain, leave=leave)
                return
            except (CommitConflictError, TableDamagedError, _PlanAnewError) as error:
                # A missing ledger file may have been replaced by another runner and deleted by a vacuum.
                if isinstance(error, TableDamagedError) and self.standing().configuration == standing.configuration:
                    raise
                if tries >= _MOST_REPLANS:
                    raise
                _logger.info("ingest %s is planned again: %s", self.name, error)

    def _work_off(self, standing: Standing, listing: Spill, *, drain: bool, leave: set[tuple[str, str]]) -> None:
        found = found_by(
            listing,
            ledger_tables(self.handle.store, standing.ingest.ledger),
            settling=self.settling,
            overwrites=self.gathering.files.overwrites,
            exists=lambda path: self.gathering.files.places.of(path).stat(path) is not None,
            keeps_done=self.afterwards is not None,
            now_ms=self.gathering.now_ms(),
            leave=leave,
        )
        windows = Windows(self.gathering, drain, notes=found.notes, unsettled=leave)
        self.result = replace(self.result, to_retry=found.failed)
        if found.failed and found.failed != self._told_failed:
            _logger.warning(
                "ingest %s: %d files failed before, and are skipped until retry puts them back",
                self.name,
                found.failed,
            )
        self._told_failed = found.failed
        try:
            if self.afterwards is not None:
                self.handle.log.make_durable(standing.view.version)
                self.afterwards.do(_files(found.done))
            for window in windows.of(found):
                if self.is_stopped():
                    break
                if isinstance(window, Failure):
                    standing = self._fail(standing, window, windows)
                    continue
                waiting = self.pressure()
                if waiting is not None:
                    self.result = replace(self.result, waiting=waiting)
                    windows.wait(member.candidate for member in window.members if self.gathering.uses_bins)
                    break
                standing = self._window(self._current(standing), window, windows)
            if windows.notes:
                self._note(standing, windows.notes, {"noted": len(windows.notes)})
                windows.notes.clear()
        finally:
            found.close()

    def _window(self, standing: Standing, window: Window, windows: Windows) -> Standing:
        started = time.monotonic()
        if window.peek is not None and not window.peek.names:
            return self._empty(standing, window, windows)
        try:
            after, entries = self._committed(standing, window, windows)
        except (FileGoneError, FileChangedError) as error:
            path = error.facts.get("path")
            for member in window.members:
                if member.candidate.path == path:
                    windows.vanished(error, member.candidate)
                    break
            others = [member.candidate for member in window.members if member.candidate.path != path]
            windows.wait(others if self.gathering.uses_bins else ())
            if windows.notes:
                self._note(standing, windows.notes, {"noted": len(windows.notes)})
            raise _PlanAnewError(error.message) from error
        except Exception as error:
            if not fails_window(error):
                raise
            return self._without(error, standing, window, windows)
        windows.notes.clear()
        self._count(entries)
        blocks = sum(member.piece.blocks for member in window.members)
        _logger.info(
            "ingest %s: window %d, %d blocks of %d files, %s rows, %.1f s",
            self.name,
            standing.ingest.window + 1,
            blocks,
            len(window.members),
            f"{sum(entry.rows for entry in entries):,}",
            time.monotonic() - started,
        )
        if self.afterwards is not None:
            number = after.ingest.window
            self.afterwards.do((member.candidate.file, number) for member in window.members if member.is_last)
        self.committed()
        return after

    def _without(self, error: Exception, standing: Standing, window: Window, windows: Windows) -> Standing:
        """Note that a window failed. If one file cannot be read, only that file fails, and the others go on: after
        some such files each in a window of its own, so that no file is read often. A bin is one whole, and so are the
        records of a window that are read, but are not taken."""
        bad = error.facts.get("path") if isinstance(error, FileUnreadableError) else None
        others = tuple(member for member in window.members if member.candidate.path != bad)
        if self.gathering.uses_bins or len(others) == len(window.members):
            others = ()
        failed = [member.candidate for member in window.members if member not in others]
        standing = self._fail(standing, Failure(tuple(failed), _told(error)), windows)
        self._unreadable += 1
        alone = self._unreadable % _MOST_READS == 0
        for members in [(member,) for member in others] if alone else [others]:
            if members:
                standing = self._window(self._current(standing), window._replace(members=members), windows)
        return standing

    def _committed(self, standing: Standing, window: Window, windows: Windows) -> tuple[Standing, list[Entry]]:
        """Read, pack and commit a window."""
        number = standing.ingest.window + 1
        write, done = self.packed(self.handle, standing.view, window.members, window.peek, number)
        work = WindowWork(window.members, window.reason, tuple(windows.notes), self.source)
        return commit_window(standing, write, done, work, load_file_slices=self.engine.load_file_slices)

    def packed(
        self, handle: Handle, view: TableView, members: Sequence[Member], peek: Peek | None, number: int
    ) -> tuple[Write, list[Done]]:
        """Read pieces and pack them for a table. A failure leaves no file."""
        try:
            return self._packed(handle, view, members, peek, number, None)
        except NewFieldsError:
            new = self._new_fields(handle, view, members, peek)
            return self._packed(handle, view, members, peek, number, new)

    def _shape(self, handle: Handle, view: TableView) -> ColumnOptions:
        return replace(self.shape_of(view.config), max_columns=handle.settings.max_columns)

    def _new_fields(
        self, handle: Handle, view: TableView, members: Sequence[Member], peek: Peek | None
    ) -> dict[str, pa.DataType]:
        """All fields that records of a window have and the table lacks, so that their order does not matter. If there
        is no room for all of them, the first ones."""
        shape = self._shape(handle, view)
        frame = shape.frame(view.config, peek, {})
        reading = Reading.of(view.config, handle.merger(view), self.gathering.files.places, shape.format, frame, None)
        found = joined_fields(self.engine.run(partial(new_fields, reading), self._tasks(members)))
        return within(found, frame.parse.room or 0)

    def _packed(
        self,
        handle: Handle,
        view: TableView,
        members: Sequence[Member],
        peek: Peek | None,
        number: int,
        new: Mapping[str, pa.DataType] | None,
    ) -> tuple[Write, list[Done]]:
        """:param new: the fields that become columns; other fields do not. ``None``: they are not known yet."""
        shape = self._shape(handle, view)
        frame = shape.frame(view.config, peek, new or {})
        if new is not None and frame.parse.grows:
            frame = replace(frame, parse=replace(frame.parse, room=0))
        size = sum(member.piece.length for member in members)
        write = self._write(handle, view, frame, size, merge_schema=shape.merge_schema)
        reading = Reading.of(
            write.begin.config, write.pack.merger, self.gathering.files.places, shape.format, frame, self.limit
        )
        try:
            done = self.engine.run(partial(run_task, Job(reading, write.pack, number)), self._tasks(members))
            self._check_limit(done)
        except BaseException:
            write.discard()
            raise
        return write, done

    def _tasks(self, members: Sequence[Member]) -> list[Task]:
        pieces = [member.piece for member in members]
        return split_tasks(pieces, self.gathering.format.splits, at_a_time=self.engine.at_a_time())

    def _write(self, handle: Handle, view: TableView, frame: WindowFrame, size: int, *, merge_schema: bool) -> Write:
        write = Write.start(
            handle,
            view,
            frame.schema,
            WriteRequest(kind_column=frame.kind_column, merge_schema=merge_schema),
            estimated_bytes=size * _INFLATED.get(self.gathering.format.name, 1),
        )
        if isinstance(write, UpsertResult):
            raise AssertionError("a write without an application transaction is never done already")
        return write

    def _check_limit(self, done: list[Done]) -> None:
        rejected = sum(count for task in done for _, _, count in task.counts)
        if self.limit is not None and rejected > self.limit:
            raise BadRecordError(
                f"the window has {rejected} bad records; {argument('max_bad_records')} allows {self.limit}"
            )

    def _empty(self, standing: Standing, window: Window, windows: Windows) -> Standing:
        """Take up files that are empty, without even a header."""
        number = standing.ingest.window + 1
        entries = [member.entry(number, 0, 0, window.reason) for member in window.members]
        after = self._note(standing, [*windows.notes, *entries], {"files": len(entries)})
        windows.notes.clear()
        self._count(entries)
        return after

    def _fail(self, standing: Standing, failure: Failure, windows: Windows) -> Standing:
        number = standing.ingest.window + 1
        failed = [candidate.entry(FileState.FAILED, number, reason=failure.reason) for candidate in failure.candidates]
        about = {"failed": len(failed), "reason": failure.reason}
        after = self._note(standing, [*windows.notes, *failed], about)
        windows.notes.clear()
        windows.failed.update((candidate.path, candidate.token) for candidate in failure.candidates)
        self._told_failed += len(failed)
        self.result = replace(
            self.result, failed=self.result.failed + len(failed), to_retry=self.result.to_retry + len(failed)
        )
        _logger.warning("ingest %s: %d files failed: %s", self.name, len(failed), failure.reason)
        return after

    def _note(self, standing: Standing, entries: list[Entry], about: Mapping[str, object]) -> Standing:
        return note(self.handle, standing, entries, about=about, source=self.source)

    def _count(self, entries: list[Entry]) -> None:
        self.result = replace(
            self.result,
            windows=self.result.windows + 1,
            files=self.result.files + sum(entry.offset + entry.length >= entry.size for entry in entries),
            rows=self.result.rows + sum(entry.rows for entry in entries),
            rejected=self.result.rejected + sum(entry.rejected for entry in entries),
        )

    def _current(self, standing: Standing) -> Standing:
        """The same job with the table as it is now. The plan holds only while nobody else commits for the job."""
        found = self.standing()
        if found.configuration != standing.configuration:
            raise _PlanAnewError("another runner of the job committed meanwhile")
        found.check_runnable()
        return found


def fails_window(error: Exception) -> bool:
    """Whether the files are at fault: then the window fails, and the others go on. Else the table or store is. A value
    that cannot be merged is found here only by a first load, which merges the records."""
    return isinstance(error, InputError | MergeValueError)


def _told(error: Exception) -> str:
    return error.message if isinstance(error, LakeMergeError) else str(error)


def _files(done: Spill) -> Iterator[tuple[SourceFile, int]]:
    for batch in done:
        for *file, window in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield SourceFile(*file), window
