"""Renamed and dropped columns through Spark's own reader, the kernel on Spark, delta-spark and deltalake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from lakemerge import LakeTable, Settings
from tests.property.test_names_property import Story

Row = dict[str, Any]


def of_spark(frame: DataFrame) -> list[Row]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: row["id"])


def of_deltalake(path: Path) -> list[Row]:
    rows = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all()
    return sorted(pa.table(rows).to_pylist(), key=lambda row: row["id"])


def written(k: int, seq: int, name: str | None) -> Row:
    return {"p": "ab"[k % 2], "k": k, "o": seq, "name": name, "amount": float(k), "s": {"x": k, "y": name}}


def shown(row: Row) -> Row:
    return {"region": row["p"], "id": row["k"], "o": row["o"], "title": row["name"], "s": row["s"], "amount": None}


@pytest.mark.long
@pytest.mark.parametrize("publish", ["off", "deletionVectors"])
def test_every_reader_sees_the_names_of_now(spark: SparkSession, tmp_path: Path, reads: Settings, publish: str) -> None:
    ddl = "p STRING, k BIGINT, o BIGINT, name STRING, amount DOUBLE, s STRUCT<x: BIGINT, y: STRING>"
    table = LakeTable.create(
        tmp_path,
        ddl,
        key=["p", "k"],
        ordering=["o"],
        partition_by=["p"],
        buckets=2,
        settings=reads,
        properties={"lakemerge.publish": publish, "lakemerge.maintenance": "off"},
        spark=spark,
    )
    rows = {k: written(k, 1, f"n{k}") for k in range(40)}
    table.upsert(pa.Table.from_pylist(list(rows.values()), schema=table.schema))
    base = [shown(row) for row in rows.values()]
    for k in (3, 41):
        rows[k] = written(k, 2, "logged")
    table.upsert(pa.Table.from_pylist([rows[3], rows[41]], schema=table.schema))
    table.alter(rename_columns={"p": "region", "k": "id", "name": "title"}, drop_columns=["amount"])
    table.alter(add_columns="amount STRING")

    def check(theirs: list[Row] | None = None) -> None:
        expected = [shown(rows[k]) for k in sorted(rows)]
        assert of_spark(table.to_df()) == expected
        assert of_spark(spark.read.format("lakemerge").load(str(tmp_path))) == expected
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
        found = table.to_df(columns=["id"], filter="title = 'logged' AND region = 'b'").collect()
        assert sorted(row.id for row in found) == [row["id"] for row in expected if row["title"] == "logged"]
        for others in (of_spark(spark.read.format("delta").load(str(tmp_path))), of_deltalake(tmp_path)):
            assert others == (expected if theirs is None else theirs)

    check(base)
    new = pa.table({"region": ["b"], "id": [5], "o": [3], "title": ["logged"]})
    table.upsert(spark.createDataFrame(new))
    rows[5] = rows[5] | {"o": 3, "name": "logged"}
    check(base)
    table.compact(minor=True)
    check(base if publish == "off" else None)
    table.compact()
    check()


@pytest.mark.long
def test_delta_spark_reads_a_history_with_other_names(spark: SparkSession, tmp_path: Path) -> None:
    story = Story(tmp_path, "event-time", 5)
    story.readers = [lambda path: spark.read.format("delta").load(str(path)).toArrow()]
    for _ in range(12):
        story.step()
        story.check()
