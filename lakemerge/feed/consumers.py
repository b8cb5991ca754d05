"""``table.consumers``: followers of the change feed. Vacuum keeps what they have yet to read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakemerge._internal.arguments import checked
from lakemerge.commits.consumers import drop_consumers, known_consumer, register_consumer
from lakemerge.delta import HistoryEntry, Snapshot
from lakemerge.errors import InputError
from lakemerge.format.consumers import Registration, advanced_ms, registrations_of, stored_position, write_position
from lakemerge.format.feed_offset import Offset
from lakemerge.format.operations import WRITING, Operation
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_replaced
from lakemerge.layout.view import TableView
from lakemerge.storage.clock import is_past, store_time_ms
from mergers.wording import argument

__all__ = ["Consumer", "Consumers", "expire_consumers", "held_version"]

_WEEK = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer, and how far behind the table it is."""

    name: str
    version: int
    """The last version that it has read completely. Vacuum keeps this version and all later ones."""
    lag_versions: int
    lag_rows: int
    """How many records were committed since, as far as commits are in the log. Not all of them change rows."""
    lag: dt.timedelta
    """The time from the commit of ``version`` to the latest commit."""
    expires_after: dt.timedelta
    """If it does not advance for so long, it may be expired."""


class Consumers:
    """The consumers of a table; ``table.consumers``."""

    def __init__(self, handle: Handle, current: Callable[[], TableView], writable: Callable[[], TableView]) -> None:
        self._handle = handle
        self._current = current
        self._writable = writable

    @checked
    def register(
        self,
        name: str,
        *,
        version: int | None = None,
        present_rows: bool = False,
        expires_after: dt.timedelta = _WEEK,
    ) -> Consumer:
        """Make a consumer, in a commit of its own. From then on vacuum keeps what it needs.

        :param version: it reads the changes after this version. By default the latest version.
        :param present_rows: whether it reads the rows of the version first, as inserts, and then the changes.
        :param expires_after: if it does not advance for so long, vacuum no longer waits for it.
        :raises lakemerge.InputError: the name is taken, or is not valid.
        :raises lakemerge.VersionNotFoundError: the version cannot be read.
        """
        begin = self._writable()
        if version is not None and (type(version) is not int or not 0 <= version <= begin.version):
            raise InputError(f"{argument('version')} must be a version up to {begin.version}, not {version!r}")
        age_ms = _milliseconds("expires_after", expires_after)
        seen = begin.version if version is None else version
        register_consumer(
            self._handle,
            begin,
            name,
            Offset(seen, of_rows=True) if present_rows else Offset(seen + 1),
            expires_after_ms=age_ms,
        )
        return next(consumer for consumer in self.list() if consumer.name == name)

    @checked
    def advance(self, name: str, version: int) -> None:
        """Say that a consumer has read all changes up to ``version``. Commits nothing.

        :raises lakemerge.InputError: there is no such consumer or version, or the consumer is past it.
        """
        tip = self._current()
        if type(version) is not int or not 0 <= version <= tip.version:
            raise InputError(f"{argument('version')} must be a version up to {tip.version}, not {version!r}")
        self.move(name, Offset(version + 1))

    def move(self, name: str, offset: Offset) -> None:
        """As :meth:`advance`, to a place inside a version. For followers; not part of the public API."""
        tip = self._current().snapshot
        known = known_consumer(tip, name)
        present = stored_position(self._handle.store, known)
        if offset < present:
            raise InputError(
                f"consumer {name!r} has read up to version {present.version - 1}, and cannot go back to "
                f"{offset.version - 1}; drop it and register it again to read changes from the start",
                name=name,
            )
        write_position(
            self._handle.store,
            known,
            offset,
            now_ms=self._handle.now_ms(),
            check_holds=lambda: self._handle.log.check_holds(tip),
        )

    def position(self, name: str) -> Offset:
        """What a consumer reads next. For followers; not part of the public API."""
        return stored_position(self._handle.store, known_consumer(self._current().snapshot, name))

    def list(self) -> Sequence[Consumer]:
        """All consumers, with how far behind they are."""
        tip = self._current()
        store = self._handle.store
        with unless_replaced(self._handle.log, tip.snapshot):
            seen = {
                known: stored_position(store, known).version - 1 for known in registrations_of(tip.snapshot).values()
            }
            oldest = max(0, min(seen.values(), default=tip.version))
            entries = self._handle.log.history(limit=tip.version - oldest + 1, known=tip.version) if seen else []
        return [self._behind(tip, known, version, entries) for known, version in seen.items()]

    def _behind(self, tip: TableView, known: Registration, seen: int, entries: Sequence[HistoryEntry]) -> Consumer:
        after = [entry for entry in entries if seen < entry.version <= tip.version]
        rows = [entry.metrics.get("numSourceRows") for entry in after if entry.operation in WRITING]
        now_ms = tip.snapshot.timestamp_ms
        began_ms = max((entry.timestamp_ms for entry in entries if entry.version <= max(seen, 0)), default=now_ms)
        return Consumer(
            name=known.name,
            version=seen,
            lag_versions=tip.version - seen,
            lag_rows=sum(int(str(count)) for count in rows if count is not None),
            lag=dt.timedelta(milliseconds=max(0, now_ms - began_ms) if after else 0),
            expires_after=dt.timedelta(milliseconds=known.expires_after_ms),
        )

    @checked
    def expire(self, *, older_than: dt.timedelta | None = None) -> Sequence[str]:
        """Remove the consumers that have not advanced for too long, and return their names. Vacuum does so, too.

        :param older_than: how long that is. By default each consumer's ``expires_after``.
        """
        age_ms = None if older_than is None else _milliseconds("older_than", older_than)
        return expire_consumers(self._handle, self._writable(), age_ms=age_ms)

    @checked
    def drop(self, name: str) -> None:
        """Remove a consumer. The next vacuum may delete what it held.

        :raises lakemerge.InputError: there is no such consumer.
        """
        begin = self._writable()
        known_consumer(begin.snapshot, name)
        drop_consumers(self._handle, begin, [name], operation=Operation.DROP_CONSUMER, due=lambda _: True)


def _milliseconds(name: str, given: object) -> int:
    if not isinstance(given, dt.timedelta) or given <= dt.timedelta(0):
        raise InputError(f"{argument(name)} must be a positive datetime.timedelta, not {given!r}")
    return given // dt.timedelta(milliseconds=1)


def expire_consumers(handle: Handle, begin: TableView, *, age_ms: int | None = None) -> list[str]:
    """See :meth:`Consumers.expire`."""
    known = registrations_of(begin.snapshot)
    if not known:
        return []
    now_ms = store_time_ms(handle.store)

    def due(consumer: Registration) -> bool:
        most_ms = consumer.expires_after_ms if age_ms is None else age_ms
        return now_ms - _advanced_ms(handle, consumer, now_ms) > most_ms

    late = [name for name, consumer in known.items() if due(consumer)]
    return drop_consumers(handle, begin, late, operation=Operation.EXPIRE_CONSUMERS, due=due) if late else []


def _advanced_ms(handle: Handle, consumer: Registration, now_ms: int) -> int:
    """When it last advanced, by the store's clock. If its position is lost: when it was made."""
    advanced = advanced_ms(handle.store, consumer)
    what = f"consumer {consumer.name!r} of {handle.store.url}"
    if advanced is not None:
        is_past(advanced, now_ms, what=what)  # it may be at work, so vacuum waits for it until it is dropped
        return advanced
    if is_past(consumer.created_ms, now_ms, what=what):
        return consumer.created_ms
    # Its age is counted from now on.
    handle.store.put_if_absent(consumer.path, consumer.position(consumer.begin))
    return now_ms


def held_version(handle: Handle, tip: Snapshot) -> int | None:
    """The oldest version that a consumer needs; ``None`` if there are no consumers."""
    needed = [stored_position(handle.store, known).needed_version for known in registrations_of(tip).values()]
    return min(needed, default=None)
