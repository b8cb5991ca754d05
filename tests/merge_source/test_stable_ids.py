"""Stable ids: cases by hand and random histories, in incremental and full runs, with kills at each commit."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import InputError, LakeMergeError, LakeTable
from lakemerge.merge_source import MergeConfig, MergeSource, RunResult
from lakemerge.merge_source.run import _Run
from tests.merge_source.entities import Entities
from tests.merge_source.entity_model import EntityModel
from tests.merge_source.histories import History
from tests.property.effort import some

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "entity_cases.json").read_text())["cases"]
named = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))


class Killed(BaseException):
    pass


def killed_at(place: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[MergeSource], RunResult]:
    """Runs that are killed once before, between or after their two commits, and then run again."""

    def attempt(source: MergeSource) -> RunResult:
        with monkeypatch.context() as patch:
            name = "_publish" if place != "before the state" else "_commit"
            real = getattr(_Run, name)

            def dying(self: _Run, *given: Any) -> Any:
                if place == "after the output":
                    real(self, *given)
                raise Killed

            patch.setattr(_Run, name, dying)
            with pytest.raises(Killed):
                source.run()
        return source.run()

    return attempt


def model_of(case: Mapping[str, Any]) -> EntityModel:
    classes = [[("abc".index(side[0]), side[2:]) for side in rule.split(" = ")] for rule in case["rules"]]
    return EntityModel(classes, ["abc".index(name) for name in case.get("one_per_dataset", ())])


def world_of(case: Mapping[str, Any], folder: Path, spark: SparkSession | None = None) -> Entities:
    config = {"one_per_dataset": case["one_per_dataset"]} if "one_per_dataset" in case else {}
    return Entities(folder, case["rules"], spark, 3, overridden="override" in str(case["steps"]), **config)


def apply_to(model: EntityModel, step: Mapping[str, Any]) -> None:
    for name, rows in step.get("put", {}).items():
        for key, value in rows.items():
            x, y = value if isinstance(value, list) else (value, None)
            model.rows["ABC".index(name), key] = {"x": x, "y": y}
    for name, keys in step.get("drop", {}).items():
        for key in keys:
            model.rows["ABC".index(name), key] = None
    for key, (one, left, other, right, verdict) in step.get("override", {}).items():
        model.overrides[key] = ("abc".index(one.lower()), left), ("abc".index(other.lower()), right), verdict
    for key in step.get("withdraw", ()):
        del model.overrides[key]


def cuts_of(model: EntityModel) -> list[str]:
    return sorted(f"{value}: {one[0]}|{one[1]} {other[0]}|{other[1]}" for value, one, other in model.cuts)


def found_cuts(world: Entities) -> list[str]:
    """The links that were cut, as the model writes them."""
    cut = [one for one in world.source.findings() if one.kind in ("cut", "conflict", "more_than_one")]
    names = list(world.config.names)
    return sorted(
        f"{one.value}: " + " ".join(f"{names.index(dataset)}|{name}" for dataset, name in one.members) for one in cut
    )


@named
def test_the_model_gives_what_the_cases_say(case: dict[str, Any]) -> None:
    model = model_of(case)
    for step in case["steps"]:
        apply_to(model, step)
        assert model.run() == step["now"]
        assert cuts_of(model) == step.get("cuts", [])


@named
def test_incremental_runs(case: dict[str, Any], tmp_path: Path) -> None:
    world = world_of(case, tmp_path)
    for step in case["steps"]:
        world.apply(step)
        assert world.run() == step["now"]
        assert found_cuts(world) == step.get("cuts", [])
    assert world.run(full=True) == case["steps"][-1]["now"]
    assert found_cuts(world) == case["steps"][-1].get("cuts", [])


@pytest.mark.parametrize("case", some(CASES[1:]), ids=lambda case: str(case["name"]))
def test_full_runs(case: dict[str, Any], tmp_path: Path) -> None:
    world = world_of(case, tmp_path)
    for step in case["steps"]:
        world.apply(step)
        assert world.run(full=True) == step["now"]


@pytest.mark.parametrize("case", some(CASES[6:]), ids=lambda case: str(case["name"]))
@pytest.mark.parametrize("place", ["before the state", "before the output", "after the output"])
def test_runs_that_are_killed(
    case: dict[str, Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, attempt = world_of(case, tmp_path), killed_at(place, monkeypatch)
    for step in case["steps"]:
        world.apply(step)
        assert world.run(attempt=lambda: attempt(world.source)) == step["now"]


@pytest.mark.parametrize("seed", some(range(8)))
def test_a_random_history(seed: int, tmp_path: Path) -> None:
    lots = random.Random(seed)
    single = lots.choice([[], ["a"], ["b", "c"]])
    world = Entities(
        tmp_path, ["a.x = b.x", "a.x = c.x", "a.y = b.y"], count=3, overridden=True, one_per_dataset=single
    )
    classes = [[(0, "x"), (1, "x"), (2, "x")], [(0, "y"), (1, "y")]]
    model = EntityModel(classes, ["abc".index(name) for name in single])
    for _ in range(8):
        step = drawn(lots)
        if lots.random() < 0.6:
            pairs = [
                (lots.choice("abc"), f"k{lots.randrange(5)}", lots.choice("abc"), f"k{lots.randrange(5)}") for _ in "12"
            ]
            step["override"] = {
                f"o{lots.randrange(6)}": [*pair, lots.choice(["same", "different"])]
                for pair in pairs
                if pair[:2] != pair[2:]
            }
        if model.overrides and lots.random() < 0.3:
            gone = lots.choice(sorted(model.overrides))
            step["override"] = {key: one for key, one in step.get("override", {}).items() if key != gone}
            step["withdraw"] = [gone]
        world.apply(step)
        apply_to(model, step)
        assert world.run(full=lots.random() < 0.3) == model.run()
        assert found_cuts(world) == cuts_of(model)


@pytest.mark.parametrize("seed", some(range(300, 310)))
def test_full_and_incremental_runs_agree_whatever_the_options(seed: int, tmp_path: Path) -> None:
    """Over the tables, rules and options that the histories of plain sources draw: marks of deleted rows, chains that
    are too large, values in lists, rows that are forgotten, runs that are refused."""
    history = History(seed, tmp_path)
    sources: list[MergeSource] = []
    for _ in range(8):
        history.change()
        told = {**history.config, "identity": "stable", "one_per_dataset": ["a0"] if seed % 2 else []}
        config = history.world.config(told)
        if not sources:
            sources = [MergeSource.create(tmp_path / name, config) for name in ("now_and_then", "full")]
        outcomes = []
        for full, source in enumerate(sources):
            try:
                source.run(full=bool(full))
                outcomes.append("done")
            except LakeMergeError as error:
                outcomes.append(error.code)
            assert source.check().findings == ()
        assert outcomes[0] == outcomes[1]
        one, other = (rows_of(source) for source in sources)
        assert one == other
        assert sources[0].findings() == sources[1].findings()
    if outcomes == ["done", "done"]:
        assert sources[0].run(full=True).emitted == 0


def rows_of(source: MergeSource) -> list[dict[str, Any]]:
    rows = source.table.to_arrow().sort_by("_id").to_pylist()
    return [{name: value for name, value in row.items() if name != "_updated"} for row in rows]


def drawn(lots: random.Random) -> dict[str, Any]:
    put: dict[str, dict[str, Any]] = {}
    drop: dict[str, list[str]] = {}
    for name in lots.sample("ABC", lots.randint(1, 3)):
        keys = lots.sample(range(5), lots.randint(1, 4))
        values = [None, *range(5)]
        put[name] = {f"k{key}": [lots.choice(values), lots.choice(values)] for key in keys if lots.random() < 0.8}
        drop[name] = [f"k{key}" for key in keys if f"k{key}" not in put[name]]
    return {"put": {n: rows for n, rows in put.items() if rows}, "drop": {n: keys for n, keys in drop.items() if keys}}


def small(folder: Path) -> Entities:
    """Ids 1 of a1 and b1, and 2 of a2."""
    world = Entities(folder, ["a.x = b.x"])
    world.apply({"put": {"A": {"a1": 1, "a2": 2}, "B": {"b1": 1}}})
    world.source.run()
    return world


def test_the_change_feed_tells_who_replaced_whom_and_what_was_split(tmp_path: Path) -> None:
    world = small(tmp_path)
    before = world.source.table.version
    world.apply({"put": {"A": {"a2": 1}}})
    world.source.run()
    told = pa.Table.from_batches(world.source.table.changes(before)).to_pylist()
    assert [(one["_id"], one["$replaced_by"]) for one in told if one["_row_kind"] == "+U" and one["$replaced"]] == [
        ("2", "1")
    ]
    before = world.source.table.version
    world.apply({"put": {"A": {"a2": 2}}})
    world.source.run()
    told = pa.Table.from_batches(world.source.table.changes(before)).to_pylist()
    assert [one["$split_into"] for one in told if one["_row_kind"] == "+U" and one["_id"] == "1"] == [["1", "3"]]


def test_current_ids_follow_an_id_over_several_steps(tmp_path: Path) -> None:
    world = small(tmp_path)
    world.apply({"put": {"A": {"a2": 1}}})
    world.source.run()
    assert world.source.current_ids("2") == ["1"]
    world.apply({"put": {"A": {"a1": 7, "a2": 8}}})
    world.source.run()
    assert world.source.current_ids("2") == ["1", "3", "4"]
    world.drop("B", ["b1"])
    world.source.run()
    assert world.source.current_ids("1") == world.source.current_ids("2")
    with pytest.raises(InputError, match="no entity '77'"):
        world.source.current_ids("77")


def test_a_dry_run_lists_ids_and_changes_none(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"])
    world.apply({"put": {"A": {"a1": 1, "a2": 2, "a3": 3}, "B": {"b1": 1}}})
    ids = world.source.run(dry_run=True).ids
    assert ids is not None
    assert (ids.appear, ids.join, ids.split, ids.go) == (("1", "2", "3"), {}, {}, ())
    assert world.source.run().ids is None
    world.apply({"put": {"A": {"a2": 4, "a4": 4}, "B": {"b1": 4}}, "drop": {"A": ["a3"]}})
    ids = world.source.run(dry_run=True).ids
    assert ids is not None
    assert (ids.appear, ids.join, ids.split, ids.go) == ((), {}, {"1": ("1", "2")}, ("3",))
    assert "1 would be split into 1, 2" in str(ids)
    assert world.source.run(dry_run=True).ids == ids
    world.source.run()
    ids = world.source.run(dry_run=True).ids
    assert ids is not None
    assert (ids.appear, ids.join, ids.split, ids.go) == ((), {}, {}, ())


def test_a_dry_run_lists_composite_ids_too(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"], identity="composite")
    world.apply({"put": {"A": {"a1": 1, "a2": 2}, "B": {"b1": 3}}})
    world.source.run()
    world.apply({"put": {"B": {"b1": 1}}, "drop": {"A": ["a2"]}})
    ids = world.source.run(dry_run=True).ids
    assert ids is not None
    assert ids.appear == ("0|a1|1|b1",)
    assert ids.join == {"0|a1": "0|a1|1|b1", "1|b1": "0|a1|1|b1"}
    assert (ids.split, ids.go) == ({}, ("0|a2",))


def test_datasets_in_another_order_keep_ids(tmp_path: Path) -> None:
    world = small(tmp_path)
    turned = MergeConfig(
        datasets={"b": world.tables["B"], "a": world.tables["A"]},
        equality=["a.x = b.x"], identity="stable", max_retired=1.0,
    )  # fmt: skip
    world.source.run(full=True, config=turned)
    assert world.now() == {"1": {"rows": ["0|b1", "1|a1"]}, "2": {"rows": ["1|a2"]}}


def test_an_output_or_a_state_that_was_restored_costs_no_id(tmp_path: Path) -> None:
    for number, name in enumerate(("out", "out_state")):
        world = small(tmp_path / str(number))
        table = LakeTable.open(tmp_path / str(number) / name)
        version = table.version
        world.apply({"put": {"A": {"a3": 3}, "B": {"b1": 5}}})
        world.source.run()
        table = LakeTable.open(tmp_path / str(number) / name)
        table.restore(version=version)
        world.source.run(full=True)
        assert world.source.check().ok
        now = {key: told["rows"] for key, told in world.now().items()}
        assert now.pop("1") == ["0|a1"]
        assert now.pop("2") == ["0|a2"]
        assert sorted(now.values()) == [["0|a3"], ["1|b1"]]
        world.apply({"put": {"A": {"a9": 9}}})
        world.source.run()
        assert max(world.now(), key=int) not in now


def test_from_another_identity_and_back(tmp_path: Path) -> None:
    world = small(tmp_path)
    world.source.run(config=dataclasses.replace(world.config, identity="first"))
    first = world.now()
    assert {key for key, told in first.items() if not told.get("deleted")} == {"a1", "a2"}
    assert first["1"] == {"deleted": True, "replaced": True}
    world.source.run(config=world.config)
    now = world.now()
    assert now["3"] == {"rows": ["0|a1", "1|b1"]}
    assert now["4"] == {"rows": ["0|a2"]}
    assert now["a1"] == {"deleted": True, "replaced": True, "replaced_by": "3"}


def test_forgotten_rows_go_and_the_number_is_not_given_again(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"], deleted_retention=0)
    world.apply({"put": {"A": {"a1": 1, "a2": 2}}})
    world.source.run()
    world.drop("A", ["a2"])
    world.source.run()
    assert world.now()["2"] == {"rows": ["0|a2"], "deleted": True}
    world.source.run()
    assert world.now() == {"1": {"rows": ["0|a1"]}}
    world.put("A", {"a2": 2})
    assert world.run() == {"1": {"rows": ["0|a1"]}, "3": {"rows": ["0|a2"]}}


def test_the_entities_of_one_source_are_rows_of_another(tmp_path: Path) -> None:
    world = small(tmp_path)
    again = MergeSource.create(tmp_path / "again", MergeConfig(datasets={"o": world.source.table}, identity="stable"))
    again.run()
    world.apply({"put": {"A": {"a2": 1}}})
    world.source.run()
    again.run()
    assert again.table.schema.names == [*again.table.schema.names[:8], "x", "y"]
    assert [row["_id"] for row in again.table.to_arrow().to_pylist() if not row["_deleted"]] == ["1"]
