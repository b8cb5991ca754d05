"""The reader of a stream of changes, asked as Spark asks it, without a query around it."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import LongType, StringType, StructType

from lakemerge import InputError, LakeTable, TableReplacedError, VersionNotFoundError
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.datasource.stream_source import FeedStreamReader
from tests.unit.faults import create, frame

COLUMNS = (
    StructType().add("k", LongType()).add("o", LongType()).add("v", StringType()).add("_change_type", StringType())
)
Offset = dict[str, Any]


def reader(path: Path, **options: str) -> FeedStreamReader:
    """As a query that is started, or started again, makes it."""
    source = LakeMergeDataSource({"path": str(path), "readChangeFeed": "true", **options})
    found = source.streamReader(COLUMNS)
    assert isinstance(found, FeedStreamReader)
    return found


def rows(stream: FeedStreamReader, start: Offset, end: Offset) -> list[tuple[Any, ...]]:
    found = []
    for partition in stream.partitions(start, end):
        found += [tuple(row.values()) for batch in stream.read(partition) for row in batch.to_pylist()]
    return found


def test_spark_that_knows_no_limits(tmp_path: Path) -> None:
    """Spark 4.1 calls ``latestOffset`` without arguments. A batch is then all that is there."""
    table = create(tmp_path / "t", buckets=4)
    table.upsert(frame([(1, 1, "a"), (2, 1, "a")]))
    stream = reader(tmp_path / "t", startingVersion="1")
    table.upsert(frame([(1, 2, "b")]))
    start, end = stream.initialOffset(), stream.latestOffset()
    assert sorted(rows(stream, start, end)) == [
        (1, 1, "a", "insert"),
        (1, 1, "a", "update_preimage"),
        (1, 2, "b", "update_postimage"),
        (2, 1, "a", "insert"),
    ]
    assert stream.latestOffset() == end
    to_come = reader(tmp_path / "t", startingVersion="9")
    assert to_come.latestOffset() == to_come.initialOffset()


def limit(stream: FeedStreamReader) -> ReadLimit:
    return stream.getDefaultReadLimit()


def test_a_batch_that_is_repeated_is_the_same(tmp_path: Path) -> None:
    """Whatever was committed, compacted or set differently meanwhile."""
    table = create(tmp_path / "t", buckets=4)
    table.upsert(frame([(k, 1, "a") for k in range(30)]))
    table.upsert(frame([(k, 2, "b") for k in range(0, 30, 2)]))
    first = reader(tmp_path / "t", maxBytesPerTrigger="1", startingVersion="1")
    start, seen = first.initialOffset(), []
    while (end := first.latestOffset(start, limit(first))) != start:
        seen.append((start, end, rows(first, start, end)))
        start = end
    assert [len(batch) > 0 for _, _, batch in seen] == [True] * 8, "one file slice of four a batch, of two commits"
    table.compact()
    table.rescale(buckets=8)
    table.upsert(frame([(k, 3, "c") for k in range(30)]))
    again = reader(tmp_path / "t", maxVersionsPerTrigger="7")
    for begin, end, batch in seen:
        assert rows(again, begin, end) == batch


def test_limits_are_left_aside_where_spark_says_so(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=2)
    for number in range(4):
        table.upsert(frame([(k, number, "a") for k in range(9)]))
    stream = reader(tmp_path / "t", maxVersionsPerTrigger="1", startingVersion="1")
    start = stream.initialOffset()
    assert stream.latestOffset(start, limit(stream))["version"] == 2
    assert stream.latestOffset(start, ReadAllAvailable())["version"] == 5
    assert stream.reportLatestOffset() == stream.latestOffset(start, ReadAllAvailable())


def test_available_now_ends_where_the_table_was(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    stream = reader(tmp_path / "t")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    table.upsert(frame([(2, 1, "b")]))
    end = stream.latestOffset(start, limit(stream))
    assert rows(stream, start, end) == [(1, 1, "a", "insert")]
    assert stream.latestOffset(end, limit(stream)) == end
    later = reader(tmp_path / "t")
    assert rows(later, end, later.latestOffset(end, limit(later))) == [(2, 1, "b", "insert")]


def test_where_streams_begin_and_end(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    for number in range(1, 4):
        table.upsert(frame([(1, number, f"v{number}")]))
    times = [entry.timestamp_ms for entry in table.history()][::-1]

    def told(**options: str) -> list[Any]:
        stream = reader(tmp_path / "t", beforeImages="false", **options)
        start = stream.initialOffset()
        return [row[2] for row in rows(stream, start, stream.latestOffset(start, limit(stream)))]

    assert told() == ["v3"]
    assert told(startingVersion="0") == ["v1", "v2", "v3"]
    assert told(startingVersion="2", endingVersion="2") == ["v2"]
    assert told(startingVersion="latest") == []
    exact, after = (dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in (times[2], times[2] + 1))
    assert told(startingTimestamp=exact.isoformat()) == ["v2", "v3"]
    assert told(startingTimestamp=after.isoformat()) == ["v3"]
    assert told(startingTimestamp="1999-01-01") == ["v1", "v2", "v3"]
    for options, message in (
        ({"startingVersion": "x"}, "must be a whole number"),
        ({"startingVersion": "1", "consumer": "c"}, "a consumer has a position"),
        ({"maxVersionsPerTrigger": "0"}, "must be 1 or more"),
        ({"maxBytesPerTrigger": "much"}, "is not a size"),
        ({"schemaChanges": "guess"}, "must be one of keep, stop"),
        ({"deduplicationMode": "netChanges"}, "is for batches"),
        ({"version": "1"}, "takes no option version"),
        ({"consumer": "c"}, "there is no consumer 'c'"),
    ):
        with pytest.raises(InputError, match=message):
            told(**options)


def test_a_stream_that_a_vacuum_overtakes_says_so(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    for number in range(1, 4):
        table.upsert(frame([(1, number, f"v{number}")]))
        table.compact()
    stream = reader(tmp_path / "t", startingVersion="1")
    start = stream.initialOffset()
    end = stream.latestOffset(start, limit(stream))
    planned = stream.partitions(start, end)
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    for doing in (
        lambda: stream.latestOffset(start, limit(stream)),
        lambda: stream.partitions(start, end),
        lambda: [list(stream.read(partition)) for partition in planned],
    ):
        with pytest.raises(VersionNotFoundError, match=r"a vacuum was faster.*with a new checkpoint"):
            doing()


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("net", ["false", "true"])
def test_a_batch_that_a_vacuum_overtakes_says_so(planned: bool, net: str, tmp_path: Path) -> None:
    """Between the look at the table and the plan, and between the plan and the read."""
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    for at in range(3):
        table.upsert(frame([(1, at, f"v{at}"), (2, at, "x")]))
    mode = {"deduplicationMode": "netChanges"} if net == "true" else {}
    options = {"path": str(tmp_path / "t"), "readChangeFeed": "true", "startingVersion": "2", **mode}
    batch: Any = LakeMergeDataSource(options).reader(COLUMNS)
    parts = batch.partitions() if planned else []
    table.compact()
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)

    def read() -> None:
        for part in parts or batch.partitions():
            list(batch.read(part))

    with pytest.raises(VersionNotFoundError, match=r"a vacuum was faster.*start again from the present rows"):
        read()


def test_a_checkpoint_of_another_table(tmp_path: Path) -> None:
    create(tmp_path / "t").upsert(frame([(1, 1, "a")]))
    create(tmp_path / "u").upsert(frame([(1, 1, "a")]))
    start = reader(tmp_path / "t").initialOffset()
    stream = reader(tmp_path / "u")
    with pytest.raises(TableReplacedError, match="of another table"):
        stream.latestOffset(start, limit(stream))


def test_a_consumer_goes_on_with_the_query(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    table.consumers.register("copy", present_rows=True)
    stream = reader(tmp_path / "t", consumer="copy")
    start = stream.initialOffset()
    assert start["snapshot"] is True
    end = stream.latestOffset(start, limit(stream))
    assert rows(stream, start, end) == [(1, 1, "a", "insert")]
    stream.commit(end)
    assert table.consumers.list()[0].version == table.version
    stream.commit(start)  # of a batch that is repeated
    assert table.consumers.list()[0].version == table.version


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_size_lead_to_the_table(tmp_path: Path, seed: int) -> None:
    """Writes and services come between batches; the query is started again at any of them."""
    draw = random.Random(seed)
    table = create(tmp_path / "t", buckets=2)
    copy: dict[int, tuple[Any, ...]] = {}
    start = reader(tmp_path / "t").initialOffset()
    for number in range(14):
        _happen(table, draw, number)
        options = draw.choice([{}, {"maxBytesPerTrigger": "1"}, {"maxVersionsPerTrigger": "2"}])
        stream = reader(tmp_path / "t", **options)
        end = stream.latestOffset(start, limit(stream))
        for row in rows(stream, start, end):
            if row[3] == "delete":
                copy.pop(row[0], None)
            elif row[3] != "update_preimage":
                copy[row[0]] = row[:3]
        start = end
    last = reader(tmp_path / "t")
    for row in rows(last, start, last.latestOffset(start, limit(last))):
        if row[3] == "delete":
            copy.pop(row[0], None)
        elif row[3] != "update_preimage":
            copy[row[0]] = row[:3]
    expected = [tuple(row.values()) for row in LakeTable.open(tmp_path / "t").to_arrow().to_pylist()]
    assert sorted(copy.values()) == sorted(expected)


def _happen(table: LakeTable, draw: random.Random, number: int) -> None:
    match draw.choice(["upsert", "upsert", "delete", "full", "minor", "rescale", "savepoint", "restore"]):
        case "upsert":
            drawn = [(draw.randrange(12), draw.randrange(9), f"{number}.{i}") for i in range(draw.randrange(1, 9))]
            table.upsert(frame(drawn))
        case "delete":
            table.delete(frame([(draw.randrange(12), draw.randrange(9)) for _ in range(3)], ["k", "o"]))
        case "rescale":
            table.rescale(buckets=draw.choice([1, 2, 4]))
        case "savepoint":
            table.savepoint(f"s{number}")
        case "restore" if table.version > 1:
            table.restore(version=draw.randrange(1, table.version))
        case "full" | "minor" as kind:
            table.compact(minor=kind == "minor")
