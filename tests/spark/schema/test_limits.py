"""Limits of schemas and conditions on Spark: what breaks its readers is refused, and long conditions are answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from lakemerge import FilterError, FrameError, LakeTable, SchemaError
from lakemerge.schema.limits import MAX_LEVELS

DEEP = "STRUCT<x: " * MAX_LEVELS + "BIGINT" + ">" * MAX_LEVELS
LISTS = "ARRAY<" * 10 + "BIGINT" + ">" * 10


@pytest.mark.long
def test_what_the_limits_allow_spark_reads_and_what_they_refuse_it_does_not_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    ddl = f"id BIGINT, deep {DEEP}, lists {LISTS}, _metadata BIGINT, row_index BIGINT"
    table = LakeTable.create(tmp_path / "t", ddl, key=["id"], spark=spark, properties={"lakemerge.maintenance": "off"})
    for first in (1, 2):
        table.upsert(spark.range(first, first + 3).selectExpr("id", "id AS _metadata", "id * 10 AS row_index"))
    wanted = [(1, 1, 10), (2, 2, 20), (3, 3, 30), (4, 4, 40)]
    for step in (lambda: None, lambda: table.compact(minor=True), table.compact):
        step()
        frame = table.to_df().where("deep IS NULL AND lists IS NULL").select("id", "_metadata", "row_index")
        assert sorted(map(tuple, frame.collect())) == wanted
    deeper = spark.sql(f"SELECT 9L AS id, CAST(NULL AS STRUCT<y: {DEEP}>) AS deeper")
    with pytest.raises(FrameError, match="'deeper' nests 41 levels deep"):
        table.upsert(deeper, merge_schema=True)
    with pytest.raises(SchemaError, match="'deeper' nests 41 levels deep"):
        LakeTable.create(tmp_path / "new", deeper.schema, key=["id"], spark=spark)
    with pytest.raises(FrameError, match="Spark keeps that name"):
        table.upsert(spark.range(1).selectExpr("id", "id AS _tmp_metadata_row_index"), merge_schema=True)
    assert LakeTable.open(tmp_path / "t").version == table.version


def test_spark_keeps_the_reserved_name(spark: SparkSession, tmp_path: Path) -> None:
    """The reason of the rule: Spark gives row numbers in place of the column's values."""
    spark.createDataFrame([(7,)], "_tmp_metadata_row_index BIGINT").coalesce(1).write.parquet(str(tmp_path / "files"))
    assert spark.read.parquet(str(tmp_path / "files")).first() == (0,)


LONG: dict[str, Callable[[int], str]] = {
    "and": lambda count: " AND ".join(f"id >= {-n}" for n in range(count)),
    "or": lambda count: " OR ".join(f"(id = {n} AND s = 'k{n}')" for n in range(count)),
    "rows": lambda count: "(id, s) IN (" + ", ".join(f"({n}L, 'k{n}')" for n in range(count)) + ")",
    "in": lambda count: f"id IN ({', '.join(map(str, range(count)))})",
}


@pytest.mark.parametrize(("name", "count"), [("and", 400), ("or", 200), ("rows", 1000), ("in", 10_000)])
def test_long_conditions_are_answered(name: str, count: int, spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id BIGINT, s STRING", key=["id", "s"], spark=spark)
    table.upsert(pa.table({"id": [1, 2, 3], "s": ["k1", "k2", "k3"]}))
    assert sorted(row.id for row in table.to_df(filter=LONG[name](count)).collect()) == [1, 2, 3]


@pytest.mark.parametrize("name", ["and", "or"])
def test_longer_chains_are_refused(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """They would end in a stack overflow of Spark's planner."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT, s STRING", key=["id", "s"], spark=spark)
    with pytest.raises(
        FilterError, match=r"joins \d+ parts by AND and OR, and Spark's planner takes 400: write one list"
    ):
        table.to_df(filter=LONG[name](10_000))
    assert table.to_df(filter=f"s = '{' AND '.join(map(str, range(2000)))}'").count() == 0
    with pytest.raises(FilterError, match="to_arrow and scan take pyarrow expressions"):
        table.to_df(filter=pc.field("id") == 1)
