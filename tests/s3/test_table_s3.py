"""A whole table on an S3 server: the same answers as anywhere, through Arrow and through Spark."""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.storage import open_store
from lakemerge.testing.counting import CountingStore
from tests.s3.servers import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, name STRING, ts BIGINT"


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def create(url: str, options: Mapping[str, Any], **more: Any) -> LakeTable:
    return LakeTable.create(url, SCHEMA, key=["id"], ordering=["ts"], buckets=2, storage_options=options, **more)


def test_a_table_lives_on_s3(endpoint: Endpoint, place: str) -> None:
    url = f"{place}/some/table"
    table = create(url, endpoint.options, properties={"delta.checkpointInterval": "3"})
    assert table.upsert(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "ts": [5, 5, 5]})).mode == "load"
    assert table.upsert(pa.table({"id": [1, 2, 4], "name": ["late", "new", "d"], "ts": [4, 6, 1]})).mode == "append"
    table.delete(pa.table({"id": [3], "ts": [5]}))
    expected = [(1, "a", 5), (2, "new", 6), (4, "d", 1)]
    assert rows_of(table.to_arrow()) == expected
    dirty_version = table.version
    assert table.compact().file_slices == 2
    again = LakeTable.open(url.replace("s3:", "s3a:"), storage_options=endpoint.options)
    assert rows_of(again.to_arrow()) == expected
    again.upsert(pa.table({"id": [3], "name": ["late"], "ts": [4]}))
    assert rows_of(again.to_arrow()) == expected
    old = LakeTable.open(url, version=dirty_version - 1, storage_options=endpoint.options)
    assert rows_of(old.to_arrow()) == [(1, "a", 5), (2, "new", 6), (3, "c", 5), (4, "d", 1)]


def test_an_upsert_asks_four_times(endpoint: Endpoint, place: str) -> None:
    """The listed token tells that the own commit is the same file, so nothing is read back."""
    url = f"{place}/requests"
    create(url, endpoint.options).upsert(pa.table({"id": [1], "name": ["a"], "ts": [1]}))
    store = CountingStore(open_store(url, endpoint.options))
    handle = replace(
        LakeTable.open(url, storage_options=endpoint.options).opened.handle, store=store, log=DeltaLog(store)
    )
    table = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)
    for number in (2, 3):
        store.reset()
        table.upsert(pa.table({"id": [1], "name": ["b"], "ts": [number]}))
        asked = dict(store.counts().calls)
        assert asked.pop("write") > 0, "parts of the log file, which the client sends in one request"
        assert asked == {"list": 2, "open_output": 1, "put_if_absent": 1}


def test_writers_at_once_all_land(endpoint: Endpoint, place: str) -> None:
    url = f"{place}/race"
    create(url, endpoint.options).upsert(pa.table({"id": [0], "name": ["first"], "ts": [0]}))

    def write(writer: int) -> None:
        table = LakeTable.open(url, storage_options=endpoint.options)
        for number in range(3):
            table.upsert(pa.table({"id": [1 + writer * 10 + number], "name": [f"w{writer}"], "ts": [number]}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    expected = {0} | {1 + writer * 10 + number for writer in range(4) for number in range(3)}
    table = LakeTable.open(url, storage_options=endpoint.options)
    assert set(table.to_arrow(columns=["id"]).column("id").to_pylist()) == expected
    assert sum(commit.operation == "UPSERT" for commit in table.history()) == 13


@pytest.mark.long
def test_spark_works_through_python_where_it_has_no_s3(endpoint: Endpoint, place: str, spark: SparkSession) -> None:
    table = create(f"{place}/spark", endpoint.options, spark=spark, settings=Settings(threads=2))
    first = spark.range(0, 100).selectExpr("id", "'a' AS name", "5L AS ts").repartition(2)
    assert table.upsert(first).mode == "load"
    table.upsert(spark.range(50, 150).selectExpr("id", "'b' AS name", "IF(id % 2 = 0, 6L, 4L) AS ts"))
    table.delete(spark.range(0, 10).selectExpr("id"))
    expected = dict.fromkeys(range(10, 100), "a")
    expected |= {key: "b" for key in range(50, 150) if key % 2 == 0 or key >= 100}
    assert {row.id: row.name for row in table.to_df().collect()} == expected
    table.compact()
    assert {row.id: row.name for row in table.to_df(filter="id >= 0").collect()} == expected
    assert table.to_df(columns=["name"], filter="id = 52").collect()[0].name == "b"
    plan = table.to_df()._jdf.queryExecution().executedPlan().toString()
    assert ("InArrow" in plan, "FileScan" in plan) == (True, False)
    why = "Spark has no S3A, which comes with org.apache.hadoop:hadoop-aws on its class path"
    assert table.explain_read().through_arrow == why
    assert why in str(table.explain_read())


def test_vacuum_and_restore_on_s3(endpoint: Endpoint, place: str) -> None:
    url = f"{place}/kept"
    table = create(url, endpoint.options)
    table.upsert(pa.table({"id": [1, 2], "name": ["a", "b"], "ts": [1, 1]}))
    table.savepoint("first")
    for number in range(3):
        table.upsert(pa.table({"id": [number], "name": ["x"], "ts": [number + 2]}))
        table.compact()
    expected = [(0, "x", 2), (1, "x", 3), (2, "x", 4)]
    time.sleep(1.1)  # the server tells the time of an object in whole seconds, of a listed one more precisely
    told = table.vacuum(retention=dt.timedelta(0), enforce_retention=False)
    assert told.files.keys() >= {"base", "log"}
    done = table.vacuum(retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    assert (done.paths, done.oldest_version) == (told.paths, told.oldest_version)
    assert rows_of(LakeTable.open(url, storage_options=endpoint.options).to_arrow()) == expected
    table.restore(savepoint="first")
    assert rows_of(table.to_arrow()) == [(1, "a", 1), (2, "b", 1)]
