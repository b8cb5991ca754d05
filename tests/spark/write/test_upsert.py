"""Writes of DataFrames: which files they leave, what they refuse, and that either way the rows are right.

Rows are expected by hand or from a dictionary; buckets from Spark's own ``xxhash64``; files are opened
with pyarrow, not with the reader under test.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructField, StructType

from lakemerge import FrameError, LakeTable, Settings
from lakemerge.format.names import SLICE_TAG
from lakemerge.schema.schema import from_delta_json
from lakemerge.spark import load, writer
from lakemerge.spark.sessions import session_settings
from lakemerge.spark.writer import upsert_dataframe
from lakemerge.write.start import WriteRequest

DDL = "id BIGINT, at INT, v STRING"


def create(spark: SparkSession, path: Path, schema: object = DDL, **arguments: Any) -> LakeTable:
    given: dict[str, Any] = {"key": ["id"], "ordering": ["at"], "buckets": 2, "spark": spark} | arguments
    return LakeTable.create(path, schema, **given)


def objects(path: Path) -> set[str]:
    """Every file of a table; not the checksums that Spark's local file system puts beside its own."""
    found = (os.path.relpath(os.path.join(folder, name), path) for folder, _, names in os.walk(path) for name in names)
    return {name for name in found if not name.endswith(".crc")}


def rows(table: LakeTable) -> list[tuple[Any, ...]]:
    """The table's rows as both readers see them, which must agree."""
    through_spark = sorted(tuple(row) for row in table.to_df().collect())
    arrow = table.to_arrow()
    without = sorted(zip(*(column.to_pylist() for column in arrow.columns), strict=True))
    assert through_spark == without
    return through_spark


def was_loaded_in_the_jvm(table: LakeTable) -> bool:
    """Spark names its files ``part-``, the kernel by bucket and ordinal."""
    names = {path.rsplit("/", 1)[1].startswith("part-") for path in table.opened.view.snapshot.files}
    assert len(names) == 1
    return names.pop()


def shuffled(spark: SparkSession, count: int, columns: str) -> DataFrame:
    """``columns`` over ``id`` from 0 on, in no order, in three partitions."""
    return spark.sql(f"SELECT {columns} FROM range({count})").repartition(3)


KEYS: dict[str, tuple[str, list[str], Callable[[int], tuple[Any, ...]]]] = {
    "id BIGINT": ("(id * 7919 % 1000 - 500) AS id", ["id"], lambda i: (i * 7919 % 1000 - 500,)),
    "s STRING, id INT": (
        "elt(int(id % 3) + 1, 'ø', 'Z', '') AS s, CAST(id AS INT) AS id",
        ["s", "id"],
        lambda i: (("ø", "Z", "")[i % 3], i),
    ),
    "d DECIMAL(30,2)": ("CAST(id - 500 AS DECIMAL(30,2)) AS d", ["d"], lambda i: (Decimal(i - 500),)),
    "b BINARY": ("unhex(substr(sha2(CAST(id AS STRING), 256), 1, 8)) AS b", ["b"], lambda i: (sha4(i),)),
    "day DATE": (
        "date_add(DATE'1499-12-31', CAST(id AS INT)) AS day",
        ["day"],
        lambda i: (dt.date(1499, 12, 31) + dt.timedelta(i),),
    ),
}


def sha4(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()[:4]


@pytest.mark.parametrize("ddl", KEYS)
def test_a_bulk_load_is_one_sorted_file_a_bucket(spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    sql, key, expected = KEYS[ddl]
    table = create(spark, tmp_path, f"{ddl}, at INT, v STRING", key=key, buckets=4)
    frame = shuffled(spark, 1000, f"{sql}, 1 AS at, concat('v', id) AS v")
    result = table.upsert(frame)
    assert (result.mode, result.rows, result.version, result.files) == ("load", 1000, 1, 5)
    adds = list(table.opened.view.snapshot.files.values())
    assert objects(tmp_path) == {add.path for add in adds} | {f"_delta_log/{v:020d}.json" for v in (0, 1)}
    assert (
        result.bytes == sum((tmp_path / add.path).stat().st_size for add in adds) == sum(add.size_bytes for add in adds)
    )

    hashed = frame.select(*key, F.expr(f"pmod(xxhash64({', '.join(key)}), 4)").alias("bucket")).collect()
    buckets = {tuple(_plain(value) for value in row[:-1]): row.bucket for row in hashed}
    found: list[tuple[Any, ...]] = []
    tags = []
    for add in adds:
        tag = json.loads(add.tags[SLICE_TAG])
        tags.append((tag["bucket"], tag["buckets"], tag["ordinal"], tag["through"]))
        file = pq.read_table(tmp_path / add.path)
        assert file.column_names == [*table.schema.names, "_lm_file"]
        assert set(file["_lm_file"].to_pylist()) == {tag["ordinal"]}
        keys = list(zip(*(file[name].to_pylist() for name in key), strict=True))
        assert keys == sorted(keys)
        assert {buckets[k] for k in keys} == {tag["bucket"]}
        assert tag["rows"] == file.num_rows
        found += list(zip(*(file[name].to_pylist() for name in table.schema.names), strict=True))
        check_statistics(json.loads(add.stats or "{}"), file, key)
    assert sorted(tags) == [(bucket, 4, bucket, 0) for bucket in range(4)]
    assert table.opened.view.state.next_ordinal >= 4
    assert sorted(found) == sorted((*expected(i), 1, f"v{i}") for i in range(1000))
    assert rows(table) == sorted(found)


def check_statistics(stats: dict[str, Any], file: Any, key: list[str]) -> None:
    """Bounds of the columns that have any are the file's own."""
    assert stats["numRecords"] == file.num_rows
    assert stats["nullCount"] == dict.fromkeys([*key, "at", "v"], 0)
    assert stats["minValues"].keys() == stats["maxValues"].keys() == {*key, "at", "v"} - {"b"}
    for name, low in stats["minValues"].items():
        values = [_plain(value) for value in file[name].to_pylist()]
        spelled: dict[type, Callable[[Any], Any]] = {Decimal: float, dt.date: str}
        in_json = spelled.get(type(values[0]), lambda value: value)
        assert (low, stats["maxValues"][name]) == (in_json(min(values)), in_json(max(values)))


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def test_empty_buckets_have_no_file(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path, buckets=64)
    result = table.upsert(spark.createDataFrame([(1, 1, "a"), (2, 1, None)], DDL))
    used = {row[0] for row in spark.sql("SELECT pmod(xxhash64(id), 64) FROM VALUES (1L), (2L) AS t(id)").collect()}
    assert {json.loads(add.tags[SLICE_TAG])["bucket"] for add in table.opened.view.snapshot.files.values()} == used
    assert (result.mode, result.files) == ("load", len(used) + 1)
    assert was_loaded_in_the_jvm(table)
    assert rows(table) == [(1, 1, "a"), (2, 1, None)]


FALLBACKS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, list[tuple[Any, ...]]]] = {
    "duplicate keys": (
        DDL,
        {},
        {},
        "* FROM VALUES (1L, 1, 'a'), (1L, 3, 'c'), (1L, 2, 'b'), (2L, 1, 'x') AS t(id, at, v)",
        [(1, 3, "c"), (2, 1, "x")],
    ),
    "equal orderings": (DDL, {}, {}, "* FROM VALUES (1L, 1, 'a'), (1L, 1, 'b') AS t(id, at, v)", [(1, 1, "b")]),
    "delete_when": (
        DDL,
        {"options": {"delete_when": {"column": "v", "values": ["gone"]}}},
        {},
        "* FROM VALUES (1L, 1, 'a'), (2L, 1, 'gone'), (3L, 1, null) AS t(id, at, v)",
        [(1, 1, "a"), (3, 1, None)],
    ),
    "partial": (DDL, {}, {}, "* FROM VALUES (1L, 1), (2L, 1) AS t(id, at)", [(1, 1, None), (2, 1, None)]),
    "partitioned": (
        "c STRING, id BIGINT, at INT",
        {"key": ["c", "id"], "partition_by": ["c"]},
        {},
        "* FROM VALUES ('a', 1L, 1), ('b', 1L, 1) AS t(c, id, at)",
        [("a", 1, 1), ("b", 1, 1)],
    ),
    "kind column": (
        DDL,
        {},
        {"kind_column": "op"},
        "id, 1 AS at, v, op FROM VALUES (1, 'a', '+I'), (2L, 'b', '-D'), (3L, 'c', '-U'), (4L, 'd', '+U') t(id, v, op)",
        [(1, 1, "a"), (4, 1, "d")],
    ),
    "struct fields in another order": (
        "id BIGINT, s STRUCT<a: INT, b: INT>",
        {"ordering": []},
        {},
        "1L AS id, named_struct('B', 2, 'a', 1) AS s",
        [(1, {"a": 1, "b": 2})],
    ),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_first_load_that_needs_the_kernel(spark: SparkSession, tmp_path: Path, name: str) -> None:
    ddl, definition, arguments, source, expected = FALLBACKS[name]
    table = create(spark, tmp_path, ddl, **definition)
    frame = spark.sql(f"SELECT {source}").coalesce(1)
    result = table.upsert(frame, **arguments)
    assert (result.mode, result.rows, result.version) == ("load", frame.count(), 1)
    assert not was_loaded_in_the_jvm(table)
    # The logs that were merged are gone; what is left is counted, but for the table's first commit.
    assert len(objects(tmp_path)) == result.files + 1
    assert not any(name.startswith("_lakemerge/log") for name in objects(tmp_path))
    assert table.to_arrow().sort_by([(key, "ascending") for key in table.key]).to_pylist() == [
        dict(zip(table.schema.names, row, strict=True)) for row in expected
    ]


def test_delete_when_without_a_match_still_loads_in_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path, options={"delete_when": {"column": "v", "values": ["gone"]}})
    table.upsert(spark.createDataFrame([(1, 1, "a"), (2, 1, None)], DDL))
    assert was_loaded_in_the_jvm(table)
    assert rows(table) == [(1, 1, "a"), (2, 1, None)]


def test_a_first_delete_is_remembered(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    assert table.delete(spark.createDataFrame([(1, 5)], "id BIGINT, at INT")).mode == "load"
    table.upsert(spark.createDataFrame([(1, 4, "late"), (2, 4, "b")], DDL))
    assert rows(table) == [(2, 4, "b")]


STRICT = StructType(
    [
        StructField("id", LongType()),
        StructField("at", IntegerType()),
        StructField("n", IntegerType(), nullable=False),
        StructField("l", ArrayType(IntegerType(), containsNull=False)),
        StructField("s", StructType([StructField("x", IntegerType(), nullable=False)])),
    ]
)
GOOD = {"id": "7L", "at": "1", "n": "1", "l": "array(1)", "s": "named_struct('x', 1)"}
NO_ROW = "int(null)"
REFUSED: dict[str, tuple[dict[str, str | None], dict[str, Any], str]] = {
    "null key": ({"id": "bigint(null)"}, {}, "key column 'id' is null in 1 row"),
    "null in NOT NULL": ({"n": NO_ROW}, {}, "'n'.*null in 1"),
    "null element": ({"l": f"array(1, {NO_ROW})"}, {}, "a null among the elements"),
    "null field": ({"s": f"named_struct('x', {NO_ROW})"}, {}, "a null in the field 'x'"),
    "unknown column": ({"z": "1"}, {}, "unknown column 'z'"),
    "unknown void column": ({"z": "null"}, {}, "unknown column 'z'"),
    "wrong type": ({"at": "current_date()", "n": "'1'"}, {}, "'at' is DATE.*'n' is STRING"),
    "other struct": ({"s": "named_struct('y', 1)"}, {}, "'s' is STRUCT<y: INT>"),
    "no ordering": ({"at": None}, {}, r"upserts need the ordering column\(s\) at"),
    "no key": ({"id": None}, {}, "key column 'id' is missing"),
    "no NOT NULL column": ({"n": None}, {}, r"upserts need the NOT NULL column\(s\) n"),
    "column twice": ({"N": "2"}, {}, "'n' and 'N' are both 'n'"),
    "unknown kind": ({"op": "'+X'"}, {"kind_column": "op"}, r"holds \['\+X'\]; row kinds are \+I"),
    "null kind": ({"op": "string(null)"}, {"kind_column": "op"}, r"holds \[None\]"),
    "kind of another type": ({"op": "1"}, {"kind_column": "op"}, "kind column 'op' is INT"),
    "no kind column": ({}, {"kind_column": "op"}, "kind column 'op' is not in the frame"),
    "bad txn": ({}, {"txn": ("app", -1)}, "txn must be"),
}


@pytest.fixture(scope="module")
def strict_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[LakeTable, Path]]:
    """An empty table and a loaded one; nothing that is refused may change them."""
    found = []
    for name in ("empty", "loaded"):
        path = tmp_path_factory.mktemp(name)
        table = create(spark, path, STRICT)
        if name == "loaded":
            table.upsert(spark.sql("SELECT 1L AS id, 1 AS at, 1 AS n, array(1) AS l, named_struct('x', 1) AS s"))
        found.append((table, path))
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_frame_changes_nothing(
    spark: SparkSession, strict_tables: list[tuple[LakeTable, Path]], name: str
) -> None:
    changes, arguments, message = REFUSED[name]
    columns = {key: sql for key, sql in {**GOOD, **changes}.items() if sql is not None}
    frame = spark.range(1).select(*(F.expr(sql).alias(key) for key, sql in columns.items()))
    for table, path in strict_tables:
        version, before = table.version, objects(path)
        with pytest.raises(FrameError, match=message):
            table.upsert(frame, **arguments)
        assert (table.version, objects(path)) == (version, before)


def test_a_good_frame_is_taken_where_bad_ones_were_refused(
    spark: SparkSession, strict_tables: list[tuple[LakeTable, Path]]
) -> None:
    frame = spark.range(1).select(*(F.expr(sql).alias(key) for key, sql in GOOD.items()))
    for table, _ in strict_tables:
        table.upsert(frame)
        assert {"id": 7, "at": 1, "n": 1, "l": [1], "s": {"x": 1}} in table.to_arrow().to_pylist()


@pytest.mark.parametrize("loaded", [False, True], ids=["load", "append"])
def test_a_frame_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path, loaded: bool) -> None:
    """One of two tasks fails: of an append, once the other has written its log, since one that Spark has yet to stop
    may leave an orphan."""
    table = create(spark, tmp_path)
    if loaded:
        table.upsert(spark.createDataFrame([(1, 1, "a")], DDL))
    version, before = table.version, objects(tmp_path)
    logs = tmp_path / "_lakemerge" / "log"

    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 39 in batch.column(0).to_pylist():
                for _ in range(1200):
                    if not loaded or any(logs.glob("*.parquet")):
                        raise ValueError("boom")
                    time.sleep(0.05)
                raise AssertionError("the other task wrote nothing")
            yield batch

    frame = spark.range(0, 40, 1, 2).selectExpr("id", "1 AS at", "'v' AS v").mapInArrow(fail, DDL)
    with pytest.raises(Exception, match="boom"):
        table.upsert(frame)
    assert (table.version, objects(tmp_path)) == (version, before)


def test_an_append_writes_at_most_an_object_a_task_and_two(spark: SparkSession, tmp_path: Path) -> None:
    create(spark, tmp_path, buckets=16).upsert(spark.range(100).selectExpr("id", "0 AS at", "'base' AS v"))
    frame = spark.range(0, 300, 1, 3).selectExpr("id", "1 AS at", "concat('n', id) AS v")
    # With and without a block index: three tasks of 16 blocks each are more than 40.
    for inline_blocks, expected in ((256, 4), (40, 5)):
        table = LakeTable.open(tmp_path, spark=spark, settings=Settings(inline_blocks=inline_blocks))
        before = objects(tmp_path)
        result = table.upsert(frame)
        new = objects(tmp_path) - before
        assert len(new) == result.files == expected
        assert (result.mode, result.rows) == ("append", 300)
        assert result.bytes == sum(
            (tmp_path / p).stat().st_size for p in new if p.endswith(".parquet") and "index" not in p
        )
    assert rows(table) == [(i, 1, f"n{i}") for i in range(300)]


def test_a_txn_lands_once(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)

    def write(app: str, number: int, value: str) -> tuple[int, str, int]:
        before = objects(tmp_path)
        result = table.upsert(spark.createDataFrame([(1, 1, value)], DDL), txn=(app, number))
        assert result.rows == (0 if result.mode == "repeated" else 1)
        return result.version, result.mode, len(objects(tmp_path) - before)

    assert write("one", 5, "a") == (1, "load", 2)
    assert write("one", 5, "b") == (1, "repeated", 0)
    assert write("one", 4, "c") == (1, "repeated", 0)
    assert write("two", 4, "d") == (2, "append", 2)
    assert write("one", 6, "e") == (3, "append", 2)
    assert write("two", 4, "f") == (3, "repeated", 0)
    assert rows(table) == [(1, 1, "e")]


@pytest.mark.parametrize("loaded", [False, True], ids=["load", "append"])
def test_a_txn_that_landed_meanwhile_leaves_no_files(spark: SparkSession, tmp_path: Path, loaded: bool) -> None:
    table = create(spark, tmp_path)
    if loaded:
        table.upsert(spark.createDataFrame([(9, 1, "z")], DDL))
    stale = table.opened.view
    landed = table.upsert(spark.createDataFrame([(1, 1, "a")], DDL), txn=("app", 1))
    before = objects(tmp_path)
    frame = spark.createDataFrame([(1, 2, "again"), (2, 2, "again")], DDL)
    result = upsert_dataframe(table.opened.handle, stale, frame, WriteRequest(txn=("app", 1)))
    assert (result.mode, result.version, result.rows) == ("repeated", landed.version, 0)
    assert objects(tmp_path) == before
    assert (1, 1, "a") in rows(table)


def test_a_load_that_lost_the_race_becomes_an_append(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    stale = table.opened.view
    table.upsert(spark.createDataFrame([(1, 5, "first"), (2, 1, "first")], DDL))
    before = objects(tmp_path)
    frame = spark.createDataFrame([(1, 4, "late"), (2, 2, "new"), (3, 1, "new")], DDL).coalesce(1)
    result = upsert_dataframe(table.opened.handle, stale, frame, WriteRequest())
    assert (result.mode, result.version, result.files) == ("append", 2, 2)
    assert len(objects(tmp_path) - before) == 2
    assert rows(table) == [(1, 5, "first"), (2, 2, "new"), (3, 1, "new")]


def test_narrower_types_in_any_order_and_case(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id BIGINT, n DECIMAL(12,2), f DOUBLE, v STRING, l ARRAY<BIGINT>"
    table = create(spark, tmp_path, ddl, ordering=[])
    for number in (1, 2):  # the load, then an append
        table.upsert(spark.sql(f"SELECT array(1S) AS L, 'v' AS V, {number}Y AS ID, 1.5BD AS N, float(0.5) AS f"))
    assert rows(table) == [(number, Decimal("1.50"), 0.5, "v", [1]) for number in (1, 2)]


def test_empty_frames_and_void_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    empty = table.upsert(spark.createDataFrame([], DDL))
    assert (empty.mode, empty.version, empty.rows, empty.files, empty.bytes) == ("append", 1, 0, 1, 0)
    # What comes first is still a load.
    assert table.upsert(spark.sql("SELECT 1L AS id, 1 AS at, NULL AS v")).mode == "load"
    assert was_loaded_in_the_jvm(table)
    assert table.upsert(spark.createDataFrame([], DDL)).files == 1
    table.upsert(spark.sql("SELECT 2L AS id, 1 AS at, 'b' AS v"))
    table.upsert(spark.sql("SELECT NULL AS v, 2L AS id, 2 AS at"))
    assert table.version == 5
    assert rows(table) == [(1, 1, None), (2, 2, None)]


def test_what_a_result_tells(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    result = table.upsert(
        spark.range(2000).selectExpr("id", "1 AS at", "'v' AS v"), info={"job": "nightly", "files": ["a"]}
    )
    fields = {field.name for field in dataclasses.fields(result)}
    assert fields == {"version", "rows", "files", "bytes", "mode", "seconds"}
    assert repr(result).startswith(
        f"UpsertResult(version=1, mode='load', rows=2,000, files=3, bytes={result.bytes:,}, seconds="
    )
    entry = table.history(limit=1)[0]
    assert (entry.operation, entry.version) == ("UPSERT", 1)
    assert (entry.info["job"], entry.info["files"]) == ("nightly", ["a"])
    assert entry.parameters == {"columns": '["id","at","v"]', "mode": "load"}
    metrics = {name: int(str(value)) for name, value in entry.metrics.items()}
    assert metrics == {"numSourceRows": 2000, "numFiles": 2, "numOutputBytes": result.bytes}


def test_increments_of_a_task_are_one_record(spark: SparkSession, tmp_path: Path) -> None:
    options = {"aggregates": {"n": "sum"}}
    table = create(spark, tmp_path, "id BIGINT, n BIGINT", ordering=[], merger="aggregate", options=options)
    table.upsert(spark.range(2).selectExpr("id", "0L AS n"))
    table.upsert(spark.range(1000).selectExpr("id % 2 AS id", "1L AS n").coalesce(1))
    table.upsert(spark.range(1000).selectExpr("id % 2 AS id", "2L AS n").repartition(2, "id"))
    assert rows(table) == [(0, 1500), (1, 1500)]
    assert table.detail().log_rows == 4
    assert [entry.metrics["numUnitedRecords"] for entry in table.history(limit=2)] == ["998", "998"]
    table.compact_logs()
    table.compact()
    assert rows(table) == [(0, 1500), (1, 1500)]


@pytest.mark.usefixtures("by_unions")
def test_partitions(spark: SparkSession, tmp_path: Path) -> None:
    places = ("NO", "S E", "x/y=%z")
    ddl = "c STRING, day DATE, id BIGINT, at INT, v STRING"
    table = create(spark, tmp_path, ddl, key=["c", "day", "id"], partition_by=["c", "day"], buckets=1)
    days = (dt.date(2024, 1, 1), dt.date(999, 12, 31))
    state = {(c, day, i): (1, "a") for c in places for day in days for i in range(3)}
    table.upsert(spark.createDataFrame([(*key, *value) for key, value in state.items()], ddl))
    change = {("NO", days[1], 1): (2, "b"), ("S E", days[0], 9): (1, "new")}
    table.upsert(spark.createDataFrame([(*key, *value) for key, value in change.items()], ddl))
    state |= change
    expected = sorted((*key, *value) for key, value in state.items())
    for _ in range(2):  # with logs, then compacted
        assert rows(table) == expected
        for place in places:
            found = table.to_df(filter=f"c = '{place}' AND day < DATE'2000-01-01'")
            assert sorted(map(tuple, found.collect())) == [r for r in expected if r[0] == place and r[1] == days[1]]
        table.compact()
    # One of six files is opened.
    assert len(table.opened.view.snapshot.files) == 6
    (name,) = table.to_df(filter="c = 'x/y=%z' AND day = DATE'2024-01-01'").inputFiles()
    (add,) = (
        a
        for a in table.opened.view.snapshot.files.values()
        if a.partition_values == {"c": "x/y=%z", "day": "2024-01-01"}
    )
    assert name.endswith(add.path)
    with pytest.raises(FrameError, match="empty string cannot be a partition value"):
        table.upsert(spark.createDataFrame([("", days[0], 1, 1, "a")], ddl))


def test_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    table.upsert(spark.range(6).selectExpr("id", "10 AS at", "concat('v', id) AS v"))
    # Newer, older, and for keys that are not there; then without ordering, whatever the row's is.
    result = table.delete(spark.createDataFrame([(0, 11), (1, 9), (7, 20)], "id BIGINT, at INT"), info={"why": "gdpr"})
    assert (result.mode, result.rows) == ("append", 3)
    assert (table.history(limit=1)[0].operation, table.history(limit=1)[0].info["why"]) == ("DELETE", "gdpr")
    table.delete(spark.createDataFrame([(2,)], "ID INT"))
    table.upsert(spark.createDataFrame([(0, 10, "late"), (2, 1, "back"), (7, 19, "late")], DDL))
    assert rows(table) == [(1, 10, "v1"), (2, 1, "back"), (3, 10, "v3"), (4, 10, "v4"), (5, 10, "v5")]
    where = table.delete_where("id >= 4 OR v = 'back'")
    assert where.rows == 3
    assert rows(table) == [(1, 10, "v1"), (3, 10, "v3")]
    table.compact()
    table.upsert(spark.createDataFrame([(4, 9, "late"), (5, 11, "newer")], DDL))
    assert rows(table) == [(1, 10, "v1"), (3, 10, "v3"), (5, 11, "newer")]
    assert table.delete_where("v = 'nobody'").rows == 0


@pytest.mark.parametrize("name", ["a b", "x[1]", "{u,v}", "q?*", "p%41", "dt=2020", "it's #1"])
def test_odd_folder_names(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = create(spark, tmp_path / name / "t", buckets=1)
    assert table.upsert(spark.createDataFrame([(1, 1, "a"), (2, 1, "b")], DDL)).mode == "load"
    assert rows(table) == [(1, 1, "a"), (2, 1, "b")]
    assert table.to_df().columns == ["id", "at", "v"]


def test_files_that_are_not_what_was_asked_of_spark_go_through_the_kernel(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in another bucket's file would not be found by key; two files of a bucket would both own all keys."""
    shaped = load._shaped
    one_on = (F.col("_lm_file") + 1) % 2
    with monkeypatch.context() as patch:
        patch.setattr(load, "_shaped", lambda frame, write: shaped(frame, write).withColumn("_lm_file", one_on))
        shifted = create(spark, tmp_path / "shifted")
        assert shifted.upsert(shuffled(spark, 100, "id, 1 AS at, 'x' AS v")).mode == "load"
    with monkeypatch.context() as patch:
        patch.setitem(load._WRITER, "maxRecordsPerFile", "10")
        split = create(spark, tmp_path / "split")
        assert split.upsert(shuffled(spark, 100, "id, 1 AS at, 'x' AS v")).mode == "load"
    for table in (shifted, split):
        assert not was_loaded_in_the_jvm(table)
        assert len(objects(Path(table.url))) == 2 + 2
        assert rows(table) == [(n, 1, "x") for n in range(100)]
        assert table.to_arrow(filter="id = 77").num_rows == 1


def test_loads_in_threads_put_the_sessions_settings_back(spark: SparkSession) -> None:
    """The first one in ends first: the other still has what it needs, and afterwards all is as before."""
    name, own = "spark.sql.parquet.outputTimestampType", "INT96"
    before = str(spark.conf.get(name))
    spark.conf.set(name, own)
    try:
        entered, left = threading.Event(), threading.Event()

        def second() -> str:
            with session_settings(spark, load._FILES):
                entered.set()
                left.wait(60)
                return str(spark.conf.get(name))

        with ThreadPoolExecutor(1) as pool:
            with session_settings(spark, load._FILES):
                other = pool.submit(second)
                entered.wait(2)
            left.set()
            assert other.result() == "TIMESTAMP_MICROS"
        assert spark.conf.get(name) == own
    finally:
        spark.conf.set(name, before)


def test_the_size_of_a_frame_is_sparks_own_estimate(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of a range takes 8 bytes, to which Spark adds 8 for every row; nothing is printed and no view stays."""
    frame = spark.range(1024)
    before = [table.name for table in spark.catalog.listTables()]
    assert writer._estimated_bytes(frame) == 4 * 8 * 1024
    assert writer._estimated_bytes(frame.select("id", F.col("id").alias("ID"))) == 4 * 8 * 1024 * (8 + 8 + 8) // (8 + 8)
    assert writer._estimated_bytes(frame.crossJoin(spark.range(10**12).toDF("other"))) is None
    assert [table.name for table in spark.catalog.listTables()] == before
    assert capsys.readouterr().out == ""


def test_a_small_file_has_small_dictionaries(spark: SparkSession, tmp_path: Path) -> None:
    """parquet-mr alone keeps them up to 1 MiB. A dictionary of 12,000 longs has 96,000 bytes."""
    rows = spark.range(0, 30_000, 1, 1).selectExpr("id", "hash(id) % 6 few", "pmod(id * 7919, 12000) many")
    table = LakeTable.create(tmp_path, "id BIGINT, few INT, many BIGINT", key=["id"], buckets=1, spark=spark)
    assert table.upsert(rows).mode == "load"
    (base,) = table.opened.view.base_files
    group = pq.read_metadata(tmp_path / base.add.path).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert columns["few"].has_dictionary_page
    assert not columns["many"].has_dictionary_page
    assert table.to_df().selectExpr("count(*)", "sum(many)").first() == (
        30_000,
        sum(i * 7919 % 12_000 for i in range(30_000)),
    )


def test_the_schema_of_a_frame_is_taken_to_arrow_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a bulk load, an append and an overwrite, whatever else they need of it."""
    table = create(spark, tmp_path / "t")
    taken: list[str] = []

    def counted(text: str, *, of_frame: bool = False) -> pa.Schema:
        taken.append(text)
        return from_delta_json(text, of_frame=of_frame)

    monkeypatch.setattr("lakemerge.spark.writer.from_delta_json", counted)
    monkeypatch.setattr("lakemerge.schema.schema.from_delta_json", counted)
    one = spark.createDataFrame([(1, 1, "a")], DDL)
    writes: tuple[Callable[..., object], ...] = (table.upsert, table.upsert, table.overwrite)
    for number, write in enumerate(writes, 1):
        write(one)
        assert len(taken) == number
    assert table.to_arrow().to_pylist() == [{"id": 1, "at": 1, "v": "a"}]
