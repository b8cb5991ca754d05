"""Finds the files that a listing has and the ledger lacks. Both are sorted by path, and joined as streams.

No file is passed over because it is old, or because a newer one was seen. Only what the ledger says about exactly this
version of the file counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.format.ledger import LEDGER, Entry, FileState
from lakemerge.ingest.places import LISTING
from lakemerge.ingest.source import SourceFile
from lakemerge.ingest.spill import SortedSpill, Spill

__all__ = ["DONE", "Candidate", "Found", "Overwrites", "Settling", "found_by"]

Overwrites = Literal["ingest", "refuse"]


class Candidate(NamedTuple):
    """A version of a file to be taken up, from its beginning or from where the job stopped in it."""

    modified_ns: int
    path: str
    size: int
    token: str
    seen_ms: int
    """When this version was first found."""
    block: int = 0
    """The first block that no window has taken up."""
    offset: int = 0
    """Where that block begins."""
    binned: bool = False
    """Whether the ledger says that it is in an open bin."""
    records: int | None = None
    columns: str | None = None

    @property
    def file(self) -> SourceFile:
        return SourceFile(self.path, self.size, self.token, self.modified_ns)

    def entry(self, state: FileState, window: int, *, reason: str | None = None) -> Entry:
        return Entry(
            self.path,
            self.token,
            self.block,
            self.size,
            self.modified_ns,
            self.seen_ms,
            state,
            window,
            offset=self.offset,
            records=self.records,
            columns=self.columns,
            reason=reason,
        )


_CANDIDATES: Final = pa.schema(
    [
        ("modified_ns", pa.int64()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("token", pa.string()),
        ("seen_ms", pa.int64()),
        ("block", pa.int32()),
        ("offset", pa.int64()),
        ("binned", pa.bool_()),
        ("records", pa.int64()),
        ("columns", pa.string()),
    ]
)


DONE: Final = pa.schema([*LISTING, pa.field("window", pa.int64())])
"""Columns for a file and the window that took up its last piece."""
_WAITING: Final = (FileState.BINNED.value, FileState.SEEN.value)


@dataclass(slots=True)
class Settling:
    """Which files stand still: unchanged for ``settle_ms``, by the file's own time or since this state was first seen.

    A runner gives the clock of the table's store. If the source's own clock is behind that one, a file may be taken for
    settled too early; if it is ahead, the job only waits longer.
    """

    settle_ms: int
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    running_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    _since: dict[str, tuple[str, int]] = field(default_factory=dict)

    def stands_still(self, file: SourceFile) -> bool:
        if not self.settle_ms or self.now_ms() - file.modified_ns // 1_000_000 >= self.settle_ms:
            self._since.pop(file.path, None)
            return True
        token, since = self._since.get(file.path, ("", 0))
        if token != file.token:
            self._since[file.path] = (file.token, self.running_ms())
            return False
        return self.running_ms() - since >= self.settle_ms


@dataclass(slots=True)
class Found:
    """The result of the join. Iterating gives the candidates once, in the order of (time of change, path)."""

    candidates: SortedSpill
    notes: list[Entry]
    """New entries for the ledger, about files that are not taken up."""
    done: Spill
    """Files that are completely in the table and still listed, with the columns of :data:`DONE`."""
    settling: list[SourceFile]
    failed: int = 0
    """How many listed files are passed over because they failed."""

    def __iter__(self) -> Iterator[Candidate]:
        return (Candidate(*row) for row in self.candidates)

    def close(self) -> None:
        self.candidates.close()
        self.done.close()


def found_by(
    listing: Iterable[pa.RecordBatch],
    ledger: Iterator[pa.Table],
    *,
    settling: Settling,
    overwrites: Overwrites,
    exists: Callable[[str], bool],
    keeps_done: bool,
    now_ms: int,
    leave: Collection[tuple[str, str]] = (),
) -> Found:
    """Join a listing with a ledger.

    :param leave: paths and tokens of versions to pass over.

    :param exists: says whether there is a file at a path. It is called for files that wait in bins and are not listed.
    :param keeps_done: whether to fill :attr:`Found.done`.
    """
    found = Found(SortedSpill(_CANDIDATES, ["modified_ns", "path"]), [], Spill(DONE), [])
    join = _Join(found, settling, overwrites, exists, keeps_done, now_ms, leave)
    known = _Ledger(ledger)
    try:
        for batch in listing:
            if batch.num_rows:
                join.put(batch, known.upto(batch["path"][-1].as_py()))
        for rest in known.rest():
            join.unlisted(rest)
    except BaseException:
        found.close()
        raise
    return found


@dataclass(slots=True)
class _Join:
    found: Found
    settling: Settling
    overwrites: Overwrites
    exists: Callable[[str], bool]
    keeps_done: bool
    now_ms: int
    leave: Collection[tuple[str, str]]

    def put(self, listed: pa.RecordBatch, known: pa.Table) -> None:
        """Join listed files with the ledger's rows for their paths and for the paths between them."""
        whole = pc.and_(
            pc.equal(known["state"], FileState.COMMITTED.value),
            pc.and_(pc.equal(known["offset"], 0), pc.equal(known["length"], known["size"])),
        )
        whole_rows = known.filter(whole)
        places = pc.index_in(_versions(listed), value_set=_versions(whole_rows))
        is_done = places.is_valid()
        if self.keeps_done:
            windows = whole_rows["window"].combine_chunks().take(places.drop_null())
            self.found.done.add(pa.RecordBatch.from_arrays([*listed.filter(is_done).columns, windows], schema=DONE))
        self._outdate_beside(listed.filter(is_done), known)
        open_files = listed.filter(pc.invert(is_done))
        rows = _by_path(known.filter(pc.is_in(known["path"], value_set=open_files["path"])))
        for values in zip(*(column.to_pylist() for column in open_files.columns), strict=True):
            file = SourceFile(*values)
            self._file(file, rows.get(file.path, ()))
        self.unlisted(known.filter(pc.invert(pc.is_in(known["path"], value_set=listed["path"]))))

    def _outdate_beside(self, done: pa.RecordBatch, known: pa.Table) -> None:
        """Note versions that wait, though the version that is there is in the table already."""
        waits = pc.and_(
            pc.is_in(known["state"], value_set=pa.array(_WAITING)), pc.is_in(known["path"], value_set=done["path"])
        )
        if pc.any(waits).as_py():
            for entries in _by_path(known.filter(waits)).values():
                self._outdate(entries)

    def unlisted(self, known: pa.Table) -> None:
        """Note files that wait in bins and are not there any more."""
        waiting = known.filter(pc.is_in(known["state"], value_set=pa.array(_WAITING)))
        for entry in map(Entry.of, zip(*(column.to_pylist() for column in waiting.columns), strict=True)):
            if not self.exists(entry.path):
                reason = "it was removed before it was loaded"
                self.found.notes.append(entry._replace(state=FileState.GONE, reason=reason))

    def _file(self, file: SourceFile, entries: Sequence[Entry]) -> None:
        own = [entry for entry in entries if entry.token == file.token]
        others = [entry for entry in entries if entry.token != file.token]
        last = own[-1] if own else None
        if (file.path, file.token) in self.leave:
            return
        if last is not None and last.state in (FileState.FAILED, FileState.CHANGED):
            self.found.failed += last.state is FileState.FAILED
            return
        if last is None and not self._takes(file, others):
            return
        if last is None and not self.settling.stands_still(file):
            self.found.settling.append(file)
            return
        self._outdate(others)
        if last is not None and last.state is FileState.COMMITTED:  # not all of it: other windows have the beginning
            block, offset = last.block + last.blocks, last.offset + last.length
            if offset >= file.size:
                if self.keeps_done:
                    self.found.done.add_rows([(*file, last.window)])
                return
        else:
            block, offset = (0, 0) if last is None else (last.block, last.offset)
        self.found.candidates.add(
            Candidate(
                file.modified_ns,
                file.path,
                file.size,
                file.token,
                self.now_ms if last is None else last.seen_ms,
                block,
                offset,
                last is not None and last.state is FileState.BINNED,
                None if last is None else last.records,
                None if last is None else last.columns,
            )
        )

    def _takes(self, file: SourceFile, others: Sequence[Entry]) -> bool:
        """Whether to take up a version that the ledger does not know."""
        if self.overwrites == "ingest" or all(entry.state is not FileState.COMMITTED for entry in others):
            return True
        candidate = Candidate(file.modified_ns, file.path, file.size, file.token, self.now_ms)
        reason = "another version of the file is in the table, and changed files are refused (overwrites)"
        self.found.notes.append(candidate.entry(FileState.CHANGED, 0, reason=reason))
        return False

    def _outdate(self, others: Sequence[Entry]) -> None:
        """Note the versions that were replaced. They are not taken up, or not read to their end."""
        last: dict[str, Entry] = {entry.token: entry for entry in others}
        for entry in last.values():
            if entry.state in (FileState.BINNED, FileState.SEEN, FileState.FAILED):
                note = entry._replace(state=FileState.CHANGED, reason="another version came before it was loaded")
                self.found.notes.append(note)
            elif entry.state is FileState.COMMITTED and entry.offset + entry.length < entry.size:
                place = entry.offset + entry.length
                self.found.notes.append(
                    entry._replace(
                        block=entry.block + entry.blocks,
                        state=FileState.CHANGED,
                        blocks=0,
                        offset=place,
                        length=0,
                        rows=0,
                        rejected=0,
                        reason=f"another version came when {place} of {entry.size} bytes were in the table",
                    )
                )


class _Ledger:
    """The ledger, read path by path."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._held = LEDGER.empty_table()

    def upto(self, path: str) -> pa.Table:
        """The rows of paths up to and including ``path`` that were not given before."""
        parts: list[pa.Table] = []
        while True:
            upto = pc.less_equal(self._held["path"], path)
            parts.append(self._held.filter(upto))
            self._held = self._held.filter(pc.invert(upto))
            if self._held.num_rows:
                break
            table = next(self._tables, None)
            if table is None:
                break
            self._held = table
        return pa.concat_tables(parts).combine_chunks()

    def rest(self) -> Iterator[pa.Table]:
        yield self._held
        yield from self._tables


def _versions(files: pa.RecordBatch | pa.Table) -> pa.Array:
    """Path and token as one text, which identifies a version of a file. Neither contains the separator."""
    joined = pc.binary_join_element_wise(files["path"], files["token"], "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _by_path(known: pa.Table) -> dict[str, list[Entry]]:
    rows: dict[str, list[Entry]] = {}
    for entry in map(Entry.of, zip(*(column.to_pylist() for column in known.columns), strict=True)):
        rows.setdefault(entry.path, []).append(entry)
    return rows
