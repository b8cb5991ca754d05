"""Deletion vectors between engines: what delta-spark reads of a table that publishes, what LakeMerge reads of vectors
that delta-spark wrote, and checkpoints of both sides after two generations of vectors."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.delta import DeltaLog
from lakemerge.delta.checkpoint_reader import read_checkpoint
from lakemerge.delta.listing import list_log
from lakemerge.merge_source.inputs import PlainTable
from lakemerge.storage import open_store
from lakemerge.table.opening import open_handle
from tests.property.publishing import READERS, Published, Step, sorted_rows
from tests.property.test_publish_property import OFF_AND_ON, TWO_GENERATIONS


def spark_checkpoint(spark: SparkSession, path: Path) -> None:
    """Let delta-spark write the checkpoint of the latest version."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))
    log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty())
    log.checkpoint(log.unsafeVolatileSnapshot(), jvm.scala.Option.empty())


@pytest.mark.long
@pytest.mark.parametrize("history", [TWO_GENERATIONS, OFF_AND_ON], ids=["two generations", "off and on"])
@pytest.mark.parametrize("partition_by", [[], ["p"]], ids=["plain", "partitioned"])
def test_delta_spark_reads_what_is_published(
    spark: SparkSession, tmp_path: Path, history: list[Step], partition_by: list[str]
) -> None:
    path = tmp_path / "t"

    def with_spark(path: Path) -> pa.Table:
        return spark.read.format("delta").load(str(path)).select("p", "id", "at", "v").toArrow()

    def natively(path: Path) -> pa.Table:
        return LakeTable.open(path, spark=spark).to_df(mode="base").toArrow()

    readers = {**READERS, "delta-spark": with_spark, "LakeMerge on Spark": natively}
    properties = {"lakemerge.publish": "deletionVectors"}
    found = Published(path, partition_by=partition_by, properties=properties, readers=readers)
    for number, step in enumerate(history):
        found.do(step)
        if step[0] not in ("upsert", "delete") or number == len(history) - 1:
            found.check()
            merged = LakeTable.open(path, spark=spark).to_df().toArrow()
            assert sorted_rows(merged) == sorted(found.moments[-1].rows.values())
    found.check_all()


@pytest.fixture(scope="module")
def theirs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain Delta table with two generations of vectors by delta-spark, and rows that came later."""
    path = tmp_path_factory.mktemp("theirs") / "t"
    spark.range(0, 1000, 1, 2).selectExpr("id", "id % 7 AS g").write.format("delta").option(
        "delta.enableDeletionVectors", "true"
    ).save(str(path))
    for condition in ("id % 10 = 3", "id % 10 = 4", "id BETWEEN 300 AND 420"):
        spark.sql(f"DELETE FROM delta.`{path}` WHERE {condition}")
    spark.range(2000, 2005, 1, 1).selectExpr("id", "id % 7 AS g").write.format("delta").mode("append").save(str(path))
    return path


EXPECTED = [n for n in range(1000) if n % 10 not in (3, 4) and not 300 <= n <= 420] + list(range(2000, 2005))


@pytest.mark.long
@pytest.mark.parametrize("by", ["commits", "delta-spark", "deltalake"])
def test_vectors_of_delta_spark_are_read(spark: SparkSession, theirs: Path, by: str) -> None:
    expected = sorted(spark.read.format("delta").load(str(theirs)).toPandas()["id"].tolist())
    assert expected == EXPECTED
    if by == "delta-spark":
        spark_checkpoint(spark, theirs)
    elif by == "deltalake":
        deltalake.DeltaTable(str(theirs)).create_checkpoint()
    plain = PlainTable.latest(open_handle(theirs, None, (), None))
    ids = pa.concat_tables(plain.scan(["id"])).column("id").to_pylist()
    assert sorted(ids) == EXPECTED
    if by != "commits":
        store = open_store(theirs)
        newest = list_log(store).checkpoints[-1]
        found = read_checkpoint(store, newest)
        by_commits = DeltaLog(store).snapshot(version=newest.version)
        assert {path: add.identity for path, add in found.files.items()} == {
            path: add.identity for path, add in by_commits.files.items()
        }


def test_what_switching_on_locks_out(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path, "k BIGINT", key=["k"], buckets=1, properties={"lakemerge.publish": "deletionVectors"}
    )
    table.upsert(pa.table({"k": [1]}))
    with pytest.raises(deltalake.exceptions.DeltaProtocolError):
        deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()


def test_no_other_engine_takes_a_vector_away(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody else may vacuum: the feature of LakeMerge keeps them out, as ever."""
    table = LakeTable.create(
        tmp_path, "k BIGINT, v STRING", key=["k"], buckets=1, properties={"lakemerge.publish": "deletionVectors"}
    )
    table.upsert(pa.table({"k": [1, 2], "v": ["a", "b"]}))
    table.upsert(pa.table({"k": [1], "v": ["c"]}))
    table.compact(minor=True)
    before = sorted(str(file) for file in tmp_path.rglob("*") if "_delta_log" not in str(file))
    with pytest.raises(Exception, match="lakemerge"):
        spark.sql(f"VACUUM delta.`{tmp_path}` RETAIN 200 HOURS")
    with pytest.raises(deltalake.exceptions.DeltaError):
        deltalake.DeltaTable(str(tmp_path)).vacuum(
            retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
        )
    table.vacuum(dry_run=False, retention=dt.timedelta(days=7))
    assert sorted(str(f) for f in tmp_path.rglob("*") if "_delta_log" not in str(f) and ".clock" not in str(f)) == [
        name for name in before if ".clock" not in name
    ]
