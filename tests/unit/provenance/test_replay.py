"""``replay`` into another table: each record once, whatever is killed, and the same rows as the source."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import (
    CommitConflictError,
    FilterError,
    InputError,
    LakeTable,
    OutcomeUnknownError,
    VersionNotFoundError,
)
from lakemerge.commits.retention import commit_expiry
from lakemerge.provenance import replay as replaying
from lakemerge.provenance.replay import commit_frame, commit_number
from tests.unit.faults import create, frame, rows_of

NOW = dt.timedelta(0)


def history(path: Path, **options: Any) -> LakeTable:
    table = create(path, buckets=2, **options)
    table.upsert(frame([(7, 100, "a"), (8, 100, "x")]))
    table.upsert(frame([(7, 200, "b")]))
    table.delete(frame([(8, 300)], ["k", "o"]))
    table.upsert(frame([(9, 1, "n"), (7, 150, "old")]))
    return table


def told(table: LakeTable) -> list[tuple[str | None, int]]:
    """Operations and the versions that they replay, oldest first."""
    found = [(entry.operation, entry.info.get("replay")) for entry in table.history()[::-1]]
    return [(operation, about["version"]) for operation, about in found if isinstance(about, dict)]


def same(table: LakeTable, path: Path) -> LakeTable:
    other = LakeTable.open(path)
    assert rows_of(other.to_arrow()) == rows_of(table.to_arrow())
    return other


def test_the_same_commits_in_the_same_order(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.compact_logs()
    table.compact()
    result = table.replay(tmp_path / "u")
    assert (result.commits, result.records, result.begins, result.until) == (4, 4, 1, table.version)
    other = same(table, tmp_path / "u")
    application = f"lakemerge.replay.{table.opened.view.snapshot.metadata.id}"
    assert other.opened.view.snapshot.txns[application].version == 4
    assert told(other) == [("REPLAY", 1), ("REPLAY", 2), ("REPLAY", 3), ("REPLAY", 4)]
    assert [event.kind for event in other.lineage()] == ["REPLAY"] * 4
    # A delete that the source remembers is remembered there.
    for one in (table, other):
        one.upsert(frame([(8, 250, "late")]))
        assert one.get({"k": 8}) is None


def test_it_goes_on_with_what_came_since(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    assert table.replay(tmp_path / "u", until=2).records == 1
    assert rows_of(LakeTable.open(tmp_path / "u").to_arrow()) == rows_of(
        LakeTable.open(tmp_path / "t", version=2).to_arrow()
    )
    assert table.replay(tmp_path / "u").commits == 2
    assert table.replay(tmp_path / "u").commits == 0
    same(table, tmp_path / "u")
    table.alter(add_columns="n INT")
    table.upsert(frame([(5, 1, "v", 3)], ["k", "o", "v", "n"], n=pa.int32()))
    table.alter(widen={"n": "BIGINT"})
    table.compact()
    table.alter(merger="commit-time")
    table.upsert(frame([(7, 1, "older wins")]))
    table.replay(tmp_path / "u")
    other = same(table, tmp_path / "u")
    assert other.schema.types == table.schema.types
    assert other.detail().merger == "commit-time"


def test_what_the_other_table_asks_for_follows_its_commits(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=2)
    table.upsert(frame([(7, 100, "a")]))
    table.replay(tmp_path / "u")
    inline = {"lakemerge.maintenance.inline": "true", "lakemerge.minorCompaction.afterCommits": "2"}
    LakeTable.open(tmp_path / "u").alter(properties=inline)
    for number in range(4):
        table.upsert(frame([(7, 200 + number, "b")]))
    table.replay(tmp_path / "u")
    other = same(table, tmp_path / "u")
    assert other.detail().log_commits <= 2
    assert told(other) == [("REPLAY", version) for version in range(1, 6)]


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_replay_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, at: int) -> None:
    """Killed before or after each of its commits landed."""
    table = history(tmp_path / "t")
    commit, calls = commit_frame, 0

    def killed(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == at and lost == "before":
            raise KeyboardInterrupt
        done = commit(*arguments)
        if calls == at:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "commit_frame", killed)
        with pytest.raises(KeyboardInterrupt):
            table.replay(tmp_path / "u")
    table.replay(tmp_path / "u")
    other = same(table, tmp_path / "u")
    assert told(other) == [("REPLAY", version) for version in (1, 2, 3, 4)]


def test_two_replays_at_once_commit_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = history(tmp_path / "t")
    commit, begun = commit_frame, False

    def overtaken(*arguments: Any) -> int:
        nonlocal begun
        if not begun:
            begun = True
            LakeTable.open(tmp_path / "t").replay(tmp_path / "u")
        return commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "commit_frame", overtaken)
        table.replay(tmp_path / "u")
    other = same(table, tmp_path / "u")
    assert told(other) == [("REPLAY", version) for version in (1, 2, 3, 4)]


def test_expiries_are_replayed_in_their_place(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.compact()
    table.expire_tombstones(retention=NOW)
    table.upsert(frame([(8, 250, "new again")]))
    table.delete(frame([(9, 5)], ["k", "o"]))
    table.upsert(frame([(9, 4, "late")]))
    table.replay(tmp_path / "u")
    other = same(table, tmp_path / "u")
    assert other.get({"k": 8}) == {"k": 8, "o": 250, "v": "new again"}
    assert other.get({"k": 9}) is None


def test_an_expiry_that_reaches_below_the_beginning(tmp_path: Path) -> None:
    """A replay begins with deletes. Those that an expiry forgets are forgotten, and others are not."""
    table = history(tmp_path / "t")  # 8 is deleted in version 3
    table.compact()
    begin = table.version
    table.delete(frame([(7, 900)], ["k", "o"]))
    table.compact()
    since = table.version
    commit_expiry(table.opened.handle, table.opened.view, horizon=begin)
    table.upsert(frame([(8, 250, "new again"), (7, 800, "late")]))
    assert table.get({"k": 7}) is None
    table.replay(tmp_path / "u", since=since)
    other = same(table, tmp_path / "u")
    assert other.get({"k": 8}) == {"k": 8, "o": 250, "v": "new again"}


def test_another_merger(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.replay(tmp_path / "u", merger="first-row", options={"ignore_delete": True})
    other = LakeTable.open(tmp_path / "u")
    assert rows_of(other.to_arrow()) == [(7, 100, "a"), (8, 100, "x"), (9, 1, "n")]
    assert rows_of(table.what_if("first-row", {"ignore_delete": True}, 0).to_arrow()) == rows_of(other.to_arrow())
    with pytest.raises(InputError, match="merges by 'first-row'"):
        table.replay(tmp_path / "u", merger="commit-time")


def test_conditions_and_transforms(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.replay(tmp_path / "u", where="k <> 7")
    assert rows_of(LakeTable.open(tmp_path / "u").to_arrow()) == [(9, 1, "n")]
    with pytest.raises(FilterError, match="version 3 do not carry v"):
        table.replay(tmp_path / "w", where="v <> 'x'")

    def louder(records: pa.Table) -> pa.Table:
        assert "_row_kind" in records.column_names
        if "v" not in records.column_names:
            return records
        return records.set_column(records.column_names.index("v"), "v", pc.utf8_upper(records.column("v")))

    result = table.replay(tmp_path / "x", transform=louder)
    assert rows_of(LakeTable.open(tmp_path / "x").to_arrow()) == [(7, 200, "B"), (9, 1, "N")]
    assert "were committed as records" in result.notes[0]
    with pytest.raises(InputError, match="keep the column '_row_kind'"):
        table.replay(tmp_path / "y", transform=lambda records: records.select(["k"]))


def test_a_restore_below_what_was_replayed_is_refused(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.replay(tmp_path / "u", until=3)
    table.upsert(frame([(1, 1, "gone")]))
    table.restore(version=4)
    table.upsert(frame([(1, 2, "kept")]))
    table.replay(tmp_path / "u")
    same(table, tmp_path / "u")
    table.restore(version=3)
    table.upsert(frame([(1, 3, "after")]))
    with pytest.raises(CommitConflictError, match=r"restored to a version below .* new table"):
        table.replay(tmp_path / "u")
    table.replay(tmp_path / "v")
    same(table, tmp_path / "v")


def test_a_first_load_after_a_restore_is_no_first_load_to_a_replay(tmp_path: Path) -> None:
    """What was replayed before the restore is not the table's history any more."""
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 2, "a")]))
    table.replay(tmp_path / "other")
    table.restore(version=0)
    table.upsert(frame([(1, 1, "b")]))
    with pytest.raises(CommitConflictError, match="restored to a version below 1"):
        table.replay(tmp_path / "other")


def test_a_restore_takes_a_merger_back(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.compact()
    good = table.version
    table.alter(merger="commit-time")
    table.replay(tmp_path / "u")
    assert LakeTable.open(tmp_path / "u").detail().merger == "commit-time"
    table.restore(version=good)
    table.upsert(frame([(7, 1, "older loses")]))
    table.replay(tmp_path / "u")
    assert same(table, tmp_path / "u").get({"k": 7}) == {"k": 7, "o": 200, "v": "b"}


def test_what_is_vacuumed_is_refused_with_the_remedy(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.replay(tmp_path / "u", until=2)
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    with pytest.raises(VersionNotFoundError, match=r"the replay stands at version 2, .* Replay into a new table"):
        table.replay(tmp_path / "u")
    with pytest.raises(VersionNotFoundError, match="known from version"):
        table.replay(tmp_path / "v", since=2)
    table.replay(tmp_path / "v")  # from the oldest version's rows
    same(table, tmp_path / "v")


def test_a_column_whose_commit_a_vacuum_removed(tmp_path: Path) -> None:
    """The other table stands at a version without rows, so that it can go on over the gap."""
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    table.restore(version=0)
    table.replay(tmp_path / "again")
    table.alter(add_columns="more INT")
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    table.replay(tmp_path / "again")
    assert LakeTable.open(tmp_path / "again").schema == table.schema


def test_an_unknown_outcome_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = history(tmp_path / "t")
    commit = commit_frame

    def unsure(*arguments: Any) -> int:
        commit(*arguments)
        raise OutcomeUnknownError("no answer", version=1, txn_id="x")

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "commit_frame", unsure)
        with pytest.raises(OutcomeUnknownError):
            table.replay(tmp_path / "u")
    table.replay(tmp_path / "u")
    same(table, tmp_path / "u")


def test_states_that_no_record_makes(tmp_path: Path) -> None:
    """A count of five is a state, and no record of five: the beginning is loaded, not upserted."""
    table = LakeTable.create(
        tmp_path / "t", "k INT, c INT", key=["k"], merger="aggregate", options={"aggregates": {"c": "count"}}, buckets=1
    )
    for _ in range(5):
        table.upsert(pa.table({"k": pa.array([1], pa.int32()), "c": pa.array([1], pa.int32())}))
    table.compact()
    since = table.version
    table.upsert(pa.table({"k": pa.array([1], pa.int32()), "c": pa.array([1], pa.int32())}))
    table.replay(tmp_path / "u", since=since)
    assert LakeTable.open(tmp_path / "u").get({"k": 1}) == table.get({"k": 1}) == {"k": 1, "c": 6}


def test_arguments_are_checked(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    for wrong in ({"since": -1}, {"until": 99}, {"since": 4, "until": 2}):
        with pytest.raises(InputError, match=r"since|until"):
            table.replay(tmp_path / "u", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="into itself"):
        table.replay(tmp_path / "t")


def test_two_replays_of_an_expiry_at_once_commit_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one does not set back the number up to which the other has replayed."""
    table = history(tmp_path / "t")
    table.compact()
    table.expire_tombstones(retention=NOW)
    table.upsert(frame([(8, 250, "new again")]))
    table.upsert(frame([(9, 2, "late")]))
    note, begun = commit_number, False

    def overtaken(*arguments: Any) -> None:
        nonlocal begun
        if not begun:
            begun = True
            LakeTable.open(tmp_path / "t").replay(tmp_path / "u")
        note(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "commit_number", overtaken)
        table.replay(tmp_path / "u")
    records = [version for operation, version in told(same(table, tmp_path / "u")) if operation == "REPLAY"]
    assert len(records) == len(set(records)), "each version once"
    assert {1, 2, 3, 4} < set(records)
