"""Finds the files of a log that nobody needs any more, and the tip at a time by the store's clock.

If commits are deleted, their versions can only be read from a checkpoint. So a checkpoint at or below the oldest
version that is still needed stays, with all commits after it (protocol, "Metadata Cleanup").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate, takewhile
from typing import Final

from lakemerge.delta.listing import LOG_FOLDER, Checkpoint, Listing, list_log, no_log
from lakemerge.delta.log_replay import read_accepted
from lakemerge.errors import TableDamagedError
from lakemerge.storage.base import FileStat, Store

__all__ = ["TRUSTED_AGE_MS", "dead_log_files", "earliest_version", "old_through", "tip_at"]

TRUSTED_AGE_MS: Final = 3_600_000
"""Nothing younger than this is cleaned up. So if the commit after such a young one is absent, it was never made."""

_VERSIONED = re.compile(r"(\d{20})\.")


def tip_at(store: Store, time_ms: int, *, now_ms: int) -> int | None:
    """The latest version whose commit was written at or before ``time_ms`` by the store's clock. ``None`` if all
    commits are younger.

    :param now_ms: the time by that clock. A commit file with a later time was written before the next one without.
    """
    return _written_by(list_log(store).commits, time_ms, now_ms)


def old_through(store: Store, time_ms: int, *, now_ms: int, since: int) -> int | None:
    """As :func:`tip_at`, among the commits from ``since`` on. Those that were cleaned up are old."""
    commits = list_log(store, since=since).commits
    earliest = min(commits, default=since)
    found = _written_by(commits, time_ms, now_ms)
    return earliest - 1 if found is None and earliest > since else found


def _written_by(commits: Mapping[int, FileStat], time_ms: int, now_ms: int) -> int | None:
    versions = sorted(commits)
    bound_ms, bounds_ms = now_ms, []
    for version in reversed(versions):
        written_ms = commits[version].modified_ms
        if written_ms <= now_ms:
            bound_ms = written_ms
        bounds_ms.append(bound_ms)
    # A single time may be wrong, because a clock was set back or a tool copied files. No version counts as older than
    # one before it.
    latest_ms = accumulate(reversed(bounds_ms), max)
    written = takewhile(lambda pair: pair[1] <= time_ms, zip(versions, latest_ms, strict=True))
    return max((version for version, _ in written), default=None)


def earliest_version(store: Store, *, until: int | None = None) -> int:
    """The oldest version that can be rebuilt. Raises :class:`NotATableError` if there is none.

    :param until: later commits do not count, whether they are whole or not.
    """
    earliest = list_log(store, until=until).earliest
    if earliest is None:
        raise no_log(store)
    return earliest


def dead_log_files(
    store: Store, *, needed: int, before_ms: int, now_ms: int, required_domain: str | None
) -> list[FileStat]:
    """Commits, checkpoints and all other files with a version that can be deleted: those older than the newest
    checkpoint at or below ``needed``, and written at or before ``before_ms`` by the store's clock. The oldest version
    comes first. A time after ``now_ms`` is wrong, and says nothing; ``needed`` is old enough by :func:`tip_at`.

    A checkpoint that readers pass over does not count, because it is damaged, lacks ``required_domain`` or stands for
    another table's commit: readers then need what is older.
    """
    listing = list_log(store)
    accepted = (c.version for c in listing.at_or_below(needed) if _is_accepted(store, listing, c, required_domain))
    kept = next(accepted, 0)
    dead = []
    for stat in store.list(LOG_FOLDER):
        found = _VERSIONED.match(stat.path.removeprefix(f"{LOG_FOLDER}/"))
        if found is None or int(found[1]) >= kept:
            break
        if before_ms < stat.modified_ms <= now_ms:
            # Without this one the log would have a gap.
            break
        dead.append(stat)
    return dead


def _is_accepted(store: Store, listing: Listing, checkpoint: Checkpoint, required_domain: str | None) -> bool:
    try:
        read_accepted(store, listing, checkpoint, required_domain)
    except (TableDamagedError, FileNotFoundError):
        return False  # or somebody else deleted it meanwhile
    return True
