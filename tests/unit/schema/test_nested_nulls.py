"""Structs that are null though their fields are NOT NULL: a frame may lack them, and so may rows from before they were
added. Expected rows by hand."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.schema.nested import settled

INNER = pa.struct([pa.field("y", pa.string(), nullable=False), pa.field("z", pa.int8())])
EVERY = pa.struct(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
            "int": pa.int32(),
            "text": pa.string(),
            "flag": pa.bool_(),
            "money": pa.decimal128(9, 2),
            "list": pa.list_(pa.int8()),
            "map": pa.map_(pa.string(), pa.int8()),
            "struct": INNER,
        }.items()
    ]
    + [pa.field("maybe", INNER)]
)
ROW: dict[str, Any] = {
    "int": 1, "text": "a", "flag": True, "money": Decimal("1.50"), "list": [1, 2], "map": [("k", 1)],
    "struct": {"y": "u", "z": None}, "maybe": {"y": "w", "z": 2},
}  # fmt: skip
FULL = pa.array([ROW, ROW | {"maybe": None}, ROW], EVERY)


@pytest.mark.parametrize(
    "array",
    [
        pa.nulls(4, EVERY),
        FULL.take(pa.array([0, None, 1, None, 2])),
        pa.concat_arrays([pa.nulls(2, EVERY), FULL]).slice(1, 3),
        pc.if_else(pa.array([True, False, True]), FULL, pa.nulls(3, EVERY)),
        FULL,
    ],
    ids=["nulls", "take", "concat and bucket", "if_else", "no nulls"],
)
def test_settled_rows_are_the_same_and_can_be_cast_and_written(array: pa.Array, tmp_path: Path) -> None:
    rows = pa.table({"s": array})
    found = settled(rows)
    found.validate(full=True)
    assert found.schema == rows.schema
    assert found.column("s").to_pylist() == array.to_pylist()
    pq.write_table(found.cast(found.schema), tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").column("s").to_pylist() == array.to_pylist()


DDL = "id INT, v INT, s STRUCT<x: INT NOT NULL, t: STRING NOT NULL>"
S = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("t", pa.string(), nullable=False)])


def frame(rows: list[dict[str, Any]], *names: str) -> pa.Table:
    types = {"id": pa.int32(), "v": pa.int32(), "s": S}
    return pa.table({name: pa.array([row.get(name) for row in rows], types[name]) for name in names})


def rows_of(table: LakeTable) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


def lacked(path: Path) -> tuple[LakeTable, list[dict[str, Any]]]:
    table = LakeTable.create(path, DDL, key=["id"], buckets=2, settings=Settings(row_group_rows=2))
    first = {"id": 1, "v": 7, "s": {"x": 1, "t": "a"}}
    table.upsert(frame([first, {"id": 3, "v": 8, "s": None}], "id", "v", "s"))
    table.upsert(frame([{"id": 2, "v": 1}], "id", "v"))
    return table, [first, {"id": 2, "v": 1, "s": None}, {"id": 3, "v": 8, "s": None}]


def lacked_at_first(path: Path) -> tuple[LakeTable, list[dict[str, Any]]]:
    table = LakeTable.create(path, DDL, key=["id"])
    table.upsert(frame([{"id": 2, "v": 1}], "id", "v"))
    table.upsert(frame([{"id": 3, "v": 2, "s": {"x": 3, "t": "c"}}], "id", "v", "s"))
    return table, [{"id": 2, "v": 1, "s": None}, {"id": 3, "v": 2, "s": {"x": 3, "t": "c"}}]


def added_later(path: Path) -> tuple[LakeTable, list[dict[str, Any]]]:
    table = LakeTable.create(path, "id INT, v INT", key=["id"])
    table.upsert(frame([{"id": 1, "v": 5}, {"id": 2, "v": 6}], "id", "v"))
    table.alter(add_columns="s STRUCT<x: INT NOT NULL, t: STRING NOT NULL>")
    table.upsert(frame([{"id": 2, "v": 9, "s": {"x": 2, "t": "b"}}], "id", "v", "s"))
    return table, [{"id": 1, "v": 5, "s": None}, {"id": 2, "v": 9, "s": {"x": 2, "t": "b"}}]


def set_to_null(path: Path) -> tuple[LakeTable, list[dict[str, Any]]]:
    options = {"remove_record_on_delete": True}
    table = LakeTable.create(path, DDL, key=["id"], merger="partial-update", options=options)
    table.upsert(frame([{"id": 1, "v": 5, "s": {"x": 1, "t": "a"}}, {"id": 2, "v": 6}], "id", "v", "s"))
    table.upsert(frame([{"id": 2, "v": 9}], "id", "v", "s"))
    return table, [{"id": 1, "v": 5, "s": {"x": 1, "t": "a"}}, {"id": 2, "v": 9, "s": None}]


@pytest.mark.parametrize("make", [lacked, lacked_at_first, added_later, set_to_null])
def test_a_struct_that_rows_lack_is_null(
    make: Callable[[Path], tuple[LakeTable, list[dict[str, Any]]]], tmp_path: Path
) -> None:
    table, expected = make(tmp_path / "t")
    assert rows_of(table) == expected
    assert [table.get({"id": row["id"]}) for row in expected] == expected
    assert table.to_arrow(filter="id = 2", columns=["s"]).to_pylist() == [
        {"s": r["s"]} for r in expected if r["id"] == 2
    ]
    told = {row["id"]: row["s"] for row in table.changes(0).read_all().to_pylist() if row["_row_kind"][0] == "+"}
    assert told == {row["id"]: row["s"] for row in expected}
    table.compact(minor=True)
    assert rows_of(table) == expected
    table.upsert(frame([{"id": 9, "v": 0}], "id", "v"))
    table.delete(frame([{"id": 9}], "id"))
    assert rows_of(table) == expected
    table.compact_logs()
    table.compact()
    assert rows_of(table) == expected
    assert LakeTable.check(table.url).findings == ()
