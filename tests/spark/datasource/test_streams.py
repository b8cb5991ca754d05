"""Streams into a table and changes out of it, through queries that start, stop and start again."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from lakemerge import InputError, LakeTable
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.flows import auto_cdc, auto_cdc_from_snapshot, history_df
from tests.unit.faults import create, frame

DDL = "k BIGINT, o BIGINT, v STRING"
Rows = list[tuple[Any, ...]]


def put(folder: Path, name: str, rows: Rows) -> None:
    """A file for a stream of files."""
    folder.mkdir(exist_ok=True)
    lines = [f'{{"k": {k}, "o": {o}, "v": "{v}"}}\n' for k, o, v in rows]
    (folder / f".{name}").write_text("".join(lines))
    (folder / f".{name}").rename(folder / name)


def files(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(folder))


def rows_of(table: LakeTable) -> Rows:
    return sorted(tuple(row.values()) for row in table.to_arrow(columns=["k", "o", "v"]).to_pylist())


def feed(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("lakemerge").option("readChangeFeed", "true").options(**options).load(str(path))


def copied(stream: DataFrame, target: Path, checkpoint: Path) -> list[int]:
    """Apply what a stream of changes has to say to another table; the rows of each batch."""
    writer = stream.drop("_commit_version", "_commit_timestamp").writeStream.format("lakemerge")
    options = {"kindColumn": "_change_type", "checkpointLocation": str(checkpoint)}
    query = writer.options(**options).trigger(availableNow=True).start(str(target))
    query.awaitTermination()
    return [int(progress["numInputRows"]) for progress in query.recentProgress if progress["numInputRows"]]


def test_a_stream_upserts_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    table = LakeTable.create(tmp_path / "t", DDL, key=["k"], ordering=["o"], buckets=2, spark=spark)
    put(source, "1", [(1, 1, "a"), (2, 1, "b")])
    put(source, "2", [(1, 2, "A")])
    query = table.write_stream(files(spark, source), checkpoint=str(checkpoint))
    query.awaitTermination()
    app = f"lakemerge.stream.{query.id}"
    assert (rows_of(table), table.opened.view.snapshot.txns[app].version) == ([(1, 2, "A"), (2, 1, "b")], 1)
    # Killed after the table's commit and before Spark's own: the batch comes again, under its number.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    version = table.version
    table.write_stream(files(spark, source), checkpoint=str(checkpoint)).awaitTermination()
    assert table.version == version
    # An older checkpoint, put back: its numbers are the table's already, and its rows may not be.
    for name in ("offsets", "commits"):
        for file in (checkpoint / name).glob("*1*"):
            file.unlink()
    put(source, "3", [(3, 1, "c")])
    for file in (checkpoint / "sources" / "0").glob("*1*"):
        file.unlink()
    shutil.rmtree(checkpoint / "offsets")
    shutil.rmtree(checkpoint / "commits")
    with pytest.raises(PySparkException, match="comes after batch 1 was written"):
        table.write_stream(files(spark, source), checkpoint=str(checkpoint)).awaitTermination()
    assert table.version == version
    # A new checkpoint is a new query, which writes everything anew; equal orderings change nothing.
    table.write_stream(files(spark, source), checkpoint=str(tmp_path / "new")).awaitTermination()
    assert rows_of(table) == [(1, 2, "A"), (2, 1, "b"), (3, 1, "c")]
    with pytest.raises(InputError, match="the frame is no stream"):
        table.write_stream(spark.createDataFrame([(1, 1, "a")], DDL), checkpoint=str(tmp_path / "x"))


@pytest.mark.long
def test_a_table_follows_another(spark: SparkSession, tmp_path: Path) -> None:
    """First its rows, then its changes: a huge commit in pieces, compactions and a restore in between."""
    table = create(tmp_path / "t", buckets=4)
    copy = create(tmp_path / "copy", ordering=[], buckets=2)
    table.upsert(frame([(k, 1, f"v{k}") for k in range(40)]))
    checkpoint = tmp_path / "checkpoint"

    def follow(**options: Any) -> list[int]:
        return copied(feed(spark, tmp_path / "t", **options), tmp_path / "copy", checkpoint)

    assert follow(maxBytesPerTrigger="1") == [len(part) for part in _by_bucket(table)], "one file slice a batch"
    assert rows_of(copy) == rows_of(table)
    version = table.version
    table.upsert(frame([(k, 2, f"w{k}") for k in range(0, 40, 2)]))
    table.delete(frame([(k, 9) for k in range(5)], ["k", "o"]))
    table.compact()
    table.rescale(buckets=8)
    table.savepoint("s")
    batches = follow(maxVersionsPerTrigger=1)
    assert sum(batches) == sum(batch.num_rows for batch in table.changes(version))
    assert len(batches) == 2
    assert rows_of(copy) == rows_of(table)
    table.restore(version=version)
    follow()
    assert rows_of(copy) == rows_of(table)
    before = copy.version
    table.compact()
    assert follow() == []
    assert copy.version == before


def _by_bucket(table: LakeTable) -> list[Any]:
    return list(table.follow(poll=None))


def test_a_batch_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", DDL, key=["k"], ordering=["o"], buckets=2, spark=spark)
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.upsert(frame([(1, 2, "A"), (3, 1, "c")]))
    table.delete(frame([(3, 5)], ["k", "o"]))
    told = {
        (1, "A", "update_postimage", 2), (1, "a", "update_preimage", 2), (3, "c", "insert", 2), (3, "c", "delete", 3),
    }  # fmt: skip

    def seen(frame: DataFrame) -> set[tuple[Any, ...]]:
        return {tuple(row) for row in frame.select("k", "v", "_change_type", "_commit_version").collect()}

    def read(**options: Any) -> DataFrame:
        named = spark.read.format("lakemerge").options(readChangeFeed="true", **options)
        return named.load(str(tmp_path / "t"))

    assert seen(table.changes_df(1)) == told
    assert seen(read(startingVersion=2)) == told
    assert read(startingVersion=2).columns == ["k", "o", "v", "_change_type", "_commit_version", "_commit_timestamp"]
    assert seen(read(startingVersion=3, endingVersion=3)) == {(3, "c", "delete", 3)}
    first = table.history()[0].timestamp_ms / 1000
    assert seen(read(startingTimestamp=_iso(first))) == {(3, "c", "delete", 3)}
    net = {(1, "A", "update_postimage", 3), (1, "a", "update_preimage", 3)}
    assert seen(read(startingVersion=2, deduplicationMode="netChanges")) == net
    assert seen(read(startingVersion=2, beforeImages="false")) == told - {(1, "a", "update_preimage", 2)}
    for options, message in (
        ({}, "give startingVersion"),
        ({"startingVersion": 2, "startingTimestamp": "2026-01-01"}, "not both"),
        ({"startingVersion": 2, "deduplicationMode": "x"}, "must be one of"),
    ):
        with pytest.raises(PySparkException, match=message):
            read(**options).collect()


def _iso(seconds: float) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")


@pytest.mark.long
def test_columns_that_come_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    stream = feed(spark, tmp_path / "t", startingVersion=1)
    careful = feed(spark, tmp_path / "t", startingVersion=1, schemaChanges="stop")
    table.upsert(frame([(1, 1, "a", 5), (2, 1, "b", 6)], ["k", "o", "v", "n"], n=pa.int64()), merge_schema=True)
    copy = create(tmp_path / "copy", ordering=[])
    assert copied(stream, tmp_path / "copy", tmp_path / "cp1") == [2], "what changes in n alone is no change"
    assert rows_of(copy) == [(1, 1, "a"), (2, 1, "b")]
    other = LakeTable.create(tmp_path / "other", f"{DDL}, n BIGINT", key=["k"])
    with pytest.raises(
        PySparkException, match=r"column 'n' is new.*has the columns `k` BIGINT, `o` BIGINT, `v` STRING, `n` BIGINT"
    ):
        copied(careful, tmp_path / "other", tmp_path / "cp2")
    copied(feed(spark, tmp_path / "t", startingVersion=1, schemaChanges="stop"), tmp_path / "other", tmp_path / "cp2")
    assert other.to_arrow().num_rows == 2


@pytest.mark.long
def test_streams_that_cannot_go_on(spark: SparkSession, tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    create(tmp_path / "copy", ordering=[])
    table.upsert(frame([(1, 1, "a")]))
    table.consumers.register("copy", present_rows=True)
    stream = feed(spark, tmp_path / "t", consumer="copy")
    copied(stream, tmp_path / "copy", tmp_path / "cp")
    # Spark tells the source that a batch is done with when it begins the next one.
    table.upsert(frame([(1, 2, "b")]))
    copied(stream, tmp_path / "copy", tmp_path / "cp")
    assert table.consumers.list()[0].version >= 1
    with pytest.raises(PySparkException, match=r"needs the column _change_type: add .option"):
        copied(spark.readStream.format("lakemerge").load(str(tmp_path / "t")), tmp_path / "copy", tmp_path / "x")
    shutil.rmtree(tmp_path / "t")
    create(tmp_path / "t").upsert(frame([(1, 1, "a")]))
    with pytest.raises(PySparkException, match="of another table than there is"):
        copied(feed(spark, tmp_path / "t"), tmp_path / "copy", tmp_path / "cp")


def test_a_sink_begins_each_batch_at_the_tip(tmp_path: Path) -> None:
    """Spark pickles the source once a query, which pins a batch's version; a fence would refuse later batches."""
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    kept: Any = pickle.loads(pickle.dumps(LakeMergeDataSource({"path": str(tmp_path / "t")})))
    assert kept.options["version"] == "1"
    table.upsert(frame([(1, 2, "b")]))
    columns = StructType().add("k", LongType()).add("o", LongType()).add("v", StringType())
    writer = kept.streamWriter(columns, overwrite=False)
    assert writer._plan.begin_version == table.version == 2
    reader = kept.streamReader(columns.add("_change_type", StringType()))
    assert reader.initialOffset()["version"] == 2


@pytest.mark.long
def test_flows(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    put(source, "1", [(1, 10, "a"), (2, 10, "b")])
    put(source, "2", [(1, 30, "c"), (2, 20, "DELETE")])
    put(source, "3", [(1, 20, "late")])
    flow: dict[str, Any] = {"keys": ["k"], "sequence_by": "o", "apply_as_deletes": "v = 'DELETE'"}
    for kind in (1, 2):
        target, checkpoint = tmp_path / f"t{kind}", str(tmp_path / f"cp{kind}")
        stream = files(spark, source)
        query: Any = auto_cdc(source=stream, target=target, checkpoint=checkpoint, stored_as_scd_type=kind, **flow)
        query.awaitTermination()
    assert rows_of(LakeTable.open(tmp_path / "t1")) == [(1, 30, "c")]
    found = history_df(LakeTable.open(tmp_path / "t2", spark=spark)).select("k", "v", "__START_AT", "__END_AT")
    assert sorted(map(tuple, found.collect()), key=str) == [
        (1, "a", 10, 20), (1, "c", 30, None), (1, "late", 20, 30), (2, "b", 10, 20),
    ]  # fmt: skip
    for number, rows in enumerate([[(1, 1, "a"), (2, 1, "b")], [(2, 1, "B")]], start=1):
        snapshot = spark.createDataFrame(rows, DDL)
        for kind in (1, 2):
            flow = {"target": tmp_path / f"s{kind}", "keys": ["k"], "version": number, "stored_as_scd_type": kind}
            auto_cdc_from_snapshot(source=snapshot, **flow)
    assert rows_of(LakeTable.open(tmp_path / "s1")) == [(2, 1, "B")]
    found = history_df(LakeTable.open(tmp_path / "s2", spark=spark)).select("k", "v", "__START_AT", "__END_AT")
    assert sorted(map(tuple, found.collect()), key=str) == [(1, "a", 1, 2), (2, "B", 2, None), (2, "b", 1, 2)]
