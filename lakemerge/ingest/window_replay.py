"""Reads windows once more. The ledger names their blocks, so a replay reads the same blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakemerge.commits.provenance import Along
from lakemerge.delta import Snapshot, Txn
from lakemerge.errors import CommitConflictError, InputError
from lakemerge.format.ledger import FileState
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.ingest.committing import Member, Standing
from lakemerge.ingest.discovery import Candidate
from lakemerge.ingest.formats.base import Piece, with_folders
from lakemerge.ingest.reading import readable
from lakemerge.ingest.results import IngestResult, entries_of
from lakemerge.ingest.runner import Runner
from lakemerge.ingest.source import FileChangedError, FileGoneError, SourceFile
from lakemerge.ingest.spill import SortedSpill
from lakemerge.layout.view import TableView
from lakemerge.write.discard import discard_rejects
from lakemerge.write.upsert import finish

__all__ = ["replayed"]


class _Taken(NamedTuple):
    """A piece of a window, as the ledger has it."""

    window: int
    modified_ns: int
    path: str
    block: int
    token: str
    size: int
    blocks: int
    offset: int
    length: int
    last_window: int
    """The window that took up the end of the file."""


_TAKEN: Final = pa.schema(
    [
        ("window", pa.int64()),
        ("modified_ns", pa.int64()),
        ("path", pa.string()),
        ("block", pa.int32()),
        ("token", pa.string()),
        ("size", pa.int64()),
        ("blocks", pa.int32()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("last_window", pa.int64()),
    ]
)


class _DoneError(CommitConflictError):
    """The target has the window already."""


@dataclass(frozen=True, slots=True)
class _TxnBelow:
    """The application has no transaction with the number or a higher one."""

    app: str
    number: int

    def check(self, tip: Snapshot) -> None:
        done = tip.txns.get(self.app)
        if done is not None and done.version >= self.number:
            raise _DoneError(f"window {self.number} is there already")


def replayed(
    runner: Runner, standing: Standing, target: Handle, windows: Collection[int] | None, *, force: bool
) -> IngestResult:
    """See :meth:`lakemerge.ingest.IngestJob.replay`."""
    is_own = target.store.url == runner.handle.store.url
    view = target.view(target.log.snapshot())
    ingest = standing.ingest
    app = f"lakemerge.replay.{ingest.table_id}.{ingest.generation}.{ingest.name}"
    result = IngestResult()
    for number, rows in groupby(_taken(runner, standing, windows), key=itemgetter(0)):
        pieces = [_Taken(*row) for row in rows]
        # A replay of all windows goes by their order. That of some says nothing of the windows before them.
        single = f"{app}#{number}"
        own = Txn(app if windows is None else single, number, target.now_ms())
        once = Along((own,), (_TxnBelow(app, number), _TxnBelow(single, number)))
        along = Along() if is_own or force else once
        safely = is_own and not force
        view = target.latest(view)
        try:
            along.at(view.snapshot)
            taken, rejected = _replay(runner, target, view, number, pieces, along, safely=safely)
        except _DoneError:
            continue
        result = replace(
            result,
            windows=result.windows + 1,
            files=result.files + len({piece.path for piece in pieces}),
            rows=result.rows + taken,
            rejected=result.rejected + rejected,
        )
    return result


def _replay(
    runner: Runner, target: Handle, view: TableView, number: int, pieces: list[_Taken], along: Along, *, safely: bool
) -> tuple[int, int]:
    """Upsert the records of one window. Returns how many were taken up, and how many were set aside again.

    :param safely: refuse a merger for which it makes a difference that records come twice.
    """
    if runner.gathering.fragments is not None:
        pieces = sorted(pieces, key=lambda piece: _index(runner, piece.path))
    members = [_member(runner, piece) for piece in pieces]
    peeks = [member.piece.peek for member in members if member.piece.peek is not None]
    peek = next((peek for peek in peeks if peek.names), None)
    if peeks and peek is None:
        return 0, 0  # files that are empty, without even a header
    try:
        write, done = runner.packed(target, view, members, peek, number)
    except (FileGoneError, FileChangedError) as error:
        raise _missing(number, error.message) from error
    full = all(len(file.columns) == len(write.begin.config.schema) for task in done for file in task.packed.files)
    if safely and not write.pack.merger.laws(view.config.shape, full_frames=full).replay_safe:
        write.discard()
        raise InputError(
            f"the table's merger, {write.pack.merger.name}, does not say that records may come twice (replay_safe). "
            "Replay into another table, or pass force=True if the records are not in this one, or do no harm twice"
        )
    about = {"ingest": {"name": runner.name, "replayOf": number, "table": runner.handle.store.url}}
    provenance = replace(write.provenance, operation=Operation.INGEST, info=about, along=along)
    try:
        finish(
            replace(write, provenance=provenance),
            [task.packed for task in done],
            load_file_slices=runner.engine.load_file_slices,
        )
    finally:
        # The records that are set aside now are in the window's own rejects already.
        discard_rejects(target.store, write.pack.name)
    counts = [count for task in done for count in task.counts]
    return sum(rows for _, rows, _ in counts), sum(rejected for *_, rejected in counts)


def _taken(runner: Runner, standing: Standing, windows: Collection[int] | None) -> Iterator[tuple[Any, ...]]:
    """The pieces of windows, by window and then in the order in which they were taken up."""
    sorted_pieces = SortedSpill(_TAKEN, ["window", "modified_ns", "path", "block"])
    found: set[int] = set()
    for entries in entries_of(runner.handle, standing):
        for entry in entries:
            if entry.state is FileState.COMMITTED and (windows is None or entry.window in windows):
                found.add(entry.window)
                sorted_pieces.add(
                    (
                        entry.window,
                        entry.modified_ns,
                        entry.path,
                        entry.block,
                        entry.token,
                        entry.size,
                        entry.blocks,
                        entry.offset,
                        entry.length,
                        entries[-1].window,
                    )
                )
    if windows is not None and (lacking := sorted(set(windows) - found)):
        raise InputError(
            f"window {lacking[0]} of ingest job {runner.name!r} has no records in the ledger",
            windows=tuple(lacking),
        )
    return iter(sorted_pieces)


def _member(runner: Runner, taken: _Taken) -> Member:
    """The piece as it was, to be read from where its file is now."""
    file = _found(runner, taken)
    chosen, peek = runner.gathering.format, None
    if chosen.describes_itself:
        with runner.gathering.files.places.of(file.path).open(file) as data, readable(file.path, chosen.name):
            peek = with_folders(chosen.peek(data, file), taken.path)
    piece = Piece(file, taken.block, taken.blocks, taken.offset, taken.length, peek, taken.path)
    return Member(Candidate(file.modified_ns, file.path, file.size, file.token, 0), piece)


def _found(runner: Runner, taken: _Taken) -> SourceFile:
    """The version that was taken up, from its old place or from the archive."""
    there = runner.gathering.files.places.of(taken.path).stat(taken.path)
    if there is not None and there.token == taken.token:
        return there
    if runner.afterwards is not None and runner.afterwards.archive is not None:
        path = runner.afterwards.archived_path(taken.path, taken.last_window)
        archived = runner.gathering.files.places.of(path).stat(path)
        if archived is not None and archived.size == taken.size:
            return archived
    raise _missing(taken.window, f"{taken.path} {'is not there any more' if there is None else 'was changed since'}")


def _index(runner: Runner, path: str) -> int:
    fragments = runner.gathering.fragments
    groups = runner.gathering.files.groups(path) or {}
    index = None if fragments is None else groups.get(fragments.index)
    return int(index or 0)


def _missing(window: int, problem: str) -> InputError:
    return InputError(f"window {window} cannot be replayed: {problem}", window=window)
