"""Ingest on Spark: the same rows, ledger and rejects as without it, a window one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.ingest import Bins, Files, packing
from tests.unit.ingest.landing import land, landed, numbered, rows, windows_of
from tests.unit.ingest.test_avro import container, long, record, snappy

FEED = "k BIGINT, o BIGINT, v STRING, d DECIMAL(10,2), t TIMESTAMP"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """JSON files with bad lines, and one that fits only line by line."""
    folder = tmp_path / "landing"
    for number in range(6):
        records = [{**r, "d": 1.5, "t": "2026-01-02T03:04:05Z"} for r in numbered(number * 40, number * 40 + 40)]
        land(folder, f"{number}.json", records, at=number)
    landed(folder / "6.json", b'{"k":500,"o":"2","v":1.50,"D":"7.25"}\njunk\n{"k":null}\n{"k":501,"o":1}\n', at=6)
    return folder


def told(table: LakeTable, landing: Path, **more: Any) -> tuple[Any, ...]:
    """Everything that a job leaves."""
    files = Files(landing, format="json", block_bytes=500)
    feed = table.ingest("feed", files, bad_records="quarantine", max_bad_records=None, **more)
    result = feed.run()
    pieces = [(Path(f.path).name, str(f.state), f.rows, f.rejected, f.windows) for f in feed.files()]
    rejects = sorted((Path(r["path"]).name, r["offset"], r["text"]) for r in feed.rejects().to_pylist())
    return rows(table), result, pieces, rejects, windows_of(table)


def test_with_and_without_spark_agree(spark: SparkSession, landing: Path, tmp_path: Path) -> None:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_LEAST_TASK_BYTES", 300)
        for name, session in (("plain", None), ("spark", spark)):
            table = LakeTable.create(tmp_path / name, FEED, key=["k"], ordering=["o"], buckets=2, spark=session)
            found.append(told(table, landing, blocks_per_window=20))
    assert found[0] == found[1]
    assert len(found[0][0]) == 242
    assert [text for _, _, text in found[0][3]] == ["junk", '{"k":null}']
    assert len(found[0][4]) > 1


def test_unset_fields_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Patches of different fields in a first load, in logs and in consolidated logs; as Python's dictionaries."""
    records = [{"k": n % 5, "abc"[n * n % 3]: n, "abc"[n % 2]: None if n % 7 else n} for n in range(120)]
    expected: dict[int, dict[str, Any]] = {k: {"k": k, "a": None, "b": None, "c": None} for k in range(5)}
    table = LakeTable.create(tmp_path / "t", "k BIGINT, a BIGINT, b BIGINT, c BIGINT", key=["k"], spark=spark)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_LEAST_TASK_BYTES", 300)
        for number in range(3):
            part = records[40 * number : 40 * number + 40]
            land(tmp_path / "l", f"{number}.json", part, at=number)
            table.ingest("feed", Files(tmp_path / "l", format="json", block_bytes=200)).run()
            for record in part:
                expected[record["k"] or 0].update(record)
            assert rows(table) == sorted(tuple(row.values()) for row in expected.values())
    assert table.version == 3
    table.compact_logs(size_ratio=10.0)
    assert sorted(map(tuple, table.to_df().collect())) == sorted(tuple(row.values()) for row in expected.values())


def test_order_is_that_of_files_and_blocks(spark: SparkSession, tmp_path: Path) -> None:
    """With commit-time the last record wins, whichever task had it."""
    table = LakeTable.create(tmp_path / "t", "k BIGINT, n BIGINT", key=["k"], spark=spark)
    land(tmp_path / "l", "b.json", [{"k": k % 3, "n": k} for k in range(300)], at=1)
    land(tmp_path / "l", "a.json", [{"k": k % 3, "n": 1000 + k} for k in range(300)], at=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_LEAST_TASK_BYTES", 200)
        table.ingest("feed", Files(tmp_path / "l", format="json", block_bytes=100)).run()
    assert rows(table) == [(0, 1297), (1, 1298), (2, 1299)]


def test_windows_that_fail_and_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, o BIGINT", key=["k"], ordering=["o"], spark=spark)
    land(tmp_path / "l", "a.json", [{"k": 1, "o": 1, "n": 5}, {"k": 2, "o": 1, "n": 1.5}], at=1)
    landed(tmp_path / "l" / "b.json", b"junk\n", at=2)
    feed = table.ingest("feed", Files(tmp_path / "l", format="json"), merge_schema=True, bins=Bins(max_bytes=1))
    result = feed.run()
    assert (result.windows, result.failed) == (1, 1)
    assert rows(table) == [(1, 1, 5.0), (2, 1, 1.5)]
    assert "byte 0: " in str(feed.files(state="failed")[0].reason)


def test_parquet_and_csv(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, o BIGINT, v STRING", key=["k"], ordering=["o"], spark=spark)
    (tmp_path / "l").mkdir()
    frame = pa.table({"k": range(500), "o": [1] * 500, "v": ["p"] * 500})
    pq.write_table(frame, tmp_path / "l" / "a.parquet", row_group_size=50)
    table.ingest("parquet", Files(tmp_path / "l" / "a.parquet", format="parquet", block_bytes=800)).run()
    landed(tmp_path / "l" / "b.csv", b"k,o,v\n" + b"".join(b"%d,2,c\n" % k for k in range(400, 600)))
    table.ingest("csv", Files(tmp_path / "l" / "b.csv", format="csv", block_bytes=300)).run()
    assert rows(table) == [(k, 1, "p") for k in range(400)] + [(k, 2, "c") for k in range(400, 600)]


def test_files_that_cannot_be_read_and_rows_that_only_the_upsert_refuses(spark: SparkSession, tmp_path: Path) -> None:
    """Avro packed by Snappy, beside a file that is cut; times by ``connect.name``; partition folders."""
    kind = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    schema = record(("k", "long"), ("t", kind))
    for number in range(4):
        body = b"".join(long(number * 10 + k) + long(k) for k in range(10))
        data = container(schema, (10, snappy(body)), codec="snappy")
        folder = tmp_path / "l" / f"p={'abc'[number:]}"
        landed(folder / f"{number}.avro", data[:-20] if number == 1 else data, at=number)
    found = []
    for name, session in (("plain", None), ("spark", spark)):
        table = LakeTable.create(
            tmp_path / name, "p STRING, k BIGINT, t TIMESTAMP_NTZ", key=["p", "k"], partition_by=["p"], spark=session
        )
        files = Files(tmp_path / "l", format="avro")
        feed = table.ingest("feed", files, bad_records="quarantine", max_bad_records=None)
        result = feed.run()
        pieces = [(Path(f.path).name, str(f.state), f.rows, f.rejected) for f in feed.files()]
        found.append((rows(table), result, pieces, feed.rejects().to_pylist()))
    assert found[0] == found[1]
    assert found[0][2] == [
        ("3.avro", "committed", 0, 10),  # p=''
        ("0.avro", "committed", 10, 0),
        ("1.avro", "failed", 0, 0),
        ("2.avro", "committed", 10, 0),
    ]
    assert len(found[0][0]) == 20
