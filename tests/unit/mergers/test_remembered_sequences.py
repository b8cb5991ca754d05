"""What `partial-update` remembers of a removed row: through files, compactions, expiry and changes of the merger."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable

DDL = "k BIGINT, price BIGINT, at BIGINT, stock BIGINT, stock_at BIGINT"
GROUPS: dict[str, Any] = {"sequence_groups": {"at": ["price"], "stock_at": ["stock"]}}
REMOVING = GROUPS | {"remove_record_on_sequence_group": ["at"]}


def create(path: Path, options: dict[str, Any], **more: Any) -> LakeTable:
    return LakeTable.create(path, DDL, key=["k"], merger="partial-update", options=options, buckets=1, **more)


def put(table: LakeTable, op: str, **values: int | None) -> None:
    columns = {name: pa.array([value], pa.int64()) for name, value in {"k": 1, **values}.items()}
    table.upsert(pa.table({**columns, "op": [op]}), kind_column="op")


def remembered(table: LakeTable) -> list[str]:
    return list(table.opened.view.config.remembers)


STEPS: dict[str, tuple[str, dict[str, int | None]]] = {
    "insert": ("+U", {"price": 5, "at": 10}),
    "late": ("+U", {"price": 8, "at": 20, "stock": 1, "stock_at": 9}),
    "delete": ("-D", {"at": 30}),
}


@pytest.mark.parametrize("compact", [None, "full", "minor", "logs"])
@pytest.mark.parametrize("order", [*itertools.permutations(STEPS)], ids="-".join)
def test_the_order_of_arrival_does_not_matter(order: tuple[str, ...], compact: str | None, tmp_path: Path) -> None:
    """Whenever it comes, the delete is newer than both records."""
    table = create(tmp_path, REMOVING)
    for name in order:
        kind, values = STEPS[name]
        put(table, kind, **values)
        if compact == "logs":
            table.compact_logs()
        elif compact is not None:
            table.compact(minor=compact == "minor")
    assert table.to_arrow().num_rows == 0
    put(table, "+U", price=9, at=30)
    assert table.get({"k": 1}) == {
        "k": 1,
        "price": 9,
        "at": 30,
        "stock": None,
        "stock_at": 9 if "late" in order else None,
    }
    assert LakeTable.check(tmp_path).findings == ()


def test_a_column_of_another_group_sees_no_removed_row(tmp_path: Path) -> None:
    """Each column alone: whether there is a row depends on all sequences, whatever is asked for."""
    table = create(tmp_path, REMOVING)
    put(table, "+U", price=5, at=10, stock=1, stock_at=1)
    put(table, "-D", at=30)
    table.compact()
    put(table, "+U", stock=2, stock_at=2, price=8, at=20)
    for name in ("k", "price", "stock", "stock_at"):
        assert table.to_arrow(columns=[name]).num_rows == 0
    put(table, "+U", stock=3, stock_at=3)
    assert table.to_arrow(columns=["stock"]).to_pylist() == [{"stock": 3}]


def test_an_expiry_forgets_them(tmp_path: Path) -> None:
    table = create(tmp_path, REMOVING)
    put(table, "+U", price=5, at=10)
    put(table, "-D", at=30)
    table.compact()
    table.expire_tombstones(retention=dt.timedelta(0))
    put(table, "+U", price=8, at=20)
    assert table.get({"k": 1}) == {"k": 1, "price": 8, "at": 20, "stock": None, "stock_at": None}


def test_other_groups_and_other_mergers_after_a_delete(tmp_path: Path) -> None:
    table = create(tmp_path, REMOVING)
    assert remembered(table) == ["at", "stock_at"]
    put(table, "+U", price=5, at=10)
    put(table, "-D", at=30, stock_at=7)
    table.compact()
    table.alter(options={"sequence_groups": {"stock_at": ["stock"]}, "remove_record_on_sequence_group": ["stock_at"]})
    assert remembered(table) == ["stock_at"]
    put(table, "+U", price=8, at=20, stock=1, stock_at=6)
    assert table.to_arrow().num_rows == 0, "the sequence that both know"
    table.compact()
    table.alter(options=REMOVING)
    put(table, "+U", price=8, at=20)
    assert table.get({"k": 1}) == {"k": 1, "price": 8, "at": 20, "stock": None, "stock_at": 7}, "the other was let go"
    table.compact()
    table.alter(merger="commit-time", options={})
    assert remembered(table) == []
    assert "lakemerge.tombstoneColumns" not in table.opened.view.snapshot.metadata.configuration
    put(table, "+U", price=1)
    assert table.get({"k": 1}, columns=["price"]) == {"price": 1}


def test_what_explain_says(tmp_path: Path) -> None:
    table = create(tmp_path, REMOVING)
    put(table, "+U", price=5, at=10)
    put(table, "-D", at=30)
    put(table, "+U", price=8, at=20)
    words = [step.words for step in table.explain({"k": 1}, since=0).steps]
    assert words[1] == "deleted: the row is gone, and at 30, stock_at null is remembered"
    assert words[2] == "ignored: the key was deleted in version 2"
    assert table.what_if(options=GROUPS, since=0).get({"k": 1}) == {
        "k": 1, "price": None, "at": 30, "stock": None, "stock_at": None
    }  # fmt: skip
