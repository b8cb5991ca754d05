"""A host whose clock is wrong by a year runs every service once. No service of another host stops for that, and nothing
that is needed is deleted: ages are by the store's clock, and a time that is to come is reported and not trusted."""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.delta import Attempt, Txn, old_through, tip_at
from lakemerge.ingest import Archive, Bins, Files
from lakemerge.storage import LocalStore, local
from lakemerge.storage.clock import CLOCK_FILE, StoreClock, store_time_ms
from lakemerge.testing.counting import CountingStore
from tests.unit.faults import create, frame, rows_of, state_of
from tests.unit.ingest.landing import land, numbered

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
PROPERTIES = {
    "lakemerge.maintenance": "off",
    "lakemerge.compaction.ratio": "off",
    "lakemerge.compaction.afterMinutes": "1440",
    "lakemerge.minorCompaction.afterCommits": "off",
    "lakemerge.logCompaction.afterCommits": "off",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
    "delta.logRetentionDuration": "interval 2 hours",
    "delta.checkpointInterval": "4",
}


@contextmanager
def host(off_ms: int) -> Iterator[None]:
    """A host whose clock is so far ahead."""
    really_ns = time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: really_ns() + off_ms * 1_000_000)
        yield


@contextmanager
def later(hours: float) -> Iterator[None]:
    """So many hours later, by the store's clock and by that of a host that is right."""
    really, off_ms = local._file_stat, int(hours * HOUR_MS)

    def shown(path: str, found: os.stat_result) -> object:
        stat = really(path, found)
        return type(stat)(path, stat.size_bytes, stat.modified_ms + off_ms, stat.token) if path == CLOCK_FILE else stat

    with pytest.MonkeyPatch.context() as patch, host(off_ms):
        patch.setattr(local, "_file_stat", shown)
        yield


def opened(path: Path) -> LakeTable:
    """As another process would have it: nothing that this one knows of clocks."""
    return LakeTable.open(path)


def feed(path: Path, landing: Path) -> object:
    files = Files(landing, format="json")
    archive = Archive(folder=str(landing.parent / "archive"), max_age="3h")
    return opened(path).ingest("feed", files, bins=Bins(min_records=1000, max_age="1h"), after=archive).run()


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS], ids=["a year ahead", "a year behind"])
def test_every_service_of_a_host_with_a_wrong_clock(
    off_ms: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, landing = tmp_path / "t", tmp_path / "landing"
    land(landing, "first.json", numbered(100, 101))
    create(path, properties=PROPERTIES)
    opened(path).ingest(
        "archived", Files(landing, format="json"), after=Archive(folder=str(tmp_path / "archive"))
    ).run()
    for number in range(4):
        opened(path).upsert(frame([(number, 1, "right"), (99, number, "v")]))
    opened(path).compact()
    seen = {version: rows_of(opened_at(path, version)) for version in range(opened(path).version + 1)}
    with host(off_ms):
        opened(path).upsert(frame([(50, 1, "wrong"), (99, 9, "v")]))
        opened(path).delete(pa.table({"k": [50]}))
        opened(path).compact(minor=True)
        opened(path).upsert(frame([(51, 1, "wrong")]))
        opened(path).savepoint("wrong", version=2)
        opened(path).consumers.register("wrong", expires_after=dt.timedelta(hours=30))
        land(landing, "waits.json", numbered(200, 203))
        feed(path, landing)
        result = opened(path).maintain()
        assert result.vacuum is not None
        opened(path).vacuum(dry_run=False)
        opened(path).expire_tombstones()
        opened(path).consumers.expire()
        opened(path).opened.handle.log.checkpoint(opened(path).opened.view.snapshot)
        seen |= {version: rows_of(opened_at(path, version)) for version in range(len(seen), opened(path).version + 1)}
    # Nothing that is needed is gone: all versions, what was archived, the file that waits, the consumer.
    for version, rows in seen.items():
        assert rows_of(opened_at(path, version)) == rows, version
    assert [file.name for file in (tmp_path / "archive").rglob("*.json")] == ["first.json"]
    assert (landing / "waits.json").exists()
    assert [consumer.name for consumer in opened(path).consumers.list()] == ["wrong"]
    assert checkpointed_removes(path), "what was removed a moment ago is in the checkpoint"
    expected = state_of(path)

    # For a host with a right clock, all that is due is done, and nothing else.
    opened(path).upsert(frame([(52, 1, "right")]))
    assert opened(path).maintain().vacuum is None
    with later(0.5):
        feed(path, landing)
        assert (landing / "waits.json").exists(), "it is half an hour old"
    with later(25):
        feed(path, landing)
        assert not (landing / "waits.json").exists(), "an hour is over"
        assert list((tmp_path / "archive").rglob("*.json")) == [], "it is kept for three hours"
        result = opened(path).maintain()
        assert result.compaction is not None
        assert result.vacuum is not None
        assert [consumer.name for consumer in opened(path).consumers.list()] == ["wrong"], "30 hours are not over"
        assert opened(path).maintain().vacuum is None
    with later(31):
        opened(path).vacuum(dry_run=False)
        assert list(opened(path).consumers.list()) == []
    with later(50):
        assert opened(path).maintain().vacuum is not None
    assert state_of(path) == sorted([*expected, (52, 1, "right"), *((k, 1, "x") for k in range(200, 203))], key=repr)
    ahead = [record.getMessage() for record in caplog.records if "hours to come" in record.getMessage()]
    assert all(str(path) in line for line in ahead)
    assert any("version" in line for line in ahead) is (off_ms > 0), "later commits have times of next year"


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS], ids=["a year ahead", "a year behind"])
def test_a_maintainer_with_a_wrong_clock_does_what_is_due(off_ms: int, tmp_path: Path) -> None:
    """It may be the only one."""
    path = tmp_path / "t"
    create(path, properties=PROPERTIES).upsert(frame([(1, 1, "x")]))
    opened(path).upsert(frame([(1, 2, "y")]))
    ran = []
    for hours in (0, 1, 23, 25, 26, 50):
        with later(hours), host(off_ms):
            result = opened(path).maintain()
            ran.append((result.compaction is not None, result.vacuum is not None))
    assert ran == [(False, True), (False, False), (False, False), (True, True), (False, False), (False, True)]


def opened_at(path: Path, version: int) -> pa.Table:
    return LakeTable.open(path, version=version).to_arrow()


def checkpointed_removes(path: Path) -> list[str]:
    newest = max((path / "_delta_log").glob("*.checkpoint.parquet"))
    removes = pq.read_table(newest, columns=["remove"])["remove"].to_pylist()
    return [remove["path"] for remove in removes if remove is not None]


def test_a_vacuum_that_was_noted_for_next_year_is_due(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a version of LakeMerge noted it that went by its host's clock."""
    path = tmp_path / "t"
    table = create(path, properties=PROPERTIES)
    noted_ms = time.time_ns() // 1_000_000 + YEAR_MS
    note = Attempt([Txn("lakemerge.vacuum", 7, noted_ms)])
    table.opened.handle.log.commit(table.opened.view.snapshot, lambda _: note, operation="MAINTENANCE", parameters={})
    with caplog.at_level(logging.WARNING, "lakemerge"):
        assert opened(path).maintain().vacuum is not None
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"the last vacuum of {path} has a time that is 8760.0 hours to come" in line
    txn = opened(path).opened.view.snapshot.txns["lakemerge.vacuum"]
    assert (txn.version, (txn.last_updated_ms or noted_ms) < noted_ms - YEAR_MS + HOUR_MS) == (8, True)
    assert opened(path).maintain().vacuum is None


def test_a_consumer_made_next_year_without_a_position_expires_from_now_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    table = create(path)
    monkeypatch.setattr(type(table.opened.handle), "store_now_ms", lambda _: time.time_ns() // 1_000_000 + YEAR_MS)
    made = table.consumers.register("me", expires_after=dt.timedelta(days=2))
    monkeypatch.undo()
    (position,) = (path / "_lakemerge" / "consumers").iterdir()
    told = position.read_bytes()
    position.unlink()
    with caplog.at_level(logging.WARNING, "lakemerge"):
        assert list(opened(path).consumers.expire()) == []
    assert any("consumer 'me'" in record.getMessage() for record in caplog.records)
    assert position.read_bytes() == told
    assert opened(path).consumers.list()[0].version == made.version
    with later(47):
        assert list(opened(path).consumers.expire()) == []
    with later(49):
        assert list(opened(path).consumers.expire()) == ["me"]


def test_a_file_first_seen_next_year_does_not_wait_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, landing = tmp_path / "t", tmp_path / "landing"
    land(landing, "a.json", numbered(0, 3))
    create(path)

    def run(off_ms: int) -> int:
        job = opened(path).ingest("feed", Files(landing, format="json"), bins=Bins(min_records=9, max_age="1h"))
        object.__setattr__(job._needed(), "now_ms", lambda: time.time_ns() // 1_000_000 + off_ms)
        return job.run().files

    assert run(YEAR_MS) == 0
    with caplog.at_level(logging.WARNING, "lakemerge"):
        assert run(0) == 1
    assert "a.json) has a time that is 8760.0 hours to come" in caplog.text


def commits_written(path: Path, *hours_ago: float) -> int:
    """Commits with these times by the store's clock. Returns the time now."""
    now_ms = 1_800_000_000_000
    for version, hours in enumerate(hours_ago):
        file = path / "_delta_log" / f"{version:020d}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        os.utime(file, ns=(int(now_ms - hours * HOUR_MS) * 1_000_000,) * 2)
    return now_ms


@pytest.mark.parametrize(
    ("hours_ago", "age", "tip"),
    [
        ((9, 8, 7), 7.5, 1),
        ((9, -8760, 7), 7.5, 0),  # version 1 was written before version 2, and that is all that is known
        ((9, -8760, 7), 6.5, 2),
        ((9, -8760, -8760, 7, 6), 6.5, 3),
        ((9, -8760), 1, 0),  # written now, for all that is known
        ((-8760, -8760), 1, None),
        ((-8760, 3), 2, 1),
        ((9, 2, 8), 5, 0),  # no version is older than one before it
        ((), 5, None),
    ],
)
def test_a_commit_file_of_next_year_is_as_old_as_the_next_one(
    hours_ago: tuple[float, ...], age: float, tip: int | None, tmp_path: Path
) -> None:
    store, now_ms = LocalStore(tmp_path), commits_written(tmp_path, *hours_ago)
    then_ms = int(now_ms - age * HOUR_MS)
    assert tip_at(store, then_ms, now_ms=now_ms) == tip
    assert old_through(store, then_ms, now_ms=now_ms, since=0) == tip


def test_commits_that_were_cleaned_up_are_old(tmp_path: Path) -> None:
    store, now_ms = LocalStore(tmp_path), commits_written(tmp_path, 9, 8, 3, 2)
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    assert old_through(store, now_ms - 5 * HOUR_MS, now_ms=now_ms, since=1) == 1
    assert old_through(store, now_ms - int(2.5 * HOUR_MS), now_ms=now_ms, since=1) == 2
    assert old_through(store, now_ms - 5 * HOUR_MS, now_ms=now_ms, since=2) is None


def test_vacuum_goes_on_after_the_stores_clock_was_ahead(tmp_path: Path) -> None:
    """Then files have times of next year. They do not hold all older and later ones for so long."""
    path = tmp_path / "t"
    table = create(path, properties=PROPERTIES)
    for number in range(4):
        table.upsert(frame([(1, number, f"v{number}")]))
        table.compact()
    next_year_ns = time.time_ns() + YEAR_MS * 1_000_000
    for version in (3, 4):
        for file in (path / "_delta_log").glob(f"{version:020d}.*"):
            os.utime(file, ns=(next_year_ns, next_year_ns))
    assert opened(path).vacuum(dry_run=False).oldest_version == 0, "nothing is two hours old"
    with later(26):
        # The first vacuum of the two makes the version whose time is right.
        opened(path).upsert(frame([(1, 9, "newest")]))
    with later(30):
        result = opened(path).vacuum(dry_run=False)
        assert result.oldest_version > 4
        assert result.files.get("base", 0) >= 3
        opened(path).vacuum(dry_run=False)
    assert not (path / "_delta_log" / f"{3:020d}.json").exists()
    assert state_of(path) == [(1, 9, "newest")]
    assert LakeTable.check(path).ok


def test_the_stores_clock_is_asked_once_an_hour(tmp_path: Path) -> None:
    store = CountingStore(LocalStore(tmp_path))
    wall, running = [5_000_000], [70]
    clock = StoreClock(lambda: wall[0], lambda: running[0])

    def asked(passes_ms: int, *, wall_ms: int | None = None) -> int:
        """How often the store was asked, when so much time has passed."""
        store.reset()
        running[0] += passes_ms
        wall[0] += passes_ms if wall_ms is None else wall_ms
        clock.now_ms(store)
        return store.counts().calls["put"]

    first = clock.now_ms(store)
    assert abs(first - store_time_ms(LocalStore(tmp_path))) < 60_000
    assert asked(1) == 0
    assert clock.now_ms(store) == first + 1
    assert asked(HOUR_MS - 1) == 0
    assert clock.now_ms(store) == first + HOUR_MS
    assert asked(1) == 1
    assert asked(5, wall_ms=5 + YEAR_MS) == 1, "somebody set this host's clock"
    assert asked(5, wall_ms=-HOUR_MS) == 1
    assert asked(0, wall_ms=2 * HOUR_MS) == 1, "the host slept"
    assert asked(7) == 0
