"""The commits of a job: windows with their rows, and notes without.

A commit names the next ledger files in the job's domain. It is valid only if the domain at the tip is the one from
which it was made. So window n follows window n - 1, whoever runs it: if there are two runners, one wins and the other
plans anew. There is no lease and no file written ahead. After a crash all of a window is there, or nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lakemerge.commits.appends import commit_note
from lakemerge.commits.base import landed
from lakemerge.commits.provenance import Along, DomainIs, Precondition, Provenance
from lakemerge.delta import Txn
from lakemerge.errors import InputError
from lakemerge.format.ingests import INGEST_DOMAIN_PREFIX, INGEST_FOLDER, Ingest, NamedFile
from lakemerge.format.ledger import Entry, FileState, absorbed, appended, rejects_tables, write_rejects
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.ingest.discovery import Candidate
from lakemerge.ingest.formats.base import Piece
from lakemerge.ingest.packing import Done
from lakemerge.layout.view import TableView
from lakemerge.write.discard import discard
from lakemerge.write.start import Write
from lakemerge.write.upsert import LoadFileSlices, finish

__all__ = ["Member", "Standing", "WindowWork", "commit_window", "note", "standing_of"]

_MANY_REJECTS: Final = 8


@dataclass(frozen=True, slots=True)
class Standing:
    """A version of the table, and what it says of a job."""

    view: TableView
    ingest: Ingest
    configuration: str | None
    """The text of the job's domain; ``None``: the job has committed nothing yet."""

    @property
    def requires(self) -> tuple[Precondition, ...]:
        """The preconditions of a commit of the job."""
        return (DomainIs(self.ingest.domain_name, self.configuration),)

    def check_runnable(self) -> None:
        """Raises :class:`InputError` where the ledger may not say what is in the table."""
        if self.ingest.restore_epoch != self.view.state.restore_epoch:
            raise InputError(
                f"the table was restored after window {self.ingest.window} of ingest job {self.ingest.name!r}, so its "
                "ledger may name files whose records are no longer in the table. reset(seen='keep') continues with "
                "new files, reset(seen='forget') loads all files up again",
                name=self.ingest.name,
            )
        if self.ingest.table_id != self.view.snapshot.metadata.id:
            raise InputError(
                f"the ledger of ingest job {self.ingest.name!r} is that of another table, {self.ingest.table_id}: call "
                "reset(seen='forget')",
                name=self.ingest.name,
            )


def standing_of(view: TableView, name: str) -> Standing:
    domain = view.snapshot.domains.get(INGEST_DOMAIN_PREFIX + name)
    if domain is None:
        fresh = Ingest(name, view.snapshot.metadata.id, restore_epoch=view.state.restore_epoch)
        return Standing(view, fresh, None)
    return Standing(view, Ingest.of(domain), domain.configuration)


@dataclass(frozen=True, slots=True)
class Member:
    """A piece of a window, and its file."""

    candidate: Candidate
    """The file as it is once the windows before are committed. This window changes the state of its own blocks only."""
    piece: Piece

    @property
    def is_last(self) -> bool:
        """Whether the table has the whole file once the piece is committed."""
        return self.piece.end >= self.candidate.size

    def entry(self, window: int, rows: int, rejected: int, reason: str | None) -> Entry:
        piece = self.piece
        entry = self.candidate.entry(FileState.COMMITTED, window, reason=reason)
        return entry._replace(
            block=piece.block,
            blocks=piece.blocks,
            offset=piece.offset,
            length=piece.length,
            rows=rows,
            rejected=rejected,
        )


@dataclass(frozen=True, slots=True)
class WindowWork:
    """Everything that one window commits."""

    members: tuple[Member, ...]
    reason: str | None = None
    """Why the bin was closed, in NiFi's words."""
    notes: tuple[Entry, ...] = ()
    """Entries of other files that the commit adds to the ledger."""
    source: Mapping[str, Any] = field(default_factory=dict)


def commit_window(
    standing: Standing, write: Write, done: Sequence[Done], work: WindowWork, *, load_file_slices: LoadFileSlices
) -> tuple[Standing, list[Entry]]:
    """Commit records, ledger and reasons. A failure leaves no file, unless the commit may land."""
    handle, window = write.handle, standing.ingest.window + 1
    counts = [[0, 0] for _ in work.members]
    for task in done:
        for number, rows, rejected in task.counts:
            counts[number][0] += rows
            counts[number][1] += rejected
    entries = [
        member.entry(window, rows, rejected, work.reason)
        for member, (rows, rejected) in zip(work.members, counts, strict=True)
    ]
    rejects = [task.rejects for task in done if task.rejects is not None]
    try:
        notes = [entry._replace(window=window) for entry in work.notes]
        after, along = _along(handle, standing, write.pack.name, [*notes, *entries], rejects, work.source)
        about: dict[str, object] = {
            "name": standing.ingest.name,
            "window": window,
            "files": len({member.candidate.path for member in work.members}),
            "blocks": sum(member.piece.blocks for member in work.members),
            "rejected": sum(rejected for _, rejected in counts),
        }
        about |= {} if work.reason is None else {"reason": work.reason}
        provenance = replace(
            write.provenance,
            operation=Operation.INGEST,
            info={**write.provenance.info, "ingest": about},
            along=along,
        ).with_parameters(name=standing.ingest.name, window=window)
        finish(replace(write, provenance=provenance), [task.packed for task in done], load_file_slices=load_file_slices)
    except BaseException:
        write.discard()
        raise
    return Standing(standing.view, after, after.domain().configuration), entries


def note(
    handle: Handle,
    standing: Standing,
    entries: Sequence[Entry],
    *,
    about: Mapping[str, object],
    changed: Ingest | None = None,
    source: Mapping[str, Any] | None = None,
) -> Standing:
    """Commit the state of files, without rows.

    :param about: for ``commitInfo``.
    :param changed: the new state of the job; by default it stays as it is.
    """
    transaction = handle.new_transaction()
    name = handle.write_name(standing.view, transaction)
    window = standing.ingest.window + 1
    start = standing if changed is None else replace(standing, ingest=changed)
    try:
        _, along = _along(handle, start, name, [entry._replace(window=window) for entry in entries], (), source)
        about = {"name": standing.ingest.name, "window": window, **about}
        parameters: dict[str, object] = {"name": standing.ingest.name, "window": window}
        provenance = Provenance(Operation.INGEST, parameters, transaction, info={"ingest": about}, along=along)
        committed = landed(commit_note(handle, standing.view, provenance))
    except BaseException:
        discard(handle.store, transaction, name)
        raise
    return standing_of(handle.view(committed.snapshot), standing.ingest.name)


def _along(
    handle: Handle,
    standing: Standing,
    name: str,
    entries: Sequence[Entry],
    rejects: Sequence[NamedFile],
    source: Mapping[str, Any] | None,
) -> tuple[Ingest, Along]:
    """The job after the next window, and the actions of that commit other than its rows. Writes its ledger file."""
    ingest = standing.ingest
    after = replace(
        ingest,
        window=ingest.window + 1,
        ledger=appended(handle.store, ingest.ledger, entries, f"{INGEST_FOLDER}/{name}-ledger.parquet"),
        rejects=_gathered(handle, (*ingest.rejects, *rejects), name),
        source=ingest.source if source is None else source,
    )
    txn = Txn(after.domain_name, after.window, handle.now_ms())
    return after, Along((after.domain(), txn), standing.requires)


def _gathered(handle: Handle, files: tuple[NamedFile, ...], name: str) -> tuple[NamedFile, ...]:
    """Rejects files; if there are many, the newest ones joined into one."""
    if len(files) <= _MANY_REJECTS:
        return files
    kept = len(files) - max(absorbed(files[:-1], files[-1].rows) + 1, _MANY_REJECTS // 2)
    tables = rejects_tables(handle.store, files[kept:])
    return (*files[:kept], write_rejects(handle.store, f"{INGEST_FOLDER}/{name}-rejects.parquet", tables))
