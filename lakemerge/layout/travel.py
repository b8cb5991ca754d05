"""Finds a version of a table, and says which versions can be read.

Versions below the oldest that vacuum kept have lost files. They are refused even if their commits are still in the log.
Savepoints stay readable (docs/table-format.md, section 7).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.errors import (
    CommitConflictError,
    InputError,
    TableDamagedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.format.conversion import Conversion
from lakemerge.format.names import STATE_DOMAIN
from lakemerge.format.savepoint import savepoints_of
from lakemerge.format.state import State
from mergers.wording import argument, in_python

__all__ = [
    "check_converted",
    "check_kept",
    "check_version",
    "epoch_ms",
    "find_version",
    "guarded",
    "unless_replaced",
    "unless_vacuumed",
]


def find_version(
    log: DeltaLog,
    *,
    version: int | None,
    timestamp: dt.datetime | str | None,
    savepoint: str | None,
    tip: Snapshot | None = None,
) -> Snapshot:
    """The snapshot at a version, timestamp or savepoint, or the latest if none is given.

    :param tip: a recent snapshot, if the caller has one.
    :raises InputError: more than one is given, or there is no such savepoint.
    :raises VersionNotFoundError: not in the history, or its files were vacuumed.
    """
    if sum(given is not None for given in (version, timestamp, savepoint)) > 1:
        raise InputError("ask for a version, a timestamp or a savepoint, not for several of them")
    check_version(version)
    if version is None and timestamp is None and savepoint is None:
        return log.snapshot()
    if savepoint is not None:
        tip = log.snapshot() if tip is None else log.update(tip)
        known = savepoints_of(tip)
        if savepoint not in known:
            raise InputError(
                f"there is no savepoint {savepoint!r}; there are: {', '.join(known) or 'none'}", savepoint=savepoint
            )
        return log.snapshot(version=known[savepoint].version)
    latest = tip
    if latest is None and version is not None:
        # The version is often the latest. Then the log is decoded once.
        with suppress(TableDamagedError, UnsupportedFeatureError):
            latest = log.snapshot()
    if latest is not None and latest.version == version:
        found = latest
    else:
        found = log.snapshot(version=version, timestamp_ms=epoch_ms(timestamp))
    try:
        latest = log.snapshot() if latest is None else latest
        if STATE_DOMAIN not in found.domains and STATE_DOMAIN not in latest.domains:
            return found
        State.of(latest)
    except (TableDamagedError, UnsupportedFeatureError):
        # The tip is damaged. Earlier versions must stay readable, because a user needs them to repair the table.
        return found
    check_kept(found.version, latest)
    return found


def check_version(version: object) -> None:
    if version is not None and type(version) is not int:
        raise InputError(f"{argument('version')} must be an integer, not {version!r}")


def check_kept(version: int, tip: Snapshot, *, savepoints: bool = True) -> None:
    """Raise :class:`VersionNotFoundError` for a version that ``tip`` says cannot be read any more.

    :param savepoints: whether a version with a savepoint passes.
    """
    oldest = State.of(tip).oldest_version
    saved: Collection[int] = {point.version for point in savepoints_of(tip).values()} if savepoints else ()
    if version < oldest and version not in saved:
        check_converted(version, tip)
        raise VersionNotFoundError(
            f"version {version} cannot be read any more: vacuum kept the versions from {oldest} on"
            + (f" and the savepoints {', '.join(map(str, sorted(saved)))}" if saved else ""),
            version=version,
            earliest=oldest,
            latest=tip.version,
        )


def check_converted(version: int, tip: Snapshot) -> None:
    """Raise :class:`VersionNotFoundError` for a version at which the table was a plain Delta table."""
    conversion = Conversion.of(tip)
    if conversion is not None and version < conversion.version:
        raise VersionNotFoundError(
            f"version {version} is of before the table was converted, in version {conversion.version}: other Delta "
            "engines read it, as long as its files are there",
            version=version,
            earliest=conversion.version,
            latest=tip.version,
        )


@contextmanager
def unless_replaced(log: DeltaLog, snapshot: Snapshot) -> Iterator[None]:
    """A context for reads of ``snapshot``. If a file is missing because the table was removed or re-created, it raises
    :class:`lakemerge.TableReplacedError`, and if a vacuum deleted it, :class:`VersionNotFoundError`, since the table is
    not damaged."""
    try:
        yield
    except (TableDamagedError, FileNotFoundError):
        log.check_holds(snapshot)
        tip = log.update(snapshot)
        if STATE_DOMAIN in tip.domains:
            _check_not_vacuumed(snapshot, tip)
        log.check_not_dropped(snapshot)
        raise


def _check_not_vacuumed(read: Snapshot, tip: Snapshot) -> None:
    try:
        check_kept(read.version, tip)
    except VersionNotFoundError as gone:
        raise VersionNotFoundError(
            f"a vacuum was faster than this read: {gone.message}. Read again, from the latest version or one that is "
            "kept; a savepoint holds back vacuum",
            **gone.facts,
        ) from None
    # What was read may go back behind the version, as a replay of records does.
    oldest = State.of(tip).oldest_version
    if oldest > State.of(read).oldest_version:
        raise VersionNotFoundError(
            f"a vacuum was faster than this read: it kept the versions from {oldest} on. Read again; a savepoint or a "
            "consumer holds back vacuum",
            earliest=oldest,
            latest=tip.version,
        )


def guarded(reader: pa.RecordBatchReader, log: DeltaLog, snapshot: Snapshot) -> pa.RecordBatchReader:
    """The same stream, under :func:`unless_replaced`."""

    def batches() -> Iterator[pa.RecordBatch]:
        with unless_replaced(log, snapshot):
            yield from reader

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


@contextmanager
def unless_vacuumed(log: DeltaLog, begin: Snapshot) -> Iterator[None]:
    """A context for work on the version ``begin``. If a file is missing because a vacuum deleted it meanwhile, it
    raises :class:`CommitConflictError`. The table is not damaged then, and the work can be done on its present
    version. If the table was dropped, it raises :class:`lakemerge.TableReplacedError`."""
    try:
        yield
    except (TableDamagedError, FileNotFoundError) as error:
        try:
            check_kept(begin.version, log.update(begin))
        except VersionNotFoundError as gone:
            raise CommitConflictError(
                f"a vacuum was faster, and deleted files that were being read: {gone.message}. What was committed "
                "before stays, nothing else was written; try again",
                version=begin.version,
            ) from error
        log.check_not_dropped(begin)
        raise


def epoch_ms(timestamp: dt.datetime | str | None) -> int | None:
    """Milliseconds since 1970; text without a zone is UTC. Raises :class:`InputError`."""
    if timestamp is None:
        return None
    if not isinstance(timestamp, dt.datetime | str):
        raise InputError(f"{argument('timestamp')} must be a datetime or an ISO 8601 string, not {timestamp!r}")
    try:
        instant = dt.datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    except ValueError as error:
        raise InputError(
            f"timestamp {timestamp!r} is not an ISO 8601 date or time, such as '2026-07-01T12:00:00'"
        ) from error
    if instant.tzinfo is None:
        if not isinstance(timestamp, str):
            example = in_python(", such as tzinfo=datetime.UTC")
            raise InputError(f"timestamp {timestamp} has no time zone; give one{example}")
        instant = instant.replace(tzinfo=dt.UTC)
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
