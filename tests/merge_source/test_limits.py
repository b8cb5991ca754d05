"""Values that many entities hold, clusters that may not be, ids that stand for two things, and types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakemerge import IdCollisionError, LakeTable, MaxMergedError, SchemaError
from lakemerge.merge_source import MergeConfig, MergeSource
from lakemerge.merge_source import index as index_module
from lakemerge.merge_source.state import State
from tests.merge_source.world import World

CONFIG = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
SCHEMA = "_id STRING, x BIGINT, y STRING"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many holders the index gives, per look-up of it."""
    counts: list[int] = []
    values = State.values

    def counted(self: State, *arguments: Any) -> pa.Table:
        found = values(self, *arguments)
        counts.append(sum(len(holders or ()) for holders in found.column("holders").to_pylist()))
        return found

    monkeypatch.setattr(State, "values", counted)
    return counts


def hub(world: World, holders: int) -> MergeSource:
    """A value that so many entities of A hold, and nobody else."""
    world.create("A", SCHEMA)
    world.table("A").upsert(
        pa.table({"_id": [f"a{n}" for n in range(holders)], "x": np.zeros(holders, dtype=np.int64)})
    )
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1}])
    world.run(CONFIG)
    assert world.source is not None
    return world.source


def test_a_value_that_one_expression_gives_to_many_costs_no_more_than_others(tmp_path: Path, asked: list[int]) -> None:
    """One more of many thousand holders, and one less: a page of them is read, and as few entities."""
    world = World(tmp_path)
    source = hub(world, 20_000)
    assert world.run({**CONFIG, "max_merged": 5}) == []
    world.apply("A", [{"upsert": {"_id": "new", "x": 0}}, {"upsert": {"_id": "a7", "x": 5}}, {"delete": "a9"}])
    asked.clear()
    result = source.run()
    assert (result.emitted, result.clusters) == (3, 3)
    assert max(asked) <= 3 * 2 * index_module._PAGE
    assert source.check().ok


def test_a_value_that_becomes_active_for_too_many_fails_unread(tmp_path: Path, asked: list[int]) -> None:
    world = World(tmp_path)
    source = hub(world, 3_000)
    world.run({**CONFIG, "max_merged": 1000, "oversize": "fail"})
    world.apply("B", [{"upsert": {"_id": "b1", "x": 0}}])
    asked.clear()
    with pytest.raises(MaxMergedError, match="more than 1000 entities would be merged into one") as caught:
        source.run()
    assert (caught.value.rule, caught.value.value, caught.value.count) == ("a.x = b.x", "0", 1001)
    assert sum(asked) == 1  # that of the value that b1 had
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    assert source.run().emitted == 1


def test_a_chain_that_becomes_too_long_names_its_widest_value(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1, "y": "v"}, {"_id": "a2", "x": 2, "y": "w"}])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1, "y": "v"}, {"_id": "b2", "x": 2}, {"_id": "b3", "y": "v"}])
    config = {**CONFIG, "equality": [["eq", "a.x", "b.x"], ["eq", ["lower", "a.y"], "b.y"]], "max_merged": 4}
    config["oversize"] = "fail"
    world.run(config)
    world.apply("A", [{"upsert": {"_id": "a2", "x": 2, "y": "V"}}])
    with pytest.raises(
        MaxMergedError, match=r"5 entities would be .*the value 'v' of the rule lower\(a\.y\) = b\.y holds"
    ):
        world.run(config)
    assert len(world.run({**config, "max_merged": 5})) == 3


@pytest.mark.parametrize("first", [["x", "y|1|b"], ["x|1|y", "b"]])
def test_composite_ids_that_are_equal_are_refused(first: list[str], tmp_path: Path) -> None:
    """``0|x|1|y|1|b`` may be x with y|1|b, or x|1|y with b: whichever comes second is refused, in the same run or a
    later one."""
    pairs = {"x": ("A", 1), "y|1|b": ("B", 1), "x|1|y": ("A", 2), "b": ("B", 2)}
    world = World(tmp_path)
    for name in "AB":
        world.create(name, SCHEMA, [{"_id": key, "x": pairs[key][1]} for key in first if pairs[key][0] == name])
    world.run(CONFIG)
    assert world.source is not None
    before = world.source.entities()
    for key, (name, value) in pairs.items():
        if key not in first:
            world.apply(name, [{"upsert": {"_id": key, "x": value}}])
    with pytest.raises(IdCollisionError, match=r"two merged entities would have the id '0\|x\|1\|y\|1\|b'"):
        world.source.run()
    with pytest.raises(IdCollisionError):
        world.source.run(full=True)
    assert world.source.entities() == before
    name, value = pairs[first[0]]
    world.apply(name, [{"upsert": {"_id": first[0], "x": 9}}])
    assert world.source.run().emitted == 3
    assert world.source.check().ok


FIRST = {**CONFIG, "identity": "first"}


def test_one_id_in_two_datasets_needs_a_rule_on_ids(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "1", "x": 1}])
    world.create("B", SCHEMA, [{"_id": "2", "x": 2}])
    world.run(FIRST)
    world.apply("B", [{"upsert": {"_id": "1", "x": 1}}])
    with pytest.raises(IdCollisionError, match=r"the id '1' is in the datasets 'A', 'B', and no rule compares"):
        world.run(FIRST)
    world.run({**FIRST, "equality_sets": [["a._id", "b._id"]]})
    assert world.source is not None
    assert [(entity["_id"], entity["x"]) for entity in world.source.entities()] == [("2", 2), ("1", [1, 1])]


def test_a_deleted_entity_shows_only_under_an_id_that_nobody_else_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    config = {**FIRST, "equality": [], "equality_sets": [["a._id", "b._id"]]}
    world.create("A", SCHEMA, [{"_id": "1", "x": 1}])
    world.create("B", SCHEMA, [{"_id": "1", "x": 2}])
    world.run(config)
    world.apply("A", [{"delete": "1"}])
    assert [(entity["_id"], entity["x"]) for entity in world.run(config)] == [("1", 2)]
    world.apply("B", [{"delete": "1"}])
    # Both are deleted: that of the earlier dataset shows.
    assert [(entity["_id"], entity["x"], entity["_deleted"]) for entity in world.run(config)] == [("1", 1, True)]
    world.apply("B", [{"upsert": {"_id": "1", "x": 3}}])
    assert [(entity["_id"], entity["x"], "_deleted" in entity) for entity in world.run(config)] == [("1", 3, False)]
    assert world.source is not None
    assert world.source.check().ok


def test_types_of_one_name_become_the_wider_one(tmp_path: Path) -> None:
    a = LakeTable.create(
        tmp_path / "A", "_id STRING, n INT, f FLOAT, m DECIMAL(10,2), s STRUCT<p: INT>, w INT", key=["_id"]
    )
    b = LakeTable.create(
        tmp_path / "B", "_id STRING, N BIGINT, f DOUBLE, m DECIMAL(12,4), s STRUCT<p: BIGINT, q: STRING>", key=["_id"]
    )
    a.upsert(
        pa.table(
            {
                "_id": ["1"],
                "n": pa.array([1], pa.int32()),
                "f": pa.array([0.5], pa.float32()),
                "m": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
                "s": pa.array([{"p": 1}], pa.struct([("p", pa.int32())])),
                "w": pa.array([7], pa.int32()),
            }
        )
    )
    config = MergeConfig(datasets={"a": a, "b": b}, equality=["a.n = b.n"], initial_datasets=["a"])
    source = MergeSource.create(tmp_path / "out", config)
    kinds = {name: source.table.schema.field(name).type.value_type for name in ("n", "f", "m", "w")}
    assert kinds == {"n": pa.int64(), "f": pa.float64(), "m": pa.decimal128(12, 4), "w": pa.int32()}
    source.run()
    b.upsert(
        pa.table(
            {
                "_id": ["2"],
                "N": [1],
                "f": [2.5],
                "m": pa.array([Decimal("0.0001")], pa.decimal128(12, 4)),
                "s": [{"p": 2**40, "q": "z"}],
            }
        )
    )
    source.run()
    assert source.entities()[-1] == {
        "_id": "0|1|1|2",
        "$ids": ["1", "2"],
        "_updated": 2,
        "n": [1, 1],
        "f": [0.5, 2.5],
        "m": [Decimal("1.5"), Decimal("0.0001")],
        "s": [{"p": 1}, {"p": 2**40, "q": "z"}],
        "w": 7,
    }
    # A source's column becomes wider: what did not change is not emitted.
    a.alter(widen={"w": "BIGINT"})
    assert source.run().emitted == 0
    a.upsert(pa.table({"_id": ["3"], "w": [2**40]}))
    assert source.run().emitted == 1
    assert source.entities()[-1]["w"] == 2**40
    assert source.check().ok


def test_types_without_a_common_one_are_refused_or_become_text(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
    a = LakeTable.create(tmp_path / "A", "_id STRING, v BIGINT, w ARRAY<DOUBLE>, t TIMESTAMP", key=["_id"])
    b = LakeTable.create(tmp_path / "B", "_id STRING, V STRING, w STRUCT<p: INT>, t DATE", key=["_id"])
    a.upsert(pa.table({"_id": ["1"], "v": [7], "w": [[1.0, 2.5]], "t": pa.array([moment], pa.timestamp("us", "UTC"))}))
    b.upsert(
        pa.table(
            {
                "_id": ["1"],
                "V": ["x"],
                "w": pa.array([{"p": 3}], pa.struct([("p", pa.int32())])),
                "t": [dt.date(2026, 7, 1)],
            }
        )
    )
    datasets = {"a": tmp_path / "A", "b": tmp_path / "B"}
    config = MergeConfig(datasets=datasets, equality=["a._id = b._id"])
    with pytest.raises(SchemaError, match=r"'v' is BIGINT and STRING; 'w' is DOUBLE and STRUCT.*type_conflicts"):
        MergeSource.create(tmp_path / "out", config)
    as_text = MergeConfig(datasets=datasets, equality=["a._id = b._id"], type_conflicts="string")
    source = MergeSource.create(tmp_path / "out", as_text)
    source.run()
    told = source.entities()[0]
    assert (told["v"], told["w"]) == (["7", "x"], ["1", "2.5", '{"p":3}'])
    assert told["t"] == ["2026-07-01T00:00:00Z", "2026-07-01"]
    with pytest.raises(SchemaError, match="have types without a common one"):
        source.run(config=config)


def test_what_the_output_cannot_become_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "1", "x": 1}])
    world.create("B", SCHEMA, [{"_id": "2", "x": 1}])
    world.run(CONFIG)
    world.create("C", "_id STRING, at TIMESTAMP_NTZ", [{"_id": "3", "at": dt.datetime(2026, 7, 1)}])  # noqa: DTZ001
    with pytest.raises(SchemaError, match=r"a TIMESTAMP_NTZ column cannot be added.*new path"):
        world.run({**CONFIG, "datasets": ["A a", "B b", "C c"]})
    assert world.run(CONFIG) == []
    assert world.source is not None
    assert world.source.check().ok
