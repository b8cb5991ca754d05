"""The results and reports of an ingest job: counts for people, and the files of its ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.format.ledger import Entry, FileState, ledger_tables, rejects_tables
from lakemerge.handle import Handle
from lakemerge.ingest.committing import Standing
from lakemerge.layout.travel import unless_replaced
from lakemerge.results.display import Shown

__all__ = [
    "IngestFile",
    "IngestResult",
    "IngestStatus",
    "entries_of",
    "files_of",
    "ledger_of",
    "rejects_of",
    "status_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult(Shown):
    """What a run did."""

    windows: int = 0
    """Committed with their records."""
    files: int = 0
    """That are in the table whole by now."""
    rows: int = 0
    """Records taken up."""
    rejected: int = 0
    """Records set aside; :meth:`lakemerge.ingest.IngestJob.rejects` shows them."""
    failed: int = 0
    """Files whose window failed; ``files(state="failed")`` says why."""
    to_retry: int = 0
    """Files that failed, in this run or before, and are passed over until :meth:`lakemerge.ingest.IngestJob.retry`
    puts them back, or another version of them lands."""
    waiting: str | None = None
    """Why the run ended before everything was taken up, if it did."""

    def __repr__(self) -> str:
        retry = f", to_retry={self.to_retry:,}" if self.to_retry else ""
        waiting = "" if self.waiting is None else f", waiting={self.waiting!r}"
        return (
            f"IngestResult(windows={self.windows}, files={self.files:,}, rows={self.rows:,}, "
            f"rejected={self.rejected:,}, failed={self.failed:,}{retry}{waiting})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestFile(Shown):
    """One version of a file, and what became of it."""

    path: str
    size: int
    modified_ms: int
    """By its source's clock, UTC epoch milliseconds."""
    state: FileState
    windows: tuple[int, ...] = ()
    """That have pieces of it, or that failed."""
    bytes: int = 0
    """Bytes of the file that are in the table."""
    rows: int = 0
    rejected: int = 0
    reason: str | None = None
    """Why it failed, why its bin was closed, what it was changed by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStatus(Shown):
    """What the table says of a job."""

    name: str
    window: int
    """The last one committed, notes without rows included."""
    generation: int
    files: Mapping[FileState, int]
    """How many versions of files are in each state."""
    rows: int
    rejected: int
    bytes: int
    """Bytes of files that were taken up."""
    source: Mapping[str, object]
    """Locations and format of the last run."""
    needs_reset: bool
    """Whether the table was restored since; runs refuse until ``reset``."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {state}" for state, count in self.files.items()) or "no files yet"
        reset = "; the table was restored: call reset" if self.needs_reset else ""
        return (
            f"{self.name}: window {self.window}, {counts}; {self.rows:,} rows of {self.bytes:,} bytes, "
            f"{self.rejected:,} rejected{reset}"
        )


def status_of(handle: Handle, standing: Standing) -> IngestStatus:
    """Counts over the whole ledger, read as a stream."""
    ingest = standing.ingest
    states: Counter[str] = Counter()
    rows = rejected = size = 0
    for table in ledger_of(handle, standing):
        states.update(_states(table))
        rows += pc.sum(table["rows"]).as_py() or 0
        rejected += pc.sum(table["rejected"]).as_py() or 0
        taken = table.filter(pc.equal(table["state"], FileState.COMMITTED.value))
        size += pc.sum(taken["length"]).as_py() or 0
    return IngestStatus(
        name=ingest.name,
        window=ingest.window,
        generation=ingest.generation,
        files={state: states[state] for state in FileState if states[state]},
        rows=rows,
        rejected=rejected,
        bytes=size,
        source=dict(ingest.source or {}),
        needs_reset=ingest.restore_epoch != standing.view.state.restore_epoch,
    )


def ledger_of(handle: Handle, standing: Standing) -> Iterator[pa.Table]:
    """The tables of the ledger. A file that is missing is no damage if the table was made anew or vacuumed since.

    :raises lakemerge.TableReplacedError: another table is there by now.
    :raises lakemerge.VersionNotFoundError: a vacuum was faster.
    """
    with unless_replaced(handle.log, standing.view.snapshot):
        yield from ledger_tables(handle.store, standing.ingest.ledger)


def rejects_of(handle: Handle, standing: Standing) -> list[pa.Table]:
    """The tables of records that were set aside. Raises as :func:`ledger_of`."""
    with unless_replaced(handle.log, standing.view.snapshot):
        return rejects_tables(handle.store, standing.ingest.rejects)


def entries_of(handle: Handle, standing: Standing) -> Iterator[list[Entry]]:
    """The ledger's entries, grouped by version of a file. Raises as :func:`ledger_of`."""
    held: list[Entry] = []
    for table in ledger_of(handle, standing):
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            entry = Entry.of(row)
            if held and (held[-1].path, held[-1].token) != (entry.path, entry.token):
                yield held
                held = []
            held.append(entry)
    if held:
        yield held


def files_of(versions: Iterable[Sequence[Entry]], states: Collection[FileState]) -> Iterator[IngestFile]:
    """Versions of files that are in one of the given states."""
    for entries in versions:
        last = entries[-1]
        partly = last.state is FileState.COMMITTED and last.offset + last.length < last.size
        state = FileState.SEEN if partly else last.state
        if state in states:
            taken = [entry for entry in entries if entry.state is FileState.COMMITTED]
            yield IngestFile(
                path=last.path,
                size=last.size,
                modified_ms=last.modified_ns // 1_000_000,
                state=state,
                windows=tuple(entry.window for entry in entries),
                bytes=sum(entry.length for entry in taken),
                rows=sum(entry.rows for entry in taken),
                rejected=sum(entry.rejected for entry in taken),
                reason=last.reason,
            )


def _states(table: pa.Table) -> Counter[str]:
    """How many versions of files are in each state."""
    if not table.num_rows:
        return Counter()
    version = pc.binary_join_element_wise(table["path"], table["token"], "\0").combine_chunks()
    ends = np.ones(len(version), np.bool_)
    ends[:-1] = pc.not_equal(version[:-1], version[1:]).to_numpy(zero_copy_only=False)
    last = table.filter(pa.array(ends))
    partly = pc.and_(
        pc.equal(last["state"], FileState.COMMITTED.value),
        pc.less(pc.add(last["offset"], last["length"]), last["size"]),
    )
    states = pc.if_else(partly, FileState.SEEN.value, last["state"])
    return Counter({row["values"]: row["counts"] for row in pc.value_counts(states).to_pylist()})
