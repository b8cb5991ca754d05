"""The public runner of the conformance cases: LakeMerge passes through it, others are told apart, the data is whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakemerge import LakeTable
from mergers import default_registry
from mergers.conformance import CASES, MODES, load_cases, run
from tests import guides
from tests.conformance.runner import SUPPORTED
from tests.conformance.values import arrow_schema, frame_of, rows_of
from tests.property.effort import some


class Rows:
    """A table of LakeMerge, as the runner knows it."""

    def __init__(self, table: LakeTable) -> None:
        self.table = table
        self.schema = table.schema

    def write(self, columns: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        frame = frame_of(self.schema, columns, rows).append_column("_op", pa.array(kinds[: len(rows)], pa.string()))
        self.table.upsert(frame, kind_column="_op")

    def compact(self) -> None:
        self.table.compact()

    def read(self) -> Sequence[Sequence[Any]]:
        return rows_of(self.table.to_arrow())


class LakeMerge:
    def __init__(self, folder: Path) -> None:
        self.paths = (folder / str(number) for number in itertools.count())

    def create(self, definition: Mapping[str, Any]) -> Rows:
        table = LakeTable.create(
            next(self.paths),
            definition["schema"],
            key=definition["key"],
            ordering=definition["ordering"],
            merger=definition["merger"],
            options=definition["options"],
            partition_by=definition["partition_by"],
            buckets=1,
        )
        return Rows(table)


def test_lakemerge_passes(tmp_path: Path) -> None:
    cases = some([case for case in load_cases(SUPPORTED) if not case.needs])
    report = run(LakeMerge(tmp_path), cases, [MODES[0], MODES[3]])
    assert report.failures == ()
    assert report.left_out == 0
    assert report.played >= len(cases)


class DeltaRows:
    """A table of Delta, written by its MERGE: the last record of a key in a commit, as its guides advise."""

    def __init__(self, path: Path, definition: Mapping[str, Any]) -> None:
        self.path, self.key = str(path), definition["key"]
        self.schema = arrow_schema(definition["schema"])
        fields = [field.with_nullable(True) for field in self.schema]
        write_deltalake(self.path, pa.schema(fields).empty_table())

    def write(self, columns: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        values = frame_of(self.schema, columns, rows)
        keys = [tuple(row[columns.index(name)] for name in self.key) for row in rows]
        kept = [place for place, key in enumerate(keys) if kinds[place] != "-U"]
        last = {keys[place]: place for place in kept}
        source = values.append_column("_op", pa.array(kinds, pa.string())).take(pa.array([*last.values()], pa.int64()))
        same = " AND ".join(f"t.{name} = s.{name}" for name in self.key)
        (
            DeltaTable(self.path)
            .merge(source, same, source_alias="s", target_alias="t")
            .when_matched_delete("s._op = '-D'")
            .when_matched_update({name: f"s.{name}" for name in columns})
            .when_not_matched_insert({name: f"s.{name}" for name in columns}, "s._op != '-D'")
            .execute()
        )

    def compact(self) -> None:
        DeltaTable(self.path).optimize.compact()

    def read(self) -> Sequence[Sequence[Any]]:
        return rows_of(pa.table(DeltaTable(self.path).to_pyarrow_table()))


class Delta:
    def __init__(self, folder: Path) -> None:
        self.paths = (folder / str(number) for number in itertools.count())

    def create(self, definition: Mapping[str, Any]) -> DeltaRows:
        path = next(self.paths)
        path.mkdir()
        return DeltaRows(path, definition)


def test_the_merge_of_delta_speaks_commit_time(tmp_path: Path) -> None:
    """Another engine, which knows nothing of ours, gives every row of every history. Its tables are without NOT NULL,
    and it checks no maps, so it refuses less."""
    cases = [case for case in load_cases({"commit-time"}) if not (case.needs or case.table["options"])]
    report = run(Delta(tmp_path), [case for case in cases if not case.create_error], MODES[:1])
    assert report.played > 8
    assert [failure for failure in report.failures if "must be refused" not in failure.problem] == []


def test_a_case_of_the_guide_and_its_engine() -> None:
    names = guides.run("conformance.md", guides.blocks("conformance.md"))
    report: Any = names["report"]
    assert report.played > 50
    (block,) = guides.blocks("conformance.md", "json")
    assert {"name", "table", "steps"} <= json.loads(block).keys()


@pytest.mark.parametrize("fault", ["refuses", "loses", "accepts", "compacts"])
def test_the_runner_finds_faults(tmp_path: Path, fault: str) -> None:
    class Faulty(Rows):
        def write(self, columns: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
            if fault == "refuses":
                raise ValueError("no")
            try:
                super().write(columns, kinds, rows[: -1 if fault == "loses" else None])
            except Exception:
                if fault != "accepts":
                    raise

        def compact(self) -> None:
            if fault == "compacts":
                self.table.delete(self.table.to_arrow().select(self.table.key))

    class Engine(LakeMerge):
        def create(self, definition: Mapping[str, Any]) -> Rows:
            return Faulty(super().create(definition).table)

    wanted = {"refuses": "no", "loses": "missing", "accepts": "must be refused", "compacts": "missing"}[fault]
    cases = [case for case in load_cases({"partial-update" if fault == "accepts" else "event-time"}) if not case.needs]
    if fault == "accepts":
        cases = [case for case in cases if any("error" in step for step in case.steps)]
    report = run(Engine(tmp_path), cases[:8], [replace(MODES[2])])
    assert any(wanted in failure.problem for failure in report.failures), report.failures


def test_the_data_names_each_merger_by_its_uuid() -> None:
    ids = {merger.name: merger.id for merger in default_registry()}
    assert json.loads(CASES.with_name("mergers.json").read_text()) == {
        name: ids[name] for name in SUPPORTED if name is not None and not name.startswith("custom:")
    }
    cases = load_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert f"{len(cases)} tables" in guides.text_of("conformance.md")
    known = [case for case in cases if not case.create_error and "class" not in case.needs]
    assert all(case.table["merger_id"] in ids.values() for case in known)
