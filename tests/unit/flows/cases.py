"""Snapshots and events that both engines take up: the frames, and what comes of them by hand.

Frames are Arrow tables. Without Spark they are taken as they are; on Spark they become DataFrames.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakemerge import FrameError, LakeTable
from lakemerge.flows import auto_cdc_from_snapshot, history

__all__ = ["CASES", "REFUSED", "Case", "run_case", "run_refused"]

Frame = Callable[[pa.Table], Any]
"""Makes an engine's frame of a table."""
Rows = list[tuple[Any, ...]]

MAP = pa.map_(pa.string(), pa.int64())
NESTED = pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int64()))), ("n.o", pa.int64())])
MAPS: list[Any] = [[("a", 1)], [("a", 1), ("b", None)], [("a", 1), ("b", 2)]]
STRUCTS: list[Any] = [{"m": [("a", [1])], "n.o": 1}, {"m": [("a", [1])], "n.o": 1}, {"m": [("a", [2])], "n.o": 1}]
NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
DAY = pa.array([NOON] * 2, pa.timestamp("us", "UTC"))
STEPS = pa.array([Decimal("0.15"), Decimal("1.5e-10")], pa.decimal128(38, 18))
ODD = "id price fee note"
MANY = "at the.step c`d'e m a.b s"


@dataclass(frozen=True, slots=True)
class Case:
    """Two snapshots, one after the other."""

    first: pa.Table
    second: pa.Table
    written: int
    """How many records the second one writes."""
    rows: Rows
    """The present rows after it."""
    ended: Rows
    """The rows of the history that ended with it."""
    keys: Sequence[str] = ("id",)


def table(*columns: Any, names: str) -> pa.Table:
    kinds = {"m": MAP, "s": NESTED}
    named = list(zip(names.split(), columns, strict=True))
    arrays = [one if isinstance(one, pa.Array) else pa.array(one, kinds.get(name)) for name, one in named]
    return pa.table(arrays, names=[name for name, _ in named])


NOTED = table([1, 2, 3], [10, 20, 30], ["a", "b", "c"], names="id price note")
NARROW = NOTED.set_column(1, "price", pa.array([10, 20, 30], pa.int32()))
CASES: dict[str, Case] = {
    "a column is not there, and keys come and go": Case(
        NOTED,
        table([2, 3, 4], ["B", "c", "d"], names="id note"),
        3,
        [(2, 20, "B"), (3, 30, "c"), (4, None, "d")],
        [(1, 10, "a"), (2, 20, "b")],
    ),
    "only keys": Case(NOTED, table([1, 3], names="id"), 1, [(1, 10, "a"), (3, 30, "c")], [(2, 20, "b")]),
    "no rows": Case(NOTED, NOTED.slice(0, 0), 3, [], [(1, 10, "a"), (2, 20, "b"), (3, 30, "c")]),
    "the same rows": Case(NOTED, NOTED.slice(0), 0, [(1, 10, "a"), (2, 20, "b"), (3, 30, "c")], []),
    "another case, another order, other types": Case(
        table([1, 2], [10, 20], pa.array([Decimal("1.50"), None], pa.decimal128(20, 4)), ["a", "b"], names=ODD),
        table(
            pa.array([Decimal("1.5"), None], pa.decimal128(9, 1)),
            pa.array([10, 21], pa.int16()),
            ["a", "b"],
            pa.array([1, 2], pa.int32()),
            names="FEE Price note ID",
        ),
        1,
        [(1, 10, Decimal("1.5000"), "a"), (2, 21, None, "b")],
        [(2, 20, None, "b")],
    ),
    "values, keys and names of many kinds": Case(
        table(DAY, STEPS, ["x", "y"], MAPS[:2], ["a", "b"], STRUCTS[:2], names=MANY),
        table(DAY, STEPS, ["x", "y"], MAPS[:1] + MAPS[2:], ["a", "b"], STRUCTS[:1] + STRUCTS[2:], names=MANY),
        1,
        [
            (NOON, Decimal("0.15"), "x", [("a", 1)], "a", STRUCTS[0]),
            (NOON, Decimal("1.5e-10"), "y", [("a", 1), ("b", 2)], "b", STRUCTS[2]),
        ],
        [(NOON, Decimal("1.5e-10"), "y", [("a", 1), ("b", None)], "b", STRUCTS[1])],
        ["the.step", "at"],
    ),
    "a column of nulls": Case(
        NOTED,
        table([1, 2, 3], [10, 20, 30], pa.nulls(3), names="id price note"),
        3,
        [(1, 10, None), (2, 20, None), (3, 30, None)],
        [(1, 10, "a"), (2, 20, "b"), (3, 30, "c")],
    ),
}


def run_case(folder: Path, case: Case, first: Frame, second: Frame) -> None:
    """Take both snapshots up, as present rows and as a history, and compare with what is right. The engine of the first
    one may be another."""
    for scd_type in (1, 2):
        target = folder / str(scd_type)
        for frame in (first(case.first), second(case.second)):
            (result,) = auto_cdc_from_snapshot(source=frame, target=target, keys=case.keys, stored_as_scd_type=scd_type)
        assert result.rows == case.written
        there = LakeTable.open(target)
        names = case.first.column_names
        if scd_type == 1:
            assert shown(there.to_arrow(columns=names)) == case.rows
            continue
        rows = history(there)
        assert shown(rows.filter(rows.column("__END_AT").is_null()).select(names)) == case.rows
        assert shown(rows.filter(rows.column("__END_AT").is_valid()).select(names)) == case.ended


def shown(rows: pa.Table) -> Rows:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=lambda row: str(row[:2]))


REFUSED: dict[str, tuple[pa.Table, str]] = {
    "a key twice": (table([1, 1], [10, 20], names="id price"), "a key occurs twice in the snapshot; id must identify"),
    "a key that is null": (table([1, None], [10, 20], names="id price"), "key column 'id' is null in 1 row"),
    "a new column": (
        table([1], [10], ["x"], names="id price nota"),
        r"the table has no column 'nota': leave it out of the source, or add it .*did you mean 'note'\?",
    ),
    "another type": (
        table([1], ["10"], names="id price"),
        "column 'price' is STRING, the table's is INT: cast it first",
    ),
    "a value that does not fit": (
        table([1, 2], [10, 2**40], names="id price"),
        "'price' is BIGINT, the table has INT: 1099511627776 in row [01] does not fit",
    ),
}


def run_refused(folder: Path, name: str, frame: Frame, scd_types: Sequence[int] = (1, 2)) -> None:
    """A second snapshot that is refused changes nothing."""
    snapshot, told = REFUSED[name]
    for scd_type in scd_types:
        flow: dict[str, Any] = {"target": folder / str(scd_type), "keys": ["id"], "stored_as_scd_type": scd_type}
        auto_cdc_from_snapshot(source=NARROW, **flow)
        try:
            auto_cdc_from_snapshot(source=frame(snapshot), **flow)
        except FrameError as error:
            found = error.message
        else:
            raise AssertionError("it was taken up")
        assert re.search(told, found), found
        assert LakeTable.open(folder / str(scd_type)).version == 1
