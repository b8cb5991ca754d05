"""Compaction: file slices and their watermarks, what is rewritten, tombstones, and logs that die or stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import CommitConflictError, LakeTable, Settings
from lakemerge.layout.view import FileSlice
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import Row, create, frame, listing, open_over, rows_of, state_of

TINY = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, threads=1)
"""Every row is a range of its own, and every range may begin a new base file."""


def file_slices_of(table: LakeTable) -> list[FileSlice]:
    """The file slices of the only bucket, in key order."""
    file_slices = sorted(
        table.opened.view.file_slices, key=lambda file_slice: () if file_slice.lower is None else file_slice.lower
    )
    assert {file_slice.bucket_id.bucket for file_slice in file_slices} == {0}
    return file_slices


def keys_in(path: Path, file_slice: FileSlice) -> list[int]:
    assert file_slice.base is not None
    keys: list[int] = pq.read_table(path / file_slice.base.add.path).column("k").to_pylist()
    assert file_slice.base.rows == len(keys)
    return keys


def tombstones_in(path: Path, file_slice: FileSlice) -> list[Any]:
    assert file_slice.base is not None
    if file_slice.base.tombstones is None:
        return []
    return [tuple(row.values()) for row in pq.read_table(path / file_slice.base.tombstones).to_pylist()]


def tiled(path: Path) -> LakeTable:
    """One bucket of ten keys in several base files."""
    table = create(path, settings=TINY)
    assert table.upsert(frame([(k * 10, 1, f"base{k}") for k in range(10)])).mode == "load"
    assert len(table.opened.view.file_slices) > 3
    return table


def test_base_files_tile_the_keys(tmp_path: Path) -> None:
    """The first is open below, the last above, each holds the keys between its bound and the next."""
    table = tiled(tmp_path / "t")
    file_slices = file_slices_of(table)
    assert (file_slices[0].lower, file_slices[-1].upper) == (None, None)
    assert [file_slice.upper for file_slice in file_slices[:-1]] == [file_slice.lower for file_slice in file_slices[1:]]
    found = [keys_in(tmp_path / "t", file_slice) for file_slice in file_slices]
    assert [key for keys in found for key in keys] == [k * 10 for k in range(10)]
    for file_slice, keys in zip(file_slices, found, strict=True):
        assert keys == sorted(keys)
        assert file_slice.lower is None or (keys and file_slice.lower <= (keys[0],))
        assert file_slice.upper is None or (keys[-1],) < file_slice.upper
    ordinals = [file_slice.base.ordinal for file_slice in file_slices if file_slice.base is not None]
    assert len(set(ordinals)) == len(file_slices)


def test_a_second_compaction_rewrites_only_touched_file_slices(tmp_path: Path) -> None:
    table = tiled(tmp_path / "t")
    before = file_slices_of(table)
    touched = before[2]
    key = keys_in(tmp_path / "t", touched)[0]
    table.upsert(frame([(key, 2, "changed"), (key + 1, 2, "new")]))
    assert [file_slice.lower for file_slice in file_slices_of(table) if not file_slice.is_clean] == [touched.lower]
    result = table.compact()
    assert (result.file_slices, result.replaced_files) == (1, 1)
    kept = {
        file_slice.base.add.path for file_slice in before if file_slice.base is not None and file_slice is not touched
    }
    after = {file_slice.base.add.path for file_slice in file_slices_of(table) if file_slice.base is not None}
    assert kept < after
    assert touched.base is not None
    assert touched.base.add.path not in after
    assert not table.opened.view.log_commits, "the log is dead everywhere and its domain gone"
    expected = {k * 10: f"base{k}" for k in range(10)} | {key: "changed", key + 1: "new"}
    assert {row[0]: row[2] for row in state_of(tmp_path / "t")} == expected


def test_a_log_lives_on_in_the_file_slices_that_were_not_compacted(tmp_path: Path) -> None:
    """The log of an append that lands during a compaction stays live in all file slices, while the earlier
    log, merged everywhere it reached, is dropped."""
    path = tmp_path / "t"
    tiled(path)
    LakeTable.open(path).upsert(frame([(0, 5, "early")]))
    LakeTable.open(path).upsert(frame([(90, 5, "early")]))

    def append(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(0, 6, "late"), (50, 6, "late")]))

    table, _ = open_over(path, Fault(action=append, method="open_output", path="base/"), settings=TINY)
    result = table.compact()
    assert result.file_slices == 2
    assert [commit.version for commit in table.opened.view.log_commits] == [5]
    live = {
        file_slice.lower: [block.version for block in file_slice.blocks]
        for file_slice in file_slices_of(table)
        if file_slice.blocks
    }
    assert set(map(tuple, live.values())) == {(5,)}
    state = {row[0]: row[2] for row in state_of(path)}
    assert (state[0], state[50], state[90], state[10]) == ("late", "late", "early", "base1")
    LakeTable.open(path).compact()
    assert {row[0]: row[2] for row in state_of(path)} == state
    assert not LakeTable.open(path).opened.view.log_commits


def test_tombstones_land_in_the_tile_of_their_key(tmp_path: Path) -> None:
    """Deletes of keys stored and not stored, in several file slices; a stale record later stays out everywhere."""
    path = tmp_path / "t"
    table = tiled(path)
    deleted = [-5, 0, 15, 40, 89, 90, 95]
    table.delete(frame([(k, 3) for k in deleted], ["k", "o"]))
    table.compact()
    found = []
    for file_slice in file_slices_of(table):
        for key, ordering, version in tombstones_in(path, file_slice):
            assert file_slice.lower is None or file_slice.lower <= (key,)
            assert file_slice.upper is None or (key,) < file_slice.upper
            assert (ordering, version) == (3, 2)
            found.append(key)
    assert found == deleted
    table.upsert(frame([(k, 2, "stale") for k in deleted] + [(k + 1, 2, "new") for k in deleted]))
    expected = sorted({*range(0, 100, 10), *(k + 1 for k in deleted)} - {*deleted})
    for _ in range(2):
        assert [row[0] for row in sorted(state_of(path))] == expected
        table.compact()


@pytest.mark.parametrize("minor", [False, True])
def test_tombstones_are_written_as_they_come(tmp_path: Path, minor: bool) -> None:
    """Row groups of bounded size, and base files that are full of tombstones alone."""
    path = tmp_path / "t"
    table = create(
        path, settings=Settings(row_group_rows=8, merge_budget_bytes=2000, target_file_bytes=3000, threads=1)
    )
    table.upsert(frame([(k, 1, "x") for k in range(200)]))
    table.compact()
    table.delete(frame([(k, 10) for k in range(0, 200, 2)] + [(k, 10) for k in range(1000, 1400)], ["k", "o"]))
    table.compact(minor=minor)
    files = [file_slice.tombstones for file_slice in table.opened.view.file_slices if file_slice.tombstones is not None]
    footers = [pq.read_metadata(path / file) for file in files]
    assert sum(footer.num_rows for footer in footers) == 500
    assert max(f.row_group(i).num_rows for f in footers for i in range(f.num_row_groups)) == 8
    assert sum(file_slice.tombstone_bytes for file_slice in table.opened.view.file_slices) == sum(
        (path / file).stat().st_size for file in files
    )
    if not minor:
        empty = [
            file_slice
            for file_slice in file_slices_of(table)
            if file_slice.base is not None and not file_slice.base.rows
        ]
        assert len(empty) > 1, "the deletes beyond the rows fill several files"
        assert all(file_slice.stored_bytes >= file_slice.tombstone_bytes > 0 for file_slice in empty)
    kept: list[Row] = sorted(((k, 1, "x") for k in range(1, 200, 2)), key=repr)
    grown = sorted([*kept, (1399, 10, "as late")], key=repr)
    assert state_of(path) == kept
    table.upsert(frame([(k, 9, "late") for k in range(1000, 1400)] + [(1399, 10, "as late")]))
    assert state_of(path) == grown
    table.compact()
    assert state_of(path) == grown


def test_a_failure_leaves_neither_rows_nor_tombstones(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(k, 1, "x") for k in range(4)]))
    table.delete(frame([(k, 10) for k in range(9)], ["k", "o"]))
    before = listing(path)

    def broken(call: Call) -> None:
        raise OSError("broken disk")

    for minor in (False, True):
        for method in ("open_output", "publish"):
            failing, _ = open_over(path, Fault(action=broken, method=method, path="/tombstones/"))
            with pytest.raises(OSError, match="broken disk"):
                failing.compact(minor=minor)
            files = {path: size for path, size in listing(path).items() if not path.startswith("_delta_log")}
            assert files == {path: size for path, size in before.items() if not path.startswith("_delta_log")}
    assert state_of(path) == []


def test_a_tile_that_lost_its_last_row_keeps_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(1, 1, "x")]))
    table.delete(frame([(1,)], ["k"]))
    table.compact()
    (file_slice,) = table.opened.view.file_slices
    assert file_slice.base is not None
    assert (file_slice.base.rows, file_slice.base.tombstones, file_slice.merged_through) == (0, None, 2)
    assert state_of(path) == []
    table.upsert(frame([(1, 0, "again")]))
    assert state_of(path) == [(1, 0, "again")]


@pytest.mark.parametrize("buckets", [1, 4])
def test_tiny_budgets_change_no_answer(buckets: int, tmp_path: Path) -> None:
    """The same commits, once with every budget at one byte and once with none in reach."""
    answers = []
    for settings in (TINY, Settings()):
        path = tmp_path / f"{settings.merge_budget_bytes}"
        table = create(path, buckets=buckets, settings=settings)
        seen: list[Sequence[Row]] = []
        for n in range(4):
            rows = [(k * 7 % 13, (k + n) % 5, f"{n}.{k}", "+U" if (k + n) % 4 else "-D") for k in range(12)]
            parts = frame(rows, ["k", "o", "v", "op"]).to_batches(max_chunksize=3)
            table.upsert(pa.RecordBatchReader.from_batches(parts[0].schema, parts), kind_column="op")
            seen += [rows_of(table.to_arrow()), rows_of(table.to_arrow(columns=["v"], filter="o >= 2"))]
            if n % 2:
                table.compact()
                seen += [rows_of(table.to_arrow()), rows_of(table.scan(columns=["k"]).read_all())]
        answers.append(seen)
    assert answers[0] == answers[1]
    assert answers[0][-1]


def test_of_two_compactions_the_loser_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    tiled(path)
    loaded = {file for file in listing(path) if file.startswith("base/")}
    LakeTable.open(path).upsert(frame([(0, 5, "x")]))
    LakeTable.open(path).upsert(frame([(95, 5, "y")]))
    before = state_of(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path, settings=TINY).compact()

    table, _ = open_over(path, Fault(action=overtake, method="put_if_absent", at=2), settings=TINY)
    result = table.compact()
    assert (result.file_slices, result.commits, result.version) == (0, 0, 3)
    (lost,) = result.lost
    assert "compacted by somebody else" in lost.reason
    assert state_of(path) == before
    view = LakeTable.open(path).opened.view
    after = {file for file in listing(path) if file.startswith("base/")}
    assert after == loaded | {base.add.path for base in view.base_files}
    assert len({base.add.path for base in view.base_files} - loaded) == 3, "the new key 95 has a file of its own"


def test_a_clean_table_needs_no_compaction(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    assert table.compact().file_slices == 0
    table.upsert(frame([(1, 1, "x")]))
    before = listing(tmp_path / "t")
    result = table.compact()
    assert (result.version, result.files, result.replaced_files) == (1, 0, 0)
    assert listing(tmp_path / "t") == before


def test_a_column_added_meanwhile_stops_a_compaction(tmp_path: Path) -> None:
    """Its files would lack the column in the statistics, and nobody checks what the new schema asks."""
    path = tmp_path / "t"
    create(path).upsert(frame([(1, 1, "x")]))
    LakeTable.open(path).upsert(frame([(2, 1, "y")]))

    def alter(call: Call) -> None:
        LakeTable.open(path).alter(add_columns="w INT")

    table, _ = open_over(path, Fault(action=alter, method="open_output", path="base/"))
    with pytest.raises(CommitConflictError, match="schema or bucket count changed"):
        table.compact()
    assert state_of(path) == [(1, 1, "x", None), (2, 1, "y", None)]
    assert LakeTable.open(path).compact().file_slices == 1
    assert state_of(path) == [(1, 1, "x", None), (2, 1, "y", None)]


def test_what_a_compaction_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path).upsert(frame([(1, 1, "x"), (2, 1, "y")]))
    table = LakeTable.open(path)
    table.upsert(frame([(3, 1, "z")]))
    result = table.compact()
    assert (result.version, result.rows, result.files, result.replaced_files) == (4, 3, 1, 1)
    assert result.bytes == sum(base.add.size_bytes for base in table.opened.view.base_files)
    assert repr(result).startswith("CompactionResult(version=4, file_slices=1, rows=3, files=1, ")
    entry = table.history(limit=1)[0]
    assert entry.operation == "COMPACT"
    assert entry.parameters == {
        "readVersion": "2", "fileSlices": "1", "mode": "full", "group": "1 of 1", "due": "everything, oldest first",
        "why": "not merged yet (1 bucket)",
    }  # fmt: skip
    counts = {name: value for name, value in entry.metrics.items() if not name.endswith("TimeMs")}
    assert counts == {
        "numAddedFiles": "1", "numRemovedFiles": "1", "numOutputRows": "3", "numOutputBytes": str(result.bytes),
        "numInputBytes": str(result.bytes_read), "numLogBlocks": "1", "numSkippedFileSlices": "0",
    }  # fmt: skip
    assert {"planTimeMs", "mergeTimeMs"} == entry.metrics.keys() - counts.keys()
