"""Plans how far a reader of the change feed goes next, and which units it reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lakemerge.delta import Snapshot
from lakemerge.errors import TableDamagedError, TableReplacedError, VersionNotFoundError
from lakemerge.feed.units import FeedUnit, units_of_commit, units_of_rows
from lakemerge.feed.walk import changing_commits, check_not_replaced
from lakemerge.format.feed_offset import Offset
from lakemerge.format.names import STATE_DOMAIN
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.travel import check_converted
from lakemerge.layout.view import TableView

__all__ = ["Limits", "Overtaken", "Planner", "Reached", "check_not_overtaken", "unless_overtaken"]

_KEPT_VERSIONS = 4
"""For how many versions units stay in memory between the two questions of a stream: how far, and which units."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a batch. A batch has at least one unit, however large it is."""

    max_bytes: int | None = None
    max_versions: int | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """A unit, and the offset of a reader after it. A version without changes has no unit."""

    after: Offset
    unit: FeedUnit | None


class Planner:
    """Finds the units of the change feed from one offset to another. It keeps the last ones in memory."""

    def __init__(self, handle: Handle, table_id: str) -> None:
        self._handle = handle
        self._table_id = table_id
        self._last: Snapshot | None = None
        self._units: OrderedDict[tuple[int, str], list[FeedUnit]] = OrderedDict()

    def reading(self, start: Offset, until: int) -> Iterator[Reached]:
        """The units after ``start``, up to the version ``until``.

        :raises VersionNotFoundError: a vacuum has deleted versions that are needed.
        :raises TableReplacedError: the table was replaced after ``start``.
        """
        if start.version > until:
            return
        begin = self._snapshot(start.needed_version)
        at = start
        for reached in self._reading(begin, start, until):
            at = reached.after
            yield reached
        if at.version <= until:
            # The last commits changed nothing, and so have no units.
            yield Reached(Offset(until + 1), None)

    def _reading(self, begin: Snapshot, start: Offset, until: int) -> Iterator[Reached]:
        if start.of_rows:
            yield from self._of(begin.version, self._of_rows(begin), start.position, of_rows=True)
        for before, after in changing_commits(self._handle, begin, until):
            if after.version >= start.version:
                units = self._of_commit(before, after)
                skip = start.position if after.version == start.version and not start.of_rows else 0
                yield from self._of(after.version, units, skip, of_rows=False)
                self._last = after.snapshot

    def next_offset(self, start: Offset, until: int, limits: Limits) -> Offset:
        """Where a batch that begins at ``start`` ends."""
        end, taken, versions = start, 0, set[int]()
        for reached in self.reading(start, until):
            if reached.unit is not None:
                versions.add(reached.unit.version)
                if limits.max_versions is not None and len(versions) > limits.max_versions:
                    break
                taken += reached.unit.size_bytes
            end = reached.after
            if limits.max_bytes is not None and taken >= limits.max_bytes:
                break
        return end

    def between(self, start: Offset, end: Offset) -> Iterator[Reached]:
        """The units between two offsets, each with the offset after it."""
        if start == end:
            return
        for reached in self.reading(start, end.version if end.position else end.version - 1):
            yield reached
            if reached.after == end:
                return

    def units(self, start: Offset, end: Offset) -> list[FeedUnit]:
        """The units between two offsets."""
        return [reached.unit for reached in self.between(start, end) if reached.unit is not None]

    def _of(self, version: int, units: list[FeedUnit], skip: int, *, of_rows: bool) -> Iterator[Reached]:
        for place, unit in enumerate(units[skip:], start=skip + 1):
            last = place == len(units)
            yield Reached(Offset(version + 1) if last else Offset(version, place, of_rows), unit)

    def _snapshot(self, version: int) -> Snapshot:
        last = self._last
        found = last if last is not None and last.version == version else self._handle.log.snapshot(version=version)
        if found.metadata.id != self._table_id:
            check_not_replaced(self._handle, found, self._handle.log.snapshot())
            raise TableReplacedError(f"the table at {self._handle.store.url} was removed and recreated")
        if STATE_DOMAIN not in found.domains:
            check_converted(version, self._handle.log.snapshot())
        self._last = found
        return found

    def _of_rows(self, snapshot: Snapshot) -> list[FeedUnit]:
        view = self._handle.view(snapshot)
        return self._kept((view.version, "rows"), lambda: units_of_rows(self._handle, view))

    def _of_commit(self, before: TableView, after: TableView) -> list[FeedUnit]:
        return self._kept((after.version, "commit"), lambda: units_of_commit(self._handle, before, after))

    def _kept(self, name: tuple[int, str], make: Callable[[], list[FeedUnit]]) -> list[FeedUnit]:
        if name not in self._units:
            self._units[name] = make()
            while len(self._units) > _KEPT_VERSIONS:
                self._units.popitem(last=False)
        return self._units[name]


def check_not_overtaken(start: Offset, tip: Snapshot, remedy: str) -> None:
    """Raise :class:`VersionNotFoundError` if a vacuum deleted versions that the feed from ``start`` on needs.

    :param remedy: what the caller can do.
    """
    oldest = State.of(tip).oldest_version
    needed = start.needed_version
    if needed < oldest:
        raise VersionNotFoundError(
            f"a vacuum was faster than this reader: the changes after version {needed} are no longer there, as the "
            f"oldest version kept is {oldest}. {remedy}",
            version=needed,
            earliest=oldest,
            latest=tip.version,
        )


@contextmanager
def unless_overtaken(handle: Handle, start: Offset, tip: Snapshot, remedy: str) -> Iterator[None]:
    """A context for reads of the feed from ``start`` on. If a file is missing because a vacuum deleted it, the error is
    that of :func:`check_not_overtaken`, since the table is not damaged."""
    try:
        yield
    except (TableDamagedError, FileNotFoundError, VersionNotFoundError):
        Overtaken(handle, start, tip, remedy)()
        raise


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Called where a file is missing: raises an error if a vacuum deleted it, if the table was dropped, or if it was
    made anew since ``tip`` was read. Picklable, for the tasks that read."""

    handle: Handle
    start: Offset
    tip: Snapshot | None
    """A recent snapshot; ``None`` where there is none, such as in a task."""
    remedy: str

    def __call__(self) -> None:
        log = self.handle.log
        if self.tip is not None:
            log.check_holds(self.tip)
        latest = log.snapshot() if self.tip is None else log.update(self.tip)
        check_not_overtaken(self.start, latest, self.remedy)
        if self.tip is None:
            self.handle.view(latest)  # raises for a table that was dropped
        else:
            log.check_not_dropped(self.tip)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """A context for reads of files."""
        try:
            yield
        except (TableDamagedError, FileNotFoundError):
            self()
            raise
