"""Boundaries between the base files of a bucket: which keys they hold, and how they move."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.run.rewrite import off_boundaries, rewrite
from lakemerge import LakeTable, Settings
from lakemerge.layout.view import FileSlice
from tests.unit.faults import create, frame, state_of

TINY = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, threads=1)
"""Every row is a range of its own, and every range may begin a new base file."""


def tiled(path: Path, **options: object) -> LakeTable:
    """One bucket of ten keys in several base files."""
    table = create(path, settings=TINY, **options)
    table.upsert(frame([(k * 10, 1, f"base{k}") for k in range(10)]))
    return table


def boundaries(table: LakeTable) -> list[int]:
    return sorted(int(str(base.lower[0])) for base in table.opened.view.base_files if base.lower is not None)


def slice_of(table: LakeTable, key: int) -> FileSlice:
    (found,) = [
        each
        for each in table.opened.view.file_slices
        if (each.lower is None or each.lower <= (key,)) and (each.upper is None or (key,) < each.upper)
    ]
    return found


def move_off(table: LakeTable, *keys: int) -> None:
    view = table.opened.view
    wanted = {(key,) for key in keys}
    parts = off_boundaries(view, [slice_of(table, key) for key in keys], wanted)
    rewrite(table.opened.handle, view, parts, why="a test")
    table.opened.follow()


def test_a_compaction_alone_keeps_the_key_of_a_deleted_row(tmp_path: Path) -> None:
    """Why a boundary has to be moved: nothing else takes the key away."""
    table = tiled(tmp_path / "t")
    key = boundaries(table)[1]
    table.delete(pa.table({"k": [key], "o": [9]}))
    table.compact()
    assert key in boundaries(table)
    assert key not in [row[0] for row in state_of(tmp_path / "t")]


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_boundary_moves_off_the_key_of_a_deleted_row(tmp_path: Path, place: int) -> None:
    path = tmp_path / "t"
    table = tiled(path)
    key = boundaries(table)[place]
    table.delete(pa.table({"k": [key], "o": [9]}))
    expected = state_of(path)
    assert key not in [row[0] for row in expected]
    move_off(table, key)
    assert key not in boundaries(table)
    assert set(boundaries(table)) <= {row[0] for row in expected}
    assert state_of(path) == expected
    table.upsert(frame([(key, 5, "late"), (key + 1, 1, "new")]))
    assert state_of(path) == sorted([*expected, (key + 1, 1, "new")], key=repr), "the delete is remembered"


def test_neighbours_that_begin_at_such_keys_are_rewritten_together(tmp_path: Path) -> None:
    """All boundaries of the bucket at once: every row that begins a file goes, and nothing else."""
    path = tmp_path / "t"
    table = tiled(path)
    keys = boundaries(table)
    table.delete(pa.table({"k": keys, "o": [9] * len(keys)}))
    view = table.opened.view
    parts = off_boundaries(view, [], {(key,) for key in keys})
    assert [len(part) for part in parts] == [len(view.file_slices)], "one rewrite of all neighbours"
    move_off(table, *keys)
    left = {row[0] for row in state_of(path)}
    assert left == {k * 10 for k in range(10)} - set(keys)
    assert set(boundaries(table)) <= left


def test_file_slices_that_only_lose_their_logs_keep_their_base_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = tiled(path)
    key, other = boundaries(table)[1], boundaries(table)[-1]
    table.upsert(frame([(key, 2, "changed"), (other, 2, "changed")]))
    view, wanted = table.opened.view, {(key,)}
    parts = off_boundaries(view, [slice_of(table, key)], wanted)
    rewritten = {each.lower for part in parts for each in part}
    others = [each for each in view.file_slices if each.blocks and each.lower not in rewritten]
    rewrite(table.opened.handle, view, parts, beside=others, why="a test")
    table.opened.follow()
    before, after = slice_of(table, other).base, slice_of(table, other)
    assert before is not None
    assert before.add.path in view.snapshot.files
    assert after.minor is not None
    assert after.is_merged
    assert not table.opened.view.log_commits
    assert {row[2] for row in state_of(path) if row[0] in (key, other)} == {"changed"}


def test_a_new_base_file_begins_at_a_row(tmp_path: Path) -> None:
    """Deletes between rows belong to the file before, so that no tag holds the key of a deleted row."""
    path = tmp_path / "t"
    settings = Settings(merge_budget_bytes=3000, row_group_rows=2, target_file_bytes=4000, threads=1)
    table = create(path)
    table.upsert(frame([(k, 1, hashlib.sha512(bytes([k])).hexdigest() * 5) for k in range(0, 200, 2)]))
    table.delete(pa.table({"k": list(range(200)), "o": [9 if k % 10 else 0 for k in range(200)]}))
    table = LakeTable.open(path, settings=settings)
    table.compact()
    rows = {row[0] for row in state_of(path)}
    assert rows == set(range(0, 200, 10))
    assert len(boundaries(table)) > 3
    assert set(boundaries(table)) <= rows
    tombstones = [base.tombstones for base in table.opened.view.base_files if base.tombstones is not None]
    found = [key for file in tombstones for key in pq.read_table(path / file).column("k").to_pylist()]
    assert len(found) == len(set(found)) >= 180
    for base in table.opened.view.base_files:
        own = [] if base.tombstones is None else pq.read_table(path / base.tombstones).column("k").to_pylist()
        assert base.lower is None or all((key,) >= base.lower for key in own)
    table.upsert(frame([(k, 5, "late") for k in range(200) if k % 10]))
    assert {row[0] for row in state_of(path)} == rows, "each delete is found where its key is looked for"
