"""Joins and aggregates on the key need no exchange, where tables have their keys in the same buckets.

A dictionary says which rows they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

import lakemerge
from lakemerge import LakeTable, ReadPolicy, Settings
from tests.spark.compaction.test_minor import plan_of
from tests.spark.read.test_native import settings

STATES = ("compacted", "minor-compacted", "pending", "computed before")


@pytest.fixture(autouse=True)
def _no_broadcasts(spark: SparkSession) -> Iterator[None]:
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        pytest.skip("before Spark 4.2 partitions by bucket cost each query its tasks, so they are not reported")
    with settings(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        yield


def made(spark: SparkSession, path: Path, state: str, buckets: int = 4, kind: str = "BIGINT") -> dict[str, Any]:
    """A table, and its rows: key -> number."""
    computed = state == "computed before"
    merger: dict[str, Any] = {"merger": "commit-time"}
    if computed:
        merger = {"merger": "aggregate", "options": {"aggregates": {"n": "sum"}}}
    table = LakeTable.create(
        path,
        f"id {kind}, n BIGINT",
        key=["id"],
        **merger,
        buckets=buckets,
        properties={"lakemerge.maintenance": "off"},
        settings=Settings(reads=ReadPolicy(premerge_from_bytes=1)),
        spark=spark,
    )
    rows: dict[int, int] = {}
    # Where the merger computes rows, only few are merged before the read.
    changed = (range(0, 350, 30), range(1, 300, 50)) if computed else (range(0, 350, 3), range(1, 300, 5))
    for step, keys in enumerate((range(300), *changed)):
        table.upsert(pa.table({"id": list(keys), "n": [key + step for key in keys]}).cast(table.schema))
        for key in keys:
            rows[key] = rows.get(key, 0) + key + step if computed else key + step
        if step == 0 or state == "compacted":
            table.compact()
        elif step == 1 and state == "minor-compacted":
            table.compact(minor=True)
    if state == "minor-compacted":
        table.compact(minor=True)
    return {"table": table, "rows": rows}


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def joined(one: Mapping[int, int], other: Mapping[int, int]) -> list[tuple[int, int, int]]:
    return sorted((key, n, other[key]) for key, n in one.items() if key in other)


@pytest.mark.parametrize("state", STATES)
def test_without_an_exchange(spark: SparkSession, tmp_path: Path, state: str) -> None:
    one, other = made(spark, tmp_path / "one", state), made(spark, tmp_path / "other", "compacted")
    lakemerge.catalog(spark, "bucket_paths", warehouse=str(tmp_path.parent.parent))
    for number in range(2):
        left, right = (
            each["table"].to_df() if number == 0 else spark.table(f"lakemerge.`{each['table'].url}`")
            for each in (one, other)
        )
        both = left.join(right.withColumnRenamed("n", "m"), "id")
        if not (number and state == "computed before"):  # a catalog leaves those rows to tasks of the kernel
            assert "Exchange" not in plan_of(both), plan_of(both)
            assert ("Sort [" in plan_of(both)) == (state != "compacted"), plan_of(both)
        assert rows_of(both) == joined(one["rows"], other["rows"])
        sums = left.groupBy("id").agg(functions.sum("n"), functions.count("*"))
        if not (number and state == "computed before"):
            assert "Exchange" not in plan_of(sums), plan_of(sums)
        assert rows_of(sums) == sorted((key, n, 1) for key, n in one["rows"].items())
        outer = left.join(right.withColumnRenamed("n", "m"), "id", "full_outer")
        assert outer.count() == len(one["rows"].keys() | other["rows"].keys())
        by_n = left.groupBy((functions.col("n") % 10).alias("m")).count()
        assert "Exchange" in plan_of(by_n)
        assert sum(count for _, count in rows_of(by_n)) == len(one["rows"])


def test_a_small_table_with_logs_is_not_read_by_bucket(spark: SparkSession, tmp_path: Path) -> None:
    """If log files would be opened for each bucket. An exchange of so few rows costs less."""
    for state, limit, moves in (("pending", "10MB", True), ("pending", "1", False), ("compacted", "10MB", False)):
        table = made(spark, tmp_path / f"{state} {limit}", state)
        with settings(spark, {"spark.sql.autoBroadcastJoinThreshold": limit}):
            sums = table["table"].to_df().groupBy("id").agg(functions.sum("n"))
            assert ("Exchange" in plan_of(sums)) is moves, (state, limit)
            assert rows_of(sums) == sorted(table["rows"].items())


def test_tables_with_other_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are moved, and the answers are right. Equal numbers of another type are in other buckets."""
    one, other = made(spark, tmp_path / "one", "pending"), made(spark, tmp_path / "other", "compacted", buckets=8)
    narrow = made(spark, tmp_path / "narrow", "compacted", kind="INT")
    for right in (other, narrow):
        both = one["table"].to_df().join(right["table"].to_df().withColumnRenamed("n", "m"), "id")
        assert "Exchange" in plan_of(both)
        assert rows_of(both) == joined(one["rows"], right["rows"])
    crowded = made(spark, tmp_path / "crowded", "compacted", buckets=64)
    sums = crowded["table"].to_df().groupBy("id").agg(functions.sum("n"))
    assert "Exchange" in plan_of(sums), "a task for each of so many small buckets costs more"
    assert rows_of(sums) == sorted(crowded["rows"].items())


def test_with_keys_of_a_third_table(spark: SparkSession, tmp_path: Path) -> None:
    """Buckets that a runtime filter leaves out of one side only."""
    one, other = made(spark, tmp_path / "one", "pending"), made(spark, tmp_path / "other", "minor-compacted")
    spark.range(300).selectExpr("id", "id % 100 AS tag").write.parquet(str(tmp_path / "few"))
    few = functions.broadcast(spark.read.parquet(str(tmp_path / "few")).where("tag = 7").select("id"))
    both = one["table"].to_df().join(few, "id").join(other["table"].to_df().withColumnRenamed("n", "m"), "id")
    plan = plan_of(both)
    assert "dynamicpruning" in plan.lower()
    assert plan.count("Exchange") == plan.count("BroadcastExchange") + plan.count("ReusedExchange"), plan
    expected = [row for row in joined(one["rows"], other["rows"]) if row[0] % 100 == 7]
    assert rows_of(both) == expected


def test_the_function_of_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path / "t", "compacted")["table"]
    lakemerge.catalog(spark, "bucket_functions", warehouse=str(tmp_path.parent.parent))
    found = spark.sql("SELECT id, bucket_functions.bucket(4, id) FROM range(300)").collect()
    base = {each.bucket_id.bucket: table.url + "/" + each.base.add.path for each in table.opened.view.file_slices}
    stored = {
        row.id: number for number, path in base.items() for row in spark.read.parquet(path).select("id").collect()
    }
    assert {row[0]: row[1] for row in found} == {key: number for key, number in stored.items() if key < 300}
