"""``lakemerge.maxPendingCommits`` on Spark: DataFrames, ``df.write``, statements of SQL, and both kinds of streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakemerge
from lakemerge import LakeTable
from tests.spark.connector.lake import Lake, new_name
from tests.unit.faults import create, frame

DDL = "k BIGINT, o BIGINT, v STRING"
QUIET = {
    "lakemerge.maintenance": "off",
    "lakemerge.minorCompaction.afterCommits": "off",
    "lakemerge.compaction.ratio": "off",
    "lakemerge.maxPendingCommits": "2",
}


def loaded(path: Path, *, logs: int) -> None:
    table = create(path, properties=QUIET)
    table.upsert(frame([(k, 0, "base") for k in range(20)]))
    for number in range(1, logs + 1):
        table.upsert(frame([(1, number, "x")]))


def pending(path: Path) -> int:
    return LakeTable.open(path).detail().log_commits


def compactions(path: Path) -> int:
    return [entry.operation for entry in LakeTable.open(path).history()].count("COMPACT")


def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(7, 7, "new")], DDL)


@pytest.mark.parametrize("door", ["upsert", "save", "update_where", "merge"])
def test_writes_of_spark_maintain_first(spark: SparkSession, tmp_path: Path, door: str) -> None:
    path = tmp_path / "t"
    loaded(path, logs=2)
    table = LakeTable.open(path, spark=spark)
    match door:
        case "upsert":
            table.upsert(rows(spark))
        case "save":
            rows(spark).write.format("lakemerge").mode("append").save(str(path))
        case "update_where":
            table.update_where("k = 7", {"v": "'new'", "o": "7"})
        case _:
            merge = table.merge(rows(spark), "target.k = source.k")
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert (compactions(path), pending(path)) == (1, 1)
    assert LakeTable.open(path).get({"k": 7}) == {"k": 7, "o": 7, "v": "new"}


@pytest.mark.long
def test_statements_of_sql_maintain_first(spark: SparkSession, tmp_path: Path) -> None:
    name = new_name("lake")
    lakemerge.catalog(spark, name, warehouse=tmp_path / "lake")
    lake = Lake(spark, name, tmp_path / "lake")
    lake("CREATE NAMESPACE {}.db")
    lake.made(**QUIET)
    path = tmp_path / "lake" / "db" / "t"
    for statement in (
        "INSERT INTO {}.db.t VALUES (4, 'd', 40, 4)",
        "UPDATE {}.db.t SET n = n + 1 WHERE id = 1",
        "INSERT INTO {}.db.t SELECT id + 10, state, at, n FROM {}.db.t WHERE id = 4",
        "DELETE FROM {}.db.t WHERE id = 2",
        "UPDATE {}.db.t SET n = n + 1 WHERE id = 1",
    ):
        lake(statement)
    assert (compactions(path), pending(path)) == (2, 1), "before the third statement and before the fifth"
    assert [(row["id"], row["n"]) for row in lake.table.to_arrow().sort_by("id").to_pylist()] == [
        (1, 3),
        (3, 3),
        (4, 4),
        (14, 4),
    ]


@pytest.mark.long
@pytest.mark.parametrize("through", ["write_stream", "sink"])
def test_a_stream_never_leaves_more_pending_than_the_limit(spark: SparkSession, tmp_path: Path, through: str) -> None:
    path, source = tmp_path / "t", tmp_path / "in"
    loaded(path, logs=0)
    source.mkdir()
    for number in range(5):
        (source / f"{number}.json").write_text(f'{{"k": {100 + number}, "o": 1, "v": "s"}}')
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(source))
    checkpoint = str(tmp_path / "checkpoint")
    if through == "write_stream":
        query = LakeTable.open(path, spark=spark).write_stream(stream, checkpoint=checkpoint)
    else:
        writer = stream.writeStream.format("lakemerge").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(str(path))
    query.awaitTermination()
    assert (compactions(path), pending(path)) == (2, 1), "before the third batch and before the fifth"
    assert LakeTable.open(path).to_arrow().num_rows == 25
