"""Avro files of every codec, schema and state: each value as the file has it, or an error of that file alone."""

from __future__ import annotations

import bz2
import datetime as dt
import io
import json
import lzma
import uuid
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import zstandard

from lakemerge import LakeTable
from lakemerge.ingest import Files
from tests.unit.ingest.landing import landed, rows, states

SYNC = b"sixteen bytes --"


def long(number: int) -> bytes:
    """A whole number as the specification has it."""
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def container(schema: Any, *blocks: tuple[int, bytes], codec: str = "null", sync: bytes = SYNC) -> bytes:
    """A file put together by hand. A block: the number of its records, and its bytes as they are stored."""
    meta = {"avro.schema": schema if isinstance(schema, bytes) else json.dumps(schema).encode()}
    meta["avro.codec"] = codec.encode()
    head = b"".join(long(len(key)) + key.encode() + long(len(value)) + value for key, value in meta.items())
    body = b"".join(long(count) + long(len(data)) + data + sync for count, data in blocks)
    return b"Obj\x01" + long(len(meta)) + head + long(0) + SYNC + body


def written(schema: Any, records: list[Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), records, **options)
    return sink.getvalue()


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields], **more}


ID = record(("id", "long"))


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def taken(tmp_path: Path, landing: Path, ddl: str, data: bytes, **more: Any) -> tuple[list[Any], str]:
    """One file into a new table: its rows, and why it failed."""
    table = LakeTable.create(tmp_path / f"t{uuid.uuid4().hex}", ddl, key=["id"])
    landed(landing / "a.avro", data)
    job = table.ingest("j", Files(landing, format="avro"), **more)
    job.run()
    return rows(LakeTable.open(table.url)), job.files()[0].reason or ""


def snappy(data: bytes) -> bytes:
    return pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": raw_deflate,
    "bzip2": bz2.compress,
    "snappy": snappy,
    "xz": lzma.compress,
    "zstandard": zstandard.ZstdCompressor().compress,
}
BODY = b"".join(long(k) for k in range(1000))


@pytest.mark.parametrize("codec", PACKERS)
def test_every_codec_of_the_specification_is_read(codec: str, tmp_path: Path, landing: Path) -> None:
    data = container(ID, (1000, PACKERS[codec](BODY)), (1, PACKERS[codec](long(7000))), codec=codec)
    found, reason = taken(tmp_path, landing, "id BIGINT", data)
    assert (reason, found) == ("", [(k,) for k in [*range(1000), 7000]])


DEEP = b'{"type":"array","items":' * 5000 + b'"long"' + b"}" * 5000
SELF = record(("id", "long"), ("next", ["null", "R"]))
POISON = {
    "empty": b"",
    "garbage": b"not avro at all, but long enough to have a header of some kind",
    "cut in the header": container(ID, (1, long(1)))[:20],
    "cut in a block": container(ID, (1000, BODY))[:-500],
    "cut in the mark": container(ID, (1, long(1)))[:-3],
    "another mark": container(ID, (1, long(1)), sync=b"x" * 16),
    "no schema": container(b""),
    "a schema that is no JSON": container(b"{"),
    "a schema that is no schema": container(5),
    "an unknown type": container(record(("id", "money"))),
    "a union of records": container([ID, record(("id", "long"), name="S")], (1, long(0) + long(1))),
    "values that are no records": container("long", (1, long(1))),
    "a record in itself": container(SELF, (1, long(1) + (long(1) + long(1)) * 300_000 + long(0))),
    "a schema without end": container(b'{"type":"record","name":"R","fields":[{"name":"id","type":' + DEEP + b"}]}"),
    "types by doubling": container(
        record(
            ("id", "long"),
            ("x0", record(("v", "long"), name="T0")),
            *((f"x{k}", record(("a", f"T{k - 1}"), ("b", f"T{k - 1}"), name=f"T{k}")) for k in range(1, 60)),
        )
    ),
    "an unknown codec": container(ID, (1, long(1)), codec="lzo"),
    "a codec that is not used": container(ID, (1, long(1)), codec="snappy"),
    "too few records": container(ID, (2, long(1))),
    "too many records": container(ID, (1, long(1) + long(2))),
    "a negative number of records": container(ID, (-1, long(1))),
    "a text beyond its block": container(record(("id", "long"), ("s", "string")), (1, long(1) + long(9) + b"short")),
    "a text of less than no bytes": container(record(("id", "long"), ("s", "string")), (1, long(1) + long(-9) + b"s")),
    "a text that is not UTF-8": container(record(("id", "long"), ("s", "string")), (1, long(1) + long(1) + b"\xff")),
    "a branch that is not there": container(record(("id", ["null", "long"])), (1, long(7) + long(1))),
    "records without bytes": container(record(), (2**50, b"")),
    "arrays without bytes": container(record(("id", {"type": "array", "items": "null"})), (1, long(2**50) + long(0))),
    "a check sum of snappy": container(ID, (1, snappy(long(1))[:-4] + b"abcd"), codec="snappy"),
    "a number without end": b"Obj\x01" + b"\xff" * 50,
    "a length beyond the file": b"Obj\x01" + long(1) + long(2**60),
}


@pytest.mark.parametrize("title", POISON)
def test_one_file_never_stops_a_job_nor_takes_others_along(title: str, tmp_path: Path, landing: Path) -> None:
    """In one window with files that are good."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT, s STRING", key=["id"])
    landed(landing / "a.avro", container(ID, (1, long(1))), at=1)
    landed(landing / "b.avro", POISON[title], at=2)
    landed(landing / "c.avro", container(ID, (1, long(3))), at=3)
    job = table.ingest("j", Files(landing, format="avro"))
    result = job.run()
    assert (result.files, result.failed, result.to_retry) == (2, 1, 1)
    assert states(job) == {"a.avro": "committed", "b.avro": "failed", "c.avro": "committed"}
    assert rows(LakeTable.open(table.url)) == [(1, None), (3, None)]
    assert str(job.files(state="failed")[0].reason).startswith(str(landing / "b.avro"))


def test_named_types_are_what_they_name(tmp_path: Path, landing: Path) -> None:
    """Used twice, in namespaces, and as new columns."""
    point = record(("x", "int"), ("at", {"type": "long", "logicalType": "timestamp-millis"}), name="geo.Point")
    color = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"], "namespace": "geo"}
    schema = record(
        ("id", "long"),
        ("a", point),
        ("b", ["null", "geo.Point"]),
        ("c", color),
        ("d", {"type": "array", "items": "geo.Color"}),
        ("e", {"type": "fixed", "name": "geo.Two", "size": 2}),
        ("f", "geo.Two"),
        name="app.Row",
    )
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    one = {"x": 1, "at": moment}
    data = written(schema, [{"id": 1, "a": one, "b": one, "c": "RED", "d": ["BLUE"], "e": b"ab", "f": b"cd"}])
    kind = "STRUCT<x: INT, at: TIMESTAMP>"
    ddl = f"id BIGINT, a {kind}, b {kind}, c STRING, d ARRAY<STRING>, e BINARY, f BINARY"
    expected = [(1, one, one, "RED", ["BLUE"], b"ab", b"cd")]
    assert taken(tmp_path, landing, ddl, data) == (expected, "")
    table = LakeTable.create(tmp_path / "grown", "id BIGINT", key=["id"])
    assert table.ingest("j", Files(landing, format="avro"), merge_schema=True).run().failed == 0
    grown = LakeTable.open(table.url)
    assert (rows(grown), grown.schema.field("b").type) == (expected, grown.schema.field("a").type)
    assert pa.types.is_struct(grown.schema.field("b").type)


MICROS = 1_529_501_823_123_456
MOMENT = dt.datetime(2018, 6, 20, 13, 37, 3, 123456, tzinfo=dt.UTC)
UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
TWELVE = long(2) + (1250).to_bytes(2, "big")


def of_long(logical: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": logical}


def of_connect(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "connect.version": 1, "connect.name": name, **more}


@pytest.mark.parametrize(
    ("schema", "data", "column", "expected"),
    [
        (DECIMAL, TWELVE, "DECIMAL(6,2)", Decimal("12.50")),
        (DECIMAL, TWELVE, "DECIMAL(9,4)", Decimal("12.50")),
        (DECIMAL, TWELVE, "DECIMAL(3,1)", Decimal("12.5")),
        (DECIMAL, TWELVE, "DOUBLE", 12.5),
        (DECIMAL, TWELVE, "STRING", "12.50"),
        (DECIMAL, TWELVE, "INT", None),
        (DECIMAL, long(2) + (1200).to_bytes(2, "big"), "INT", 12),
        ({"type": "bytes", "logicalType": "decimal"}, TWELVE, "BINARY", b"\x04\xe2"),  # no precision: bytes
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2},
            TWELVE,
            "DECIMAL(6,2)",
            Decimal("12.5"),
        ),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1},
            (-15).to_bytes(2, "big", signed=True),
            "DECIMAL(6,2)",
            Decimal("-1.5"),
        ),
        ({"type": "bytes", "logicalType": "big-decimal"}, long(4) + TWELVE + long(2), "DECIMAL(6,2)", Decimal("12.5")),
        ({"type": "string", "logicalType": "uuid"}, long(36) + str(UUID).encode(), "STRING", str(UUID)),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, UUID.bytes, "STRING", str(UUID)),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, UUID.bytes, "BINARY", UUID.bytes),
        ({"type": "int", "logicalType": "date"}, long(17720), "DATE", dt.date(2018, 7, 8)),
        ({"type": "int", "logicalType": "date"}, long(17720), "TIMESTAMP", None),
        ({"type": "int", "logicalType": "time-millis"}, long(3_661_001), "STRING", "01:01:01.001000"),
        ({"type": "int", "logicalType": "time-millis"}, long(3_661_001), "INT", 3_661_001),
        (of_long("time-micros"), long(3_661_000_000), "STRING", "01:01:01"),
        (of_long("timestamp-millis"), long(MICROS // 1000), "TIMESTAMP", MOMENT.replace(microsecond=123000)),
        (of_long("timestamp-micros"), long(MICROS), "TIMESTAMP", MOMENT),
        (of_long("timestamp-micros"), long(MICROS), "TIMESTAMP_NTZ", None),
        (of_long("timestamp-nanos"), long(MICROS * 1000), "TIMESTAMP", MOMENT),
        (of_long("timestamp-nanos"), long(MICROS * 1000 + 1), "TIMESTAMP", None),
        (of_long("local-timestamp-micros"), long(MICROS), "TIMESTAMP_NTZ", MOMENT.replace(tzinfo=None)),
        (of_long("local-timestamp-nanos"), long(MICROS * 1000), "TIMESTAMP_NTZ", MOMENT.replace(tzinfo=None)),
        (of_long("local-timestamp-micros"), long(MICROS), "TIMESTAMP", None),
        (of_long("timestamp-micros"), long(MICROS), "STRING", None),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            b"\1\0\0\0\2\0\0\0\3\0\0\0",
            "STRING",
            "P1M2DT0.003S",
        ),
        (of_connect("long", "io.debezium.time.MicroTimestamp"), long(MICROS), "TIMESTAMP", MOMENT),
        (
            of_connect("long", "io.debezium.time.MicroTimestamp"),
            long(MICROS),
            "TIMESTAMP_NTZ",
            MOMENT.replace(tzinfo=None),
        ),
        (of_connect("int", "io.debezium.time.Date"), long(17720), "DATE", dt.date(2018, 7, 8)),
        (of_connect("int", "org.apache.kafka.connect.data.Time"), long(1000), "STRING", "00:00:01"),
        (of_connect("string", "io.debezium.time.IsoDate"), long(11) + b"2018-07-08Z", "DATE", dt.date(2018, 7, 8)),
        (
            of_connect("bytes", "org.apache.kafka.connect.data.Decimal", **{"connect.parameters": {"scale": "2"}}),
            TWELVE,
            "DECIMAL(9,4)",
            Decimal("12.5"),
        ),
        (
            record(("scale", "int"), ("value", "bytes"), name="V")
            | {"connect.name": "io.debezium.data.VariableScaleDecimal"},
            long(2) + TWELVE,
            "DECIMAL(9,4)",
            Decimal("12.5"),
        ),
        (of_long("an-unknown-one"), long(5), "BIGINT", 5),
        ("float", b"\0\0\x80\x7f", "FLOAT", float("inf")),
        ("double", b"\0\0\0\0\0\0\xf0\x47", "FLOAT", None),  # 2**128
        (["int", "string"], long(0) + long(5), "STRING", "5"),
        (["int", "long"], long(1) + long(2**40), "BIGINT", 2**40),
    ],
)
def test_logical_types_in_columns_of_every_type(
    schema: Any, data: bytes, column: str, expected: Any, tmp_path: Path, landing: Path
) -> None:
    """``None``: refused, by file or by record."""
    file = container(record(("id", "long"), ("v", schema), ("w", ["null", "string"])), (1, long(1) + data + long(0)))
    found, reason = taken(tmp_path, landing, f"id BIGINT, v {column}, w STRING", file)
    if expected is None:
        assert found == []
        assert "'v'" in reason
    else:
        assert (found, reason) == ([(1, expected, None)], "")


def test_times_beyond_pythons_years_arrive_and_are_shown(tmp_path: Path, landing: Path) -> None:
    far = 400_000_000_000_000_000  # as DuckDB's make_timestamp has it: 14645-06-30 15:06:40
    schema = record(("id", "long"), ("v", of_long("timestamp-micros")))
    data = container(schema, (2, long(1) + long(far) + long(2) + long(-far)))
    table = LakeTable.create(tmp_path / "t", "id BIGINT, v TIMESTAMP", key=["id"])
    landed(landing / "a.avro", data)
    assert table.ingest("j", Files(landing, format="avro")).run().failed == 0
    assert sorted(table.to_arrow()["v"].cast(pa.int64()).to_pylist()) == [-far, far]
    narrow = LakeTable.create(tmp_path / "n", "id TINYINT, rest STRING", key=["id"])
    feed = narrow.ingest("j", Files(landing, format="avro"), rescued_column="rest")
    assert feed.run().failed == 0
    assert rows(narrow)[0] == (1, '{"v":"14645-06-30 15:06:40+00:00"}')


def test_a_file_that_fastavro_wrote_is_read_whatever_its_blocks(tmp_path: Path, landing: Path) -> None:
    schema = record(("id", "long"), ("s", ["null", "string"]), ("m", {"type": "map", "values": "double"}))
    made: list[dict[str, Any]] = [{"id": k, "s": None if k % 3 else "x" * k, "m": {"a": k / 2}} for k in range(500)]
    data = written(schema, made, codec="deflate", sync_interval=300)
    found, _ = taken(tmp_path, landing, "id BIGINT, s STRING, m MAP<STRING, DOUBLE>", data)
    assert found == [(row["id"], row["s"], list(row["m"].items())) for row in made]
