"""``LakeTable.register``: an entry by which Spark's catalog, and those beside it, find the table as a Delta table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import InputError, LakeTable


@pytest.fixture
def database(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE DATABASE registered")
    yield "registered"
    spark.sql("DROP DATABASE registered CASCADE")


def kept(spark: SparkSession, database: str) -> Any:
    """What the metastore has of the entry."""
    return cast("Any", spark)._jsparkSession.sharedState().externalCatalog().getTable(database, "orders")


def test_an_entry_shows_the_table_and_follows_it(spark: SparkSession, tmp_path: Path, database: str) -> None:
    path = tmp_path / "it's here"
    table = LakeTable.create(path, "id BIGINT, name STRING", key=["id"])
    table.upsert(pa.table({"id": [1], "name": ["a"]}))
    name = f"{database}.orders"
    table.register(spark, name)
    assert spark.table(name).collect() == [(1, "a")]
    assert kept(spark, database).schema().simpleString() == "struct<id:bigint,name:string>"
    assert "as other engines see it" in kept(spark, database).comment().get()
    table.alter(rename_columns={"name": "title"})
    assert spark.table(name).columns == ["id", "title"]
    table.register(spark, name)
    assert kept(spark, database).schema().simpleString() == "struct<id:bigint,title:string>"
    assert [entry.operation for entry in table.history()] == ["RENAME COLUMN", "UPSERT", "CREATE TABLE"]
    other = LakeTable.create(tmp_path / "other", "id BIGINT", key=["id"])
    with pytest.raises(InputError, match=r"there is another table .* at .*it's here"):
        other.register(spark, name)
    spark.sql(f"DROP TABLE {name}")
    assert table.to_arrow().num_rows == 1


def test_a_catalog_of_another_kind_is_refused_with_the_statement(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT", key=["id"])
    with pytest.raises(InputError, match=r"CREATE TABLE `elsewhere`\.`db`\.`t` USING delta LOCATION") as caught:
        table.register(spark, "elsewhere.db.t")
    assert str(caught.value.facts["statement"]).startswith("CREATE TABLE")
