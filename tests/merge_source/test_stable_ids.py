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
from tests.merge_source.entities import Entities, Rows
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
    before: Rows = {}
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
        now = world.run(full=lots.random() < 0.3)
        assert now == model.run()
        assert found_cuts(world) == cuts_of(model)
        check_succession(before, now)
        before = now


@pytest.mark.long
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


def check_succession(before: Rows, now: Rows) -> None:
    """No id is given to another entity, none lives again once it is retired, and whoever follows it arrives."""
    for name, told in now.items():
        if name not in before:
            assert int(name) > max(map(int, before), default=0)
        elif "rows" in before[name]:
            assert "rows" not in told or set(before[name]["rows"]) & set(told["rows"])
        else:
            assert "rows" not in told
            assert told["replaced_by"] == before[name]["replaced_by"]
    for name in now:
        chain = [name]
        while "replaced_by" in now[chain[-1]]:
            chain.append(now[chain[-1]]["replaced_by"])
            assert len(set(chain)) == len(chain)
        assert "rows" in now[chain[-1]]


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


def test_current_ids_come_step_by_step(tmp_path: Path) -> None:
    """1 was split into 2 and then into 4; 2 was split into 3. So 4 is one step away, and 3 is two."""
    world = Entities(tmp_path, ["a.x = b.x"])
    world.apply({"put": {"A": {"a1": 1}, "B": {"b1": 1, "b2": 1, "b3": 1}}})
    world.source.run()
    for step in ({"A": {"a2": 2}, "B": {"b2": 2, "b3": 2}}, {"B": {"b3": 3}}, {"B": {"b1": 4}}):
        world.apply({"put": step})
        world.source.run()
    told = world.now()
    assert (told["1"]["split_into"], told["2"]["split_into"]) == (["1", "2", "4"], ["2", "3"])
    assert world.source.current_ids("1") == ["1", "2", "4", "3"]


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
    world.source.run()
    # The output has a row of 0|a1, which is retired, and of 0|a2, which is deleted: both appear when they live again.
    world.apply({"put": {"A": {"a2": 2}, "B": {"b1": 7}}})
    ids = world.source.run(dry_run=True).ids
    assert ids is not None
    assert (ids.appear, ids.go) == (("0|a1", "0|a2", "1|b1"), ())


def test_datasets_in_another_order_keep_ids(tmp_path: Path) -> None:
    world = small(tmp_path)
    turned = MergeConfig(
        datasets={"b": world.tables["B"], "a": world.tables["A"]},
        equality=["a.x = b.x"], identity="stable", max_retired=1.0,
    )  # fmt: skip
    world.source.run(full=True, config=turned)
    assert world.now() == {"1": {"rows": ["0|b1", "1|a1"]}, "2": {"rows": ["1|a2"]}}


@pytest.mark.long
def test_a_restored_output_costs_no_id(tmp_path: Path) -> None:
    """The state knows the ids that were given since, and which of those in the output are retired."""
    world = small(tmp_path)
    version = world.source.table.version
    world.apply({"put": {"A": {"a3": 3}, "B": {"b1": 5}}})
    before = world.run()
    assert {key: told["rows"] for key, told in before.items()} == {
        "1": ["0|a1"], "2": ["0|a2"], "3": ["0|a3"], "4": ["1|b1"],
    }  # fmt: skip
    world.put("B", {"b2": 2, "b3": 3, "b4": 3})
    world.source.run()
    world.put("A", {"a2": 3})
    before = world.run()
    assert before["2"] == {"rows": ["1|b2"], "split_into": ["2", "3"]}
    world.put("B", {"b2": 3})
    before = world.run()
    assert before["2"] == {"deleted": True, "replaced": True, "replaced_by": "3", "split_into": ["2", "3"]}
    world.source.table.restore(version=version)
    # What 2 was split into went with its row. That 3 has its row a2 of then can be seen.
    assert world.run(full=True) == {
        **before, "2": {"deleted": True, "replaced": True, "replaced_by": "3"},
    }  # fmt: skip
    world.put("A", {"a9": 9})
    assert world.run()["5"] == {"rows": ["0|a9"]}


def test_a_row_that_somebody_deleted_from_the_output_comes_back_with_its_id(tmp_path: Path) -> None:
    world = small(tmp_path)
    before = world.now()
    world.source.table.delete(pa.table({"_id": ["2"]}))
    world.source.table.upsert(pa.table({"_id": ["70"], "_deleted": [False]}))
    assert world.run(full=True) == {**before, "70": {"deleted": True}}
    world.put("A", {"a3": 3})
    # 70 is retired now, so its number is never given.
    assert world.run()["71"] == {"rows": ["0|a3"]}


@pytest.mark.parametrize("which", [["out_state"], ["out", "out_state"]], ids=["state", "both"])
def test_no_number_is_given_twice_after_a_restore(which: list[str], tmp_path: Path) -> None:
    """Others may have stored the ids that the restored tables do not know of."""
    world = small(tmp_path)
    versions = {name: LakeTable.open(tmp_path / name).version for name in which}
    world.apply({"put": {"A": {"a3": 3, "a4": 4}, "B": {"b1": 5}}})
    given = {key: told["rows"] for key, told in world.run().items()}
    assert given == {"1": ["0|a1"], "2": ["0|a2"], "3": ["0|a3"], "4": ["0|a4"], "5": ["1|b1"]}
    for name in which:
        LakeTable.open(tmp_path / name).restore(version=versions[name])
    world.source.run(full=True)
    world.put("A", {"a9": 9})
    world.source.run()
    assert world.source.check().ok
    now = {key: told["rows"] for key, told in world.now().items()}
    assert {key: rows for key, rows in now.items() if key in given} == {
        key: rows for key, rows in given.items() if len(which) == 1 or key in "12"
    }
    assert sorted(rows for key, rows in now.items() if key not in given) == (
        [["0|a9"]] if len(which) == 1 else [["0|a3"], ["0|a4"], ["0|a9"], ["1|b1"]]
    )


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


def numbered(folder: Path, keys: list[int], **config: Any) -> tuple[LakeTable, MergeSource]:
    """A source over one table, with its keys as ids."""
    table = LakeTable.create(folder / "T", "k BIGINT", key=["k"])
    table.upsert(pa.table({"k": keys}))
    told = MergeConfig(datasets={"t": table}, identity="first", max_retired=1.0, **config)
    source = MergeSource.create(folder / "numbered", told)
    source.run()
    return table, source


def test_numbers_begin_after_those_that_were_ids_and_are_forgotten(tmp_path: Path) -> None:
    table, source = numbered(tmp_path, [7, 30], deleted_retention=0)
    table.delete(pa.table({"k": [30]}))
    source.run()
    source.run()
    assert source.table.to_arrow().column("_id").to_pylist() == ["7"]
    source.run(config=dataclasses.replace(source.config, identity="stable"))
    assert source.table.get({"_id": "7"})["$replaced_by"] == "31"  # type: ignore[index]


def test_ids_that_leave_no_number_are_refused(tmp_path: Path) -> None:
    table, source = numbered(tmp_path, [10**18 - 2])
    config = dataclasses.replace(source.config, identity="stable")
    table.upsert(pa.table({"k": [5]}))
    with pytest.raises(InputError, match="at most 18 digits"):
        source.run(config=config)
    table.delete(pa.table({"k": [5]}))
    source.run(config=config)
    assert source.run(full=True).emitted == 0
    assert source.table.get({"_id": str(10**18 - 1)})["_deleted"] is False  # type: ignore[index]


def test_to_another_identity_lists_of_splits_stay(tmp_path: Path) -> None:
    world = small(tmp_path)
    world.put("A", {"a1": 8})
    world.source.run()
    world.source.run(config=dataclasses.replace(world.config, identity="composite"))
    assert world.now()["1"] == {"deleted": True, "replaced": True, "split_into": ["1", "3"]}


def test_a_dry_run_tells_what_lives_again_and_the_older_of_equals(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"])
    world.apply({"put": {"A": {"a1": 1}, "B": {"b1": 1, "b2": 2, "b3": 3, "b4": 4, "b5": 5}}})
    assert world.source.run().emitted == 5
    world.apply({"put": {"A": {"a2": 2, "a5": 5}}, "drop": {"B": ["b3"]}})
    assert {key: told["rows"] for key, told in world.run().items()} == {
        "1": ["0|a1", "1|b1"], "2": ["0|a2", "1|b2"], "3": ["1|b3"], "4": ["1|b4"], "5": ["0|a5", "1|b5"],
    }  # fmt: skip
    # 1 and 2 get one row each of 5; the entity of 2 has the earlier first member. 3 lives again, with a new row.
    world.apply({"put": {"A": {"a5": 1, "a0": 2, "a3": 3}, "B": {"b5": 2, "b3": 3}}})
    ids = world.source.run(dry_run=True).ids
    assert ids is not None
    assert (ids.appear, ids.join, ids.split, ids.go) == (("3",), {"5": "1"}, {"5": ("1", "2")}, ())
    now = world.run()
    assert now["3"] == {"rows": ["0|a3", "1|b3"]}
    assert now["5"] == {"deleted": True, "replaced": True, "replaced_by": "1", "split_into": ["1", "2"]}


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


def killed(source: MergeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed between its two commits."""
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "_publish", lambda *given: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            source.run()


@pytest.mark.parametrize("full", [False, True], ids=["incremental", "full"])
@pytest.mark.parametrize("identity", ["stable", "composite"])
def test_a_dry_run_after_a_kill_tells_what_the_run_will_do(
    identity: str, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from the killed run, as a run does that first completes it."""
    world = Entities(tmp_path, ["a.x = b.x"], identity=identity)
    world.apply({"put": {"A": {"a1": 1, "a2": 2, "a3": 3}, "B": {"b1": 1, "b3": 3}}})
    world.source.run()
    world.apply({"put": {"A": {"a4": 4}, "B": {"b1": 2}}, "drop": {"A": ["a3"], "B": ["b3"]}})
    killed(world.source, monkeypatch)
    before = world.source.table.version
    ids = world.source.run(dry_run=True, full=full).ids
    assert ids is not None
    assert not ids
    world.put("A", {"a5": 4, "a6": 6})
    result = world.source.run(dry_run=True, full=full)
    assert result.ids is not None
    expected = ("5", "6") if identity == "stable" else ("0|a5", "0|a6")
    assert (result.ids.appear, result.ids.join, result.ids.split, result.ids.go) == (expected, {}, {}, ())
    assert world.source.table.version == before
    done = world.source.run(full=full)
    assert (done.emitted, done.deleted) == (result.emitted, result.deleted) == (2, 0)
    rows = world.source.table.to_arrow().to_pylist()
    assert [row["_id"] for row in rows if row["$ids"] == ["a5"]] == [expected[0]]


def test_a_dry_run_tells_rows_of_retired_ids_that_go(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"], deleted_retention=0)
    world.apply({"put": {"A": {"a1": 1, "a2": 2, "a3": 3}, "B": {"b1": 1, "b2": 1, "b3": 2}}})
    world.source.run()
    world.apply({"put": {"A": {"a2": 1}, "B": {"b3": 1}}, "drop": {"A": ["a3"]}})
    assert world.run()["2"] == {"deleted": True, "replaced": True, "replaced_by": "1"}
    result = world.source.run(dry_run=True)
    assert result.ids is not None
    assert (result.ids.go, result.removed) == (("2", "3"), 2)
    assert list(world.run()) == ["1"]


def test_the_rows_of_retired_ids_are_kept_in_the_output_alone(tmp_path: Path) -> None:
    world = small(tmp_path)
    world.put("A", {"a3": 3})
    world.source.run()
    world.put("A", {"a2": 1, "a3": 1})
    before = world.run()
    assert before["3"] == before["2"] == {"deleted": True, "replaced": True, "replaced_by": "1"}
    world.source.table.delete(pa.table({"_id": ["2"]}))
    world.source.table.upsert(
        pa.table({"_id": ["3"], "_deleted": [False], "$split_into": pa.array([["7"]], pa.list_(pa.string()))})
    )
    # 2 stays missing. 3 looks like a row that no run wrote, and is retired as such.
    assert world.run(full=True) == {"1": before["1"], "3": {"deleted": True, "split_into": ["7"]}}


def test_an_id_whose_rows_a_restored_state_does_not_know_is_retired(tmp_path: Path) -> None:
    world = small(tmp_path)
    version = LakeTable.open(tmp_path / "out_state").version
    world.put("A", {"a3": 3})
    world.source.run()
    world.drop("A", ["a2", "a3"])
    before = world.run()
    assert before["2"] == {"deleted": True, "rows": ["0|a2"]}
    assert before["3"] == {"deleted": True, "rows": ["0|a3"]}
    LakeTable.open(tmp_path / "out_state").restore(version=version)
    # The older state has a2, and not a3.
    assert world.run(full=True) == {**before, "3": {"deleted": True}}
    world.put("A", {"a3": 3})
    assert world.run()["4"] == {"rows": ["0|a3"]}


def test_a_first_run_may_be_a_full_one_where_columns_have_rules(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"], survivorship={"x": "first"})
    world.put("A", {"a1": 1})
    assert world.run(full=True) == {"1": {"rows": ["0|a1"]}}


def test_a_list_of_a_split_is_content(tmp_path: Path) -> None:
    """The properties and ``$ids`` of 1 stay, as b1 has the same ids as a1: only its row says that it was split."""
    columns = "_id STRING, x BIGINT, `$ids` ARRAY<STRING>"
    tables = {name: LakeTable.create(tmp_path / name, columns, key=["_id"]) for name in "ab"}

    def put(name: str, key: str, x: int, ids: list[str]) -> None:
        told = {"_id": [key], "x": [x], "$ids": pa.array([ids], pa.list_(pa.string()))}
        tables[name].upsert(pa.table(told))

    put("a", "a1", 1, ["q"])
    put("b", "b1", 1, ["q"])
    config = MergeConfig(
        datasets=tables, equality=["a.x = b.x"], identity="stable", survivorship={"x": "first"}, max_retired=1.0
    )
    source = MergeSource.create(tmp_path / "out", config)
    source.run()
    first = source.table.get({"_id": "1"})
    put("b", "b1", 2, ["q"])
    assert source.run().emitted == 2
    row = source.table.get({"_id": "1"})
    assert first is not None
    assert row is not None
    changed = {name for name in row if row[name] != first[name]}
    assert changed == {"_members", "$split_into", "_updated"}
    assert source.run(full=True).emitted == 0


def test_deleted_ids_of_another_identity_are_retired_without_a_successor(tmp_path: Path) -> None:
    world = Entities(tmp_path, ["a.x = b.x"], identity="composite")
    world.apply({"put": {"A": {"a1": 1, "a2": 2}}})
    world.source.run()
    world.drop("A", ["a2"])
    assert world.run()["0|a2"] == {"rows": ["0|a2"], "deleted": True}
    world.source.run(config=dataclasses.replace(world.config, identity="stable"))
    assert world.now() == {
        "0|a1": {"deleted": True, "replaced": True, "replaced_by": "1"}, "0|a2": {"deleted": True},
        "1": {"rows": ["0|a1"]},
    }  # fmt: skip


@pytest.mark.parametrize("full", [False, True], ids=["incremental", "full"])
def test_each_row_of_a_deleted_id_is_forgotten_by_itself(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Entities(tmp_path, ["a.x = b.x"], deleted_retention=4)
    clock = [1_000_000]
    monkeypatch.setattr(_Run, "_now_ms", lambda self: clock[0])
    world.apply({"put": {"A": {"a1": 1}, "B": {"b1": 1}}})
    world.source.run()
    world.apply({"drop": {"A": ["a1"], "B": ["b1"]}})
    both = {"1": {"rows": ["0|a1", "1|b1"], "deleted": True}}
    assert world.run(full=full) == both
    clock[0] += 2_500
    world.put("B", {"b1": 1})
    world.drop("B", ["b1"])
    assert world.run(full=full) == both
    clock[0] += 2_000
    assert world.run(full=full) == {"1": {"rows": ["1|b1"], "deleted": True}}
    clock[0] += 2_500
    assert world.run(full=full) == {}


@pytest.mark.parametrize("full", [False, True], ids=["incremental", "full"])
def test_a_row_with_a_mark_has_its_present_values(full: bool, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "T", "k STRING, x STRING, _deleted BOOLEAN", key=["k"])
    source = MergeSource.create(
        tmp_path / "out", MergeConfig(datasets={"t": table}, identity="stable", survivorship={"x": "first"})
    )
    for value, mark in (("alive", None), ("at deletion", True), ("later", True)):
        table.upsert(pa.table({"k": ["1"], "x": [value], "_deleted": pa.array([mark], pa.bool_())}))
        source.run(full=full)
        assert source.table.get({"_id": "1"})["x"] == value  # type: ignore[index]
    table.delete(pa.table({"k": ["1"]}))
    source.run(full=full)
    row = source.table.get({"_id": "1"})
    assert row is not None
    assert (row["_deleted"], row["x"]) == (True, "later")


def test_the_columns_of_rows(tmp_path: Path) -> None:
    world = small(tmp_path)
    world.put("A", {"a2": 1})
    world.source.run()
    schema = world.source.table.schema
    assert schema.field("_members").type == pa.list_(
        pa.field("element", pa.struct([("dataset", pa.int32()), ("id", pa.string())]))
    )
    assert {name: str(schema.field(name).type) for name in ("_id", "_deleted", "$replaced", "_updated")} == {
        "_id": "string", "_deleted": "bool", "$replaced": "bool", "_updated": "int64",
    }  # fmt: skip
    live, retired = world.source.table.to_arrow().sort_by("_id").to_pylist()
    assert live["_members"] == [{"dataset": 0, "id": "a1"}, {"dataset": 0, "id": "a2"}, {"dataset": 1, "id": "b1"}]
    assert (live["_deleted"], live["$replaced"], live["$ids"]) == (False, False, ["a1", "a2", "b1"])
    assert {name: value for name, value in retired.items() if value is not None} == {
        "_id": "2", "_deleted": True, "$replaced": True, "$replaced_by": "1", "_updated": 2,
    }  # fmt: skip
