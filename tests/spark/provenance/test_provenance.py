"""Provenance of tables that Spark wrote: the same answers as without it, and ``what_if`` by Spark's tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable, Settings
from tests.unit.faults import rows_of

DDL = "k BIGINT, o BIGINT, v STRING"


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> LakeTable:
    table = LakeTable.create(tmp_path / "t", DDL, key=["k"], ordering=["o"], buckets=4, spark=spark)
    table.upsert(spark.createDataFrame([(k, 10, "base") for k in range(50)], DDL))
    table.upsert(spark.createDataFrame([(7, 20, "new"), (99, 1, "added")], DDL), txn=("stream", 1))
    table.upsert(spark.createDataFrame([(7, 15, "late")], DDL))
    table.delete(spark.createDataFrame([(8, 20)], "k BIGINT, o BIGINT"))
    return table


def test_explain_and_replay_of_what_spark_wrote(table: LakeTable, tmp_path: Path) -> None:
    found = table.explain({"k": 7})
    assert [(step.version, step.verdict) for step in found.steps] == [(1, "applied"), (2, "applied"), (3, "ignored")]
    assert found.steps[1].source["application"] == "stream"
    assert found.row == table.get({"k": 7}) == {"k": 7, "o": 20, "v": "new"}
    table.compact()
    assert [step.version for step in table.explain({"k": 7}, 0).steps] == [1, 2, 3]
    table.replay(tmp_path / "u")
    assert rows_of(LakeTable.open(tmp_path / "u").to_arrow()) == rows_of(table.to_arrow())


@pytest.mark.long
def test_what_if_by_tasks(table: LakeTable, spark: SparkSession, reads: Settings) -> None:
    """The table's own data frame before and after, so that nothing of the view is kept for it."""
    table = LakeTable.open(table.url, spark=spark, settings=reads)
    own = sorted(map(tuple, table.to_df().collect()))
    view = table.what_if("commit-time")
    rows = sorted(map(tuple, view.to_df().collect()))
    assert rows == sorted(rows_of(view.to_arrow()))
    assert (7, 15, "late") in rows
    assert rows != own
    assert [tuple(row) for row in view.to_df(columns=["v"], filter="k = 7").collect()] == [("late",)]
    assert sorted(map(tuple, table.to_df().collect())) == own
    table.compact()
    again = table.what_if("commit-time", since=0)
    assert sorted(map(tuple, again.to_df().collect())) == rows
