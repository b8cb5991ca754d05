"""First loads: a frame in memory goes into base files at once; any other one is packed first; both mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import FrameError, LakeTable, Settings
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, listing, open_over, state_of

Rows = list[dict[str, Any]]

SMALL = Settings(write_budget_bytes=64)
"""A frame that is not in memory exceeds it."""
SCHEMA = "p STRING, k BIGINT, o BIGINT, n BIGINT, v STRING"
RECORDS = [
    (("a", "b")[number % 2], number % 7, (number * 5) % 11, number, None if number % 3 == 0 else f"v{number}")
    for number in range(60)
]
NARROW = pa.schema([("k", pa.int32()), ("o", pa.int64()), ("v", pa.string())])
MERGERS: Mapping[str, Mapping[str, Any]] = {
    "event-time": {"ordering": ["o"]},
    "commit-time": {},
    "first-row": {"ordering": ["o"], "options": {"ignore_delete": True}},
    "partial-update": {"ordering": ["o"], "options": {"remove_record_on_delete": True}},
    "aggregate": {"options": {"aggregates": {"n": "sum"}}},
}


def reader(rows: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=5))


def records(kinds: bool) -> pa.Table:
    columns = list(zip(*RECORDS, strict=True))
    types = [pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.string()]
    names = ["p", "k", "o", "n", "v"]
    table = pa.table([pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names=names)
    if kinds:
        table = table.append_column("kind", pa.array(["-D" if n % 9 == 0 else "+U" for n in range(len(RECORDS))]))
    # Several batches, which do not end where buckets do.
    return pa.Table.from_batches(table.to_batches(max_chunksize=7))


def loaded(path: Path, given: object, merger: str, kind_column: str | None, **options: Any) -> tuple[Rows, list[str]]:
    """The rows after the load, and the stores' outputs."""
    LakeTable.create(path, SCHEMA, key=["p", "k"], merger=merger, partition_by=["p"], buckets=4, **options)
    table, store = open_over(path, settings=SMALL)
    result = table.upsert(given, kind_column=kind_column)
    assert (result.mode, result.rows, result.version) == ("load", len(RECORDS), 1)
    assert not any("_lakemerge/log" in file for file in listing(path))
    rows = LakeTable.open(path).to_arrow().sort_by([("p", "ascending"), ("k", "ascending")]).to_pylist()
    assert LakeTable.check(path).ok
    return rows, [call.path for call in store.calls if call.method == "open_output"]


@pytest.mark.parametrize("kinds", [False, True], ids=["upserts", "with deletes"])
@pytest.mark.parametrize("merger", MERGERS)
def test_a_frame_in_memory_is_not_packed_and_means_the_same(merger: str, kinds: bool, tmp_path: Path) -> None:
    given, options = records(kinds), MERGERS[merger]
    kind_column = "kind" if kinds else None
    at_once, outputs = loaded(tmp_path / "held", given, merger, kind_column, **options)
    assert not any("_lakemerge/log" in path for path in outputs)
    packed, packed_outputs = loaded(tmp_path / "packed", reader(given), merger, kind_column, **options)
    assert any("_lakemerge/log" in path for path in packed_outputs)
    assert at_once == packed
    assert len(at_once) > 4


def test_the_last_of_equal_keys_wins_across_batches(tmp_path: Path) -> None:
    """By hand: without an ordering the record that arrives last is the row."""
    LakeTable.create(tmp_path / "t", "k BIGINT, v STRING", key=["k"], merger="commit-time", buckets=2)
    parts = [[(1, "a"), (2, "b")], [(2, "c"), (3, "d")], [(1, "e")]]
    batches = [pa.RecordBatch.from_pydict({"k": [k for k, _ in part], "v": [v for _, v in part]}) for part in parts]
    LakeTable.open(tmp_path / "t").upsert(pa.Table.from_batches(batches))
    rows = LakeTable.open(tmp_path / "t").to_arrow().sort_by("k").to_pylist()
    assert rows == [{"k": 1, "v": "e"}, {"k": 2, "v": "c"}, {"k": 3, "v": "d"}]


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (Settings(merge_budget_bytes=64), frame([(k, 1, "x") for k in range(40)])),
        (Settings(target_file_bytes=32), frame([(k, 1, "x") for k in range(40)])),
        (SMALL, reader(frame([(k, 1, "x") for k in range(40)]))),
        (SMALL, frame([(k, 1, "x") for k in range(40)]).cast(NARROW)),
    ],
    ids=["a bucket larger than a merge", "a bucket larger than a file", "not in memory", "in other types"],
)  # fmt: skip
def test_more_than_may_be_held_is_packed(settings: Settings, given: object, tmp_path: Path) -> None:
    create(tmp_path / "t", buckets=2)
    table, store = open_over(tmp_path / "t", settings=settings)
    assert table.upsert(given).mode == "load"
    assert any(call.method == "open_output" and "_lakemerge/log" in call.path for call in store.calls)
    assert sorted(state_of(tmp_path / "t")) == [(k, 1, "x") for k in range(40)]


def test_another_first_writer_makes_it_an_append(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, buckets=2)

    def overtake(_call: Call) -> None:
        LakeTable.open(path).upsert(frame([(1, 9, "other"), (9, 1, "other")]))

    table, _ = open_over(path, Fault(action=overtake, method="publish", path="base/"))
    result = table.upsert(frame([(1, 10, "mine"), (2, 10, "mine")]))
    assert (result.mode, result.version, result.rows) == ("append", 2, 2)
    assert state_of(path) == [(1, 10, "mine"), (2, 10, "mine"), (9, 1, "other")]
    assert LakeTable.check(path).ok
    assert len([file for file in listing(path) if "base/" in file and file.endswith(".parquet")]) <= 2


def test_records_that_store_nothing_leave_an_empty_table(tmp_path: Path) -> None:
    """The merger ignores deletes, so there is neither a row nor a tombstone."""
    LakeTable.create(
        tmp_path / "t",
        "k BIGINT, n BIGINT",
        key=["k"],
        ordering=["n"],
        merger="first-row",
        options={"ignore_delete": True},
    )
    table = LakeTable.open(tmp_path / "t")
    assert table.upsert(pa.table({"k": [1, 2], "n": [1, 2], "op": ["-D", "-D"]}), kind_column="op").rows == 2
    assert LakeTable.open(tmp_path / "t").to_arrow().num_rows == 0
    assert LakeTable.open(tmp_path / "t").upsert(pa.table({"k": [1], "n": [5]})).mode in ("load", "append")
    assert LakeTable.open(tmp_path / "t").to_arrow().to_pylist() == [{"k": 1, "n": 5}]


def test_bad_rows_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    create(tmp_path / "t", buckets=2)
    before = listing(tmp_path / "t")
    bad = pa.table({"k": pa.array([1, None], pa.int64()), "o": [1, 1], "v": ["x", "y"]})
    with pytest.raises(FrameError, match="key column 'k' is null in 1 row"):
        LakeTable.open(tmp_path / "t").upsert(bad)
    assert listing(tmp_path / "t") == before
