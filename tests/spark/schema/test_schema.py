"""Schemas as DDL and as Delta's JSON, against Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakemerge import LakeTable
from lakemerge.schema.schema import from_delta_json, to_arrow_schema, to_ddl, to_delta_json

DDL = (
    "b BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT NOT NULL COMMENT 'it\\'s a \\\\ key\\nwith lines', i64 BIGINT, "
    "f FLOAT, d DOUBLE, n DECIMAL(38,10), n5 DECIMAL(5), n0 DEC, s STRING, bin BINARY, day DATE, ts TIMESTAMP_LTZ, "
    "ntz TIMESTAMP_NTZ, `a ``b``` ARRAY<ARRAY<INT>>, m MAP<STRING, STRUCT<x: DATE NOT NULL, `y z`: REAL COMMENT 'é'>>, "
    "st STRUCT<deep: STRUCT<n: NUMERIC(7,7)>, l: ARRAY<BYTE>>, `select` LONG, x1 SHORT, `1` INTEGER, from STRING, "
    "order INT, table DATE"
)


def test_ddl_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    theirs = spark.createDataFrame([], DDL).schema
    ours = to_arrow_schema(DDL)
    assert json.loads(to_delta_json(ours)) == json.loads(theirs.json())
    assert to_arrow_schema(theirs).equals(ours, check_metadata=True)
    assert from_delta_json(theirs.json()).equals(ours, check_metadata=True)


def test_spark_reads_our_ddl_and_json(spark: SparkSession) -> None:
    schema = to_arrow_schema(DDL)
    assert StructType.fromJson(json.loads(to_delta_json(schema))) == spark.createDataFrame([], DDL).schema
    again = spark.createDataFrame([], to_ddl(schema)).schema
    assert json.loads(again.json()) == json.loads(to_delta_json(schema))


def test_our_ddl_means_instants_whatever_the_session_says(spark: SparkSession) -> None:
    ddl = to_ddl(to_arrow_schema("t TIMESTAMP"))
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert spark.createDataFrame([], ddl).schema["t"].dataType.simpleString() == "timestamp"
    finally:
        spark.conf.unset("spark.sql.timestampType")


@pytest.mark.parametrize("name", ["it's", "tab\there", "new\nline", 'quote"', "back\\slash", "``", "é漢", "<x>,:"])
def test_odd_names_and_comments_survive(spark: SparkSession, name: str) -> None:
    field = pa.field(
        name, pa.struct([pa.field(name, pa.int32(), metadata={"comment": name})]), metadata={"comment": name}
    )
    schema = pa.schema([field])
    theirs = spark.createDataFrame([], to_ddl(schema)).schema
    assert to_arrow_schema(theirs).equals(schema, check_metadata=True)


def test_a_frame_of_every_type_arrives_with_our_types(spark: SparkSession) -> None:
    schema = to_arrow_schema(DDL.replace(" NOT NULL", ""))
    found = spark.createDataFrame([], to_ddl(schema)).toArrow().schema
    assert to_arrow_schema(found).equals(schema, check_metadata=False)


@pytest.mark.usefixtures("by_unions")
def test_a_struct_that_rows_lack_is_null_whatever_its_fields_say(spark: SparkSession, tmp_path: Path) -> None:
    """First load through the kernel, reads through it and by Spark alone, a compaction by Spark."""
    table = LakeTable.create(tmp_path, "id INT, v INT, s STRUCT<x: INT NOT NULL>", key=["id"], buckets=2, spark=spark)
    table.upsert(spark.createDataFrame([(1, 1), (2, 2)], "id INT, v INT"))
    table.upsert(spark.createDataFrame([(2, 3, (7,)), (3, 4, None)], "id INT, v INT, s STRUCT<x: INT>"))
    table.upsert(spark.createDataFrame([(4, 5)], "id INT, v INT"))
    expected = [(1, 1, None), (2, 3, 7), (3, 4, None), (4, 5, None)]

    def rows() -> list[tuple[int, int, int | None]]:
        return sorted((row.id, row.v, row.s and row.s.x) for row in table.to_df().collect())

    assert rows() == expected
    table.compact(minor=True)
    assert rows() == expected
    table.compact()
    assert rows() == expected
    assert sorted((row.id, row.s and row.s.x) for row in spark.read.parquet(*table.to_df().inputFiles()).collect()) == [
        (key, x) for key, _, x in expected
    ]
