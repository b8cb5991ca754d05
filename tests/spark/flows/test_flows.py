"""Flows on Spark: the same cases as without it, and times in whatever zones the process and the session have."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from lakemerge import FrameError, LakeTable
from lakemerge.flows import auto_cdc, auto_cdc_from_snapshot, history, history_df
from tests.unit.flows import cases as flow_cases


@pytest.fixture
def zones(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """The process and the session in two zones, of which one is that of the parameter and the other is not."""
    before, process = spark.conf.get("spark.sql.session.timeZone"), os.environ.get("TZ")
    other = "Asia/Tokyo" if request.param == "UTC" else "UTC"
    os.environ["TZ"] = request.param
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", other)
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))
    os.environ.pop("TZ") if process is None else os.environ.update(TZ=process)
    time.tzset()


def on_spark(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame with the table's types. Columns of nulls have none on Spark."""
    frame = spark.createDataFrame(table.select([f.name for f in table.schema if not pa.types.is_null(f.type)]))
    nulls = {f.name: functions.lit(None) for f in table.schema if pa.types.is_null(f.type)}
    return frame.withColumns(nulls) if nulls else frame


@pytest.mark.parametrize("name", flow_cases.CASES)
def test_cases(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """The first snapshot is one of Spark's, too, where there are many types."""
    frame = partial(on_spark, spark)
    first = frame if "many kinds" in name else lambda table: table
    flow_cases.run_case(tmp_path, flow_cases.CASES[name], first, frame)


@pytest.mark.parametrize("name", flow_cases.REFUSED)
def test_refused(name: str, spark: SparkSession, tmp_path: Path) -> None:
    flow_cases.run_refused(tmp_path, name, partial(on_spark, spark), scd_types=[2])


def test_histories_with_dots_in_names(spark: SparkSession, tmp_path: Path) -> None:
    """Events on Spark: the sequence, a key and a column have odd names, and a column has maps."""
    rows = pa.table(
        {
            "the.id": [1, 1, 1],
            "at.nr": [1, 2, 3],
            "op.kind": ["U", "U", "D"],
            "m": pa.array([[("a", 1)], [("a", 2)], None], flow_cases.MAP),
        }
    )
    for part in (rows.slice(0, 2), rows.slice(2)):
        auto_cdc(
            source=spark.createDataFrame(part), target=tmp_path / "t", keys="the.id", sequence_by="at.nr",
            apply_as_deletes="`op.kind` = 'D'", except_column_list=["op.kind", "at.nr"], stored_as_scd_type=2,
        )  # fmt: skip
    found = history_df(LakeTable.open(tmp_path / "t", spark=spark)).toArrow().to_pylist()
    assert sorted((tuple(row.values()) for row in found), key=str) == [
        (1, [("a", 1)], 1, 2), (1, [("a", 2)], 2, 3),
    ]  # fmt: skip


def test_a_sequence_that_is_null_is_an_error_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.createDataFrame([(1, None)], "id BIGINT, nr BIGINT")
    with pytest.raises(FrameError, match=r"sequence column 'nr' is null in an event; each event needs its place$"):
        auto_cdc(source=source, target=tmp_path / "t", keys="id", sequence_by="nr")


EARLIER = [(7, "old", "U", "08:00:00"), (8, "new", "U", "15:00:00")]
EVENTS = [
    (1, "first", "U", "09:00:00"),
    (2, "second", "U", "11:59:59"),
    (0, None, "T", "12:00:00"),
    (3, "third", "U", "12:00:01"),
]
LATE = [(4, "late", "U", "11:00:00")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("zones", "kind"),
    [("UTC", "TIMESTAMP"), ("America/New_York", "TIMESTAMP"), ("America/New_York", "TIMESTAMP_NTZ")],
    indirect=["zones"],
)
def test_a_truncate_is_at_its_instant(kind: str, zones: None, spark: SparkSession, tmp_path: Path) -> None:
    """What is older than the truncate goes, and what is newer stays, whatever the zones are."""
    zone = "Z" if kind == "TIMESTAMP" else ""
    for rows in (EARLIER, EVENTS, LATE):
        frame = spark.createDataFrame(rows, "id BIGINT, note STRING, op STRING, time STRING")
        source = frame.selectExpr("id", "note", "op", f"CAST('2025-02-03 ' || time || '{zone}' AS {kind}) AS at")
        auto_cdc(
            source=source, target=tmp_path / "t", keys=["id"], sequence_by="AT", apply_as_truncates="op = 'T'",
            except_column_list=["op"],
        )  # fmt: skip
    assert LakeTable.open(tmp_path / "t").to_arrow(columns=["id"]).sort_by("id")["id"].to_pylist() == [3, 8]


@pytest.mark.parametrize("zones", ["America/New_York"], indirect=True)
def test_a_snapshot_has_the_time_of_its_version(zones: None, spark: SparkSession, tmp_path: Path) -> None:
    """In whatever zones the process and the session are."""
    noon = dt.datetime(2025, 2, 3, 12, tzinfo=dt.UTC)
    asked: list[Any] = []

    def source(last: Any) -> Any:
        asked.append(last)
        return None if last else (spark.sql("SELECT 1 AS id, 2 AS v"), noon)

    auto_cdc_from_snapshot(source=source, target=tmp_path / "t", keys="id", stored_as_scd_type=2)
    assert history(LakeTable.open(tmp_path / "t"))["__START_AT"].to_pylist() == [noon]
    assert asked == [None, noon]
