"""Times without a zone in options of ``format("lakemerge")`` are in the zone of the session, which only tasks know."""

from __future__ import annotations

import datetime as dt
import pickle
import zoneinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from lakemerge import InputError, LakeTable
from lakemerge.datasource import instants
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.errors import VersionNotFoundError

FIRST = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0) + dt.timedelta(days=1)
HOURS = 24


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeTable:
    """A commit each hour, whose row says its version."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT, v INT", key=["id"], buckets=1)
    for number in range(1, HOURS):
        now_ms = int((FIRST + dt.timedelta(hours=number)).timestamp() * 1000)
        monkeypatch.setattr(table.opened.handle.log, "_clock_ms", lambda now_ms=now_ms: now_ms)
        table.upsert(pa.table({"id": [1], "v": pa.array([number], pa.int32())}))
    return table


def spelled(instant: dt.datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(" ")


NOON = FIRST + dt.timedelta(hours=12, minutes=10)


class Context:
    def __init__(self, zone: str | None) -> None:
        self.zone = zone

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.zone if name == "spark.sql.session.timeZone" else None


def read(table: LakeTable, zone: str | None, monkeypatch: pytest.MonkeyPatch, **options: str) -> list[int]:
    """What a load with the options shows in a session of that zone."""
    source: Any = LakeMergeDataSource(CaseInsensitiveDict({"path": table.url.removeprefix("file://"), **options}))
    assert source.schema() == "`id` BIGINT, `v` INT"
    source = pickle.loads(pickle.dumps(source))
    reader = source.reader(StructType().add("id", "long").add("v", "integer"))
    planned = list(reader.partitions())
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context(zone)))
    return [value for part in planned for batch in reader.read(part) for value in batch["v"].to_pylist()]


ZONES = ["UTC", "+05:30", "-03:00:30", "GMT+2", "America/New_York", "Asia/Kathmandu", "Z", "-0800"]


@pytest.mark.parametrize("option", ["timestampAsOf", "timestamp"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_time_is_in_the_zone_of_the_session(
    zone: str, option: str, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = {"Z": 0, "UTC": 0, "+05:30": 5.5, "-03:00:30": -3 - 30 / 3600, "GMT+2": 2, "-0800": -8}
    offset = dt.timedelta(hours=spans[zone]) if zone in spans else NOON.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset()
    assert offset is not None
    for hour in (12, 14):
        instant = FIRST + dt.timedelta(hours=hour, minutes=10)
        text = (instant + offset).replace(tzinfo=None).isoformat(" ")
        assert read(table, zone, monkeypatch, **{option: text}) == [hour]


def test_a_time_with_a_zone_means_the_same_in_each_session(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for zone in ("UTC", "America/New_York"):
        assert read(table, zone, monkeypatch, timestampAsOf=NOON.isoformat()) == [12]


def test_a_time_outside_history_is_an_error(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VersionNotFoundError, match="no version is known for timestampAsOf"):
        read(table, "-05:30", monkeypatch, timestampAsOf=spelled(FIRST + dt.timedelta(hours=HOURS)))
    with pytest.raises(VersionNotFoundError):
        read(table, "UTC", monkeypatch, timestampAsOf="1999-01-01")


def test_too_many_versions_and_other_schemas_are_refused(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instants, "_MOST_VERSIONS", 5)
    with pytest.raises(InputError, match=r"has no time zone.*write the zone, such as '[-0-9T:]+\+00:00'"):
        read(table, "UTC", monkeypatch, timestampAsOf=spelled(NOON))
    monkeypatch.undo()
    table.alter(add_columns="w INT")
    with pytest.raises(InputError, match="versions of different schemas"):
        read(table, "UTC", monkeypatch, timestampAsOf=spelled(NOON))


def test_a_feed_needs_a_zone_where_zones_differ(table: LakeTable) -> None:
    def source(text: str) -> Any:
        options = {"path": table.url.removeprefix("file://"), "readChangeFeed": "true", "startingTimestamp": text}
        return LakeMergeDataSource(CaseInsensitiveDict(options))

    with pytest.raises(InputError, match=r"startingTimestamp '.*' has no time zone"):
        source(spelled(NOON)).schema()
    assert source("1999-01-01").schema() == source(NOON.isoformat()).schema()
