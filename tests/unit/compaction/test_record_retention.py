"""How long records are kept, by age and by usage, and what vacuum says of it."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

from lakemerge import InputError, LakeTable, SchemaError, VacuumResult, VersionNotFoundError
from lakemerge.format.record_retention import RECORDS_DOMAIN, records_from
from lakemerge.format.state import State
from tests.unit.faults import create, frame, listing, rows_of
from tests.unit.table.staged import made_of

NOW = dt.timedelta(0)
DAY = 86_400


def aged(path: Path, **properties: str) -> LakeTable:
    """Six commits of records, a full compaction after each second one; commit ``n`` is ``20 - n`` days old."""
    table = create(path, properties={f"lakemerge.{name}": value for name, value in properties.items()})
    for number in range(6):
        table.upsert(frame([(k, number, f"{number}" * 1000) for k in range(5)]))
        if number % 2:
            table.compact()
    _made_old(path)
    return table


def _made_old(path: Path) -> None:
    for commit in sorted((path / "_delta_log").glob("*.json")):
        version = int(commit.stem)
        moment = os.stat(commit).st_mtime - (20 - version) * DAY
        os.utime(commit, (moment, moment))


def words(table: LakeTable, since: int = 0) -> list[tuple[int, str]]:
    return [(step.version, step.verdict) for step in table.explain({"k": 3}, since).steps]


def vacuum(table: LakeTable, *, dry_run: bool = False) -> VacuumResult:
    return table.vacuum(dry_run=dry_run)


def test_without_the_property_records_go_with_their_versions(tmp_path: Path) -> None:
    table = aged(tmp_path / "t")
    everything = words(table)
    assert [version for version, _ in everything] == [1, 2, 5, 6, 9, 10]
    assert "are older than the retention" in vacuum(table).reasons[0]
    assert words(table) == []
    assert LakeTable.check(tmp_path / "t").ok


def test_records_stay_longer_than_versions(tmp_path: Path) -> None:
    table = aged(tmp_path / "t", recordRetention="interval 16 days")
    rows = rows_of(table.to_arrow())
    everything = words(table)
    result = vacuum(table)
    assert any("lakemerge.recordRetention" in reason for reason in result.reasons)
    assert result.paths
    # 16 days ago it was version 4; what it stands upon is there, and all records since.
    assert words(table) == [step for step in everything if step[0] > 4]
    begun = table.explain({"k": 3}, 0)
    assert begun.start == {"k": 3, "o": 1, "v": "1" * 1000}
    assert begun.row == table.get({"k": 3})
    assert rows_of(table.what_if(since=0).to_arrow()) == rows
    table.replay(tmp_path / "again")
    assert rows_of(LakeTable.open(tmp_path / "again").to_arrow()) == rows
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", version=5)  # records are kept, readable versions are not
    assert vacuum(table).paths == ()  # a second one finds nothing
    assert LakeTable.check(tmp_path / "t").ok


@pytest.mark.parametrize("kept", [True, False])
def test_after_an_erasure_records_begin_at_it(tmp_path: Path, kept: bool) -> None:
    table = aged(tmp_path / "t", **({"recordRetention": "interval 16 days"} if kept else {}))
    vacuum(table)
    before = table.opened.view.snapshot
    assert (records_from(before) < State.of(before).oldest_version) is kept
    table.forget([{"k": 3}], drop_history=kept)
    after = LakeTable.open(tmp_path / "t").opened.view.snapshot
    assert before.version < records_from(after) == State.of(after).oldest_version
    assert (RECORDS_DOMAIN in after.domains) is kept


def test_records_that_went_do_not_come_back(tmp_path: Path) -> None:
    """Records whose starting state is gone are not worth keeping."""
    table = aged(tmp_path / "t")
    vacuum(table)
    table.alter(properties={"lakemerge.recordRetention": "interval 100 days"})
    table.upsert(frame([(3, 50, "new")]))
    vacuum(table)
    assert [verdict for _, verdict in words(table)] == ["applied"]


def test_the_rows_of_a_query_are_records(tmp_path: Path) -> None:
    path, kept = tmp_path / "t", {"lakemerge.recordRetention": "interval 100 days"}
    create(path).upsert(frame([(3, 0, "old")]))
    table = made_of(path, frame([(3, 1, "a"), (4, 1, "b")]), key=["k"], ordering=["o"], buckets=1, properties=kept)
    at = table.version
    for number in range(2, 4):
        table.upsert(frame([(3, number, "later")]))
        table.compact()
    _made_old(path)
    everything = words(table)
    assert [version for version, _ in everything] == [at, at + 1, at + 4]
    result = vacuum(table)
    assert any("lakemerge.recordRetention" in reason for reason in result.reasons)
    assert words(table) == everything
    assert rows_of(table.what_if("commit-time", since=0).to_arrow()) == [(3, 3, "later"), (4, 1, "b")]


def test_a_restore_keeps_what_is_known(tmp_path: Path) -> None:
    table = aged(tmp_path / "t", recordRetention="interval 16 days")
    vacuum(table)
    known = words(table)
    latest = table.version
    table.upsert(frame([(3, 60, "wrong")]))
    table.restore(version=latest)
    assert words(table) == known
    vacuum(table)
    assert words(table) == known


def history_bytes(table: LakeTable, path: Path) -> int:
    """Bytes of data files that the present version, which has no logs, does not need."""
    present = table.opened.view.snapshot.files
    return sum(size for name, size in listing(path).items() if name.startswith(("base/", "_lakemerge/log/")) and (
        name not in present
    ))  # fmt: skip


@pytest.mark.parametrize("dry_run", [True, False])
def test_usage_takes_the_oldest_records_first(tmp_path: Path, dry_run: bool) -> None:
    table = aged(tmp_path / "t", recordRetention="interval 100 days")
    before = listing(tmp_path / "t")
    everything = words(table)
    log = max(size for name, size in before.items() if name.startswith("_lakemerge/log/"))
    base = max(size for name, size in before.items() if name.startswith("base/"))
    bound = base + 3 * log  # a version to begin with, and the records of three commits: two, at a compaction
    table.alter(properties={"lakemerge.retention.maxBytes": str(bound)})
    result = vacuum(table, dry_run=dry_run)
    (said,) = [reason for reason in result.reasons if "maxBytes" in reason]
    assert "records before version" in said
    if dry_run:
        assert {p: s for p, s in listing(tmp_path / "t").items() if p in before} == before
        assert words(table) == everything
        return
    assert words(table) == everything[-2:]
    assert base < history_bytes(table, tmp_path / "t") <= bound
    assert table.explain({"k": 3}, 0).row == table.get({"k": 3})


def test_usage_stops_at_young_versions_and_says_so(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"lakemerge.retention.maxBytes": "100"})
    for number in range(4):
        table.upsert(frame([(k, number, f"{number}" * 1000) for k in range(5)]))
    table.savepoint("kept", version=2)
    table.compact()
    result = table.vacuum(dry_run=True)
    assert result.paths == ()
    assert any("cannot be reached" in reason for reason in result.reasons)
    # Without the protection all versions but the present one go; the savepoint does not count and stays.
    forced = table.vacuum(dry_run=False, enforce_retention=False)
    assert not any("cannot be reached" in reason for reason in forced.reasons)
    assert forced.oldest_version == table.version - 1
    assert LakeTable.open(tmp_path / "t", savepoint="kept").get({"k": 3}) == {"k": 3, "o": 1, "v": "1" * 1000}
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", version=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("recordRetention", "a while"), ("retention.maxBytes", "lots"), ("retention.maxBytes", "-1")],
)
def test_properties_are_checked_when_they_are_set(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SchemaError, match=name):
        create(tmp_path / "t", properties={f"lakemerge.{name}": value})
    table = create(tmp_path / "t")
    with pytest.raises(InputError, match=name):
        table.alter(properties={f"lakemerge.{name}": value})
