"""Small logs are premerged: then Spark's own reader reads what is stored, and the rows are right.

Expected rows are kept in a dictionary; which operators run, and how many jobs, Spark itself tells.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemerge import LakeTable, ReadPolicy, Settings, TableDamagedError
from tests.spark.compaction.test_minor import collected, plan_of

pytestmark = pytest.mark.usefixtures("by_unions")

DDL = "id BIGINT, at INT, v STRING, n BIGINT"
Rows = dict[int, tuple[Any, ...]]
WHILE_READING = Settings(reads=ReadPolicy(premerge=False))
POLICY = ReadPolicy(premerge_from_bytes=0, premerge_stored_per_record=2)
"""Tables of a few rows are premerged, too."""
PREMERGING = Settings(reads=POLICY, driver_bytes=1)
"""In jobs, so they can be counted."""
ON_DRIVER = Settings(reads=POLICY)


def frame(spark: SparkSession, rows: Rows) -> DataFrame:
    return spark.createDataFrame(list(rows.values()), DDL)


def played(
    spark: SparkSession, path: Path, *, minor: bool = False, settings: Settings = PREMERGING
) -> tuple[LakeTable, Rows]:
    """200 rows in four buckets; then twice updates, late records, new keys and deletes, the first perhaps compacted."""
    table = LakeTable.create(path, DDL, key=["id"], ordering=["at"], buckets=4, settings=settings, spark=spark)
    rows: Rows = {i: (i, 10, f"v{i}", i) for i in range(200)}
    assert table.upsert(frame(spark, rows)).mode == "load"
    for number in (1, 2):
        changes: Rows = {i: (i, 10 + number, None if i % 2 else f"r{number}", -i) for i in range(number * 5, 230, 17)}
        late: Rows = {i: (i, 5, "late", 0) for i in range(number, 40, 9) if i not in changes}
        table.upsert(frame(spark, changes | late))
        rows |= changes
        gone = [number, number + 50]
        table.delete(spark.createDataFrame([(i, 99) for i in gone], "id BIGINT, at INT"))
        rows = {i: row for i, row in rows.items() if i not in gone}
        if minor and number == 1:
            assert table.compact(minor=True).file_slices == 4
    return table, rows


@pytest.mark.parametrize("minor", [False, True])
def test_small_logs_are_premerged(spark: SparkSession, tmp_path: Path, minor: bool) -> None:
    table, rows = played(spark, tmp_path / "t", minor=minor)
    plan = table.explain_read()
    assert (plan.clean, plan.minor, plan.first, plan.merged) == (0, 0, 4, 0)
    assert "4 premerged" in str(plan)
    tree = plan_of(table.to_df())
    assert tree.count("FileScan parquet") == 2, "base and winner files are read in one scan, logs in another"
    assert tree.count("MapInArrow") == 0, "no row passes through Python"
    assert collected(table.to_df()) == sorted(rows.values())
    assert collected(table.to_df(columns=["n", "id"])) == sorted((row[3], row[0]) for row in rows.values())
    assert table.to_df().count() == table.to_df(columns=[]).count() == len(rows)
    for condition, keep in {
        "at >= 11": lambda row: row[1] >= 11,
        "v IS NULL": lambda row: row[2] is None,
        "v = 'late' OR n < -100": lambda row: row[2] == "late" or row[3] < -100,
    }.items():
        expected = sorted(filter(keep, rows.values()))
        assert collected(table.to_df(filter=condition)) == expected, condition
        assert collected(table.to_df().where(condition)) == expected, condition
        assert collected(table.to_df(columns=["id", "at"], filter=condition)) == [row[:2] for row in expected]
    other = LakeTable.open(table.url, spark=spark, settings=WHILE_READING)
    assert other.explain_read().first == 0
    assert collected(other.to_df()) == sorted(rows.values())


@pytest.mark.long
def test_what_was_merged_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """By version; a frame keeps its version, and two of them can be joined."""
    table, rows = played(spark, tmp_path / "t")
    first = table.to_df()
    assert jobs_of(spark, "again", table.to_df, tmp_path) == 0
    assert jobs_of(spark, "fewer", lambda: table.to_df(columns=["id"]), tmp_path) == 0
    second = table.to_df()
    joined = first.join(second, (first["id"] == second["id"]) & (first["at"] > 10))
    assert collected(joined) == sorted((*row, *row) for row in rows.values() if row[1] > 10)
    assert collected(first.union(second)) == sorted([*rows.values(), *rows.values()])
    table.upsert(frame(spark, {7: (7, 50, "newest", 0)}))
    assert collected(first) == sorted(rows.values())
    assert collected(table.to_df()) == sorted((rows | {7: (7, 50, "newest", 0)}).values())
    elsewhere = LakeTable.open(table.url, spark=spark.newSession(), settings=PREMERGING)
    assert collected(elsewhere.to_df(columns=["id"])) == [(i,) for i in sorted(rows)]


def jobs_of(spark: SparkSession, name: str, action: Any, path: Path) -> int:
    """How many jobs of Spark's it takes."""
    group = f"{path}-{name}"
    spark.sparkContext.setJobGroup(group, name)
    try:
        action()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_what_is_merged_while_reading(spark: SparkSession, tmp_path: Path) -> None:
    """Reads of single keys, logs that are large beside the stored rows, and reads of few columns."""
    table, rows = played(spark, tmp_path / "t")
    policy = replace(POLICY, premerge_from_bytes=table.detail().base_bytes)
    table = LakeTable.open(table.url, spark=spark, settings=replace(PREMERGING, reads=policy))
    assert table.explain_read().first == 4
    assert table.explain_read(columns=["id", "at", "v"]).first == 0
    table.to_df()
    assert table.explain_read(columns=["id", "at", "v"]).first == 4, "another read has merged them"
    assert jobs_of(spark, "kept", lambda: table.to_df(columns=["id", "at", "v"]), tmp_path) == 0
    table = LakeTable.open(table.url, spark=spark, settings=PREMERGING)
    assert table.explain_read(filter="id = 21").first == 0
    assert collected(table.to_df(filter="id = 22")) == [rows[22]]
    changed: Rows = {i: (i, 60, "all of them", i) for i in range(200)}
    table.upsert(frame(spark, changed))
    plan = table.explain_read()
    assert (plan.first, plan.merged) == (0, 4)
    rows = {i: row for i, row in (rows | changed).items() if i not in (1, 51, 2, 52)}
    assert collected(table.to_df()) == sorted(rows.values())


@pytest.mark.long
@pytest.mark.parametrize("settings", [PREMERGING, ON_DRIVER], ids=["tasks", "driver"])
def test_rows_that_are_no_record(spark: SparkSession, tmp_path: Path, settings: Settings) -> None:
    """Partial records make such rows in the file slices that they touch; where log files cannot be told apart all rows
    are
    sent along. The columns asked for are then what was kept."""
    table, rows = played(spark, tmp_path / "t", settings=settings)
    table.upsert(spark.createDataFrame([(8, 50, "some columns")], "id BIGINT, at INT, v STRING"))
    rows[8] = (8, 50, "some columns", rows[8][3])
    assert table.explain_read().first == 4
    plan = plan_of(table.to_df())
    assert (plan.count("FileScan parquet"), plan.count("MapInArrow")) == (2, 1)
    assert collected(table.to_df()) == sorted(rows.values())
    assert jobs_of(spark, "fewer", lambda: table.to_df(columns=["n", "id"]), tmp_path) == int(settings is PREMERGING)
    assert collected(table.to_df(columns=["n", "id"])) == sorted((row[3], row[0]) for row in rows.values())
    few = replace(settings, reads=replace(POLICY, premerge_log_files=1))
    other = LakeTable.open(table.url, spark=spark, settings=few)
    plan = plan_of(other.to_df())
    assert (plan.count("FileScan parquet"), plan.count("MapInArrow")) == (1, 1)
    assert collected(other.to_df()) == sorted(rows.values())


def test_a_packed_log(spark: SparkSession, tmp_path: Path) -> None:
    """Its records of versions that a bucket has merged are not live there."""
    table, rows = played(spark, tmp_path / "t")
    table.compact_logs()
    assert table.explain_read().first == 4
    assert collected(table.to_df()) == sorted(rows.values())
    table.upsert(frame(spark, {3: (3, 50, "newest", 1)}))
    table.compact_logs()
    assert collected(table.to_df()) == sorted((rows | {3: (3, 50, "newest", 1)}).values())


@pytest.mark.long
@pytest.mark.parametrize("settings", [PREMERGING, ON_DRIVER], ids=["tasks", "driver"])
def test_random_tables(spark: SparkSession, tmp_path: Path, settings: Settings) -> None:
    """Mergers that give back a record, and that compute a row of all of them; both ways give a plain fold's rows."""
    draw = random.Random(12)
    for merger, options in (
        ("commit-time", {}),
        ("aggregate", {"aggregates": {"n": "sum", "at": "max", "v": "last_value"}}),
    ):
        table = LakeTable.create(
            tmp_path / merger,
            DDL,
            key=["id"],
            merger=merger,
            options=options,
            buckets=2,
            settings=settings,
            spark=spark,
        )
        rows: Rows = {i: (i, 0, f"v{i}", 1) for i in range(90)}
        table.upsert(frame(spark, rows))
        for number in range(1, 5):
            changes: Rows = {
                i: (i, draw.randrange(9), f"w{number}", draw.randrange(99)) for i in draw.sample(range(120), 8)
            }
            table.upsert(frame(spark, changes))
            for i, row in changes.items():
                old = rows.get(i)
                summed = merger == "aggregate" and old is not None
                rows[i] = (i, max(row[1], old[1]), row[2], row[3] + old[3]) if summed and old else row
            if draw.random() < 0.4:
                table.compact(minor=True)
            bound = draw.randrange(90)
            for opened in (table, LakeTable.open(table.url, spark=spark, settings=WHILE_READING)):
                assert collected(opened.to_df()) == sorted(rows.values())
                found = collected(opened.to_df(columns=["n", "id"], filter=f"n > {bound}"))
                assert found == sorted((row[3], row[0]) for row in rows.values() if row[3] > bound)


def test_a_damaged_log_is_named(spark: SparkSession, tmp_path: Path) -> None:
    table, _ = played(spark, tmp_path / "t")
    block = table.opened.view.file_slices[0].blocks[0]
    Path(table.url, block.file.path).unlink()
    with pytest.raises(TableDamagedError, match=block.file.path.rsplit("/", maxsplit=1)[-1]):
        table.to_df()
