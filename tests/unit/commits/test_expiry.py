"""Tombstones: how long a late record stays deleted, and what an expiry commit changes.

Expected rows are written by hand, or come from the plain model. Resurrections are those that Hudi and
Paimon users report: a delete is compacted away, and the late record that it was to hold off comes back.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.commits.retention import commit_expiry
from lakemerge.format.expiries import Expiry, expiries_of
from lakemerge.testing.faults import Call, Fault
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import assert_rows
from tests.model import ModelTable
from tests.property.effort import some
from tests.relink import relink
from tests.unit.faults import Row, create, frame, open_over, rows_of, state_of

NOW = dt.timedelta(0)
LATE = [(1, 5, "late")]


def deleted(path: Path, *, minor: bool = False, **options: Any) -> LakeTable:
    """Key 1 was deleted at ordering 10, and the delete compacted; key 2 is a row."""
    table = create(path, **options)
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.delete(frame([(1, 10)], ["k", "o"]))
    table.compact(minor=minor)
    return table


def tombstones(path: Path, table: LakeTable) -> list[Row]:
    files = [file_slice.tombstones for file_slice in table.opened.view.file_slices if file_slice.tombstones is not None]
    return [row for file in files for row in rows_of(pq.read_table(path / file).select(["k", "o"]))]


def expire(table: LakeTable) -> None:
    assert table.expire_tombstones(retention=NOW).horizon is not None


REMOVING: Any = {"merger": "partial-update", "options": {"remove_record_on_delete": True}}


@pytest.mark.parametrize("minor", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("options", [{}, REMOVING], ids=["event-time", "partial-update"])
def test_a_late_record_stays_deleted_whatever_is_compacted(
    tmp_path: Path, minor: bool, again: bool, options: dict[str, Any]
) -> None:
    """The delete is compacted away, then an older record arrives (Paimon issue 5387, Hudi pull 4880)."""
    table = deleted(tmp_path / "t", minor=minor, **options)
    if again:
        table.upsert(frame([(3, 1, "c")]))
        table.compact(minor=not minor)
        assert tombstones(tmp_path / "t", table) == [(1, 10)]
    table.upsert(frame(LATE))
    rest = [(2, 1, "b"), (3, 1, "c")][: 2 if again else 1]
    assert rows_of(table.to_arrow()) == rest
    for _ in range(2):
        table.compact(minor=minor)
        assert state_of(tmp_path / "t") == rest
    assert table.get({"k": 1}) is None


def test_a_delete_before_its_insert_holds_it_off_after_compaction(tmp_path: Path) -> None:
    """A bucket with logs alone: the delete meets nothing, and is kept all the same."""
    table = create(tmp_path / "t")
    table.delete(frame([(1, 10)], ["k", "o"]))
    table.compact()
    table.upsert(frame([(1, 9, "before"), (2, 1, "x")]))
    assert rows_of(table.to_arrow()) == [(2, 1, "x")]
    table.compact()
    table.upsert(frame([(1, 10, "same")]))
    assert rows_of(table.to_arrow()) == [(1, 10, "same"), (2, 1, "x")], "equal orderings: the later wins"


@pytest.mark.parametrize("minor", [False, True])
def test_after_the_expiry_a_late_record_is_new(tmp_path: Path, minor: bool) -> None:
    table = deleted(tmp_path / "t", minor=minor)
    before = table.version
    result = table.expire_tombstones(retention=NOW)
    assert (result.version, result.horizon) == (before + 1, before)
    assert rows_of(table.to_arrow()) == [(2, 1, "b")], "the expiry itself changes no row"
    table.upsert(frame(LATE))
    expected = [(1, 5, "late"), (2, 1, "b")]
    assert rows_of(table.to_arrow()) == expected
    assert table.get({"k": 1}) == {"k": 1, "o": 5, "v": "late"}
    changes = [tuple(row.values())[:4] for row in table.changes(since=before).read_all().to_pylist()]
    assert changes == [(1, 5, "late", "+I")]
    assert rows_of(LakeTable.open(tmp_path / "t", version=before).to_arrow()) == [(2, 1, "b")]
    for full in (minor, not minor):
        table.compact(minor=full)
        assert state_of(tmp_path / "t") == expected
    assert tombstones(tmp_path / "t", table) == []


def test_what_lost_before_the_expiry_has_lost_for_good(tmp_path: Path) -> None:
    """The log of the late record is live across the expiry; only what comes after it is new."""
    for compacted in (False, True):
        path = tmp_path / f"t{compacted}"
        table = deleted(path)
        horizon = table.version
        table.upsert(frame([(1, 5, "lost"), (3, 1, "c")]))
        assert table.expire_tombstones(retention=NOW).horizon == horizon, "logs after it are not compacted"
        assert rows_of(table.to_arrow()) == [(2, 1, "b"), (3, 1, "c")]
        table.upsert(frame([(1, 3, "new")]))
        expected = [(1, 3, "new"), (2, 1, "b"), (3, 1, "c")]
        assert rows_of(table.to_arrow()) == expected
        table.compact(minor=compacted)
        assert state_of(path) == expected
        table.upsert(frame([(1, 2, "older")]))
        assert state_of(path) == expected


def test_logs_from_both_sides_of_the_expiry_are_not_combined(tmp_path: Path) -> None:
    """Together the record that lost would decide against the one that is new."""
    table = deleted(tmp_path / "t")
    table.upsert(frame([(1, 5, "lost")]))
    expire(table)
    table.upsert(frame([(1, 3, "new"), (4, 1, "x")]))
    expected = [(1, 3, "new"), (2, 1, "b"), (4, 1, "x")]
    for _ in range(2):
        table.compact_logs(size_ratio=math.inf)
        assert rows_of(table.to_arrow()) == expected
    table.compact()
    assert state_of(tmp_path / "t") == expected


def test_a_row_that_came_back_before_the_expiry_stays(tmp_path: Path) -> None:
    table = deleted(tmp_path / "t")
    table.upsert(frame([(1, 20, "back")]))
    expire(table)
    table.upsert(frame([(1, 15, "older than the row")]))
    assert rows_of(table.to_arrow()) == [(1, 20, "back"), (2, 1, "b")]
    table.compact()
    assert state_of(tmp_path / "t") == [(1, 20, "back"), (2, 1, "b")]


def test_a_newer_delete_outlives_the_expiry_of_an_older_one(tmp_path: Path) -> None:
    table = deleted(tmp_path / "t")
    table.delete(frame([(1, 30)], ["k", "o"]))
    expire(table)
    table.upsert(frame([(1, 25, "late for the second")]))
    assert rows_of(table.to_arrow()) == [(2, 1, "b")]
    table.compact()
    assert tombstones(tmp_path / "t", table) == [(1, 30)]
    expire(table)
    table.upsert(frame([(1, 25, "now new")]))
    assert rows_of(table.to_arrow()) == [(1, 25, "now new"), (2, 1, "b")]


def test_a_compaction_begun_before_the_expiry_lands_after_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    deleted(path).upsert(frame([(1, 5, "lost"), (3, 1, "c")]))
    done: list[Call] = []

    def other(call: Call) -> None:
        done.append(call)
        expire(LakeTable.open(path))

    open_over(path, Fault(method="publish", path="base/", action=other))[0].compact()
    assert done
    assert state_of(path) == [(2, 1, "b"), (3, 1, "c")]
    LakeTable.open(path).upsert(frame([(1, 3, "new")]))
    assert state_of(path) == [(1, 3, "new"), (2, 1, "b"), (3, 1, "c")]


def test_nothing_is_due(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    assert table.expire_tombstones(retention=NOW).horizon is None
    table.upsert(frame([(1, 1, "a")]))
    table.delete(frame([(1, 10)], ["k", "o"]))
    assert table.expire_tombstones(retention=NOW).horizon is None, "the delete is not compacted"
    table.compact()
    version = table.version
    assert table.expire_tombstones().horizon is None, "younger than seven days"
    assert table.version == version
    expire(table)
    version = table.version
    assert commit_expiry(table.opened.handle, table.opened.view, horizon=1).version == version, "forgotten already"


def test_the_retention_is_a_table_property(tmp_path: Path) -> None:
    """Ages are the store's: files of commits made to look old."""
    path = tmp_path / "t"
    table = deleted(path, properties={"lakemerge.tombstoneRetention": "interval 2 hours"})
    assert table.expire_tombstones().horizon is None
    horizon = table.version
    age(path, hours=3)
    table.upsert(frame([(2, 2, "young")]))
    assert table.expire_tombstones().horizon == horizon
    deleted(tmp_path / "odd", properties={"lakemerge.tombstoneRetention": "interval 2 hours"})
    for commit in (tmp_path / "odd" / "_delta_log").glob("*.json"):  # as another writer might leave it
        commit.write_text(commit.read_text().replace("interval 2 hours", "soon"))
    relink(tmp_path / "odd")
    odd = LakeTable.open(tmp_path / "odd")
    with pytest.raises(InputError, match="'soon', which is not a duration"):
        odd.expire_tombstones()
    with pytest.raises(InputError, match="not negative"):
        odd.expire_tombstones(retention=dt.timedelta(-1))


def age(path: Path, *, hours: float) -> None:
    """Make every commit so far look older by the clock of the store."""
    for file in (path / "_delta_log").glob("*"):
        seconds = file.stat().st_mtime - hours * 3600
        os.utime(file, (seconds, seconds))


def test_expiries_that_all_file_slices_have_folded_become_one(tmp_path: Path) -> None:
    table = deleted(tmp_path / "t")
    made = []
    for number in range(4):
        made.append(Expiry(table.version + 1, table.version))
        expire(table)
        table.delete(frame([(1, 30 + number)], ["k", "o"]))
        assert expiries_of(table.opened.view.snapshot)[-1] == made[-1]
        table.compact()
    assert expiries_of(table.opened.view.snapshot) == tuple(made[-2:])


def test_an_expiry_begun_before_a_restore_judges_the_restored_logs(tmp_path: Path) -> None:
    """The restored version has a log below the horizon: its delete is not forgotten with the others."""
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(1, 1, "a")]))
    table.delete(frame([(1, 10)], ["k", "o"]))
    live = table.version
    table.compact()
    view = table.opened.view
    LakeTable.open(path).restore(version=live)
    outcome = commit_expiry(table.opened.handle, view, horizon=view.version)
    assert expiries_of(LakeTable.open(path).opened.view.snapshot)[-1].horizon < live, outcome
    LakeTable.open(path).upsert(frame(LATE))
    assert state_of(path) == []


@pytest.mark.parametrize("merger", ["event-time", "partial-update", "aggregate", "commit-time"])
def test_random_histories_with_expiries(merger: str, tmp_path: Path) -> None:
    """Against the plain model, with compactions of every kind anywhere between."""
    expired = [play(merger, random.Random(f"{merger}/{seed}"), tmp_path / str(seed)) for seed in some(range(6))]
    assert any(expired) is (merger != "commit-time"), "only a merger that keeps tombstones forgets some"


def play(merger: str, rng: random.Random, path: Path) -> int:
    """The number of expiries."""
    options: dict[str, Any] = {"partial-update": {"remove_record_on_delete": True}}.get(merger, {})
    if merger == "aggregate":
        options = {"aggregates": {"v": "last_non_null_value"}, "remove_record_on_delete": True}
    table = create(path, merger=merger, options=options, buckets=rng.choice([1, 2]))
    schema = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("v", pa.string())])
    model = ModelTable(schema, key=("k",), ordering=("o",), merger=merger, options=options, mergers=ALL_MERGERS)
    numbers = {table.version: 0}
    expired = 0
    for step in range(30):
        match rng.choice(["write", "write", "write", "full", "minor", "logs", "expire", "expire"]):
            case "write":
                rows = [(rng.randint(1, 5), rng.randint(1, 9), f"{step}.{i}") for i in range(rng.randint(1, 3))]
                kinds = [rng.choice(["+U", "+U", "-D"]) for _ in rows]
                columns = [(*row, kind) for row, kind in zip(rows, kinds, strict=True)]
                version = table.upsert(frame(columns, ["k", "o", "v", "op"]), kind_column="op").version
                names = ["k", "o", "v"]
                numbers[version] = model.write(names, [dict(zip(names, row, strict=True)) for row in rows], kinds)
            case "full" | "minor" as kind:
                table.compact(minor=kind == "minor")
            case "logs":
                table.compact_logs()
            case _:
                horizon = table.expire_tombstones(retention=NOW).horizon
                if horizon is not None:
                    expired += 1
                    numbers[table.version] = model.expire(max(n for v, n in numbers.items() if v <= horizon))
        assert_rows(table.to_arrow(), [tuple(row.values()) for row in model.rows()], schema, f"{path}, step {step}")
    for version in rng.sample(sorted(numbers), 6):
        then = LakeTable.open(path, version=version).to_arrow()
        rows_then = [tuple(row.values()) for row in model.rows(numbers[version])]
        assert_rows(then, rows_then, schema, f"{path}, version {version}")
    return expired
