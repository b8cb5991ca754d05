"""What is listed of a log does not grow with the log, but with what a call asks for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakemerge import LakeTable, TableDamagedError, VersionNotFoundError
from lakemerge.delta import (
    Attempt,
    Committed,
    DeltaLog,
    DomainMetadata,
    Snapshot,
)
from lakemerge.delta.listing import commit_path
from lakemerge.storage import open_store
from lakemerge.testing.counting import CountingStore
from tests.relink import relink

LENGTHS = (200, 2_000)
NEAR = 100
"""A version that all logs have. Around it and at their ends they have a checkpoint for each ten commits."""


def grown(root: Path, commits: int) -> None:
    """A table with so many commits. Commit ``v`` is made at second ``v``."""
    LakeTable.create(root, "id BIGINT", key=["id"], buckets=1)
    log = DeltaLog(open_store(root))
    begin = log.snapshot()
    log = DeltaLog(open_store(root), clock_ms=lambda: begin.timestamp_ms + 1_000)
    told = log.commit(begin, lambda _: Attempt([DomainMetadata("d", "0")]), operation="W", parameters={})
    assert isinstance(told, Committed)
    second = (root / commit_path(1)).read_text()
    for version in range(2, commits + 1):
        at = begin.timestamp_ms + 1_000 * version
        text = second.replace(str(begin.timestamp_ms + 1_000), str(at)).replace('"d"', f'"d.{version % 7}"')
        (root / commit_path(version)).write_text(text)
    relink(root)
    for version in range(10, commits + 1, 10):
        if version <= NEAR + 10 or version > commits - 60:
            log.checkpoint(log.snapshot(version=version))


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    found = {commits: tmp_path_factory.mktemp(f"log{commits}") for commits in LENGTHS}
    for commits, root in found.items():
        grown(root, commits)
    return found


def opened(root: Path, **at: object) -> tuple[LakeTable, CountingStore]:
    """A table whose store counts from then on."""
    table = LakeTable.open(root, **at)  # type: ignore[arg-type]
    store = CountingStore(table.opened.handle.store)
    handle = replace(table.opened.handle, store=store, log=DeltaLog(store))
    return LakeTable(handle, table.opened.view.snapshot, pinned=bool(at), spark=None), store


def second(root: Path, version: int) -> dt.datetime:
    begin = DeltaLog(open_store(root)).snapshot(version=0).timestamp_ms
    return dt.datetime.fromtimestamp(begin / 1000 + version, dt.UTC)


def history(table: LakeTable) -> object:
    tip = table.version
    assert [entry.version for entry in table.history(limit=3)] == [tip, tip - 1, tip - 2]
    return None


def near_start(table: LakeTable) -> object:
    return table.opened.handle.log.snapshot(version=NEAR + 7).version


def first_versions(table: LakeTable) -> object:
    return [table.opened.handle.log.snapshot(version=version).version for version in (0, 1, 31)]


def near_end(table: LakeTable) -> object:
    return table.version - table.opened.handle.log.snapshot(version=table.version - 3).version


def timestamp_near_end(table: LakeTable) -> object:
    log = table.opened.handle.log
    asked_ms = table.opened.view.snapshot.timestamp_ms - 2_500
    return table.version - log.snapshot(timestamp_ms=asked_ms).version


def changes_near_end(table: LakeTable) -> object:
    return table.changes(table.version - 2).read_all().num_rows


def some_commits(table: LakeTable) -> object:
    return [version for version, _ in table.opened.handle.log.commits(since=NEAR, until=NEAR + 2)]


def follow(table: LakeTable) -> object:
    return list(table.follow(poll=None, since=table.version - 2))


CALLS = [
    (history, None),
    (near_start, NEAR + 7),
    (first_versions, [0, 1, 31]),
    (near_end, 3),
    (timestamp_near_end, 3),
    (changes_near_end, 0),
    (some_commits, [NEAR + 1, NEAR + 2]),
    (follow, []),
]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_as_much_is_listed_of_a_long_log_as_of_a_short_one(
    roots: dict[int, Path], call: Callable[[LakeTable], object], expected: object
) -> None:
    listed = {}
    for commits, root in roots.items():
        table, store = opened(root)
        assert call(table) == expected
        counts = store.counts()
        listed[commits] = (counts.files_listed, counts.calls["list"])
    assert listed[200] == listed[2_000]
    assert listed[200][0] <= 220, "a window before the version, and the end of the log"


def test_an_old_version_looks_at_no_later_commit(roots: dict[int, Path]) -> None:
    """Its history does, since it tells of the latest commits."""
    for commits, root in roots.items():
        table, store = opened(root, version=NEAR)
        table.opened.handle.log.check_holds(table.opened.view.snapshot)
        assert store.counts().files_listed <= 4
        assert table.history(limit=1)[0].version == commits
        assert store.counts().files_listed <= 11


def test_registering_a_consumer_lists_the_end_of_the_log(tmp_path: Path) -> None:
    listed = []
    for commits in (60, 300):
        grown(tmp_path / str(commits), commits)
        table, store = opened(tmp_path / str(commits))
        table.consumers.register("mart", version=commits - 5)
        assert [(one.name, one.lag_versions) for one in table.consumers.list()] == [("mart", 6)]
        table.consumers.advance("mart", commits)
        listed.append(store.counts().files_listed)
    assert listed[0] == listed[1]


def test_every_version_and_time_is_found_as_by_the_whole_log(roots: dict[int, Path]) -> None:
    root = roots[200]
    log = DeltaLog(open_store(root))
    begin_ms = log.snapshot(version=0).timestamp_ms
    for version in [*range(45), *range(95, 115), *range(190, 201)]:
        found = log.snapshot(version=version)
        assert (found.version, found.timestamp_ms) == (version, begin_ms + 1_000 * version)
        last = {name: max(v for v in range(2, version + 1) if v % 7 == int(name[2:])) for name in found.domains
                if name.startswith("d.")}  # fmt: skip
        assert sorted(last) == sorted({f"d.{v % 7}" for v in range(2, version + 1)})
        for plus in (0, 1, 999):
            if version < 200 or not plus:
                assert log.snapshot(timestamp_ms=begin_ms + 1_000 * version + plus).version == version
    for wrong in (begin_ms - 1, begin_ms + 200_001):
        with pytest.raises(VersionNotFoundError):
            log.snapshot(timestamp_ms=wrong)
    for beyond in (-1, 201, 10_000):
        with pytest.raises(VersionNotFoundError, match="reaches from 0 to 200"):
            log.snapshot(version=beyond)


def copied(root: Path, to: Path) -> Path:
    for path in sorted((root / "_delta_log").iterdir()):
        (to / "_delta_log").mkdir(parents=True, exist_ok=True)
        (to / "_delta_log" / path.name).write_bytes(path.read_bytes())
    return to


def checkpoint(root: Path, version: int) -> Path:
    return root / f"_delta_log/{version:020d}.checkpoint.parquet"


def test_damage_near_a_version_is_passed_over_as_before(roots: dict[int, Path], tmp_path: Path) -> None:
    root = copied(roots[200], tmp_path)
    log = DeltaLog(open_store(root))
    whole: Snapshot = log.snapshot(version=104)
    checkpoint(root, 100).write_bytes(b"torn")
    assert log.snapshot(version=104) == replace(whole, checkpoint_version=90)
    for version in range(92, 95):
        (root / commit_path(version)).unlink()
    with pytest.raises(TableDamagedError, match=r"100\.checkpoint.*cannot be read"):
        log.snapshot(version=104)
    assert log.snapshot(version=185).version == 185


def test_a_log_that_was_cleaned_up(roots: dict[int, Path], tmp_path: Path) -> None:
    root = copied(roots[200], tmp_path)
    log = DeltaLog(open_store(root))
    begin_ms = log.snapshot(version=0).timestamp_ms
    for version in range(150):
        (root / commit_path(version)).unlink()
        checkpoint(root, version).unlink(missing_ok=True)
    assert [entry.version for entry in log.history(limit=60)] == [*range(200, 149, -1)]
    assert log.snapshot(version=150).version == 150
    assert log.snapshot(timestamp_ms=begin_ms + 152_500).version == 152
    with pytest.raises(VersionNotFoundError, match="reaches from 150 to 200"):
        log.snapshot(version=149)
    with pytest.raises(VersionNotFoundError):
        log.snapshot(timestamp_ms=begin_ms + 149_000)


def test_a_wrong_pointer_hides_no_commit(roots: dict[int, Path], tmp_path: Path) -> None:
    root = copied(roots[200], tmp_path)
    pointer = root / "_delta_log/_last_checkpoint"
    for told in ('{"version": 9000}', '{"version": 201}', "torn", '{"version": -4}', '{"version": 0}'):
        pointer.write_text(told)
        log = DeltaLog(open_store(root))
        assert [entry.version for entry in log.history(limit=4)] == [200, 199, 198, 197]
    pointer.unlink()
    assert [entry.version for entry in DeltaLog(open_store(root)).history(limit=1)] == [200]
