"""Wider types: which there are, what a table's metadata says of them, and that files of all ages read alike."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import (
    CommitConflictError,
    CompactFirstError,
    FrameError,
    LakeTable,
    MergerConfigurationError,
    SchemaError,
    Settings,
    UnsupportedFeatureError,
)
from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.schema.ddl import parse_ddl
from lakemerge.schema.schema import from_delta_json
from lakemerge.schema.widening import check_type_changes, is_wider
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over, rows_of

# Delta protocol, "Type Widening": the supported type changes.
WIDER = {
    "TINYINT": ["SMALLINT", "INT", "BIGINT", "DOUBLE", "DECIMAL(10,0)", "DECIMAL(13,3)", "DECIMAL(38,28)"],
    "SMALLINT": ["INT", "BIGINT", "DOUBLE", "DECIMAL(10,0)", "DECIMAL(12,1)"],
    "INT": ["BIGINT", "DOUBLE", "DECIMAL(10,0)", "DECIMAL(12,2)"],
    "BIGINT": ["DECIMAL(20,0)", "DECIMAL(22,2)"],
    "FLOAT": ["DOUBLE"],
    "DATE": ["TIMESTAMP_NTZ"],
    "DECIMAL(6,2)": ["DECIMAL(7,2)", "DECIMAL(10,4)", "DECIMAL(8,4)"],
}
NARROWER = {
    "TINYINT": ["FLOAT", "DECIMAL(9,0)", "DECIMAL(12,3)", "STRING", "TINYINT"],
    "INT": ["SMALLINT", "INT", "FLOAT", "DECIMAL(11,2)", "STRING"],
    "BIGINT": ["INT", "DOUBLE", "DECIMAL(19,0)", "DECIMAL(20,1)", "TIMESTAMP_NTZ"],
    "FLOAT": ["FLOAT", "DECIMAL(38,10)"],
    "DOUBLE": ["FLOAT", "DOUBLE", "BIGINT"],
    "DATE": ["TIMESTAMP", "STRING", "DATE"],
    "DECIMAL(6,2)": ["DECIMAL(6,2)", "DECIMAL(6,3)", "DECIMAL(7,4)", "DECIMAL(7,1)", "DOUBLE"],
    "TIMESTAMP_NTZ": ["TIMESTAMP"],
    "STRING": ["BINARY"],
    "BOOLEAN": ["INT"],
}


def kind(ddl: str) -> pa.DataType:
    return parse_ddl(f"x {ddl}").field(0).type


def test_what_is_wider() -> None:
    for before, afters in WIDER.items():
        assert all(is_wider(kind(before), kind(after)) for after in afters), before
        assert not any(is_wider(kind(after), kind(before)) for after in afters), before
    for before, afters in NARROWER.items():
        assert not any(is_wider(kind(before), kind(after)) for after in afters), before


def metadata_of(path: Path) -> Snapshot:
    return DeltaLog(LocalStore(path)).snapshot()


NOON = dt.datetime(2020, 1, 3, 12)  # noqa: DTZ001 - the type has no zone

# The column, its type, its wider type, values that it had before, and one that only the wider type has.
CASES: list[tuple[str, str, list[Any], Any]] = [
    ("TINYINT", "SMALLINT", [1, -128, None], 300),
    ("SMALLINT", "BIGINT", [1, -32768, None], 2**40),
    ("INT", "BIGINT", [1, -(2**31), None], 2**40),
    ("INT", "DOUBLE", [1, 2**31 - 1, None], 1.5),
    ("INT", "DECIMAL(12,2)", [1, -(2**31), None], Decimal("1.25")),
    ("BIGINT", "DECIMAL(22,2)", [1, -(2**63), None], Decimal("1.25")),
    ("FLOAT", "DOUBLE", [0.5, -1.25, None], 0.1),
    ("DECIMAL(6,2)", "DECIMAL(10,4)", [Decimal("1.25"), Decimal("-9999.99"), None], Decimal("0.0001")),
    ("DATE", "TIMESTAMP_NTZ", [dt.date(2020, 1, 1), dt.date(1900, 2, 28), None], NOON),
]


def value(x: Any, ddl: str) -> Any:
    """What a value of before is in the wider type, by hand."""
    if x is None:
        return None
    if ddl == "TIMESTAMP_NTZ" and not isinstance(x, dt.datetime):
        return dt.datetime(x.year, x.month, x.day)  # noqa: DTZ001 - the type has no zone
    return Decimal(x) if ddl.startswith("DECIMAL") else x


@pytest.mark.parametrize(
    ("before", "after", "old", "new"), CASES, ids=lambda case: case if isinstance(case, str) else ""
)
def test_files_of_all_ages_read_alike(tmp_path: Path, before: str, after: str, old: list[Any], new: Any) -> None:
    """Base file, old log, new log: column ``x``, field ``s.x``, elements ``xs`` and values ``m``."""
    ddl = f"k BIGINT, o BIGINT, x {before}, s STRUCT<x: {before}>, xs ARRAY<{before}>, m MAP<STRING, {before}>"
    table = create(tmp_path / "t", schema=ddl, settings=Settings(row_group_rows=2))

    def rows(keys: list[int], values: list[Any], order: int) -> list[dict[str, Any]]:
        return [
            {"k": k, "o": order, "x": x, "s": {"x": x}, "xs": [x, None], "m": [("a", x)]}
            for k, x in zip(keys, values, strict=True)
        ]

    def write(given: list[dict[str, Any]]) -> None:
        table.upsert(pa.Table.from_pylist(given, schema=table.schema))

    write(rows([1, 2, 3, 4], [*old, old[0]], 1))
    write(rows([4, 5], old[1:], 2))
    assert LakeTable.open(tmp_path / "t").alter(widen={"x": after, "s.x": after, "xs.element": after, "m.value": after})
    expected = {row["k"]: row for row in rows([1, 2, 3], [value(x, after) for x in old], 1)}
    expected |= {row["k"]: row for row in rows([4, 5], [value(x, after) for x in old[1:]], 2)}

    def check() -> None:
        found = {row["k"]: row for row in table.to_arrow().to_pylist()}
        assert found == expected
        assert table.schema.field("x").type == kind(after)
        for row in expected.values():
            assert table.get({"k": row["k"]}) == row
            if row["x"] is not None:
                same = sorted(k for k, other in expected.items() if other["x"] == row["x"])
                condition = pc.field("x") == pa.scalar(row["x"], kind(after))
                assert sorted(table.to_arrow(filter=condition)["k"].to_pylist()) == same
        nulls = sorted(k for k, row in expected.items() if row["x"] is None)
        assert sorted(table.to_arrow(filter="x is null")["k"].to_pylist()) == nulls
        least = min(row["x"] for row in expected.values() if row["x"] is not None)
        above = sorted(k for k, row in expected.items() if row["x"] is not None and row["x"] > least)
        assert sorted(table.to_arrow(filter=pc.field("x") > least)["k"].to_pylist()) == above
        assert LakeTable.check(tmp_path / "t").findings == ()

    check()
    write(rows([2, 6], [new, new], 3))
    expected |= {row["k"]: row for row in rows([2, 6], [new, new], 3)}
    check()
    table.compact(minor=True)
    check()
    write(rows([1], [new], 4))
    expected |= {row["k"]: row for row in rows([1], [new], 4)}
    table.compact_logs()
    check()
    table.compact()
    check()
    earlier = LakeTable.open(tmp_path / "t", version=2).to_arrow()
    assert earlier.schema.field("x").type == kind(before)
    assert sorted(earlier["k"].to_pylist()) == [1, 2, 3, 4, 5]


def test_what_the_metadata_says(tmp_path: Path) -> None:
    """As the protocol's examples have it."""
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, e SMALLINT, l ARRAY<MAP<STRING, DECIMAL(6,2)>>")
    protocol = metadata_of(tmp_path / "t").protocol
    assert (protocol.min_reader, protocol.reader_features) == (1, frozenset())
    assert table.alter(widen={"E": "INT"}, comments={"e": "size"}) == 1
    assert table.alter(widen={"e": pa.int64(), "l.element.value": "DECIMAL(10,4)"}) == 2
    assert table.alter(widen={"e": "BIGINT"}) == 2  # it is that already
    after = metadata_of(tmp_path / "t")
    assert (after.protocol.min_reader, after.protocol.min_writer) == (3, 7)
    assert after.protocol.reader_features == {"typeWidening"}
    assert after.protocol.writer_features == protocol.writer_features | {"typeWidening"}
    assert after.metadata.configuration["delta.enableTypeWidening"] == "true"
    fields = {field["name"]: field for field in json.loads(after.metadata.schema_string)["fields"]}
    assert fields["e"]["type"] == "long"
    assert fields["e"]["metadata"] == {
        "comment": "size",
        "delta.typeChanges": [
            {"fromType": "short", "toType": "integer"},
            {"fromType": "integer", "toType": "long"},
        ],
    }
    change = {"fromType": "decimal(6,2)", "toType": "decimal(10,4)", "fieldPath": "element.value"}
    assert fields["l"]["metadata"] == {"delta.typeChanges": [change]}
    # What is noted survives other changes, and comes back with a checkpoint.
    table.alter(add_columns="z INT", order=["z"], comments={"e": None})
    table.upsert(pa.table({"k": [1], "o": [1], "new": ["x"]}), merge_schema=True)
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    again = json.loads(metadata_of(tmp_path / "t").metadata.schema_string)["fields"]
    assert next(field for field in again if field["name"] == "e")["metadata"] == {
        "delta.typeChanges": fields["e"]["metadata"]["delta.typeChanges"]
    }
    assert table.history(limit=None)[-2].operation == "CHANGE COLUMNS"


def test_a_date_brings_the_feature_of_times_without_zone(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, d DATE")
    table.alter(widen={"d": "TIMESTAMP_NTZ"})
    protocol = metadata_of(tmp_path / "t").protocol
    assert protocol.reader_features == {"typeWidening", "timestampNtz"}
    assert {"typeWidening", "timestampNtz"} <= protocol.writer_features


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"k": "DECIMAL(20,0)"}, "key column 'k' cannot get another type"),
        ({"n": "SMALLINT"}, "'n' cannot become SMALLINT, since it is INT. Wider types are"),
        ({"n": "FLOAT"}, "'n' cannot become FLOAT"),
        ({"n": "STRING"}, "'n' cannot become STRING"),
        ({"s": "STRUCT<a: BIGINT>"}, "'s' cannot become"),
        ({"s.a": "STRING"}, "'s.a' cannot become STRING"),
        ({"l.element": "INT"}, "'l.element' cannot become INT"),
        ({"l.key": "BIGINT"}, "has no field 'key'"),
        ({"x": "BIGINT"}, "unknown column 'x'"),
        ({"s.x": "BIGINT"}, "unknown column 's.x'"),
        ({"n": 7}, "must be DDL or a pyarrow.DataType"),
        ({"n": "NUMBER"}, "unknown type"),
        ({"n": "DECIMAL(10,0)", "k": "DECIMAL(20,0)"}, "key column"),
    ],
)
def test_what_is_refused(tmp_path: Path, types: dict[str, Any], message: str) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, n INT, s STRUCT<a: INT>, l ARRAY<BIGINT>")
    with pytest.raises(SchemaError, match=message):
        table.alter(widen=types)
    assert table.version == 0
    assert metadata_of(tmp_path / "t").protocol.min_reader == 1


def test_a_frame_with_a_wider_type_is_refused_unless_asked_for(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, n INT")
    wide = pa.table({"k": [1], "o": [1], "n": [2**40]})
    for merge in (False, True):
        with pytest.raises(FrameError, match="'n' is BIGINT, the table has INT: 1099511627776 in row 0"):
            table.upsert(wide, merge_schema=merge)
        table.upsert(pa.table({"k": [1], "o": [0], "n": [7]}), merge_schema=merge)
        assert table.schema.field("n").type == pa.int32()
    table.alter(widen={"n": "BIGINT"})
    table.upsert(wide)
    assert table.get({"k": 1}) == {"k": 1, "o": 1, "n": 2**40}


def test_the_ordering_may_get_wider(tmp_path: Path) -> None:
    """Stored orderings, those of tombstones and those of old and new logs compare as the wider type."""
    table = create(tmp_path / "t", schema="k BIGINT, o INT, v STRING")

    def write(rows: list[tuple[int, Any, str]]) -> None:
        table.upsert(frame(rows, ["k", "o", "v"], o=table.schema.field("o").type))

    write([(1, 10, "a"), (2, 10, "a"), (3, 10, "a")])
    table.delete(frame([(3, 20)], ["k", "o"], o=pa.int32()))
    table.compact()
    write([(2, 11, "b")])
    table.alter(widen={"o": "DECIMAL(12,1)"})
    write([(1, Decimal("9.9"), "late"), (2, Decimal("11.1"), "c"), (3, Decimal("19.9"), "late")])
    for state in ("logs", "minor", "full"):
        if state != "logs":
            table.compact(minor=state == "minor")
        assert rows_of(table.to_arrow()) == [(1, Decimal("10.0"), "a"), (2, Decimal("11.1"), "c")], state
    write([(3, Decimal("20.1"), "back")])
    assert table.get({"k": 3}) == {"k": 3, "o": Decimal("20.1"), "v": "back"}


def test_a_merger_that_computes_folds_in_one_type(tmp_path: Path) -> None:
    """A quotient of integers is cut, one of doubles is not: what was written before is folded before."""
    path = tmp_path / "t"
    table = create(
        path, schema="k BIGINT, n INT", ordering=[], merger="aggregate", options={"aggregates": {"n": "product"}}
    )

    def write(n: int, kind: pa.DataType, op: str = "+U") -> None:
        table.upsert(pa.table({"k": [1], "n": pa.array([n], kind), "op": [op]}), kind_column="op")

    write(7, pa.int32())
    write(2, pa.int32(), "-U")
    with pytest.raises(CompactFirstError, match="types can fold them: compact first"):
        table.alter(widen={"n": "DOUBLE"})
    table.compact()
    table.alter(widen={"n": "DOUBLE"})
    assert table.get({"k": 1}) == {"k": 1, "n": 3.0}
    write(2, pa.int32(), "-U")
    assert table.get({"k": 1}) == {"k": 1, "n": 1.5}


def test_the_merger_has_to_take_the_type(tmp_path: Path) -> None:
    options = {"aggregates": {"n": "count"}}
    table = create(tmp_path / "t", schema="k BIGINT, n INT", ordering=[], merger="aggregate", options=options)
    with pytest.raises(MergerConfigurationError, match="count takes"):
        table.alter(widen={"n": "DOUBLE"})
    table.alter(widen={"n": "BIGINT"})


@pytest.mark.parametrize("what", ["upsert", "compaction"])
def test_what_began_before_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "t"
    create(path, schema="k BIGINT, o BIGINT, n INT").upsert(
        pa.table({"k": [1], "o": [1], "n": pa.array([1], pa.int32())})
    )
    LakeTable.open(path).upsert(pa.table({"k": [1], "o": [2], "n": pa.array([2], pa.int32())}))

    def widen(call: Call) -> None:
        LakeTable.open(path).alter(widen={"n": "BIGINT"})

    table, _ = open_over(path, Fault(action=widen, method="put_if_absent"))
    run: dict[str, Callable[[], object]] = {
        "upsert": lambda: table.upsert(pa.table({"k": [2], "o": [1], "n": pa.array([1], pa.int32())})),
        "compaction": table.compact,
    }
    with pytest.raises(CommitConflictError):
        run[what]()
    assert LakeTable.open(path).to_arrow().to_pylist() == [{"k": 1, "o": 2, "n": 2}]
    run[what]()
    assert LakeTable.open(path).get({"k": 1}) == {"k": 1, "o": 2, "n": 2}


def test_the_change_feed_over_a_change_of_types(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, n INT, s STRUCT<d: DATE>")

    def write(n: int, order: int, day: Any) -> None:
        table.upsert(pa.Table.from_pylist([{"k": 1, "o": order, "n": n, "s": {"d": day}}], schema=table.schema))

    write(1, 1, dt.date(2020, 1, 1))
    write(2, 2, dt.date(2020, 1, 2))
    widened = table.alter(widen={"n": "BIGINT", "s.d": "TIMESTAMP_NTZ"}, add_columns="s.z INT")
    write(2**40, widened + 1, NOON)
    first, second = (dt.datetime(2020, 1, day) for day in (1, 2))  # noqa: DTZ001 - the type has no zone
    rows = [(row["_row_kind"], row["n"], row["s"]["d"]) for row in table.changes(since=0).read_all().to_pylist()]
    assert rows == [
        ("+I", 1, first),
        ("-U", 1, first),
        ("+U", 2, second),
        ("-U", 2, second),
        ("+U", 2**40, NOON),
    ]
    # The version of before has its own types again.
    table.restore(version=widened - 1)
    assert table.schema.field("n").type == pa.int32()
    assert table.to_arrow().column("n").to_pylist() == [2]
    last = table.version
    assert [row["n"] for row in table.changes(since=0, until=last - 1).read_all().to_pylist()] == [1, 1, 2, 2, 2**40]
    over = table.changes(since=widened).read_all()
    assert [(row["_row_kind"], row["n"], row["s"]) for row in over.to_pylist()] == [
        ("-U", 2, {"d": second, "z": None}),
        ("+U", 2**40, {"d": NOON, "z": None}),
        ("-U", 2**40, {"d": NOON, "z": None}),
        ("+U", 2, {"d": second, "z": None}),
    ], "in the wider types, since a restore is among the commits"
    assert over.schema.field("n").type == pa.int64()
    write(3, 3, dt.date(2020, 1, 4))
    assert table.to_arrow().column("n").to_pylist() == [3]
    assert table.changes(since=last).read_all().schema.field("n").type == pa.int32()


@pytest.mark.parametrize(
    "change",
    [
        {"fromType": "string", "toType": "integer"},
        {"fromType": "integer", "toType": "variant"},
        {"fromType": "integer"},
        "integer",
    ],
)
def test_a_change_that_is_not_known_is_refused(change: Any) -> None:
    inner = {"name": "x", "type": "integer", "nullable": True, "metadata": {"delta.typeChanges": [change]}}
    outer = {"type": "array", "elementType": {"type": "struct", "fields": [inner]}, "containsNull": True}
    field = {"name": "l", "type": outer, "nullable": True, "metadata": {}}
    schema = from_delta_json(json.dumps({"type": "struct", "fields": [field]}))
    with pytest.raises(UnsupportedFeatureError, match=r"'l\.element\.x' went through a change"):
        check_type_changes(schema)
