"""Objects and writers of a table that was re-created in the same folder, on Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lakemerge import LakeTable, TableReplacedError, register
from lakemerge.datasource.source import LakeMergeDataSource

SCHEMA = "id BIGINT NOT NULL, v STRING"


def made(path: Path, rows: int, value: str) -> None:
    table = LakeTable.create(path, SCHEMA, key=["id"])
    for number in range(rows):
        table.upsert(pa.table({"id": [number], "v": [value]}))


def re_created(path: Path) -> None:
    shutil.rmtree(path)
    made(path, 4, "new")


def is_untouched(path: Path) -> bool:
    table = LakeTable.open(path)
    return LakeTable.check(path).ok and table.version == 4 and table.to_arrow()["v"].to_pylist() == ["new"] * 4


def test_an_object_of_a_removed_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, 2, "old")
    old = LakeTable.open(path, spark=spark)
    assert old.to_df().count() == 2
    re_created(path)
    frame = spark.createDataFrame([(9, "late")], SCHEMA.replace(" NOT NULL", ""))
    for use in (old.to_df, lambda: old.upsert(frame), lambda: old.delete_where("id = 0"), old.compact):
        with pytest.raises(TableReplacedError, match="removed or re-created"):
            use()
    assert is_untouched(path)


def test_a_write_of_the_data_source_does_not_land_in_another_table(tmp_path: Path) -> None:
    """Spark plans, packs and commits in processes of its own. Each of them opens the folder anew."""
    path = tmp_path / "t"
    made(path, 2, "old")
    schema = StructType([StructField("id", LongType()), StructField("v", StringType())])
    writer = LakeMergeDataSource({"path": str(path)}).writer(schema, False)
    message = writer.write(iter(pa.table({"id": [9], "v": ["late"]}).to_batches()))
    re_created(path)
    with pytest.raises(TableReplacedError, match="removed or re-created after its version 2"):
        writer.commit([message])
    assert is_untouched(path)


def test_a_dataframe_of_the_data_source_does_not_show_another_table(spark: SparkSession, tmp_path: Path) -> None:
    """The new table has the version that the DataFrame stands at, too."""
    path = tmp_path / "t"
    made(path, 2, "old")
    register(spark)
    frame = spark.read.format("lakemerge").load(str(path))
    re_created(path)
    with pytest.raises(PySparkException, match="removed or re-created after its version 2"):
        frame.collect()
    assert {row.v for row in spark.read.format("lakemerge").load(str(path)).collect()} == {"new"}


def test_a_write_of_the_data_source_does_not_land_in_what_replaced_its_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, 2, "old")
    schema = StructType([StructField("id", LongType()), StructField("v", StringType())])
    writer = LakeMergeDataSource({"path": str(path)}).writer(schema, False)
    message = writer.write(iter(pa.table({"id": [9], "v": ["late"]}).to_batches()))
    streamed = LakeMergeDataSource({"path": str(path)}).streamWriter(schema, overwrite=False)
    batch: Any = streamed.write(iter(pa.table({"id": [9], "v": ["late"]}).to_batches()))
    batch.query_id = "q"
    table = LakeTable.create(path, SCHEMA, key=["id"], replace=True)
    commits: list[Callable[[], object]] = [lambda: writer.commit([message]), lambda: streamed.commit([batch], 0)]
    for commit in commits:
        with pytest.raises(TableReplacedError, match="removed or re-created after its version 2"):
            commit()
    assert LakeTable.open(path).version == table.version
    assert LakeTable.open(path).to_arrow().num_rows == 0
    assert LakeTable.check(path).ok


def test_a_replaced_table_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame stays at its version. The new table is loaded, changed and read like any other."""
    path = tmp_path / "t"
    made(path, 2, "old")
    register(spark)
    before = LakeTable.open(path, spark=spark)
    used, old = {base.ordinal for base in before.opened.view.base_files}, before.to_df()
    source = spark.read.format("lakemerge").load(str(path))
    table = LakeTable.create(path, "id STRING, n INT", key=["id"], ordering=["n"], replace=True, spark=spark)
    assert {row.v for row in source.collect()} == {row.v for row in old.collect()} == {"old"}
    with pytest.raises(TableReplacedError):
        before.to_df()
    assert (table.to_df().columns, table.to_df().count()) == (["id", "n"], 0)
    loaded = table.upsert(spark.createDataFrame([("a", 1), ("b", 1), ("c", 1)], "id STRING, n INT"))
    assert loaded.mode == "load"
    assert used.isdisjoint(base.ordinal for base in table.opened.view.base_files)
    table.upsert(spark.createDataFrame([("b", 2)], "id STRING, n INT"))
    table.compact(minor=True)
    assert sorted(map(tuple, table.to_df().collect())) == [("a", 1), ("b", 2), ("c", 1)]
    assert LakeTable.check(path).ok
    with pytest.raises(TableReplacedError, match="was replaced at version 3"):
        table.changes_df(1)
    assert table.changes_df(3).count() == 5


@pytest.mark.long
def test_a_stream_of_changes_ends_at_a_replacement(spark: SparkSession, tmp_path: Path) -> None:
    path, target = tmp_path / "t", str(tmp_path / "copy")
    made(path, 2, "old")
    register(spark)

    def follow(**options: str) -> None:
        stream = spark.readStream.format("lakemerge").options(readChangeFeed="true", **options).load(str(path))
        options = {"checkpointLocation": str(tmp_path / "checkpoint")}
        stream.writeStream.options(**options).trigger(availableNow=True).format("json").start(target).awaitTermination()

    follow(startingVersion="0")
    assert spark.read.json(target).count() == 2
    LakeTable.create(path, SCHEMA, key=["id"], replace=True).upsert(pa.table({"id": [0], "v": ["new"]}))
    with pytest.raises(PySparkException, match="the checkpoint is of another table"):
        follow()
    for begin in ("0", "1", "2"):
        with pytest.raises(PySparkException, match="replaced at version 3"):
            follow(startingVersion=begin)
    assert {row.v for row in spark.read.json(target).collect()} == {"old"}
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.rmtree(target)
    follow(startingVersion="4")  # the first version to read
    assert {row.v for row in spark.read.json(target).collect()} == {"new"}
