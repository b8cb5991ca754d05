"""A table object that lives for long keeps nothing of files that the table does not have any more."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge._internal.cache import Cache
from lakemerge.delta import (
    Action,
    Attempt,
    Committed,
    DeltaLog,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Snapshot,
)
from lakemerge.storage import open_store
from tests.unit.delta.test_txn_expiry import BEGIN_MS, FEATURES, HOUR_MS, Clock
from tests.unit.faults import create, frame, rows_of

ROUNDS = 60


def counted(table: LakeTable) -> dict[str, int]:
    """How much the object keeps, by where."""
    handle, view = table.opened.handle, table.opened.view
    return {
        "footers": len(handle.footers),
        "scans": len(handle.scans),
        "logs": len(handle.decoded._known),
        "files": len(view.snapshot.files),
        "domains": len(view.snapshot.domains),
    }


@pytest.mark.long
@pytest.mark.parametrize("minor", [False, True], ids=["full", "minor"])
def test_what_is_kept_does_not_grow_with_the_number_of_commits(tmp_path: Path, minor: bool) -> None:
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    most: list[dict[str, int]] = []
    for number in range(ROUNDS):
        table.upsert(frame([(number % 7, number, f"v{number}"), (100, number, "w")]))
        table.upsert(frame([(number % 5, number, f"w{number}")]))
        assert table.get({"k": 100}) == {"k": 100, "o": number, "v": "w"}
        assert table.get({"k": number % 5}) is not None
        table.compact(minor=minor and bool(number % 8))
        assert table.get({"k": 100}) == {"k": 100, "o": number, "v": "w"}
        table.to_arrow()
        most.append(counted(table))
    first, last = most[: ROUNDS // 3], most[-ROUNDS // 3 :]
    for where in most[0]:
        assert max(one[where] for one in last) <= max(40, *(one[where] for one in first)), where
    live = {add.path for add in table.opened.view.snapshot.files.values()}
    assert live, "some of it is of files that are there"


def test_readers_of_earlier_versions_go_on(tmp_path: Path) -> None:
    """They share what is kept with an object that moves on."""
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    pinned: list[tuple[LakeTable, list[tuple[object, ...]]]] = []
    for number in range(40):
        table.upsert(frame([(number % 7, number, f"v{number}")]))
        if number % 10 == 5:
            past = LakeTable(table.opened.handle, table.opened.view.snapshot, pinned=True, spark=None)
            pinned.append((past, rows_of(past.to_arrow())))
        table.compact()
        table.get({"k": number % 7})
        for past, rows in pinned:
            assert past.get({"k": 0}) == next(({"k": 0, "o": o, "v": v} for k, o, v in rows if k == 0), None)
    for past, rows in pinned:
        assert rows_of(past.to_arrow()) == rows


def test_scans_of_removed_files_are_released(tmp_path: Path) -> None:
    """Without Spark: the keys are those of :mod:`lakemerge.spark.scans` and :mod:`lakemerge.spark.premerge`."""
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(1, 1, "a")]))
    handle = table.opened.handle
    (live,) = table.opened.view.snapshot.files
    keys: list[tuple[Hashable, ...]] = [
        ("files", "session", live),
        ("left", 1, (live,), (), None, "columns", "k", "session"),
        ("merged", "session", 1, live),
    ]
    gone: list[tuple[Hashable, ...]] = [
        (kind, "session", live, ("_lakemerge/merged/x.parquet", f"base/{number}.parquet"))
        for kind in ("files", "left", "merged")
        for number in range(20)
    ]
    for key in (*keys, *gone):
        handle.scans.keep(key, object(), 1)
    table.upsert(frame([(1, 2, "b")]))
    assert [key for key in (*keys, *gone) if handle.scans.get(key) is not None] == keys


def test_pruning_is_seldom_and_forgets_only_what_is_of_no_use() -> None:
    kept: Cache[str, int] = Cache(10**6)
    asked: list[int] = []

    def of_use(limit: int) -> None:
        def judge(key: str) -> bool:
            return int(key) >= limit

        def prepared() -> object:
            asked.append(limit)
            return judge

        kept.prune(prepared)  # type: ignore[arg-type] # what judges is no matter here

    for number in range(1_000):
        kept.keep(str(number), number, 1)
        of_use(number - 50)
        assert len(kept) <= 2 * 51 + 1
    assert len(asked) <= 1_000 / 20
    assert kept.get("999") == 999
    before = len(kept)
    kept.prune(lambda: None)
    assert len(kept) == before, "nobody knows what is of use"
    kept.keep("new", 1, 10**6 - before)
    assert kept.get("new") == 1, "the bytes of what was pruned count no more"


def test_small_values_count_too() -> None:
    kept: Cache[int, int] = Cache(1_000, 100)
    for number in range(500):
        kept.keep(number, number, 0)
    assert len(kept) == 10


def test_tombstones_leave_a_snapshot_that_is_followed(tmp_path: Path) -> None:
    """As checkpoints forget them: those of the last three hours are there."""
    clock = Clock()
    log = DeltaLog(open_store(tmp_path), clock_ms=clock)
    configuration = {
        "delta.enableInCommitTimestamps": "true",
        "delta.checkpointInterval": "1000",
        "delta.deletedFileRetentionDuration": "interval 3 hours",
    }
    first: list[Action] = [
        Protocol(1, 7, frozenset(), FEATURES),
        Metadata("id", None, None, '{"type":"struct","fields":[]}', (), configuration, 0),
        DomainMetadata("lakemerge.state", "{}"),
    ]
    begun = log.commit(None, lambda _: Attempt(first), operation="W", parameters={})
    assert isinstance(begun, Committed)
    writer: Snapshot = begun.snapshot
    reader = writer
    for hour in range(1, 50):
        clock.hour = hour
        gone = RemoveFile(f"f{hour}", BEGIN_MS + hour * HOUR_MS, True)
        done = log.commit(writer, lambda _, gone=gone: Attempt([gone]), operation="W", parameters={})  # type: ignore[misc]
        assert isinstance(done, Committed)
        writer, reader = done.snapshot, log.update(reader)
        expected = [f"f{one}" for one in range(max(1, hour - 2), hour + 1)]
        assert [*writer.tombstones] == [*reader.tombstones] == expected
    assert [*log.snapshot().tombstones] == expected
