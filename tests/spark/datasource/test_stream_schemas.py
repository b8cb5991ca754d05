"""Columns and fields of structs that come while streams run: into a table, and out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from lakemerge import LakeTable, SchemaError
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.datasource.stream_source import FeedStreamReader
from lakemerge.schema.schema import to_arrow_schema, to_delta_json

DDL = "k BIGINT, a STRUCT<x: BIGINT>, l ARRAY<STRUCT<x: BIGINT>>, m MAP<STRING, STRUCT<x: BIGINT>>"
GROWN = (
    "k BIGINT, a STRUCT<x: BIGINT, y: STRUCT<z: STRING>>, l ARRAY<STRUCT<x: BIGINT, y: BIGINT>>, "
    "m MAP<STRING, STRUCT<x: BIGINT, y: BIGINT>>, n STRING"
)
FIRST = {"k": 1, "a": {"x": 1}, "l": [{"x": 2}], "m": {"p": {"x": 3}}}
SECOND = {
    "k": 2, "a": {"x": 4, "y": {"z": "new"}}, "l": [{"x": 5, "y": 6}], "m": {"p": {"x": 7, "y": 8}}, "n": "new",
}  # fmt: skip
BOTH = [
    {"k": 1, "a": {"x": 1, "y": None}, "l": [{"x": 2, "y": None}], "m": [("p", {"x": 3, "y": None})], "n": None},
    {**SECOND, "m": [("p", {"x": 7, "y": 8})]},
]


def put(folder: Path, name: str, row: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f".{name}").write_text(json.dumps(row))
    (folder / f".{name}").rename(folder / name)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return sorted(LakeTable.open(path).to_arrow().to_pylist(), key=lambda row: int(row["k"]))


def by_table(stream: DataFrame, folder: Path, *, merge_schema: bool) -> None:
    table = LakeTable.open(folder / "t", spark=stream.sparkSession)
    query = table.write_stream(stream, checkpoint=str(folder / "checkpoint"), merge_schema=merge_schema)
    query.awaitTermination()


def by_format(stream: DataFrame, folder: Path, *, merge_schema: bool) -> None:
    options = {"checkpointLocation": str(folder / "checkpoint"), "mergeSchema": str(merge_schema).lower()}
    writer = stream.writeStream.format("lakemerge").options(**options).trigger(availableNow=True)
    writer.start(str(folder / "t")).awaitTermination()


@pytest.mark.parametrize("write", [by_table, by_format])
def test_a_source_that_grows(spark: SparkSession, tmp_path: Path, write: Any) -> None:
    """The query is started again with more columns and fields, and goes on with its checkpoint."""
    LakeTable.create(tmp_path / "t", DDL, key=["k"], buckets=1, spark=spark)

    def files(ddl: str) -> DataFrame:
        return spark.readStream.schema(ddl).json(str(tmp_path / "in"))

    put(tmp_path / "in", "1", FIRST)
    write(files(DDL), tmp_path, merge_schema=False)
    put(tmp_path / "in", "2", SECOND)
    version = LakeTable.open(tmp_path / "t").version
    with pytest.raises(PySparkException, match=r"without 'a\.y'.*upsert with merge_schema=True to add it"):
        write(files(GROWN), tmp_path, merge_schema=False)
    assert LakeTable.open(tmp_path / "t").version == version
    write(files(GROWN), tmp_path, merge_schema=True)
    assert rows_of(tmp_path / "t") == BOTH
    # A source that is behind the table has no values for the fields that it lacks.
    put(tmp_path / "in", "3", {**FIRST, "k": 3})
    write(files(DDL), tmp_path, merge_schema=True)
    assert rows_of(tmp_path / "t") == [*BOTH, {**BOTH[0], "k": 3}]


def test_batches_that_grow_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    """A function of the user's parses each batch by the schema that it has."""
    table = LakeTable.create(tmp_path / "t", DDL, key=["k"], buckets=1, spark=spark)
    write = table.batch_writer(merge_schema=True)

    def parsed(batch: DataFrame, number: int) -> None:
        ddl = DDL if number == 0 else GROWN
        write(batch.select(functions.from_json("value", ddl).alias("e")).select("e.*"), number)

    put(tmp_path / "in", "1", FIRST)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    writer = lines.writeStream.foreachBatch(parsed).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        query.processAllAvailable()
        put(tmp_path / "in", "2", SECOND)
        query.processAllAvailable()
    finally:
        query.stop()
    assert rows_of(tmp_path / "t") == BOTH


def grown(path: Path) -> LakeTable:
    """A table whose structs get fields at its third version; what changes there is told below."""
    table = LakeTable.create(path, DDL, key=["k"], buckets=1)
    fields = table.schema
    one = {"k": 1, "a": {"x": 1}, "l": [{"x": 1}], "m": [("p", {"x": 1})]}
    table.upsert(pa.Table.from_pylist([{**one, "k": k} for k in (1, 2, 3)], fields))
    table.alter(add_columns="a.y STRUCT<z: STRING>, l.element.y BIGINT, m.value.y BIGINT, n STRING")
    new = {"a": {"x": 1, "y": {"z": "new"}}, "l": [{"x": 1, "y": 1}], "m": [("p", {"x": 1, "y": 1})], "n": "new"}
    changed = [{**new, "k": 1}, {**new, "k": 2, "a": {"x": 9, "y": None}}, {**new, "k": 4}]
    table.upsert(pa.Table.from_pylist(changed, table.schema))
    return table


def shown(ddl: str) -> StructType:
    """The columns of a stream as Spark gives them; its own parser of DDL needs a session."""
    schema = to_arrow_schema(f"{ddl}, _change_type STRING")
    return StructType.fromJson(json.loads(to_delta_json(schema)))


def reader(path: Path, columns: StructType, **options: str) -> FeedStreamReader:
    source = LakeMergeDataSource({"path": str(path), "readChangeFeed": "true", "startingVersion": "3", **options})
    found = source.streamReader(columns)
    assert isinstance(found, FeedStreamReader)
    return found


def told(stream: FeedStreamReader) -> list[dict[str, Any]]:
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    parts = stream.partitions(start, end)
    return [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]


def test_a_stream_of_changes_leaves_out_new_fields(tmp_path: Path) -> None:
    grown(tmp_path / "t")
    columns = shown(DDL)
    rest = {"l": [{"x": 1}], "m": [("p", {"x": 1})]}
    assert told(reader(tmp_path / "t", columns)) == [
        # Key 1 has changed only in what is new.
        {"k": 2, "a": {"x": 1}, **rest, "_change_type": "update_preimage"},
        {"k": 2, "a": {"x": 9}, **rest, "_change_type": "update_postimage"},
        {"k": 4, "a": {"x": 1}, **rest, "_change_type": "insert"},
    ]
    with pytest.raises(SchemaError, match="Start it again with the same checkpoint") as raised:
        told(reader(tmp_path / "t", columns, schemaChanges="stop"))
    assert raised.value.facts["problems"] == tuple(
        f"column {name!r} is new" for name in ("a.y", "l.element.y", "m.value.y", "n")
    )
    every = shown(GROWN)
    rows = told(reader(tmp_path / "t", every, schemaChanges="stop"))
    assert [(row["k"], row["_change_type"]) for row in rows] == [
        (1, "update_preimage"), (1, "update_postimage"), (2, "update_preimage"), (2, "update_postimage"), (4, "insert"),
    ]  # fmt: skip
    assert rows[0]["a"] == {"x": 1, "y": None}
    assert rows[1]["a"] == {"x": 1, "y": {"z": "new"}}


@pytest.mark.parametrize("wider", ["a.x", "l.element.x", "m.value.x"])
def test_a_field_that_becomes_wider_ends_a_stream(tmp_path: Path, wider: str) -> None:
    ddl = "k BIGINT, a STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"
    table = LakeTable.create(tmp_path / "t", ddl, key=["k"], buckets=1)
    table.upsert(pa.Table.from_pylist([{"k": 1, "a": {"x": 1}, "l": [{"x": 1}], "m": [("p", {"x": 1})]}], table.schema))
    columns = shown(ddl)
    table.alter(widen={wider: "BIGINT"})
    one = {"a": {"x": 1}, "l": [{"x": 1}], "m": [("p", {"x": 1})]}
    table.upsert(pa.Table.from_pylist([{"k": 2, **one}], table.schema))
    with pytest.raises(SchemaError, match=rf"column '{wider[0]}' has another type.*Start it again"):
        told(reader(tmp_path / "t", columns))


def test_the_other_readers_tell_each_value(spark: SparkSession, tmp_path: Path) -> None:
    table = grown(tmp_path / "t")
    expected = [(1, "new"), (2, None), (4, "new")]

    def seen(rows: list[Any]) -> list[tuple[Any, Any]]:
        return sorted((row["k"], (row["a"]["y"] or {"z": None})["z"]) for row in rows)

    after = [row for batch in table.changes(2, before_images=False) for row in batch.to_pylist()]
    followed = [row for batch in table.follow(since=2, poll=None) for row in batch.to_pylist()]
    assert seen(after) == seen([row for row in followed if row["_row_kind"] != "-U"]) == expected
    open_here = LakeTable.open(tmp_path / "t", spark=spark)
    assert seen([row.asDict(True) for row in open_here.changes_df(2, before_images=False).collect()]) == expected
    named = spark.read.format("lakemerge").options(readChangeFeed="true", startingVersion="3", beforeImages="false")
    assert seen([row.asDict(True) for row in named.load(str(tmp_path / "t")).collect()]) == expected


@pytest.mark.long
def test_a_copy_grows_with_its_source(spark: SparkSession, tmp_path: Path) -> None:
    """A stream that stops at what is new is started again, and the copy has every value."""
    table = LakeTable.create(tmp_path / "t", DDL, key=["k"], buckets=1)
    table.upsert(pa.Table.from_pylist([{"k": 1, "a": {"x": 1}, "l": [], "m": []}], table.schema))
    LakeTable.create(tmp_path / "copy", DDL, key=["k"], buckets=1)

    def feed() -> DataFrame:
        options = {"readChangeFeed": "true", "schemaChanges": "stop"}
        return spark.readStream.format("lakemerge").options(**options).load(str(tmp_path / "t"))

    def follow(stream: DataFrame) -> None:
        changes = stream.drop("_commit_version", "_commit_timestamp")
        copy = LakeTable.open(tmp_path / "copy", spark=spark)
        query = copy.write_stream(
            changes, checkpoint=str(tmp_path / "checkpoint"), kind_column="_change_type", merge_schema=True
        )
        query.awaitTermination()

    stream = feed()
    follow(stream)
    table.alter(add_columns="a.y BIGINT")
    table.upsert(pa.Table.from_pylist([{"k": 1, "a": {"x": 1, "y": 5}, "l": [], "m": []}], table.schema))
    with pytest.raises(PySparkException, match=r"column 'a\.y' is new"):
        follow(stream)
    follow(feed())
    assert rows_of(tmp_path / "copy") == rows_of(tmp_path / "t") == [{"k": 1, "a": {"x": 1, "y": 5}, "l": [], "m": []}]
