"""Savepoints and restore: what comes back, what stays, and who is refused.

Expected rows are written by hand, or are those of the plain model.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from lakemerge import CommitConflictError, InputError, LakeTable, UnsupportedFeatureError, VersionNotFoundError
from lakemerge.testing.faults import Call, Fault
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import assert_rows
from tests.model import ModelTable
from tests.unit.faults import UNKNOWN, Row, commit_domains, create, frame, listing, open_over, rows_of, state_of

FIRST = [(1, 1, "a"), (2, 1, "b")]
SECOND = [(1, 2, "A"), (2, 1, "b"), (3, 1, "c")]


def told(path: Path) -> tuple[LakeTable, int]:
    """A table whose second version has a live log, and that was compacted and changed since."""
    table = create(path)
    table.upsert(frame(FIRST))
    table.upsert(frame([(1, 2, "A"), (3, 1, "c")]))
    version = table.version
    table.compact()
    table.delete(frame([(2, 5)], ["k", "o"]))
    table.compact(minor=True)
    table.upsert(frame([(1, 9, "later"), (4, 1, "d")]))
    return table, version


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    """It comes after the restore has looked at the table."""
    path = tmp_path / "t"
    _, version = told(path)
    table, _ = open_over(path, Fault(action=lambda call: commit_domains(path, UNKNOWN), method="put_if_absent"))
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'"):
        table.restore(version=version)
    assert UNKNOWN.domain in LakeTable.open(path).opened.view.snapshot.domains


def changed(table: LakeTable, since: int) -> list[Row]:
    rows = table.changes(since=since).read_all().drop_columns(["_commit_timestamp"]).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_version_with_live_logs_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, version = told(path)
    now, files = table.version, listing(path)
    present = rows_of(table.to_arrow())
    result = table.restore(version=version)
    assert (result.version, result.restored_version) == (now + 1, version)
    assert (result.added_files, result.removed_files, result.live_logs) == (1, 1, 1)
    assert state_of(path) == SECOND
    assert listing(path).keys() - files.keys() == {f"_delta_log/{now + 1:020d}.json"}, "no file but the commit"
    (commit,) = table.opened.view.log_commits
    assert commit.version == version, "the log keeps its place in the order of records"
    assert rows_of(LakeTable.open(path, version=now).to_arrow()) == present
    entry = table.history(limit=1)[0]
    assert (entry.operation, entry.parameters["version"]) == ("RESTORE", str(version))
    # What comes now folds onto what came back: older than the delete that is given up, newer than the row.
    table.upsert(frame([(2, 3, "not deleted"), (1, 1, "late")]))
    expected = [(1, 2, "A"), (2, 3, "not deleted"), (3, 1, "c")]
    assert state_of(path) == expected
    table.compact(minor=True)
    assert state_of(path) == expected
    table.compact()
    assert state_of(path) == expected
    assert rows_of(deltalake.DeltaTable(path).to_pyarrow_table()) == expected
    table.restore(version=now)
    assert state_of(path) == present
    table.upsert(frame([(2, 4, "deleted at 5")]))
    assert state_of(path) == present


def test_a_version_with_a_minor_compaction_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, _ = told(path)
    version, expected = table.version, rows_of(table.to_arrow())
    (file_slice,) = table.opened.view.file_slices
    assert file_slice.minor is not None
    table.compact()
    table.upsert(frame([(1, 99, "x")]))
    table.restore(version=version)
    assert table.opened.view.file_slices == (file_slice,)
    assert state_of(path) == expected
    table.compact()
    assert state_of(path) == expected


def test_the_change_feed_tells_of_a_restore(tmp_path: Path) -> None:
    table, version = told(tmp_path / "t")
    before = table.version
    restored = table.restore(version=version).version
    assert changed(table, before) == [
        (1, 2, "A", "+U", restored),
        (1, 9, "later", "-U", restored),
        (2, 1, "b", "+I", restored),
        (4, 1, "d", "-D", restored),
    ]
    table.upsert(frame([(4, 2, "again")]))
    assert changed(table, restored) == [(4, 2, "again", "+I", restored + 1)]


def test_the_definition_comes_back_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, properties={"mine": "kept"}, buckets=None)
    empty = table.version
    table.upsert(frame(FIRST), txn=("stream", 7))
    version = table.version
    table.alter(add_columns="note STRING", merger="commit-time")
    table.upsert(frame([(1, 0, "by commit")]), txn=("stream", 8))
    saved = table.savepoint("altered")
    ordinals = table.opened.view.state.next_ordinal
    table.compact()
    assert table.opened.view.state.next_ordinal > ordinals
    ordinals = table.opened.view.state.next_ordinal
    table.restore(version=version)
    assert (table.schema.names, table.opened.view.config.merger_name) == (["k", "o", "v"], "event-time")
    assert table.opened.view.snapshot.metadata.configuration["mine"] == "kept"
    assert table.opened.view.state.next_ordinal == ordinals, "an ordinal is never used again"
    assert table.savepoints() == [saved]
    assert table.upsert(frame([(1, 9, "x")]), txn=("stream", 8)).mode == "repeated", "the stream goes on where it was"
    table.upsert(frame([(1, 0, "late")]))
    assert state_of(path) == FIRST
    assert table.restore(savepoint="altered").restored_version == saved.version
    assert rows_of(table.to_arrow()) == [(1, 0, "by commit", None), (2, 1, "b", None)]
    table.upsert(frame([(2, 0, "by commit too")]))
    table.compact()
    assert rows_of(table.to_arrow()) == [(1, 0, "by commit", None), (2, 0, "by commit too", None)]
    table.restore(version=empty)
    assert (table.opened.view.config.buckets, rows_of(table.to_arrow())) == (None, [])
    assert table.upsert(frame(FIRST)).mode == "load"
    assert min(base.ordinal for base in table.opened.view.base_files) >= ordinals, "those below are taken"
    assert state_of(path) == FIRST
    table.compact()
    assert state_of(path) == FIRST


def test_restore_by_time(tmp_path: Path) -> None:
    table, version = told(tmp_path / "t")
    entry = next(entry for entry in table.history() if entry.version == version)
    moment = pa.scalar(entry.timestamp_ms, pa.timestamp("ms", "UTC")).as_py()
    assert table.restore(timestamp=moment).restored_version == version
    assert rows_of(table.to_arrow()) == SECOND


def at_commit(action: Any) -> Fault:
    """What others do once everything is prepared and the first attempt is made."""
    return Fault(method="put_if_absent", path="_delta_log", action=action)


@pytest.mark.parametrize("work", ["upsert", "compact", "minor", "delete_where", "alter", "logs"])
def test_what_began_before_a_restore_cannot_land_after_it(tmp_path: Path, work: str) -> None:
    path = tmp_path / "t"
    table, version = told(path)
    table.upsert(frame([(5, 1, "e")]))

    def restore(call: Call) -> None:
        table.restore(version=version)

    late, _ = open_over(path, at_commit(restore))
    does: Any = {
        "upsert": lambda: late.upsert(frame([(1, 50, "x")])),
        "compact": late.compact,
        "minor": lambda: late.compact(minor=True),
        "delete_where": lambda: late.delete_where("k = 3", retries=0),
        "alter": lambda: late.alter(add_columns="note STRING"),
        "logs": lambda: late.compact_logs(size_ratio=math.inf),
    }[work]
    with pytest.raises(CommitConflictError, match="restored"):
        does()
    assert state_of(path) == SECOND
    does()
    rest = {"upsert": [(1, 50, "x"), *SECOND[1:]], "delete_where": SECOND[:2]}.get(work, SECOND)
    columns = LakeTable.open(path).to_arrow(columns=["k", "o", "v"])
    assert rows_of(columns) == rest


def test_a_restore_does_not_give_up_what_its_caller_did_not_see(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _, version = told(path)

    def upsert(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(9, 1, "unseen")]))

    table, _ = open_over(path, at_commit(upsert))
    with pytest.raises(CommitConflictError, match="nothing was restored"):
        table.restore(version=version)
    assert (9, 1, "unseen") in state_of(path)
    table.restore(version=version)
    assert state_of(path) == SECOND


def test_a_compaction_meanwhile_does_not_stop_a_restore(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _, version = told(path)

    def compact(call: Call) -> None:
        LakeTable.open(path).savepoint("no-records")
        LakeTable.open(path).compact()

    table, _ = open_over(path, at_commit(compact))
    table.restore(version=version)
    assert state_of(path) == SECOND
    table.upsert(frame([(2, 2, "new")]))
    table.compact()
    assert state_of(path) == [(1, 2, "A"), (2, 2, "new"), (3, 1, "c")]


def test_restores_that_are_refused_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, version = told(path)
    now = table.version
    for arguments, error, says in (
        ({}, InputError, "needs a version"),
        ({"version": version, "savepoint": "x"}, InputError, "not for several"),
        ({"version": now}, InputError, "nothing to restore"),
        ({"version": now + 1}, VersionNotFoundError, f"version {now + 1}"),
        ({"version": "1"}, InputError, "must be an integer"),
        ({"savepoint": "x"}, InputError, "there are: none"),
    ):
        with pytest.raises(error, match=says):
            table.restore(**arguments)
    with pytest.raises(InputError, match="read-only"):
        LakeTable.open(path, version=version).restore(version=1)
    (base,) = LakeTable.open(path, version=version).opened.view.base_files
    (path / base.add.path).unlink()
    with pytest.raises(VersionNotFoundError, match=r"1 of its files are gone, such as 'base/"):
        table.restore(version=version)
    assert table.version == now


def test_savepoints(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, version = told(path)
    second = table.savepoint("second", version=version)
    now = table.version
    here = table.savepoint("here")
    assert (second.version, here.version) == (version, now)
    assert table.savepoints() == [second, here]
    assert rows_of(LakeTable.open(path, savepoint="second").to_arrow()) == SECOND
    for name, given, says in (
        ("second", None, f"names version {version} already"),
        ("a b", None, "letters"),
        ("", None, "letters"),
        ("new", True, "must be an integer"),
    ):
        with pytest.raises(InputError, match=says):
            table.savepoint(name, version=given)
    with pytest.raises(VersionNotFoundError):
        table.savepoint("new", version=99)
    with pytest.raises(InputError, match="several"):
        LakeTable.open(path, savepoint="second", version=1)
    table.drop_savepoint("second")
    assert table.savepoints() == [here]
    with pytest.raises(InputError, match="there are: here"):
        table.drop_savepoint("second")
    with pytest.raises(InputError, match="there are: here"):
        LakeTable.open(path, savepoint="second")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("merger", ["event-time", "commit-time"])
def test_random_histories_with_restores(merger: str, seed: int, tmp_path: Path) -> None:
    """Against the plain model: every version still reads as it did, and the feed tells the differences."""
    rng = random.Random(f"{merger}/{seed}")
    table = create(tmp_path / "t", merger=merger, buckets=rng.choice([1, 2]))
    schema = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("v", pa.string())])
    model = ModelTable(schema, key=("k",), ordering=("o",), merger=merger, mergers=ALL_MERGERS)
    names = schema.names
    numbers = {table.version: 0}
    for step in range(25):
        match rng.choice(["write", "write", "write", "full", "minor", "restore"]):
            case "write":
                rows = [(rng.randint(1, 6), rng.randint(1, 9), f"{step}.{i}") for i in range(rng.randint(1, 3))]
                kinds = [rng.choice(["+U", "+U", "-D"]) for _ in rows]
                columns = [(*row, kind) for row, kind in zip(rows, kinds, strict=True)]
                table.upsert(frame(columns, [*names, "op"]), kind_column="op")
                number = model.write(names, [dict(zip(names, row, strict=True)) for row in rows], kinds)
            case "full" | "minor" as kind:
                table.compact(minor=kind == "minor")
                number = model.version
            case _:
                version = rng.choice(sorted(numbers))
                if version == table.version:
                    continue
                table.restore(version=version)
                number = model.restore(numbers[version])
        numbers[table.version] = number
        assert_rows(table.to_arrow(), rows_at(model, number), schema, f"step {step}")
    for version in rng.sample(sorted(numbers), 8):
        then = LakeTable.open(tmp_path / "t", version=version).to_arrow()
        assert_rows(then, rows_at(model, numbers[version]), schema, f"version {version}")
    changes = table.changes(since=0).read_all().to_pylist()
    held: set[Row] = set()
    for version in sorted(numbers):
        images = [(row["_row_kind"], tuple(row[name] for name in names)) for row in changes if told_by(row, version)]
        held -= {image for kind, image in images if kind in ("-U", "-D")}
        held |= {image for kind, image in images if kind in ("+U", "+I")}
        assert held == set(rows_at(model, numbers[version])), f"the feed up to version {version}"


def told_by(row: dict[str, Any], version: int) -> bool:
    return bool(row["_commit_version"] == version)


def rows_at(model: ModelTable, number: int) -> list[Row]:
    return [tuple(row.values()) for row in model.rows(number)]
