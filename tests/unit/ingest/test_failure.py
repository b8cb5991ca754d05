"""Files and records that cannot be taken up: windows fail as a whole, records are set aside with their place, and
nothing is dropped."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.ingest import Bins, Files, IngestJob
from tests.unit.ingest.landing import FEED, land, landed, numbered, rows, states, windows_of


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.create(tmp_path / "table", FEED, key=["k"], ordering=["o"])


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def job(table: LakeTable, landing: Path, *, format: str = "json", **more: Any) -> IngestJob:  # noqa: A002
    files = {name: more.pop(name) for name in ("columns", "options", "block_bytes") if name in more}
    return table.ingest("feed", Files(landing, format=format, **files), **more)


def test_a_bin_fails_whole_and_the_others_go_on(table: LakeTable, landing: Path) -> None:
    for number in range(5):
        land(landing, f"{number}.json", numbered(number, number + 1), at=number)
    bad = landed(landing / "1.json", b'{"k":1,"o":1}\n{"k":"one"}\n', at=1)
    feed = job(table, landing, bins=Bins(max_records=2))
    result = feed.run()
    assert (result.windows, result.files, result.failed) == (2, 3, 2)
    committed = {f"{number}.json": "committed" for number in (2, 3, 4)}
    assert states(feed) == {"0.json": "failed", "1.json": "failed", **committed}
    (told, *_) = feed.files(state="failed")
    assert f"{bad}, byte 14: " in str(told.reason)
    assert '"one" does not fit BIGINT' in str(told.reason)


def test_without_bins_a_window_fails_whole(table: LakeTable, landing: Path) -> None:
    for number in range(6):
        land(landing, f"{number}.json", numbered(number, number + 1), at=number)
    landed(landing / "3.json", b"no json\n", at=3)
    feed = job(table, landing, blocks_per_window=2)
    result = feed.run()
    assert (result.windows, result.files, result.failed) == (2, 4, 2)
    assert [row[0] for row in rows(table)] == [0, 1, 4, 5]
    assert [info.get("failed") for info in windows_of(table)] == [None, 2, None]
    assert feed.run().failed == 0, "what failed waits for a retry"


def test_a_file_that_fails_in_its_middle_goes_on_from_there(tmp_path: Path, landing: Path) -> None:
    """The table sums values, so a block that came twice would show."""
    options = {"aggregates": {"n": "sum"}}
    table = LakeTable.create(tmp_path / "t", "k BIGINT, n BIGINT", key=["k"], merger="aggregate", options=options)
    records = "".join(f'{{"k":1,"n":1,"x":{number}}}\n' for number in range(30, 60))
    landed(landing / "a.json", records.encode())
    named: dict[str, Any] = {"columns": ["k", "n"], "block_bytes": 100}
    feed = job(table, landing, blocks_per_window=1, **named)
    stop = iter([False, False, True])
    runner = feed._needed().runner(feed._table, "feed", lambda: next(stop))
    feed._run_once(runner, drain=False)
    some = rows(table)[0][1]
    assert 0 < some < 30
    unnamed = job(table, landing, block_bytes=100, blocks_per_window=1)
    assert unnamed.run().failed == 1
    (file,) = unnamed.files()
    assert (str(file.state), file.rows, file.bytes) == ("failed", some, 200)
    assert unnamed.retry() == 1
    job(table, landing, **named).run()
    assert rows(table) == [(1, 30)]


def test_a_retry_takes_the_corrected_file_under_a_new_window(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    landed(landing / "b.json", b"no json\n", at=2)
    feed = job(table, landing)
    feed.run()
    with pytest.raises(InputError, match="1 files did not fail"):
        feed.retry([landing / "c.json"])
    assert feed.retry([landing / "a.json"]) == 1
    assert feed.run().files == 1
    assert states(feed) == {"a.json": "committed", "b.json": "failed"}
    land(landing, "b.json", numbered(1, 2), at=2)
    assert feed.run().files == 1, "a corrected file is another version, and needs no retry"
    assert sorted(str(file.state) for file in feed.files()) == ["changed", "committed", "committed"]
    assert feed.retry() == 0, "the bad version is replaced, and nobody can read it any more"
    with pytest.raises(InputError, match="1 files did not fail"):
        feed.retry([landing / "b.json"])
    assert sorted(str(file.state) for file in feed.files()) == ["changed", "committed", "committed"]
    assert [row[0] for row in rows(table)] == [0, 1]


def test_bad_records_are_set_aside_with_file_offset_text_and_reason(table: LakeTable, landing: Path) -> None:
    lines = ['{"k":1,"o":1,"v":"x"}', '{"k":2,"o":"late"}', "junk", '{"o":3}', '{"k":4,"o":1}']
    path = landed(landing / "a.json", "\n".join(lines).encode())
    feed = job(table, landing, bad_records="quarantine", max_bad_records=3)
    result = feed.run()
    assert (result.rows, result.rejected, result.failed) == (2, 3, 0)
    assert rows(table) == [(1, 1, "x"), (4, 1, None)]
    found = sorted(feed.rejects().to_pylist(), key=lambda row: row["offset"])
    assert [(r["path"], r["offset"], r["text"], r["window"]) for r in found] == [
        (str(path), 22, lines[1], 1),
        (str(path), 41, lines[2], 1),
        (str(path), 46, lines[3], 1),
    ]
    reasons = " ".join(r["reason"] for r in found)
    assert all(part in reasons for part in ('"late" does not fit BIGINT', "unexpected", "key column 'k' is null"))
    assert (windows_of(table)[0]["rejected"], feed.status().rejected) == (3, 3)


def test_too_many_bad_records_fail_the_window(table: LakeTable, landing: Path) -> None:
    landed(landing / "a.json", b"junk\n" * 3 + b'{"k":1,"o":1}\n')
    feed = job(table, landing, bad_records="quarantine", max_bad_records=2)
    assert (feed.run().failed, rows(table)) == (1, [])
    assert "more than 2 bad records" in str(feed.files()[0].reason)
    assert feed.rejects().num_rows == 0
    any_number = job(table, landing, bad_records="quarantine", max_bad_records=None)
    any_number.retry()
    assert (any_number.run().rejected, len(rows(table))) == (3, 1)


def test_rejects_of_many_windows_are_few_files(table: LakeTable, landing: Path) -> None:
    feed = job(table, landing, bad_records="quarantine", max_bad_records=None)
    for number in range(20):
        landed(landing / f"{number:02d}.json", b"junk %d\n" % number, at=number)
        feed.run()
    assert [r["text"] for r in feed.rejects().to_pylist()] == [f"junk {number}" for number in range(20)]
    assert len(feed._standing().ingest.rejects) <= 9


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_rows_that_do_not_cast_are_set_aside(
    format: str,  # noqa: A002
    table: LakeTable,
    landing: Path,
) -> None:
    if format == "csv":
        landed(landing / "a.csv", b"k,o,v\n1,1,x\nq,1,y\n3,1,z\n")
    else:
        pq.write_table(pa.table({"k": ["1", "q", "3"], "o": [1, 1, 1], "v": ["x", "y", "z"]}), landing / "a.parquet")
    feed = job(table, landing, format=format, bad_records="quarantine", max_bad_records=1)
    assert (feed.run().rejected, rows(table)) == (1, [(1, 1, "x"), (3, 1, "z")])
    (reject,) = feed.rejects().to_pylist()
    expected = (12, None, "q,1,y") if format == "csv" else (None, 1, '{"k":"q","o":1,"v":"y"}')
    assert (reject["offset"], reject["row"], reject["text"]) == expected


def test_columns_that_do_not_fit_fail(table: LakeTable, landing: Path) -> None:
    landed(landing / "a.csv", b"k,o,strange\n1,1,x\n", at=1)
    landed(landing / "b.csv", b"o,v\n1,x\n", at=2)
    landed(landing / "c.csv", b"k,K,o\n1,1,1\n", at=3)
    landed(landing / "d.csv", b"k,o,v\n4,1,x\n", at=4)
    feed = job(table, landing, format="csv")
    assert (feed.run().failed, rows(table)) == (3, [(4, 1, "x")])
    reasons = [str(file.reason) for file in feed.files(state="failed")]
    assert "the table has no column 'strange'" in reasons[0]
    assert "key column 'k' is missing" in reasons[1]
    assert "it has column 'K' twice" in reasons[2]


def test_what_the_table_lacks_goes_to_the_rescued_column(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED + ", rest STRING", key=["k"], ordering=["o"])
    land(landing, "a.json", [{"k": 1, "o": 1, "x": {"y": 1.5}}, {"k": 2, "o": 1}])
    assert job(table, landing, rescued_column="rest").run().rows == 2
    assert rows(table) == [(1, 1, None, '{"x":{"y":1.5}}'), (2, 1, None, None)]
    landed(landing / "b.csv", b"k,o,extra\n3,1,e\n")
    table.ingest("csv", Files(landing / "b.csv", format="csv"), rescued_column="rest").run()
    pq.write_table(pa.table({"k": [4], "o": [1], "n": [{"m": 2}]}), landing / "c.parquet")
    table.ingest("parquet", Files(landing / "c.parquet", format="parquet"), rescued_column="rest").run()
    assert [row[3] for row in rows(table)[2:]] == ['{"extra":"e"}', '{"n":{"m":2}}']
    with pytest.raises(InputError, match=r"rescued_column 'v2' must be a STRING column.*add_columns=\"v2 STRING\""):
        job(table, landing, rescued_column="v2").run()


def test_unknown_fields_are_errors_unless_columns_are_named(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [{"k": 1, "o": 1, "x": 1}])
    feed = job(table, landing)
    assert feed.run().failed == 1
    assert "no column 'x'" in str(feed.files()[0].reason)
    named = job(table, landing, columns=["k", "o", "v"])
    named.retry()
    assert (named.run().rows, rows(table)) == (1, [(1, 1, None)])


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_table_that_may_grow_gets_the_files_columns(
    format: str,  # noqa: A002
    table: LakeTable,
    landing: Path,
) -> None:
    frame = pa.table({"k": [1, 2], "o": [1, 1], "n": [7, None], "s": ["x", "y"]})
    if format == "json":
        land(landing, "a.json", frame.to_pylist())
    elif format == "csv":
        landed(landing / "a.csv", b"k,o,n,s\n1,1,7,x\n2,1,,y\n")
    else:
        pq.write_table(frame, landing / "a.parquet")
    result = job(table, landing, format=format, merge_schema=True).run()
    number = "7" if format == "csv" else 7
    assert (result.failed, rows(table)) == (0, [(1, 1, None, number, "x"), (2, 1, None, None, "y")])
    assert table.schema.names == ["k", "o", "v", "n", "s"]


@pytest.mark.parametrize("block_bytes", [1, 30, 1 << 20])
def test_what_new_fields_are_does_not_depend_on_blocks(block_bytes: int, table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [{"k": 1, "o": 1, "n": 7}, {"k": 2, "o": 1, "m": "x"}], at=1)
    land(landing, "b.json", [{"k": 3, "o": 1, "n": 1.5, "l": [1]}, {"k": 4, "o": 1, "m": 2, "l": None}], at=2)
    assert job(table, landing, block_bytes=block_bytes, merge_schema=True).run().failed == 0
    types = {field.name: field.type for field in table.schema}
    assert (types["n"], types["m"], types["l"]) == (
        pa.float64(),
        pa.string(),
        pa.list_(pa.field("element", pa.int64())),
    )
    values = [tuple(row[name] for name in ("n", "m", "l")) for row in table.to_arrow().sort_by("k").to_pylist()]
    assert values == [(7.0, None, None), (None, "x", None), (1.5, None, [1]), (None, "2", None)]


def test_only_some_columns_are_read(table: LakeTable, landing: Path) -> None:
    landed(landing / "a.csv", b"x,o,k\n9,1,1\n")
    job(table, landing, format="csv", columns=["k", "o"]).run()
    assert rows(table) == [(1, 1, None)]
    lacking = job(table, landing, format="csv", columns=["k", "o", "v"])
    landed(landing / "b.csv", b"x,o,k\n9,1,2\n")
    lacking.run()
    assert "it has no column 'v'" in str(lacking.files(state="failed")[0].reason)


def test_a_kind_column_of_the_files_deletes(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [{"k": k, "o": 1, "op": "+I"} for k in range(3)], at=1)
    land(landing, "b.json", [{"k": 1, "o": 2, "op": "-D"}], at=2)
    job(table, landing, kind_column="op").run()
    assert [row[0] for row in rows(table)] == [0, 2]
    land(landing, "c.json", [{"k": 5, "o": 2, "op": "?"}, {"k": 6, "o": 2}], at=3)
    feed = job(table, landing, kind_column="op", bad_records="quarantine", max_bad_records=None)
    assert (feed.run().rejected, len(rows(table))) == (2, 2)


def test_not_null_columns_are_asked_for_in_upserts_alone(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "k BIGINT, o BIGINT NOT NULL, v STRING NOT NULL", key=["k"], ordering=["o"]
    )
    records = [{"k": 1, "o": 1, "v": "x", "op": "+I"}, {"k": 2, "o": 1, "op": "+I"}, {"k": 1, "o": 2, "op": "-D"}]
    land(landing, "a.json", records)
    feed = job(table, landing, kind_column="op", bad_records="quarantine", max_bad_records=1)
    assert (feed.run().rejected, rows(table)) == (1, [])
    assert feed.rejects()["reason"].to_pylist() == ["column 'v' is NOT NULL and null"]


def test_deletes_that_a_value_makes_are_not_asked_for_the_rest(tmp_path: Path, landing: Path) -> None:
    options: Any = {"merger": "aws-dms", "options": {"op_column": "op"}}
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING NOT NULL, op STRING", key=["k"], **options)
    land(landing, "a.json", [{"k": 1, "v": "x", "op": "I"}, {"k": 2, "v": "y", "op": "I"}], at=1)
    land(landing, "b.json", [{"k": 1, "op": "D"}, {"k": 2, "op": "U"}], at=2)
    feed = job(table, landing, bad_records="quarantine", max_bad_records=1)
    assert (feed.run().rejected, rows(table)) == (1, [(2, "y", "I")])


def test_files_that_turn_bad_are_told_and_do_not_stop_the_others(table: LakeTable, landing: Path) -> None:
    landed(landing / "a.json.gz", gzip.compress(b'{"k":1,"o":1}\n' * 500)[:-4], at=1)
    landed(landing / "b.json.gz", b"not compressed", at=2)
    landed(landing / "c.json", b"\x00\xff\xfe", at=3)
    landed(landing / "d.json", b'{"k":4,"o":1}\n', at=4)
    feed = job(table, landing, blocks_per_window=1)
    assert (feed.run().failed, [row[0] for row in rows(table)]) == (3, [4])
    reasons = [str(file.reason) for file in feed.files(state="failed")]
    assert "cannot be read as json: Truncated compressed stream" in reasons[0]
    assert "cannot be read as json: zlib inflate failed" in reasons[1]
    pq.write_table(pa.table({"k": range(1000), "o": [1] * 1000}), landing / "e.parquet", compression="none")
    data = bytearray((landing / "e.parquet").read_bytes())
    data[4:2000] = b"\xff" * 1996
    landed(landing / "e.parquet", bytes(data))
    parquet = table.ingest("parquet", Files(landing / "e.parquet", format="parquet"))
    assert parquet.run().failed == 1
    assert "cannot be read as parquet" in str(parquet.files()[0].reason)


@pytest.mark.skipif(os.geteuid() == 0, reason="a superuser may read every file")
def test_a_file_without_permission_fails(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1).chmod(0)
    land(landing, "b.json", numbered(1, 2), at=2)
    feed = job(table, landing, blocks_per_window=1)
    assert (feed.run().failed, len(rows(table))) == (1, 1)


def test_nothing_that_failed_leaves_a_file(table: LakeTable, landing: Path) -> None:
    landed(landing / "a.json", b'{"k":1,"o":1}\n' * 100 + b"junk\n" * 2)
    job(table, landing, bad_records="quarantine", max_bad_records=1).run()
    kinds = sorted(name.rsplit("-", 1)[1] for name in os.listdir(Path(table.url) / "_lakemerge" / "ingest"))
    assert (kinds, (Path(table.url) / "_lakemerge" / "log").exists()) == (["ledger.parquet"], False)


def test_records_that_a_merger_refuses_fail_their_window(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING", key=["k"], merger="partial-update")
    land(landing, "a.json", [{"k": 1, "v": "x", "op": "-D"}])
    feed = job(table, landing, kind_column="op")
    assert feed.run().failed == 1
    assert "takes no deletes" in str(feed.files()[0].reason)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"bad_records": "ignore"}, "bad_records must be"),
        ({"max_bad_records": -1}, "max_bad_records must be"),
        ({"envelope": "maxwell"}, "envelope must be"),
        ({"envelope": "debezium", "format": "csv"}, "files of format 'csv' have no debezium envelope"),
        ({"envelope": "debezium", "kind_column": "op"}, "kind_column is for files without one"),
        ({"after": "burn"}, "after must be"),
        ({"blocks_per_window": 0}, "blocks_per_window must be"),
        ({"bytes_per_window": "lots"}, "is not a size"),
        ({"max_read_amplification": 0.5}, "max_read_amplification must be"),
        ({"format": "xml"}, "format must be one of"),
        ({"columns": "k"}, "columns must be a list of names"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_listed(
    more: dict[str, Any], problem: str, table: LakeTable, landing: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        job(table, landing, **more)


@pytest.mark.parametrize(
    ("format", "options", "problem"),
    [
        ("csv", {"delimeter": ";"}, "'delimeter' is not an option of csv"),
        ("csv", {"delimiter": ";;"}, "'delimiter' must be one ASCII character"),
        ("csv", {"delimiter": '"'}, "'delimiter' must differ from 'quote' and 'escape'"),
        ("csv", {"escape": ","}, "'delimiter' must differ from 'quote' and 'escape'"),
        ("csv", {"skip_lines": -1}, "'skip_lines' must be a number from 0 on"),
        ("csv", {"encoding": "klingon"}, "is not known"),
        ("csv", {"header": "yes"}, "'header' must be True or False"),
        ("json", {"compression": "rar"}, "'compression' must be one of gzip"),
        ("avro", {"x": 1}, "it has none"),
        ("parquet", {"timezone": "Mars/Olympus"}, "'timezone' must be the name of a time zone"),
        ("text", {"column": ""}, "must be the name of a column"),
    ],
)
def test_options_of_formats_are_checked(
    format: str,  # noqa: A002
    options: dict[str, Any],
    problem: str,
    table: LakeTable,
    landing: Path,
) -> None:
    with pytest.raises(InputError, match=problem):
        job(table, landing, format=format, options=options).run()


@pytest.mark.parametrize("location", ["hdfs://host/x", "s3:/bucket/x", "", "s3://u:p@bucket/x"])
def test_places_that_cannot_be_read_are_refused(location: str) -> None:
    with pytest.raises(InputError) as told:
        Files(location, format="json")
    assert "u:p" not in str(told.value)


def test_a_job_without_files_can_be_looked_at_only(table: LakeTable, landing: Path) -> None:
    with pytest.raises(InputError, match="say which files"):
        table.ingest("feed").run()
    with pytest.raises(InputError, match="no ingest job 'feed'; it has none"):
        table.ingest("feed").retry()
    with pytest.raises(InputError, match="an ingest job's name"):
        table.ingest("no/name")
    land(landing, "a.json", numbered(0, 1))
    job(table, landing).run()
    assert [str(file.state) for file in table.ingest("feed").files()] == ["committed"]
    with pytest.raises(InputError, match="states of files are"):
        table.ingest("feed").files(state="lost")
    with pytest.raises(InputError, match="is read-only"):
        job(LakeTable.open(table.url, version=0), landing).run()


def test_json_of_the_reject_can_be_parsed_again(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", [{"k": 1, "o": "é"}])
    feed = job(table, landing, bad_records="quarantine", max_bad_records=1)
    feed.run()
    assert json.loads(feed.rejects()["text"][0].as_py()) == {"k": 1, "o": "é"}
