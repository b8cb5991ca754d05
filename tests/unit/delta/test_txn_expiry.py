"""Transactions expire as ``delta.setTransactionRetentionDuration`` says, by the times of commits, for all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import InputError, LakeTable, SchemaError
from lakemerge.delta import (
    Action,
    Attempt,
    Committed,
    DeltaLog,
    DomainMetadata,
    Metadata,
    Protocol,
    Snapshot,
    Txn,
)
from lakemerge.handle import Handle
from lakemerge.merge_source.state import APPLICATION, NEXT_ID
from lakemerge.storage import open_store
from tests.relink import relink

RETENTION = "delta.setTransactionRetentionDuration"
HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000
FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", "lakemerge"})


class Clock:
    def __init__(self) -> None:
        self.hour = 0

    def __call__(self) -> int:
        return BEGIN_MS + self.hour * HOUR_MS


def metadata(retention: str | None) -> Metadata:
    configuration = {"delta.enableInCommitTimestamps": "true", "delta.checkpointInterval": "4"}
    if retention is not None:
        configuration[RETENTION] = retention
    return Metadata("id", None, None, '{"type":"struct","fields":[]}', (), configuration, 0)


class Commits:
    """A log whose commits are at chosen hours."""

    def __init__(self, root: Path, retention: str | None) -> None:
        self.clock = Clock()
        self.log = DeltaLog(open_store(root), clock_ms=self.clock)
        first: list[Action] = [
            Protocol(1, 7, frozenset(), FEATURES),
            metadata(retention),
            DomainMetadata("lakemerge.state", "{}"),
        ]
        self.tip = self._landed(None, first)

    def at(self, hour: int, *actions: Action) -> Snapshot:
        self.clock.hour = hour
        self.tip = self._landed(self.tip, actions)
        return self.tip

    def _landed(self, begin: Snapshot | None, actions: Sequence[Action]) -> Snapshot:
        outcome = self.log.commit(begin, lambda _: Attempt(actions), operation="W", parameters={})
        assert isinstance(outcome, Committed)
        return outcome.snapshot


def seen_everywhere(commits: Commits, version: int) -> Iterator[set[str]]:
    """The applications of a version: for the writer, for readers from the log, and for one that follows it."""
    yield set(commits.log.snapshot(version=version).txns)
    for begin in range(version):
        followed = commits.log.snapshot(version=begin)
        if version == commits.tip.version:
            yield set(commits.log.update(followed).txns)


def test_a_txn_expires_with_the_first_commit_that_is_so_much_later(tmp_path: Path) -> None:
    commits = Commits(tmp_path, "interval 2 hours")
    # By hand: of hour h, an id is there in commits before hour h + 2.
    expected = [
        (1, {"a": 0}, {"a"}),
        (2, {"b": 0}, {"a", "b"}),
        (3, {}, {"b"}),
        (3, {"c": 0}, {"b", "c"}),
        (4, {}, {"c"}),
        (4, {"c": 1}, {"c"}),
        (5, {"a": 1}, {"a", "c"}),
        (9, {}, set()),
    ]
    for hour, given, apps in expected:
        assert set(commits.at(hour, *(Txn(app, number) for app, number in given.items())).txns) == apps
    for version, (_, _, apps) in enumerate(expected, start=1):
        assert [*seen_everywhere(commits, version)] == [apps] * (1 + version * (version == commits.tip.version))
    for checkpoint in sorted((tmp_path / "_delta_log").glob("*.checkpoint.parquet")):
        rows = pq.read_table(checkpoint).column("txn").drop_null().to_pylist()
        assert {row["appId"] for row in rows} == expected[int(checkpoint.name[:20]) - 1][2]
        checkpoint.unlink()
    (tmp_path / "_delta_log/_last_checkpoint").unlink()
    for version, (_, _, apps) in enumerate(expected, start=1):
        assert set(commits.log.snapshot(version=version).txns) == apps, "from version 0"


def test_a_longer_or_shorter_retention_counts_from_its_own_commit_on(tmp_path: Path) -> None:
    commits = Commits(tmp_path, "interval 1 hour")
    commits.at(0, Txn("gone", 0))
    commits.at(2)
    commits.at(2, metadata("interval 10 hours"), Txn("kept", 0))
    commits.at(9)
    assert set(commits.tip.txns) == {"kept"}
    commits.at(9, metadata(None))
    commits.at(100)
    assert set(commits.tip.txns) == {"kept"}
    commits.at(100, metadata("interval 5 hours"))
    for found in seen_everywhere(commits, commits.tip.version):
        assert found == set()


@pytest.mark.parametrize("retention", [None, "interval 1 month", "soon"])
def test_without_a_retention_that_can_be_read_nothing_expires(tmp_path: Path, retention: str | None) -> None:
    commits = Commits(tmp_path, retention)
    commits.at(1, Txn("a", 0))
    assert set(commits.at(1_000_000).txns) == {"a"}


def test_ids_that_say_how_far_the_librarys_own_work_is_stay(tmp_path: Path) -> None:
    own = ["lakemerge.ingest.feed", "lakemerge.replay.x", "lakemerge.vacuum", "lakemerge.flow.snapshot", APPLICATION]
    own.append(NEXT_ID)
    commits = Commits(tmp_path, "interval 1 hour")
    commits.at(1, *(Txn(app, 0, BEGIN_MS) for app in [*own, "lakemerge.stream.1-2-3", "nightly"]))
    assert set(commits.at(50).txns) == set(own)


def test_a_host_whose_clock_was_ahead_ages_nothing_that_comes_after_it(tmp_path: Path) -> None:
    commits = Commits(tmp_path, "interval 2 hours")
    commits.at(1_000)
    # The clocks are right again, and commits still have later times than the one before.
    commits.at(2, Txn("a", 0, BEGIN_MS + 2 * HOUR_MS))
    assert set(commits.at(3).txns) == {"a"}


def test_times_that_are_missing_or_to_come_are_kept(tmp_path: Path) -> None:
    commits = Commits(tmp_path, "interval 2 hours")
    commits.at(1, Txn("undated", 0), Txn("late", 0))
    path = tmp_path / "_delta_log/00000000000000000001.json"
    told = f'"lastUpdated":{BEGIN_MS + HOUR_MS}'
    undated, late = (line for line in path.read_text().splitlines() if '"txn"' in line)
    changed = path.read_text().replace(undated, undated.replace(f",{told}", ""))
    changed = changed.replace(late, late.replace(told, f'"lastUpdated":{BEGIN_MS + 90 * HOUR_MS}'))
    assert changed.count("lastUpdated") == 1
    path.write_text(changed)
    relink(tmp_path)
    commits.tip = commits.log.snapshot()
    assert set(commits.at(80).txns) == {"undated", "late"}
    assert set(commits.at(92).txns) == {"undated"}


def rows(number: int) -> pa.Table:
    return pa.table({"id": [1], "n": [number]})


def test_a_write_is_passed_over_until_its_id_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = LakeTable.create(
        tmp_path,
        "id BIGINT, n BIGINT",
        key=["id"],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        properties={RETENTION: "interval 2 hours", "lakemerge.maintenance": "off"},
    )
    clock = Clock()
    clock.hour = 1 + (Handle.now_ms() - BEGIN_MS) // HOUR_MS
    monkeypatch.setattr(table.opened.handle.log, "_clock_ms", clock)
    monkeypatch.setattr("lakemerge.delta.log.store_time_ms", lambda store: clock())
    table.upsert(rows(5), txn=("nightly", 7))
    clock.hour += 1
    table.upsert(rows(1))
    assert table.upsert(rows(5), txn=("nightly", 7)).mode == "repeated"
    clock.hour += 3
    assert table.upsert(rows(5), txn=("nightly", 7)).mode == "repeated", "no commit has come since"
    table.upsert(rows(1))
    assert table.upsert(rows(5), txn=("nightly", 7)).mode != "repeated"
    assert table.get({"id": 1}) == {"id": 1, "n": 12}
    assert LakeTable.check(tmp_path).ok


def test_the_property_is_checked(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="an interval such as"):
        LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"], properties={RETENTION: "a while"})
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"])
    with pytest.raises(InputError, match="an interval such as"):
        table.alter(properties={RETENTION: "interval 1 month"})
    table.alter(properties={RETENTION: "interval 30 days"})
    assert table.opened.view.snapshot.metadata.configuration[RETENTION] == "interval 30 days"
    table.alter(properties={RETENTION: None})
    assert RETENTION not in table.opened.view.snapshot.metadata.configuration


def test_a_host_whose_clock_is_ahead_forgets_nothing_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit has a time that is to come. The store's clock says what is old, for it and for those after it."""
    table = LakeTable.create(
        tmp_path,
        "id BIGINT, n BIGINT",
        key=["id"],
        properties={RETENTION: "interval 30 days", "lakemerge.maintenance": "off"},
    )
    table.upsert(rows(1), txn=("app", 1))
    ahead = LakeTable.open(tmp_path)
    monkeypatch.setattr(ahead.opened.handle.log, "_clock_ms", lambda: Handle.now_ms() + 365 * 24 * HOUR_MS)
    ahead.upsert(rows(2))
    ahead.upsert(rows(3))
    later = LakeTable.open(tmp_path)
    assert later.upsert(rows(1), txn=("app", 1)).mode == "repeated"
    later.upsert(rows(4))
    assert LakeTable.open(tmp_path).upsert(rows(1), txn=("app", 1)).mode == "repeated"
