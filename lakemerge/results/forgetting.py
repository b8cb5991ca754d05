"""What an erasure of keys did, found and could not reach. None of it names a key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lakemerge.results.display import Shown, counted
from mergers.wording import printable

__all__ = ["ForgetResult", "Left", "Searched", "Waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched(Shown):
    """A folder that was searched."""

    path: str
    """Relative to the table, or as the caller named it."""
    files: int
    unread: int = 0
    """How many of them could not be read. ``left`` names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Shown):
    """What may hold a key, or needs versions that do, for some time."""

    path: str
    """A folder of the table, or a consumer."""
    reason: str
    until: dt.datetime | None
    """When the next call can go on; ``None``: nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Shown):
    """A place with a key that the erasure does not change."""

    path: str
    reason: str
    """What it is, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(Shown):
    """What :meth:`lakemerge.LakeTable.forget` did."""

    state: Literal["done", "waiting", "found"]
    """``done``: everything was searched, and no key was found. ``waiting``: call it again later. ``found``: a key is in
    a place that it does not change."""
    keys: int
    """How many keys were asked for."""
    rows: int
    """How many of them had a row, which this call erased."""
    version: int
    """The version of the table that it left."""
    oldest_version: int
    """The oldest version that can be read."""
    until: dt.datetime | None
    """The latest time in ``waits``, if all of them are known."""
    digest: str
    """SHA-256 over the salt and the keys. The table's log has it, too."""
    salt: str = field(repr=False)
    """Whoever has it can prove that the digest is one of certain keys, and can guess short ones."""
    searched: tuple[Searched, ...]
    waits: tuple[Waiting, ...]
    left: tuple[Left, ...]
    unreachable: tuple[str, ...]
    """Sentences on what no library can search."""
    seconds: float

    def report(self) -> Sequence[tuple[str, object]]:
        """All of it but the salt, as names and values."""
        until = "" if self.until is None else f" until {self.until:%Y-%m-%d %H:%M:%S} UTC"
        return [
            ("state", f"{self.state}{until if self.state == 'waiting' else ''}"),
            ("keys", f"{self.keys:,}, of which {self.rows:,} had a row"),
            ("digest", self.digest),
            ("version", str(self.version)),
            ("oldest version", str(self.oldest_version)),
            *((f"searched {part.path}", _counted(part)) for part in self.searched),
            *((f"waits {wait.path}", _timed(wait)) for wait in self.waits),
            *((f"left {left.path}", left.reason) for left in self.left),
            *(("not reached", told) for told in self.unreachable),
        ]

    def __str__(self) -> str:
        return "\n".join(printable(f"{name}: {value}") for name, value in self.report())


def _counted(part: Searched) -> str:
    return counted(part.files, "file") + (f", of which {part.unread:,} could not be read" if part.unread else "")


def _timed(wait: Waiting) -> str:
    return wait.reason if wait.until is None else f"until {wait.until:%Y-%m-%d %H:%M:%S} UTC: {wait.reason}"
