"""AUTO CDC without Spark, against a plain-Python model: events in any order and in any batches come to the same."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import FrameError, InputError, LakeTable
from lakemerge.flows import auto_cdc, auto_cdc_from_snapshot, history

Event = tuple[int, int, str, Any, Any]
"""Key, sequence, operation, and two columns."""

SCHEMA = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("op", pa.string()), ("a", pa.int64()), ("b", pa.string())])
TYPE_1: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'DELETE'",
    "except_column_list": ["op"],
}
TYPE_2 = TYPE_1 | {"stored_as_scd_type": 2, "except_column_list": ["op", "seq"]}


def frame(events: Sequence[Event]) -> pa.Table:
    return pa.table([[e[i] for e in events] for i in range(5)], schema=SCHEMA)


def model_rows(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Type 1: the newest event of each key, and no row where it deletes or a newer truncate is there."""
    floor = max((e[1] for e in events if e[2] == "TRUNCATE"), default=-1)
    newest: dict[int, Event] = {}
    for event in sorted((e for e in events if e[2] != "TRUNCATE" and e[1] >= floor), key=lambda e: e[1]):
        newest[event[0]] = event
    return sorted((e[0], e[1], e[3], e[4]) for e in newest.values() if e[2] != "DELETE")


def model_history(
    events: Sequence[Event], track: Sequence[int] = (0, 1), *, ignore_nulls: bool = False
) -> list[tuple[Any, ...]]:
    """Type 2: (key, a, b, start, end), event by event."""
    found: list[list[Any]] = []
    for _, group in itertools.groupby(sorted(events, key=lambda e: (e[0], e[1])), key=lambda e: e[0]):
        present: list[Any] | None = None
        for key, seq, op, *values in group:
            if op == "DELETE":
                if present is not None:
                    present[4] = seq
                present = None
                continue
            new = list(values)
            if ignore_nulls and present is not None:
                new = [there if given is None else given for there, given in zip(present[1:3], values, strict=True)]
            if present is not None and all(present[1 + i] == new[i] for i in track):
                present[1:3] = new
                continue
            if present is not None:
                present[4] = seq
            present = [key, *new, seq, None]
            found.append(present)
    return [tuple(row) for row in found]


def present_rows(table: LakeTable) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow(columns=["k", "seq", "a", "b"]).to_pylist())


def history_rows(table: LakeTable) -> list[tuple[Any, ...]]:
    rows = history(table)
    assert rows.column_names == ["k", "a", "b", "__START_AT", "__END_AT"]
    return [tuple(row.values()) for row in rows.to_pylist()]


def drawn(draw: random.Random, ops: Sequence[str]) -> list[Event]:
    """Events of distinct sequences, in no order."""
    places = draw.sample(range(100), draw.randrange(1, 14))
    return [
        (draw.randrange(3), place, draw.choice(ops), draw.choice([None, 1, 2]), draw.choice([None, "x"]))
        for place in places
    ]


def batches(draw: random.Random, events: Sequence[Event]) -> list[list[Event]]:
    cuts = sorted(draw.sample(range(len(events) + 1), min(2, len(events))))
    return [list(events[a:b]) for a, b in itertools.pairwise([0, *cuts, len(events)]) if a < b]


@pytest.mark.parametrize("seed", range(12))
def test_present_rows(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    events = drawn(draw, ["INSERT", "UPDATE", "DELETE", "TRUNCATE"])
    for batch in batches(draw, events):
        auto_cdc(source=frame(batch), target=tmp_path / "t", apply_as_truncates="op = 'TRUNCATE'", **TYPE_1)
    assert present_rows(LakeTable.open(tmp_path / "t")) == model_rows(events)


@pytest.mark.parametrize("seed", range(24))
def test_histories(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    events = drawn(draw, ["INSERT", "UPDATE", "UPDATE", "DELETE"])
    track, nulls = [((0, 1), {}), ((0,), {"track_history_column_list": ["a"]}), ((1,), {
        "track_history_except_column_list": ["A"]})][seed % 3], bool(seed % 2)  # fmt: skip
    columns: tuple[int, ...] = track[0]
    options: dict[str, Any] = track[1]
    table = None
    for batch in batches(draw, events):
        auto_cdc(source=frame(batch), target=tmp_path / "t", ignore_null_updates=nulls, **TYPE_2, **options)
        table = LakeTable.open(tmp_path / "t")
        if draw.random() < 0.3:
            table.compact()
    assert table is not None
    assert history_rows(table) == model_history(events, columns, ignore_nulls=nulls)


def test_a_late_event_splits_a_row(tmp_path: Path) -> None:
    """By hand."""
    for event in [
        (1, 10, "INSERT", 1, "x"),
        (1, 30, "UPDATE", 3, "x"),
        (1, 20, "UPDATE", 2, "x"),
        (1, 40, "DELETE", 0, ""),
    ]:
        auto_cdc(source=frame([event]), target=tmp_path / "t", **TYPE_2)
    table = LakeTable.open(tmp_path / "t")
    assert history_rows(table) == [(1, 1, "x", 10, 20), (1, 2, "x", 20, 30), (1, 3, "x", 30, 40)]
    auto_cdc(source=frame([(1, 50, "INSERT", 5, "y")]), target=table, **TYPE_2)
    assert history_rows(table)[-1] == (1, 5, "y", 50, None)


def test_null_updates_of_present_rows(tmp_path: Path) -> None:
    flow = TYPE_1 | {"ignore_null_updates": True, "target": tmp_path / "t"}
    auto_cdc(source=frame([(1, 1, "INSERT", 1, "x"), (2, 1, "INSERT", 1, "x")]), **flow)
    auto_cdc(source=frame([(1, 5, "UPDATE", None, "y"), (2, 5, "DELETE", None, None)]), **flow)
    auto_cdc(source=frame([(1, 3, "UPDATE", 9, None), (2, 3, "UPDATE", 9, "late")]), **flow)
    assert present_rows(LakeTable.open(tmp_path / "t")) == [(1, 5, 1, "y")]


def test_columns_and_types(tmp_path: Path) -> None:
    auto_cdc(
        source=frame([(1, 1, "INSERT", 1, "x")]), target=tmp_path / "t", keys="K", sequence_by="SEQ", column_list=["a"]
    )
    table = LakeTable.open(tmp_path / "t")
    assert table.schema.names == ["k", "seq", "a"]
    assert (table.key, table.ordering) == (("k",), ("seq",))


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32(), pa.string(), pa.decimal128(9, 2)])
def test_truncates_of_every_kind_of_sequence(tmp_path: Path, kind: pa.DataType) -> None:
    places: list[Any] = [1, 2, 3, 4]
    if pa.types.is_timestamp(kind):
        places = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=n) for n in range(4)]
    elif pa.types.is_date(kind):
        places = [dt.date(2026, 1, 1 + n) for n in range(4)]
    elif pa.types.is_string(kind):
        places = ["a", "b'", "c", "d"]
    elif pa.types.is_decimal(kind):
        places = [decimal.Decimal(n) / 4 for n in range(4)]
    column = pa.array(places, kind)
    flow: dict[str, Any] = {
        "keys": ["k"],
        "sequence_by": ["seq"],
        "apply_as_truncates": "op = 'T'",
        "target": tmp_path / "t",
    }
    # In this order: 3 is there, all below 3 are emptied by the truncate at place 2, and 0 comes too late.
    for number, op in [(1, "I"), (3, "I"), (2, "T"), (0, "I")]:
        auto_cdc(source=pa.table({"k": [number], "seq": column.slice(number, 1), "op": [op]}), **flow)
    table = LakeTable.open(tmp_path / "t")
    assert table.to_arrow(columns=["k"]).to_pylist() == [{"k": 3}]


def test_a_truncate_by_a_column_of_an_odd_name(tmp_path: Path) -> None:
    for number, op in [(1, "I"), (3, "I"), (2, "T"), (0, "I")]:
        rows = pa.table({"k": [number], "at `x`.y": [number], "op": [op]})
        auto_cdc(source=rows, target=tmp_path / "t", keys="k", sequence_by="AT `X`.y", apply_as_truncates="op = 'T'")
    assert LakeTable.open(tmp_path / "t").to_arrow(columns=["k"]).to_pylist() == [{"k": 3}]


def test_places_that_no_truncate_can_have(tmp_path: Path) -> None:
    flow: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "apply_as_truncates": "op = 'T'"}
    far = pa.array([4_000_000 * 86_400_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    for column, told in ((far, "beyond the year 9999"), (pa.array([1.5]), "not DOUBLE")):
        rows = pa.table({"k": [1], "at": column, "op": ["T"]})
        with pytest.raises(InputError, match=told):
            auto_cdc(source=rows, target=tmp_path / told[-4:], **flow)
        assert LakeTable.open(tmp_path / told[-4:]).version == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({"keys": []}, "keys must name"),
    "both lists": ({"column_list": ["a"]}, "column_list or except_column_list"),
    "type": ({"stored_as_scd_type": 3}, "must be 1 or 2"),
    "tracked rows of type 1": ({"track_history_column_list": ["a"]}, "tracked only in a history"),
    "a truncated history": ({"stored_as_scd_type": 2, "apply_as_truncates": "true"}, "cannot be truncated"),
    "two sequences": ({"stored_as_scd_type": 2, "sequence_by": ["seq", "a"]}, "need one sequence column"),
    "unknown column": ({"keys": ["z"]}, "no column.* 'z'"),
    "a checkpoint": ({"checkpoint": "x"}, "for a streaming DataFrame"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        auto_cdc(**{"source": frame([(1, 1, "INSERT", 1, "x")]), "target": tmp_path / "t", **TYPE_1, **given})
    assert not (tmp_path / "t").exists()


def test_refused_events_and_targets(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="sequence column 'seq' is null in 1 event"):
        auto_cdc(source=frame([(1, None, "INSERT", 1, "x")]), target=tmp_path / "t", **TYPE_1)  # type: ignore[list-item]
    other = LakeTable.create(tmp_path / "o", "k BIGINT, seq BIGINT, a BIGINT, b STRING", key=["k", "a"])
    with pytest.raises(InputError, match=r"its key is .* its ordering is .* its merger is"):
        auto_cdc(source=frame([(1, 1, "INSERT", 1, "x")]), target=other, **TYPE_1)
    with pytest.raises(InputError, match="has no history"):
        history(other)


@pytest.mark.parametrize("scd_type", [1, 2])
def test_snapshots(tmp_path: Path, scd_type: int) -> None:
    names = ["k", "v"]
    rows = [[(1, "a"), (2, "b")], [(1, "a"), (2, "B"), (3, "c")], [(3, "c")], [], [(1, "again")]]
    frames = [
        pa.table([pa.array([r[0] for r in one], pa.int64()), pa.array([r[1] for r in one], pa.string())], names=names)
        for one in rows
    ]
    given = iter([*((one, 10 * (place + 1)) for place, one in enumerate(frames)), None])
    asked: list[Any] = []

    def source(last: Any) -> Any:
        asked.append(last)
        return next(given)

    flow: dict[str, Any] = {"target": tmp_path / "t", "keys": ["k"], "stored_as_scd_type": scd_type}
    assert len(auto_cdc_from_snapshot(source=source, **flow)) == 5
    assert asked == [None, 10, 20, 30, 40, 50]
    table = LakeTable.open(tmp_path / "t")
    if scd_type == 1:
        assert table.to_arrow(columns=names).to_pylist() == [{"k": 1, "v": "again"}]
    else:
        found = [tuple(row.values()) for row in history(table).to_pylist()]
        assert found == [
            (1, "a", 10, 30), (1, "again", 50, None), (2, "b", 10, 20), (2, "B", 20, 30), (3, "c", 20, 40),
        ]  # fmt: skip
    version = table.version
    assert auto_cdc_from_snapshot(source=frames[0], version=50, **flow)[0].mode == "repeated"
    with pytest.raises(InputError, match="versions must grow"):
        auto_cdc_from_snapshot(source=frames[0], version=40, **flow)
    with pytest.raises(FrameError, match="twice in the snapshot"):
        auto_cdc_from_snapshot(source=pa.table({"k": [1, 1], "v": ["a", "b"]}), **flow)
    assert table.version == version
    auto_cdc_from_snapshot(source=frames[0], **flow)
    assert table.opened.view.snapshot.txns["lakemerge.flow.snapshot"].version == 51


def test_transactions_between_batches_of_changes(tmp_path: Path) -> None:
    """Rows of a target are corrected and deleted. Later events meet what is left: newer ones count, older do not."""
    run = partial(auto_cdc, target=tmp_path / "t", **TYPE_1)
    run(source=frame([(1, 10, "INSERT", 1, "x"), (2, 10, "INSERT", 2, "y"), (3, 10, "INSERT", 3, "z")]))
    table = LakeTable.open(tmp_path / "t")
    table.update_where("k = 1", {"a": 100})
    table.delete_where("k = 2")
    table.merge(pa.table({"k": [4]}), "target.k = source.k").whenNotMatchedInsert(values={"seq": 5, "a": 4}).execute()
    run(source=frame([(1, 9, "UPDATE", 0, "late"), (2, 9, "UPDATE", 0, "late"), (4, 4, "DELETE", 0, "late")]))
    assert present_rows(table) == [(1, 10, 100, "x"), (3, 10, 3, "z"), (4, 5, 4, None)]
    table.compact()
    run(source=frame([(1, 11, "UPDATE", 5, "new"), (2, 11, "INSERT", 6, "new"), (4, 6, "DELETE", 0, "")]))
    assert present_rows(table) == [(1, 11, 5, "new"), (2, 11, 6, "new"), (3, 10, 3, "z")]


def test_transactions_on_a_history(tmp_path: Path) -> None:
    run = partial(auto_cdc, target=tmp_path / "t", **TYPE_2)
    run(source=frame([(1, 10, "INSERT", 1, "x"), (2, 10, "INSERT", 2, "y"), (1, 20, "UPDATE", 3, "z")]))
    table = LakeTable.open(tmp_path / "t")
    table.delete_where("k = 2")
    table.update_where("k = 1", {"b": "'w'"})
    run(source=frame([(1, 30, "UPDATE", 5, "new"), (2, 30, "INSERT", 6, "new")]))
    assert history_rows(table) == [
        (1, 1, "w", 10, 20), (1, 3, "w", 20, 30), (1, 5, "new", 30, None), (2, 6, "new", 30, None),
    ]  # fmt: skip


def test_transactions_between_snapshots(tmp_path: Path) -> None:
    """The next snapshot is the target's rows again."""
    snapshot = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})
    flow: dict[str, Any] = {"target": tmp_path / "t", "keys": ["k"], "stored_as_scd_type": 1}
    auto_cdc_from_snapshot(source=snapshot, version=10, **flow)
    table = LakeTable.open(tmp_path / "t")
    table.update_where("k = 1", {"v": "'set'"})
    table.delete_where("k = 2")
    table.merge(pa.table({"k": [9]}), "target.k = source.k").whenNotMatchedInsert(values={"v": "'extra'"}).execute()
    auto_cdc_from_snapshot(source=snapshot, version=20, **flow)
    assert table.to_arrow(columns=["k", "v"]).sort_by("k").to_pylist() == snapshot.to_pylist()
