"""Minor-compacted tables through Spark: by position, without Python tasks, and right whatever came since.

Expected rows are kept in a dictionary; which file a row was read from, Spark itself tells.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge import LakeTable, ReadPolicy, Settings

pytestmark = pytest.mark.usefixtures("by_unions")

DDL = "id BIGINT, at INT, v STRING"
Rows = dict[int, tuple[Any, ...]]


def frame(spark: SparkSession, rows: Rows) -> DataFrame:
    return spark.createDataFrame(list(rows.values()), DDL)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Rows, ordered by their first columns, which tell them apart."""
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[:2])


def played(spark: SparkSession, path: Path) -> tuple[LakeTable, Rows]:
    """100 rows in four buckets; three rounds of changes, deletes and new keys, each compacted beside."""
    table = LakeTable.create(path, DDL, key=["id"], ordering=["at"], buckets=4, spark=spark)
    rows: Rows = {i: (i, 0, f"v{i}") for i in range(100)}
    assert table.upsert(frame(spark, rows)).mode == "load"
    for number in range(1, 4):
        changes: Rows = {i: (i, number, None if i % 2 else f"r{number}") for i in range(number * 7, 120, 11)}
        table.upsert(frame(spark, changes))
        rows |= changes
        gone = [number, number + 50]
        table.delete(spark.createDataFrame([(i, 9) for i in gone], "id BIGINT, at INT"))
        rows = {i: row for i, row in rows.items() if i not in gone}
        assert table.compact(minor=True).file_slices
    return table, rows


SEVERAL_SCANS = ReadPolicy(driver_rows=0, scan_rows=1)
"""Spark reads the bitmaps, and each file slice has a scan of its own."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "scans"),
    [(ReadPolicy(), 1), (ReadPolicy(driver_rows=0), 1), (SEVERAL_SCANS, 4)],
    ids=["sent with the plan", "read by Spark", "in several scans"],
)
def test_a_read_by_position(spark: SparkSession, tmp_path: Path, policy: ReadPolicy, scans: int) -> None:
    table, rows = played(spark, tmp_path / "t")
    table = LakeTable.open(table.url, spark=spark, settings=Settings(reads=policy))
    plan = plan_of(table.to_df())
    assert "MapInArrow" not in plan
    assert plan.count("FileScan") >= scans
    assert collected(table.to_df()) == sorted(rows.values())
    assert collected(table.to_df(columns=["at", "id"])) == sorted((row[1], row[0]) for row in rows.values())
    assert table.to_df().count() == len(rows)
    for condition, keep in {
        "at >= 2": lambda row: row[1] >= 2,
        "v IS NULL": lambda row: row[2] is None,
        "id = 21": lambda row: row[0] == 21,
        "id IN (1, 7, 118) OR v = 'r3'": lambda row: row[0] in (1, 7, 118) or row[2] == "r3",
    }.items():
        expected = sorted(filter(keep, rows.values()))
        assert collected(table.to_df(filter=condition)) == expected, condition
        assert collected(table.to_df().where(condition)) == expected, condition
    table.create_temp_view("merged")
    assert spark.sql("SELECT count(*), count(v) FROM merged").collect()[0] == (
        len(rows),
        sum(row[2] is not None for row in rows.values()),
    )
    assert collected(spark.read.format("lakemerge").load(table.url)) == sorted(rows.values())


def test_later_logs_are_merged_where_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """One of four buckets has later logs: it goes through the kernel, and the others are read by position."""
    table, rows = played(spark, tmp_path / "t")
    table.upsert(frame(spark, {21: (21, 50, "latest")}))
    rows[21] = (21, 50, "latest")
    plan = table.explain_read()
    assert (plan.minor, plan.merged) == (3, 1)
    assert "MapInArrow" in plan_of(table.to_df())
    assert collected(table.to_df()) == sorted(rows.values())
    table.compact()
    assert table.explain_read().clean == 4
    assert collected(table.to_df()) == sorted(rows.values())


@pytest.mark.long
def test_a_frame_stays_at_its_version(spark: SparkSession, tmp_path: Path) -> None:
    table, rows = played(spark, tmp_path / "t")
    before = table.to_df()
    table.upsert(frame(spark, {1: (1, 99, "later")}))
    table.compact(minor=True)
    assert collected(before) == sorted(rows.values())
    then = LakeTable.open(table.url, version=1, spark=spark)
    assert collected(then.to_df()) == [(i, 0, f"v{i}") for i in range(100)]


@pytest.mark.long
def test_a_union_of_scans_in_generated_code(spark: SparkSession, tmp_path: Path) -> None:
    """The setting that docs/spark.md recommends: clean file slices, scans with bitmaps, and a file slice that Python
    tasks merge."""
    table, rows = played(spark, tmp_path / "t")
    table = LakeTable.open(table.url, spark=spark, settings=Settings(reads=ReadPolicy(scan_rows=1)))
    late = {i: (i, 50, "late") for i in range(200, 400) if bucket_of(spark, i) == 2}
    table.upsert(frame(spark, late))
    rows |= late
    spark.conf.set("spark.sql.codegen.wholeStage.union.enabled", "true")
    try:
        assert collected(table.to_df()) == sorted(rows.values())
        sums = table.to_df().groupBy("at").agg(F.sum("id").alias("s"))
        expected = {
            at: sum(row[0] for row in rows.values() if row[1] == at) for at in {row[1] for row in rows.values()}
        }
        assert {row["at"]: row["s"] for row in sums.collect()} == expected
        assert collected(table.to_df(filter="id % 7 = 0")) == sorted(row for row in rows.values() if row[0] % 7 == 0)
        if pyspark.__version__ >= "4.2":  # those before have no such setting
            assert re.search(r"\*\(\d+\) Union", plan_of(sums))
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage.union.enabled")


@pytest.mark.long
def test_small_base_files_are_spread_over_all_cores(spark: SparkSession, tmp_path: Path) -> None:
    """Spark counts each winner file for 4 MiB. In one scan with them, the four base files of 3 MB would
    be in one task."""
    table = LakeTable.create(tmp_path / "t", DDL, key=["id"], ordering=["at"], buckets=4, spark=spark)
    texts = pa.array([random.Random(i).randbytes(75).hex() for i in range(200_000)])
    rows = pa.table({"id": range(200_000), "at": pa.nulls(200_000, pa.int32()).fill_null(0), "v": texts})
    table.upsert(rows)
    for number in (1, 2):
        late = pa.table({"id": range(number, 200_000, 2_000), "at": pa.array([number] * 100, pa.int32())})
        table.upsert(late.append_column("v", pa.array([f"late {number}"] * 100)))
        table.compact(minor=True)
    scanned, narrow = table.to_df(), table.to_df(columns=["at"])
    assert all(len(file_slice.row_files) > 1 for file_slice in table.opened.view.file_slices)
    assert plan_of(scanned).count("FileScan") == 2
    assert plan_of(narrow).count("FileScan") == 1, "a second scan would take longer than it saves"
    tasks = scanned.where("v NOT LIKE 'late%'").groupBy(F.spark_partition_id()).count().collect()
    assert sorted(rows for _, rows in tasks if rows > 40_000) == pytest.approx([100_000, 100_000], rel=0.1)
    assert scanned.select(F.count("v"), F.sum("at")).collect() == [(200_000, 100 + 200)]
    twice = scanned.join(table.to_df(filter="at = 2"), "id").select(F.count_if(scanned["at"] == 2), F.count("*"))
    assert twice.collect() == [(100, 100)]


@pytest.mark.long
def test_a_key_touches_the_files_of_its_bucket(spark: SparkSession, tmp_path: Path) -> None:
    table, rows = played(spark, tmp_path / "t")
    found = table.to_df(filter="id = 21")
    assert collected(found) == [rows[21]]
    (file_slice,) = [
        file_slice
        for file_slice in table.opened.view.file_slices
        if file_slice.bucket_id.bucket == bucket_of(spark, 21)
    ]
    assert file_slice.base is not None
    assert file_slice.minor is not None
    names = {file_slice.base.add.path, *(winner.path for winner in file_slice.minor.winners)}
    assert {name.split("/t/")[1] for name in found.inputFiles()} == names
    assert len(table.to_df().inputFiles()) > len(names)


@pytest.mark.parametrize("minor", [False, True])
def test_a_look_up_decodes_pages_and_not_row_groups(spark: SparkSession, tmp_path: Path, minor: bool) -> None:
    """Files that compaction wrote say which keys a page holds: Spark's scan gives a fraction of the one row group."""
    settings = Settings(row_group_rows=300_000)
    table = LakeTable.create(
        tmp_path / "t", "id BIGINT, v BIGINT", key=["id"], buckets=1, spark=spark, settings=settings
    )
    ids = pa.array(range(300_000), pa.int64())
    for _ in range(2):
        table.upsert(pa.table({"id": ids, "v": ids}))
        table.compact(minor=minor)
    found = table.to_df(filter="id = 299999")
    assert collected(found) == [(299_999, 299_999)]
    (scan,) = [leaf for leaf in _leaves(found) if leaf.metrics().contains("numOutputRows")]
    # A page of the base file, of at most 1 MiB, and one of the winners: the second round replaced every row.
    assert 0 < scan.metrics().apply("numOutputRows").value() < 300_000


def test_pages_of_a_bulk_load_hold_whole_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads batches of 4,096 rows. Without our setting parquet-mr ends a page after 20,000."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"], buckets=1, spark=spark)
    assert table.upsert(spark.range(100_000)).mode == "load"
    for key, page in {0: 32_768, 40_000: 32_768, 99_999: 100_000 - 3 * 32_768}.items():
        found = table.to_df(filter=f"id = {key}")
        assert collected(found) == [(key,)]
        (scan,) = [leaf for leaf in _leaves(found) if leaf.metrics().contains("numOutputRows")]
        assert scan.metrics().apply("numOutputRows").value() == page


@pytest.mark.long
def test_pages_are_left_out_by_bounds_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """Every column counts up with the rows, through at least three pages. NaN, one a page, is above every number."""
    count = 300_000
    ids = np.arange(count)
    number = pa.array(ids)
    floats = ids.astype(np.float64)
    floats[[7, 150_007, 299_007]] = np.nan
    columns = {
        "id": number,
        "d": number.cast(pa.decimal128(25, 2)),
        "day": pa.array(ids // 100, pa.int32()).cast(pa.date32()),
        "at": pa.array(ids * 1_000_000).cast(pa.timestamp("us", "UTC")),
        "s": pa.array([f"{i:06}" for i in ids]),
        "b": pa.array([f"{i:06}".encode() for i in ids]),
        "late": pc.if_else(pc.greater_equal(number, 200_000), number, None),
        "f": pa.array(floats),
    }
    table = LakeTable.create(tmp_path / "t", pa.table(columns).schema, key=["id"], buckets=1, spark=spark)
    for _ in range(2):
        table.upsert(pa.table(columns))
    table.compact()
    few = list(range(250_000, 250_003))
    for condition, expected in {
        "id IN (250000, 250001, 250002)": few,
        "d BETWEEN 250000 AND 250002.99": few,
        "day = DATE'1970-01-01' + 2500 AND id < 250003": few,
        "at BETWEEN timestamp_seconds(250000) AND timestamp_seconds(250002)": few,
        "s BETWEEN '250000' AND '250002'": few,
        "b BETWEEN X'323530303030' AND X'323530303032'": few,
        "late BETWEEN 250000 AND 250002": few,
        "late IS NULL AND id BETWEEN 199999 AND 250000": [199_999],
        "f > 299998": [7, 150_007, 299_007, 299_999],
        "f BETWEEN 250000 AND 250002": few,
    }.items():
        found = table.to_df(columns=["id"], filter=condition)
        assert (condition, [row for (row,) in collected(found)]) == (condition, expected)


def _leaves(frame: DataFrame) -> list[Any]:
    plan = frame._jdf.queryExecution().executedPlan()
    if "Adaptive" in plan.nodeName():  # as it is with a subquery
        plan = plan.executedPlan().plan()
    leaves = plan.collectLeaves()
    return [leaves.apply(i) for i in range(leaves.size())]


@pytest.mark.long
def test_columns_with_the_names_of_spark_metadata(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id BIGINT, `_metadata` STRING, row_index INT, `a.b` INT"
    table = LakeTable.create(tmp_path / "t", ddl, key=["id"], spark=spark)
    table.upsert(spark.createDataFrame([(i, f"m{i}", i, i) for i in range(20)], ddl))
    table.upsert(spark.createDataFrame([(3, "new", -1, -2)], ddl))
    table.compact(minor=True)
    expected = sorted([(i, f"m{i}", i, i) for i in range(20) if i != 3] + [(3, "new", -1, -2)])
    assert "MapInArrow" not in plan_of(table.to_df())
    assert collected(table.to_df()) == expected
    assert collected(table.to_df(columns=["_metadata", "id"], filter="row_index < 0")) == [("new", 3)]


@pytest.mark.long
def test_a_condition_comes_before_the_bitmaps_where_it_cannot_fail(spark: SparkSession, tmp_path: Path) -> None:
    """Superseded rows are none of the table's: no filter may fail on them."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT, n BIGINT", key=["id"], spark=spark)
    highest = 2**63 - 1
    table.upsert(spark.createDataFrame([(i, highest) for i in range(20)], "id BIGINT, n BIGINT"))
    table.upsert(spark.createDataFrame([(i, i) for i in range(20)], "id BIGINT, n BIGINT"))
    table.compact(minor=True)

    def filters(condition: str) -> list[str]:
        plan = plan_of(table.to_df(filter=condition))
        return [line for line in plan.splitlines() if "Filter (" in line and "shiftright" in line]

    (first,) = filters("n >= 5")
    assert 0 < first.index(">= 5") < first.index("shiftright")
    assert first.count(">= 5") == 1
    (last,) = filters("n + 1 > 5")
    assert last.index("shiftright") < last.index("> 5")
    assert collected(table.to_df(filter="n >= 5")) == [(i, i) for i in range(5, 20)]
    assert collected(table.to_df(filter="n + 1 > 5")) == [(i, i) for i in range(5, 20)]
    assert collected(table.to_df(columns=["n"], filter="id = 7 OR n < 2")) == [(0,), (1,), (7,)]


def listing_of(spark: SparkSession, frame: DataFrame) -> int:
    """Which object of Spark's holds the files that the frame's scan reads."""
    scan = frame._jdf.queryExecution().optimizedPlan().collectLeaves().apply(0)
    jvm: Any = spark._jvm
    return int(jvm.System.identityHashCode(scan.relation().location()))


@pytest.mark.long
@pytest.mark.parametrize("minor", [True, False])
def test_scans_of_the_same_files_are_listed_once(spark: SparkSession, tmp_path: Path, minor: bool) -> None:
    """They are frames of their own all the same, which can be joined."""
    table, rows = played(spark, tmp_path / "t")
    if not minor:
        table.compact()
    first, second = table.to_df(), table.to_df(columns=["id", "v"])
    assert listing_of(spark, first) == listing_of(spark, second)
    joined = first.join(second, (first["id"] == second["id"]) & (first["at"] > 0))
    expected = sorted((*row, row[0], row[2]) for row in rows.values() if row[1] > 0)
    assert collected(joined) == expected
    other = spark.newSession()
    assert collected(LakeTable.open(table.url, spark=other).to_df()) == sorted(rows.values())
    table.upsert(frame(spark, {1: (1, 99, "later")}))
    table.compact(minor=minor)
    assert collected(table.to_df()) == sorted((rows | {1: (1, 99, "later")}).values())
    assert listing_of(spark, table.to_df()) != listing_of(spark, first)


def bucket_of(spark: SparkSession, key: int) -> int:
    row = spark.range(1).select(F.pmod(F.xxhash64(F.lit(key).cast("bigint")), F.lit(4))).first()
    assert row is not None
    return int(row[0])
