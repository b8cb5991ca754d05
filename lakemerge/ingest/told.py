"""Reports from a ledger: counts for people, and the files themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.format.ledger import Entry, FileState, ledger_tables
from lakemerge.ingest.committing import Standing
from lakemerge.ingest.results import IngestFile, IngestStatus
from lakemerge.storage.base import Store

__all__ = ["entries_of", "files_of", "status_of"]


def status_of(store: Store, standing: Standing) -> IngestStatus:
    """Counts over the whole ledger, read as a stream."""
    ingest = standing.ingest
    states: Counter[str] = Counter()
    rows = rejected = size = 0
    for table in ledger_tables(store, ingest.ledger):
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


def entries_of(store: Store, standing: Standing) -> Iterator[list[Entry]]:
    """The ledger's entries, grouped by version of a file."""
    held: list[Entry] = []
    for table in ledger_tables(store, standing.ingest.ledger):
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
