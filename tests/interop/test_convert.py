"""Tables of delta-spark are converted, and read as delta-spark and DuckDB read them before."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.duckdb_with import duckdb_with
from lakemerge import LakeTable
from lakemerge.delta import DeltaLog
from lakemerge.errors import UnsupportedFeatureError
from lakemerge.results.conversion import ConversionResult
from lakemerge.storage import LocalStore

Row = dict[str, Any]


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def of_spark(spark: SparkSession, path: Path) -> list[Row]:
    return ordered([row.asDict(recursive=True) for row in spark.read.format("delta").load(str(path)).collect()])


def of_duckdb(path: Path) -> list[Row]:
    with duckdb_with("delta") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return ordered(connection.sql(f"SELECT * FROM delta_scan('{path}')").to_arrow_table().to_pylist())


def of_lakemerge(spark: SparkSession, path: Path) -> list[Row]:
    return ordered([row.asDict(recursive=True) for row in LakeTable.open(path, spark=spark).to_df().collect()])


def sql(spark: SparkSession, path: Path, *statements: str) -> None:
    for statement in statements:
        spark.sql(statement.replace("T!", f"delta.`{path}`"))


COLUMNS = (
    "k BIGINT, v STRING, n DOUBLE, d DATE, ts TIMESTAMP, x DECIMAL(12, 2), s STRUCT<a: INT, b: STRING>, l ARRAY<INT>, "
    "m MAP<STRING, INT>"
)
VALUES = (
    "SELECT id, concat('v', id), id / 3, date_add(DATE'1990-01-01', cast(id AS INT)), "
    "timestamp_micros(id * 1234567890), cast(id AS DECIMAL(12, 2)) / 4, "
    "IF(id % 4 = 0, NULL, named_struct('a', cast(id AS INT), 'b', IF(id % 3 = 0, NULL, 'b'))), "
    "array(1, NULL, cast(id AS INT)), map('x', cast(id AS INT)) "
)


def made_plain(spark: SparkSession, path: Path, *, properties: str = "", clauses: str = "") -> None:
    given = f"TBLPROPERTIES ({properties})" if properties else ""
    sql(
        spark,
        path,
        f"CREATE TABLE T! ({COLUMNS}) USING delta {clauses} {given}",
        f"INSERT INTO T! {VALUES} FROM range(0, 40)",
        f"INSERT INTO T! {VALUES} FROM range(40, 60)",
    )


def with_vectors(spark: SparkSession, path: Path) -> None:
    made_plain(spark, path, properties="'delta.enableDeletionVectors' = 'true'")
    sql(
        spark,
        path,
        "DELETE FROM T! WHERE k % 5 = 1",
        "UPDATE T! SET v = 'changed' WHERE k % 7 = 2",
        "DELETE FROM T! WHERE k = 3",
    )
    assert any(add.vector is not None for add in DeltaLog(LocalStore(path)).snapshot().files.values())


def with_mapping(spark: SparkSession, path: Path, mode: str = "name") -> None:
    made_plain(spark, path, properties=f"'delta.columnMapping.mode' = '{mode}'")
    sql(
        spark,
        path,
        "ALTER TABLE T! RENAME COLUMN v TO title",
        "ALTER TABLE T! RENAME COLUMN s.a TO inner_a",
        "ALTER TABLE T! DROP COLUMN n",
        "ALTER TABLE T! ADD COLUMN (n STRING, s.c STRING)",
        "INSERT INTO T! (k, title, d, n) VALUES (100, 'new', DATE'2024-01-01', 'text')",
    )


def upgraded(spark: SparkSession, path: Path) -> None:
    """A mapping of the old protocol, (2, 5), whose features are implied."""
    made_plain(spark, path)
    sql(
        spark,
        path,
        "ALTER TABLE T! SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')",
        "ALTER TABLE T! RENAME COLUMN v TO title",
    )


def partitioned(spark: SparkSession, path: Path) -> None:
    made_plain(spark, path, clauses="PARTITIONED BY (d, ts)")


def clustered(spark: SparkSession, path: Path) -> None:
    made_plain(spark, path, clauses="CLUSTER BY (v, d)")


def evolved(spark: SparkSession, path: Path) -> None:
    sql(
        spark,
        path,
        "CREATE TABLE T! (k INT, n INT, s STRUCT<a: INT>) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "INSERT INTO T! SELECT cast(id AS INT), cast(id AS INT), named_struct('a', cast(id AS INT)) FROM range(10)",
        "ALTER TABLE T! ALTER COLUMN n TYPE BIGINT",
        "ALTER TABLE T! ADD COLUMNS (late STRING FIRST, s.b STRING)",
        "INSERT INTO T! SELECT 'x', cast(id AS INT), id * 10000000000, named_struct('a', 1, 'b', 'y') "
        "FROM range(10, 15)",
    )


def stamped(spark: SparkSession, path: Path) -> None:
    made_plain(spark, path, properties="'delta.enableInCommitTimestamps' = 'true'")


def int96(spark: SparkSession, path: Path) -> None:
    """Times as Spark writes them by default, and dates out of the reach of nanoseconds."""
    made_plain(spark, path)
    sql(spark, path, "INSERT INTO T! (k, ts, d) VALUES (1000, TIMESTAMP'9999-12-31 23:59:59.999999', DATE'9999-12-31')",
        "INSERT INTO T! (k, ts, d) VALUES (1001, TIMESTAMP'1700-01-01 00:00:00', DATE'1600-01-01')")  # fmt: skip


def bounded(spark: SparkSession, path: Path) -> None:
    sql(
        spark,
        path,
        "CREATE TABLE T! (k BIGINT, v VARCHAR(5), c CHAR(4)) USING delta",
        "INSERT INTO T! SELECT id, concat('v', id), IF(id = 2, NULL, 'ab') FROM range(6)",
    )


KINDS: dict[str, Callable[[SparkSession, Path], None]] = {
    "vectors": with_vectors,
    "mapping": with_mapping,
    "mapping by id": lambda spark, path: with_mapping(spark, path, "id"),
    "old mapping": upgraded,
    "partitioned": partitioned,
    "clustered": clustered,
    "evolved": evolved,
    "in-commit timestamps": stamped,
    "int96": int96,
    "lengths of texts": bounded,
}


@pytest.mark.long
@pytest.mark.parametrize("on_spark", [False, True], ids=["", "on spark"])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_delta_spark_are_taken(spark: SparkSession, tmp_path: Path, kind: str, on_spark: bool) -> None:
    if on_spark and kind not in ("vectors", "mapping"):
        pytest.skip("the tasks read files by the same function; two kinds show that it is sent along")
    path = tmp_path / "t"
    KINDS[kind](spark, path)
    before, theirs = of_spark(spark, path), of_duckdb(path)
    protocol = DeltaLog(LocalStore(path)).snapshot().protocol
    result = LakeTable.convert(path, key=["k"], spark=spark if on_spark else None)
    assert isinstance(result, ConversionResult)
    assert (result.rows, result.merged_rows) == (len(before), 0)
    assert of_lakemerge(spark, path) == before
    # Spark fills a CHAR(4) up when it reads. DuckDB gives what is in the files, and a conversion fills it up there.
    filled = [{**row, "c": row["c"] and row["c"].ljust(4)} for row in theirs] if "lengths" in kind else theirs
    assert ordered(LakeTable.open(path).to_arrow().to_pylist()) == filled
    assert LakeTable.check(path).findings == ()
    # Other engines read it as before.
    assert of_spark(spark, path) == before
    assert of_duckdb(path) == filled
    after = DeltaLog(LocalStore(path)).snapshot()
    assert protocol.reader_features <= after.protocol.reader_features
    if "mapping" in kind:
        assert after.protocol.min_reader == 3
        assert "columnMapping" in after.protocol.reader_features & after.protocol.writer_features
    if kind == "in-commit timestamps":
        assert "delta.inCommitTimestampEnablementVersion" not in after.metadata.configuration
    # It goes on as a LakeMerge table, and back.
    table = LakeTable.open(path, spark=spark)
    table.upsert(table.to_df().where("k = 5"))
    table.unconvert()
    assert of_spark(spark, path) == before == of_spark(spark, path)
    sql(spark, path, "DELETE FROM T! WHERE k = 5")
    assert of_spark(spark, path) == [row for row in before if row["k"] != 5]


@pytest.mark.long
@pytest.mark.parametrize("form", ["classic", "json", "parquet"])
def test_checkpoints_of_both_kinds(spark: SparkSession, tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"
    policy = "classic" if form == "classic" else "v2"
    with_conf = {
        "spark.databricks.delta.checkpointV2.topLevelFileFormat": form,
        "spark.databricks.delta.checkpoint.partSize": "3",
    }
    if form == "classic":
        with_conf = {}
    for name, value in with_conf.items():
        spark.conf.set(name, value)
    try:
        made_plain(spark, path, properties=f"'delta.checkpointPolicy' = '{policy}', 'delta.checkpointInterval' = '2'")
        for number in range(4):
            sql(spark, path, f"INSERT INTO T! {VALUES} FROM range({60 + number * 5}, {65 + number * 5})")
        sql(spark, path, "DELETE FROM T! WHERE k = 7")
    finally:
        for name in with_conf:
            spark.conf.unset(name)
    log = path / "_delta_log"
    checkpoints = [path for path in log.glob("*.checkpoint.*") if not path.name.startswith(".")]
    assert checkpoints
    if form != "classic":
        assert all(p.suffix == f".{form}" and len(p.name.split(".")) == 4 for p in checkpoints)
        assert list((log / "_sidecars").glob("*.parquet"))
    newest = max(int(p.name[:20]) for p in checkpoints)
    before = of_spark(spark, path)
    # Only the checkpoint can tell what these said.
    for path_of_old in [*log.glob("0*.json"), *log.glob("0*.parquet")]:
        if int(path_of_old.name[:20]) < newest:
            path_of_old.unlink()
    LakeTable.convert(path, key=["k"])
    assert of_lakemerge(spark, path) == before == of_spark(spark, path)
    assert "delta.checkpointPolicy" not in DeltaTable(path).metadata().configuration
    table = LakeTable.open(path)
    assert LakeTable.check(path).findings == ()
    table.vacuum(retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    assert of_lakemerge(spark, path) == before == of_spark(spark, path)


@pytest.mark.long
def test_shallow_clones_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    made_plain(spark, tmp_path / "t")
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 'clone'}` SHALLOW CLONE delta.`{tmp_path / 't'}`")
    with pytest.raises(UnsupportedFeatureError, match="absolute path"):
        LakeTable.convert(tmp_path / "clone", key=["k"])
