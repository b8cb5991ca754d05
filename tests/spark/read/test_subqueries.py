"""Queries with correlated subqueries, which Spark takes apart while it optimises the union that a dirty table is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.property.effort import some

QUERIES = {
    "over the table": "SELECT id, (SELECT max(v) FROM w b WHERE b.g = a.g) m FROM w a",
    "over another": "SELECT id, (SELECT max(v) FROM other b WHERE b.g = a.g) m FROM w a",
    "inside of another": "SELECT id, IF((SELECT max(v) FROM other b WHERE b.g = a.g) > 2, 1, 0) m FROM w a",
    "above a condition": "SELECT id, (SELECT max(v) FROM w b WHERE b.g = a.g) m FROM w a WHERE v > 3 AND g < 4",
    "above another list": "SELECT id + 1, (SELECT max(v) FROM w b WHERE b.g = a.g) m FROM (SELECT id, g FROM w) a",
    "counted": "SELECT count(m), 0 FROM (SELECT (SELECT max(v) FROM other b WHERE b.g = a.g) m FROM w a)",
    "in a condition": "SELECT id, v FROM w a WHERE EXISTS (SELECT 1 FROM other b WHERE b.g = a.g AND b.v > 1)",
}


@pytest.mark.long
@pytest.mark.parametrize("state", some(["mixed", "pending", "minor-compacted"]))
def test_a_dirty_table_answers_as_a_compacted_one(spark: SparkSession, tmp_path: Path, state: str) -> None:
    table = LakeTable.create(
        tmp_path / "t", "id BIGINT, g INT, v DOUBLE", key=["id"], buckets=4, spark=spark,
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    rows = spark.range(100).selectExpr("id", "CAST(id % 5 AS INT) g", "id * 0.5D v")
    table.upsert(rows)
    table.upsert(rows.limit(1).selectExpr("id", "g", "v + 1000 AS v"))
    if state != "pending":
        table.compact(minor=True)
    if state == "mixed":
        table.upsert(rows.where("id > 97").selectExpr("id", "g", "v + 2000 AS v"))
    spark.createDataFrame([(g, float(g)) for g in range(4)], "g INT, v DOUBLE").createOrReplaceTempView("other")
    found = {}
    for now in ("dirty", "compacted"):
        table.create_temp_view("w")
        found[now] = {name: sorted(map(tuple, spark.sql(query).collect()), key=repr) for name, query in QUERIES.items()}
        table.compact()
    assert found["dirty"] == found["compacted"]
    assert found["dirty"]["counted"] == [(80, 0)]
