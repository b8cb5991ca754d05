"""Base files that a compaction rewrites anyway become one with their neighbours, up to the target size."""

from __future__ import annotations

from pathlib import Path

from lakemerge import LakeTable, Settings
from lakemerge.format.keys import Key
from tests.unit.faults import create, frame, state_of

EACH_ITS_OWN = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, threads=1)
KEYS = range(6)


def bounds(table: LakeTable) -> list[Key | None]:
    return [file_slice.lower for file_slice in table.opened.view.file_slices]


def many_files(path: Path) -> LakeTable:
    """A bucket of a base file for each of its keys, as a target of one byte makes them."""
    table = create(path, buckets=1, settings=EACH_ITS_OWN)
    table.upsert(frame([(k, 0, "base") for k in KEYS]))
    assert len(table.opened.view.file_slices) == 6
    return LakeTable.open(path)


def test_neighbours_are_joined(tmp_path: Path) -> None:
    table = many_files(tmp_path)
    table.upsert(frame([(k, 1, "new") for k in KEYS if k != 4]))
    table.delete(frame([(4, 9)], ["k", "o"]))
    result = table.compact()
    assert (result.file_slices, result.replaced_files, result.files) == (6, 6, 1)
    assert bounds(table) == [None]
    expected = [(k, 1, "new") for k in KEYS if k != 4]
    assert state_of(tmp_path) == expected
    # The tombstone came along: an older record of the key stays out.
    table.upsert(frame([(4, 8, "late")]))
    assert state_of(tmp_path) == expected
    table.compact()
    assert state_of(tmp_path) == expected


def test_a_clean_file_between_them_stays(tmp_path: Path) -> None:
    lower = bounds(many_files(tmp_path))
    file_slice = LakeTable.open(tmp_path).opened.view.file_slices[2]
    # More than a quarter of the target: it is not small.
    table = LakeTable.open(tmp_path, settings=Settings(target_file_bytes=file_slice.stored_bytes * 7 // 2))
    kept = file_slice.base
    assert kept is not None
    touched = (0, 1, 3, 4)
    for pair in (touched[:2], touched[2:]):
        table.upsert(frame([(k, 1, "new") for k in pair]))
    result = table.compact()
    assert (result.replaced_files, result.files) == (4, 2)
    assert bounds(table) == [None, lower[2], lower[3], lower[5]]
    assert kept.add.path in table.opened.view.snapshot.files
    assert state_of(tmp_path) == [(k, 1, "new") if k in touched else (k, 0, "base") for k in KEYS]


def test_small_neighbours_of_what_is_rewritten_come_along(tmp_path: Path) -> None:
    """One on each side a compaction, so that little is rewritten for what changed."""
    table = many_files(tmp_path)
    lower = bounds(table)
    table.upsert(frame([(2, 1, "new")]))
    plan = table.compact(dry_run=True)
    assert set(plan.reasons) == {"not merged yet (1 bucket)", "small, and next to a file that is rewritten (1 bucket)"}
    result = table.compact()
    assert (result.file_slices, result.replaced_files, result.files) == (3, 3, 1)
    assert bounds(table) == [None, lower[1], lower[4], lower[5]]
    table.delete(frame([(2, 9)], ["k", "o"]))
    assert table.compact().replaced_files == 3
    assert bounds(table) == [None, lower[5]]
    assert state_of(tmp_path) == [(k, 0, "base") for k in KEYS if k != 2]
    table.upsert(frame([(2, 8, "late")]))
    table.compact(minor=True)
    assert len(bounds(table)) == 2, "a minor compaction rewrites no base file"
    assert state_of(tmp_path) == [(k, 0, "base") for k in KEYS if k != 2]


def test_no_more_than_the_target_are_joined(tmp_path: Path) -> None:
    many_files(tmp_path)
    sizes = [file_slice.stored_bytes for file_slice in LakeTable.open(tmp_path).opened.view.file_slices]
    LakeTable.open(tmp_path).upsert(frame([(k, 1, "new") for k in KEYS]))
    dirty = [file_slice.stored_bytes for file_slice in LakeTable.open(tmp_path).opened.view.file_slices]
    assert all(with_logs > alone for with_logs, alone in zip(dirty, sizes, strict=True))
    # Room for two of them, not for three.
    table = LakeTable.open(tmp_path, settings=Settings(target_file_bytes=max(dirty) * 5 // 2))
    result = table.compact()
    assert (result.replaced_files, result.files) == (6, 3)
    assert state_of(tmp_path) == [(k, 1, "new") for k in KEYS]


def test_a_minor_compaction_joins_nothing(tmp_path: Path) -> None:
    table = many_files(tmp_path)
    lower = bounds(table)
    table.upsert(frame([(k, 1, "new") for k in KEYS]))
    table.compact(minor=True)
    assert bounds(table) == lower
    table.compact()
    assert bounds(table) == [None]
    assert state_of(tmp_path) == [(k, 1, "new") for k in KEYS]
