"""On Spark: schemas that change under files that stay, merge_schema, and the read-optimised view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemerge import CommitConflictError, FrameError, InputError, LakeTable
from lakemerge.datasource.source import LakeMergeDataSource
from tests.unit.faults import rows_of

OLD = "id BIGINT, at INT, s STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>"
NEW = "id BIGINT, at INT, s STRUCT<x: INT, y: STRING>, l ARRAY<STRUCT<x: INT, y: INT>>, note STRING"
ROWS = [(i, 1, {"x": i}, [{"x": i}]) for i in range(6)]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.asDict(recursive=True).values()) for row in frame.collect()), key=repr)


def source(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("lakemerge").options(**options).load(str(path))


def widened(row: tuple[Any, ...]) -> tuple[Any, ...]:
    number, at, struct, parts = row
    return (number, at, {**struct, "y": None}, [{**part, "y": None} for part in parts], None)


@pytest.mark.long
@pytest.mark.parametrize("compaction", [None, "minor", "full"])
def test_nested_fields_are_null_in_what_was_written_before(
    spark: SparkSession, tmp_path: Path, compaction: str | None
) -> None:
    table = LakeTable.create(tmp_path, OLD, key=["id"], ordering=["at"], buckets=2, spark=spark)
    table.upsert(spark.createDataFrame(ROWS, OLD))
    table.alter(add_columns="s.y STRING, l.element.y INT, note STRING")
    expected = {row[0]: widened(row) for row in ROWS}
    clean = sorted(expected.values(), key=repr)
    assert rows(table.to_df()) == clean, "by Spark's own reader"
    assert rows(spark.read.format("delta").load(str(tmp_path))) == clean
    assert rows_of(pa.table(deltalake.DeltaTable(tmp_path).to_pyarrow_table())) == clean
    new = [(1, 2, {"x": 1, "y": "new"}, [{"x": 1, "y": 1}], "n"), (7, 2, {"x": None, "y": "new"}, [], "n")]
    table.upsert(spark.createDataFrame(new, NEW))
    table.upsert(spark.createDataFrame([(2, 2, {"x": 9}, [{"x": 9}])], OLD))
    expected |= {row[0]: row for row in new} | {2: widened((2, 2, {"x": 9}, [{"x": 9}]))}
    if compaction is not None:
        table.compact(minor=compaction == "minor")
    whole = sorted(expected.values(), key=repr)
    assert rows(table.to_df()) == rows(source(spark, tmp_path)) == whole
    assert rows(table.to_df(filter="s.y = 'new'").select("id")) == [(1,), (7,)]
    # Spark reads only the fields it is asked for; files that have none of them still have their structs.
    found = table.to_df().selectExpr("id", "s.y AS y", "s IS NULL AS gone", "size(l) AS many").orderBy("id").collect()
    assert [tuple(row) for row in found] == [
        (row[0], row[2]["y"], False, len(row[3])) for row in sorted(expected.values())
    ]
    assert rows(LakeTable.open(tmp_path, version=1, spark=spark).to_df()) == sorted(ROWS, key=repr)
    table.alter(order=["note", "id"], comments={"s.y": "why"})
    assert table.to_df().columns == ["note", "id", "at", "s", "l"] == source(spark, tmp_path).columns
    assert rows(table.to_df().select("id", "at", "s", "l", "note")) == whole


@pytest.mark.long
def test_frames_add_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT, at INT", key=["id"], ordering=["at"], buckets=2, spark=spark)
    first = spark.createDataFrame([(1, 1, {"x": 1})], "id BIGINT, at INT, s STRUCT<x: INT>").coalesce(1)
    with pytest.raises(FrameError, match=r"unknown column 's'.*upsert with merge_schema=True to add it"):
        table.upsert(first)
    loaded = table.upsert(first, merge_schema=True)
    assert (loaded.version, loaded.mode, table.schema.names) == (1, "load", ["id", "at", "s"])
    assert all(file_slice.is_clean for file_slice in table.opened.view.file_slices)
    second = spark.createDataFrame(
        [(1, 2, {"y": "b", "x": 2}, "n")], "id LONG, at INT, s STRUCT<y: STRING, x: INT>, note STRING"
    )
    assert table.upsert(second, merge_schema=True).version == 2
    assert table.schema.field("s").type == pa.struct([("x", pa.int32()), ("y", pa.string())])
    third = spark.createDataFrame([(2, 2, "n2", True)], "id BIGINT, at INT, note STRING, flag BOOLEAN")
    writer = third.write.format("lakemerge").mode("append")
    with pytest.raises(PySparkException, match="unknown column 'flag'"):
        writer.save(str(tmp_path))
    # Delta's extension, where a session has it, refuses such a value first.
    with pytest.raises(InputError, match="option mergeSchema must be true or false, not 'yes'"):
        LakeMergeDataSource({"path": str(tmp_path), "mergeSchema": "yes"}).writer(third.schema, False)
    writer.option("mergeSchema", "true").save(str(tmp_path))
    assert table.version == 3
    expected = [(1, 2, {"x": 2, "y": "b"}, "n", None), (2, 2, None, "n2", True)]
    assert rows(table.to_df()) == rows(source(spark, tmp_path)) == expected
    with pytest.raises(FrameError, match="column 'gone' is new and has no type; cast it"):
        table.upsert(spark.sql("SELECT 1L AS id, 3 AS at, null AS gone"), merge_schema=True)
    table.upsert(spark.sql("SELECT 1L AS id, 3 AS at, null AS note"), merge_schema=True)
    assert rows(table.to_df())[0] == (1, 3, {"x": 2, "y": "b"}, None, None)
    assert table.version == 4, "a commit each, with the columns"
    table.compact()
    assert rows(table.to_df())[0] == (1, 3, {"x": 2, "y": "b"}, None, None)


def test_the_source_loads_a_frame_with_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT", key=["id"], spark=spark)
    frame = spark.createDataFrame([(1, "a")], "id BIGINT, v STRING")
    frame.write.format("lakemerge").mode("append").option("mergeSchema", "TRUE").save(str(tmp_path))
    assert table.opened.view.base_files
    assert rows(table.to_df()) == [(1, "a")]


@pytest.mark.long
def test_columns_added_while_a_frame_is_evaluated(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id BIGINT, at INT"
    table = LakeTable.create(tmp_path, ddl, key=["id"], ordering=["at"], buckets=1, spark=spark)
    table.upsert(spark.createDataFrame([(1, 1)], ddl))
    path = str(tmp_path)

    def overtake(batches: Any) -> Any:
        other = LakeTable.open(path)
        other.upsert(pa.table({"id": [5], "at": pa.array([other.version], pa.int32()), "w": ["x"]}), merge_schema=True)
        yield from batches

    slow = spark.createDataFrame([(2, 2, 7)], ddl + ", n INT").coalesce(1).mapInArrow(overtake, ddl + ", n INT")
    table.upsert(slow, merge_schema=True)
    assert table.schema.names == ["id", "at", "w", "n"]
    assert rows(table.to_df())[:2] == [(1, 1, None, None), (2, 2, None, 7)]

    def disagree(batches: Any) -> Any:
        LakeTable.open(path).upsert(
            pa.table({"id": [6], "at": pa.array([1], pa.int32()), "z": ["x"]}), merge_schema=True
        )
        yield from batches

    other = spark.createDataFrame([(2, 9, 7)], ddl + ", z INT").coalesce(1).mapInArrow(disagree, ddl + ", z INT")
    with pytest.raises(CommitConflictError, match="column 'z' changed meanwhile"):
        table.upsert(other, merge_schema=True)
    assert rows(table.to_df())[1][:2] == (2, 2)


def test_base_mode_is_what_delta_readers_see(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id BIGINT, at INT"
    table = LakeTable.create(tmp_path, ddl, key=["id"], ordering=["at"], buckets=2, spark=spark)
    table.upsert(spark.createDataFrame([(i, 1) for i in range(6)], ddl))
    table.upsert(spark.createDataFrame([(1, 2), (8, 2)], ddl))
    table.compact(minor=True)
    table.upsert(spark.createDataFrame([(2, 2), (9, 2)], ddl))
    expected = [(i, 1) for i in range(6)]
    assert rows_of(pa.table(deltalake.DeltaTable(tmp_path).to_pyarrow_table())) == expected
    assert rows(spark.read.format("delta").load(str(tmp_path))) == expected
    assert rows(table.to_df(mode="base")) == rows(source(spark, tmp_path, mode="base")) == expected
    assert rows(table.to_df(mode="base", columns=["at"], filter="id IN (1, 2, 9)")) == [(1,), (1,)]
    merged = [(0, 1), (1, 2), (2, 2), (3, 1), (4, 1), (5, 1), (8, 2), (9, 2)]
    assert rows(table.to_df(mode="merged")) == rows(source(spark, tmp_path, mode="merged")) == merged
    with pytest.raises(InputError, match="mode must be one of 'merged', 'base', not 'fast'"):
        table.to_df(mode="fast")  # type: ignore[arg-type]
    with pytest.raises(PySparkException, match="mode must be one of 'merged', 'base', not 'fast'"):
        source(spark, tmp_path, mode="fast").collect()
