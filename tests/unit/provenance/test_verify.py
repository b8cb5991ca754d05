"""``verify_merger``: a merger on the table's own records, delivered in other ways."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable, Laws, Merger, RowMerger, Settings
from lakemerge.cli import main
from mergers import TableShape
from mergers.contract import Groups, Merged
from tests.property.effort import some

DDL = "id BIGINT, n BIGINT, s STRING, at BIGINT"


class Distance(RowMerger):
    """Says that it is associative. |(|a - b|) - c| is not |a - |b - c||."""

    id = "5f0d0be4-0f0f-4c51-8d34-0d6c4a3f7a01"
    name = "distance"

    def merge(self, older: Mapping[str, Any], newer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**newer, "n": abs(older["n"] - newer["n"])}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(associative=True)


class Newest(RowMerger):
    """Says that late records do not matter, and lets the last one win."""

    id = "5f0d0be4-0f0f-4c51-8d34-0d6c4a3f7a02"
    name = "newest"

    def merge(self, older: Mapping[str, Any], newer: Mapping[str, Any]) -> Mapping[str, Any]:
        return newer

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(associative=True, commutative=True, selective=True)


class Counting(Newest):
    """Says that repeats do not matter, and counts them."""

    id = "5f0d0be4-0f0f-4c51-8d34-0d6c4a3f7a03"
    name = "counting"

    def merge(self, older: Mapping[str, Any], newer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**newer, "n": older["n"] + newer["n"]}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(associative=True, replay_safe=True)


class Copying(Counting):
    """Says that a row is one of the records, and makes it."""

    id = "5f0d0be4-0f0f-4c51-8d34-0d6c4a3f7a04"
    name = "copying"

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(selective=True)


class Forgetting(Merger):
    """No fold: only the number of records that it sees at once decides, so a compaction shows."""

    id = "5f0d0be4-0f0f-4c51-8d34-0d6c4a3f7a05"
    name = "forgetting"

    def merge_groups(self, groups: Groups) -> Merged:
        sizes = groups.sizes
        winner = groups.offsets[1:] - 1
        return Merged(np.ones(len(sizes), dtype=np.int8), winner, {"n": pa.array(sizes)})


class Shortsighted(Counting):
    """Says that ``s`` alone makes ``s``, and looks at ``n``."""

    id = "5f0d0be4-0f0f-4c51-8d34-0d6c4a3f7a06"
    name = "shortsighted"

    def merge(self, older: Mapping[str, Any], newer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**newer, "s": "high" if (newer.get("n") or 0) > 2 else "low"}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws()

    def needs(self, shape: TableShape, columns: Any) -> frozenset[str]:
        return frozenset(columns)


def written(
    folder: Path,
    merger: str | Merger,
    options: Mapping[str, object] | None = None,
    *,
    ordering: Sequence[str] = ("at",),
    partial: bool = False,
    deletes: bool = False,
    keys: int = 25,
) -> LakeTable:
    """A table with some history: late and equal orderings, repeats in a commit, and a compaction in the middle."""
    # By name: an instance is shown with its address, which is another one in each run.
    rng = random.Random(f"{merger.name if isinstance(merger, Merger) else merger}{options}{partial}")
    table = LakeTable.create(
        folder / "t", DDL, key=["id"], ordering=ordering, merger=merger, options=options, buckets=2
    )
    for commit in range(6):
        ids = [rng.randrange(keys) for _ in range(keys)]
        columns: dict[str, list[Any]] = {
            "id": ids,
            "n": [rng.randrange(5) for _ in ids],
            "s": [rng.choice("abc") for _ in ids],
            "at": [rng.randrange(9) for _ in ids],
        }
        if partial and commit % 2:
            del columns[rng.choice("ns")]
        if deletes and commit == 4:
            columns["_op"] = [rng.choice(["+U", "-D"]) for _ in ids]
        table.upsert(pa.table(columns), kind_column="_op" if "_op" in columns else None)
        if commit == 2:
            table.compact()
    return table


BuiltIn = tuple[str, dict[str, object] | None, Sequence[str], bool]
BUILT_IN: list[BuiltIn] = [
    ("event-time", None, ("at",), True),
    ("commit-time", None, (), True),
    ("first-row", None, ("at",), False),
    ("first-row", None, (), False),
    ("partial-update", None, ("at",), False),
    ("partial-update", None, (), False),
    ("partial-update", {"sequence_groups": {"at": ["n", "s"]}}, (), False),
    ("aggregate", {"aggregates": {"n": "sum", "s": "max"}}, ("at",), False),
    ("aggregate", {"aggregates": {"n": "count", "s": "listagg"}}, (), False),
    ("aggregate", {"aggregates": {"n": "product"}, "remove_record_on_delete": True}, ("at",), True),
    ("expression", {"columns": {"n": "old.n + new.n"}}, ("at",), True),
    ("expression", {"columns": {"n": "greatest(old.n, new.n)"}, "remove_when": "new.s = 'c'"}, (), True),
    ("expression", None, ("at",), True),
    ("overwrite-non-defaults", {"defaults": {"n": 0}}, (), False),
]


@pytest.mark.parametrize(("case", "partial"), some([*itertools.product(BUILT_IN, (False, True))]), ids=str)
def test_built_in_mergers_keep_what_they_declare(tmp_path: Path, case: BuiltIn, partial: bool) -> None:
    merger, options, ordering, deletes = case
    table = written(tmp_path, merger, options, ordering=ordering, deletes=deletes, partial=partial)
    found = table.verify_merger()
    assert found.is_sound, str(found)
    assert (found.keys > 20, found.records > 60, found.begins) == (True, True, 1)
    assert {"compacted", "projected", "combined", "doubled", "shuffled"} <= {check.name for check in found.checks}
    assert all(check.promised for check in found.checks if check.law is None)


@pytest.mark.parametrize(
    ("merger", "check", "records"),
    [
        (Distance(), "combined", 3),
        (Newest(), "shuffled", 2),
        (Counting(), "doubled", None),
        (Copying(), "selective", None),
        (Forgetting(), "compacted", None),
        (Shortsighted(), "projected", None),
    ],
    ids=lambda given: given.name if isinstance(given, Merger) else "",
)
def test_a_broken_promise_is_found(tmp_path: Path, merger: Merger, check: str, records: int | None) -> None:
    """Each of these mergers makes one promise that it does not keep. What is found is small."""
    table = written(tmp_path, merger)
    found = table.verify_merger()
    assert check in [broken.name for broken in found.broken]
    (broken,) = [each for each in found.broken if each.name == check]
    assert broken.counterexample is not None
    if records is not None:
        assert len(broken.counterexample.records) + (broken.counterexample.stored is not None) <= records
    assert str(found) == str(table.verify_merger())  # the same seed, the same answer
    assert "BROKEN" in str(found)
    assert broken.counterexample.expected != broken.counterexample.found


def test_the_smallest_history_is_true(tmp_path: Path) -> None:
    """The records of a counterexample are some of the key's own, and plain Python agrees with both rows."""
    found = written(tmp_path, Distance()).verify_merger()
    example = next(check.counterexample for check in found.broken if check.name == "combined")
    assert example is not None
    values = [row["n"] for _, _, row in example.records]
    start = [] if example.stored is None else [example.stored["n"]]
    assert f"n {_distance([*start, *values])}," in example.expected
    at = example.delivery.split(" combined first")[0]
    batch = ["abcdefgh".index(name) for name in at.replace(" and ", ", ").split(", ")]
    combined = _distance([values[place] for place in batch])
    rest = [*start, *values[: batch[0]], combined, *values[batch[-1] + 1 :]]
    assert f"n {_distance(rest)}," in example.found


def _distance(values: Sequence[int]) -> int:
    total = values[0]
    for value in values[1:]:
        total = abs(total - value)
    return total


def test_another_merger_and_laws_that_are_required(tmp_path: Path) -> None:
    table = written(tmp_path, "event-time")
    version = table.version
    assert table.verify_merger("commit-time").is_sound
    (broken,) = table.verify_merger("commit-time", require=["commutative"]).broken
    assert broken.counterexample is not None
    assert len(broken.counterexample.records) == 2
    assert "in the order b, a" in broken.counterexample.delivery
    options = {"columns": {"n": "old.n + new.n"}, "default": "newer"}
    assert table.verify_merger("expression", options, require=["commutative"]).is_sound
    assert {check.name for check in table.verify_merger("expression", options, require=["replay_safe"]).broken} == {
        "doubled"
    }
    assert table.version == version


def test_samples_are_bounded(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", DDL, key=["id"], merger="partial-update", buckets=4)
    table.upsert(pa.table({"id": [-1], "n": [0], "s": ["x"], "at": [0]}))
    for _ in range(3):
        ids = [*range(100), *[7] * 200]
        table.upsert(pa.table({"id": ids, "n": [1] * 300, "s": ["x"] * 300, "at": [0] * 300}))
    few = table.verify_merger(sample_keys=10)
    assert few.keys == 10
    assert few.records <= 9 * 3 + 64
    others = table.verify_merger(sample_keys=10, seed=5)
    assert others.keys == 10
    everything = table.verify_merger()
    assert (everything.keys, everything.records) == (100, 99 * 3 + 64)
    assert any("more than 64 records" in note for note in everything.notes)
    small = LakeTable.open(tmp_path / "t", settings=Settings(merge_budget_bytes=2**12)).verify_merger()
    assert 0 < small.keys < 100
    assert any("fewer keys" in note for note in small.notes)


def test_what_cannot_be_verified(tmp_path: Path) -> None:
    table = written(tmp_path, "event-time")
    for given, says in (
        ({"sample_keys": 0}, "sample_keys must be at least 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"require": ["fair"]}, "no law 'fair'; the laws are associative"),
        ({"since": 99}, "since must be a version"),
    ):
        with pytest.raises(InputError, match=says):
            table.verify_merger(**given)
    empty = LakeTable.create(tmp_path / "empty", DDL, key=["id"])
    found = empty.verify_merger()
    assert (found.is_sound, found.keys, found.notes) == (True, 0, ("the table has no records",))


def test_keys_whose_merge_fails_are_left_out(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "id BIGINT, n TINYINT", key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}
    )
    table.upsert(pa.table({"id": [0], "n": pa.array([1], pa.int8())}))
    for _ in range(3):
        table.upsert(pa.table({"id": [1, 2], "n": pa.array([100, 1], pa.int8())}))
    found = table.verify_merger()
    assert found.is_sound
    assert any("1 key(s) are left out" in note for note in found.notes)


def test_the_command_has_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "commit-time", ordering=("at",))
    path = str(tmp_path / "t")
    assert main(["verify", path]) == 0
    assert "ok: compacted on the way" in capsys.readouterr().out
    assert main(["verify", path, "--require", "commutative", "--sample-keys", "20", "--seed", "3"]) == 1
    out = capsys.readouterr().out
    assert "BROKEN: late, within what the ordering allows (commutative): OTHER ROWS" in out
    assert "in the order b, a" in out
    options = '{"columns": {"n": "old.n + new.n"}}'
    assert main(["verify", path, "--merger", "expression", "--options", options, "--since", "2", "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert (told["sound"], told["merger"], told["checks"][0]["name"]) == (True, "expression", "compacted")
    assert main(["verify", path, "--require", "fair"]) == 2


def test_partial_totals_that_do_not_fit_refute_nothing(tmp_path: Path) -> None:
    """No plan combines or stores them: they stay apart, and in the log."""
    table = LakeTable.create(
        tmp_path / "t", "id BIGINT, n TINYINT", key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}
    )
    ids = range(20)
    for amount in (-100, 100, 100, 100, -100):
        table.upsert(pa.table({"id": ids, "n": pa.array([amount] * 20, pa.int8())}))
    found = table.verify_merger(rounds=6)
    assert found.is_sound, str(found)
    assert "combined" in {check.name for check in found.checks}


def test_an_aggregate_with_an_ordering_promises_nothing_of_late_records(tmp_path: Path) -> None:
    """What a transaction deleted keeps out an older record, but not one that comes after a newer one."""
    options = {"aggregates": {"n": "sum"}}
    table = LakeTable.create(
        tmp_path / "t",
        "id BIGINT, n BIGINT, at BIGINT",
        key=["id"],
        ordering=["at"],
        merger="aggregate",
        options=options,
    )
    table.upsert(pa.table({"id": [1], "n": [1], "at": [2]}))
    table.delete_where("id = 1")
    for at in (1, 3):
        table.upsert(pa.table({"id": [1], "n": [5], "at": [at]}))
    assert table.get({"id": 1}) == {"id": 1, "n": 5, "at": 3}
    assert table.verify_merger().is_sound
    (broken,) = table.verify_merger(require=["commutative"]).broken
    assert broken.counterexample is not None
    assert (broken.counterexample.expected, broken.counterexample.found) == ("id 1, n 5, at 3", "id 1, n 10, at 3")
