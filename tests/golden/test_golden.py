"""Tables written by earlier versions stay what they were: readable at every version, with the rows they
had, and ready to go on. See ``make.py``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasketches
import pyarrow as pa
import pyroaring
import pytest

from lakemerge import InputError, LakeTable, VersionNotFoundError
from lakemerge.merge_source import MergeSource
from mergers import default_registry
from tests.conformance.values import arrow_schema, from_json, multiset, rows_of
from tests.golden.cases import CASES, Case
from tests.golden.features import FEATURES, Feature, job_of, land, put, sources_of
from tests.golden.make import SOURCE, make, make_feature
from tests.merger_ids import IDS

FOLDER = Path(__file__).parent
FIRST_COMMIT = f"table/_delta_log/{0:020d}.json"
GOLDEN = sorted(path.parent.name for path in FOLDER.glob("*/expected.json"))

_OPENED: Mapping[str, Callable[[bytes], object]] = {
    "hll": lambda data: round(datasketches.hll_sketch.deserialize(data).get_estimate()),
    "theta": lambda data: round(datasketches.compact_theta_sketch.deserialize(data).get_estimate()),
    "bitmap": lambda data: sorted(pyroaring.BitMap.deserialize(data)),
    "bitmap64": lambda data: sorted(pyroaring.BitMap64.deserialize(data)),
}
_DECODED = {"hll": pa.int64(), "theta": pa.int64(), "bitmap": pa.list_(pa.int64()), "bitmap64": pa.list_(pa.int64())}


class Golden:
    """One golden table, copied."""

    def __init__(self, name: str, folder: Path) -> None:
        self.told: Mapping[str, Any] = json.loads((FOLDER / name / "expected.json").read_text())
        self.path = folder / "table"
        shutil.copytree(FOLDER / name, folder, dirs_exist_ok=True)
        self.schema = arrow_schema(self.told["ddl"])
        self.decode: Mapping[str, str] = self.told["decode"]

    @property
    def latest(self) -> str:
        return max(self.told["versions"], key=int)

    def check(self, actual: pa.Table, version: str, about: str) -> None:
        """The rows are those of that version."""
        expected: Sequence[Sequence[Any]] = self.told["versions"][version]
        told = self.told.get("columns", {}).get(version)
        schema = self.schema if told is None else arrow_schema(told)
        names = schema.names[: len(expected[0])]
        assert actual.schema.names == names, about
        kinds = [_DECODED.get(self.decode.get(name, ""), schema.field(name).type) for name in names]
        openers = [_OPENED.get(self.decode.get(name, "")) for name in names]
        found = [
            tuple(v if o is None or v is None else o(v) for v, o in zip(row, openers, strict=True))
            for row in rows_of(actual)
        ]
        wanted = [tuple(from_json(v, k) for v, k in zip(row, kinds, strict=True)) for row in expected]
        assert multiset(found, kinds) == multiset(wanted, kinds), about


@pytest.fixture(params=GOLDEN)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(request.param, tmp_path)


def test_every_builtin_has_a_golden_table_and_its_id() -> None:
    assert sorted(case.name for case in (*CASES, *FEATURES)) == GOLDEN
    found = {merger.name: merger.id for merger in default_registry() if merger.__module__.startswith("mergers.")}
    assert found == IDS
    assert {case.merger for case in CASES} == set(IDS)


def test_what_the_table_says_of_itself(golden: Golden) -> None:
    config = LakeTable.open(golden.path).opened.view.config
    assert (config.merger_name, config.merger_id) == (golden.told["merger"], IDS[golden.told["merger"]])
    # The checked trees of rules are there beside the options that were given.
    given = {name: value for name, value in config.merger_options.items() if name != "checked"}
    assert given == golden.told["options"]
    assert config.merger(default_registry()).options() == config.merger_options
    assert [*config.key] == golden.told["key"]
    assert [*config.ordering] == golden.told["ordering"]
    assert [*config.partition_by] == golden.told["partition_by"]


def test_rows_before_and_after_a_compaction(golden: Golden) -> None:
    table = LakeTable.open(golden.path)
    assert str(table.version) == golden.latest
    assert table.opened.view.base_files
    assert table.opened.view.log_commits, "the table ends with logs"
    golden.check(table.to_arrow(), golden.latest, "as it was")
    assert table.compact().file_slices
    golden.check(LakeTable.open(golden.path).to_arrow(), golden.latest, "compacted")


def test_rows_of_every_version(golden: Golden) -> None:
    LakeTable.open(golden.path).compact()
    for version in golden.told["versions"]:
        then = LakeTable.open(golden.path, version=int(version))
        golden.check(then.to_arrow(), version, f"version {version}")


@pytest.mark.parametrize("name", [name for name in GOLDEN if (FOLDER / name / FIRST_COMMIT).exists()])
def test_the_log_without_its_checkpoint_says_the_same(name: str, tmp_path: Path) -> None:
    golden = Golden(name, tmp_path)
    checkpoints = list((golden.path / "_delta_log").glob("*.checkpoint.parquet"))
    assert checkpoints
    before = LakeTable.open(golden.path).opened.view.snapshot
    (golden.path / "_delta_log" / "_last_checkpoint").unlink()
    for checkpoint in checkpoints:
        checkpoint.unlink()
    after = LakeTable.open(golden.path).opened.view.snapshot
    assert (after.files, after.metadata, after.domains) == (before.files, before.metadata, before.domains)


def test_tombstones_keep_stale_records_out(tmp_path: Path) -> None:
    """The event-time table deleted some keys before its compaction."""
    golden = Golden("event-time", tmp_path)
    table = LakeTable.open(golden.path)
    assert any(base.tombstones is not None for base in table.opened.view.base_files)
    assert any(commit.index is not None for commit in table.opened.view.log_commits)
    table.upsert(pa.table({"p": ["north"], "k": [2], "o": [19], "v": ["stale"]}))
    golden.check(table.to_arrow(), golden.latest, "a stale record")
    table.upsert(pa.table({"p": ["north"], "k": [2], "o": [20], "v": ["not stale"]}))
    assert table.to_arrow(filter="k = 2").to_pylist() == [{"p": "north", "k": 2, "o": 20, "v": "not stale"}]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: str(feature.name))
def test_a_table_has_the_part_of_the_format_that_it_is_for(feature: Feature, tmp_path: Path) -> None:
    snapshot = LakeTable.open(Golden(feature.name, tmp_path).path).opened.view.snapshot
    for prefix in feature.domains:
        assert any(name.startswith(prefix) for name in snapshot.domains), prefix
    features = {*(snapshot.protocol.reader_features or ()), *(snapshot.protocol.writer_features or ())}
    assert features >= {*feature.features}
    assert {entry.operation for entry in LakeTable.open(tmp_path / "table").history()} >= {*feature.operations}
    assert feature.domains or feature.features or feature.operations


def test_what_a_table_keeps(tmp_path: Path) -> None:
    table = LakeTable.open(Golden("kept", tmp_path).path)
    assert [(kept.name, kept.hold) for kept in table.savepoints()] == [("first", False), ("kept", True)]
    (consumer,) = table.consumers.list()
    assert (consumer.name, consumer.version) == ("follower", 1)
    with pytest.raises(InputError, match="hold 'kept'"):
        table.vacuum(dry_run=False)


def test_buckets_and_united_logs(tmp_path: Path) -> None:
    table = LakeTable.open(Golden("rescaled", tmp_path).path)
    assert table.bucket_count == 4
    assert {base.buckets for base in table.opened.view.base_files} == {4}
    bodies = [
        json.loads(domain.configuration)
        for name, domain in table.opened.view.snapshot.domains.items()
        if name.startswith("lakemerge.log.") and not domain.removed
    ]
    assert ["from" in body for body in bodies].count(True) == 1, "one consolidated log"
    assert len(bodies) == 2


def test_base_files_divide_the_keys(tmp_path: Path) -> None:
    """A log of records of two of the ranges is live."""
    table = LakeTable.open(Golden("transactions", tmp_path).path)
    bases = table.opened.view.base_files
    assert [base.lower for base in bases] == [None, (2,), (3,)], "the first range is open below"
    table.upsert(pa.table({"k": [0, 3], "n": [1, 1]}))
    assert [tuple(row.values()) for row in table.to_arrow().sort_by("k").to_pylist()] == [
        (0, 1), (1, 11), (2, 19), (3, 9), (4, 1)
    ]  # fmt: skip


def test_records_of_before_a_vacuum_are_told(tmp_path: Path) -> None:
    golden = Golden("recorded", tmp_path)
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(golden.path, version=2)
    steps = LakeTable.open(golden.path).explain({"k": 1}, since=0).steps
    assert [step.values["v"] for step in steps] == ["late", "AA"]


def test_an_ingest_job_goes_on(tmp_path: Path) -> None:
    """It knows its files by their paths, so those of the copy are others."""
    golden = Golden("ingest", tmp_path)
    job = job_of(golden.path)
    assert {Path(file.path).name: str(file.state) for file in job.files()} == dict.fromkeys(
        ("a.json", "b.json", "c.json"), "committed"
    )
    assert job.rejects().num_rows == 1
    assert [window.files for window in (job.run(), job.run())] == [3, 0]
    golden.check(LakeTable.open(golden.path).to_arrow(), golden.latest, "the same records again")
    land(golden.path, "d.json", '{"k": 3, "o": 2, "v": "C"}\n')
    assert job.run().files == 1
    assert LakeTable.open(golden.path).get({"k": 3}) == {"k": 3, "o": 2, "v": "C"}


def test_a_merge_source_goes_on(tmp_path: Path) -> None:
    """Ids stay, and no row is emitted twice. The configuration names the datasets of the copy."""
    shutil.copytree(SOURCE, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "table"
    source = MergeSource.open(path)
    before = {row["_id"]: row for row in source.table.to_arrow().to_pylist()}
    assert members(before) == {"1": ["0|a1"], "2": ["0|a2", "0|a3", "1|b2"], "3": [], "4": ["1|b1"]}
    assert before["3"]["$replaced_by"] == "2"
    assert before["1"]["$split_into"] == ["1", "4"]
    assert source.run(config=sources_of(path)).emitted == 0
    put(path, "b", [("b3", 1)])
    source.run()
    after = {row["_id"]: row for row in source.table.to_arrow().to_pylist()}
    assert members(after) == {**members(before), "1": ["0|a1", "1|b3"]}
    assert source.check().findings == ()


def members(rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Sequence[str]]:
    return {name: [f"{one['dataset']}|{one['id']}" for one in row["_members"] or ()] for name, row in rows.items()}


def test_the_folder_stays_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 1_500_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_the_script_still_makes_such_tables(case: Case, tmp_path: Path) -> None:
    """Written today, with the rows of today's model, or those that the case gives: the same as were kept."""
    make(case, tmp_path / case.name)
    made, kept = (json.loads((folder / case.name / "expected.json").read_text()) for folder in (tmp_path, FOLDER))
    # Versions have other numbers as soon as some operation makes more or fewer commits.
    assert list(made.pop("versions").values()) == list(kept.pop("versions").values())
    assert made == kept


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: str(feature.name))
def test_the_script_still_makes_tables_of_each_feature(feature: Feature, tmp_path: Path) -> None:
    make_feature(feature, tmp_path / feature.name)
    made, kept = (json.loads((folder / feature.name / "expected.json").read_text()) for folder in (tmp_path, FOLDER))
    assert list(made.pop("versions").values()) == list(kept.pop("versions").values())
    assert list(made.pop("columns").values()) == list(kept.pop("columns").values())
    assert made == kept
