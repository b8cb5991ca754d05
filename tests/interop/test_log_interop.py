"""Logs and checkpoints written here, read by other engines, and theirs read here.

The oracle is always the other engine, over real Parquet files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.duckdb_with import duckdb_with
from lakemerge.delta import (
    Action,
    AddFile,
    Attempt,
    Committed,
    DeltaLog,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Snapshot,
    Txn,
)
from lakemerge.delta.checkpoint_reader import read_checkpoint
from lakemerge.delta.listing import list_log
from lakemerge.storage import open_store

FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", "lakemerge"})
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "c", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)
PLACES = ("NO", "N O+1", "ø/ä=%41")


def folder(place: str) -> str:
    """Folder names as Hive spells them: ``/ = %`` escaped."""
    return "c=" + place.replace("%", "%25").replace("/", "%2F").replace("=", "%3D")


def write_file(root: Path, number: int) -> AddFile:
    """One real file of three rows; a partition column's value is in the log, as Delta has it."""
    place = PLACES[number % len(PLACES)]
    path = f"{folder(place)}/part {number}.parquet"
    (root / path).parent.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.table({"id": pa.array(range(3 * number, 3 * number + 3), pa.int64())}), root / path)
    stats = {"numRecords": 3, "minValues": {"id": 3 * number}, "maxValues": {"id": 3 * number + 2}}
    size_bytes = (root / path).stat().st_size
    return AddFile(path, {"c": place}, size_bytes, 1_700_000_000_000, True, json.dumps(stats), {"lakemerge.slice": "1"})


def always(*actions: Action) -> Callable[[Snapshot | None], Attempt]:
    return lambda tip: Attempt(actions, {"numFiles": len(actions)})


def build(root: Path, commits: int, *, interval: int) -> Snapshot:
    """Commit v adds file v, sets a domain, and from v = 3 on removes file v - 2."""
    log = DeltaLog(open_store(root))
    configuration = {"delta.enableInCommitTimestamps": "true", "delta.checkpointInterval": str(interval)}
    metadata = Metadata("6f6e1d52-2f0c-4f43-9c2c-02c6ab1cf3ad", "t", None, SCHEMA, ("c",), configuration, 1)
    first = (Protocol(1, 7, frozenset(), FEATURES), metadata, DomainMetadata("lakemerge.state", "{}"))
    outcome = log.commit(None, always(*first), operation="CREATE TABLE", parameters={"partitionBy": ["c"]})
    added: dict[int, AddFile] = {}
    for version in range(1, commits + 1):
        added[version] = write_file(root, version)
        actions: list[Action] = [added[version], DomainMetadata(f"d.{version}", "é"), Txn("app", version)]
        if version >= 3:
            gone = added[version - 2]
            actions.append(RemoveFile(gone.path, 1_700_000_000_000, True, gone.partition_values, gone.size_bytes))
        assert isinstance(outcome, Committed)
        outcome = log.commit(outcome.snapshot, always(*actions), operation="WRITE", parameters={"mode": "Append"})
    assert isinstance(outcome, Committed)
    return outcome.snapshot


def expected_rows(commits: int) -> list[tuple[int, str]]:
    live = [v for v in range(1, commits + 1) if v > commits - 2]
    return [(row, PLACES[v % len(PLACES)]) for v in live for row in range(3 * v, 3 * v + 3)]


@pytest.fixture(params=["commits", "checkpoint", "checkpoint only"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Seven commits, read from JSON alone, from a checkpoint and JSON, or from a checkpoint at the tip."""
    kind = request.param
    snapshot = build(tmp_path, 7, interval={"commits": 100, "checkpoint": 5, "checkpoint only": 7}[kind])
    assert snapshot.checkpoint_version == {"commits": None, "checkpoint": 5, "checkpoint only": 7}[kind]
    if kind != "commits":
        for version in range(snapshot.checkpoint_version or 0):
            (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    return tmp_path


def test_deltalake_reads_our_table(table: Path) -> None:
    found = deltalake.DeltaTable(str(table))
    assert found.version() == 7
    assert found.metadata().partition_columns == ["c"]
    rows = pa.table(found.to_pyarrow_table()).sort_by("id").to_pydict()
    assert list(zip(rows["id"], rows["c"], strict=True)) == expected_rows(7)
    assert found.history(1)[0]["operation"] == "WRITE"


def test_polars_reads_our_table(table: Path) -> None:
    rows = pl.scan_delta(str(table)).sort("id").select("id", "c").collect().rows()
    assert rows == expected_rows(7)


def test_duckdb_reads_our_table(table: Path) -> None:
    connection = duckdb_with("delta")
    rows = connection.execute(f"select id, c from delta_scan('{table}') order by id").fetchall()
    assert rows == expected_rows(7)


def test_spark_reads_our_table(spark: SparkSession, tmp_path: Path) -> None:
    build(tmp_path, 7, interval=5)
    (tmp_path / f"_delta_log/{0:020d}.json").unlink()
    rows = spark.read.format("delta").load(str(tmp_path)).orderBy("id").select("id", "c").collect()
    assert [(row.id, row.c) for row in rows] == expected_rows(7)
    entry = spark.sql(f"describe history delta.`{tmp_path}` limit 1").collect()[0]
    assert (entry.version, entry.operation, entry.operationParameters["mode"]) == (7, "WRITE", "Append")
    assert entry.operationMetrics["numFiles"] == "4"
    stamp_ms = DeltaLog(open_store(tmp_path)).snapshot().timestamp_ms
    assert round(entry.timestamp.timestamp() * 1000) == stamp_ms


def test_a_checkpoint_of_deltalake_keeps_what_we_need(tmp_path: Path) -> None:
    last = build(tmp_path, 6, interval=100)
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    store = open_store(tmp_path)
    (written,) = list_log(store).checkpoints
    assert written.version == 6
    found = read_checkpoint(store, written)
    assert (found.files.keys(), found.domains, found.txns.keys()) == (last.files.keys(), last.domains, last.txns.keys())
    assert {path: file.tags for path, file in found.files.items()} == {p: f.tags for p, f in last.files.items()}
    assert {path: file.stats for path, file in found.files.items()} == {p: f.stats for p, f in last.files.items()}
    assert {p: f.partition_values for p, f in found.files.items()} == {
        p: f.partition_values for p, f in last.files.items()
    }
    assert (found.protocol, found.metadata, found.digest) == (last.protocol, last.metadata, None)
    assert set(found.tombstones) <= set(last.tombstones)


def test_a_table_of_deltalake(tmp_path: Path) -> None:
    frame = pa.table({"id": [1, 2, 3], "c": list(PLACES)})
    deltalake.write_deltalake(str(tmp_path), frame, partition_by=["c"])
    deltalake.write_deltalake(str(tmp_path), frame, mode="append")
    deltalake.DeltaTable(str(tmp_path)).delete("id = 2")
    check_foreign(tmp_path, [PLACES[0], PLACES[2]])
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    check_foreign(tmp_path, [PLACES[0], PLACES[2]])


def test_a_table_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    values = ", ".join(f"({number}, '{place}')" for number, place in enumerate(PLACES))
    frame = spark.sql(f"select * from values {values} as t(id, c)").coalesce(1)
    frame.write.format("delta").partitionBy("c").option("delta.checkpointInterval", "1").save(path)
    frame.write.format("delta").mode("append").save(path)
    snapshot = check_foreign(tmp_path / "t", list(PLACES))
    assert (snapshot.version, snapshot.checkpoint_version) == (1, 1)
    # Removing under the spelling Spark used: the file is gone for Spark, too.
    gone = next(file for file in snapshot.files.values() if file.partition_values["c"] == PLACES[2])
    log = DeltaLog(open_store(path))
    log.commit(snapshot, always(RemoveFile(gone.path, 1, True)), operation="DELETE", parameters={})
    assert spark.read.format("delta").load(path).count() == len(snapshot.files) - 1


def check_foreign(root: Path, places: list[str]) -> Snapshot:
    snapshot = DeltaLog(open_store(root)).snapshot()
    assert all((root / path).is_file() for path in snapshot.files)
    theirs = deltalake.DeltaTable(str(root))
    assert snapshot.version == theirs.version()
    assert {str(root / path) for path in snapshot.files} == {
        path.removeprefix("file://") for path in theirs.file_uris()
    }
    assert sorted(file.partition_values["c"] or "" for file in snapshot.files.values()) == sorted(places * 2)
    return snapshot
