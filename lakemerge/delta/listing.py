"""The files of a log folder: lists them, reads their names, and fetches many of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

import orjson

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import NotATableError
from lakemerge.storage.base import FileStat, Store
from mergers.logs import logger
from mergers.wording import in_python

__all__ = [
    "LAST_CHECKPOINT",
    "LOG_FOLDER",
    "SIDECAR_FOLDER",
    "Checkpoint",
    "Listing",
    "begun",
    "checkpoint_path",
    "commit_path",
    "fetch",
    "list_log",
    "log_exists",
    "no_log",
    "read_hint",
]

LOG_FOLDER: Final = "_delta_log"
SIDECAR_FOLDER: Final = f"{LOG_FOLDER}/_sidecars"
"""The folder of those parts of V2 checkpoints that hold the data files."""
LAST_CHECKPOINT: Final = f"{LOG_FOLDER}/_last_checkpoint"

_DIGITS: Final = 20
"""Versions in names have so many."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_UUID_NAMED = re.compile(r"(\d{20})\.checkpoint\.[^.]+\.(?:json|parquet)")

_FETCH_THREADS = 8
_FETCH_WINDOW = 64

_logger = logger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: one file, or all parts of a multi-part one in order. One file may be of V1 or V2, and one
    of V2 may name sidecars."""

    version: int
    parts: tuple[FileStat, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    commits: Mapping[int, FileStat]
    checkpoints: tuple[Checkpoint, ...]
    """The checkpoints, oldest first, one of each version: a single file with the classic name before parts, and these
    before a file with a UUID in its name."""

    @property
    def latest(self) -> int | None:
        """The newest version with a commit or a checkpoint."""
        newest = self.checkpoints[-1].version if self.checkpoints else None
        return max((v for v in (newest, max(self.commits, default=None)) if v is not None), default=None)

    def gap(self, first: int, last: int) -> int | None:
        """The lowest version in ``first..last`` (both included) that has no commit file."""
        return next((version for version in range(first, last + 1) if version not in self.commits), None)

    @property
    def earliest(self) -> int | None:
        """The oldest version that can be rebuilt, with all that follow it up to ``latest``."""
        # A checkpoint beyond the commits may be of a table that was here before.
        latest = max(self.commits, default=self.latest)
        if latest is None:
            return None
        first = latest
        while first - 1 in self.commits and first in self.commits:
            first -= 1
        if first == 0:
            return 0
        return next((c.version for c in self.checkpoints if c.version >= first - 1), None)

    def at_or_below(self, version: int) -> tuple[Checkpoint, ...]:
        """Checkpoints that can serve ``version``, best first."""
        return tuple(c for c in reversed(self.checkpoints) if c.version <= version)


def commit_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def log_exists(store: Store) -> bool:
    """Whether the log folder holds any commit or checkpoint."""
    return any(
        pattern.fullmatch(name) for name, _ in _entries(store, 0) for pattern in (_COMMIT, _CLASSIC, _PART, _UUID_NAMED)
    )


def list_log(store: Store, *, since: int = 0, until: int | None = None, at_least: int | None = None) -> Listing:
    """The log's files of version ``since`` (included) and later, up to version ``until`` (included). Checksums,
    compacted logs and all other files are passed over, and so are multi-part checkpoints that lack a part.

    A listing may show a commit made while the folder is read, and miss an earlier one; no file system promises
    otherwise. Missing commits are requested by name. If one is still missing, it does not exist. ``at_least`` is a
    version that the caller knows to exist, whether the listing shows it or not.
    """
    commits: dict[int, FileStat] = {}
    classic: dict[int, FileStat] = {}
    parts: dict[tuple[int, int], dict[int, FileStat]] = {}
    named: dict[int, FileStat] = {}
    for name, stat in _entries(store, since, until):
        if found := _COMMIT.fullmatch(name):
            commits[int(found[1])] = stat
        elif found := _CLASSIC.fullmatch(name):
            classic[int(found[1])] = stat
        elif found := _PART.fullmatch(name):
            parts.setdefault((int(found[1]), int(found[3])), {})[int(found[2])] = stat
        elif found := _UUID_NAMED.fullmatch(name):
            named[int(found[1])] = stat
    complete: dict[int, tuple[FileStat, ...]] = {version: (stat,) for version, stat in named.items()}
    complete |= {
        version: tuple(stats[part] for part in sorted(stats))
        for (version, count), stats in sorted(parts.items())
        if sorted(stats) == list(range(1, count + 1))
    }
    complete.update({version: (stat,) for version, stat in classic.items()})
    _fill_gaps(store, commits, since=since, newest_checkpoint=max(complete, default=None), at_least=at_least)
    return Listing(commits, tuple(Checkpoint(v, complete[v]) for v in sorted(complete)))


def read_hint(store: Store) -> int | None:
    """The version that ``_last_checkpoint`` names; ``None`` if it is missing or damaged. It is only a hint: the listing
    decides."""
    try:
        hint = orjson.loads(store.get(LAST_CHECKPOINT))
        version = hint["version"]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        _logger.warning("%s is damaged (%s); the log is listed in full", LAST_CHECKPOINT, error)
        return None
    return version if isinstance(version, int) and version >= 0 else None


@contextmanager
def begun(store: Store, paths: Sequence[str]) -> Iterator[Iterator[bytes]]:
    """:func:`fetch`, whose first files are requested while the block does something else."""
    first = paths[:_FETCH_WINDOW]
    if not first:
        yield iter(())
        return
    with thread_pool(min(_FETCH_THREADS, len(first)), name="lakemerge-log") as pool:
        files = [pool.submit(store.get, path) for path in first]
        yield chain((file.result() for file in files), fetch(store, paths[len(first) :]))


def fetch(store: Store, paths: Sequence[str]) -> Iterator[bytes]:
    """The files' contents in order. Several requests run at a time, and a bounded number of files is in memory. Raises
    :class:`FileNotFoundError`."""
    if len(paths) < 2:
        yield from map(store.get, paths)
        return
    left = iter(paths)
    with thread_pool(min(_FETCH_THREADS, len(paths)), name="lakemerge-log") as pool:
        while window := tuple(islice(left, _FETCH_WINDOW)):
            yield from pool.map(store.get, window)


def _fill_gaps(
    store: Store, commits: dict[int, FileStat], *, since: int, newest_checkpoint: int | None, at_least: int | None
) -> None:
    """Add the commits that the listing missed, newest first, down to the first that does not exist. All older commits
    existed before the listing began, so they are in it."""
    if newest_checkpoint is not None and newest_checkpoint > max([*commits, at_least or 0]):
        stat = store.stat(commit_path(newest_checkpoint))
        if stat is not None:
            commits[newest_checkpoint] = stat
    known = [*commits, *(() if at_least is None else (at_least,))]
    if not known:
        return
    latest = max(known)
    # The oldest commits of a log may be gone. None below both of these numbers is needed.
    needed = 0 if newest_checkpoint is None else min(newest_checkpoint + 1, latest)
    for version in range(latest, (since or min(needed, *known)) - 1, -1):
        if version not in commits:
            stat = store.stat(commit_path(version))
            if stat is None:
                return
            commits[version] = stat


def _entries(store: Store, since: int, until: int | None = None) -> Iterator[tuple[str, FileStat]]:
    start_after = f"{LOG_FOLDER}/{since:020d}" if since else ""
    for stat in store.list(LOG_FOLDER, start_after=start_after):
        name = stat.path.removeprefix(f"{LOG_FOLDER}/")
        if name > ":" or (until is not None and name[:_DIGITS] > f"{until:0{_DIGITS}d}"):
            # Listings are sorted, and names that begin with a digit come before others.
            break
        yield name, stat


def no_log(store: Store) -> NotATableError:
    """The error for a folder without a log."""
    return NotATableError(
        f"there is no Delta log at {store.url}: check the path and its spelling"
        + in_python(", or make a table there with LakeTable.create"),
        url=store.url,
    )
