"""Sorting, grouping and searching by key against Python's sort and bisect."""

from __future__ import annotations

import bisect
import datetime as dt
import random
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest

from mergers.keys import group_starts, key_columns, locate, sort_order

_at = dt.datetime.fromisoformat
LOW, HIGH = -(2**63), 2**63 - 1

KEYS: dict[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    "int": ([pa.int32()], [(3,), (-1,), (2**31 - 1,), (-(2**31),), (0,)]),
    "long of the whole range": ([pa.int64()], [(HIGH,), (LOW,), (0,), (-1,), (HIGH - 1,)]),
    "string": ([pa.string()], [("b",), ("",), ("a",), ("é",), ("\U0001f600",), ("\uffff",), ("ab",)]),
    "binary": ([pa.binary()], [(b"\xff",), (b"",), (b"\x7f",), (b"\x80",)]),
    "bool": ([pa.bool_()], [(True,), (False,)]),
    "date": ([pa.date32()], [(dt.date(1960, 1, 1),), (dt.date(2026, 1, 1),), (dt.date(1970, 1, 1),)]),
    "timestamp": ([pa.timestamp("us")], [(_at("1969-12-31T23:00"),), (_at("2026-01-01T00:00:00.000007"),)]),
    "small decimal": ([pa.decimal128(18, 3)], [(Decimal("1.500"),), (Decimal("-2.000"),), (Decimal("0.001"),)]),
    "large decimal": ([pa.decimal128(38, 0)], [(Decimal(10) ** 37,), (-(Decimal(10) ** 37),), (Decimal(2**64),)]),
    "packed": ([pa.int32(), pa.date32()], [(a, dt.date(2026, 1, d)) for a in (2, -5, 0) for d in (3, 1)]),
    "too wide to pack": ([pa.int64(), pa.int64()], [(a, b) for a in (LOW, HIGH, 0) for b in (HIGH, LOW, 5)]),
    "just too wide": ([pa.int64(), pa.int64()], [(a, b) for a in (0, 2**31) for b in (2**32 - 1, 0, 7)]),
    "just packed": ([pa.int64(), pa.int64()], [(a, b) for a in (0, 2**31 - 2) for b in (2**32 - 1, 0, 7)]),
    "mixed": ([pa.int64(), pa.string()], [(a, b) for a in (2, HIGH, LOW) for b in ("b", "", "a")]),
    "three": (
        [pa.string(), pa.bool_(), pa.binary()],
        [(a, b, c) for a in "ba" for b in (True, False) for c in (b"", b"x")],
    ),
}


def columns_of(kinds: list[pa.DataType], rows: list[tuple[Any, ...]]) -> tuple[pa.Array, ...]:
    """With an offset, as parts of larger tables have."""
    padded = [rows[0], *rows] if rows else []
    return tuple(pa.array([row[i] for row in padded], kind)[1:] for i, kind in enumerate(kinds))


@pytest.mark.parametrize("name", KEYS)
def test_sorting_is_stable_and_groups_are_found(name: str) -> None:
    kinds, keys = KEYS[name]
    rows = keys * 3
    random.Random(7).shuffle(rows)
    order = sort_order(columns_of(kinds, rows)).tolist()
    assert order == sorted(range(len(rows)), key=rows.__getitem__)
    ordered = [rows[i] for i in order]
    starts = group_starts(columns_of(kinds, ordered)).tolist()
    assert starts == [next(group)[0] for _, group in groupby(enumerate(ordered), key=lambda pair: pair[1])]
    assert len(starts) == len(keys)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("every", [1, 2, 100])
def test_locate(name: str, every: int) -> None:
    """A haystack of all keys, of every second one, of one alone; all keys are sought in it."""
    kinds, keys = KEYS[name]
    stack = sorted(keys)[::every]
    positions, found = locate(columns_of(kinds, stack), columns_of(kinds, keys))
    assert positions.tolist() == [bisect.bisect_left(stack, key) for key in keys]
    assert found.tolist() == [key in stack for key in keys]


@pytest.mark.parametrize("name", KEYS)
def test_nothing_to_sort_and_nothing_to_search(name: str) -> None:
    kinds, keys = KEYS[name]
    none, some = columns_of(kinds, []), columns_of(kinds, keys)
    assert sort_order(none).tolist() == group_starts(none).tolist() == []
    positions, found = locate(none, some)
    assert (positions.tolist(), found.tolist()) == ([0] * len(keys), [False] * len(keys))
    assert [part.tolist() for part in locate(columns_of(kinds, sorted(keys)), none)] == [[], []]


def test_key_columns_are_contiguous() -> None:
    table = pa.concat_tables([pa.table({"a": [1], "b": ["x"]}), pa.table({"a": [2], "b": ["y"]})])
    columns = key_columns(table, ["b", "a"])
    assert [column.to_pylist() for column in columns] == [["x", "y"], [1, 2]]
    assert [column.to_pylist() for column in key_columns(table.slice(1), ["a"])] == [[2]]
    assert key_columns(table.slice(0, 0), ["a"])[0].to_pylist() == []
