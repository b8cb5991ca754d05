"""Following a table without Spark: an iterator over batches of changes, as they are committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakemerge.errors import InputError
from lakemerge.feed.changes import check_free_names, unit_columns
from lakemerge.feed.consumers import Consumers
from lakemerge.feed.difference import FeedShape, unit_batches
from lakemerge.feed.planner import Planner, check_not_overtaken, unless_overtaken
from lakemerge.feed.units import FeedUnit
from lakemerge.format.feed_offset import Offset
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.quantities import milliseconds_of
from mergers.wording import argument

__all__ = ["Following", "follow"]

_REMEDY = (
    "Start again from the present rows: follow the table without a version, into an empty copy. A consumer "
    "(table.consumers.register) holds back vacuum for what it has yet to read"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How a table is followed."""

    consumer: str | None
    poll_seconds: float | None
    """``None``: the iterator ends at the latest version."""
    until: int | None
    """The last version to read."""
    max_rows: int | None
    """The most rows of a batch."""
    before_images: bool

    @classmethod
    def checked(
        cls,
        consumer: str | None,
        poll: str | float | None,
        *,
        since: int | None,
        until: int | None,
        max_rows: int | None,
        before_images: bool,
    ) -> Following:
        """The arguments of :meth:`lakemerge.LakeTable.follow`.

        :raises lakemerge.InputError: an argument is of the wrong kind, or two contradict each other.
        """
        if consumer is not None and since is not None:
            raise InputError("a consumer has its own position: give a consumer or a version, not both")
        for name, given in (("since", since), ("until", until)):
            if given is not None and (type(given) is not int or given < 0):
                raise InputError(f"{argument(name)} must be a version, not {given!r}")
        if max_rows is not None and (type(max_rows) is not int or max_rows < 1):
            raise InputError(f"{argument('max_rows')} must be a positive number of rows, not {max_rows!r}")
        return cls(
            consumer=consumer,
            poll_seconds=None if poll is None else milliseconds_of(poll, argument("poll")) / 1000,
            until=until,
            max_rows=max_rows,
            before_images=before_images,
        )


def follow(
    handle: Handle,
    current: Callable[[], TableView],
    consumers: Consumers,
    start: Offset,
    how: Following,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """See :meth:`lakemerge.LakeTable.follow`."""
    planner = Planner(handle, current().snapshot.metadata.id)
    at = start
    while True:
        tip = current()
        until = tip.version if how.until is None else min(how.until, tip.version)
        check_not_overtaken(at, tip.snapshot, _REMEDY)
        with unless_overtaken(handle, at, tip.snapshot, _REMEDY):
            for reached in planner.reading(at, until):
                if reached.unit is not None:
                    yield from _batches(reached.unit, how)
                # The caller asks for more, so it is done with the last batch.
                at = reached.after
                if how.consumer is not None:
                    consumers.move(how.consumer, at)
        if how.until is not None and at.version > how.until:
            return
        if at.version > tip.version:
            if how.poll_seconds is not None:
                sleep(how.poll_seconds)
            elif current().version == tip.version:  # there may be new versions: the caller may have been slow
                return


def _batches(unit: FeedUnit, how: Following) -> Iterator[pa.RecordBatch]:
    check_free_names(unit.after.spec.config)
    shape = FeedShape(unit_columns(unit), before_images=how.before_images)
    for batch in unit_batches(unit, shape):
        size = batch.num_rows if how.max_rows is None else how.max_rows
        yield from (batch.slice(place, size) for place in range(0, batch.num_rows, size))
