"""Conditional deletes: what they delete, what comes back, and rows that change meanwhile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import CommitConflictError, FilterError, InputError, LakeTable, Record, RowMerger
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, listing, open_over, state_of

ROWS = [(1, 10, "a"), (2, 10, "b"), (3, 10, "a"), (4, None, "a")]


def loaded(path: Path, merger: str = "event-time") -> LakeTable:
    table = create(path, merger=merger, buckets=2)
    table.upsert(frame(ROWS))
    return table


def test_rows_go_at_their_own_ordering(tmp_path: Path) -> None:
    """Older records stay out; equal ones come later and win, as do newer ones."""
    table = loaded(tmp_path / "t")
    result = table.delete_where("v = 'a'")
    assert (result.rows, result.mode) == (3, "append")
    assert state_of(tmp_path / "t") == [(2, 10, "b")]
    table.compact()
    table.upsert(frame([(1, 9, "old"), (3, 10, "equal"), (4, None, "equal"), (2, 11, "new")]))
    assert state_of(tmp_path / "t") == [(2, 11, "new"), (3, 10, "equal"), (4, None, "equal")]
    assert "v = 'a'" in [entry.info.get("predicate") for entry in table.history()]


def test_under_commit_time_nothing_is_remembered(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t", "commit-time")
    table.delete_where("o IS NULL OR k = 1")
    assert state_of(tmp_path / "t") == [(2, 10, "b"), (3, 10, "a")]
    table.upsert(frame([(1, 0, "again")]))
    assert state_of(tmp_path / "t")[0] == (1, 0, "again")


def test_the_merged_row_is_judged(tmp_path: Path) -> None:
    """A stored row that a log record changed: neither its old nor a stale value counts."""
    table = loaded(tmp_path / "t")
    table.upsert(frame([(1, 11, "b"), (2, 11, "a"), (3, 9, "b")]))
    table.delete_where("v = 'a'")
    assert state_of(tmp_path / "t") == [(1, 11, "b")]


def test_nothing_matches_and_everything_does(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    assert table.delete_where("v = 'zzz'").rows == 0
    assert len(state_of(tmp_path / "t")) == 4
    assert table.delete_where("true").rows == 4
    assert state_of(tmp_path / "t") == []
    assert create(tmp_path / "empty").delete_where("true").rows == 0


@pytest.mark.parametrize("condition", ["", "no_such_column = 1", "v = ", "v", pc.field("k") == 1, 5, None])
def test_conditions_that_are_none(condition: Any, tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    before = listing(tmp_path / "t")
    with pytest.raises(FilterError if isinstance(condition, str) else InputError):
        table.delete_where(condition)
    assert listing(tmp_path / "t") == before


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_that_change_meanwhile_are_judged_again(compacted: bool, tmp_path: Path) -> None:
    """Before the first attempt lands another writer adds a match and takes one away."""
    path = tmp_path / "t"
    loaded(path)

    def change(call: Call) -> None:
        other = LakeTable.open(path)
        other.upsert(frame([(2, 12, "a"), (3, 12, "b"), (9, 12, "a")]))
        if compacted:
            other.compact()

    table, _ = open_over(path, Fault(action=change, method="put_if_absent"))
    result = table.delete_where("v = 'a'")
    assert result.rows == 4
    assert state_of(path) == [(3, 12, "b")]
    kept = {file for file in listing(path) if "/log/" in file}
    named = {file for commit in LakeTable.open(path).opened.view.log_commits for file in commit.paths}
    assert named <= kept
    assert (len(kept), len(named)) == (2, 1 if compacted else 2), "the first attempt's log is gone"


def test_a_compaction_meanwhile_disturbs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path).upsert(frame([(5, 1, "a")]))

    def compact(call: Call) -> None:
        LakeTable.open(path).compact()

    table, store = open_over(path, Fault(action=compact, method="put_if_absent"))
    assert table.delete_where("v = 'a'").version == 5
    assert state_of(path) == [(2, 10, "b")]
    assert sum(call.method == "publish" for call in store.calls) == 1, "it was judged once"


@pytest.mark.parametrize("minor", [False, True])
def test_a_compaction_of_a_later_version_with_the_same_records_changes_no_rows(tmp_path: Path, minor: bool) -> None:
    """It merges through a version after the one that was judged, and finds no record that was not in it."""
    path = tmp_path / "t"
    loaded(path)
    LakeTable.open(path).upsert(frame([(1, 11, "a")]))

    def compact(call: Call) -> None:
        table = LakeTable.open(path)
        table.savepoint("no-records")
        table.compact(minor=minor)
        assert not table.opened.view.log_commits

    table, store = open_over(path, Fault(action=compact, method="put_if_absent"))
    assert table.delete_where("v = 'a'").rows == 3
    assert state_of(path) == [(2, 10, "b")]
    assert sum(call.method == "publish" for call in store.calls) == 1, "it was judged once"


def test_records_that_were_compacted_at_once_are_judged_too(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)

    def write(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(2, 11, "a"), (3, 11, "b")]))
        LakeTable.open(path).compact_logs(size_ratio=math.inf)
        LakeTable.open(path).compact()

    table, _ = open_over(path, Fault(action=write, method="put_if_absent"))
    table.delete_where("v = 'a'")
    assert state_of(path) == [(3, 11, "b")]


def test_rows_that_never_rest_are_given_up_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    count = 0

    def change(call: Call) -> None:
        nonlocal count
        count += 1
        LakeTable.open(path).upsert(frame([(1, 100 + count, "a")]))

    table, _ = open_over(path, Fault(action=change, method="put_if_absent", lasting=True))
    with pytest.raises(CommitConflictError, match=r"3 times, and nothing was written: version 4 wrote 1 .*'k': 1"):
        table.delete_where("v = 'a'", retries=2)
    assert len(state_of(path)) == 4
    assert count == 3


def test_rows_of_other_keys_disturb_nothing(tmp_path: Path) -> None:
    """A row that comes meanwhile and would have matched stays: the condition was judged before it came."""
    path = tmp_path / "t"
    loaded(path)

    def change(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(100, 1, "a")]))

    table, store = open_over(path, Fault(action=change, method="put_if_absent"))
    assert table.delete_where("v = 'a'").rows == 3
    assert state_of(path) == [(100, 1, "a"), (2, 10, "b")]
    assert sum(call.method == "publish" for call in store.calls) == 1, "it was judged once"


def test_a_serializable_delete_sees_rows_that_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)

    def change(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(100, 1, "a")]))

    table, _ = open_over(path, Fault(action=change, method="put_if_absent"))
    assert table.delete_where("v = 'a'", isolation="serializable").rows == 4
    assert state_of(path) == [(2, 10, "b")]


SUM = {"default_aggregate": "sum"}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "retracted": ("aggregate", SUM, ()),
    "ignored": ("first-row", {"ignore_delete": True}, ("o",)),
    "refused": ("overwrite-non-defaults", {}, ()),
    "no option": ("partial-update", {}, ("o",)),
    "dropped": ("partial-update", {"ignore_delete": True}, ()),
    "groups": ("partial-update", {"sequence_groups": {"o": ["v"]}, "remove_record_on_sequence_group": ["o"]}, ()),
    "aggregate": ("aggregate", SUM | {"remove_record_on_delete": True}, ()),
    "aggregate, ordering": ("aggregate", SUM | {"remove_record_on_delete": True}, ("o",)),
    "partial-update": ("partial-update", {"remove_record_on_delete": True}, ("o",)),
    "dms": ("aws-dms", {"op_column": "op"}, ()),
    "postgres": ("debezium-postgres", {"op_column": "op"}, ("o",)),
    "rows": ("kept", {}, ("o",)),
}


class Kept(RowMerger):
    id = "6a1f6a55-3c59-4b39-8d6b-7b1f1f6f6c0d"
    name = "kept"

    def merge(self, older: Record, newer: Record) -> Record:
        return older


def numbers(path: Path, merger: str, options: dict[str, Any], ordering: tuple[str, ...]) -> LakeTable:
    """A table of two rows, one of them changed since it was loaded."""
    ddl = "k BIGINT, o BIGINT, v BIGINT" + (", op STRING" if "op_column" in options else "")
    table = LakeTable.create(
        path, ddl, key=["k"], ordering=ordering, merger=merger, options=options, buckets=1, mergers=[Kept]
    )
    rows = pa.table({"k": [1, 2], "o": [5, None], "v": [3, 4]})
    table.upsert(rows.append_column("op", pa.array(["u", "u"])) if "op_column" in options else rows)
    table.upsert(pa.table({"k": [1], "o": [6], "v": [0]}))
    return table


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_rows_go_under_every_merger(name: str, tmp_path: Path) -> None:
    """Also where the delete of a key would leave its row, or is refused."""
    table = numbers(tmp_path, *CONFIGURATIONS[name])
    assert table.delete_where("k = 1").rows == 1
    assert table.to_arrow(columns=["k"]).to_pylist() == [{"k": 2}]
    assert table.delete_where("true").rows == 1
    assert table.to_arrow().num_rows == 0
