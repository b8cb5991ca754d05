"""Renaming tables, beside whoever reads and writes them by their old names."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lakemerge import InputError, LakeMergeError, LakeTable, NotATableError, TableExistsError, TableReplacedError
from lakemerge.table.opening import open_handle
from lakemerge.table.rename import rename_table
from lakemerge.testing.faults import Call, Fault
from tests.property.effort import some
from tests.unit.faults import Row, create, frame, open_over, rows_of, state_of


def move(old: Path, new: Path, _: Call) -> None:
    os.rename(old, new)


def renamed(old: Path, new: Path) -> None:
    rename_table(open_handle(str(old), None, (), None), str(new))


def test_a_table_has_its_rows_and_history_under_the_new_name(tmp_path: Path) -> None:
    table = create(tmp_path / "a" / "t")
    table.upsert(frame([(1, 1, "x")]))
    before = state_of(tmp_path / "a" / "t")
    renamed(tmp_path / "a" / "t", tmp_path / "b" / "u")
    assert not (tmp_path / "a" / "t").exists()
    assert state_of(tmp_path / "b" / "u") == before
    assert LakeTable.open(tmp_path / "b" / "u", version=1).to_arrow().num_rows == 1
    for call in (lambda: table.upsert(frame([(2, 1, "y")])), table.to_arrow):
        with pytest.raises(TableReplacedError, match="removed or re-created"):
            call()
    assert not (tmp_path / "a" / "t").exists()
    again = create(tmp_path / "a" / "t")
    again.upsert(frame([(3, 1, "z")]))
    assert rows_of(again.to_arrow()) == [(3, 1, "z")]
    assert LakeTable.check(tmp_path / "b" / "u").ok


def test_a_name_that_is_taken_and_a_table_that_is_none(tmp_path: Path) -> None:
    create(tmp_path / "t")
    create(tmp_path / "u")
    with pytest.raises(TableExistsError, match="has files already"):
        renamed(tmp_path / "t", tmp_path / "u")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.txt").write_text("mine")
    with pytest.raises(TableExistsError, match="has files already"):
        renamed(tmp_path / "t", tmp_path / "files")
    with pytest.raises(NotATableError):
        renamed(tmp_path / "files", tmp_path / "other")
    assert LakeTable.open(tmp_path / "t").version == 0


@pytest.mark.every_variant
@pytest.mark.parametrize("deed", ["upsert", "compact"])
def test_what_a_writer_reports_is_in_the_table_and_nothing_else(deed: str, tmp_path: Path) -> None:
    """The folder gets another name before and after each call that a commit makes of its store."""
    rows: list[Row] = [(1, 1, "x"), (2, 1, "y")]

    def begin(path: Path, *faults: Fault) -> tuple[Callable[[], object], tuple[Call, ...]]:
        made = create(path, properties={"lakemerge.maintenance": "off"})
        made.upsert(frame(rows))
        made.upsert(frame([(1, 2, "z")]))
        table, store = open_over(path, *faults)
        act = (lambda: table.upsert(frame([(3, 1, "new")]))) if deed == "upsert" else table.compact
        if not faults:
            act()
        return act, store.calls

    _, calls = begin(tmp_path / "count")
    assert len(calls) > 4
    done = LakeTable.open(tmp_path / "count").version
    places = [(number, after) for number in range(1, len(calls) + 1) for after in (False, True)]
    for number, after in places if deed == "upsert" else some(places):
        old, new = tmp_path / f"t{number}{after}", tmp_path / f"u{number}{after}"
        act, _ = begin(old, Fault(at=number, after=after, action=partial(move, old, new)))
        about = f"{number} {calls[number - 1]}, {'after' if after else 'before'} its effect"
        try:
            act()
        except (LakeMergeError, OSError):
            reported = False
        else:
            reported = True
        found = LakeTable.open(new)
        # A compaction that is in the table may still report an error: it reads the table once more.
        assert found.version == done or not reported, about
        assert found.version == 2 or reported or deed == "compact", about
        assert LakeTable.check(new).ok, about
        expected = [(1, 2, "z"), (2, 1, "y"), *([(3, 1, "new")] if deed == "upsert" and reported else [])]
        assert rows_of(found.to_arrow()) == expected, about
        assert not old.exists(), about


def test_a_store_without_folders_refuses(tmp_path: Path) -> None:
    create(tmp_path / "t")
    elsewhere, _ = open_over(tmp_path / "t")  # a store that is not the local one
    with pytest.raises(InputError, match=r"an object store has no folders.*CREATE TABLE \.\.\. AS SELECT"):
        rename_table(elsewhere.opened.handle, str(tmp_path / "u"))
    assert LakeTable.open(tmp_path / "t").version == 0
