"""Schedules: which properties there are, when services are due by them, and maintainers side by side."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakemerge import InputError, LakeTable, MaintenanceResult, SchemaError, Settings
from lakemerge.format.schedule import SCHEDULE_DEFAULTS, Schedule, schedule_problems
from lakemerge.handle import Handle
from lakemerge.results.compactions import CompactionStrategy
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over, state_of

OFF = {name: "off" for name in SCHEDULE_DEFAULTS if not name.endswith("inline")}
"""Nothing is ever due."""
MINUTE_MS = 60_000


def loaded(path: Path, properties: Mapping[str, str]) -> LakeTable:
    table = create(path, properties={**OFF, **properties})
    table.upsert(frame([(k, 0, "base") for k in range(100)]))
    return table


def write(path: Path, *, keys: int = 1, times: int = 1) -> None:
    for _ in range(times):
        table = LakeTable.open(path)
        table.upsert(frame([(k, table.version, "new") for k in range(keys)]))


def ran(result: MaintenanceResult) -> list[str]:
    names = ("compaction", "minor", "logs", "tombstones", "vacuum")
    return [name for name in names if getattr(result, name) is not None]


def test_the_defaults() -> None:
    assert Schedule.of({}) == Schedule(
        compaction=CompactionStrategy(ratio=0.5, after_minutes=1440),
        minor=CompactionStrategy(after_commits=10),
        logs_after_commits=100,
        vacuum_after_minutes=1440,
        inline=False,
    )


def test_off_switches_a_service_off() -> None:
    assert Schedule.of(OFF) == Schedule(
        compaction=None, minor=None, logs_after_commits=None, vacuum_after_minutes=None, inline=False
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lakemerge.compaction.afterCommits", "1.5"),
        ("lakemerge.compaction.afterBytes", "1 GB"),
        ("lakemerge.compaction.ratio", "nan"),
        ("lakemerge.minorCompaction.afterMinutes", "-1"),
        ("lakemerge.vacuum.afterMinutes", "inf"),
        ("lakemerge.maintenance.inline", "yes"),
    ],
)
def test_values_are_checked_where_they_are_set(tmp_path: Path, name: str, value: str) -> None:
    assert schedule_problems(name, value)
    with pytest.raises(SchemaError, match=f"{name}.*{value}"):
        create(tmp_path / "t", properties={name: value})
    table = create(tmp_path / "t")
    with pytest.raises(InputError, match=f"{name}.*{value}"):
        table.alter(properties={name: value})
    assert table.version == 0


def test_properties_are_set_changed_and_taken_away(tmp_path: Path) -> None:
    name = "lakemerge.minorCompaction.afterCommits"
    table = create(tmp_path / "t", properties={name: "3"})
    assert table.alter(properties={name: "3"}) == 0, "what the table has makes no commit"
    assert table.alter(properties={name: "7", "team": "sales"}) == 1
    assert table.opened.view.snapshot.metadata.configuration["team"] == "sales"
    assert Schedule.of(table.opened.view.snapshot.metadata.configuration).minor == CompactionStrategy(after_commits=7)
    assert table.alter(properties={name: None}) == 2
    assert Schedule.of(table.opened.view.snapshot.metadata.configuration).minor == CompactionStrategy(after_commits=10)
    assert table.history(limit=1)[0].operation == "SET PROPERTIES"
    with pytest.raises(InputError, match=r"lakemerge\.buckets.*not one that users set"):
        table.alter(properties={"lakemerge.buckets": None, "lakemerge.key": "x"})
    assert table.key == ("k",)


def test_a_change_of_properties_disturbs_no_compaction(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path, {})
    write(path)

    def alter(call: Call) -> None:
        LakeTable.open(path).alter(properties={"team": "sales"})

    table, _ = open_over(path, Fault(action=alter, method="open_output", path="base/"))
    assert table.compact().file_slices == 1


@pytest.mark.parametrize(
    ("properties", "service"),
    [
        ({"lakemerge.compaction.afterCommits": "3"}, "compaction"),
        ({"lakemerge.minorCompaction.afterCommits": "3"}, "minor"),
        ({"lakemerge.logCompaction.afterCommits": "3"}, "logs"),
    ],
)
def test_due_after_so_many_commits(tmp_path: Path, properties: Mapping[str, str], service: str) -> None:
    path = tmp_path / "t"
    table = loaded(path, properties)
    write(path, times=2)
    before = table.version
    assert (ran(table.maintain()), table.version) == ([], before), "nothing is due, and nothing was committed"
    write(path)
    expected = state_of(path)
    assert ran(table.maintain()) == [service]
    assert ran(table.maintain()) == []
    assert state_of(path) == expected


def test_due_by_bytes_and_ratio(tmp_path: Path) -> None:
    for name, value in (("afterBytes", "5000"), ("ratio", "2")):
        path = tmp_path / name
        table = loaded(path, {f"lakemerge.compaction.{name}": value})
        while not ran(table.maintain()):
            (file_slice,) = table.opened.view.file_slices
            assert file_slice.base is not None
            assert file_slice.log_bytes < (5000 if name == "afterBytes" else 2 * file_slice.base.add.size_bytes)
            write(path, keys=100)
            assert table.version < 100
        assert not table.opened.view.log_commits


def stored_ms(path: Path, version: int) -> int:
    """When a commit was written, by the store's clock."""
    return (path / "_delta_log" / f"{version:020d}.json").stat().st_mtime_ns // 1_000_000


def test_due_after_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = loaded(path, {"lakemerge.compaction.afterMinutes": "60"})
    write(path)
    written_ms = stored_ms(path, table.version)
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: written_ms + 60 * MINUTE_MS - 1)
    assert ran(table.maintain()) == []
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: written_ms + 60 * MINUTE_MS)
    assert ran(table.maintain()) == ["compaction"]


def test_a_minor_compaction_is_due_by_the_age_of_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = loaded(path, {"lakemerge.minorCompaction.afterMinutes": "60"})
    write(path)
    first_ms = stored_ms(path, table.version)
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: first_ms + 60 * MINUTE_MS)
    assert ran(table.maintain()) == ["minor"]
    write(path)
    second_ms = first_ms + 100 * MINUTE_MS
    os.utime(path / "_delta_log" / f"{table.version:020d}.json", ns=(second_ms * 1_000_000,) * 2)
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: second_ms + 60 * MINUTE_MS - 1)
    assert ran(table.maintain()) == [], "the base file is old, and the logs are not"
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: second_ms + 60 * MINUTE_MS)
    assert ran(table.maintain()) == ["minor"]


def test_vacuum_and_the_forgetting_of_deletes_are_due_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = loaded(path, {"lakemerge.vacuum.afterMinutes": "60"})
    first = table.maintain()
    assert ran(first) == ["tombstones", "vacuum"]
    assert first.vacuum is not None
    assert not first.vacuum.dry_run
    assert ran(table.maintain()) == []
    last_ms = table.opened.view.snapshot.txns["lakemerge.vacuum"].last_updated_ms
    assert last_ms is not None
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: last_ms + 60 * MINUTE_MS - 1)
    assert ran(table.maintain()) == []
    monkeypatch.setattr(Handle, "store_now_ms", lambda _: last_ms + 60 * MINUTE_MS)
    assert ran(table.maintain()) == ["tombstones", "vacuum"]
    assert table.opened.view.snapshot.txns["lakemerge.vacuum"].version == 1


def test_one_call_does_what_a_neglected_table_needs(tmp_path: Path) -> None:
    """With the defaults: many commits are merged, files too old are deleted, no answer changes."""
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(k, 0, "base") for k in range(100)]))
    write(path, keys=50, times=12)
    expected = state_of(path)
    result = table.maintain()
    assert {"compaction", "tombstones", "vacuum"} <= {*ran(result)}
    assert result.version == table.version
    assert not table.opened.view.log_commits
    assert state_of(path) == expected
    assert repr(result).startswith(f"MaintenanceResult(version={table.version}, CompactionResult(")


def test_a_run_can_be_stopped_between_services(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, {"lakemerge.compaction.afterCommits": "1", "lakemerge.vacuum.afterMinutes": "0"})
    write(path)
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 2  # not before the compaction, nor before its only group

    result = table.maintain(stop=stop)
    assert (ran(result), result.stopped) == (["compaction"], True)
    assert table.maintain(stop=lambda: True).stopped


def test_inline_maintenance_follows_each_write(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, {"lakemerge.maintenance.inline": "true", "lakemerge.minorCompaction.afterCommits": "2"})
    assert table.upsert(frame([(1, 1, "x")])).version == 2
    assert len(LakeTable.open(path).opened.view.log_commits) == 1
    result = table.upsert(frame([(2, 1, "x")]))
    assert (result.version, table.version > 3) == (3, True)
    assert not table.opened.view.log_commits
    assert not LakeTable.open(path).opened.view.log_commits
    assert len(state_of(path)) == 100


def test_what_fails_inline_does_not_fail_the_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    loaded(path, {"lakemerge.maintenance.inline": "true", "lakemerge.compaction.afterCommits": "1"})

    def full(call: Call) -> None:
        raise OSError(28, "no space left")

    table, _ = open_over(path, Fault(action=full, method="open_output", path="base/", lasting=True))
    with caplog.at_level(logging.WARNING):
        assert table.upsert(frame([(1, 5, "x")])).mode == "append"
    assert "maintenance of" in caplog.text
    assert (1, 5, "x") in state_of(path)


def test_a_service_that_somebody_else_made_needless_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path, {"lakemerge.logCompaction.afterCommits": "2", "lakemerge.compaction.afterCommits": "1"})
    write(path, times=3)
    expected = state_of(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact()

    table, _ = open_over(path, Fault(action=overtake, method="open_output", path="base/"))
    result = table.maintain()
    assert result.compaction is not None
    assert len(result.compaction.lost) == 1
    assert state_of(path) == expected


def keep(path: str, rounds: int) -> None:
    table = LakeTable.open(path, settings=Settings(target_commit_bytes=1, threads=1))
    for _ in range(rounds):
        table.maintain()


@pytest.mark.long
def test_two_maintainers_at_once_waste_work_never_data(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(
        path, buckets=4,
        properties={
            "lakemerge.compaction.afterCommits": "5", "lakemerge.minorCompaction.afterCommits": "2",
            "lakemerge.logCompaction.afterCommits": "2",
        },
    )  # fmt: skip
    table.upsert(frame([(k, 0, "base") for k in range(40)]))
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=keep, args=(str(path), 12)) for _ in range(2)]
    for process in both:
        process.start()
    expected = {k: (k, 0, "base") for k in range(40)}
    for number in range(1, 26):
        rows = [(k, number, f"new {number}") for k in range(number % 7, 40, 5)]
        LakeTable.open(path).upsert(frame(rows))
        expected |= {row[0]: row for row in rows}
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    assert state_of(path) == sorted(expected.values(), key=repr)
    operations = [entry.operation for entry in LakeTable.open(path).history()]
    assert "COMPACT" in operations
    LakeTable.open(path).compact()
    assert state_of(path) == sorted(expected.values(), key=repr)
