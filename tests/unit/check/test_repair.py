"""For each kind of damage that a check names: the damage, made by hand, and the repair that the guide tells, or why
there can be none. Each repair is carried out, and the rows afterwards are those from before the damage."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, Record, RowMerger, Settings
from lakemerge.check.kinds import KINDS
from lakemerge.delta import Action, Attempt, DomainMetadata
from lakemerge.format.ingests import ingests_of
from lakemerge.ingest import Files
from lakemerge.results.findings import CheckResult
from lakemerge.write import frame as frames
from tests.guides import text_of
from tests.unit.check.test_check import garbled, rewrite, swapped
from tests.unit.faults import Row, create, frame, rows_of, state_of

GUIDE = text_of("when-something-is-wrong.md")
QUIET = {"lakemerge.maintenance": "off", "delta.checkpointInterval": "100"}

Repair = Callable[[Path], Path]
"""Repairs a table, and returns the folder where its rows are then."""


def history(path: Path) -> LakeTable:
    """Version 1 is a load, 2 and 3 are logs, 5 is their compaction, which needed version 4; 6 and 7 are logs. A job of
    ingest wrote version 7."""
    table = create(path, properties=QUIET)
    table.upsert(frame([(k, 0, "base") for k in range(50)]))
    table.upsert(frame([(1, 1, "x"), (2, 1, "x")]))
    table.delete(frame([(3, 9)], ["k", "o"]))
    table.compact()
    table.upsert(frame([(4, 4, "y")]))
    landing = path.parent / "landing"
    landing.mkdir()
    (landing / "a.json").write_text('{"k": 60, "o": 1, "v": "file"}')
    table.ingest("job", Files(landing, format="json")).run()
    return table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("repair") / "t"
    history(path)
    assert LakeTable.check(path).ok
    return path


def base(path: Path) -> Path:
    (found,) = LakeTable.open(path).opened.view.base_files
    return path / found.add.path


def ledger(path: Path) -> Path:
    (job,) = ingests_of(LakeTable.open(path).opened.view.snapshot).values()
    return path / job.ledger[0].path


def commit(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def checkpoint(path: Path, version: int) -> Path:
    log = LakeTable.open(path).opened.handle.log
    log.checkpoint(log.snapshot(version=version))
    return path / "_delta_log" / f"{version:020d}.checkpoint.parquet"


# Damages


def cut(path: Path) -> None:
    base(path).write_bytes(base(path).read_bytes()[:-9])


def two_commits(path: Path) -> None:
    for version in (6, 7):
        garbled(commit(path, version))


def unsound(path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "check_sound", lambda *_: None)
        LakeTable.open(path).upsert(pa.table({"k": pa.array([1]), "o": pa.array([7]), "v": bad}))


def overflow(path: Path) -> None:
    shutil.rmtree(path)
    options = {"aggregates": {"o": "sum"}}
    table = create(
        path, schema="k BIGINT, o BIGINT", ordering=[], merger="aggregate", options=options, properties=QUIET
    )
    for _ in range(2):
        table.upsert(frame([(1, 2**62)], ["k", "o"]))


def broken_domain(path: Path) -> None:
    table = LakeTable.open(path)
    broken: list[Action] = [DomainMetadata("lakemerge.log.broken", "{}")]
    table.opened.handle.log.commit(table.opened.view.snapshot, lambda _: Attempt(broken), operation="W", parameters={})


def hole(path: Path) -> None:
    checkpoint(path, 6)
    commit(path, 3).unlink()


def foreign_checkpoint(path: Path) -> None:
    other = path.parent / "other"
    table = create(other, properties=QUIET)
    for number in range(9):
        table.upsert(frame([(1, number, "x")]))
    shutil.copy(checkpoint(other, 9), path / "_delta_log")


def ledger_of_later(path: Path) -> None:
    def later(rows: pa.Table) -> pa.Table:
        place = rows.column_names.index("window")
        windows = pa.array([99] * rows.num_rows, rows.schema.field("window").type)
        return rows.set_column(place, rows.schema.field("window"), windows)

    rewrite(ledger(path), later)


# Repairs


def replayed(path: Path) -> Path:
    """The compaction that wrote the base file read version 4, whose files are there still."""
    into = path.parent / "replayed"
    LakeTable.open(path).replay(into, since=4)
    return into


def copied(path: Path) -> Path:
    into = path.parent / "copied"
    found = LakeTable.check(path).version
    assert found is not None
    LakeTable.open(path, version=found).copy_to(into)
    return into


def repaired(path: Path) -> Path:
    result = LakeTable.check(path, repair=True)
    assert result.repaired
    assert "repaired: " in str(result)
    return path


def written_again(path: Path) -> Path:
    table = LakeTable.open(path)
    table.upsert(frame([(1, 8, "x")]))
    table.compact()
    return path


def corrected(path: Path) -> Path:
    LakeTable.open(path).upsert(frame([(1, -(2**62))], ["k", "o"]))
    return path


def restored(path: Path) -> Path:
    LakeTable.open(path).restore(version=7)
    return path


def cleaned(path: Path) -> Path:
    table = LakeTable.open(path)
    table.alter(properties={"delta.logRetentionDuration": "interval 1 hours"})
    for file in (path / "_delta_log").iterdir():
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 7200))
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    return path


def reset(path: Path) -> Path:
    LakeTable.open(path).ingest("job").reset(seen="forget")
    return path


class Newest(RowMerger):
    id = "5d0b7b37-7f7e-4a3c-8a3f-1f6a7e6b2c11"
    name = "test:newest"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return newer


@dataclass(frozen=True, slots=True)
class Case:
    damage: Callable[[Path], object]
    repair: Repair
    loses: int = 0
    """How many of the newest commits are lost, because nothing else holds their records."""
    rows: Callable[[list[Row]], list[Row]] | None = None
    """The rows after the repair, where they are others than before the damage."""


CASES = {
    "file-missing": Case(lambda path: base(path).unlink(), replayed),
    "file-size": Case(cut, replayed),
    "file-changed": Case(lambda path: rewrite(base(path), swapped), replayed),
    "value-unsound": Case(
        unsound, written_again, rows=lambda rows: sorted([*(r for r in rows if r[0] != 1), (1, 8, "x")], key=repr)
    ),
    "merge-fails": Case(overflow, corrected, rows=lambda _: [(1, 2**62)]),
    "metadata-damaged": Case(broken_domain, restored),
    "commit-missing": Case(lambda path: commit(path, 6).unlink(), copied, loses=2),
    "commit-damaged": Case(two_commits, copied, loses=2),
    "latest-unreadable": Case(lambda path: garbled(commit(path, 7)), copied, loses=1),
    "old-commit-missing": Case(hole, cleaned),
    "checkpoint-damaged": Case(lambda path: garbled(checkpoint(path, 6)), repaired),
    "checkpoint-of-another-table": Case(foreign_checkpoint, repaired),
    "file-of-another-engine": Case(lambda path: (path / "part-00000-x.snappy.parquet").write_bytes(b"x"), repaired),
    "ingest-file-changed": Case(lambda path: garbled(ledger(path)), reset),
    "ledger-damaged": Case(ledger_of_later, reset),
}


def kinds_of(result: CheckResult) -> set[str]:
    return {finding.kind for finding in result.findings}


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_of_damage_has_its_repair(kind: str, whole: Path, tmp_path: Path) -> None:
    case = CASES[kind]
    path = shutil.copytree(whole, tmp_path / "t")
    expected = rows_of(LakeTable.open(path, version=LakeTable.open(path).version - case.loses).to_arrow())
    case.damage(path)
    before = LakeTable.check(path)
    assert kind in kinds_of(before), str(before)
    place = case.repair(path)
    after = LakeTable.check(place)
    assert after.ok, str(after)
    assert state_of(place) == (expected if case.rows is None else case.rows(expected))


def test_a_version_before_a_lost_block_index_is_restored(tmp_path: Path) -> None:
    """What the present version needs cannot be told. What the earlier one needs is looked for as a whole."""
    path = tmp_path / "t"
    table = create(path, properties=QUIET, settings=Settings(inline_blocks=1), buckets=4)
    table.upsert(frame([(k, 0, "base") for k in range(50)]))
    expected = state_of(path)
    table.upsert(frame([(k, 1, "x") for k in range(50)]))
    (index,) = (path / "_lakemerge" / "log").glob("*-index.parquet")
    index.unlink()
    assert kinds_of(LakeTable.check(path)) >= {"metadata-damaged"}
    LakeTable.open(path).restore(version=1)
    assert LakeTable.check(path).ok
    assert state_of(path) == expected


def test_a_merger_that_is_unknown_is_passed(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "k BIGINT, n BIGINT", key=["k"], merger=Newest(), mergers=[Newest], buckets=1
    )
    table.upsert(pa.table({"k": [1], "n": [1]}))
    assert kinds_of(LakeTable.check(tmp_path / "t")) == {"merger-unknown"}
    assert LakeTable.check(tmp_path / "t", mergers=[Newest]).ok


def test_the_guide_tells_each_kind_and_no_other() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", GUIDE, flags=re.MULTILINE)
    assert [name for name, *_ in told] == [kind.name for kind in KINDS]
    assert {kind.name for kind in KINDS} == {*CASES, "merger-unknown"}
    for name, _, repair, _ in told:
        (kind,) = (kind for kind in KINDS if kind.name == name)
        assert ("`lakemerge check TABLE --repair`" in repair) == kind.is_repaired, name


def test_what_a_version_names_is_not_deleted_as_another_engines(whole: Path, tmp_path: Path) -> None:
    """Such a name may stand in the log of a table that was made from one of another engine."""
    path = shutil.copytree(whole, tmp_path / "t")
    named, unnamed = path / "part-00000-a.parquet", path / "part-00000-b.parquet"
    for file in (named, unnamed):
        pq.write_table(pa.table({"x": [1]}), file)
    table = LakeTable.open(path)
    about: list[Action] = [DomainMetadata("custom.note", f'"{named.name}"')]
    table.opened.handle.log.commit(table.opened.view.snapshot, lambda _: Attempt(about), operation="W", parameters={})
    result = LakeTable.check(path, repair=True)
    assert (named.exists(), unnamed.exists()) == (True, False)
    assert [finding.path for finding in result.findings] == [named.name]


def test_a_repair_of_a_whole_table_changes_nothing(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "t")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    result = LakeTable.check(path, repair=True)
    assert (result.ok, result.repaired) == (True, ())
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
