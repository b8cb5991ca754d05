"""Streams from and into tables of a catalog, and their changes in SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.guides import blocks, run
from tests.spark.connector.lake import Lake, is_from_4_2, upserted

KINDS = ("_change_type", "_commit_version", "_commit_timestamp")


def what_comes(stream: DataFrame, checkpoint: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows that a stream has now beyond those that the checkpoint knows."""
    seen: list[tuple[Any, ...]] = []
    shown = stream.select(*columns) if columns else stream

    def note(frame: DataFrame, _: int) -> None:
        seen.extend(tuple(row) for row in frame.collect())

    writing = shown.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint))
    finished(writing.trigger(availableNow=True).start())
    return sorted(seen)


def finished(query: Any) -> None:
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.mark.long
def test_a_stream_has_the_rows_of_a_table_and_those_that_change(
    lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    table = lake.made()
    name = f"{lake.name}.db.t"
    stream = spark.readStream.table(name)
    assert stream.columns == table.schema.names
    assert what_comes(stream, tmp_path / "check") == lake.rows
    upserted(4, 1, 4)(table)
    lake("UPDATE {}.db.t SET n = 7 WHERE id = 1")
    table.compact()
    changed = [(1, "a", 10, 7), (4, "other", 1, 4)]
    assert what_comes(spark.readStream.table(name), tmp_path / "check") == changed
    lake("DELETE FROM {}.db.t WHERE id = 2")
    upserted(5, 1, 5)(table)
    deleted = table.version - 1
    with pytest.raises(PySparkException, match=rf"version {deleted} deleted rows.*NAME\$changes"):
        what_comes(spark.readStream.table(name), tmp_path / "check")
    skipping = spark.readStream.option("skipDeletes", "true").table(name)
    assert what_comes(skipping, tmp_path / "check") == [(5, "other", 1, 5)]
    later = spark.readStream.option("startingVersion", str(deleted + 1)).table(name)
    assert what_comes(later, tmp_path / "other", "id") == [(5,)]
    assert what_comes(spark.sql(f"SELECT id FROM STREAM {name}"), tmp_path / "sql") == [(1,), (3,), (4,), (5,)]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("readChangeFeed", r"NAME\$changes"),
        ("columns", "a stream of changes takes no option columns"),
        ("path", "the name says which table"),
        ("lakemerge.rows", "the library's own"),
    ],
)
def test_options_that_a_stream_of_rows_cannot_have(
    lake: Lake, spark: SparkSession, tmp_path: Path, option: str, message: str
) -> None:
    lake.made()
    stream = spark.readStream.option(option, "true").table(f"{lake.name}.db.t")
    with pytest.raises(PySparkException, match=message):
        what_comes(stream, tmp_path / "check")


def test_a_batch_of_rows_takes_no_options_of_changes(lake: Lake, spark: SparkSession) -> None:
    lake.made()
    for option in ("startingVersion", "skipDeletes"):
        with pytest.raises(PySparkException, match=r"CHANGES FROM VERSION|spark\.readStream\.table"):
            spark.read.option(option, "1").table(f"{lake.name}.db.t").collect()


@pytest.mark.long
def test_a_table_follows_another_by_its_changes(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    """Deletes, too: the kinds of the feed are those that a stream may bring."""
    table = lake.made()
    lake("CREATE TABLE {}.db.copy (id BIGINT, state STRING, at BIGINT, n BIGINT) TBLPROPERTIES ('key' = 'id')")

    def follow() -> list[tuple[Any, ...]]:
        changes = spark.readStream.table(f"{lake.name}.db.`t$changes`").drop("_commit_version", "_commit_timestamp")
        writing = changes.writeStream.option("kindColumn", "_change_type").trigger(availableNow=True)
        finished(writing.option("checkpointLocation", str(tmp_path / "check")).toTable(f"{lake.name}.db.copy"))
        return lake("SELECT * FROM {}.db.copy ORDER BY id")

    assert follow() == lake.rows
    lake("DELETE FROM {}.db.t WHERE id = 2")
    lake("UPDATE {}.db.t SET state = 'x', at = NULL WHERE id = 3")
    upserted(4, 1, 4)(table)
    assert follow() == lake.rows
    assert len(lake.rows) == 3


def test_a_stream_into_a_table_counts_once(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    """Batches are upserts of the columns that they have, and a batch that Spark repeats changes nothing."""
    lake(
        "CREATE TABLE {}.db.t (id BIGINT, n BIGINT, note STRING) TBLPROPERTIES ('key' = 'id', 'merger' = 'aggregate', "
        """'merger.options' = '{"aggregates": {"n": "sum"}}')"""
    )
    lake("INSERT INTO {}.db.t VALUES (1, 10, 'kept')")
    landing, check = tmp_path / "landing", tmp_path / "check"
    landing.mkdir()

    def land(number: int, *rows: dict[str, Any]) -> None:
        (landing / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run() -> None:
        stream = spark.readStream.schema("n INT, id BIGINT").json(str(landing))
        writing = stream.writeStream.option("checkpointLocation", str(check)).trigger(availableNow=True)
        finished(writing.toTable(f"{lake.name}.db.t"))

    land(1, {"id": 1, "n": 5}, {"id": 2, "n": 7})
    run()
    land(2, {"id": 1, "n": 100})
    run()
    (check / "commits" / "1").unlink()  # Spark died before it noted the batch
    (check / "commits" / ".1.crc").unlink()
    run()
    assert lake("SELECT * FROM {}.db.t ORDER BY id") == [(1, 115, "kept"), (2, 7, None)]
    [[operations]] = lake("SELECT count(*) FROM {}.db.`t$history` WHERE operation LIKE '%STREAM%' OR version > 1")
    assert operations == 2


@pytest.mark.long
def test_output_modes(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    lake("CREATE TABLE {}.db.t (id BIGINT, n BIGINT) TBLPROPERTIES ('key' = 'id')")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1}\n{"id": 1}\n{"id": 2}\n')
    counted = spark.readStream.schema("id BIGINT").json(str(tmp_path / "in")).groupBy("id").count()
    counted = counted.withColumnRenamed("count", "n")

    def write(mode: str, name: str) -> None:
        writing = counted.writeStream.outputMode(mode).trigger(availableNow=True)
        finished(writing.option("checkpointLocation", str(tmp_path / mode)).toTable(f"{lake.name}.db.{name}"))

    write("update", "t")
    assert lake("SELECT * FROM {}.db.t ORDER BY id") == [(1, 2), (2, 1)]
    with pytest.raises(PySparkException, match=r"outputMode\(\"append\"\)"):
        write("complete", "t")
    with pytest.raises(AnalysisException, match="create the table first") as caught:
        write("update", "other")
    assert caught.value.getCondition() == "LAKEMERGE_INPUT"


def test_the_changes_of_a_table_are_rows(lake: Lake, spark: SparkSession) -> None:
    table = lake.made()
    lake("UPDATE {}.db.t SET n = 7 WHERE id = 1")
    lake("DELETE FROM {}.db.t WHERE id = 2")
    table.compact()
    changes = lake(
        "SELECT id, n, _change_type, _commit_version FROM {}.db.`t$changes` WITH (startingVersion = 2) "
        "ORDER BY _commit_version, _change_type DESC"
    )
    expected = [(1, 1, "update_preimage", 2), (1, 7, "update_postimage", 2), (2, 2, "delete", 3)]
    assert changes == expected
    with pytest.raises(PySparkException, match="give startingVersion"):
        lake("SELECT * FROM {}.db.`t$changes`")
    lake.refused("SELECT * FROM {}.db.`none$changes`", "TABLE_OR_VIEW_NOT_FOUND")
    if not is_from_4_2(spark):
        return
    columns = "id, n, _change_type, _commit_version"
    ordered = "ORDER BY _commit_version, _change_type DESC"
    assert lake(f"SELECT {columns} FROM {{}}.db.t CHANGES FROM VERSION 2 {ordered}") == expected
    assert lake(f"SELECT {columns} FROM {{}}.db.t CHANGES FROM VERSION 1 EXCLUSIVE TO VERSION 2 {ordered}") == [
        *expected[:2]
    ]
    assert lake(f"SELECT {columns} FROM {{}}.db.t CHANGES FROM VERSION 2 TO VERSION 3 EXCLUSIVE {ordered}") == [
        *expected[:2]
    ]
    [[second], [third]] = lake("SELECT timestamp FROM {}.db.`t$history` WHERE version IN (2, 3) ORDER BY version")
    times = f"CHANGES FROM TIMESTAMP '{second}' TO TIMESTAMP '{third}' EXCLUSIVE"
    assert lake(f"SELECT {columns} FROM {{}}.db.t {times} {ordered}") == expected[:2]
    read = spark.read.option("startingVersion", "1").option("deduplicationMode", "netChanges")
    net = read.changes(f"{lake.name}.db.t").orderBy("id")
    assert [(row.id, row.n, row["_change_type"]) for row in net.collect()] == [(1, 7, "insert"), (3, 3, "insert")]
    path = f"lakemerge.`{lake.folder}/db/t`"
    assert lake(f"SELECT count(*) FROM {path} CHANGES FROM VERSION 0") == [(6,)]
    lake.refused("SELECT * FROM {}.db.t CHANGES FROM VERSION 'x'", "LAKEMERGE_INPUT", "a version is a number")
    lake.refused("SELECT * FROM {}.db.none CHANGES FROM VERSION 1", "TABLE_OR_VIEW_NOT_FOUND")


@pytest.mark.long
def test_a_stream_of_changes(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    lake.made()
    lake("DELETE FROM {}.db.t WHERE id = 2")
    if is_from_4_2(spark):
        stream = spark.readStream.option("startingVersion", "2").changes(f"{lake.name}.db.t")
    else:
        stream = spark.readStream.option("startingVersion", "2").table(f"{lake.name}.db.`t$changes`")
    assert stream.columns[-3:] == list(KINDS)
    assert what_comes(stream, tmp_path / "check", "id", "_change_type") == [(2, "delete")]
    upserted(9, 1, 9)(lake.table)
    assert what_comes(stream, tmp_path / "check", "id", "_change_type") == [(9, "insert")]


def test_a_column_with_a_name_of_the_feed(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    lake("CREATE TABLE {}.db.t (id BIGINT, _change_type STRING) TBLPROPERTIES ('key' = 'id')")
    lake("INSERT INTO {}.db.t VALUES (1, 'mine')")
    with pytest.raises(PySparkException, match="_change_type"):
        what_comes(spark.readStream.table(f"{lake.name}.db.t"), tmp_path / "check")
    assert pa.table(lake.table.to_arrow()).to_pylist() == [{"id": 1, "_change_type": "mine"}]


def test_the_streams_of_the_page_run(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    lake("CREATE NAMESPACE {}.shop")
    for name in ("orders", "copy"):
        lake(f"CREATE TABLE {{}}.shop.{name} (id BIGINT, n BIGINT) TBLPROPERTIES ('key' = 'id')")
    lake("INSERT INTO {}.shop.orders VALUES (1, 1), (2, 2)")
    for number, block in enumerate(blocks("sql.md")):
        code = block.replace("lake.", f"{lake.name}.")
        query: Any = run("sql.md", [code], spark=spark, checkpoint=str(tmp_path / f"{number}"))["query"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert lake("SELECT * FROM {}.shop.copy ORDER BY id") == lake("SELECT * FROM {}.shop.orders ORDER BY id")
        lake("DELETE FROM {}.shop.copy WHERE id = 1")
