"""The kernel on inputs small enough to fold by hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from mergers import CommitTime, EventTime, Folded, Frame, Groups, Merged, Merger, RowKind, TableShape, fold
from mergers.builtin.delete_when import DeleteWhen
from mergers.errors import MergerContractError
from mergers.kernel import VERSION_COLUMN, combine, overlay_rows, tombstone_schema

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("o", pa.int64()), ("a", pa.string()), ("b", pa.string())]
)
SHAPE = TableShape(SCHEMA, ("k",), ("o",))
PLAIN = pa.schema([field.with_nullable(True) for field in SCHEMA])
SYMBOLS = {kind.symbol: kind for kind in RowKind}
BASE = [(1, 5, "a1", "b1"), (3, 5, "a3", "b3"), (5, 5, "a5", "b5")]


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = PLAIN) -> pa.Table:
    return pa.Table.from_arrays([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)


def tombs(*rows: tuple[int, int, int]) -> pa.Table:
    """(key, ordering, version)"""
    return table_of(rows, tombstone_schema(SHAPE))


def frame_of(
    rows: Sequence[tuple[Any, ...]], columns: str = "koab", *, kinds: Sequence[str] | None = None, version: int = 9
) -> Frame:
    schema = pa.schema([PLAIN.field(name) for name in columns])
    codes = None if kinds is None else np.array([SYMBOLS[kind] for kind in kinds], dtype=np.int8)
    return Frame(table_of(rows, schema), codes, version)


def folded(
    *frames: Frame,
    base: Sequence[tuple[Any, ...]] = BASE,
    tombstones: pa.Table | None = None,
    merger: Merger | None = None,
    columns: Sequence[str] = ("k", "o", "a", "b"),
) -> Folded:
    stored = tombs() if tombstones is None else tombstones
    used = EventTime() if merger is None else merger
    return fold(used, SHAPE, base=table_of(base), tombstones=stored, frames=frames, columns=columns)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_winners_stand_where_their_key_belongs() -> None:
    """New keys before, between and after the base rows; one base row superseded."""
    result = folded(frame_of([(6, 1, "n6", ""), (0, 1, "n0", ""), (3, 5, "n3", ""), (2, 1, "n2", "")]))
    assert rows(result.rows) == [(0, 1, "n0", ""), (2, 1, "n2", ""), (3, 5, "n3", ""), (6, 1, "n6", "")]
    assert result.superseded.tolist() == [1]
    assert result.insert_at.tolist() == [0, 1, 1, 3]
    assert result.tombstones.num_rows == 0
    merged = overlay_rows(table_of(BASE), result, ["k", "a"], sort=True)
    assert rows(merged) == [(0, "n0"), (1, "a1"), (2, "n2"), (3, "n3"), (5, "a5"), (6, "n6")]
    unsorted = overlay_rows(table_of(BASE), result, ["k", "a"], sort=False)
    assert sorted(rows(unsorted)) == rows(merged)


def test_a_stored_row_that_wins_is_not_touched() -> None:
    result = folded(frame_of([(1, 4, "stale", ""), (3, 4, "stale", "")]))
    assert (result.superseded.tolist(), result.rows.num_rows) == ([], 0)
    base = table_of(BASE)
    assert overlay_rows(base, result, ["k", "o", "a", "b"], sort=True).equals(base)


def test_of_equal_orderings_the_later_record_wins() -> None:
    result = folded(
        frame_of([(1, 5, "first", ""), (1, 5, "second", "")]), frame_of([(3, 5, "x", "")]), frame_of([(3, 5, "y", "")])
    )
    assert rows(result.rows) == [(1, 5, "second", ""), (3, 5, "y", "")]


def test_no_frames_and_empty_frames() -> None:
    for result in (folded(), folded(frame_of([])), folded(base=[]), folded(frame_of([]), base=[])):
        assert (result.superseded.tolist(), result.insert_at.tolist()) == ([], [])
        assert (result.rows.num_rows, result.tombstones.num_rows) == (0, 0)
        assert result.rows.column_names == ["k", "o", "a", "b"]


def test_only_log_records() -> None:
    result = folded(frame_of([(2, 1, "x", None)]), base=[])
    assert rows(overlay_rows(table_of([]), result, ["k", "b"], sort=True)) == [(2, None)]


def test_deletes_leave_tombstones_that_hold() -> None:
    """A newer delete removes; an older one does not; one onto nothing is remembered all the same."""
    result = folded(frame_of([(1, 6, "", ""), (3, 4, "", ""), (9, 2, "", "")], kinds=["-D"] * 3, version=12))
    assert result.superseded.tolist() == [0]
    assert result.rows.num_rows == 0
    assert rows(result.tombstones) == [(1, 6, 12), (9, 2, 12)]
    assert result.tombstones.schema.names == ["k", "o", VERSION_COLUMN]


def test_tombstones_in() -> None:
    """A stale record leaves the tombstone as it was, version included; a newer one clears it; tombstones of keys
    that no record touches pass through; all come out sorted by key."""
    result = folded(
        frame_of([(4, 7, "stale", ""), (2, 8, "alive", "")]),
        frame_of([(0, 3, "", ""), (9, 3, "", "")], kinds=["-D", "-D"], version=11),
        tombstones=tombs((2, 8, 3), (4, 8, 4), (7, 1, 5)),
    )
    assert rows(result.rows) == [(2, 8, "alive", "")]
    assert rows(result.tombstones) == [(0, 3, 11), (4, 8, 4), (7, 1, 5), (9, 3, 11)]


def test_an_equal_delete_moves_the_tombstone_to_its_version() -> None:
    result = folded(frame_of([(4, 8, "", "")], kinds=["-D"], version=11), tombstones=tombs((4, 8, 4)))
    assert rows(result.tombstones) == [(4, 8, 11)]


def test_an_unconditional_delete_remembers_nothing() -> None:
    """It carries no ordering column; what comes after it is judged against nothing, even a lower ordering."""
    gone = frame_of([(1,), (4,)], "k", kinds=["-D", "-D"])
    result = folded(gone, tombstones=tombs((4, 8, 4)))
    assert (result.superseded.tolist(), rows(result.rows), rows(result.tombstones)) == ([0], [], [])
    again = folded(gone, frame_of([(1, 0, "low", ""), (4, 0, "low", "")]), tombstones=tombs((4, 8, 4)))
    assert rows(again.rows) == [(1, 0, "low", ""), (4, 0, "low", "")]


def test_partial_columns_ride_on_what_was_applied() -> None:
    """a@7 then b@6: the second is stale and must not lend its b; b@8 is applied over the first's a."""
    late = folded(frame_of([(1, 7, "a7")], "koa"), frame_of([(1, 6, "b6")], "kob"))
    assert rows(late.rows) == [(1, 7, "a7", "b1")]
    newer = folded(frame_of([(1, 7, "a7")], "koa"), frame_of([(1, 8, "b8")], "kob"))
    assert rows(newer.rows) == [(1, 8, "a7", "b8")]
    fresh = folded(frame_of([(2, 7, None)], "koa"))
    assert rows(fresh.rows) == [(2, 7, None, None)]
    overwritten = folded(frame_of([(1, 7, None)], "koa"))
    assert rows(overwritten.rows) == [(1, 7, None, "b1")], "null is a value, not unset"


def test_a_delete_between_partial_records_resets_columns() -> None:
    result = folded(
        frame_of([(1, 6, "a6")], "koa"), frame_of([(1, 7)], "ko", kinds=["-D"]), frame_of([(1, 8, "b8")], "kob")
    )
    assert rows(result.rows) == [(1, 8, None, "b8")]


def test_retractions_change_nothing() -> None:
    result = folded(frame_of([(1, 99, "x", "x"), (7, 99, "x", "x")], kinds=["-U", "-U"]))
    assert (result.superseded.tolist(), rows(result.rows), rows(result.tombstones)) == ([], [], [])


def test_delete_when_takes_stored_rows_as_they_are() -> None:
    """A stored row that holds the marker is a row: only records are taken for deletes."""
    merger = EventTime(DeleteWhen("a", ("a3", "gone")))
    result = folded(frame_of([(1, 6, "gone", ""), (5, 6, None, "")]), merger=merger)
    assert rows(result.rows) == [(5, 6, None, "")]
    assert rows(result.tombstones) == [(1, 6, 9)]
    assert result.superseded.tolist() == [0, 2]


def test_commit_time_takes_what_comes_last() -> None:
    result = folded(
        frame_of([(1, 1, "x", "y")]),
        frame_of([(3,)], "k", kinds=["-D"]),
        frame_of([(3, "n")], "ka"),
        merger=CommitTime(),
    )
    assert rows(result.rows) == [(1, 1, "x", "y"), (3, None, "n", None)]
    assert result.tombstones.num_rows == 0


def test_a_projection_of_result_columns() -> None:
    result = folded(frame_of([(1, 6, "x", "y")]), columns=["b"])
    assert rows(result.rows) == [("y",)]
    assert rows(overlay_rows(table_of(BASE), result, ["b"], sort=True)) == [("y",), ("b3",), ("b5",)]


KEYS: Mapping[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    "string": ([pa.string()], [("",), ("a",), ("ab",), ("é",)]),
    "binary": ([pa.binary()], [(b"",), (b"\x00",), (b"\x80",), (b"\xff",)]),
    "bool": ([pa.bool_()], [(False,), (True,)]),
    "decimal": (
        [pa.decimal128(38, 2)],
        [(Decimal("-1.00"),), (Decimal("0.00"),), (Decimal(f"1{30 * chr(48)}.00"),)],
    ),
    "date": ([pa.date32()], [(dt.date(1969, 1, 1),), (dt.date(1970, 1, 1),), (dt.date(2026, 1, 1),)]),
    "timestamp": (
        [pa.timestamp("us", tz="UTC")],
        [(dt.datetime(1960, 1, 1, tzinfo=dt.UTC),), (dt.datetime(2026, 1, 1, tzinfo=dt.UTC),)],
    ),
    "wide": ([pa.int64(), pa.int64()], [(-(2**63), 2**63 - 1), (0, -(2**63)), (2**63 - 1, 0)]),
    "composite": ([pa.string(), pa.int32()], [("a", 1), ("a", 2), ("b", -1)]),
}


@pytest.mark.parametrize("name", KEYS)
def test_every_key_type(name: str) -> None:
    """Every other one of the sorted keys is stored. The first is updated, a missing one is new, the last is deleted."""
    kinds, keys = KEYS[name]
    names = tuple(f"k{i}" for i in range(len(kinds)))
    schema = pa.schema([*zip(names, kinds, strict=True), ("o", pa.int64()), ("v", pa.string())])
    shape = TableShape(schema, names, ("o",))
    stored = [(*key, 1, "base") for key in keys[::2]]
    records = [(*key, 2, f"new{i}") for i, key in enumerate(keys)]
    symbols = np.array([RowKind.INSERT] * (len(keys) - 1) + [RowKind.DELETE], dtype=np.int8)
    order = np.random.default_rng(3).permutation(len(keys))
    frame = Frame(table_of(records, schema).take(pa.array(order)), symbols[order], 4)
    empty = tombstone_schema(shape).empty_table()
    result = fold(
        EventTime(), shape, base=table_of(stored, schema), tombstones=empty, frames=[frame], columns=schema.names
    )
    merged = overlay_rows(table_of(stored, schema), result, schema.names, sort=True)
    assert rows(merged) == records[:-1]
    assert rows(result.tombstones) == [(*keys[-1], 2, 4)]


def test_combine_only_where_the_laws_allow() -> None:
    doubled = frame_of([(1, 5, "x", ""), (1, 6, "y", ""), (2, 1, "z", "")])
    kept = combine(EventTime(), SHAPE, doubled, full=True)
    assert kept is not None
    assert kept.tolist() == [False, True, True]
    assert combine(EventTime(), SHAPE, doubled, full=False) is None, "partial frames are not associative"
    assert combine(EventTime(), SHAPE, frame_of([(1, 5, "x", ""), (2, 6, "y", "")]), full=True) is None, (
        "all keys are different"
    )
    assert combine(EventTime(), SHAPE, frame_of([]), full=True) is None


def test_combine_keeps_what_an_unconditional_delete_divides() -> None:
    """U@20, D, U@10: the last alone would lose to a stored @30."""
    resets = Frame(frame_of([(1,), (1,), (1,)], "k").rows, np.array([2, 3, 2], dtype=np.int8), 1)
    shape = TableShape(SCHEMA, ("k",), ())
    kept = combine(CommitTime(), shape, resets, full=True)
    assert kept is not None
    assert kept.tolist() == [True, True, True]


@dataclass(frozen=True)
class Broken(Merger):
    """Returns what it is told to."""

    answer: Merged

    id = "3a1b7c52-8f6a-4a57-9a55-0a2f7d1c9e01"
    name = "broken"

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        raise AssertionError("made by its constructor, never from options")

    def options(self) -> Mapping[str, object]:
        return {}

    def merge_groups(self, groups: Groups) -> Merged:
        return self.answer


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Merged(status=np.ones(1, np.int8), winner=ints(0, 1)), "2 groups"),
        (Merged(status=np.ones(2, np.int8), winner=ints(0)), "2 groups"),
        (Merged(status=np.ones(2, np.int8), winner=ints(0, 1), columns={"a": pa.array(["x"])}), "2 groups"),
        (Merged(status=np.ones(2, np.int8), winner=ints(0, 0)), "outside its group"),
        (Merged(status=np.ones(2, np.int8), winner=ints(1, 1)), "outside its group"),
        (Merged(status=np.ones(2, np.int8), winner=ints(-1, 1)), "outside its group"),
        (Merged(status=np.array([1, 2], np.int8), winner=ints(0, 7)), "outside its group"),
    ],
)
def test_a_merger_that_breaks_its_contract_is_named(answer: Merged, why: str) -> None:
    with pytest.raises(MergerContractError, match=f"'broken'.*{why}"):
        folded(frame_of([(2, 1, "", ""), (4, 1, "", "")]), merger=Broken(answer))


def test_an_absent_key_needs_no_winner() -> None:
    answer = Merged(status=np.zeros(2, np.int8), winner=ints(-1, 99))
    result = folded(frame_of([(1, 1, "", ""), (4, 1, "", "")]), merger=Broken(answer))
    assert (result.superseded.tolist(), result.rows.num_rows, result.tombstones.num_rows) == ([0], 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        Merged(status=np.array([1, 5], np.int8), winner=ints(0, 1)),
        Merged(status=np.ones(2, np.int8), winner=ints(0, 1), columns={"nope": pa.array(["x", "y"])}),
        Merged(status=np.ones(2, np.int8), winner=ints(0, 1), columns={"a": pa.array([1, 2])}),
        Merged(status=np.ones(2, np.int8), winner=ints(0, 1), columns={"k": pa.array([8, 9])}),
    ],
    ids=["no such status", "no such column", "another type", "another key"],
)
def test_results_that_no_table_could_hold(answer: Merged) -> None:
    with pytest.raises(MergerContractError, match="'broken'"):
        folded(frame_of([(2, 1, "", ""), (4, 1, "", "")]), merger=Broken(answer))


def test_a_tombstone_remembers_its_winners_ordering() -> None:
    answer = Merged(status=np.array([1, 2], np.int8), winner=ints(0, 1), columns={"o": pa.array([8, 9])})
    result = folded(frame_of([(2, 1, "", ""), (4, 1, "", "")]), merger=Broken(answer))
    assert rows(result.rows) == [(2, 8, "", "")]
    assert rows(result.tombstones) == [(4, 1, 9)]
