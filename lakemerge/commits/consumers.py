"""Commits that register or remove consumers of the change feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from lakemerge.commits.base import commit_to, landed
from lakemerge.delta import AlreadyDone, Attempt, DomainMetadata, Snapshot
from lakemerge.errors import InputError
from lakemerge.format.consumers import (
    Registration,
    check_consumer_name,
    delete_position,
    joined,
    registrations_of,
    sent_to,
    write_position,
)
from lakemerge.format.feed_offset import Offset
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.travel import check_kept, unless_replaced
from lakemerge.layout.view import TableView
from mergers.wording import argument

__all__ = ["drop_consumers", "known_consumer", "register_consumer"]

_MOST_KEPT: Final = 64
"""The commit that drops a consumer lists at most this many of the deliveries to it."""


def register_consumer(
    handle: Handle, begin: TableView, name: str, offset: Offset, *, expires_after_ms: int
) -> Registration:
    """See :meth:`lakemerge.feed.consumers.Consumers.register`."""
    check_consumer_name(name)
    made = Registration(name, handle.new_id(), offset, handle.store_now_ms(), expires_after_ms)
    with unless_replaced(handle.log, begin.snapshot):
        handle.log.snapshot(version=offset.needed_version)  # raises if there is no such version

    def build(view: TableView) -> Attempt | AlreadyDone:
        tip = view.snapshot
        if name in registrations_of(tip):
            raise InputError(f"there is a consumer {name!r} already; drop it first, or choose another name", name=name)
        # If a vacuum's fence was first, it decides. A vacuum that comes later sees the consumer.
        check_kept(offset.needed_version, tip, savepoints=False)
        return Attempt([made.domain()])

    parameters = {"name": name, "version": offset.needed_version}
    registered = landed(commit_to(handle, begin, build, operation=Operation.REGISTER_CONSUMER, parameters=parameters))
    # The consumer's age is counted from this file's time by the store's clock.
    write_position(
        handle.store,
        made,
        offset,
        now_ms=handle.now_ms(),
        check_holds=lambda: handle.log.check_holds(registered.snapshot),
    )
    return made


def drop_consumers(
    handle: Handle, begin: TableView, names: Iterable[str], *, operation: str, due: Callable[[Registration], bool]
) -> list[str]:
    """Remove the consumers that still exist and are ``due``. Returns their names."""
    wanted = list(names)
    gone: list[Registration] = []

    def build(view: TableView) -> Attempt | AlreadyDone:
        tip = view.snapshot
        known = registrations_of(tip)
        gone[:] = [known[name] for name in wanted if name in known and due(known[name])]
        if not gone:
            return AlreadyDone(tip.version)
        return Attempt([DomainMetadata(consumer.domain_name, "", True) for consumer in gone])

    # The position goes with the consumer, and with it what was sent to it. The commit keeps that.
    known = registrations_of(begin.snapshot)
    told = {name: joined(sent_to(handle.store, known[name]), _MOST_KEPT) for name in wanted if name in known}
    info = {"sent": {name: [part.to_json() for part in sent] for name, sent in told.items() if sent}}
    commit_to(handle, begin, build, operation=operation, parameters={"names": wanted}, info=info)
    for consumer in gone:
        delete_position(handle.store, consumer)
    return [consumer.name for consumer in gone]


def known_consumer(tip: Snapshot, name: str) -> Registration:
    """The consumer. Raises :class:`InputError` if there is none."""
    known = registrations_of(tip)
    if name not in known:
        register = f"table.consumers.register({name!r}, {argument('version', '...')})"
        raise InputError(
            f"there is no consumer {name!r}; there are: {', '.join(known) or 'none'}. It was dropped, expired or never "
            f"registered: {register} makes it, from a version that is kept",
            name=name,
        )
    return known[name]
