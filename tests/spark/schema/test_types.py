"""Every type of Delta, through every door, exactly.

Values are compared as written here, floats by their bits: NaN equals NaN, and -0.0 is not 0.0.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakemerge import LakeTable, Settings
from lakemerge.schema.schema import to_ddl
from tests.property.effort import some

PLAIN = (
    "id BIGINT, at INT, b BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT, i64 BIGINT, f FLOAT, d DOUBLE, "
    "n5 DECIMAL(5,2), n18 DECIMAL(18,0), n38 DECIMAL(38,10), s STRING, bin BINARY, day DATE, ts TIMESTAMP, "
    "l ARRAY<INT>, ll ARRAY<ARRAY<STRING>>, m MAP<STRING, DECIMAL(20,2)>, "
    "st STRUCT<x: INT, deep: STRUCT<y: STRING, z: ARRAY<STRUCT<t: TIMESTAMP, n: DECIMAL(38,0)>>>>, "
    "ms MAP<INT, STRUCT<day: DATE, f: DOUBLE>>"
)
WITH_NTZ = PLAIN + ", ntz TIMESTAMP_NTZ, lz ARRAY<TIMESTAMP_NTZ>"
UTC = dt.UTC
NAN = float("nan")


def instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def wide(text: str) -> Decimal:
    return Decimal(text)


FIRST: dict[str, Any] = {
    "b": True, "i8": -128, "i16": -(2**15), "i32": -(2**31), "i64": -(2**63), "f": -0.0, "d": NAN,
    "n5": wide("-999.99"), "n18": wide("-999999999999999999"), "n38": wide("-9999999999999999999999999999.9999999999"),
    "s": "", "bin": b"", "day": dt.date(1, 1, 1), "ts": instant("0001-01-01T00:00:00.000001"),
    "l": [], "ll": [[], None, ["", None]], "m": [], "st": {"x": None, "deep": {"y": None, "z": []}},
    "ms": [(0, None)], "ntz": local("0001-01-01"), "lz": [],
}  # fmt: skip
LAST: dict[str, Any] = {
    "b": False, "i8": 127, "i16": 2**15 - 1, "i32": 2**31 - 1, "i64": 2**63 - 1, "f": math.inf, "d": -math.inf,
    "n5": wide("999.99"), "n18": wide("999999999999999999"), "n38": wide("9999999999999999999999999999.9999999999"),
    "s": "ø🦆\x00\n", "bin": b"\x00\xff", "day": dt.date(9999, 12, 31), "ts": instant("9999-12-31T23:59:59.999999"),
    "l": [1, None, -1], "ll": [["a"]], "m": [("k", None), ("", wide("-1.50"))],
    "st": {"x": 1, "deep": {"y": "y", "z": [None, {"t": instant("1969-12-31T23:59:59.999999"), "n": wide("9" * 38)}]}},
    "ms": [(1, {"day": dt.date(1582, 10, 4), "f": -0.0}), (2, {"day": None, "f": NAN})],
    "ntz": local("9999-12-31T23:59:59.999999"), "lz": [None, local("1969-12-31T23:59:59.000001")],
}  # fmt: skip
SMALL: dict[str, Any] = {
    "b": None, "i8": 0, "i16": 0, "i32": 0, "i64": 0, "f": 2.0**-149, "d": 5e-324,
    "n5": wide("0.00"), "n18": wide("0"), "n38": wide("0.0000000001"),
    "s": "x" * 300, "bin": b"\x80" * 300, "day": dt.date(1582, 10, 5), "ts": instant("1582-10-04T00:00:00.5"),
    "l": None, "ll": None, "m": None, "st": {"x": 5, "deep": None}, "ms": None,
    "ntz": local("1582-10-10T01:02:03.000004"), "lz": None,
}  # fmt: skip
PLAIN_ROW: dict[str, Any] = {
    "b": True, "i8": 1, "i16": 1, "i32": 1, "i64": 1, "f": NAN, "d": -0.0,
    "n5": wide("-0.01"), "n18": wide("1"), "n38": wide("1.0000000000"),
    "s": "plain", "bin": b"a", "day": dt.date(1969, 12, 31), "ts": instant("2024-02-29T12:00:00.123456"),
    "l": [7], "ll": [], "m": [("a", wide("0.00"))], "st": None, "ms": [],
    "ntz": local("2024-02-29T02:30:00"), "lz": [local("0001-01-01")],
}  # fmt: skip
ROWS = [{"id": number, "at": 1, **row} for number, row in enumerate((FIRST, LAST, {}, SMALL, PLAIN_ROW), start=1)]


def exact(value: Any) -> Any:
    """A value that compares equal only to the very same: floats by their bits, maps as sorted pairs."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, tuple):
        return tuple(exact(item) for item in value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, Decimal):
        return value.as_tuple()
    return value


def exact_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows = sorted(table.to_pylist(), key=lambda row: row["id"])
    return [{name: exact(in_map_order(value)) for name, value in row.items()} for row in rows]


def in_map_order(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return sorted(value, key=lambda pair: pair[0])
    return value


def frame_of(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """All fields nullable, as frames come."""
    return pa.Table.from_pylist(list(rows), schema=pa.schema([field.with_nullable(True) for field in schema]))


def check(table: LakeTable, spark: SparkSession, rows: Sequence[dict[str, Any]]) -> None:
    expected = exact_rows(frame_of(table.schema, rows))
    assert exact_rows(table.to_arrow()) == expected
    assert exact_rows(table.to_df().toArrow()) == expected
    loaded = spark.read.format("lakemerge").load(table.url)
    assert exact_rows(loaded.toArrow()) == expected


@pytest.mark.parametrize("ddl", [PLAIN, WITH_NTZ], ids=["reader 1", "reader 3"])
def test_the_schema_is_the_same_however_it_is_given(spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    struct_type = spark.createDataFrame([], ddl).schema
    by_ddl = LakeTable.create(tmp_path / "ddl", ddl, key=["id"], ordering=["at"])
    by_struct = LakeTable.create(tmp_path / "struct", struct_type, key=["id"], ordering=["at"])
    by_arrow = LakeTable.create(tmp_path / "arrow", by_ddl.schema, key=["id"], ordering=["at"])
    required = StructType.fromJson(struct_type.jsonValue())
    required["id"].nullable = False
    for table in (by_ddl, by_struct, by_arrow):
        assert table.schema.equals(by_ddl.schema, check_metadata=True)
        snapshot = table.opened.view.snapshot
        assert StructType.fromJson(json.loads(snapshot.metadata.schema_string)) == required
        ntz = ddl == WITH_NTZ
        assert snapshot.protocol.min_reader == (3 if ntz else 1)
        assert snapshot.protocol.reader_features == (frozenset({"timestampNtz"}) if ntz else frozenset())
        assert ("timestampNtz" in snapshot.protocol.writer_features) == ntz
    assert by_ddl.schema.field("n38").type == pa.decimal128(38, 10)
    assert by_ddl.schema.field("ts").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("door", some(["spark", "arrow"]))
def test_values_survive_load_log_merge_and_compaction(
    spark: SparkSession, tmp_path: Path, reads: Settings, door: str
) -> None:
    table = LakeTable.create(tmp_path, WITH_NTZ, key=["id"], ordering=["at"], buckets=1, settings=reads, spark=spark)

    def upsert(rows: Sequence[dict[str, Any]]) -> None:
        frame = frame_of(table.schema, rows)
        table.upsert(spark.createDataFrame(frame, to_ddl(frame.schema)) if door == "spark" else frame)

    upsert(ROWS[:3])
    check(table, spark, ROWS[:3])
    # Every row's values move to another key, so that each is once in the base and once in a log.
    later = [{**row, "id": row["id"] % 3 + 1, "at": 2} for row in ROWS[:3]]
    upsert([*later, *ROWS[3:]])
    expected = [*later, *ROWS[3:]]
    assert table.explain_read().first == reads.reads.premerge
    check(table, spark, expected)
    table.compact()
    check(table, spark, expected)
    # Delta readers see the same, statistics included.
    assert exact_rows(spark.read.format("delta").load(table.url).toArrow()) == exact_rows(
        frame_of(table.schema, expected)
    )


def test_filters_at_the_ends_of_time(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id BIGINT, day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ"
    table = LakeTable.create(tmp_path, ddl, key=["id"], buckets=1, spark=spark)
    rows = [{name: row.get(name) for name in ("id", "day", "ts", "ntz")} for row in ROWS]
    frame = frame_of(table.schema, rows)
    table.upsert(spark.createDataFrame(frame, to_ddl(frame.schema)))
    for sql, ids in (
        ("ts < TIMESTAMP'0001-01-01 00:00:00.000002'", [1]),
        ("ts > TIMESTAMP'9999-12-31 23:59:59.999998'", [2]),
        ("ts = TIMESTAMP'1582-10-04 00:00:00.5'", [4]),
        ("ntz <= TIMESTAMP_NTZ'0001-01-01 00:00:00'", [1]),
        ("day = DATE'0001-01-01' OR day = DATE'9999-12-31'", [1, 2]),
        ("day BETWEEN DATE'1582-10-05' AND DATE'1582-10-14'", [4]),
    ):
        assert sorted(table.to_arrow(filter=sql)["id"].to_pylist()) == ids, sql
        assert sorted(row.id for row in table.to_df(columns=["id"], filter=sql).collect()) == ids, sql


KEY_TYPES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 0, 127],
    "DECIMAL(5,2)": [wide("-999.99"), wide("0.00"), wide("1.10")],
    "DECIMAL(38,10)": [wide("-1.0000000001"), wide("0"), wide("9999999999999999999999999999.9999999999")],
    "STRING": ["", "a", "B", "ø", "🦆", "\uffff"],
    "BINARY": [b"", b"\x00", b"\xff", b"a" * 400],
    "DATE": [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31)],
    "TIMESTAMP": [instant(text) for text in ("0001-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999", "2024-01-01")],
    "TIMESTAMP_NTZ": [local(text) for text in ("0001-01-01", "1969-12-31T23:59:59.999999", "2024-01-01")],
}


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_keys_of_every_type(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """A load in the JVM, then an append whose buckets Arrow computes: a key that hashed or compared
    differently would stand there twice."""
    table = LakeTable.create(tmp_path, f"k {kind}, v INT", key=["k"], buckets=4, spark=spark)
    values = KEY_TYPES[kind]

    def rows(number: int, keys: Sequence[Any]) -> pa.Table:
        return frame_of(table.schema, [{"k": key, "v": number} for key in keys])

    first = rows(1, values)
    assert table.upsert(spark.createDataFrame(first, to_ddl(first.schema))).mode == "load"
    table.upsert(rows(2, values[1:]))
    expected = {key: 1 if key == values[0] else 2 for key in values}
    for _ in range(2):
        found = table.to_df().toArrow().to_pylist()
        assert len(found) == len(values)
        assert {row["k"]: row["v"] for row in found} == expected
        table.compact()


@pytest.mark.long
def test_partitions_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {kind: values for kind, values in KEY_TYPES.items() if kind != "BINARY"}
    names = [f"p{n}" for n in range(len(kinds))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    table = LakeTable.create(
        tmp_path, f"id INT, {columns}, v INT", key=["id", *names], partition_by=names, buckets=1, spark=spark
    )
    # An empty string is null to Delta, and refused elsewhere.
    usable = [[value for value in values if value != ""] for values in kinds.values()]
    rows = [
        {"id": n % 2, "v": 1, **{name: values[n % len(values)] for name, values in zip(names, usable, strict=True)}}
        for n in range(6)
    ]
    frame = frame_of(table.schema, rows)
    rows = frame.to_pylist()
    table.upsert(spark.createDataFrame(frame, to_ddl(frame.schema)))
    table.upsert(frame_of(table.schema, [{**rows[0], "v": 2}]))
    rows[0]["v"] = 2
    for _ in range(2):
        found = table.to_df().toArrow()
        assert multiset(found.to_pylist()) == multiset(rows) == multiset(table.to_arrow().to_pylist())
        for name in names:
            values = {row[name] for row in rows}
            for value in values:
                wanted = [row for row in rows if row[name] == value]
                assert multiset(table.to_df(filter=f"{name} = {literal(value)}").toArrow().to_pylist()) == multiset(
                    wanted
                )
        table.compact()
    delta = spark.read.format("delta").load(table.url).toArrow()
    assert multiset(delta.select(table.schema.names).to_pylist()) == multiset(rows)


def multiset(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: exact(value) for name, value in sorted(row.items())}) for row in rows)


def literal(value: Any) -> str:
    match value:
        case bool():
            return str(value)
        case dt.datetime():
            zone = "_NTZ" if value.tzinfo is None else ""
            return f"TIMESTAMP{zone}'{value.replace(tzinfo=None).isoformat(' ')}'"
        case dt.date():
            return f"DATE'{value.isoformat()}'"
        case str():
            return f"'{value}'"
        case Decimal():
            return f"{value}BD"
        case _:
            return str(value)
