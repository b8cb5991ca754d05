"""Overwrites with frames of Spark, by ``table.overwrite`` and by ``format("lakemerge")``.

Expected rows are written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemerge import FilterError, FrameError, InputError, LakeTable
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import listing, open_over

DDL = "id BIGINT, p STRING, at INT, v STRING"
BEFORE = [(1, "a", 5, "x"), (2, "a", 6, "y"), (1, "b", 6, "y"), (4, "b", 5, "x")]


def made(spark: SparkSession, path: Path) -> LakeTable:
    """Rows in base files and logs."""
    table = LakeTable.create(path, DDL, key=["id", "p"], ordering=["at"], partition_by=["p"], buckets=2, spark=spark)
    table.upsert(spark.createDataFrame([(1, "a", 5, "x"), (1, "b", 5, "x"), (4, "b", 5, "x")], DDL))
    table.upsert(spark.createDataFrame([(2, "a", 6, "y"), (1, "b", 6, "y")], DDL))
    assert rows(table.to_df()) == sorted(BEFORE)
    return table


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def save(frame: DataFrame, path: Path, **options: Any) -> None:
    frame.write.format("lakemerge").mode("overwrite").options(**options).save(str(path))


def test_a_frame_of_many_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are packed and merged in tasks. Columns that the frame lacks are null, and later records are newer."""
    table = made(spark, tmp_path / "t")
    frame = spark.range(1000).selectExpr("id", "if(id % 2 = 0, 'a', 'c') AS p", "1 AS AT").repartition(3)
    before = set(listing(tmp_path / "t"))
    result = table.overwrite(frame)
    assert (result.rows, result.mode) == (1000, "overwrite")
    wanted = [(i, "a" if i % 2 == 0 else "c", 1, None) for i in range(1000)]
    assert rows(table.to_df()) == sorted(wanted)
    assert not [path for path in listing(tmp_path / "t") if "/log/" in path and path not in before]
    seen = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert sorted(zip(seen["id"].to_pylist(), seen["p"].to_pylist(), strict=True)) == [
        row[:2] for row in sorted(wanted)
    ]
    table.upsert(spark.createDataFrame([(0, "a", 0, "old"), (2, "a", 2, "new"), (1, "b", 0, "back")], DDL))
    found = {row[:2]: row for row in rows(table.to_df())}
    assert [found[key] for key in [(0, "a"), (2, "a"), (1, "b")]] == [
        (0, "a", 1, None),
        (2, "a", 2, "new"),
        (1, "b", 0, "back"),
    ]
    assert LakeTable.check(tmp_path / "t").ok


def test_partitions(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path / "t")
    new = spark.createDataFrame([(7, "a", 1, "n")], DDL)
    table.overwrite(new, "p = 'a'")
    assert rows(table.to_df()) == sorted([(7, "a", 1, "n"), *BEFORE[2:]])
    table.overwrite(spark.createDataFrame([(8, "b", 1, "n")], DDL), partition_mode="dynamic")
    assert rows(table.to_df()) == [(7, "a", 1, "n"), (8, "b", 1, "n")]
    changes = table.changes_df(since=table.version - 1).selectExpr("id", "p", "_change_type").collect()
    assert sorted(map(tuple, changes)) == [
        (1, "b", "delete"),
        (4, "b", "delete"),
        (8, "b", "insert"),
    ]
    table.overwrite(new.limit(0))
    assert rows(table.to_df()) == []


def test_what_is_refused_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path / "t")
    before = set(listing(tmp_path / "t"))
    twice = spark.createDataFrame([(7, "a", 1, "n"), (8, "a", 1, "n"), (7, "a", 2, "m")], DDL).repartition(2)
    new = spark.createDataFrame([(7, "a", 1, "n")], DDL)
    for frame, options, error, match in (
        (twice, {}, FrameError, r"key \{'id': 7, 'p': 'a'\} twice"),
        (new, {"where": "p = 'b'"}, FrameError, r"rows of partition \{'p': 'a'\}"),
        (new, {"where": "v = 'b'"}, FilterError, "reads partition columns alone"),
        (new.drop("id"), {}, FrameError, "key column 'id' is missing"),
        (new.withColumnRenamed("v", "w"), {}, FrameError, "unknown column 'w'"),
        (spark.readStream.format("rate").load(), {}, FrameError, "is a stream"),
    ):
        with pytest.raises(error, match=match):
            table.overwrite(frame, **options)  # type: ignore[arg-type]
        assert set(listing(tmp_path / "t")) == before
    assert table.version == 2


def test_times_without_a_zone_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The session's zone may be another one, and the wrong partitions would be lost."""
    ddl = "id INT, p TIMESTAMP"
    table = LakeTable.create(tmp_path / "t", ddl, key=["id", "p"], partition_by=["p"], buckets=1, spark=spark)
    table.upsert(spark.sql("SELECT 1 AS id, timestamp'2024-01-01 00:00:00Z' AS p"))
    none = table.to_df().limit(0)
    with pytest.raises(FilterError):
        table.overwrite(none, "p < '2024-01-02 00:00:00'")
    table.overwrite(none, "p < '2024-01-02 00:00:00Z'")
    assert table.to_df().count() == 0


def test_a_frame_of_the_table_itself(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path / "t")
    table.overwrite(table.to_df().where("at = 6").selectExpr("id", "p", "at - 6 AS at", "upper(v) AS v"))
    assert rows(table.to_df()) == [(1, "b", 0, "Y"), (2, "a", 0, "Y")]


def test_a_conflict_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(spark, path)

    def append(call: Call) -> None:
        LakeTable.open(path).upsert(LakeTable.open(path).to_arrow())

    table, _ = open_over(path, Fault(action=append, method="put_if_absent"), spark=spark)
    table.overwrite(spark.createDataFrame([(7, "a", 1, "n")], DDL))
    assert rows(LakeTable.open(path, spark=spark).to_df()) == [(7, "a", 1, "n")]


@pytest.mark.long
def test_a_stream_goes_on_over_it(spark: SparkSession, tmp_path: Path) -> None:
    """The stream of changes, applied to a copy under commit-time, keeps it the same."""
    table = made(spark, tmp_path / "t")
    copy = LakeTable.create(tmp_path / "copy", DDL, key=["id", "p"], merger="commit-time", buckets=1, spark=spark)

    def follow() -> None:
        changes = spark.readStream.format("lakemerge").options(readChangeFeed="true").load(str(tmp_path / "t"))
        writer = changes.drop("_commit_version", "_commit_timestamp").writeStream.format("lakemerge")
        options = {"kindColumn": "_change_type", "checkpointLocation": str(tmp_path / "checkpoint")}
        writer.options(**options).trigger(availableNow=True).start(str(tmp_path / "copy")).awaitTermination()
        assert rows(copy.to_df()) == rows(table.to_df())

    follow()
    table.overwrite(spark.createDataFrame([(1, "a", 1, "n"), (9, "a", 1, "n")], DDL), "p = 'a'")
    table.upsert(spark.createDataFrame([(9, "a", 2, "m"), (4, "b", 9, "m")], DDL))
    follow()
    table.overwrite(spark.createDataFrame([(1, "c", 1, "n")], DDL))
    follow()


def test_by_format(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path / "t")
    save(spark.createDataFrame([(7, "a", 1)], "id INT, p STRING, at SMALLINT").repartition(2), tmp_path / "t")
    assert rows(table.to_df()) == [(7, "a", 1, None)]
    assert table.history(limit=1)[0].operation == "OVERWRITE"
    table.restore(version=2)
    save(spark.createDataFrame([(7, "a", 1, "n")], DDL), tmp_path / "t", replaceWhere="p = 'a'")
    assert rows(table.to_df()) == sorted([(7, "a", 1, "n"), *BEFORE[2:]])
    for _ in range(2):
        frame = spark.createDataFrame([(8, "b", 1, "n")], DDL)
        save(frame, tmp_path / "t", partitionOverwriteMode="DYNAMIC", txnAppId="load", txnVersion=1)
    assert rows(table.to_df()) == [(7, "a", 1, "n"), (8, "b", 1, "n")]
    save(frame.selectExpr("*", "1 AS w"), tmp_path / "t", mergeSchema="true")
    assert rows(table.to_df()) == [(8, "b", 1, "n", 1)]
    version = table.version
    for given, options, match in (
        (frame, {"replaceWhere": "p = 'a'"}, "rows of partition"),
        (frame.union(frame), {}, "twice"),
        (frame, {"replaceWhere": "v = 'a'"}, "reads partition columns alone"),
        (frame, {"partitionOverwriteMode": "some"}, "is static or dynamic"),
        (frame, {"kindColumn": "v"}, "have no kinds"),
        (frame, {"overwriteSchema": "true"}, "keeps the table's definition"),
        (frame, {"replaceWhere": "p = 'b'", "partitionOverwriteMode": "dynamic"}, "give one of them"),
    ):
        with pytest.raises((PySparkException, InputError), match=match):
            save(given, tmp_path / "t", **options)
    assert table.version == version
