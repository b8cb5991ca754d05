"""From run to run: datasets that come, go and are filled late, tables that are restored, vacuumed or made anew,
configurations that change."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakemerge import (
    DatasetsRemovedError,
    DatasetsReorderedError,
    FullRunNeededError,
    InputError,
    LakeTable,
    MaxMergedError,
    MergeConfigError,
)
from lakemerge.format.operations import Operation
from lakemerge.ingest import Files
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource
from lakemerge.write.overwrite import OverwriteRequest, overwrite_arrow
from tests.merge_source.world import World
from tests.unit.ingest.landing import land, landed
from tests.unit.table.staged import made_of

CONFIG = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
SCHEMA = "_id STRING, x BIGINT, y STRING"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1, "y": "p"}, {"_id": "a2", "x": 2}])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1, "y": "q"}])
    world.run(CONFIG)
    return world


def source_of(world: World) -> MergeSource:
    assert world.source is not None
    return world.source


def ids(source: MergeSource, *, deleted: bool = False) -> list[str]:
    return sorted(entity["_id"] for entity in source.entities() if entity.get("_deleted", False) is deleted)


def as_from_scratch(world: World, config: dict[str, Any]) -> list[dict[str, Any]]:
    """The live entities that a source made anew would have."""
    source = MergeSource.create(world.folder / "scratch", world.config(config))
    source.run()
    made = [{**entity, "_updated": 0} for entity in source.entities() if "_deleted" not in entity]
    for suffix in ("", "_state"):
        shutil.rmtree(world.folder / f"scratch{suffix}")
    return sorted(made, key=lambda entity: str(entity["_id"]))


def live(source: MergeSource) -> list[dict[str, Any]]:
    made = [{**entity, "_updated": 0} for entity in source.entities() if "_deleted" not in entity]
    return sorted(made, key=lambda entity: str(entity["_id"]))


@pytest.mark.parametrize(
    ("options", "filled", "populated"),
    [
        ({}, "AB", True),
        ({}, "A", False),
        ({"initial_datasets": ["A"]}, "A", True),
        ({"initial_datasets": ["b"]}, "A", False),
        ({"initial_datasets": []}, "", True),
    ],
)
def test_what_must_be_filled_first(options: dict[str, Any], filled: str, populated: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in "AB":
        world.create(name, SCHEMA, [{"_id": "1", "x": 1}] if name in filled else [])
    source = MergeSource.create(tmp_path / "out", world.config({**CONFIG, **options}))
    assert source.populated is populated
    result = source.run()
    assert (result.populated, result.emitted > 0) == (populated, populated and bool(filled))
    if not populated:
        assert (result.versions, result.number) == ({"A": None, "B": None}, 0)
        assert result.waits_for == ("B",)
        assert str(result).startswith("nothing was done: B must be filled first")
        assert source.pending().datasets == {"A": (None, int("A" in filled)), "B": (None, 0)}
        world.put("B", [{"_id": "1", "x": 1}])
        assert source.run().emitted == 1
        assert ids(source) == ["0|1|1|1"]


def test_an_empty_write_fills_a_dataset(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = world.create("A", SCHEMA)
    config = {**CONFIG, "datasets": ["A a"], "equality": []}
    source = MergeSource.create(tmp_path / "out", world.config(config))
    table.alter(add_columns="z STRING")
    assert not source.populated
    table.upsert(table.to_arrow())
    assert source.populated


def overwritten(path: Path) -> None:
    table = LakeTable.create(path, SCHEMA, key=["_id"])
    table.overwrite(table.to_arrow())


def truncated(path: Path) -> None:
    table = LakeTable.create(path, SCHEMA, key=["_id"])
    frame = table.to_arrow().to_reader()
    overwrite_arrow(table.opened.handle, table.opened.view, frame, OverwriteRequest(operation=Operation.TRUNCATE))


def ingested(path: Path) -> None:
    land(path.with_name("landing"), "0.json", [{"_id": "1", "x": 1}])
    table = LakeTable.create(path, SCHEMA, key=["_id"])
    table.ingest("job", Files(path.with_name("landing"), format="json")).run()
    LakeTable.open(path).restore(version=0)


def replayed(path: Path) -> None:
    table = LakeTable.create(path.with_name("before"), SCHEMA, key=["_id"])
    table.upsert(pa.table({"_id": ["1"]}))
    table.replay(path)
    LakeTable.open(path).restore(version=0)


def made_of_nothing(path: Path) -> None:
    made_of(path, pa.table({"_id": pa.array([], pa.string())}), key=["_id"], replace=False)


def replaced_by_nothing(path: Path) -> None:
    LakeTable.create(path, SCHEMA, key=["_id"])
    made_of(path, pa.table({"_id": pa.array([], pa.string())}), key=["_id"])


def made_of_rows(path: Path) -> None:
    made_of(path, pa.table({"_id": ["1"]}), key=["_id"], replace=False)


def converted(path: Path) -> None:
    write_deltalake(path, pa.table({"_id": ["1"]}))
    deltalake.DeltaTable(path).delete()
    LakeTable.convert(path, key=["_id"])


def noted(path: Path) -> None:
    landed(path.with_name("landing") / "0.json", b"no json")
    table = LakeTable.create(path, SCHEMA, key=["_id"])
    assert table.ingest("job", Files(path.with_name("landing"), format="json")).run().failed == 1


def converted_before_a_write(path: Path) -> None:
    deltalake.DeltaTable.create(path, pa.schema([pa.field("_id", pa.string())]))
    LakeTable.convert(path, key=["_id"])


@pytest.mark.parametrize(
    ("fill", "populated"),
    [
        (overwritten, True),
        (truncated, True),
        (ingested, True),
        (replayed, True),
        (made_of_nothing, True),
        (replaced_by_nothing, True),
        (made_of_rows, True),
        (converted, True),
        (noted, False),
        (converted_before_a_write, False),
    ],
)
def test_whatever_writes_fills_a_dataset(fill: Callable[[Path], None], populated: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    fill(tmp_path / "A")
    assert LakeTable.open(tmp_path / "A").to_arrow().num_rows == (fill is made_of_rows)
    world.paths["A"] = str(tmp_path / "A")
    config = {**CONFIG, "datasets": ["A a"], "equality": []}
    assert MergeSource.create(tmp_path / "out", world.config(config)).populated is populated


def test_what_was_written_before_a_dataset_was_replaced_does_not_fill_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1}])
    config = {**CONFIG, "datasets": ["A a"], "equality": []}
    source = MergeSource.create(tmp_path / "out", world.config(config))
    table = LakeTable.create(world.paths["A"], SCHEMA, key=["_id"], replace=True)
    assert not source.populated
    table.upsert(table.to_arrow())
    assert source.populated


@pytest.mark.parametrize("ignored", [True, False])
def test_a_dataset_that_is_not_there(ignored: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1}])
    world.paths["B"] = str(tmp_path / "later")
    config = {**CONFIG, "ignore_non_existent_datasets": ignored}
    source = MergeSource.create(tmp_path / "out", world.config(config))
    assert (source.run().populated, ids(source)) == (ignored, ["0|a1"] if ignored else [])
    assert MergeSource.open(tmp_path / "out").run().emitted == 0
    later = LakeTable.create(tmp_path / "later", SCHEMA, key=["_id"])
    later.upsert(pa.table({"_id": ["b1"], "x": [1], "y": ["q"]}))
    assert source.run().populated
    assert ids(source) == ["0|a1|1|b1"]
    assert source.check().ok


def test_a_missing_dataset_outside_of_the_initial_ones_is_empty(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1}])
    world.paths["B"] = str(tmp_path / "later")
    config = {**CONFIG, "ignore_non_existent_datasets": False, "initial_datasets": ["A"]}
    source = MergeSource.create(tmp_path / "out", world.config(config))
    assert source.run().populated
    assert ids(source) == ["0|a1"]


def test_a_dataset_appears_once(world: World) -> None:
    with pytest.raises(MergeConfigError, match="appears twice"):
        MergeConfig(datasets={"a": world.paths["A"], "b": world.table("A")})
    (world.folder / "link").symlink_to(world.paths["A"])
    with pytest.raises(MergeConfigError, match="appears twice"):
        MergeConfig(datasets={"a": world.paths["A"], "b": world.folder / "link"})
    shutil.copytree(world.paths["A"], world.folder / "copy")
    twice = MergeConfig(datasets={"a": world.paths["A"], "b": world.folder / "copy"})
    with pytest.raises(MergeConfigError, match="datasets 'a' and 'b' are the same table"):
        MergeSource.create(world.folder / "other", twice).run()


def test_new_datasets_come_at_the_end(world: World) -> None:
    world.create("C", SCHEMA, [{"_id": "c1", "x": 1}])
    with pytest.raises(DatasetsReorderedError, match=r"were A, B and are C, A, B\. .* or run with full=True"):
        source_of(world).run(config=world.config({**CONFIG, "datasets": ["C c", "A a", "B b"]}))
    with pytest.raises(DatasetsReorderedError):
        source_of(world).run(config=world.config({**CONFIG, "datasets": ["A a", "C c", "B b"]}))
    assert source_of(world).config.names == ("A", "B")


def test_a_dataset_in_the_middle_is_removed(world: World) -> None:
    """Those after it move up: their ids change, and the ids of then are replaced."""
    world.create("C", SCHEMA, [{"_id": "c1", "x": 1}, {"_id": "c9", "x": 9}])
    config = {**CONFIG, "datasets": ["A a", "B b", "C c"], "equality_sets": [["a.x", "b.x", "c.x"]], "equality": []}
    world.run(config)
    world.apply("C", [{"delete": "c9"}])
    world.run(config)
    smaller = {**config, "datasets": ["A a", "C c"], "equality_sets": [["a.x", "c.x"]]}
    with pytest.raises(DatasetsRemovedError, match=r"'B' left the configuration.*full=True"):
        source_of(world).run(config=world.config(smaller))
    world.run(smaller, full=True)
    source = source_of(world)
    assert ids(source) == ["0|a1|1|c1", "0|a2"]
    told = {entity["_id"]: entity for entity in source.entities()}
    assert told["0|a1|1|b1|2|c1"]["$replaced"]
    # A deleted entity is kept, with what it had, under its new offset.
    assert told["2|c9"] == {"_id": "2|c9", "_deleted": True, "$replaced": True, "_updated": told["2|c9"]["_updated"]}
    assert (told["1|c9"]["x"], told["1|c9"]["_deleted"]) == (9, True)
    assert source.check().ok
    assert source.run(full=True).emitted == 0


def test_an_id_stays_when_only_its_members_move(world: World) -> None:
    """With identity first, removing a dataset before others changes no entity; what the members are does change."""
    world.create("C", SCHEMA, [{"_id": "c1", "x": 7}])
    first = {**CONFIG, "datasets": ["A a", "B b", "C c"], "identity": "first"}
    source = MergeSource.create(world.folder / "first", world.config(first))
    source.run()
    before = source.entities()
    smaller = {"type": "merge", "version": 2, "datasets": ["B b", "C c"], "identity": "first"}
    result = source.run(config=world.config(smaller), full=True)
    told = {entity["_id"]: entity for entity in source.entities()}
    assert told["c1"] == next(entity for entity in before if entity["_id"] == "c1")
    # a1 is b1 now, a2 is gone.
    assert (result.emitted, result.replaced, result.deleted) == (3, 1, 1)
    row = source.table.get({"_id": "c1"})
    assert row is not None
    assert row["_members"] == [{"dataset": 1, "id": "c1"}]
    assert source.check().ok


@pytest.mark.parametrize("replaced", [False, True])
def test_a_table_that_was_made_anew_goes_on_in_its_place(replaced: bool, world: World) -> None:
    """What it lacks went, as far as it can still be told; nothing is left of its properties."""
    if not replaced:
        shutil.rmtree(world.paths["B"])
    made = LakeTable.create(world.paths["B"], SCHEMA, key=["_id"], replace=replaced)
    made.upsert(pa.table({"_id": ["b2"], "x": [2], "y": ["new"]}))
    with pytest.raises(DatasetsRemovedError, match="a table that was recreated"):
        source_of(world).run()
    world.run(CONFIG, full=True)
    source = source_of(world)
    assert (ids(source), ids(source, deleted=True)) == (["0|a1", "0|a2|1|b2"], ["0|a1|1|b1", "0|a2", "1|b1"])
    gone = next(entity for entity in source.entities() if entity["_id"] == "1|b1")
    assert gone == {"_id": "1|b1", "_deleted": True, "$ids": ["b1"], "_updated": gone["_updated"]}
    assert source.check().ok


def test_a_restored_dataset_asks_for_a_full_run(world: World) -> None:
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    world.run(CONFIG)
    world.table("B").restore(version=1)
    with pytest.raises(FullRunNeededError, match="'B' was restored"):
        source_of(world).run()
    world.run(CONFIG, full=True)
    assert live(source_of(world)) == as_from_scratch(world, CONFIG)
    assert source_of(world).check().ok


@pytest.mark.parametrize("which", ["", "_state"])
def test_a_restored_output_or_state_asks_for_a_full_run(which: str, world: World) -> None:
    """Afterwards both are right, and numbers still rise."""
    source = source_of(world)
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    world.apply("A", [{"upsert": {"_id": "a3", "x": 3}}])
    world.run(CONFIG)
    highest = max(entity["_updated"] for entity in source.entities())
    LakeTable.open(f"{world.folder / 'out'}{which}").restore(version=1)
    name = "state" if which else "output"
    with pytest.raises(FullRunNeededError, match=f"its {name} was restored to an earlier version"):
        source.run()
    before = {entity["_id"]: entity for entity in source.entities()}
    result = source.run(full=True)
    assert live(source) == as_from_scratch(world, CONFIG)
    assert source.check().ok
    changed = [entity for entity in source.entities() if before.get(entity["_id"]) != entity]
    assert len(changed) == result.emitted
    if which == "_state":
        assert changed == []
    else:
        assert {entity["_id"] for entity in changed} == {"0|a1|1|b1", "0|a2", "0|a1", "0|a2|1|b1", "0|a3"}
    world.apply("A", [{"upsert": {"_id": "a4", "x": 4}}])
    source.run()
    assert source.entities()[-1]["_id"] == "0|a4"
    assert source.entities()[-1]["_updated"] > (highest if which else 0)


def test_a_vacuumed_dataset_asks_for_a_full_run(world: World) -> None:
    table = world.table("B")
    world.apply("B", [{"upsert": {"_id": "b2", "x": 2}}])
    world.apply("B", [{"delete": "b1"}])
    table.compact()
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    with pytest.raises(FullRunNeededError, match=r"'B' since version 1 is no longer known.*full=True"):
        source_of(world).run()
    world.run(CONFIG, full=True)
    assert live(source_of(world)) == as_from_scratch(world, CONFIG)
    # The row went, and nothing that has it can be read any more.
    gone = next(entity for entity in source_of(world).entities() if entity["_id"] == "1|b1")
    assert gone == {"_id": "1|b1", "_deleted": True, "$ids": ["b1"], "_updated": gone["_updated"]}
    assert source_of(world).run(full=True).emitted == 0


@pytest.mark.long
def test_deleted_entities_outlive_full_runs(world: World) -> None:
    world.apply("B", [{"delete": "b1"}])
    world.run(CONFIG)
    world.run(CONFIG, full=True)
    table = world.table("B")
    table.compact()
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert world.run(CONFIG, full=True) == []
    assert world.run({**CONFIG, "strategy": "list"})[-1]["$merged"] == [{"_id": "b1", "x": 1, "y": "q"}]
    world.apply("B", [{"upsert": {"_id": "b1", "x": 1, "y": "back"}}])
    world.run({**CONFIG, "strategy": "list"})
    assert ids(source_of(world)) == ["0|a1|1|b1", "0|a2"]
    assert world.run({**CONFIG, "strategy": "list"}, full=True) == []
    state = LakeTable.open(f"{world.folder / 'out'}_state")
    assert state.to_arrow(filter="part = 'd'").num_rows == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"equality": [["eq", "a.y", "b.y"]]},
        {"equality": []},
        {"equality_sets": [["a.y", "b.x"]]},
        {"identity": "first"},
        {"strategy": "compact"},
        {"strategy": "list"},
        {"transitive": "entities"},
    ],
    ids=str,
)
def test_a_configuration_that_changes_is_taken_up_at_once(changes: dict[str, Any], world: World) -> None:
    """Retroactively, by the next run; and back again."""
    world.apply("B", [{"upsert": {"_id": "b2", "x": 7, "y": "p"}}])
    config = {**CONFIG, **changes}
    world.run(config)
    assert live(source_of(world)) == as_from_scratch(world, config)
    assert source_of(world).check().ok
    assert source_of(world).config.to_json() == world.config(config).to_json()
    world.run(CONFIG)
    assert live(source_of(world)) == as_from_scratch(world, CONFIG)
    assert source_of(world).check().ok


def test_a_configuration_is_taken_over_only_by_a_run_that_commits(world: World) -> None:
    source = source_of(world)
    strict = world.config({**CONFIG, "max_merged": 1, "oversize": "fail", "strategy": "compact"})
    with pytest.raises(MaxMergedError):
        source.run(config=strict)
    assert source.run(config=world.config({**CONFIG, "strategy": "compact"}), dry_run=True).emitted == 1
    assert source.config.strategy == "default"
    assert source.run().emitted == 0


def test_rules_written_otherwise_are_no_change(world: World) -> None:
    source = source_of(world)
    same = MergeConfig(
        datasets={"p": Dataset(world.paths["A"], "A"), "q": Dataset(world.paths["B"], "B")}, equality=["q.x = p.x"]
    )
    result = source.run(config=same)
    assert (result.emitted, result.full) == (0, False)
    assert source.config.aliases == ("p", "q")


def test_columns_that_come_later_grow_the_output(world: World) -> None:
    world.table("B").alter(add_columns="z STRUCT<p: BIGINT>, t ARRAY<BIGINT>")
    table = world.table("B")
    table.upsert(
        pa.Table.from_pylist(
            [{"_id": "b1", "x": 1, "z": {"p": 7}, "t": [1]}],
            schema=pa.schema(list(table.schema)[:2] + list(table.schema)[3:]),
        )
    )
    emitted = world.run(CONFIG)
    assert [(entity["_id"], entity["z"], entity["t"]) for entity in emitted] == [("0|a1|1|b1", {"p": 7}, [1])]
    table.alter(add_columns="z.q STRING")
    world.put("B", [{"_id": "b1", "x": 1, "z": {"p": 7, "q": "r"}}])
    assert [entity["z"] for entity in world.run(CONFIG)] == [{"p": 7, "q": "r"}]
    operations = [entry.operation for entry in source_of(world).table.history()]
    assert operations == ["UPSERT"] * 3 + ["CREATE TABLE"]
    assert source_of(world).check().ok


def test_a_column_that_comes_as_a_list_where_others_have_one_value(world: World) -> None:
    """Single values stay single, also of entities that did not change."""
    world.table("A").alter(add_columns="z ARRAY<BIGINT>")
    world.table("B").alter(add_columns="w BIGINT")
    world.put("B", [{"_id": "b8", "w": 8}])
    world.run(CONFIG)
    world.table("A").alter(add_columns="w ARRAY<BIGINT>")
    world.put("A", [{"_id": "a8", "w": [8]}])
    assert [entity["w"] for entity in world.run(CONFIG)] == [[8]]
    told = {entity["_id"]: entity.get("w") for entity in source_of(world).entities()}
    assert (told["1|b8"], told["0|a8"]) == (8, [8])
    assert source_of(world).check().ok


def test_a_plain_delta_table_is_taken_up_by_full_runs(world: World) -> None:
    path = str(world.folder / "plain")
    frame = pa.table({"nr": [1, 2], "x": [1, 9], "p": ["u", "v"]})
    write_deltalake(path, frame, partition_by=["p"])
    plain = Dataset(path, id="nr")
    datasets = {"a": Dataset(world.paths["A"], "A"), "b": Dataset(world.paths["B"], "B"), "c": plain}
    config = MergeConfig(datasets=datasets, equality_sets=[["a.x", "b.x", "c.x"]])
    source = source_of(world)
    source.run(config=config)
    assert ids(source) == ["0|a1|1|b1|2|1", "0|a2", "2|2"]
    assert next(entity for entity in source.entities() if entity["_id"] == "2|2")["p"] == "v"
    # While it stays as it is, others may change.
    world.apply("A", [{"upsert": {"_id": "a2", "x": 9}}])
    assert source.run().full is False
    assert ids(source) == ["0|a1|1|b1|2|1", "0|a2|2|2"]
    write_deltalake(path, pa.table({"nr": [1], "x": [9], "p": ["u"]}), mode="overwrite", partition_by=["p"])
    with pytest.raises(FullRunNeededError, match="plain Delta table, which does not tell what changed"):
        source.run()
    source.run(full=True)
    assert (ids(source), ids(source, deleted=True)[-1]) == (["0|a1|1|b1", "0|a2|2|1"], "2|2")
    assert source.check().ok
    write_deltalake(path, frame.slice(0, 1), mode="append", partition_by=["p"])
    with pytest.raises(InputError, match="'c' has the id '1' twice"):
        source.run(full=True)


@pytest.mark.parametrize(
    ("schema", "options", "why"),
    [
        ("k STRING, _id STRING", {}, "has a column _id that is not its id"),
        ("k STRING, n BIGINT", {"id": "n"}, "the id of dataset 'c' must be its key: k"),
        ("k STRING, n BIGINT", {"id": "m"}, "has no column 'm' for its id"),
        ("k STRING, n BIGINT", {"deleted": "n"}, "no BOOLEAN column 'n'"),
        ("k STRING, n BIGINT", {"deleted": "gone"}, "no BOOLEAN column 'gone'"),
        ("k STRING, _deleted STRING", {}, "no BOOLEAN column '_deleted'"),
    ],
)
def test_rows_that_cannot_be_taken_for_entities(schema: str, options: dict[str, Any], why: str, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "C", schema, key=["k"])
    with pytest.raises(InputError, match=why):
        MergeSource.create(tmp_path / "out", MergeConfig(datasets={"c": Dataset(table, **options)}))


def test_entities_that_come_and_go_between_runs_are_never_seen(world: World) -> None:
    world.apply("A", [{"upsert": {"_id": "a7", "x": 1}}])
    world.apply("A", [{"delete": "a7"}])
    world.apply("B", [{"upsert": {"_id": "b1", "x": 3}}])
    world.apply("B", [{"upsert": {"_id": "b1", "x": 1, "y": "q"}}])
    assert world.run(CONFIG) == []
    assert not source_of(world).pending()


@pytest.mark.parametrize("full", [False, True])
def test_a_deleted_entity_has_what_it_had_last(full: bool, world: World) -> None:
    """That is the row as it went, not as a run had seen it."""
    world.apply("B", [{"upsert": {"_id": "b5", "x": 5, "y": "seen"}}])
    world.run(CONFIG)
    world.apply("B", [{"upsert": {"_id": "b5", "x": 5, "y": "last"}}])
    world.apply("B", [{"delete": "b5"}])
    assert world.run(CONFIG, full=full)[-1]["y"] == "last"
