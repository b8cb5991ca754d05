"""The row contract and options as fields: what a merger is given, what it may return, what persists."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from lakemerge import (
    DELETE,
    Delete,
    LakeTable,
    Merger,
    MergerConfigurationError,
    MergerContractError,
    MergerMissingError,
    Record,
    RowKind,
    RowMerger,
)
from mergers import TableShape

SHAPE = TableShape(pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int64())]), ("id",), ())
SEEN: list[tuple[dict[str, Any], dict[str, Any]]] = []


class Watching(RowMerger):
    """Notes what it is given; the newer row wins."""

    id = "4f1c1ac5-8a39-4a37-a0ba-5f2d6e9a5d10"
    name = "watching"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        SEEN.append((told(older), told(newer)))
        return newer


def told(record: Record) -> dict[str, Any]:
    assert record.kind is RowKind.UPDATE_AFTER
    carried = "".join(name for name in record if record.is_set(name))
    return {**record, "set": carried, "ordering": record.ordering, "version": record.version}


@dataclass(frozen=True)
class Says(RowMerger):
    """Returns what the test says."""

    id = "9b1f5d0c-77e4-4a16-86e5-0f1c2d3e4b5a"
    name = "says"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any] | Delete:
        return ANSWER[0](older, newer)


ANSWER: list[Callable[[Record, Record], Any]] = []


def table(folder: Path, ddl: str, merger: type[Merger], *, ordering: tuple[str, ...] = ()) -> LakeTable:
    path = str(folder / "table")
    return LakeTable.create(path, ddl, key=["id"], ordering=ordering, merger=merger.name, mergers=[merger], buckets=1)


def longs(**columns: list[Any]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def test_what_merge_is_given(tmp_path: Path) -> None:
    """Only pairs of rows; unset columns filled; the same whether or not the older row was stored."""
    SEEN.clear()
    made = table(tmp_path, "id BIGINT, a BIGINT, b BIGINT, t BIGINT", Watching, ordering=("t",))
    made.upsert(longs(id=[1, 2], a=[1, 1], b=[1, 1], t=[5, 5]))
    assert SEEN == []
    made.upsert(longs(id=[1], a=[None], t=[3]))
    made.upsert(longs(id=[1], b=[7], t=[4]))
    expected = [
        (
            {"id": 1, "a": 1, "b": 1, "t": 5, "set": "idabt", "ordering": (5,), "version": None},
            {"id": 1, "a": None, "b": 1, "t": 3, "set": "idat", "ordering": (3,), "version": 2},
        ),
        (
            {"id": 1, "a": None, "b": 1, "t": 3, "set": "idabt", "ordering": (3,), "version": None},
            {"id": 1, "a": None, "b": 7, "t": 4, "set": "idbt", "ordering": (4,), "version": 3},
        ),
    ]
    assert made.to_arrow(columns=["a", "b"], filter="id = 1").to_pylist() == [{"a": None, "b": 7}]
    assert expected == SEEN
    SEEN.clear()
    again = table(tmp_path / "compacted", "id BIGINT, a BIGINT, b BIGINT, t BIGINT", Watching, ordering=("t",))
    again.upsert(longs(id=[1], a=[1], b=[1], t=[5]))
    again.upsert(longs(id=[1], a=[None], t=[3]))
    again.compact()
    first = SEEN.copy()
    again.upsert(longs(id=[1], b=[7], t=[4]))
    SEEN.clear()
    again.to_arrow()
    assert first == expected[:1]
    compacted = [(older, {**newer, "version": None}) for older, newer in SEEN]
    assert compacted == [(older, {**newer, "version": None}) for older, newer in expected[1:]]


@pytest.mark.parametrize(
    ("ordering", "kind", "when", "later", "found"),
    [
        (("t",), "-D", 6, 5, []),  # a tombstone at 6 keeps 5 out
        (("t",), "-D", 6, 6, [(1, 9, 6)]),  # an equal one is newer
        (("t",), "-D", 4, 9, "merged"),  # a delete that is older than the row
        (("t",), "-U", 6, 9, "merged"),  # a retraction is ignored
        ((), "-D", 6, 5, [(1, 9, 5)]),  # without ordering the delete leaves nothing
        ((), "-U", 6, 5, "merged"),
    ],
)
def test_deletes_and_retractions(
    ordering: tuple[str, ...], kind: str, when: int, later: int, found: Any, tmp_path: Path
) -> None:
    ANSWER[:] = [lambda older, newer: {**newer, "v": older["v"] * 100 + newer["v"]}]
    made = table(tmp_path, "id BIGINT, v BIGINT, t BIGINT", Says, ordering=ordering)
    batch = longs(id=[1, 1, 1], v=[2, 0, 9], t=[5, when, later])
    made.upsert(batch.append_column("op", pa.array(["+I", kind, "+U"])), kind_column="op")
    expected = [(1, 209, later)] if found == "merged" else found
    assert [tuple(row.values()) for row in made.to_arrow().to_pylist()] == expected


def test_a_returned_delete_remembers_nothing(tmp_path: Path) -> None:
    ANSWER[:] = [lambda older, newer: DELETE]
    made = table(tmp_path, "id BIGINT, v BIGINT, t BIGINT", Says, ordering=("t",))
    made.upsert(longs(id=[1, 1], v=[1, 2], t=[5, 6]))
    assert made.to_arrow().num_rows == 0
    made.upsert(longs(id=[1], v=[3], t=[1]))
    assert made.to_arrow().to_pylist() == [{"id": 1, "v": 3, "t": 1}]
    assert pickle.loads(pickle.dumps(DELETE)) is DELETE


def test_the_older_row_may_stay_as_it_is(tmp_path: Path) -> None:
    ANSWER[:] = [lambda older, newer: older]
    made = table(tmp_path, "id BIGINT, v BIGINT", Says)
    made.upsert(longs(id=[1, 2], v=[1, 2]))
    made.upsert(longs(id=[1, 2, 3], v=[8, 8, 8]))
    assert sorted(made.to_arrow().to_pylist(), key=str) == [{"id": i, "v": v} for i, v in ((1, 1), (2, 2), (3, 8))]


WIDE = (
    "id BIGINT, i INT, f FLOAT, n DECIMAL(6,2), s STRING, b BINARY, d DATE, t TIMESTAMP, u BOOLEAN, "
    "l ARRAY<BIGINT>, m MAP<STRING, INT>, r STRUCT<x: INT, y: STRING>, q INT NOT NULL"
)
FULL = {
    "id": 1, "i": 1, "f": 0.5, "n": Decimal("1.50"), "s": "a", "b": b"a", "d": dt.date(2026, 1, 2),
    "t": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "u": True, "l": [1], "m": [("k", 1)], "r": {"x": 1, "y": "z"}, "q": 1,
}  # fmt: skip


def wide(folder: Path) -> LakeTable:
    made = table(folder, WIDE, Says)
    batch = pa.Table.from_pylist([FULL], schema=pa.schema([f.with_nullable(True) for f in made.schema]))
    made.upsert(batch)
    made.upsert(batch)
    return made


def test_every_type_comes_and_goes(tmp_path: Path) -> None:
    change = {
        "i": 7, "f": 0.1, "n": Decimal("2.5"), "s": "\u00e9", "b": b"\x00", "d": dt.date(1999, 12, 31),
        "t": dt.datetime(2026, 5, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))), "u": False, "l": [3, None],
        "m": {"a": 1, "b": None}, "r": {"x": None, "y": "w"}, "q": 9,
    }  # fmt: skip
    ANSWER[:] = [lambda older, newer: {**newer, **change}]
    assert wide(tmp_path).to_arrow().to_pylist() == [
        {
            "id": 1, **change, "f": pa.scalar(0.1, pa.float32()).as_py(), "n": Decimal("2.50"),
            "t": dt.datetime(2026, 5, 1, tzinfo=dt.UTC), "m": [("a", 1), ("b", None)],
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "columns", "problem"),
    [
        ({"i": "1"}, ("i",), "returned '1' in column 'i', which is INT"),
        ({"i": True}, ("i",), "returned True in column 'i'"),
        ({"i": 1.0}, ("i",), "returned 1.0 in column 'i'"),
        ({"i": 2**31}, ("i",), "returned 2147483648 in column 'i'"),
        ({"n": Decimal("1.005")}, ("n",), "in column 'n', which is DECIMAL(6,2)"),
        ({"s": 1}, ("s",), "returned 1 in column 's', which is STRING"),
        ({"b": "a"}, ("b",), "returned 'a' in column 'b', which is BINARY"),
        ({"d": dt.datetime(2026, 1, 1)}, ("d",), "in column 'd', which is DATE"),  # noqa: DTZ001
        ({"t": dt.datetime(2026, 1, 1)}, ("t",), "in column 't', which is TIMESTAMP"),  # noqa: DTZ001
        ({"l": ["x"]}, ("l",), "returned ['x'] in column 'l'"),
        ({"r": 5}, ("r",), "returned 5 in column 'r'"),
        ({"q": None}, ("q",), "returned null in the NOT NULL column 'q'"),
        ({"id": 2}, ("id",), "changed the key column 'id' to 2"),
        ({"extra": 2, "i": "x"}, ("i",), "returned the unknown column 'extra'; returned 'x' in column 'i'"),
    ],
)
def test_rows_that_do_not_fit(changes: dict[str, Any], columns: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    ANSWER[:] = [lambda older, newer: {**newer, **changes}]
    with pytest.raises(MergerContractError) as caught:
        wide(tmp_path).to_arrow()
    assert "merger 'says', at key {'id': 1}: " in str(caught.value)
    assert problem in str(caught.value)
    assert (caught.value.merger, caught.value.key, caught.value.columns) == ("says", {"id": 1}, columns)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda older, newer: {"id": 1}, "returned a row without column 'v'"),
        (lambda older, newer: None, "returned None, which is neither a row nor DELETE"),
        (lambda older, newer: older["w"], "raised KeyError('w')"),
        (lambda older, newer: older.is_set("w"), "raised KeyError('w')"),
    ],
)
def test_answers_that_are_no_row(answer: Callable[[Record, Record], Any], problem: str, tmp_path: Path) -> None:
    ANSWER[:] = [answer]
    made = table(tmp_path, "id BIGINT, v BIGINT", Says)
    made.upsert(longs(id=[1], v=[1]))
    made.upsert(longs(id=[1], v=[1]))
    with pytest.raises(MergerContractError) as caught:
        made.to_arrow()
    assert problem in str(caught.value)
    [left] = made.compact().skipped
    assert (left.key, problem in left.reason) == ({"id": 1}, True)
    assert pickle.loads(pickle.dumps(caught.value)).key == {"id": 1}


@dataclass(frozen=True)
class Optioned(Watching):
    id = "52b7a64f-5f5b-4cbe-8a51-4a7f4c8cbe11"
    name = "optioned"

    cap: int
    share: float = 0.5
    mode: Literal["a", "b"] = "a"
    column: str | None = None
    steps: tuple[str, ...] = ()
    weights: Mapping[str, int] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.cap < 0:
            raise ValueError("cap must not be negative")

    def problems(self, shape: TableShape) -> list[str]:
        known = self.column is None or self.column in shape.schema.names
        return [] if known else [f"column {self.column!r} is not in the table"]


def test_options_persist_and_come_back_typed(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    given = Optioned(cap=3, share=1, mode="b", column="v", steps=("x", "y"), weights={"k": 2}, strict=True)
    LakeTable.create(path, "id BIGINT, v BIGINT", key=["id"], merger=given, mergers=[Optioned])
    opened = LakeTable.open(path, mergers=[Optioned])
    assert opened.opened.handle.merger(opened.opened.view) == given
    kept = opened.opened.view.config.merger_options
    assert kept == {
        "cap": 3, "share": 1.0, "mode": "b", "column": "v", "steps": ["x", "y"], "weights": {"k": 2}, "strict": True,
    }  # fmt: skip
    assert json.loads(json.dumps(given.options())) == kept


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({}, ["option 'cap' is missing; it is int"]),
        (
            {"cap": "3", "mode": "c", "steps": ["x", 1], "strict": 1, "weights": {"k": "2"}, "nope": 1, "share": True},
            [
                "unknown option 'nope'; optioned has: cap, column, mode, share, steps, strict, weights",
                "option 'cap' must be int, not '3'",
                "option 'share' must be float, not True",
                "option 'mode' must be Literal['a', 'b'], not 'c'",
                "option 'steps' must be tuple[str, ...], not ['x', 1]",
                "option 'weights' must be Mapping[str, int] | None, not {'k': '2'}",
                "option 'strict' must be bool, not 1",
            ],
        ),
        ({"cap": True}, ["option 'cap' must be int, not True"]),
        ({"cap": 1, "share": float("nan")}, ["option 'share' must be float, not nan"]),
        ({"cap": -1}, ["cap must not be negative"]),
        ({"cap": 1, "column": "w"}, ["column 'w' is not in the table"]),
    ],
)
def test_every_problem_with_options_is_told(options: dict[str, object], problems: list[str]) -> None:
    with pytest.raises(MergerConfigurationError) as caught:
        Optioned.from_options(options, SHAPE)
    assert list(caught.value.problems) == problems  # type: ignore[call-overload]


class Undecorated(Watching):
    cap: int = 3


@dataclass
class Thawed(Watching):
    cap: int = 3


@dataclass(frozen=True)
class Dated(Watching):
    since: dt.date = dt.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("merger", "problem"),
    [
        (Undecorated, "annotates cap, which is no dataclass field; add @dataclass\\(frozen=True\\)"),
        (Thawed, "must be @dataclass\\(frozen=True\\)"),
        (Dated, "option 'since' of class Dated is date; options are bool, int"),
    ],
)
def test_classes_that_would_lose_options_are_refused(merger: type[Merger], problem: str) -> None:
    with pytest.raises(MergerConfigurationError, match=problem):
        merger.from_options({}, SHAPE)


def test_a_table_of_an_unknown_merger_opens_for_metadata(tmp_path: Path) -> None:
    made = table(tmp_path, "id BIGINT, v BIGINT", Watching)
    made.upsert(longs(id=[1], v=[1]))
    stranger = LakeTable.open(made.url)
    assert (stranger.version, stranger.schema, stranger.key) == (1, made.schema, ("id",))
    assert [entry.operation for entry in stranger.history()] == ["UPSERT", "CREATE TABLE"]
    frame = longs(id=[1], v=[2])
    for act in (
        stranger.to_arrow,
        stranger.scan,
        stranger.compact,
        lambda: stranger.upsert(frame),
        lambda: stranger.delete(frame.select(["id"])),
        lambda: stranger.delete_where("v = 1"),
    ):
        with pytest.raises(MergerMissingError) as caught:
            act()
        for part in (Watching.id, "'watching'", "@register_merger", "mergers=[TheClass] to LakeTable.open"):
            assert part in str(caught.value)
    assert LakeTable.open(made.url).version == 1


def test_nothing_named_in_metadata_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that tells when it is imported lies on the path and is named wherever a name may stand."""
    (tmp_path / "lm_bait.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Bait(Watching):
        id = "8a1d9f6e-2a43-4fd1-b7d2-3c1f0a9e8d21"
        name = "lm_bait.Merger"

    class Holder(Bait):
        pass

    Holder.__module__ = "lm_bait"
    properties = {"merger.class": "lm_bait.Merger", "hoodie.datasource.write.payload.class": "lm_bait:Merger"}
    path = str(tmp_path / "table")
    LakeTable.create(
        path, "id BIGINT, v BIGINT", key=["id"], merger=Holder.name, mergers=[Holder], properties=properties, buckets=1
    )
    stranger = LakeTable.open(path)
    assert stranger.opened.view.snapshot.metadata.configuration["merger.class"] == "lm_bait.Merger"
    for act in (stranger.to_arrow, lambda: stranger.upsert(longs(id=[1], v=[1]))):
        with pytest.raises(MergerMissingError, match=r"lm_bait\.Merger"):
            act()
    with pytest.raises(MergerMissingError):
        LakeTable.create(str(tmp_path / "other"), "id BIGINT", key=["id"], merger="lm_bait.Merger")
    assert "lm_bait" not in sys.modules
