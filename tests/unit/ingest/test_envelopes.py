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
from tests.unit.ingest.landing import land, landed, rows

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
    assert "a truncate is not supported" in str(feed.files()[0].reason)
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
    for part in ("op is None", "needs the row in 'before'", "ordering column 'pos'", "not a change event"):
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


SECOND = dt.datetime(2020, 9, 13, 12, 26, 40, tzinfo=dt.UTC)
UNTOLD = {"decimals": {"price": 2}, "timestamp_unit": "us"}


def test_without_a_schema_options_say_what_values_mean(articles: LakeTable, landing: Path) -> None:
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
    assert ingest(articles, landing, options=UNTOLD).run().failed == 0
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
    ingest(articles, landing, options=UNTOLD).run()
    unavailable = "__debezium_unavailable_value"
    land(landing, "b.json", [postgres("u", 10, {"id": 1, "body": unavailable, "price": number(200)})])
    land(landing, "c.json", [postgres("m", 11, {})])
    ingest(articles, landing, options=UNTOLD).run()
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
    for options in (
        {"ordering": {"x": "source.pos"}},
        {"ordering": 1},
        {"timestamp_unit": "h"},
        {"timestamp_unit": {"absent": "ms"}},
        {"timestamp_unit": {"n": 3}},
        {"decimals": "maybe"},
        {"decimals": 2},
        {"decimals": {"n": 1.5}},
    ):
        with pytest.raises(InputError, match="options of the debezium envelope"):
            ingest(by_option, landing, options=options).run()


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"price": number(1250)}, {"decimals": {"price": 3}}, {"price": Decimal("1.25")}),
        ({"price": number(1250)}, {}, None),
        ({"price": number(1250)}, {"decimals": "precise"}, None),
        ({"price": "1234"}, {}, None),  # also good base64
        ({"price": "1234"}, {"decimals": {"PRICE": "string"}}, {"price": Decimal(1234)}),
        ({"body": number(-5)}, {"decimals": {"body": 1}}, {"body": "-0.5"}),
        ({"at": 5}, {}, None),
        ({"at": 1_600_000_000_000, "wall": 1_600_000_000_000_000}, {"timestamp_unit": {"at": "ms"}}, None),
        (
            {"at": 1_600_000_000_000, "wall": 1_600_000_000_000_001},
            {"timestamp_unit": {"at": "ms", "wall": "us"}},
            {
                "at": SECOND,
                "wall": SECOND.replace(tzinfo=None, microsecond=1),
            },
        ),
        (
            {"day": "2020-09-13Z", "wall": "2020-09-13T12:26:40Z", "at": "2020-09-13T12:26:40Z"},
            {"timestamp_unit": "isostring"},
            {
                "day": dt.date(2020, 9, 13),
                "wall": SECOND.replace(tzinfo=None),
                "at": SECOND,
            },
        ),
        ({"wall": "2020-09-13T12:26:40Z"}, {}, None),
    ],
)
def test_what_an_event_does_not_tell_is_said_by_an_option_or_refused(
    row: dict[str, Any], options: Any, expected: dict[str, Any] | None, articles: LakeTable, landing: Path
) -> None:
    land(landing, "a.json", [postgres("c", 9, {"id": 1, **row})])
    result = ingest(articles, landing, options=options).run()
    found = articles.to_arrow().to_pylist()
    assert (result.failed, len(found)) == ((0, 1) if expected else (1, 0))
    if expected:
        assert {name: found[0][name] for name in expected} == expected


TOLD = (
    "id BIGINT, n BIGINT, s STRING, w TIMESTAMP_NTZ, a TIMESTAMP, d DATE, f DOUBLE, p DECIMAL(12,4), "
    "ps ARRAY<DECIMAL(12,4)>, ts MAP<STRING, TIMESTAMP>, st STRUCT<x: DATE>, lsn BIGINT"
)
CONNECT = "org.apache.kafka.connect.data."
WALL = MOMENT.replace(tzinfo=None)
SCALED = {"type": "bytes", "name": f"{CONNECT}Decimal", "parameters": {"scale": "2"}}


@pytest.mark.parametrize(
    ("column", "value", "schema", "expected"),
    [
        ("n", MICROS, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, MICROS),
        ("s", MICROS, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, "2018-06-20 13:37:03.123456"),
        ("s", 17720, {"type": "int32", "name": "io.debezium.time.Date"}, "2018-07-08"),
        ("s", 3_661_000, {"type": "int32", "name": f"{CONNECT}Time"}, "01:01:01"),
        ("s", 3_661_000_001, {"type": "int64", "name": "io.debezium.time.MicroTime"}, "01:01:01.000001"),
        ("s", -1_000_000_000, {"type": "int64", "name": "io.debezium.time.NanoTime"}, "-00:00:01"),
        ("s", number(1250), SCALED, "12.50"),
        ("f", number(1250), SCALED, 12.5),
        ("n", number(1200), SCALED, 12),
        ("n", number(1250), SCALED, None),
        ("w", MICROS, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, WALL),
        ("w", MICROS * 1000 + 1, {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, None),
        ("w", "2018-06-20T13:37:03.123456Z", {"type": "string", "name": "io.debezium.time.IsoTimestamp"}, WALL),
        ("a", "2018-06-20T13:37:03.123456Z", {"type": "string", "name": "io.debezium.time.IsoTimestamp"}, MOMENT),
        ("d", "2018-07-08Z", {"type": "string", "name": "io.debezium.time.IsoDate"}, DAY),
        ("d", 2**40, {"type": "int32", "name": "io.debezium.time.Date"}, None),
        ("a", MICROS, {"type": "int64"}, None),
        ("p", number(1250), {"type": "bytes"}, None),
        ("p", "12.5", {"type": "string"}, Decimal("12.5")),
        ("p", 12.5, {"type": "double"}, Decimal("12.5")),
        (
            "p",
            {"scale": 3, "value": number(1250)},
            {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
            Decimal("1.25"),
        ),
        ("ps", [number(1250), None], {"type": "array", "items": SCALED}, [Decimal("12.5"), None]),
        (
            "ts",
            {"k": MICROS},
            {"type": "map", "values": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}},
            [("k", MOMENT)],
        ),
        (
            "st",
            {"X": 17720},
            {"type": "struct", "fields": [{"field": "X", "type": "int32", "name": "io.debezium.time.Date"}]},
            {"x": DAY},
        ),
    ],
)
def test_names_of_connect_count_in_every_type_of_column(
    column: str, value: Any, schema: dict[str, Any], expected: Any, tmp_path: Path, landing: Path
) -> None:
    """``None``: the record is refused."""
    table = LakeTable.create(tmp_path / "t", TOLD, key=["id"], ordering=["lsn"])
    fields = [{"field": "id", "type": "int64"}, {"field": column, **schema}]
    told = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    land(landing, "a.json", [{"schema": told, "payload": postgres("c", 9, {"id": 1, column: value})}])
    result = ingest(table, landing).run()
    found = [row[column] for row in table.to_arrow().to_pylist()]
    assert (result.failed, found) == ((1, []) if expected is None else (0, [expected]))


def test_columns_that_the_table_lacks_are_what_the_schema_says(tmp_path: Path, landing: Path) -> None:
    """As new columns, and as text in a rescued column."""
    micros = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "p", **SCALED},
        {"field": "at", **micros},
        {"field": "d", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "l", "type": "array", "items": micros},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    fields.append({"field": "v", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal"})
    row = {"id": 1, "p": number(1250), "at": MICROS, "d": 17720, "l": [MICROS]}
    row |= {"v": {"scale": 1, "value": number(7)}}
    other = {"id": 2, "v": {"scale": 3, "value": number(7)}}
    land(landing, "a.json", [{"schema": schema, "payload": postgres("c", 9, one)} for one in (row, other)])
    grown = LakeTable.create(tmp_path / "grown", "id BIGINT, lsn BIGINT", key=["id"], ordering=["lsn"])
    assert ingest(grown, landing, merge_schema=True).run().failed == 0
    found = LakeTable.open(grown.url).to_arrow().to_pylist()
    assert found[0] == {
        "id": 1,
        "lsn": 9,
        "p": Decimal("12.50"),
        "at": MOMENT,
        "d": DAY,
        "l": [MOMENT],
        "v": Decimal("0.7"),
    }
    assert found[1]["v"] == Decimal("0.007")
    kept = LakeTable.create(tmp_path / "kept", "id BIGINT, lsn BIGINT, rest STRING", key=["id"], ordering=["lsn"])
    assert ingest(kept, landing, rescued_column="rest").run().failed == 0
    moment = "2018-06-20 13:37:03.123456"
    assert json.loads(rows(kept)[0][2]) == {
        "p": "12.50",
        "at": moment,
        "d": "2018-07-08",
        "l": [moment],
        "v": "0.7",
    }


def test_an_update_that_changes_the_key_deletes_the_old_one(customers: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [mysql("c", 1, None, ANNE), mysql("c", 2, None, {**ANNE, "id": 7})])
    moved = mysql("u", 3, ANNE, {**ANNE, "id": 1005})
    unmoved = mysql("u", 4, {"id": 7, "first_name": "old"}, {"id": 7, "first_name": "new", "email": None})
    unknown = mysql("u", 5, {"id": None}, {"id": 9, "first_name": "x", "email": None})
    land(landing, "b.json", [moved, unmoved, unknown], at=5)
    result = ingest(customers, landing).run()
    assert (result.failed, result.rejected, result.rows) == (0, 0, 6)
    found = {row["id"]: (row["first_name"], row["op"]) for row in customers.to_arrow().to_pylist()}
    assert found == {1005: ("Anne", "c"), 7: ("new", "u"), 9: ("x", "u")}
    land(landing, "c.json", [mysql("u", 2, {"id": 7}, {**ANNE, "id": 8})], at=6)
    ingest(customers, landing).run()
    assert 7 in {row[0] for row in rows(customers)}, "a late event deletes nothing that is newer"


def test_if_one_row_of_an_event_is_bad_so_is_the_other(customers: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [mysql("c", 1, None, ANNE)])
    land(landing, "b.json", [mysql("u", 2, ANNE, {**ANNE, "id": 2**70})], at=5)
    feed = ingest(customers, landing, bad_records="quarantine", max_bad_records=None)
    assert feed.run().rejected == 1
    assert [row[0] for row in rows(customers)] == [1004]


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
