"""Makes windows: of blocks up to the window's limits, or of the files of a closed bin.

Without bins a window has as many neighbouring blocks as its limits allow, and a file may span windows. A closed bin is
one window, whatever its size. Files that say their columns share a window only with files of the same columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from lakemerge.bins import Bin, BinItem, BinLimits, Closed, Filling
from lakemerge.errors import InputError
from lakemerge.format.ledger import Entry, FileState
from lakemerge.ingest.committing import Member
from lakemerge.ingest.discovery import Candidate
from lakemerge.ingest.formats.base import Format, Peek, Piece, with_folders
from lakemerge.ingest.options import Bins, Files, Fragments
from lakemerge.ingest.reading import readable
from lakemerge.ingest.source import FileChangedError, FileGoneError, SourceFile
from lakemerge.storage.clock import is_past

__all__ = ["WHY_MERGED", "Failure", "Gathering", "Window", "Windows"]

T = TypeVar("T")

WHY_MERGED: Final[Mapping[Closed, str]] = {
    Closed.FULL: "Records Merged due to: Bin is full",
    Closed.MINIMUM: "Records Merged due to: Bin is full",
    Closed.COMPLETE: "Records Merged due to: Bin is full",
    Closed.TOO_OLD: "Records Merged due to: Bin has reached Max Bin Age",
    Closed.TOO_MANY: "Records Merged due to: Maximum number of bins has been exceeded",
    Closed.FORCED: "Records Merged due to: The job was drained",
}
"""The reasons in NiFi's words."""


class Window(NamedTuple):
    """Pieces that are committed together."""

    members: tuple[Member, ...]
    peek: Peek | None
    """What one of the files says about itself; the others have the same columns."""
    reason: str | None = None


class Failure(NamedTuple):
    """Files that cannot be taken up, and are not tried."""

    candidates: tuple[Candidate, ...]
    reason: str


@dataclass(slots=True)
class Gathering:
    """How files become windows."""

    files: Files
    format: Format
    blocks_per_window: int
    bytes_per_window: int
    bins: Bins | None = None
    fragments: Fragments | None = None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    @property
    def uses_bins(self) -> bool:
        return self.bins is not None or self.fragments is not None

    @property
    def limits(self) -> BinLimits:
        """The limits of bins. As in NiFi, the same limits are for sets, but sets use only age and number."""
        if self.fragments is None:
            return (self.bins or Bins()).limits()
        own = self.fragments.limits()
        if self.bins is None:
            return own
        shared = self.bins.limits()
        age = shared.max_age_ms if own.max_age_ms is None else own.max_age_ms
        return BinLimits(max_age_ms=age, max_bins=shared.max_bins if own.max_bins is None else own.max_bins)


@dataclass(slots=True)
class Windows:
    """The windows of a scan, one after the other, and the files that remain after them."""

    gathering: Gathering
    drain: bool = False
    notes: list[Entry] = field(default_factory=list)
    """New entries for the ledger: files that are gone, and files in bins that stay open."""
    unsettled: set[tuple[str, str]] = field(default_factory=set)
    """Paths and tokens of versions that are gone. They are not tried again before the next scan."""
    failed: set[tuple[str, str]] = field(default_factory=set)
    """Paths and tokens of versions with a failed window. The rest of such a file waits for a retry."""

    def of(self, candidates: Iterable[Candidate]) -> Iterator[Window | Failure]:
        return self._of_bins(candidates) if self.gathering.uses_bins else self._of_blocks(candidates)

    def vanished(self, error: FileGoneError | FileChangedError, candidate: Candidate) -> None:
        """Note that a file is gone, or is not as it was listed."""
        self.unsettled.add((candidate.path, candidate.token))
        if isinstance(error, FileGoneError):
            self.notes.append(candidate.entry(FileState.GONE, 0, reason="it was removed before it was loaded"))

    def _of_blocks(self, candidates: Iterable[Candidate]) -> Iterator[Window | Failure]:
        filling = _Blocks(self.gathering, self.failed)
        for candidate in candidates:
            try:
                peek = self._peeked(candidate)
            except _UnusableError as unusable:
                yield from unusable.failures
                continue
            yield from filling.put(candidate, peek)
        yield from filling.end()

    def _of_bins(self, candidates: Iterable[Candidate]) -> Iterator[Window | Failure]:
        gathering = self.gathering
        filling: Filling[_Binned] = Filling(gathering.limits)
        for candidate in candidates:
            try:
                filling.put(self._item(candidate))
            except _UnusableError as unusable:
                yield from unusable.failures
            yield from self._closed(filling.taken())
        force = self.drain and gathering.fragments is None
        still_open = filling.end(gathering.now_ms(), force=force)
        yield from self._closed(filling.taken())
        self.wait(found.candidate for part in still_open for found in part.values)

    def _item(self, candidate: Candidate) -> BinItem[_Binned]:
        gathering = self.gathering
        peek = None
        if gathering.format.describes_itself and candidate.columns is None:
            peek = with_folders(self._asked(candidate, gathering.format.peek), candidate.path)
            candidate = candidate._replace(columns=peek.likeness)
        groups = gathering.files.groups(candidate.path) or {}
        if gathering.fragments is not None:
            return _fragment(candidate, peek, groups, gathering.fragments, self._since_ms(candidate))
        bins = gathering.bins or Bins()
        if bins.counts_records and candidate.records is None:
            candidate = candidate._replace(records=self._asked(candidate, gathering.format.count))
        values = [_correlated(candidate, groups, name) for name in bins.correlate]
        return BinItem(
            value=_Binned(candidate, peek),
            records=candidate.records or 0,
            bytes=candidate.size,
            at_ms=self._since_ms(candidate),
            key=(candidate.columns, *values),
        )

    def _since_ms(self, candidate: Candidate) -> int:
        """When a file was first found. If that is to come, it counts as old enough: nobody knows how old it is."""
        what = f"a file that waits in a bin ({candidate.path})"
        return candidate.seen_ms if is_past(candidate.seen_ms, self.gathering.now_ms(), what=what) else 0

    def _closed(self, parts: Iterable[Bin[_Binned]]) -> Iterator[Window | Failure]:
        """The windows and failures of closed bins."""
        gathering = self.gathering
        for part in parts:
            binned = list(part.values)
            if gathering.fragments is not None:
                broken = _why_broken(part, gathering.limits)
                if broken is not None:
                    yield Failure(tuple(found.candidate for found in binned), broken)
                    continue
                binned = [item.value for item in sorted(part.items, key=lambda item: item.index or 0)]
            try:
                members = tuple(self._member(found) for found in binned)
            except _UnusableError as unusable:
                # If a file fails, its whole bin fails. If a file was removed, the others wait for the next scan.
                yield from (Failure(tuple(f.candidate for f in binned), told.reason) for told in unusable.failures)
                self.wait(() if unusable.failures else [found.candidate for found in binned])
                continue
            peeks = [member.piece.peek for member in members if member.piece.peek is not None]
            peek = next((peek for peek in peeks if peek.names), peeks[0] if peeks else None)
            yield Window(members, peek, WHY_MERGED[part.closed or Closed.FORCED])

    def wait(self, candidates: Iterable[Candidate]) -> None:
        """Note the files that are in a bin, if the ledger does not know it yet."""
        there = [c for c in candidates if not c.binned and (c.path, c.token) not in self.unsettled]
        self.notes += [candidate.entry(FileState.BINNED, 0) for candidate in there]

    def _member(self, found: _Binned) -> Member:
        peek = found.peek if found.peek is not None else self._peeked(found.candidate)
        return Member(found.candidate, _whole(found.candidate, peek, self.gathering))

    def _peeked(self, candidate: Candidate) -> Peek | None:
        """What a file says about its columns; ``None`` if its format says nothing."""
        chosen = self.gathering.format
        if not chosen.describes_itself:
            return None
        return with_folders(self._asked(candidate, chosen.peek), candidate.path)

    def _asked(self, candidate: Candidate, ask: Callable[[pa.NativeFile, SourceFile], T]) -> T:
        """Ask a file's format. Raises :class:`_UnusableError` if the file cannot be read."""
        file = candidate.file
        try:
            source = self.gathering.files.places.of(file.path)
            with source.open(file) as data, readable(file.path, self.gathering.format.name):
                return ask(data, file)
        except (FileGoneError, FileChangedError) as error:
            self.vanished(error, candidate)
            raise _UnusableError from error
        except InputError as error:
            raise _UnusableError(Failure((candidate,), error.message)) from error


class _UnusableError(Exception):
    """A file is left out of the run. If it cannot be read, the error has a failure."""

    def __init__(self, *failures: Failure) -> None:
        super().__init__()
        self.failures = failures


class _Binned(NamedTuple):
    candidate: Candidate
    peek: Peek | None


class _Blocks:
    """Gathers blocks into windows."""

    def __init__(self, gathering: Gathering, failed: Collection[tuple[str, str]]) -> None:
        self._gathering = gathering
        self._failed = failed
        self._members: list[Member] = []
        self._blocks, self._bytes = 0, 0
        self._peek: Peek | None = None

    def put(self, candidate: Candidate, peek: Peek | None) -> Iterator[Window]:
        if self._peek is not None and peek is not None and peek.names and peek.likeness != self._peek.likeness:
            yield from self.end()
        block, offset = candidate.block, candidate.offset
        while (candidate.path, candidate.token) not in self._failed:
            blocks, length = self._room(candidate, offset)
            if not blocks:
                yield from self.end()
                continue
            piece = Piece(candidate.file, block, blocks, offset, length, peek)
            self._members.append(Member(candidate._replace(block=block, offset=offset), piece))
            if peek is not None and peek.names:
                self._peek = peek
            self._blocks, self._bytes = self._blocks + blocks, self._bytes + length
            block, offset = block + blocks, offset + length
            if offset >= candidate.size:
                return

    def end(self) -> Iterator[Window]:
        if self._members:
            peek = self._peek or self._members[0].piece.peek
            yield Window(tuple(self._members), peek)
        self._members, self._blocks, self._bytes, self._peek = [], 0, 0, None

    def _room(self, candidate: Candidate, offset: int) -> tuple[int, int]:
        """How many of the file's blocks, from an offset on, fit into the window, and their bytes."""
        gathering, left = self._gathering, candidate.size - offset
        size = gathering.files.block_bytes
        if not gathering.format.splits(candidate.path):
            size = max(left, 1)
        most = gathering.blocks_per_window - self._blocks
        blocks = min(max(1, -(-left // size)), most)
        while blocks > 0 and self._bytes + min(blocks * size, left) > gathering.bytes_per_window:
            blocks = min(blocks - 1, (gathering.bytes_per_window - self._bytes) // size)
        if blocks < 1 and not self._members:
            blocks = 1
        return max(blocks, 0), min(max(blocks, 0) * size, left)


def _whole(candidate: Candidate, peek: Peek | None, gathering: Gathering) -> Piece:
    splits = gathering.format.splits(candidate.path)
    blocks = max(1, -(-candidate.size // gathering.files.block_bytes)) if splits else 1
    return Piece(candidate.file, 0, blocks, 0, candidate.size, peek)


def _fragment(
    candidate: Candidate, peek: Peek | None, groups: Mapping[str, str | None], names: Fragments, since_ms: int
) -> BinItem[_Binned]:
    identifier, index, count = (groups.get(name) for name in (names.identifier, names.index, names.count))
    try:
        if identifier is None or index is None:
            raise ValueError(f"its name tells no {names.identifier if identifier is None else names.index}")
        number, of = int(index), 0 if count is None else int(count)
    except ValueError as error:
        raise _UnusableError(Failure((candidate,), f"{candidate.path} belongs to no set: {error}")) from error
    return BinItem(
        value=_Binned(candidate, peek),
        records=0,
        bytes=candidate.size,
        at_ms=since_ms,
        key=identifier,
        of=of,
        index=number,
    )


def _why_broken(part: Bin[_Binned], limits: BinLimits) -> str | None:
    """Why a set is not merged; ``None`` if it is complete."""
    counts = sorted({item.of for item in part.items if item.of})
    of = "an unknown number" if not counts else str(counts[0])
    have = f"{len(part.items)} of {of} files of set {part.key!r} are there"
    match part.closed:
        case Closed.COMPLETE:
            likeness = {found.candidate.columns for found in part.values}
            return f"the files of set {part.key!r} have different columns" if len(likeness) > 1 else None
        case Closed.TOO_OLD:
            age = timedelta(milliseconds=limits.max_age_ms or 0)
            return f"Bin has reached Max Bin Age: {have} after {age}"
        case Closed.TOO_MANY:
            return f"Maximum number of bins has been exceeded: {have}"
        case _:
            told = f"counts of {counts}" if len(counts) > 1 else f"{have}, and an index twice or too many files"
            return f"the files of set {part.key!r} contradict each other: {told}"


def _correlated(candidate: Candidate, groups: Mapping[str, str | None], name: str) -> str | None:
    """The value of a group of the pattern, or of a partition folder on the path.

    Raises :class:`_UnusableError` if the file has neither: a name that is spelled wrong would put all files together.
    """
    if name in groups:
        return groups[name]
    start = f"{name}="
    for folder in candidate.path.split("/")[:-1]:
        if folder.startswith(start):
            return folder.removeprefix(start)
    among = f"the pattern's groups ({', '.join(sorted(groups))})" if groups else "groups of a pattern (there are none)"
    reason = (
        f"{candidate.path} has no {name!r} to correlate by: it is not among {among}, and no folder is named "
        f"{start}VALUE; correct correlate, then retry the file"
    )
    raise _UnusableError(Failure((candidate,), reason))
