"""The change feed over restores that take schemas back: every commit can be read, and no value is lost.

Expected changes are written by hand, or follow from the rows that a dictionary has for each version.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.read.feed_columns import FeedColumns
from lakemerge.schema.evolution import common_type, nullable_throughout
from lakemerge.schema.schema import to_arrow_schema
from tests.property.effort import some
from tests.unit.faults import create, frame

Row = dict[str, Any]


def made(path: Path, ddl: str = "k BIGINT NOT NULL, n INT") -> LakeTable:
    return LakeTable.create(path, ddl, key=["k"], buckets=1)


def put(table: LakeTable, *rows: Row) -> int:
    """The version of an upsert of rows that all carry the same columns."""
    schema = pa.schema([table.schema.field(name) for name in rows[0]])
    return table.upsert(pa.Table.from_pylist(list(rows), schema=schema)).version


def told(table: LakeTable, since: int, until: int | None = None) -> list[Row]:
    rows = table.changes(since, until).read_all().to_pylist()
    return [{name: value for name, value in row.items() if not name.startswith("_commit")} for row in rows]


@pytest.mark.parametrize("alone", [True, False])
def test_a_restore_takes_a_wider_type_back(tmp_path: Path, alone: bool) -> None:
    table = made(tmp_path / "t")
    put(table, {"k": 1, "n": 1}, {"k": 2, "n": 2})
    table.savepoint("narrow")
    table.alter(widen={"n": "BIGINT"})
    version = put(table, {"k": 1, "n": 2**40})
    restored = table.restore(savepoint="narrow").version
    assert table.schema.field("n").type == pa.int32()
    feed = table.changes(version, restored if alone else None)
    assert feed.schema.field("n").type == pa.int64()
    assert told(table, version, restored if alone else None) == [
        {"k": 1, "n": 2**40, "_row_kind": "-U"},
        {"k": 1, "n": 1, "_row_kind": "+U"},
    ]
    assert [row["n"] for row in told(table, 0)] == [1, 2, 1, 2**40, 2**40, 1]
    assert table.changes(restored).schema.field("n").type == pa.int32(), "wider only where a restore is told"


def test_columns_and_fields_that_are_restored_away(tmp_path: Path) -> None:
    ddl = "k BIGINT, s STRUCT<a: INT, l: ARRAY<INT> NOT NULL>, m MAP<STRING, INT>"
    table = made(tmp_path / "t", ddl)
    first = put(table, {"k": 1, "s": {"a": 1, "l": [1]}, "m": [("x", 1)]}, {"k": 2, "s": None, "m": None})
    table.alter(
        add_columns="note STRING, s.z DOUBLE", widen={"s.a": "BIGINT", "s.l.element": "DOUBLE", "m.value": "BIGINT"}
    )
    table.alter(nullable=["s.l"])
    rich = {"k": 1, "s": {"a": 2**40, "l": None, "z": 0.5}, "m": [("x", 2**50)], "note": "kept"}
    version = put(
        table, rich, {"k": 3, "s": None, "m": None, "note": "gone"}, {"k": 2, "s": None, "m": None, "note": "n"}
    )
    restored = table.restore(version=first).version
    assert told(table, version, restored) == [
        {**rich, "_row_kind": "-U"},
        {"k": 1, "s": {"a": 1, "l": [1.0], "z": None}, "m": [("x", 1)], "note": None, "_row_kind": "+U"},
        {"k": 2, "s": None, "m": None, "note": "n", "_row_kind": "-U"},
        {"k": 2, "s": None, "m": None, "note": None, "_row_kind": "+U"},
        {"k": 3, "s": None, "m": None, "note": "gone", "_row_kind": "-D"},
    ]


def test_types_that_have_no_common_one_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    """A column that was added, restored away, and added again as something else; and one with a name of the feed."""
    table = made(tmp_path / "t")
    empty = put(table, {"k": 1, "n": 1})
    table.alter(add_columns="x INT, _row_kind STRING")
    numbers = put(table, {"k": 1, "x": 7, "_row_kind": "mine"})
    table.restore(version=empty)
    added = table.alter(add_columns="X STRING")
    texts = put(table, {"k": 1, "X": "seven"})
    restored = table.restore(version=numbers).version
    assert table.schema.names == ["k", "n", "x", "_row_kind"]
    table.restore(version=texts)
    feed = table.changes(texts).read_all()
    assert feed.schema.names[:5] == ["k", "n", "X", f"x_v{restored}", f"_row_kind_v{restored}"]
    assert [tuple(row.values())[1:6] for row in feed.to_pylist()] == [
        (1, "seven", None, None, "-U"),
        (1, None, 7, "mine", "+U"),
        (1, None, 7, "mine", "-U"),
        (1, "seven", None, None, "+U"),
    ]
    assert table.changes(empty).schema.field(f"_row_kind_v{restored}").type == pa.string()
    assert table.changes(added).schema.field("X").type == pa.string()


def test_a_restore_takes_a_merger_back(tmp_path: Path) -> None:
    """Rows before are folded by the merger that they had, rows after by theirs."""
    table = create(tmp_path / "t", schema="k BIGINT, n INT, v STRING", ordering=[])
    table.upsert(frame([(1, 5, "a"), (2, 1, "b")], ["k", "n", "v"], n=pa.int32()))
    table.upsert(frame([(1, 6, "A")], ["k", "n", "v"], n=pa.int32()))
    version = table.version
    table.compact()
    table.alter(merger="aggregate", options={"aggregates": {"n": "sum"}}, widen={"n": "BIGINT"})
    table.upsert(frame([(1, 2**40, None), (2, 1, "B")], ["k", "n", "v"]))
    summed = table.version
    restored = table.restore(version=version).version
    assert told(table, summed, restored) == [
        {"k": 1, "n": 2**40 + 6, "v": "A", "_row_kind": "-U"},
        {"k": 1, "n": 6, "v": "A", "_row_kind": "+U"},
        {"k": 2, "n": 2, "v": "B", "_row_kind": "-U"},
        {"k": 2, "n": 1, "v": "b", "_row_kind": "+U"},
    ]


WIDER = [("INT", "BIGINT"), ("INT", "DOUBLE"), ("INT", "DECIMAL(12,2)"), ("DATE", "TIMESTAMP_NTZ")]


class Story:
    """A table under commit-time, and what a dictionary says of each version."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.rng = rng
        self.table = made(path, "k BIGINT, n INT, d DATE, s STRUCT<a: INT>")
        self.types: dict[str, str] = {"n": "INT", "d": "DATE", "s.a": "INT"}
        self.rows: dict[int, Row] = {}
        self.versions: dict[int, tuple[dict[int, Row], dict[str, str]]] = {}
        self.note()

    def note(self) -> None:
        """A compaction may have made several versions of the same rows."""
        for version in range(len(self.versions), self.table.version + 1):
            self.versions[version] = ({k: dict(row) for k, row in self.rows.items()}, dict(self.types))

    def step(self) -> None:
        match self.rng.choice(["write", "write", "delete", "alter", "alter", "compact", "restore"]):
            case "write":
                names = [name for name in self.types if "." not in name]
                chosen = [name for name in names if self.rng.random() < 0.7]
                records = [{"k": k, **{n: self.value(n) for n in (*chosen, "s")}} for k in self.keys()]
                put(self.table, *records)
                self.rows |= {row["k"]: self.rows.get(row["k"], {}) | row for row in records}
            case "delete":
                keys = self.keys()
                self.table.delete(pa.table({"k": keys}))
                self.rows = {k: row for k, row in self.rows.items() if k not in keys}
            case "alter":
                self.alter()
            case "compact":
                self.table.compact(minor=self.rng.random() < 0.5)
            case _:
                version = self.rng.randrange(self.table.version + 1)
                if version != self.table.version:
                    self.table.restore(version=version)
                    rows, types = self.versions[version]
                    self.rows, self.types = {k: dict(row) for k, row in rows.items()}, dict(types)
        self.note()

    def alter(self) -> None:
        name = self.rng.choice(["n", "d", "s.a", "x", "s.z"])
        if name in self.types:
            wider = [after for before, after in WIDER if before == self.types[name]]
            if not wider:
                return
            self.types[name] = self.rng.choice(wider)
            self.table.alter(widen={name: self.types[name]})
        else:
            self.types[name] = self.rng.choice(["INT", "STRING", "DATE"])
            self.table.alter(add_columns=f"{name} {self.types[name]}")

    def keys(self) -> list[int]:
        return self.rng.sample(range(6), 2)

    def value(self, name: str) -> Any:
        if name == "s":
            fields = [part for part in self.types if part.startswith("s.")]
            return {part[2:]: self.value(part) for part in fields}
        number = self.rng.randrange(4)
        match self.types[name]:
            case "STRING":
                return str(number)
            case "DATE":
                return dt.date(2020, 1, 1 + number)
            case "TIMESTAMP_NTZ":
                return dt.datetime(2020, 1, 1 + number, 12)  # noqa: DTZ001 - the type has no zone
            case "BIGINT":
                return 2**40 + number
            case "DOUBLE":
                return number + 0.5
            case kind:
                return number if kind == "INT" else Decimal(number) / 4


def plain(row: Mapping[str, Any]) -> Row:
    """Without nulls. Columns of one name and several types become one: a row has a value in at most one of them."""
    found: Row = {}
    for name, value in row.items():
        shown = plain(value) if isinstance(value, dict) else value
        if type(shown) is dt.date:
            shown = dt.datetime.combine(shown, dt.time())
        if shown is not None:
            source = re.sub(r"_v\d+_*$", "", name)
            assert source not in found, f"{source} is told twice in {row}"
            found[source] = shown
    return found


def by_version(table: LakeTable, since: int, until: int) -> Iterator[tuple[int, list[tuple[str, Row]]]]:
    """The feed's changes, kind and row, of each version."""
    found: dict[int, list[tuple[str, Row]]] = {version: [] for version in range(since + 1, until + 1)}
    for row in table.changes(since, until).read_all().drop_columns(["_commit_timestamp"]).to_pylist():
        found[row.pop("_commit_version")].append((row.pop("_row_kind"), plain(row)))
    yield from found.items()


@pytest.mark.parametrize("seed", some(range(12)))
def test_the_feed_of_any_range_leads_from_version_to_version(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    story = Story(tmp_path / "t", rng)
    for _ in range(30):
        story.step()
    last = story.table.version
    ranges = [(version, version + 1) for version in range(last)]
    ranges += [(0, last), (last // 3, last), (last // 2, last), (0, last // 2), (last // 3, last * 2 // 3)]
    for since, until in ranges:
        held = {k: plain(row) for k, row in story.versions[since][0].items()}
        for version, changes in by_version(story.table, since, until):
            for kind, row in changes:
                if kind in ("-U", "-D"):
                    assert held.pop(row["k"]) == row
                else:
                    assert held.setdefault(row["k"], row) is row
            assert held == {k: plain(row) for k, row in story.versions[version][0].items()}, f"{since} to {version}"


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        ("INT", "BIGINT", "BIGINT"),
        ("DECIMAL(12,2)", "INT", "DECIMAL(12,2)"),
        ("BIGINT", "DOUBLE", None),
        ("INT", "STRING", None),
        ("ARRAY<INT>", "INT", None),
        ("ARRAY<INT>", "ARRAY<DOUBLE>", "ARRAY<DOUBLE>"),
        ("STRUCT<a: INT NOT NULL>", "STRUCT<a: DOUBLE>", "STRUCT<a: DOUBLE>"),
        ("MAP<INT, INT>", "MAP<BIGINT, INT>", None),
        ("MAP<INT, FLOAT>", "MAP<INT, DOUBLE>", "MAP<INT, DOUBLE>"),
        ("STRUCT<a: INT, b: BIGINT>", "STRUCT<b: INT, a: BIGINT, c: INT>", "STRUCT<a: BIGINT, b: BIGINT, c: INT>"),
        ("STRUCT<a: INT>", "STRUCT<a: STRING>", None),
        ("STRUCT<a: INT>", "STRUCT<A: INT>", None),
    ],
)
def test_the_type_that_both_fit_into(left: str, right: str, both: str | None) -> None:
    kinds = [nullable_throughout(to_arrow_schema(f"x {kind}").field(0)).type for kind in (left, right)]
    expected = None if both is None else to_arrow_schema(f"x {both}").field(0).type
    assert common_type(*kinds) == expected
    swapped = common_type(*kinds[::-1])
    assert (swapped is None) == (expected is None)


def test_names_of_columns_of_their_own_are_free() -> None:
    schemas = [(9, "k INT, x INT, x_v4 INT"), (4, "k INT, x STRING, x_v4 INT"), (2, "k INT, X STRING, x_v4 DATE")]
    columns = FeedColumns.of([(version, to_arrow_schema(ddl)) for version, ddl in schemas])
    assert columns.schema.names == ["k", "x", "x_v4", "x_v4_", "x_v4_v2"]
    rows = pa.table({"k": pa.array([1], pa.int32()), "X": ["a"], "x_v4": pa.array([0], pa.date32())})
    [row] = columns.shaped(rows).to_pylist()
    assert row == {"k": 1, "x": None, "x_v4": None, "x_v4_": "a", "x_v4_v2": dt.date(1970, 1, 1)}
