"""File slices that cannot hold a row of the answer are not read: by conditions, and by the keys of a join.

What must not be read is moved away before the query runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

import lakemerge
from lakemerge import LakeTable, ReadPolicy, Settings
from lakemerge.layout.view import FileSlice
from lakemerge.layout.xxhash64 import hash_columns
from tests.spark.compaction.test_minor import plan_of
from tests.spark.read.test_native import files_of, quick, settings

BUCKETS = 8
BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
PRUNING = "spark.sql.optimizer.dynamicPartitionPruning.enabled"
MISSING = r"\[(LAKEMERGE_TABLE_DAMAGED|table-damaged)\] file .* is missing"
STATES = ("compacted", "minor-compacted", "pending", "computed in tasks", "computed before")


@pytest.fixture(autouse=True)
def _none_is_small(spark: SparkSession) -> Iterator[None]:
    """A scan of less than this takes no keys of a join."""
    with settings(spark, {BROADCAST: "-1"}):
        yield


def made(spark: SparkSession, path: Path, state: str, **defined: Any) -> tuple[LakeTable, dict[int, int]]:
    """A table of 400 keys, and its rows by the meaning of the merger."""
    computed = state.startswith("computed")
    options: dict[str, Any] = {"key": ["id"], "buckets": BUCKETS, **defined}
    if computed:
        options |= {"merger": "aggregate", "options": {"aggregates": {"n": "sum"}}}
    policy = ReadPolicy(premerge_from_bytes=1 if state == "computed before" else 10**9)
    table = LakeTable.create(
        path,
        pa.schema([("id", pa.int64()), ("at", pa.int32()), ("n", pa.int64()), ("part", pa.string())]),
        ordering=["at"],
        **options,
        properties={"lakemerge.maintenance": "off"},
        settings=Settings(reads=policy),
        spark=spark,
    )
    rows: dict[int, int] = {}
    for at, keys in ((1, range(400)), (2, range(0, 440, 7))):
        numbers = [key + at for key in keys]
        columns = [list(keys), pa.array([at] * len(keys), pa.int32()), numbers, [f"p{key % 5}" for key in keys]]
        table.upsert(pa.table(columns, names=["id", "at", "n", "part"]))
        for key, n in zip(keys, numbers, strict=True):
            rows[key] = rows.get(key, 0) + n if computed else n
        if at == 1 or state == "compacted":
            table.compact()
    if state == "minor-compacted":
        table.compact(minor=True)
    return table, rows


def bucket_of(key: int, part: str | None = None) -> int:
    columns = [pa.array([key])] if part is None else [pa.array([part]), pa.array([key])]
    return int(hash_columns(columns)[0] % BUCKETS)


@contextmanager
def only(table: LakeTable, *kept: FileSlice) -> Iterator[int]:
    """Base files of all other file slices are elsewhere meanwhile. Gives their number."""
    known = {file.path for file_slice in kept for file in file_slice.row_files}
    files = [
        Path(table.url) / file.path
        for file_slice in table.opened.view.file_slices
        for file in file_slice.row_files
        if file.path not in known
    ]
    for file in files:
        file.rename(file.with_suffix(".away"))
    try:
        yield len(files)
    finally:
        for file in files:
            file.with_suffix(".away").rename(file)


def buckets(table: LakeTable, *numbers: int) -> list[FileSlice]:
    return [each for each in table.opened.view.file_slices if each.bucket_id.bucket in numbers]


def other(spark: SparkSession, path: Path) -> DataFrame:
    """A table of another format, with a column that says which of its rows are wanted."""
    if not path.exists():
        spark.range(0, 400, 1, 1).selectExpr("id", "id % 40 AS tag", "concat('p', id % 5) AS part").write.parquet(
            str(path)
        )
    return spark.read.parquet(str(path))


@pytest.mark.parametrize("state", quick(STATES, "pending", "computed in tasks"))
def test_a_condition_on_the_key(spark: SparkSession, tmp_path: Path, state: str) -> None:
    """After the frame was made. Winner files of other buckets are elsewhere, too."""
    table, rows = made(spark, tmp_path / "t", state)
    assert table.explain_read().not_native is None
    frame = table.to_df()
    assert {row.id: row.n for row in frame.collect()} == rows
    with only(table, *buckets(table, bucket_of(14), bucket_of(21))) as away:
        assert away >= BUCKETS - 2
        for condition in ("id IN (14, 21)", "id = 14 OR id = 21", "(id = 21 OR id IN (14)) AND n > 0"):
            found = {row.id: row.n for row in frame.where(condition).collect()}
            assert found == {14: rows[14], 21: rows[21]}, condition
        assert [row.n for row in frame.where("id = 14").select("n").collect()] == [rows[14]]
        with pytest.raises(Exception, match=MISSING):
            frame.where("id > 14").collect()


@pytest.mark.parametrize("state", quick(STATES, "pending", "computed in tasks"))
def test_the_keys_of_a_join(spark: SparkSession, tmp_path: Path, state: str) -> None:
    table, rows = made(spark, tmp_path / "t", state)
    lakemerge.catalog(spark, "pruned_paths", warehouse=str(tmp_path.parent.parent))
    dimension = other(spark, tmp_path / "other").where("tag = 14").drop("part")  # id is 14, 54, 94 and so on
    expected = {key: n for key, n in rows.items() if key % 40 == 14 and key < 400}
    wanted = buckets(table, *map(bucket_of, expected))
    assert len({each.bucket_id.bucket for each in wanted}) < BUCKETS
    for frame in (table.to_df(), spark.table(f"lakemerge.`{table.url}`")):
        joined = frame.join(functions.broadcast(dimension), "id").select("id", "n")
        assert "dynamicpruning" in plan_of(joined).lower()
        assert {row.id: row.n for row in frame.select("id", "n").collect()} == rows
        with only(table, *wanted) as away:
            assert away > 0
            assert {row.id: row.n for row in joined.collect()} == expected
            summed = frame.join(functions.broadcast(dimension), "id").agg({"n": "sum", "*": "count"}).collect()[0]
            assert sorted(summed) == sorted((sum(expected.values()), len(expected)))
            with settings(spark, {PRUNING: "false"}), pytest.raises(Exception, match=MISSING):
                frame.join(functions.broadcast(dimension), "id").select("id", "n", "at").collect()
        # The same scan, with other keys and with none.
        both = joined.unionAll(frame.select("id", "n").where("id < 3"))
        assert len(both.collect()) == len(expected) + 3
        assert frame.join(dimension, "id", "left_anti").count() == len(rows) - len(expected)


def test_a_small_table_does_not_wait_for_the_keys_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would collect them in the driver, which takes longer than to read it all."""
    table, rows = made(spark, tmp_path / "t", "pending")
    dimension = functions.broadcast(other(spark, tmp_path / "other").where("tag = 14").select("id"))
    assert files_of(table.to_df()) == 9, "each counts 256 KB, and the limit eight times"
    for limit, takes in (("10MB", False), ("400KB", False), ("200KB", True), ("-1", True)):
        with settings(spark, {BROADCAST: limit}):
            joined = table.to_df().join(dimension, "id").select("id", "n")
            assert ("dynamicpruning" in plan_of(joined).lower()) is takes, limit
            assert {row.id: row.n for row in joined.collect()} == {
                key: n for key, n in rows.items() if key % 40 == 14 and key < 400
            }


def test_no_key_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    table, _ = made(spark, tmp_path / "t", "pending")
    nothing = other(spark, tmp_path / "other").where("tag = 77").select("id")
    frame = table.to_df()
    frame.count()
    with only(table):
        assert frame.join(functions.broadcast(nothing), "id").count() == 0


@pytest.mark.parametrize("state", quick(STATES, "pending", "computed in tasks"))
def test_partitions_and_buckets(spark: SparkSession, tmp_path: Path, state: str) -> None:
    table, rows = made(spark, tmp_path / "t", state, key=["part", "id"], partition_by=["part"], buckets=BUCKETS)
    assert table.explain_read().not_native is None
    frame = table.to_df()
    assert {row.id: row.n for row in frame.collect()} == rows
    everywhere = table.opened.view.file_slices
    of_part = [each for each in everywhere if each.bucket_id.partition == ("p4",)]
    with only(table, *of_part):
        assert {row.id: row.n for row in frame.where("part = 'p4'").collect()} == {
            key: n for key, n in rows.items() if key % 5 == 4
        }
        assert frame.where("substr(part, 2) = '4' AND n > 0").count() == sum(key % 5 == 4 for key in rows)
        assert frame.where("(part = 'p4' AND id > 10) OR (part = 'p9' AND id < 100)").count() == sum(
            key % 5 == 4 and key > 10 for key in rows
        )
        dimension = other(spark, tmp_path / "other").where("tag = 14").select("part").distinct()
        joined = frame.join(functions.broadcast(dimension), "part")
        assert joined.count() == sum(key % 5 == 4 for key in rows)
    one = [each for each in of_part if each.bucket_id.bucket == bucket_of(14, "p4")]
    with only(table, *one):
        assert [row.n for row in frame.where("part = 'p4' AND id = 14").collect()] == [rows[14]]
    keys = [key for key in range(400) if key % 40 == 14]  # all of p4
    some = [each for each in of_part if each.bucket_id.bucket in {bucket_of(key, "p4") for key in keys}]
    few = functions.broadcast(other(spark, tmp_path / "other").where("tag = 14").select("part", "id"))
    with only(table, *some):
        found = frame.join(few, ["part", "id"]).select("id", "n").collect()
        assert {row.id: row.n for row in found} == {key: rows[key] for key in keys}


KEYS: dict[str, list[Any]] = {
    "BOOLEAN": [False, True],
    "TINYINT": [-128, -1, 0, 127],
    "INT": [-(2**31), -1, 0, 2**31 - 1],
    "DECIMAL(9,2)": ["-1.50", "0.00", "99.99"],
    "DECIMAL(38,10)": ["-9999999999999999999999999999.9999999999", "0.0000000000", "1.5000000000"],
    "DATE": ["0001-01-01", "1582-10-10", "9999-12-31"],
    "TIMESTAMP": ["1000-01-01 00:00:00", "2021-11-07 05:30:00.000001"],
    "TIMESTAMP_NTZ": ["1000-01-01 00:00:00", "2021-03-14 02:30:00.000001"],
    "STRING": ["", " a ", "ø", "a'b", "x" * 40],
    "BINARY": ["", "a", "x" * 40],
}


@pytest.mark.parametrize("kind", quick(KEYS, "BOOLEAN", "DECIMAL(38,10)", "DATE", "STRING"))
def test_keys_of_every_type(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """The JVM finds the bucket that Python has put a key into."""
    table = LakeTable.create(tmp_path / "t", f"k {kind}, n INT", key=["k"], buckets=64, spark=spark)
    values = [f"CAST({value!r} AS {kind})" for value in KEYS[kind]]
    table.upsert(spark.sql(" UNION ALL ".join(f"SELECT {value} k, {n} n" for n, value in enumerate(values))))
    frame = table.to_df()
    for n, value in enumerate(values):
        found = frame.where(f"k = {value}")
        assert [row.n for row in found.collect()] == [n], value
        assert files_of(found) == 1, value
    two = frame.where(f"k IN ({values[0]}, {values[1]})")
    assert sorted(row.n for row in two.collect()) == [0, 1]


@pytest.mark.long
def test_ranges_of_keys(spark: SparkSession, tmp_path: Path) -> None:
    """A bucket with several base files."""
    table = LakeTable.create(
        tmp_path / "t",
        "id BIGINT, v STRING",
        key=["id"],
        buckets=1,
        settings=Settings(target_file_bytes=20_000, row_group_rows=200, merge_budget_bytes=1),
        spark=spark,
    )
    draw = np.random.default_rng(3)
    table.upsert(pa.table({"id": range(3000), "v": [draw.bytes(30).hex() for _ in range(3000)]}))
    table.upsert(pa.table({"id": range(0, 3000, 3), "v": [draw.bytes(30).hex() for _ in range(1000)]}))
    table.compact()
    slices = table.opened.view.file_slices
    assert len(slices) > 3
    frame = table.to_df()
    first_keys = [int(each.lower[0]) for each in slices if each.lower]
    for key in (0, 1500, 2999, *first_keys):
        found = frame.where(f"id = {key}")
        assert found.count() == 1
        assert files_of(found) <= 2, key
    dimension = spark.range(3000).selectExpr("id", "id % 3000 AS tag")
    dimension.write.parquet(str(tmp_path / "other"))
    few = spark.read.parquet(str(tmp_path / "other")).where("tag = 10")
    [first, *_] = [each for each in slices if each.lower is None]
    with only(table, first):
        assert [row.id for row in frame.join(functions.broadcast(few), "id").collect()] == [10]
        # More keys than are hashed: their range still rules files out.
        many = spark.read.parquet(str(tmp_path / "other")).where("tag < 120")
        assert first_keys
        assert min(first_keys) > 120
        assert frame.join(functions.broadcast(many), "id").select("id").count() == 120


@pytest.mark.parametrize("partitioned", [False, True], ids=["one partition", "partitions"])
def test_a_look_up_after_to_df_has_one_task_for_each_file_slice(
    spark: SparkSession, tmp_path: Path, *, partitioned: bool
) -> None:
    """Tasks of the kernel: a task that finds the whole key in the filter reads little of its file slice."""
    small = Settings(target_task_bytes=2_000, row_group_rows=200, reads=ReadPolicy(premerge=False))
    table = LakeTable.create(
        tmp_path / "t", "day STRING, k BIGINT, v BIGINT", key=["day", "k"], merger="aggregate", buckets=1,
        partition_by=["day"] if partitioned else [], options={"aggregates": {"v": "sum"}}, settings=small,
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    for _ in range(2):
        table.upsert(pa.table({"day": ["mon", "tue"] * 2_000, "k": range(4_000), "v": [1] * 4_000}))
    frame = LakeTable.open(tmp_path / "t", spark=spark, settings=small).to_df()
    assert frame.count() == 4_000
    tasks = frame.rdd.getNumPartitions()
    assert tasks > 4
    found = frame.where("day = 'tue' AND k = 7")
    assert [tuple(row) for row in found.collect()] == [("tue", 7, 2)]
    assert found.rdd.getNumPartitions() == 1
    part = frame.where("k = 7")
    assert [tuple(row) for row in part.collect()] == [("tue", 7, 2)]
    assert part.rdd.getNumPartitions() == tasks, "Python does not know of the key's other column"
