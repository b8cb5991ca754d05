"""Times without a zone in options of ``format("lakemerge")``.

They are in the session's time zone, as with Delta and in Spark's own ``TIMESTAMP AS OF``. Spark plans a Python data
source in a process that does not know the session's settings. Only tasks know them. So a load plans the read of each
version that the time may mean, in whatever zone, and each task gives the rows of the version that it means.
"""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark import TaskContext

from lakemerge.errors import InputError, VersionNotFoundError
from lakemerge.layout.travel import epoch_ms

if TYPE_CHECKING:
    from lakemerge.table.open_table import OpenTable

__all__ = ["Moments", "Named", "one_version", "without_zone"]

V = TypeVar("V")

_FARTHEST = dt.timedelta(hours=18)
"""No zone of Java is farther from UTC."""
_MOST_VERSIONS = 64
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?")
_ZONE = "spark.sql.session.timeZone"


def without_zone(text: str | None) -> dt.datetime | None:
    """The time that a text spells if it has no zone."""
    try:
        time = None if text is None else dt.datetime.fromisoformat(text)
    except ValueError:
        return None  # who opens the table says what is wrong
    return None if time is None or time.tzinfo is not None else time


def one_version(time: dt.datetime, option: str, version_at: Callable[[dt.datetime], V]) -> V:
    """What a time without a zone means in every zone. Raises :class:`InputError` if zones differ in it."""
    first, last = _tried(version_at, _utc(time, -_FARTHEST)), _tried(version_at, _utc(time, _FARTHEST))
    if first is None and last is None:
        return version_at(_utc(time, dt.timedelta()))  # it raises the error
    if first is None or first != last:
        raise InputError(
            f"{option} {time.isoformat(' ')!r} has no time zone, and Spark does not tell a Python data source that of "
            f"the session; write the zone, such as '{time.isoformat()}+00:00'"
        )
    return first


def _tried(version_at: Callable[[dt.datetime], V], instant: dt.datetime) -> V | None:
    try:
        return version_at(instant)
    except VersionNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Moments:
    """The instants at which a version is the last one. Epoch milliseconds."""

    first_ms: int
    until_ms: int
    """Not included."""


@dataclass(frozen=True, slots=True)
class Named:
    """A time without a zone, and the versions that it may mean. Picklable."""

    time: dt.datetime
    option: str
    zone: str | None
    """The zone of a session that sets none: that of the driver's host, as an offset from UTC at that time."""
    moments: Moments
    """When there are versions."""

    @classmethod
    def of(
        cls, option: str, time: dt.datetime, open_at: Callable[[int | None], OpenTable]
    ) -> tuple[Named, list[tuple[Moments, OpenTable]]]:
        """The time, and the table at each version that it may mean, with the instants that mean this version.

        :param open_at: opens the table at a version, or at its latest.
        :raises InputError: there are too many versions, or versions of different schemas.
        """
        tip = open_at(None)
        log = tip.handle.log

        def version_at(offset: dt.timedelta) -> int:
            try:
                return log.snapshot(timestamp_ms=epoch_ms(_utc(time, offset))).version
            except VersionNotFoundError as error:
                asked, latest = error.facts.get("timestamp_ms"), error.facts.get("latest_ms")
                earliest = error.facts.get("earliest")
                is_late = isinstance(asked, int) and isinstance(latest, int) and asked > latest
                if not isinstance(earliest, int) or is_late == (offset < dt.timedelta()):
                    raise  # before or after history in each zone
                return tip.version if is_late else earliest

        low, high = version_at(-_FARTHEST), version_at(_FARTHEST)
        if high < low or _opened(open_at, high) is None:
            raise VersionNotFoundError(f"no version is known for {option} {time.isoformat(' ')}, in any time zone")
        if high - low >= _MOST_VERSIONS:
            raise InputError(
                f"{option} {time.isoformat(' ')!r} has no time zone, and Spark does not tell a Python data source that "
                f"of the session: it may mean {high - low + 1} versions; write the zone, such as "
                f"'{time.isoformat()}+00:00'"
            )
        tables = [table for version in range(low, high + 1) if (table := _opened(open_at, version)) is not None]
        starts = [table.view.snapshot.timestamp_ms for table in tables]
        after = tip.view.snapshot.timestamp_ms + 1
        if high < tip.version:
            after = open_at(high + 1).view.snapshot.timestamp_ms
        until = [*starts[1:], after]
        found = [(Moments(*bounds), table) for table, *bounds in zip(tables, starts, until, strict=True)]
        if any(table.schema != found[0][1].schema for _, table in found):
            raise InputError(
                f"{option} {time.isoformat(' ')!r} has no time zone, and Spark does not tell a Python data source that "
                f"of the session: it may mean versions of different schemas; write the zone, such as "
                f"'{time.isoformat()}+00:00'"
            )
        offset = time.astimezone().utcoffset() or dt.timedelta()
        local = f"{'-' if offset < dt.timedelta() else '+'}{_clock(abs(offset))}"
        return cls(time, option, local, Moments(starts[0], after)), found

    def means(self, moments: Moments) -> bool:
        """In a task: whether the time is one of these instants in the session's zone.

        :raises VersionNotFoundError: there is no version for it.
        """
        context = TaskContext.get()
        zone = (None if context is None else context.getLocalProperty(_ZONE)) or self.zone or "UTC"
        instant = self.time.replace(tzinfo=_zone(zone))
        found = epoch_ms(instant)
        if found is None or not self.moments.first_ms <= found < self.moments.until_ms:
            raise VersionNotFoundError(
                f"no version is known for {self.option} {instant.isoformat(' ')}; versions are known from "
                f"{_shown(self.moments.first_ms)} to {_shown(self.moments.until_ms - 1)}"
            )
        return moments.first_ms <= found < moments.until_ms


def _opened(open_at: Callable[[int | None], OpenTable], version: int) -> OpenTable | None:
    """The table at a version; ``None`` if that can be read no more, which a task tells if it is the one."""
    try:
        return open_at(version)
    except VersionNotFoundError:
        return None


def _utc(time: dt.datetime, offset: dt.timedelta) -> dt.datetime:
    try:
        return time.replace(tzinfo=dt.UTC) + offset
    except OverflowError:
        return time.replace(tzinfo=dt.UTC)


def _zone(text: str) -> dt.tzinfo:
    """A zone by its name in Java."""
    if text in ("Z", "UT"):
        return dt.UTC
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
        span = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return dt.timezone(-span if offset[1] == "-" else span)
    try:
        return zoneinfo.ZoneInfo(text)
    except (ValueError, zoneinfo.ZoneInfoNotFoundError):
        raise InputError(
            f"the session's time zone {text!r} is not known to Python; write the zone in the option"
        ) from None


def _clock(span: dt.timedelta) -> str:
    seconds = int(span.total_seconds())
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _shown(instant_ms: int) -> str:
    return dt.datetime.fromtimestamp(instant_ms / 1000, dt.UTC).isoformat(" ")
