"""Opening a table: makes the store and the registry of mergers from a caller's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.options import Settings
from lakemerge.storage import open_store
from mergers import Merger, default_registry

__all__ = ["open_handle"]


def open_handle(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None,
    mergers: Sequence[type[Merger]],
    settings: Settings | None,
) -> Handle:
    """What all operations on the table at ``path`` share. Nothing is read yet."""
    store = open_store(path, storage_options)
    registry = default_registry().extended(mergers) if mergers else default_registry()
    return Handle(store, DeltaLog(store), registry, settings or Settings())
