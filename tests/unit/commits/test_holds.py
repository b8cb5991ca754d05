"""Holds: savepoints as long as which nothing of a table is deleted."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from compaction.vacuum import vacuum
from lakemerge import InputError, LakeTable, TableDamagedError
from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.format.savepoint import Savepoint, savepoints_of
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, listing, open_over

NOW = dt.timedelta(0)


def held(path: Path) -> LakeTable:
    """A table with a hold, and with a base file that no version from the latest one on needs."""
    table = create(path)
    table.upsert(frame([(1, 1, "one")]))
    table.savepoint("case-17", hold=True)
    table.upsert(frame([(1, 2, "two")]))
    table.compact()
    return table


def test_nothing_is_deleted_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = held(path)
    before = listing(path)
    for dry_run in (False, True):
        with pytest.raises(InputError, match=r"a vacuum deletes files, and the table has the hold 'case-17'") as told:
            table.vacuum(dry_run=dry_run, retention=NOW, enforce_retention=False)
    assert told.value.facts["savepoints"] == ("case-17",)
    with pytest.raises(InputError, match="'case-17'"):
        LakeTable.drop(path)
    assert listing(path) == before
    with pytest.raises(InputError, match=r"'case-17' is a hold.*hold=True"):
        table.drop_savepoint("case-17")
    table.drop_savepoint("case-17", hold=True)
    assert table.savepoints() == []
    assert table.vacuum(dry_run=False, retention=NOW, enforce_retention=False).files == {"base": 1, "log": 1}
    assert LakeTable.drop(path)


def test_other_savepoints_are_no_holds(tmp_path: Path) -> None:
    table = held(tmp_path / "t")
    table.drop_savepoint("case-17", hold=True)
    saved = table.savepoint("plain")
    assert [(point.name, point.hold) for point in table.savepoints()] == [("plain", False)]
    assert not saved.hold
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    table.drop_savepoint("plain")


def test_maintenance_leaves_vacuum_out(tmp_path: Path) -> None:
    table = held(tmp_path / "t")
    table.alter(properties={"lakemerge.vacuum.afterMinutes": "0"})
    for _ in range(2):
        result = table.maintain()
        assert (result.vacuum, result.conflicts) == (None, ())
    table.drop_savepoint("case-17", hold=True)
    assert table.maintain().vacuum is not None


def test_a_hold_that_comes_while_a_vacuum_looks_stops_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(1, 1, "one")]))
    table.upsert(frame([(1, 2, "two")]))
    table.compact()

    def hold(call: Call) -> None:
        LakeTable.open(path).savepoint("late", hold=True)

    opened, _ = open_over(path, Fault(action=hold, method="put_if_absent", path="_delta_log/"))
    before = {name for name in listing(path) if not name.startswith("_delta_log/")}
    with pytest.raises(InputError, match="'late'"):
        vacuum(opened.opened.handle, opened.opened.view, dry_run=False, retention=NOW, enforce_retention=False)
    assert before <= set(listing(path))


def test_a_hold_that_says_something_else_is_damage() -> None:
    good = Savepoint("case-17", 3, 0, hold=True).domain()
    bad = replace(good, configuration=good.configuration.replace("true", '"yes"'))

    def read(domain: DomainMetadata) -> Savepoint:
        return savepoints_of(cast("Snapshot", SimpleNamespace(domains={domain.domain: domain})))["case-17"]

    assert read(good).hold
    with pytest.raises(TableDamagedError, match="hold"):
        read(bad)
