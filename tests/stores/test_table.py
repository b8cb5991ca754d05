"""A whole table on each server: the same answers as anywhere, and as a plain-Python model says."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable, OutcomeUnknownError
from lakemerge.delta import DeltaLog
from lakemerge.storage import Store, open_store
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Fail, Fault, FaultStore
from tests.stores.servers import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, name STRING, ts BIGINT"
Rows = list[tuple[Any, ...]]


def rows_of(table: pa.Table) -> Rows:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def frame(rows: Rows) -> pa.Table:
    ids, names, times = zip(*rows, strict=True)
    return pa.table({"id": ids, "name": names, "ts": times})


def create(url: str, server: Place, **more: Any) -> LakeTable:
    properties = {"lakemerge.maintenance": "off", **more.pop("properties", {})}
    return LakeTable.create(
        url,
        SCHEMA,
        key=["id"],
        ordering=["ts"],
        buckets=2,
        storage_options=server.options,
        properties=properties,
        **more,
    )


def over(url: str, server: Place, wrap: Callable[[Store], Store]) -> LakeTable:
    """The table over another store."""
    opened = LakeTable.open(url, storage_options=server.options)
    store = wrap(open_store(url, server.options))
    handle = replace(opened.opened.handle, store=store, log=DeltaLog(store, sleep=lambda _: None))
    return LakeTable(handle, opened.opened.view.snapshot, pinned=False, spark=None)


def test_a_life(server: Place, place: str) -> None:
    url = f"{place}/lake/table"
    table = create(url, server, properties={"delta.checkpointInterval": "3"})
    states: dict[int, Rows] = {}
    model: dict[int, tuple[Any, ...]] = {}
    followed: dict[int, tuple[Any, ...]] = {}

    def upserted(rows: Rows) -> None:
        for row in rows:
            if row[0] not in model or row[2] >= model[row[0]][2]:
                model[row[0]] = row
        states[table.upsert(frame(rows)).version] = sorted(model.values())
        assert rows_of(LakeTable.open(url, storage_options=server.options).to_arrow()) == sorted(model.values())

    table.consumers.register("follower", version=0)
    upserted([(1, "a", 5), (2, "b", 5), (3, "c", 5)])
    upserted([(1, "late", 4), (2, "new", 6), (4, "d", 1)])
    table.savepoint("before")
    assert table.compact(minor=True).file_slices
    upserted([(number, f"n{number}", 7) for number in range(3, 40)])
    assert table.compact().file_slices == 2
    assert not table.opened.view.log_commits
    upserted([(5, "last", 9)])
    for version, rows in states.items():
        old = LakeTable.open(url, version=version, storage_options=server.options)
        assert rows_of(old.to_arrow()) == rows
    changes = table.changes(since=0).read_all().to_pylist()
    for change in changes:
        if change["_row_kind"] in ("+I", "+U"):
            followed[change["id"]] = (change["id"], change["name"], change["ts"])
    assert sorted(followed.values()) == sorted(model.values())
    time.sleep(1.1)  # Azure tells times in whole seconds
    table.consumers.drop("follower")
    told = table.vacuum(retention=dt.timedelta(0), enforce_retention=False)
    done = table.vacuum(retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    assert done.paths == told.paths
    assert told.files.keys() >= {"log"}
    assert LakeTable.check(url, storage_options=server.options).ok
    assert rows_of(table.to_arrow()) == sorted(model.values())
    table.restore(savepoint="before")
    assert rows_of(table.to_arrow()) == [(1, "a", 5), (2, "new", 6), (3, "c", 5), (4, "d", 1)]
    upserted_again = table.upsert(frame([(9, "after", 1)]))
    assert rows_of(LakeTable.open(url, storage_options=server.options).to_arrow())[-1] == (9, "after", 1)
    assert upserted_again.version == table.version
    assert LakeTable.check(url, storage_options=server.options).ok


def test_an_upsert_asks_at_most_five_times(server: Place, place: str) -> None:
    """A tip that was written here is read once: tokens are generations, which do not tell what is in a file, as the
    sums of S3 do."""
    url = f"{place}/requests"
    create(url, server).upsert(frame([(1, "a", 1)]))
    counting: list[CountingStore] = []

    def counted(store: Store) -> Store:
        counting.append(CountingStore(store))
        return counting[0]

    table = over(url, server, counted)
    for number in (2, 3):
        counting[0].reset()
        table.upsert(frame([(1, "b", number)]))
        asked = dict(counting[0].counts().calls)
        assert asked.pop("write") > 0
        assert asked.pop("get", 0) <= 1
        assert asked == {"list": 2, "open_output": 1, "put_if_absent": 1}


@pytest.mark.long
def test_writers_at_once_all_land(server: Place, place: str) -> None:
    url = f"{place}/race"
    create(url, server).upsert(frame([(0, "first", 0)]))

    def write(writer: int) -> None:
        table = LakeTable.open(url, storage_options=server.options)
        for number in range(3):
            table.upsert(frame([(1 + writer * 10 + number, f"w{writer}", number)]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    expected = {0} | {1 + writer * 10 + number for writer in range(4) for number in range(3)}
    table = LakeTable.open(url, storage_options=server.options)
    assert set(table.to_arrow(columns=["id"]).column("id").to_pylist()) == expected
    assert sum(commit.operation == "UPSERT" for commit in table.history()) == 13


def test_a_failure_at_each_call_leaves_a_record_once_or_not_at_all(server: Place, place: str) -> None:
    url = f"{place}/faults"
    create(url, server).upsert(frame([(0, "first", 0)]))
    lost = ConnectionResetError(104, "connection reset by peer")
    allowed: dict[int, set[int]] = {0: {1}}
    for number in range(1, 40):
        for after in (False, True):
            key = 2 * number + after
            table = over(url, server, lambda store: FaultStore(store, Fault(action=Fail(lost), at=number, after=after)))  # noqa: B023
            injected = table.opened.handle.store
            assert isinstance(injected, FaultStore)
            try:
                table.upsert(frame([(key, "x", 1)]))
                allowed[key] = {1}
            except OutcomeUnknownError:
                allowed[key] = {0, 1}
            except (LakeMergeError, OSError):
                allowed[key] = {0}
            if not injected.injected:
                break
        else:
            continue
        break
    else:
        raise AssertionError("an upsert makes more calls than that")
    ids = LakeTable.open(url, storage_options=server.options).to_arrow(columns=["id"])["id"].to_pylist()
    wrong = {key: ids.count(key) for key, counts in allowed.items() if ids.count(key) not in counts}
    assert wrong == {}
    assert LakeTable.check(url, storage_options=server.options).ok


@pytest.mark.long
def test_a_life_through_spark(server: Place, place: str, spark: SparkSession, tmp_path: Path) -> None:
    """In tasks of Python, which get the options with the task; and a stream of its changes into another table."""
    url = f"{place}/spark"
    table = create(url, server, spark=spark)
    first = spark.range(0, 100).selectExpr("id", "'a' AS name", "5L AS ts").repartition(2)
    assert table.upsert(first).mode == "load"
    table.upsert(spark.range(50, 150).selectExpr("id", "'b' AS name", "IF(id % 2 = 0, 6L, 4L) AS ts"))
    expected = dict.fromkeys(range(100), "a") | {key: "b" for key in range(50, 150) if key % 2 == 0 or key >= 100}
    assert {row.id: row.name for row in table.to_df().collect()} == expected
    table.compact()
    assert {row.id: row.name for row in table.to_df(filter="id >= 0").collect()} == expected
    assert "local folders and on S3 alone" in str(table.explain_read())
    options = {name: str(value) for name, value in server.options.items()}
    copy = create(f"{place}/copy", server)
    source = spark.readStream.format("lakemerge").options(**options).option("startingVersion", "0").load(url)
    changed = source.where("_change_type IN ('insert', 'update_postimage')").select("id", "name", "ts")
    writer = changed.writeStream.format("lakemerge").options(**options).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(copy.url)
    assert query.awaitTermination(300)
    found = LakeTable.open(copy.url, storage_options=server.options).to_arrow(columns=["id", "name"]).to_pylist()
    assert {row["id"]: row["name"] for row in found} == expected
