"""What filters compute is what Spark computes: values, types, and the rows on which there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemerge import LakeTable
from lakemerge.errors import FilterError
from lakemerge.schema.schema import to_ddl
from tests.spark.read.computed import Computed, compute, differences, spark_fails
from tests.spark.read.expressions import EXPRESSIONS, ROWS, SCHEMA
from tests.spark.read.generated import expression

TOGETHER = 400
"""Expressions a job: what a job costs is mostly that it is one."""


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, to_ddl(SCHEMA)).coalesce(1)


@pytest.fixture(scope="module")
def found() -> list[Computed]:
    return [compute(sql, ROWS) for sql in EXPRESSIONS]


def differing(frame: DataFrame, found: Sequence[Computed]) -> list[str]:
    parts = [found[start : start + TOGETHER] for start in range(0, len(found), TOGETHER)]
    return [line for part in parts for line in differences(frame, part)]


def test_values_and_types_are_sparks(frame: DataFrame, found: list[Computed]) -> None:
    assert differing(frame, found) == []
    assert sum(len(one.rows) for one in found) > 8 * len(found)


def test_what_is_an_error_here_is_one_to_spark(frame: DataFrame, found: list[Computed]) -> None:
    failing = [one for one in found if one.errors]
    assert len(failing) > 150
    asked = failing[:: len(failing) // 24]
    assert [one.sql for one in asked if not spark_fails(frame, one, max(one.errors))] == []


@pytest.mark.long
def test_generated_compositions(frame: DataFrame) -> None:
    """Errors are not asked for: Spark leaves out what its optimizer finds to be of no use."""
    random = Random(20)
    made = [compute(expression(random), ROWS) for _ in range(150)]
    assert differing(frame, made) == []


DELETED = [
    "j <> 0 AND i / j > 1", "upper(s) LIKE '%AB%' OR length(u) = 0", "CASE WHEN b THEN f ELSE k END > 1",
    "year(at) = 1969 AND try_cast(num AS DOUBLE) < 0",
    "m['a'] = 1 OR array_contains(ls, 'x') OR li[if(id = 3, 1, NULL)] = 7",
]  # fmt: skip
FAILING = ["10 / i > 1", "CAST(num AS INT) > 1", "li[0] > 0"]


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> tuple[LakeTable, LakeTable]:
    """The same rows, to be deleted by Arrow and by Spark."""
    made = [LakeTable.create(tmp_path / name, SCHEMA, key=["id"], buckets=2) for name in ("arrow", "spark")]
    for table in made:
        table.upsert(ROWS.slice(0, 5))
        table.compact()
        table.upsert(ROWS.slice(3))
    return made[0], LakeTable.open(tmp_path / "spark", spark=spark)


def test_deletes_on_spark_and_without_take_the_same_rows(tables: tuple[LakeTable, LakeTable]) -> None:
    for number, condition in enumerate(DELETED):
        if number % 2:
            tables[1].compact()
        left = []
        for table in tables:
            table.delete_where(condition)
            left.append(set(table.to_arrow(columns=["id"])["id"].to_pylist()))
            table.upsert(ROWS)
        assert left[0] == left[1], condition
        assert 0 < len(left[0]) < ROWS.num_rows, condition


@pytest.mark.parametrize("compacted", [False, True], ids=["judged in tasks", "judged by Spark"])
def test_deletes_that_cannot_be_judged_commit_nothing(tables: tuple[LakeTable, LakeTable], *, compacted: bool) -> None:
    on_arrow, on_spark = tables
    if compacted:
        on_spark.compact()
    versions = on_arrow.version, on_spark.version
    for condition in FAILING:
        with pytest.raises(FilterError, match="the filter cannot be judged"):
            on_arrow.delete_where(condition)
        with pytest.raises(FilterError, match="the filter cannot be judged"):
            on_spark.delete_where(condition)
    assert (on_arrow.version, on_spark.version) == versions


@pytest.mark.parametrize(
    ("setting", "value", "condition"),
    [
        ("spark.sql.ansi.enabled", "false", "10 / i > 1 OR CAST(num AS INT) = 12 OR t * h > 0"),
        ("spark.sql.session.timeZone", "America/New_York", "hour(at) = 18 OR CAST(til AS DATE) < '0001-01-02'"),
    ],
)
def test_reads_in_other_sessions_mean_what_these_mean(
    tables: tuple[LakeTable, LakeTable], spark: SparkSession, setting: str, value: str, condition: str
) -> None:
    """Without ANSI mode such rows are null, and elsewhere clocks show other hours."""
    before = str(spark.conf.get(setting))
    frame = spark.createDataFrame(ROWS, to_ddl(SCHEMA))
    spark.conf.set(setting, value)
    try:
        theirs = {row[0] for row in frame.where(condition).select("id").collect()}
        assert {row[0] for row in tables[1].to_df(columns=["id"], filter=condition).collect()} == theirs
    finally:
        spark.conf.set(setting, before)
    assert 0 < len(theirs) < ROWS.num_rows
