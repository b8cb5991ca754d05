"""Change events of Debezium and DMS, as their documentation shows them, into the presets of change capture."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.ingest import Files, IngestJob
from tests.unit.landing import land, landed, rows

CUSTOMERS = "id BIGINT, first_name STRING NOT NULL, email STRING, file STRING, pos BIGINT, op STRING"
ANNE = {"id": 1004, "first_name": "Anne", "email": "annek@noanswer.org"}


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


@pytest.fixture
def customers(tmp_path: Path) -> LakeTable:
    return LakeTable.create(
        tmp_path / "customers",
        CUSTOMERS,
        key=["id"],
        ordering=["file", "pos"],
        merger="debezium-mysql",
        options={"op_column": "op"},
    )


def mysql(op: str, pos: int, before: Any, after: Any, file: str = "mysql-bin.000003") -> dict[str, Any]:
    """A change event as in the documentation of the MySQL connector."""
    source = {"version": "3.0.0.Final", "connector": "mysql", "name": "mysql-server-1", "ts_ms": 0, "snapshot": "false"}
    source |= {
        "db": "inventory",
        "table": "customers",
        "server_id": 0,
        "gtid": None,
        "file": file,
        "pos": pos,
        "row": 0,
    }
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1486500577691}


def ingest(table: LakeTable, landing: Path, *, options: Any = None, **more: Any) -> IngestJob:
    files = Files(landing, format=more.pop("format", "json"), options=options or {})
    return table.ingest("feed", files, envelope=more.pop("envelope", "debezium"), **more)


@pytest.mark.parametrize("wrapped", [False, True], ids=["payload alone", "schema and payload"])
def test_the_events_of_debezium_for_mysql(wrapped: bool, customers: LakeTable, landing: Path) -> None:
    changed = {**ANNE, "first_name": "Anne Marie"}
    bob = {"id": 7, "first_name": "Bob", "email": None}
    events: list[Any] = [
        mysql("r", 100, None, bob),
        mysql("c", 154, None, ANNE),
        mysql("u", 484, ANNE, changed),
        mysql("u", 300, ANNE, {**ANNE, "first_name": "late"}),
        mysql("d", 805, bob, None),
    ]
    if wrapped:
        events = [{"schema": {"type": "struct", "fields": []}, "payload": event} for event in events]
        events.append({"schema": None, "payload": None})
    landed(landing / "a.json", "".join(json.dumps(event) + "\n" for event in [*events, None]).encode())
    result = ingest(customers, landing).run()
    assert (result.rows, result.rejected, result.failed) == (5, 0, 0)
    assert rows(customers) == [(1004, "Anne Marie", "annek@noanswer.org", "mysql-bin.000003", 484, "u")]
    land(landing, "b.json", [mysql("c", 700, None, bob), mysql("u", 4, bob, bob, file="mysql-bin.000010")])
    ingest(customers, landing).run()
    assert rows(customers)[0] == (7, "Bob", None, "mysql-bin.000010", 4, "u"), "file 10 is after file 3"


def test_deletes_carry_no_more_than_the_key(customers: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [mysql("c", 1, None, ANNE)])
    ingest(customers, landing).run()
    land(landing, "b.json", [mysql("d", 2, {"id": 1004}, None)])
    assert (ingest(customers, landing).run().failed, rows(customers)) == (0, [])


def test_a_truncate_is_refused_and_what_is_no_event_is_told(customers: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [mysql("t", 1, None, None)])
    feed = ingest(customers, landing, bad_records="quarantine", max_bad_records=None)
    assert feed.run().failed == 1
    assert "a truncate is not taken" in str(feed.files()[0].reason)
    events = [
        {"status": "BEGIN"},
        {"op": "d", "before": None},
        {"op": "c", "after": {"id": 1}, "source": {"file": "x.1"}},
        5,
        {"op": "m"},
    ]
    landed(landing / "b.json", "".join(json.dumps(event) + "\n" for event in events).encode())
    result = feed.run()
    assert (result.rejected, result.failed) == (4, 0)
    told = " ".join(feed.rejects()["reason"].to_pylist())
    for part in ("op is None", "needs the row in 'before'", "ordering column 'pos'", "no change event"):
        assert part in told


ARTICLES = (
    "id BIGINT, body STRING, price DECIMAL(10,2), day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, blob BINARY, lsn BIGINT, "
    "op STRING"
)


@pytest.fixture
def articles(tmp_path: Path) -> LakeTable:
    return LakeTable.create(
        tmp_path / "articles",
        ARTICLES,
        key=["id"],
        ordering=["lsn"],
        merger="debezium-postgres",
        options={"op_column": "op"},
    )


def postgres(op: str, lsn: int, row: dict[str, Any]) -> dict[str, Any]:
    source = {"version": "3.0.0.Final", "connector": "postgresql", "schema": "public", "lsn": lsn, "txId": 555}
    return {"before": row if op == "d" else None, "after": None if op == "d" else row, "source": source, "op": op}


def number(value: int) -> str:
    """A whole number as Kafka Connect writes it for its Decimal."""
    return base64.b64encode(value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)).decode()


DAY, MOMENT = dt.date(2018, 7, 8), dt.datetime(2018, 6, 20, 13, 37, 3, 123456, tzinfo=dt.UTC)
MICROS = 1_529_501_823_123_456


def field(name: str, kind: str, logical: str | None = None, **parameters: str) -> dict[str, Any]:
    found: dict[str, Any] = {"field": name, "type": kind, "optional": True}
    return found | ({} if logical is None else {"name": logical, "parameters": parameters})


@pytest.mark.parametrize(
    ("logical", "value", "unit"),
    [
        ("io.debezium.time.Timestamp", MICROS // 1000, "ms"),
        ("org.apache.kafka.connect.data.Timestamp", MICROS // 1000, "ms"),
        ("io.debezium.time.MicroTimestamp", MICROS, "us"),
        ("io.debezium.time.NanoTimestamp", MICROS * 1000, "ns"),
        ("io.debezium.time.ZonedTimestamp", "2018-06-20T15:37:03.123456+02:00", None),
    ],
)
def test_logical_types_are_those_of_the_schema(
    logical: str, value: Any, unit: str | None, articles: LakeTable, landing: Path
) -> None:
    fields = [
        field("id", "int64"),
        field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="3"),
        field("day", "int32", "io.debezium.time.Date"),
        field("at", "int64", logical),
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    row = {"id": 1, "price": number(-12340), "day": 17720, "at": value}
    land(landing, "a.json", [{"schema": schema, "payload": postgres("c", 9, row)}])
    assert ingest(articles, landing).run().failed == 0
    moment = MOMENT if unit != "ms" else MOMENT.replace(microsecond=123000)
    assert rows(articles)[0][:5] == (1, None, Decimal("-12.34"), DAY, moment)


def test_without_a_schema_types_are_the_tables(articles: LakeTable, landing: Path) -> None:
    row = {
        "id": 1,
        "price": number(1250),
        "day": 17720,
        "at": MICROS,
        "wall": MICROS,
        "blob": base64.b64encode(b"\x00\xff").decode(),
        "body": "text",
    }
    land(
        landing,
        "a.json",
        [postgres("c", 9, row), postgres("u", 10, {**row, "price": {"scale": 1, "value": number(7)}})],
    )
    assert ingest(articles, landing).run().failed == 0
    assert rows(articles) == [
        (1, "text", Decimal("0.70"), DAY, MOMENT, MOMENT.replace(tzinfo=None), b"\x00\xff", 10, "u")
    ]


def test_settings_of_the_connector_that_events_do_not_tell(articles: LakeTable, landing: Path) -> None:
    row = {"id": 1, "price": "12.50", "at": MICROS // 1000, "day": "2018-07-08"}
    land(landing, "a.json", [postgres("c", 9, row)])
    assert ingest(articles, landing).run().failed == 1
    options = {"decimals": "string", "timestamp_unit": "ms"}
    feed = ingest(articles, landing, options=options)
    feed.retry()
    assert feed.run().failed == 0
    assert rows(articles)[0][2:5] == (Decimal("12.50"), DAY, MOMENT.replace(microsecond=123000))


def test_a_value_that_debezium_did_not_get_keeps_the_stored_one(articles: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [postgres("c", 9, {"id": 1, "body": "long", "price": number(100)})])
    ingest(articles, landing).run()
    unavailable = "__debezium_unavailable_value"
    land(landing, "b.json", [postgres("u", 10, {"id": 1, "body": unavailable, "price": number(200)})])
    land(landing, "c.json", [postgres("m", 11, {})])
    ingest(articles, landing).run()
    assert rows(articles)[0][:3] == (1, "long", Decimal("2.00"))


def test_tables_of_no_preset_take_their_ordering_by_name_or_by_option(tmp_path: Path, landing: Path) -> None:
    land(landing, "a.json", [mysql("c", 5, None, {"id": 1, "n": 1}), mysql("u", 4, None, {"id": 1, "n": 0})])
    by_name = LakeTable.create(tmp_path / "a", "id BIGINT, n INT, pos BIGINT", key=["id"], ordering=["pos"])
    ingest(by_name, landing).run()
    assert rows(by_name) == [(1, 1, 5)]
    by_option = LakeTable.create(tmp_path / "b", "id BIGINT, n INT, o BIGINT", key=["id"], ordering=["o"])
    assert ingest(by_option, landing).run().failed == 1
    feed = ingest(by_option, landing, options={"ordering": {"o": "source.pos"}})
    feed.retry()
    feed.run()
    assert rows(by_option) == [(1, 1, 5)]
    for options in ({"ordering": {"x": "source.pos"}}, {"timestamp_unit": "h"}, {"decimals": "maybe"}, {"ordering": 1}):
        with pytest.raises(InputError, match="options of the debezium envelope"):
            ingest(by_option, landing, options=options).run()


def test_envelopes_in_avro(customers: LakeTable, landing: Path) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "first_name", "type": "string"},
            {"name": "email", "type": ["null", "string"]},
        ],
    }
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "fields": [{"name": "file", "type": "string"}, {"name": "pos", "type": "long"}],
                },
            },
            {"name": "op", "type": "string"},
        ],
    }
    events = [mysql("c", 1, None, ANNE), mysql("d", 2, ANNE, None), mysql("c", 3, None, {**ANNE, "id": 5})]
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), events)
    landed(landing / "a.avro", sink.getvalue())
    assert ingest(customers, landing, format="avro").run().rows == 3
    assert [row[0] for row in rows(customers)] == [5]


ACCOUNTS = "id BIGINT, owner STRING NOT NULL, Op STRING"


@pytest.mark.parametrize("keeps", [True, False], ids=["the table keeps Op", "it does not"])
@pytest.mark.parametrize("format", ["csv", "parquet", "json"])
def test_the_files_of_dms(format: str, keeps: bool, tmp_path: Path, landing: Path) -> None:  # noqa: A002
    """A full load without operations, then changes with them."""
    options = {"merger": "aws-dms", "options": {"op_column": "Op"}} if keeps else {}
    schema = ACCOUNTS if keeps else "id BIGINT, owner STRING NOT NULL"
    table = LakeTable.create(tmp_path / "t", schema, key=["id"], **options)  # type: ignore[arg-type]
    load = pa.table({"id": [1, 2, 3], "owner": ["Ada", "Bob", "Cy"]})
    changes = pa.table({"Op": ["U", "D", "I"], "id": [1, 2, 4], "owner": ["Ada L.", None, "Di"]})
    for at, (name, frame) in enumerate((("LOAD00000001", load), ("20260101-0001", changes))):
        path = landing / f"{name}.{format}"
        if format == "csv":
            texts = [",".join(str(value or "") for value in row.values()) for row in frame.to_pylist()]
            lines = [",".join(frame.column_names), *texts]
            landed(path, "\n".join(lines).encode(), at=at)
        elif format == "parquet":
            pq.write_table(frame, path)
            landed(path, path.read_bytes(), at=at)
        else:
            land(landing, path.name, frame.to_pylist(), at=at)
    feed = ingest(table, landing, format=format, envelope="dms")
    result = feed.run()
    assert (result.failed, result.rows) == (0, 6), feed.files(state="failed")
    expected = [(1, "Ada L.", "U"), (3, "Cy", "I"), (4, "Di", "I")]
    assert rows(table) == (expected if keeps else [row[:2] for row in expected])


def test_an_operation_that_dms_does_not_have_is_told(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id BIGINT, owner STRING", key=["id"])
    landed(landing / "a.csv", b"Op,id,owner\nX,1,a\nI,2,b\n")
    feed = ingest(table, landing, format="csv", envelope="dms", bad_records="quarantine", max_bad_records=1)
    assert (feed.run().rejected, rows(table)) == (1, [(2, "b")])
    assert feed.rejects()["reason"].to_pylist() == ["its operation is none of I, U and D"]
