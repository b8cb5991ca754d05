"""From a caller's arguments to a table: the store, the known mergers, the moment."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence

from lakemerge.delta import DeltaLog
from lakemerge.errors import InputError
from lakemerge.handle import Handle
from lakemerge.options import Settings
from lakemerge.storage import open_store
from mergers import Merger, default_registry
from mergers.wording import argument, in_python

__all__ = ["epoch_ms", "open_handle"]


def open_handle(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None,
    mergers: Sequence[type[Merger]],
    settings: Settings | None,
) -> Handle:
    """What all operations on the table at ``path`` share; nothing is read yet."""
    store = open_store(path, storage_options)
    registry = default_registry().extended(mergers) if mergers else default_registry()
    return Handle(store, DeltaLog(store), registry, settings or Settings())


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
            f"timestamp {timestamp!r} is no ISO 8601 date or time, such as '2026-07-01T12:00:00'"
        ) from error
    if instant.tzinfo is None:
        if not isinstance(timestamp, str):
            example = in_python(", such as tzinfo=datetime.UTC")
            raise InputError(f"timestamp {timestamp} has no time zone; give one{example}")
        instant = instant.replace(tzinfo=dt.UTC)
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
