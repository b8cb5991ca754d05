"""The change feed: by hand for each kind of commit, and as a history that gives back every version."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable, Settings, VersionNotFoundError
from tests.unit.faults import create, frame


def changes_of(table: LakeTable, since: int, until: int | None = None) -> list[tuple[Any, ...]]:
    """(version, kind, row), in the feed's order."""
    rows = table.changes(since, until).read_all().drop_columns(["_commit_timestamp"]).to_pylist()
    return [(row.pop("_commit_version"), row.pop("_row_kind"), *row.values()) for row in rows]


def test_each_kind_of_change(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 10, "a"), (2, 10, "b"), (3, 10, "c")]))
    assert changes_of(table, 0) == [(1, "+I", 1, 10, "a"), (1, "+I", 2, 10, "b"), (1, "+I", 3, 10, "c")]
    table.upsert(frame([(1, 20, "A"), (2, 5, "late"), (4, 1, "d"), (3, 10, "c"), (4, 2, "D")]))
    second = [(2, "-U", 1, 10, "a"), (2, "+U", 1, 20, "A"), (2, "+I", 4, 2, "D")]
    assert changes_of(table, 1) == second, "neither the late record nor the repeated row"
    table.delete(frame([(3, 30), (99, 30)], ["k", "o"]))
    table.delete_where("v = 'D'")
    third = [(3, "-D", 3, 10, "c"), (4, "-D", 4, 2, "D")]
    assert changes_of(table, 2) == third
    table.compact(minor=True)
    table.compact()
    table.alter(add_columns="n INT")
    assert changes_of(table, 4) == []
    table.upsert(frame([(3, 31, "back", 7), (1, 20, "A", None)], ["k", "o", "v", "n"], n=pa.int32()))
    last = table.version
    assert changes_of(table, 4) == [(last, "+I", 3, 31, "back", 7)]
    assert changes_of(table, 1, 3) == [*second, third[0]], "columns are those of the last version asked for"
    assert changes_of(LakeTable.open(tmp_path / "t", version=2), 1) == second


def test_time_and_types(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 10, "a")]))
    feed = table.changes(0)
    assert feed.schema.names == ["k", "o", "v", "_row_kind", "_commit_version", "_commit_timestamp"]
    (row,) = feed.read_all().to_pylist()
    (entry,) = table.history(limit=1)
    assert row["_commit_timestamp"].timestamp() * 1000 == pytest.approx(entry.timestamp_ms)


def test_retractions_change_a_total(tmp_path: Path) -> None:
    table = create(
        tmp_path / "t",
        schema="k BIGINT, n BIGINT",
        ordering=[],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
    )
    first = pa.table({"k": [1, 2], "n": [5, 7], "op": ["+I", "+I"]})
    table.upsert(first, kind_column="op")
    table.upsert(pa.table({"k": [1, 1, 2], "n": [5, 9, 7], "op": ["-U", "+U", "-D"]}), kind_column="op")
    assert changes_of(table, 1) == [(2, "-U", 1, 5), (2, "+U", 1, 9), (2, "-U", 2, 7), (2, "+U", 2, 0)]


def test_nulls_and_nan_are_equal_to_themselves(tmp_path: Path) -> None:
    schema = "k BIGINT, f DOUBLE, l ARRAY<DOUBLE>"
    table = create(tmp_path / "t", schema=schema, ordering=[])
    rows = [{"k": 1, "f": float("nan"), "l": [None, float("nan")]}, {"k": 2, "f": None, "l": None}]
    kinds = pa.schema([("k", pa.int64()), ("f", pa.float64()), ("l", pa.list_(pa.float64()))])
    table.upsert(pa.Table.from_pylist(rows, kinds))
    table.upsert(pa.Table.from_pylist(rows, kinds))
    assert changes_of(table, 1) == []
    table.upsert(pa.Table.from_pylist([{"k": 2, "f": None, "l": []}], kinds))
    assert [row[:2] for row in changes_of(table, 2)] == [(3, "-U"), (3, "+U")]


@pytest.mark.parametrize("seed", range(6))
def test_the_feed_gives_back_every_version(tmp_path: Path, seed: int) -> None:
    """Applied in order, the changes lead from version to version; before images are what was there."""
    draw = random.Random(seed)
    table = create(tmp_path / "t", buckets=2, settings=Settings(write_budget_bytes=200, merge_budget_bytes=300))
    for number in range(12):
        match draw.choice(["upsert", "upsert", "delete", "minor", "full"]):
            case "upsert":
                table.upsert(
                    frame(
                        [(draw.randrange(12), draw.randrange(9), f"{number}.{i}") for i in range(draw.randrange(1, 9))]
                    )
                )
            case "delete":
                table.delete(frame([(draw.randrange(12), draw.randrange(9)) for _ in range(3)], ["k", "o"]))
            case what:
                table.compact(minor=what == "minor")
    state: dict[int, tuple[Any, ...]] = {}
    feed = changes_of(table, 0)
    for version in range(table.version + 1):
        for _, kind, *row in [change for change in feed if change[0] == version]:
            if kind in ("-U", "-D"):
                assert state.pop(row[0]) == tuple(row)
            else:
                assert row[0] not in state
                state[row[0]] = tuple(row)
        rows = LakeTable.open(tmp_path / "t", version=version).to_arrow().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == sorted(state.values())


def test_versions_that_are_not_there(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    assert changes_of(table, 0) == []
    for since in (1, "0", True):
        with pytest.raises(InputError, match="since must be"):
            table.changes(since)  # type: ignore[arg-type]  # what a careless caller gives
    with pytest.raises(VersionNotFoundError):
        table.changes(-1)
    with pytest.raises(VersionNotFoundError):
        table.changes(0, 7)


@pytest.mark.parametrize("name", ["_row_kind", "_Commit_Version", "_commit_timestamp"])
def test_a_table_with_a_column_of_the_feed_is_refused(tmp_path: Path, name: str) -> None:
    table = LakeTable.create(tmp_path / "t", f"id INT, {name} STRING", key=["id"])
    table.upsert(pa.table({"id": pa.array([1], pa.int32()), name: ["mine"]}))
    assert table.to_arrow().to_pylist() == [{"id": 1, name: "mine"}]
    with pytest.raises(InputError, match=f"column.* {name}, which would be two"):
        table.changes(0)
