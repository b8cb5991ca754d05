"""Neighbours of one commit become one record under mergers that unite. Every answer is as if they were apart."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, RowKind, Settings
from lakemerge.format.names import KIND_COLUMN, RECORDS_COLUMN

DDL = "id BIGINT, n INT, lo INT, hi INT, l STRING, f STRING, ok BOOLEAN, any BOOLEAN, ln STRING, fn STRING"
FUNCTIONS = {
    "n": "sum",
    "lo": "min",
    "hi": "max",
    "l": "last_value",
    "f": "first_value",
    "ok": "bool_and",
    "any": "bool_or",
    "ln": "last_non_null_value",
    "fn": "first_non_null_value",
}
Row = dict[str, Any]


def counters(folder: Path, ddl: str = "id BIGINT, n BIGINT", **given: Any) -> LakeTable:
    """A table that has its first rows, so that later records go to logs."""
    options = {"aggregates": given.pop("functions", {"n": "sum"}), **given.pop("options", {})}
    table = LakeTable.create(folder / "t", ddl, key=["id"], merger="aggregate", options=options, buckets=1, **given)
    table.upsert(pa.table({"id": [0], "n": [0]}))
    return table


def increments(count: int, key: int = 1) -> pa.Table:
    return pa.table({"id": [key] * count, "n": [1] * count})


def test_a_thousand_increments_are_one_record(tmp_path: Path) -> None:
    table = counters(tmp_path)
    table.upsert(increments(1_000))
    assert table.detail().log_rows == 1
    (file,) = (tmp_path / "t/_lakemerge/log").glob("*.parquet")
    assert pq.read_table(file).to_pylist() == [{"id": 1, "n": 1_000, RECORDS_COLUMN: 1_000}]
    assert table.history()[0].metrics["numUnitedRecords"] == "999"
    assert table.history()[0].metrics["numSourceRows"] == "1000"
    table.upsert(increments(3))
    table.upsert(increments(1))
    assert table.detail().log_rows == 3
    assert table.get({"id": 1}) == {"id": 1, "n": 1_004}
    changes = table.changes(since=table.version - 2, until=table.version - 1).read_all()
    assert changes.select(["_row_kind", "n"]).to_pylist() == [
        {"_row_kind": "-U", "n": 1_000},
        {"_row_kind": "+U", "n": 1_003},
    ]
    table.compact_logs(size_ratio=math.inf)
    assert table.detail().log_rows == 3
    first, second, third = (step.words for step in table.explain({"id": 1}).steps)
    assert first.endswith("(one record for 1,000 of its commit)")
    assert second.endswith("(one record for 3 of its commit)")
    assert "one record" not in third
    notes = [note for note in table.what_if("commit-time", since=0).notes if "stand for several" in note]
    assert [note.split(" are not")[0] for note in notes] == ["999 records of version 2", "2 records of version 3"]
    assert all("stand for several" in note for note in table.replay(tmp_path / "again", "commit-time").notes[-2:])
    assert not LakeTable.check(table.url).findings
    table.compact()
    assert table.get({"id": 1}) == {"id": 1, "n": 1_004}


@pytest.mark.parametrize(("kinds", "first"), [(["+I", "+U"], RowKind.INSERT), (["+U", "+I"], RowKind.UPDATE_AFTER)])
def test_a_united_record_has_the_kind_of_the_first(kinds: list[str], first: RowKind, tmp_path: Path) -> None:
    """Another key's delete makes the file one that has kinds."""
    table = counters(tmp_path, options={"remove_record_on_delete": True})
    frame = pa.table({"id": [1, 1, 2], "n": [1, 2, None], "_op": [*kinds, "-D"]})
    table.upsert(frame, kind_column="_op")
    (file,) = (tmp_path / "t/_lakemerge/log").glob("*.parquet")
    told = {row["id"]: row for row in pq.read_table(file).to_pylist()}
    assert told[1] == {"id": 1, "n": 3, KIND_COLUMN: first, RECORDS_COLUMN: 2}


def test_consolidated_logs_keep_how_many(tmp_path: Path) -> None:
    table = counters(tmp_path)
    for count in (5, 7):
        table.upsert(increments(count))
    table.compact_logs(size_ratio=math.inf)
    newest = max((tmp_path / "t/_lakemerge/log").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    assert pq.read_table(newest).column(RECORDS_COLUMN).to_pylist() == [5, 7]
    assert pq.read_table(newest).column("n").to_pylist() == [5, 7]


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_records_that_were_written_apart(tmp_path: Path, seed: int) -> None:
    """Against a fold in plain Python, with deletes between, columns that frames lack, and compactions at
    random."""
    rng = random.Random(seed)
    options = {"aggregates": FUNCTIONS, "remove_record_on_delete": True}
    rows: dict[int, Row] = {}
    table = LakeTable.create(
        tmp_path / "t",
        DDL,
        key=["id"],
        merger="aggregate",
        options=options,
        buckets=2,
        settings=Settings(write_budget_bytes=rng.choice([1, 2_000, 2**27])),
    )
    for _ in range(6):
        names = ["id", *sorted(rng.sample(sorted(FUNCTIONS), rng.randint(3, 9)))]
        records = [
            ({name: value(rng, name) for name in names}, rng.choice(["+U", "+I", "+U", "-D"])) for _ in range(30)
        ]
        for record, kind in records:
            apply(rows, record, kind)
        frame = pa.Table.from_pylist(
            [record for record, _ in records], pa.schema([table.schema.field(n) for n in names])
        )
        table.upsert(frame.append_column("_op", pa.array([kind for _, kind in records])), kind_column="_op")
        if rng.random() < 0.4:
            if rng.random() < 0.5:
                table.compact_logs(size_ratio=math.inf)
            else:
                table.compact(minor=True)
        assert {row["id"]: row for row in table.to_arrow().to_pylist()} == rows


def value(rng: random.Random, name: str) -> Any:
    if name == "id":
        return rng.randrange(6)
    if rng.random() < 0.2:
        return None
    kinds = {"n": lambda: rng.randint(-60, 60), "lo": lambda: rng.randrange(99), "hi": lambda: rng.randrange(99)}
    kinds |= dict.fromkeys(("ok", "any"), lambda: rng.random() < 0.5)
    return kinds.get(name, lambda: rng.choice("abcdef"))()


def apply(rows: dict[int, Row], record: Mapping[str, Any], kind: str) -> None:
    """One record after the other, in plain Python."""
    key = record["id"]
    if kind == "-D":
        rows.pop(key, None)
        return
    old = rows.get(key)
    row: Row = {"id": key} | (dict.fromkeys(FUNCTIONS) if old is None else {n: old[n] for n in FUNCTIONS})
    for name, new in record.items():
        if name == "id":
            continue
        known = None if old is None else old[name]
        row[name] = folded(FUNCTIONS[name], known, new, set_before=old is not None)
    rows[key] = row


def folded(function: str, known: Any, new: Any, *, set_before: bool) -> Any:
    if function == "last_value":
        return new
    if function == "first_value":
        return known if set_before else new
    if known is None or new is None:
        return new if known is None else known
    return {
        "sum": lambda: known + new,
        "min": lambda: min(known, new),
        "max": lambda: max(known, new),
        "bool_and": lambda: known and new,
        "bool_or": lambda: known or new,
        "last_non_null_value": lambda: new,
        "first_non_null_value": lambda: known,
    }[function]()


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"functions": {"n": "count"}}, 100),
        ({"functions": {"n": "product"}}, 100),
        ({"functions": {"n": "sum"}, "ordering": ["at"], "ddl": "id BIGINT, n BIGINT, at BIGINT"}, 100),
        ({"ddl": "id BIGINT, n DOUBLE"}, 100),
        ({"properties": {"lakemerge.recordRetention": "interval 1 day"}}, 100),
        ({"properties": {"lakemerge.recordRetention": "interval 0 days"}}, 1),
        ({"functions": {"n": "min"}}, 1),
    ],
    ids=["count", "product", "ordering", "floats", "retention", "no-retention", "min"],
)
def test_what_is_united(tmp_path: Path, given: dict[str, Any], left: int) -> None:
    ddl = given.pop("ddl", "id BIGINT, n BIGINT")
    if "ordering" in given:
        table = LakeTable.create(
            tmp_path / "t", ddl, key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}, ordering=["at"]
        )
        table.upsert(pa.table({"id": [0], "n": [0], "at": [0]}))
        table.upsert(increments(100).append_column("at", pa.array(range(100))))
    else:
        table = counters(tmp_path, ddl, **given)
        table.upsert(increments(100).cast(table.schema))
    assert table.detail().log_rows == left
    assert ("numUnitedRecords" in table.history()[0].metrics) == (left == 1)


def test_sums_that_do_not_fit_stay_apart(tmp_path: Path) -> None:
    table = counters(tmp_path, "id BIGINT, n TINYINT")
    table.upsert(pa.table({"id": [1], "n": pa.array([-100], pa.int8())}))
    ids: Sequence[int] = [1, 1, 2, 2, 3, 3]
    table.upsert(pa.table({"id": ids, "n": pa.array([100, 100, 1, 2, 127, 1], pa.int8())}))
    assert table.detail().log_rows == 1 + 2 + 1 + 2
    assert table.get({"id": 1}) == {"id": 1, "n": 100}
    assert table.get({"id": 2}) == {"id": 2, "n": 3}
    table.upsert(pa.table({"id": [3], "n": pa.array([-1], pa.int8())}))
    assert table.get({"id": 3}) == {"id": 3, "n": 127}
