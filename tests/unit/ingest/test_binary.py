"""Parquet and ORC as other engines write them, partition folders, and records that only the upsert refuses."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from lakemerge.errors import MergeValueError
from lakemerge.ingest import Archive, Bins, Files, IngestJob
from lakemerge.ingest.formats.parquet_files import ParquetRows
from lakemerge.ingest.reading import readable
from lakemerge.ingest.source import FileUnreadableError
from lakemerge.write.upsert import finish
from tests.packages import needs_newer_arrow
from tests.unit.ingest.landing import frame_of, land, landed, rows, states


def wall(*parts: int) -> dt.datetime:
    return dt.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - a wall clock


ZONELESS = [wall(2020, 7, 1, 12), wall(1900, 1, 1), wall(9999, 12, 31, 23, 59, 59), None]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def taken(
    tmp_path: Path,
    landing: Path,
    ddl: str,
    data: bytes,
    *,
    format: str = "parquet",  # noqa: A002
    **options: Any,
) -> tuple[list[Any], str]:
    """One file into a new table: the column ``v`` by ``id``, and why it failed."""
    table = LakeTable.create(tmp_path / f"t{uuid.uuid4().hex}", f"id INT, v {ddl}", key=["id"])
    landed(landing / f"a.{format}", data)
    job = table.ingest("j", Files(landing, format=format, options=options))
    job.run()
    found = sorted(LakeTable.open(table.url).to_arrow().to_pylist(), key=lambda row: row["id"])
    return [row["v"] for row in found], job.files()[0].reason or ""


def column(values: list[Any], kind: pa.DataType) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int32()), "v": pa.array(values, kind)})


def utc(moment: dt.datetime | None, hours: int = 0) -> dt.datetime | None:
    return None if moment is None else moment.replace(tzinfo=dt.UTC) - dt.timedelta(hours=hours)


def test_int96_is_a_moment_in_utc_or_a_wall_clock(tmp_path: Path, landing: Path) -> None:
    data = parquet(column(ZONELESS, pa.timestamp("us")), use_deprecated_int96_timestamps=True)
    assert taken(tmp_path, landing, "TIMESTAMP_NTZ", data) == (ZONELESS, "")
    assert taken(tmp_path, landing, "TIMESTAMP", data) == ([utc(moment) for moment in ZONELESS], "")
    grown = LakeTable.create(tmp_path / "grown", "id INT", key=["id"])
    assert grown.ingest("j", Files(landing, format="parquet"), merge_schema=True).run().failed == 0
    assert LakeTable.open(grown.url).schema.field("v").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_times_without_a_zone_are_moments_only_if_an_option_says_the_zone(
    format: str,  # noqa: A002
    tmp_path: Path,
    landing: Path,
) -> None:
    moments = [wall(2020, 7, 1, 12), wall(2020, 1, 1, 12), None]
    data = file_of(column(moments, pa.timestamp("us")), format)
    assert taken(tmp_path, landing, "TIMESTAMP_NTZ", data, format=format) == (moments, "")
    found, reason = taken(tmp_path, landing, "TIMESTAMP", data, format=format)
    assert found == []
    assert "the option timezone" in reason
    found, reason = taken(tmp_path, landing, "TIMESTAMP", data, format=format, timezone="Europe/Oslo")
    assert (found, reason) == ([utc(moments[0], 2), utc(moments[1], 1), None], "")
    twice = file_of(column([wall(2020, 10, 25, 2, 30), wall(2020, 3, 29, 2, 30)], pa.timestamp("us")), format)
    table = LakeTable.create(tmp_path / "t", "id INT, v TIMESTAMP", key=["id"])
    landed(landing / f"a.{format}", twice)
    files = Files(landing, format=format, options={"timezone": "Europe/Oslo"})
    feed = table.ingest("j", files, bad_records="quarantine", max_bad_records=None)
    assert feed.run().rejected == 2
    assert all("not exactly one time in Europe/Oslo" in text for text in feed.rejects()["reason"].to_pylist())


@needs_newer_arrow("reads no ORC file after one that it cannot read")
def test_times_of_orc_beyond_what_its_reader_holds_fail_their_file_alone(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id INT, v TIMESTAMP_NTZ", key=["id"])
    landed(landing / "a.orc", file_of(column([wall(9999, 12, 31)], pa.timestamp("us")), "orc"), at=1)
    landed(landing / "b.orc", file_of(column([wall(2020, 1, 1)], pa.timestamp("us")), "orc"), at=2)
    job = table.ingest("j", Files(landing, format="orc"))
    job.run()
    assert states(job) == {"a.orc": "failed", "b.orc": "committed"}
    assert "out of range" in str(job.files(state="failed")[0].reason)


def file_of(table: pa.Table, format: str) -> bytes:  # noqa: A002
    sink = io.BytesIO()
    orc.write_table(table, sink) if format == "orc" else pq.write_table(table, sink)
    return sink.getvalue()


UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


@pytest.mark.parametrize(
    ("kind", "value", "ddl", "expected"),
    [
        (pa.uuid(), UUID.bytes, "STRING", str(UUID)),
        (pa.uuid(), UUID.bytes, "BINARY", UUID.bytes),
        (pa.time64("us"), dt.time(1, 2, 3, 4), "STRING", "01:02:03.000004"),
        (pa.time32("ms"), dt.time(1, 2, 3), "STRING", "01:02:03.000"),
        (pa.decimal256(50, 2), Decimal("12.50"), "DECIMAL(6,2)", Decimal("12.50")),
        (pa.decimal256(50, 2), Decimal(10) ** 39, "FLOAT", None),
        (pa.decimal256(50, 2), Decimal("12.50"), "DOUBLE", 12.5),
        (pa.float64(), 1e39, "FLOAT", None),
        (pa.float64(), float("inf"), "FLOAT", float("inf")),
        (pa.string(), "1e39", "FLOAT", None),
        (pa.string(), "1e400", "DOUBLE", None),
        (pa.string(), "-inf", "DOUBLE", float("-inf")),
        (pa.timestamp("ns", "UTC"), 1, "TIMESTAMP", None),
        (pa.timestamp("ms", "Europe/Oslo"), 0, "TIMESTAMP", dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        (pa.timestamp("us", "UTC"), 0, "STRING", None),
        (pa.date32(), dt.date(2020, 1, 1), "TIMESTAMP", None),
        (pa.uint64(), 2**63, "BIGINT", None),
        (pa.uint64(), 2**63 - 1, "BIGINT", 2**63 - 1),
        (pa.dictionary(pa.int8(), pa.string()), "7", "INT", 7),
    ],
)
def test_types_of_parquet_in_columns_of_other_types(
    kind: pa.DataType, value: Any, ddl: str, expected: Any, tmp_path: Path, landing: Path
) -> None:
    """``None``: refused, by file or by record."""
    found, reason = taken(tmp_path, landing, ddl, parquet(column([value], kind)))
    if expected is None:
        assert found == []
        assert "'v'" in reason
    else:
        assert (found, reason) == ([expected], "")


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_times_that_python_has_no_values_of_are_shown(unit: str, tmp_path: Path, landing: Path) -> None:
    """In a rescued column, and in the text of a bad record."""
    number, text = {
        "us": (400_000_000_000_000_000, "14645-06-30 15:06:40.000000"),
        "ns": (1_600_000_000_000_000_001, "2020-09-13 12:26:40.000000001"),
    }[unit]
    found = pa.table({"id": pa.array([1, None], pa.int32()), "t": pa.array([number] * 2, pa.timestamp(unit))})
    landed(landing / "a.parquet", parquet(found))
    table = LakeTable.create(tmp_path / "t", "id INT, rest STRING", key=["id"])
    files = Files(landing, format="parquet")
    feed = table.ingest("j", files, rescued_column="rest", bad_records="quarantine", max_bad_records=None)
    assert feed.run().failed == 0
    assert rows(table) == [(1, f'{{"t":"{text}"}}')]
    assert feed.rejects()["text"].to_pylist() == [f'{{"id":null,"t":"{text}"}}']


@pytest.mark.parametrize("text", ["1e39", "-1e39", "3.5e38", "1e400"])
@pytest.mark.parametrize("format", ["json", "csv"])
def test_numbers_that_are_too_large_do_not_become_infinite(
    format: str,  # noqa: A002
    text: str,
    tmp_path: Path,
    landing: Path,
) -> None:
    table = LakeTable.create(tmp_path / "t", "id INT, f FLOAT, d DOUBLE", key=["id"])
    lines = [f'{{"id":1,"f":{text}}}', '{"id":2,"f":3.4e38,"d":1e308}', '{"id":3,"f":"Infinity"}']
    if format == "csv":
        lines = ["id,f,d", f"1,{text},", "2,3.4e38,1e308", "3,inf,"]
    landed(landing / f"a.{format}", "\n".join(lines).encode())
    feed = table.ingest("j", Files(landing, format=format), bad_records="quarantine", max_bad_records=None)
    assert (feed.run().rejected, [row[0] for row in rows(table)]) == (1, [2, 3])
    assert table.get({"id": 3})["f"] == float("inf")  # type: ignore[index]


def test_a_page_whose_check_sum_is_wrong_fails_its_file_alone(tmp_path: Path, landing: Path) -> None:
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, "write_statistics": False}
    data = parquet(pa.table({"id": pa.array([1], pa.int32()), "v": ["price 1000"]}), **plain)
    table = LakeTable.create(tmp_path / "t", "id INT, v STRING", key=["id"])
    landed(landing / "a.parquet", data.replace(b"price 1000", b"price 9000"), at=1)
    landed(landing / "b.parquet", parquet(pa.table({"id": pa.array([2], pa.int32()), "v": ["good"]})), at=2)
    job = table.ingest("j", Files(landing, format="parquet"))
    job.run()
    assert (states(job), rows(table)) == ({"a.parquet": "failed", "b.parquet": "committed"}, [(2, "good")])


def test_whatever_a_reader_raises_is_the_error_of_its_file() -> None:
    class ReaderError(Exception):
        pass

    ReaderError.__module__ = "fastavro._schema_common"
    for error in (
        ReaderError("x"),
        ValueError("x"),
        AttributeError("x"),
        MemoryError(),
        ZeroDivisionError(),
        StopIteration(),
    ):
        with pytest.raises(FileUnreadableError, match=r"a\.avro cannot be read as avro"), readable("a.avro", "avro"):
            raise error
    for passing in (PermissionError(13, "no"), ConnectionError("no"), KeyboardInterrupt()):
        with pytest.raises(type(passing)), readable("a.avro", "avro"):
            raise passing


def test_many_files_that_cannot_be_read_cost_few_reads(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one window: each is read a bounded number of times, and the good ones are taken up."""
    good, bad = parquet(column([1.5], pa.float64())), parquet(column([1.5], pa.float64()), write_page_checksum=True)
    page = bad.replace(b"\0\0\xf8\x3f", b"\0\0\xf8\x40", 1) if b"\0\0\xf8\x3f" in bad else None
    assert page is not None
    for number in range(20):
        landed(landing / f"{number:02}.parquet", page if number % 2 else good, at=number)
    reads: list[str] = []
    original = ParquetRows.parsed

    def counted(self: ParquetRows, data: Any, piece: Any, frame: Any) -> Any:
        reads.append(piece.file.path)
        return original(self, data, piece, frame)

    monkeypatch.setattr(ParquetRows, "parsed", counted)
    table = LakeTable.create(tmp_path / "t", "id INT, v DOUBLE", key=["id"])
    result = table.ingest("j", Files(landing, format="parquet")).run()
    assert (result.files, result.failed) == (10, 10)
    assert max(map(reads.count, set(reads))) <= 6


def test_a_bin_is_one_whole(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id INT, v DOUBLE", key=["id"])
    data = parquet(column([1.5], pa.float64()), write_page_checksum=True)
    landed(landing / "a.parquet", data, at=1)
    landed(landing / "b.parquet", data.replace(b"\0\0\xf8\x3f", b"\0\0\xf8\x40", 1), at=2)
    job = table.ingest("j", Files(landing, format="parquet"), bins=Bins(min_bytes=1))
    assert job.run().failed == 2


# Partition folders


FOLDERS = "id INT, v STRING, day DATE, store STRING"


def in_format(format: str, record: dict[str, Any]) -> bytes:  # noqa: A002
    if format == "json":
        return (str(record).replace("'", '"') + "\n").encode()
    if format == "csv":
        return (",".join(record) + "\n" + ",".join(map(str, record.values())) + "\n").encode()
    if format == "avro":
        import fastavro

        kinds = {int: "int", str: "string"}
        fields = [{"name": name, "type": kinds[type(value)]} for name, value in record.items()]
        sink = io.BytesIO()
        fastavro.writer(sink, {"type": "record", "name": "R", "fields": fields}, [record])
        return sink.getvalue()
    return file_of(pa.Table.from_pylist([record]), format)


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "orc", "avro"])
def test_partition_folders_have_values_of_columns(format: str, tmp_path: Path, landing: Path) -> None:  # noqa: A002
    """As Spark and Hive write them: with ``%XX``, and with a word for null."""
    table = LakeTable.create(tmp_path / "t", FOLDERS, key=["day", "id"], partition_by=["day"])
    folder = landing / "other=9"
    landed(folder / "DAY=2020-01-02" / "store=a%3Ab" / f"x.{format}", in_format(format, {"id": 1, "v": "x"}), at=1)
    landed(folder / "day=2020-01-03" / "store=__HIVE_DEFAULT_PARTITION__" / f"y.{format}", in_format(format, {"id": 2}))
    landed(folder / "day=2020-01-04" / f"z.{format}", in_format(format, {"id": 3, "store": "own"}), at=3)
    landed(folder / "day=2020-01-05" / "store=path" / f"w.{format}", in_format(format, {"id": 4, "store": "own"}), at=4)
    landed(folder / "day=monday" / f"bad.{format}", in_format(format, {"id": 5}), at=5)
    job = table.ingest("j", Files(landing, format=format))
    job.run()
    assert [(file.path.rpartition("/")[2], file.state) for file in job.files(state="failed")] == [
        (f"bad.{format}", "failed")
    ]
    assert "day=monday" in str(job.files(state="failed")[0].reason)
    days = [dt.date(2020, 1, day) for day in (2, 3, 4, 5)]
    assert rows(table) == [
        (1, "x", days[0], "a:b"),
        (2, None, days[1], None),
        (3, None, days[2], "own"),
        (4, None, days[3], "own"),
    ]


def test_columns_that_are_named_are_named_for_folders_too(tmp_path: Path, landing: Path) -> None:
    landed(landing / "day=2020-01-02" / "store=a" / "x.csv", b"id,v\n1,x\n")
    one = LakeTable.create(tmp_path / "one", FOLDERS, key=["id"])
    one.ingest("j", Files(landing, format="csv", columns=["id", "day"])).run()
    assert rows(one) == [(1, None, dt.date(2020, 1, 2), None)]
    assert main(["init", str(tmp_path / "two"), "--schema", FOLDERS, "--key", "id"]) == 0
    file = landing / "day=2020-01-02" / "store=a" / "x.csv"
    assert main(["upsert", str(tmp_path / "two"), str(file), "--quiet"]) == 0
    assert rows(LakeTable.open(tmp_path / "two")) == [(1, "x", dt.date(2020, 1, 2), "a")]


def test_a_replay_knows_the_folders_in_which_files_landed(tmp_path: Path, landing: Path) -> None:
    """Also if they were moved to an archive since."""
    landed(landing / "day=2020-01-02" / "x.csv", b"id,v\n1,x\n", at=1)
    archive = Archive(folder=str(tmp_path / "archive"))
    table = LakeTable.create(tmp_path / "t", FOLDERS, key=["id"])
    copy = LakeTable.create(tmp_path / "copy", FOLDERS, key=["id"])
    job = table.ingest("j", Files(landing, format="csv"), after=archive)
    assert (job.run().files, list(landing.rglob("*.csv"))) == (1, [])
    assert job.replay(into=copy).rows == 1
    assert rows(copy) == rows(table) == [(1, "x", dt.date(2020, 1, 2), None)]


# Records that only the upsert refuses


def quarantined(table: LakeTable, landing: Path, **more: Any) -> IngestJob:
    return table.ingest("j", Files(landing, format="json"), bad_records="quarantine", max_bad_records=None, **more)


def test_what_only_the_upsert_refuses_is_a_bad_record(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "p STRING, id INT, m MAP<STRING, INT>", key=["p", "id"], partition_by=["p"]
    )
    records = [{"p": "a" if k % 100 else "", "id": k, "m": {"x": 1}} for k in range(300)]
    land(landing, "a.json", records)
    feed = quarantined(table, landing)
    result = feed.run()
    assert (result.rows, result.rejected, result.failed) == (297, 3, 0)
    told = feed.rejects().to_pylist()
    assert [row["text"].split(", ")[:2] for row in told] == [['{"p": ""', f'"id": {k}'] for k in (0, 100, 200)]
    assert all("'p' holds ''" in row["reason"] for row in told)
    assert table.to_arrow().num_rows == 297
    strict = LakeTable.create(tmp_path / "strict", "p STRING, id INT", key=["p", "id"], partition_by=["p"])
    job = strict.ingest("j", Files(landing, format="json", columns=["p", "id"]))
    assert job.run().failed == 1
    assert "a.json, byte 0: partition column 'p' holds ''" in str(job.files()[0].reason)


def test_keys_that_come_twice_in_a_map_are_a_bad_record(tmp_path: Path, landing: Path) -> None:
    kind = pa.map_(pa.string(), pa.int32())
    data = pa.table(
        {"id": pa.array([1, 2, 3], pa.int32()), "m": pa.array([[("a", 1)], [("a", 1), ("a", 2)], None], kind)}
    )
    table = LakeTable.create(tmp_path / "t", "id INT, m MAP<STRING, INT>", key=["id"])
    landed(landing / "a.parquet", parquet(data))
    feed = table.ingest("j", Files(landing, format="parquet"), bad_records="quarantine", max_bad_records=1)
    assert feed.run().rejected == 1
    assert (rows(table), feed.rejects()["row"].to_pylist()) == ([(1, [("a", 1)]), (3, None)], [1])
    assert "has a map with" in feed.rejects()["reason"][0].as_py()


def test_what_a_merger_refuses_is_a_bad_record(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id INT, v INT", key=["id"], merger="first-row")
    land(landing, "a.json", [{"id": k, "v": k, "kind": "-D" if k == 7 else "+I"} for k in range(20)])
    feed = quarantined(table, landing, kind_column="kind")
    result = feed.run()
    assert (result.rows, result.rejected) == (19, 1)
    assert [row[0] for row in rows(table)] == [k for k in range(20) if k != 7]


def test_values_that_a_first_load_cannot_merge_fail_their_window(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a first load merges records as it writes them."""

    def failing(write: Any, packed: Any, **more: Any) -> Any:
        if sum(part.rows for part in packed) == 2:
            raise MergeValueError("a value cannot be merged", key={"id": 1}, column="v")
        return finish(write, packed, **more)

    monkeypatch.setattr("lakemerge.ingest.committing.finish", failing)
    table = LakeTable.create(tmp_path / "t", "id INT, v INT", key=["id"])
    land(landing, "a.json", [{"id": 1, "v": 1}, {"id": 1, "v": 2}], at=1)
    land(landing, "b.json", [{"id": 2}], at=2)
    job = table.ingest("j", Files(landing, format="json"), blocks_per_window=1)
    job.run()
    assert states(job) == {"a.json": "failed", "b.json": "committed"}
    assert job.files(state="failed")[0].reason == "a value cannot be merged"


def test_kinds_of_records_are_those_that_an_upsert_takes(tmp_path: Path, landing: Path) -> None:
    """Also by the names that Delta's change feed has for them."""
    table = LakeTable.create(tmp_path / "t", "id INT, v INT NOT NULL", key=["id"])
    land(landing, "a.json", [{"id": k, "v": k, "kind": "insert"} for k in range(4)], at=1)
    kinds = ["delete", "-D", "update_postimage", "upserted"]
    land(landing, "b.json", [{"id": k, "v": None if k < 2 else 9, "kind": kind} for k, kind in enumerate(kinds)], at=2)
    assert quarantined(table, landing, kind_column="kind").run().rejected == 1
    assert rows(table) == [(2, 9), (3, 3)]


# Retry, and what failed before


def test_a_version_that_was_replaced_is_not_put_back(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id INT", key=["id"])
    job = table.ingest("j", Files(landing, format="csv"))
    landed(landing / "a.csv", b"id\nx\n", at=1)
    assert (job.run().failed, job.run().to_retry) == (1, 1)
    landed(landing / "a.csv", b"id\ny\n", at=2)
    assert (job.run().failed, job.run().to_retry) == (1, 1), "the second version failed as well"
    assert job.retry() == 1, "the second version, which is there"
    assert [file.windows for file in job.files(state="seen")] != []
    landed(landing / "a.csv", b"id\n1\n", at=3)
    assert job.run().files == 1
    assert (job.retry(), job.run().to_retry, job.files(state=["seen", "failed"])) == (0, 0, [])


def test_a_refused_version_can_be_put_back_and_the_one_before_it_cannot(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id INT", key=["id"])
    job = table.ingest("j", Files(landing, format="csv", overwrites="refuse"))
    for number in (1, 2, 3):
        landed(landing / "a.csv", f"id\n{number}\n".encode(), at=number)
        job.run()
    assert [str(file.state) for file in job.files()] == ["committed", "changed", "changed"]
    assert job.retry() == 1
    job.run()
    assert (rows(table), len(job.files(state="changed")), job.files(state="seen")) == ([(1,), (3,)], 1, [])


def test_a_version_that_waits_beside_one_that_is_done_is_replaced(tmp_path: Path, landing: Path) -> None:
    """It came back under the same token, as in a bucket with the same bytes."""
    from lakemerge.format.ledger import LEDGER, FileState
    from lakemerge.ingest.discovery import Settling, found_by
    from lakemerge.ingest.places import LISTING

    common = {"path": "a", "block": 0, "size": 3, "modified_ns": 1, "seen_ms": 1, "blocks": 1, "offset": 0, "rows": 0}
    entries = [
        {**common, "token": "old", "state": "seen", "window": 3, "length": 0, "rejected": 0},
        {**common, "token": "now", "state": "committed", "window": 2, "length": 3, "rejected": 0},
    ]
    entries.sort(key=lambda entry: str(entry["token"]))
    listed = pa.RecordBatch.from_pylist([{"path": "a", "size": 3, "token": "now", "modified_ns": 1}], schema=LISTING)
    found = found_by(
        [listed],
        iter([pa.Table.from_pylist(entries, schema=LEDGER)]),
        settling=Settling(0),
        overwrites="ingest",
        exists=lambda path: True,
        keeps_done=False,
        now_ms=5,
    )
    assert ([*found], [(note.token, note.state) for note in found.notes]) == ([], [("old", FileState.CHANGED)])
    found.close()


def test_each_run_says_what_failed_before_and_so_does_its_exit_code(
    tmp_path: Path, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LakeTable.create(tmp_path / "t", "id INT", key=["id"])
    landed(landing / "a.csv", b"id\nx\n", at=1)
    landed(landing / "b.csv", b"id\n2\n", at=2)
    command = ["ingest", str(tmp_path / "t"), str(landing), "--format", "csv", "--blocks-per-window", "1"]
    assert main(command) == 1
    capsys.readouterr()
    for _ in range(2):
        assert main(command) == 1
        told = "".join(capsys.readouterr())
        assert "1 failed, now or before" in told
        assert "ingest retry" in told
    assert main([*command, "--json"]) == 1
    assert '"to_retry":1' in capsys.readouterr().out
    landed(landing / "a.csv", b"id\n1\n", at=3)
    assert main(command) == 0
    assert "to retry" not in capsys.readouterr().out


# The command line, and paths


def test_bytes_go_in_and_out_of_commands_in_base_64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = LakeTable.create(tmp_path / "t", "id BINARY, v BINARY, l ARRAY<BINARY>", key=["id"])
    table.upsert(pa.Table.from_pylist([{"id": b"\x00\xff", "v": b"\x01", "l": [b"\x02"]}], schema=table.schema))
    assert main(["get", table.url, "id=AP8=", "--json"]) == 0
    assert capsys.readouterr().out == '{"id":"AP8=","v":"AQ==","l":["Ag=="]}\n'
    assert main(["get", table.url, "id=AP8="]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["AP8=", "AQ==", "['Ag==']"]
    assert main(["explain", table.url, "id=AP8="]) == 0
    capsys.readouterr()
    assert main(["query", table.url, "SELECT * FROM self"]) == 0
    assert "b'" not in capsys.readouterr().out
    assert main(["get", table.url, "id=no base 64"]) != 0
    assert "in base 64" in "".join(capsys.readouterr())


def test_a_tilde_is_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    landed(tmp_path / "land" / "a.csv", b"id\n1\n")
    table = LakeTable.create(tmp_path / "t", "id INT", key=["id"])
    assert table.ingest("j", Files("~/land", format="csv")).run().files == 1
    assert Files("~/land", format="csv").names == (str(tmp_path / "land"),)
    assert frame_of(pa.schema([("id", pa.int32())])).places == {"id": 0}
