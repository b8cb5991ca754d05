"""Which files of a log nobody needs any more, and what was the tip at a time by the store's clock.

Deleting commits takes the history with them, so a checkpoint stays at or below the oldest version that
is still needed, with all commits after it (protocol, "Metadata Cleanup").
"""

from __future__ import annotations

import re
from itertools import accumulate, takewhile
from typing import Final

from lakemerge.delta.listing import LOG_FOLDER, Checkpoint, list_log, no_log
from lakemerge.delta.replay import read_whole
from lakemerge.errors import TableDamagedError
from lakemerge.storage.base import FileStat, Store

__all__ = ["TRUSTED_AGE_MS", "dead_log_files", "earliest_version", "tip_at"]

TRUSTED_AGE_MS: Final = 3_600_000
"""Nothing younger than this is cleaned up, so the commit after one this young is absent only if it
was never made."""

_VERSIONED = re.compile(r"(\d{20})\.")


def tip_at(store: Store, time_ms: int) -> int | None:
    """The latest version whose commit was written at or before ``time_ms`` by the store's clock: what
    was committed later is younger. ``None`` where all commits are younger."""
    commits = sorted(list_log(store).commits.items())
    # A single time may be wrong (a clock set back, a tool that copied files): no version is older than one before it.
    latest_ms = accumulate((stat.modified_ms for _, stat in commits), max)
    written = takewhile(
        lambda pair: pair[1] <= time_ms, zip((version for version, _ in commits), latest_ms, strict=True)
    )
    return max((version for version, _ in written), default=None)


def earliest_version(store: Store) -> int:
    """The oldest version that can be rebuilt; raises :class:`NotATableError` where there is none."""
    earliest = list_log(store).earliest
    if earliest is None:
        raise no_log(store)
    return earliest


def dead_log_files(store: Store, *, needed: int, before_ms: int, required_domain: str | None) -> list[FileStat]:
    """Commits, checkpoints and whatever else carries a version, older than the newest checkpoint at or
    below ``needed`` and written at or before ``before_ms`` by the store's clock; oldest version first.

    A checkpoint that readers pass over, for damage or for the lack of ``required_domain``, is none: they
    live on what is older than it.
    """
    listing = list_log(store)
    whole = (c.version for c in listing.at_or_below(needed) if _is_whole(store, c, required_domain))
    kept = next(whole, 0)
    dead = []
    for stat in store.list(LOG_FOLDER):
        found = _VERSIONED.match(stat.path.removeprefix(f"{LOG_FOLDER}/"))
        if found is None or int(found[1]) >= kept:
            break
        if stat.modified_ms > before_ms:
            # Without this one the log would have a hole.
            break
        dead.append(stat)
    return dead


def _is_whole(store: Store, checkpoint: Checkpoint, required_domain: str | None) -> bool:
    try:
        read_whole(store, checkpoint, required_domain)
    except TableDamagedError:
        return False
    return True
