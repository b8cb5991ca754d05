"""Every kind of frame that an upsert takes, through every flow, the first time and the second."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lakemerge import FrameError, LakeTable
from lakemerge.flows import auto_cdc, auto_cdc_from_snapshot, history
from tests.packages import needs_newer_arrow
from tests.unit.flows import cases as flow_cases
from tests.unit.write.frame_kinds import KINDS

Rows = list[tuple[Any, ...]]


def rows_of(table: LakeTable) -> Rows:
    return [(row["id"], row["v"]) for row in renamed(table.to_arrow().sort_by(table.key[0]))]


def history_of(table: LakeTable) -> Rows:
    rows = renamed(history(table))
    return [(row["id"], row["v"], row["__start_at"], row["__end_at"]) for row in rows]


def renamed(rows: Any) -> Any:
    return rows.rename_columns([name.lower() for name in rows.column_names]).to_pylist()


NAMES = [
    pytest.param(name, marks=needs_newer_arrow("has no functions for views of lists")) if name == "list view" else name
    for name in KINDS
]


def test_there_are_many() -> None:
    assert len(KINDS) >= 34


@pytest.mark.parametrize("name", NAMES)
def test_upserts(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    first, second, third = kind.values
    table = LakeTable.create(tmp_path / "t", f"id BIGINT, {kind.schema}", key=["id"])
    table.upsert(kind.make({"id": [1, 2, 3], "v": [first, second, third]}))
    table.upsert(kind.make({"id": [1], "v": [second]}))
    assert rows_of(table) == [(1, kind.wanted[1]), (2, kind.wanted[1]), (3, kind.wanted[2])]


@pytest.mark.parametrize("name", NAMES)
def test_events(name: str, tmp_path: Path) -> None:
    """By hand: row 1 changes, row 2 gets a late event, row 3 is deleted."""
    kind = KINDS[name]
    first, second, third = kind.values
    batches: list[dict[str, Any]] = [
        {"id": [1, 2, 3], "seq": [1, 2, 1], "op": ["put"] * 3, "v": [first, second, third]},
        {"id": [1, 2, 3], "seq": [2, 1, 2], "op": ["put", "put", "del"], "v": [second, third, first]},
    ]
    flow: dict[str, Any] = {"keys": ["id"], "sequence_by": "seq", "apply_as_deletes": "op = 'del'"}
    for batch in batches:
        auto_cdc(source=kind.make(batch), target=tmp_path / "1", except_column_list=["op"], **flow)
        auto_cdc(
            source=kind.make(batch),
            target=tmp_path / "2",
            except_column_list=["op", "seq"],
            stored_as_scd_type=2,
            **flow,
        )
    one, two, three = kind.wanted
    assert rows_of(LakeTable.open(tmp_path / "1")) == [(1, two), (2, two)]
    assert history_of(LakeTable.open(tmp_path / "2")) == [
        (1, one, 1, 2), (1, two, 2, None), (2, three, 1, 2), (2, two, 2, None), (3, three, 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_snapshots(name: str, tmp_path: Path) -> None:
    """By hand: row 1 changes, row 2 stays, row 3 goes."""
    kind = KINDS[name]
    first, second, third = kind.values
    snapshots = [{"id": [3, 1, 2], "v": [third, first, second]}, {"id": [2, 1], "v": [second, second]}]
    one, two, three = kind.wanted
    for scd_type in (1, 2):
        flow: dict[str, Any] = {"target": tmp_path / str(scd_type), "keys": ["id"], "stored_as_scd_type": scd_type}
        written = [auto_cdc_from_snapshot(source=kind.make(rows), **flow)[0].rows for rows in snapshots]
        assert written == [3, 2]
        assert auto_cdc_from_snapshot(source=kind.make(snapshots[1]), **flow)[0].rows == 0
        table = LakeTable.open(tmp_path / str(scd_type))
        if scd_type == 1:
            assert rows_of(table) == [(1, two), (2, two)]
        else:
            assert history_of(table) == [(1, one, 1, 2), (1, two, 2, None), (2, two, 1, None), (3, three, 1, 2)]


def _plain(table: pa.Table) -> pa.Table:
    return table


@pytest.mark.parametrize("name", flow_cases.CASES)
def test_cases(name: str, tmp_path: Path) -> None:
    flow_cases.run_case(tmp_path, flow_cases.CASES[name], _plain, _plain)


@pytest.mark.parametrize("name", flow_cases.REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    flow_cases.run_refused(tmp_path, name, _plain)


def test_a_value_that_does_not_fit_is_named(tmp_path: Path) -> None:
    flow: dict[str, Any] = {"target": tmp_path / "t", "keys": ["id"]}
    auto_cdc_from_snapshot(source=pa.table({"id": [1], "v": pa.array([1], pa.int8())}), **flow)
    with pytest.raises(FrameError, match="'v' is BIGINT, the table has TINYINT: 300 in row 1 does not fit"):
        auto_cdc_from_snapshot(source=pa.table({"id": [1, 2], "v": [1, 300]}), **flow)
    auto_cdc(
        source=pa.table({"id": [1], "v": pa.array([1], pa.int8())}), target=tmp_path / "e", keys="id", sequence_by="v"
    )
    with pytest.raises(FrameError, match="300 in row 1 does not fit"):
        auto_cdc(source=pa.table({"id": [1, 2], "v": [1, 300]}), target=tmp_path / "e", keys="id", sequence_by="v")


def test_entries_of_polars_for_a_map(tmp_path: Path) -> None:
    """polars has no maps, and gives those of Arrow as lists of their entries."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT, m MAP<STRING, BIGINT>", key=["id"])
    given = pa.table({"id": [1, 2, 3], "m": pa.array([[("a", 1), ("b", None)], [], None], flow_cases.MAP)})
    frame: Any = pl.from_arrow(given)
    table.upsert(frame)
    assert table.to_arrow().sort_by("id").equals(given.cast(table.schema))
    entries: dict[str, tuple[Any, str]] = {
        "twice": ([{"key": "a", "value": 1}, {"key": "a", "value": 2}], "'a' twice"),
        "a null key": ([{"key": None, "value": 1}], "a null among the keys"),
        "a null entry": ([None], "a null among the entries"),
    }
    kind = pl.List(pl.Struct({"key": pl.String, "value": pl.Int64}))
    for value, told in entries.values():
        with pytest.raises(FrameError, match=told):
            table.upsert(pl.DataFrame({"id": [1], "m": pl.Series([value], dtype=kind)}))
    with pytest.raises(FrameError, match="'m' is large_list"):
        table.upsert(pl.DataFrame({"id": [1], "m": [[{"k": "a", "v": 1}]]}))


@needs_newer_arrow("knows no UUIDs of pandas")
def test_uuids_are_text_or_bytes(tmp_path: Path) -> None:
    ids = [uuid.uuid5(uuid.NAMESPACE_URL, str(number)) for number in range(5)]
    given = pd.DataFrame({"id": ids, "n": range(5)})  # pyarrow makes its UUIDs of them
    text = LakeTable.create(tmp_path / "t", pa.schema([("id", pa.uuid()), ("n", pa.int64())]), key=["id"])
    raw = LakeTable.create(tmp_path / "b", "id BINARY, n BIGINT", key=["id"])
    for table, form in ((text, str), (raw, lambda one: one.bytes)):
        table.upsert(given)
        table.upsert(given[2:4])
        found = table.to_arrow().sort_by("n").column("id").to_pylist()
        assert found == [form(one) for one in ids]
        assert table.get({"id": ids[3]}) == {"id": form(ids[3]), "n": 3}
        assert table.get([{"id": one} for one in ids[1:3]]).num_rows == 2
        assert table.delete(given[["id"]][:2]).rows == 2
        assert table.to_arrow().num_rows == 3


def test_a_new_column_of_uuids_is_added_as_text(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"])
    table.upsert(pa.table({"id": [1], "u": pa.array([uuid.UUID(int=1).bytes], pa.uuid())}), merge_schema=True)
    assert table.to_arrow().to_pylist() == [{"id": 1, "u": "00000000-0000-0000-0000-000000000001"}]
