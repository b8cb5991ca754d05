"""Objects and writers of a table that was re-created in the same folder, on Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lakemerge import LakeTable, TableReplacedError, register
from lakemerge.spark.source import LakeMergeDataSource

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
