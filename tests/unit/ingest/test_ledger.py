"""The ledger as a dictionary, and its join with a listing as set arithmetic: both by plain-Python models."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge import TableDamagedError
from lakemerge.format import ledger as module
from lakemerge.format.ingests import NamedFile
from lakemerge.format.ledger import (
    LEDGER,
    Entry,
    FileState,
    absorbed,
    appended,
    columns_of,
    ledger_tables,
    rejects_tables,
)
from lakemerge.ingest.discovery import Candidate, Settling, found_by
from lakemerge.ingest.places import LISTING
from lakemerge.ingest.source import SourceFile
from lakemerge.ingest.spill import SortedSpill, Spill
from lakemerge.storage import LocalStore

STILL = Settling(0)


def entry(
    path: str, token: str, block: int, state: FileState, window: int, *, size: int = 10, length: int = 0
) -> Entry:
    return Entry(path, token, block, size, 5, 1, state, window, 1, block, length)


COMMITS = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("xy"), st.integers(0, 2)),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    max_size=12,
)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(commits=COMMITS, batch=st.integers(1, 4))
def test_a_ledger_is_a_dictionary_of_pieces(
    commits: list[list[tuple[str, str, int]]], batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("ledger"))
    files: tuple[NamedFile, ...] = ()
    model: dict[tuple[str, str, int], int] = {}
    for window, pieces in enumerate(commits):
        entries = [entry(*piece, FileState.SEEN, window) for piece in pieces]
        files = appended(store, files, entries, f"_lakemerge/ingest/{window}.parquet")
        model |= dict.fromkeys(pieces, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH_ROWS", batch)
        tables = list(ledger_tables(store, files))
    found = [Entry.of(row) for table in tables for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]
    assert [(e.path, e.token, e.block) for e in found] == sorted(model)
    assert {(e.path, e.token, e.block): e.window for e in found} == model
    for path in "abcdef":
        assert sum(path in table["path"].to_pylist() for table in tables) <= 1, "a path is in one table"


def test_few_files_however_many_commits(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    files: tuple[NamedFile, ...] = ()
    written = 0
    for window in range(64):
        entries = [entry(f"f{window}", "t", 0, FileState.COMMITTED, window)]
        files = appended(store, files, entries, f"{window}.parquet")
        written += files[-1].rows
        assert len(files) <= 7
    assert written <= 64 * 7
    told = [NamedFile("", 0, rows) for rows in (100, 8, 4, 2, 1)]
    assert [absorbed(told, rows) for rows in (1, 0, 15, 85)] == [4, 0, 4, 5]


def test_a_ledger_that_is_gone_or_none_is_damage(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(TableDamagedError, match="cannot be read"):
        list(ledger_tables(store, [NamedFile("gone.parquet", 10, 1)]))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    size = (tmp_path / "other.parquet").stat().st_size
    with pytest.raises(TableDamagedError, match="other columns than a ledger"):
        list(ledger_tables(store, [NamedFile("other.parquet", size, 1)]))
    with pytest.raises(TableDamagedError, match="other columns than rejects"):
        rejects_tables(store, [NamedFile("other.parquet", size, 1)])


def test_rejects_that_are_gone_or_cut_are_damage(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(TableDamagedError, match=r"gone\.parquet.*cannot be read"):
        rejects_tables(store, [NamedFile("gone.parquet", 10, 1)])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(TableDamagedError, match=r"cut\.parquet.*cannot be read"):
        rejects_tables(store, [NamedFile("cut.parquet", 16, 1)])


def spool(files: list[SourceFile]) -> Spill:
    found = Spill(LISTING)
    for start in range(0, len(files), 3):
        found.add_rows(files[start : start + 3])
    return found


def ledger(entries: list[Entry]) -> list[pa.Table]:
    by_path = sorted(entries, key=lambda e: (e.path, e.token, e.block))
    return [pa.Table.from_batches([columns_of([e], LEDGER)]) for e in by_path] if by_path else []


LISTED = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("xy"), max_size=8)
KNOWN = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.sampled_from("xy"), st.sampled_from([*FileState]), st.integers(0, 10)),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(LISTED, KNOWN, st.booleans())
def test_what_a_listing_has_and_the_ledger_has_not(
    listed: dict[str, str], known: dict[str, tuple[str, FileState, int]], refuse: bool
) -> None:
    files = [SourceFile(path, 10, token, ord(path)) for path, token in sorted(listed.items())]
    entries = [
        entry(path, token, 0, state, 1, length=length if state is FileState.COMMITTED else 0)
        for path, (token, state, length) in known.items()
    ]
    with (
        spool(files) as listing,
        closing(
            found_by(
                listing,
                iter(ledger(entries)),
                settling=STILL,
                overwrites="refuse" if refuse else "ingest",
                exists=lambda path: path in listed,
                keeps_done=True,
                now_ms=7,
            )
        ) as found,
    ):
        candidates = {c.path: c for c in found}
        done = {path for batch in found.done for path in batch["path"].to_pylist()}
    notes = {(note.path, note.token): note.state for note in found.notes}
    for path, token in listed.items():
        version, state, length = known.get(path, ("", FileState.SEEN, 0))
        complete = version == token and state is FileState.COMMITTED and length == 10
        assert (path in done) == complete
        refused = refuse and version not in ("", token) and state is FileState.COMMITTED
        skipped = version == token and state in (FileState.FAILED, FileState.CHANGED)
        assert (path in candidates) == (not (complete or refused or skipped)), (path, token, version, state)
        if path in candidates:
            resumes = version == token and state is FileState.COMMITTED
            assert candidates[path].offset == (length if resumes else 0)
            assert candidates[path].seen_ms == (1 if version == token else 7)
        if refused:
            assert notes[path, token] is FileState.CHANGED
    for path, (version, state, length) in known.items():
        if state in (FileState.BINNED, FileState.SEEN) and path not in listed:
            assert notes[path, version] is FileState.GONE
        if path in listed and listed[path] != version and path in candidates:
            partly = state is FileState.COMMITTED and length < 10
            waits = state in (FileState.BINNED, FileState.SEEN, FileState.FAILED)
            assert (notes.get((path, version)) is FileState.CHANGED) == (partly or waits)


def test_files_come_in_the_order_of_their_times() -> None:
    times = {"a": 3, "b": 1, "c": 2, "d": 1}
    files = [SourceFile(path, 10, "t", at) for path, at in sorted(times.items())]
    for limit in (1, 2, 100):
        spill = SortedSpill(
            pa.schema([("at", pa.int64()), ("path", pa.string())]), ["at", "path"], rows_in_memory=limit
        )
        for file in files:
            spill.add((file.modified_ns, file.path))
        assert [path for _, path in spill] == ["b", "d", "c", "a"]


def test_a_file_settles_when_it_stands_still() -> None:
    now, running = [1_000_000], [0]
    settling = Settling(10_000, now_ms=lambda: now[0], running_ms=lambda: running[0])
    young = SourceFile("f", 10, "x", 995_000 * 10**6)
    assert not settling.stands_still(young)
    now[0] += 5_000
    assert settling.stands_still(young), "old enough by its own time"
    ahead = SourceFile("g", 10, "x", 9_000_000 * 10**6)
    assert not settling.stands_still(ahead)
    running[0] += 9_000
    newer = SourceFile("g", 11, "y", 9_000_000 * 10**6)
    assert not settling.stands_still(newer), "it changed: the wait begins anew"
    running[0] += 9_999
    assert not settling.stands_still(newer)
    running[0] += 1
    assert settling.stands_still(newer), "its source's clock is ahead, but it stood still"


def test_versions_left_alone_are_passed_over() -> None:
    files = [SourceFile("a", 10, "x", 1), SourceFile("b", 10, "x", 1)]
    with (
        spool(files) as listing,
        closing(
            found_by(
                listing,
                iter(()),
                settling=STILL,
                overwrites="ingest",
                exists=lambda path: True,
                keeps_done=False,
                now_ms=7,
                leave={("a", "x")},
            )
        ) as found,
    ):
        assert [candidate.path for candidate in found] == ["b"]


def test_a_candidate_becomes_an_entry_with_what_it_knows() -> None:
    candidate = Candidate(5, "f", 10, "x", 1, 2, 4, False, 3, "abc")
    told = candidate.entry(FileState.BINNED, 9, reason="why")
    assert (told.block, told.offset, told.records, told.columns, told.reason) == (2, 4, 3, "abc", "why")
