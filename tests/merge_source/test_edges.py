"""The edges of a source: runs that were cut short, what a check finds and a full run mends, chains of sources,
spellings, tables that are away, rows that are erased, and what is refused before anything is written."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import (
    DatasetsMissingError,
    LakeTable,
    MaxRetiredError,
    MergeConfigError,
    MergerContractError,
    NotATableError,
    TableExistsError,
)
from lakemerge.cli import main
from lakemerge.handle import Handle
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource, emission
from mergers import Groups, Merged, TableShape
from mergers.builtin.commit_time import CommitTime
from tests.merge_source.twin import Twin
from tests.merge_source.world import World

CONFIG = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
SCHEMA = "_id STRING, x BIGINT, y STRING"
NOW = dt.timedelta(0)


class Killed(BaseException):
    pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1, "y": "one"}, {"_id": "a2", "x": 2, "y": "two"}])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1}])
    return world


def source_of(world: World) -> MergeSource:
    assert world.source is not None
    return world.source


def row_of(world: World, key: str) -> dict[str, Any]:
    row = source_of(world).table.get({"_id": key})
    assert row is not None
    return row


def content(source: MergeSource) -> list[dict[str, Any]]:
    """The entities without the numbers, whose gaps do not count."""
    return [{name: value for name, value in entity.items() if name != "_updated"} for entity in source.entities()]


# Runs that were cut short


def new_row(world: World) -> None:
    world.put("B", [{"_id": "b9", "x": 9}])


def joined(world: World) -> None:
    world.put("B", [{"_id": "b1", "x": 2}])


def deleted(world: World) -> None:
    world.apply("A", [{"delete": "a2"}])


def vacuumed(world: World) -> None:
    joined(world)
    for name in "AB":
        world.put(name, [{"_id": "later", "x": 7}])


@pytest.mark.parametrize(
    ("changes", "first"), [(new_row, True), (new_row, False), (joined, False), (deleted, False), (vacuumed, False)]
)
def test_the_next_run_completes_one_that_was_cut_short(
    changes: Callable[[World], None], first: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its commits, whatever it had to write; and if what it read is gone by then."""

    def cut(*_: object, **__: object) -> None:
        raise Killed

    source = MergeSource.create(world.folder / "out", world.config(CONFIG))
    if not first:
        source.run()
    changes(world)
    with monkeypatch.context() as patched:
        patched.setattr(emission, "publish", cut)
        with pytest.raises(Killed):
            source.run()
    if changes is vacuumed:
        for name in "AB":
            world.put(name, [{"_id": "b1", "x": 5}])
            table = world.table(name)
            table.compact()
            table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    assert source.pending().unpublished
    source.run()
    assert not source.pending()
    assert source.check().findings == ()
    undisturbed = MergeSource.create(world.folder / "other", world.config(CONFIG))
    undisturbed.run()
    live = [
        {entity["_id"]: entity for entity in content(one) if "_deleted" not in entity} for one in (source, undisturbed)
    ]
    assert live[0] == live[1]


# What a check finds, a full run mends


def rewritten(**changes: Any) -> Callable[[LakeTable], None]:
    def change(output: LakeTable) -> None:
        row = output.get({"_id": "0|a2"})
        assert row is not None
        frame = pa.Table.from_pylist([{**row, **changes}], schema=output.schema)
        output.upsert(frame)

    return change


TAMPERING: dict[str, Callable[[LakeTable], object]] = {
    "row deleted": lambda output: output.delete(pa.table({"_id": ["0|a2"]})),
    "property": rewritten(y=["other"]),
    "number": rewritten(_updated=77),
    "members": rewritten(_members=[{"dataset": 1, "id": "b1"}]),
    "no members": rewritten(_members=None),
    "retired": rewritten(_members=None, _deleted=True),
    "replaced": rewritten(**{"$replaced": True}),
    "alien": rewritten(_id="zz", _members=None),
}


@pytest.mark.long
def test_a_full_run_mends_what_a_check_finds(world: World) -> None:
    world.run(CONFIG)
    source = source_of(world)
    before = {entity["_id"]: entity for entity in content(source)}
    for how, tamper in TAMPERING.items():
        tamper(source.table)
        findings = source.check().findings
        assert {finding.remedy for finding in findings} == {"Run with full=True"}, how
        source.run(full=True)
        after = {entity["_id"]: entity for entity in content(source)}
        assert after.pop("zz", {"_deleted": True})["_deleted"], how
        assert after == before, how
        assert source.check().findings == (), how


def test_another_order_of_datasets_takes_a_full_run(world: World) -> None:
    """The ids change, and those of then are replaced; entities and kept rows move along."""
    world.apply("A", [{"upsert": {"_id": "a3", "x": 3, "y": "three"}}])
    world.run(CONFIG)
    world.apply("A", [{"delete": "a3"}])
    world.run(CONFIG)
    world.run({**CONFIG, "datasets": ["B b", "A a"]}, full=True)
    source = source_of(world)
    told = {entity["_id"]: entity for entity in content(source)}
    assert told["0|b1|1|a1"] == {"_id": "0|b1|1|a1", "$ids": ["b1", "a1"], "x": [1, 1], "y": "one"}
    assert told["1|a3"] == {"_id": "1|a3", "_deleted": True, "$ids": ["a3"], "x": 3, "y": "three"}
    assert [key for key, entity in told.items() if entity.get("$replaced")] == ["0|a1|1|b1", "0|a2", "0|a3"]
    assert source.check().findings == ()
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    assert [entity["_id"] for entity in world.run({**CONFIG, "datasets": ["B b", "A a"]})] == [
        "0|b1|1|a1",
        "1|a2",
        "0|b1|1|a2",
        "1|a1",
    ]


# Sources of sources


@pytest.mark.parametrize(("identity", "full"), [("first", False), ("composite", False), ("composite", True)])
def test_what_one_source_replaced_is_no_entity_of_the_next(identity: str, full: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in "ABC":
        world.create(name, "_id STRING, k STRING")
    world.put("B", [{"_id": "b1", "k": "1"}, {"_id": "b2", "k": "2"}])
    world.put("A", [{"_id": "a9", "k": "9"}])
    world.put("C", [{"_id": "c1", "k": "1"}])
    paths = {name.lower(): world.paths[name] for name in "ABC"}
    options: dict[str, Any] = {"identity": identity}
    first = MergeSource.create(
        tmp_path / "first",
        MergeConfig(datasets={"a": paths["a"], "b": paths["b"]}, equality=["a.k = b.k"], **options),
    )
    second = MergeSource.create(
        tmp_path / "second",
        MergeConfig(datasets={"u": first.table, "c": paths["c"]}, equality=["u.k = c.k"], **options),
    )
    first.run(), second.run()
    world.put("A", [{"_id": "a1", "k": "1"}, {"_id": "a2", "k": "2"}])  # b1 and b2 get successors, one of them alone
    first.run(), second.run(full=full)
    for entity in second.entities():
        assert not entity.get("_deleted") or entity["$replaced"]
        assert all("|" not in one for one in entity.get("$ids", []))
    live = [entity["$ids"] for entity in second.entities() if "_deleted" not in entity]
    assert sorted(live) == [["a1", "b1", "c1"], ["a2", "b2"], ["a9"]]
    assert second.check().findings == ()
    world.apply("A", [{"delete": "a2"}])  # and b2 is an entity of its own again
    first.run(), second.run(full=full)
    live = [entity["$ids"] for entity in second.entities() if "_deleted" not in entity]
    assert sorted(live) == [["a1", "b1", "c1"], ["a9"], ["b2"]]
    assert second.check().findings == ()


# The last values of what is deleted


@pytest.mark.parametrize(
    "changes",
    [
        [{"upsert": {"_id": "k", "y": "second"}}, {"delete": "k"}],
        [{"delete": "k"}, {"upsert": {"_id": "k", "y": "third"}}, {"delete": "k"}],
    ],
)
@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone before"])
def test_full_runs_and_others_keep_the_same_last_values(
    changes: list[dict[str, Any]], gone: bool, tmp_path: Path
) -> None:
    twin = Twin(tmp_path, {"datasets": ["A a"]}, A="y STRING")
    twin.put("A", {"_id": "k", "y": "first"}, {"_id": "other", "y": "o"})
    other = MergeSource.create(tmp_path / "full", twin.world.config({**twin.config, "datasets": ["A a"]}))
    twin.run()
    other.run()
    if gone:
        twin.delete("A", "k")
        twin.run()
        other.run()
    for change in changes:
        if "upsert" in change:
            twin.put("A", change["upsert"])
        else:
            twin.delete("A", change["delete"])
    twin.run()  # against the model
    other.run(full=True)
    assert content(other) == content(source_of(twin.world))


# What a source is, is not a matter of spelling


def test_a_table_is_the_same_however_it_is_spelled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, name = os.path.split(world.paths["A"])
    (world.folder / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    spellings = [name, f"./{name}/", f"file://{folder}/{name}", str(world.folder / "link" / name)]
    for place, spelling in enumerate(spellings):
        config = MergeConfig(datasets={"a": spelling, "b": Dataset(world.paths["B"])}, equality=["a.x = b.x"])
        if place == 0:
            source = MergeSource.create("out", config)
        result = source.run(config=config)
        assert (result.emitted, result.full) == ((2, True) if place == 0 else (0, False)), spelling
    monkeypatch.chdir("/")
    assert MergeSource.open(world.folder / "out").run().emitted == 0
    assert MergeSource.open(world.folder / "out").run(full=True).emitted == 0
    with pytest.raises(MergeConfigError, match="appears twice"):
        MergeConfig(datasets={"a": world.paths["A"], "b": spellings[3]})


def test_an_output_is_found_through_a_link(world: World) -> None:
    world.run(CONFIG)
    (world.folder / "customers").symlink_to(world.folder / "out")
    assert MergeSource.open(f"{world.folder}/customers/").run().emitted == 0
    assert MergeSource.open(f"file://{world.folder}/customers").check().ok


@pytest.mark.parametrize("path", ["s.Email", "s.home.Zip"])
def test_two_spellings_of_a_column_are_one_expression(path: str, tmp_path: Path) -> None:
    """As two they would join entities of one dataset."""
    world = World(tmp_path)
    rows = [{"_id": key, "email": "x", "home": {"zip": "1"}} for key in ("s1", "s2")]
    world.create("S", "_id STRING, email STRING, home STRUCT<zip: STRING>", rows)
    world.create("N", "_id STRING, mail STRING", [{"_id": "n1", "mail": "z"}])
    world.create("D", "_id STRING, mail STRING", [{"_id": "d1", "mail": "y"}])
    low = path.lower()
    rules = [["eq", low, "n.mail"], ["eq", "n.mail", "d.mail"], ["eq", path, "d.mail"]]
    world.run({**CONFIG, "datasets": ["S s", "N n", "D d"], "equality": rules})
    assert [entity["_id"] for entity in source_of(world).entities()] == ["0|s1", "0|s2", "1|n1", "2|d1"]
    result = source_of(world).run(
        config=world.config({**CONFIG, "datasets": ["S s", "N n", "D d"], "equality": rules[::-1]})
    )
    assert (result.emitted, result.full) == (0, False)


def test_structs_are_compared_by_the_names_of_their_fields(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", "_id STRING, p STRUCT<q: BIGINT, r: STRING>", [{"_id": "a1", "p": {"q": 1, "r": "x"}}])
    world.create("B", "_id STRING, p STRUCT<R: STRING, q: INT>", [{"_id": "b1", "p": {"R": "x", "q": 1}}])
    emitted = world.run({**CONFIG, "equality": [["eq", "a.p", "b.p"]]})
    assert [(entity["_id"], entity["p"]) for entity in emitted] == [("0|a1|1|b1", [{"q": 1, "r": "x"}] * 2)]


def test_small_decimals_have_ids_and_values_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    numbers = [Decimal(text) for text in ("0.0000000001", "0.1", "1E-18", "0.00000000015", "-0.0000000001", "10")]
    rows = [{"_id": number, "n": str(place)} for place, number in enumerate(numbers)]
    world.create("A", "_id DECIMAL(38,18), n STRING", rows)
    world.create("B", "_id STRING, x DECIMAL(38,18)", [{"_id": "b", "x": Decimal("0.15")}])
    emitted = world.run({**CONFIG, "equality": [["eq", "a._id", "b._id"], ["eq", "a._id", "b.x"]]})
    told = {entity["$ids"][0]: entity.get("n") for entity in emitted}
    assert told == {"1e-10": "0", "0.1": "1", "1e-18": "2", "1.5e-10": "3", "-1e-10": "4", "10": "5", "b": None}
    world.put("A", [{"_id": numbers[0], "n": "new"}])
    assert [(entity["_id"], entity["n"]) for entity in world.run({**CONFIG, "equality": []})] == [("0|1e-10", "new")]
    assert source_of(world).check().findings == ()


# Rules that name what is not there


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a.nowhere", "a.nowhere: dataset 'A' has no column 'nowhere'; it has _id, p, x, y"),
        ("a.p.zz", "a.p.zz: a.p has no field 'zz'; it has q"),
        ("a.y.q", "a.y.q: a.y has no field 'q'; it has none, as it is not a struct"),
        ("lower(concat(a.y, a.nowhere))", "no column 'nowhere'"),
        ("case when a.nowhere = 1 then a.y end", "no column 'nowhere'"),
    ],
)
def test_a_misspelt_column_is_refused(path: str, why: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", f"{SCHEMA}, p ARRAY<STRUCT<q: BIGINT>>", [{"_id": "a1"}])
    world.create("B", SCHEMA, [{"_id": "b1"}])
    paths = {"a": Dataset(world.paths["A"], "A"), "b": Dataset(world.paths["B"], "B")}
    wrong = MergeConfig(datasets=paths, equality=[f"{path} = b.y"])
    with pytest.raises(MergeConfigError, match=why.replace(".", r"\.").split(";")[0]):
        MergeSource.create(tmp_path / "out", wrong)
    assert not (tmp_path / "out").exists()


def test_a_misspelt_column_of_a_later_configuration_is_refused(world: World) -> None:
    world.run(CONFIG)
    with pytest.raises(MergeConfigError, match="no column 'nowhere'"):
        world.run({**CONFIG, "equality": [["eq", "a.nowhere", "b.y"]]})
    assert source_of(world).run().emitted == 0


def test_sides_that_never_match_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        world.run({**CONFIG, "equality": [["eq", "a.x", "b.y"], ["eq", ["lower", "a.y"], "b.y"]]})
        assert caplog.messages[0].startswith("a.x never matches lower(a.y) nor b.y: numbers are never equal to strings")
        assert len(caplog.messages) == 1
        world.run({**CONFIG, "equality": [["eq", "a.x", "b.y"]]})
    assert [message.partition(":")[0] for message in caplog.messages[1:]] == [
        "a.x never matches b.y",
        "b.y never matches a.x",
    ]


# Tables that are away, and rows that are gone


def test_a_missing_table_is_not_an_empty_one(world: World) -> None:
    world.run(CONFIG)
    before = source_of(world).table.to_arrow()
    shutil.move(world.paths["A"], world.folder / "away")
    for full in (False, True):
        with pytest.raises(DatasetsMissingError, match="no table of dataset 'A'"):
            source_of(world).run(full=full)
    moved = {**CONFIG, "datasets": ["A a", "B b"]}
    world.paths["A"] = str(world.folder / "elsewhere")
    with pytest.raises(DatasetsMissingError):
        source_of(world).run(config=world.config(moved), full=True)
    assert source_of(world).table.to_arrow() == before
    world.paths["A"] = str(world.folder / "away")  # it is the same table in another place
    assert source_of(world).run(config=world.config(moved)).emitted == 0


def test_none_of_the_tables_is_there(tmp_path: Path) -> None:
    config = MergeConfig(datasets={"a": tmp_path / "a", "b": tmp_path / "b"}, equality=["a.x = b.x"])
    with pytest.raises(NotATableError, match="none of the datasets has a table"):
        MergeSource.create(tmp_path / "out", config)
    assert os.listdir(tmp_path) == []


def emptied(world: World) -> None:
    world.table("A").delete_where("_id is not null")


def marked(world: World) -> None:
    rows = [{"_id": f"a{n}", "x": n, "_deleted": True} for n in range(10)]
    world.put("A", rows)


def made_anew(world: World) -> None:
    shutil.rmtree(world.paths["A"])
    LakeTable.create(world.paths["A"], f"{SCHEMA}, _deleted BOOLEAN", key=["_id"]).upsert(
        pa.table({"_id": ["a0"], "x": [0]})
    )


def some(world: World) -> None:
    world.table("A").delete_where("x < 4")


@pytest.mark.parametrize("loses", [emptied, marked, made_anew, some])
def test_a_run_that_loses_too_many_changes_nothing(loses: Callable[[World], None], tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", f"{SCHEMA}, _deleted BOOLEAN", [{"_id": f"a{n}", "x": n} for n in range(10)])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1}])
    world.run(CONFIG)  # ten entities, of which one may lose a member and stays
    loses(world)
    before = source_of(world).table.to_arrow()
    full = loses is made_anew
    for dry_run in (True, False):
        with pytest.raises(MaxRetiredError, match="of 10 entities of the output would be deleted") as caught:
            source_of(world).run(full=full, dry_run=dry_run)
    # b1 goes on as an entity, so what it was with is not lost.
    lost = {"emptied": 9, "marked": 9, "made_anew": 8, "some": 3}[loses.__name__]
    assert (caught.value.count, caught.value.dataset) == (lost, "A")
    assert source_of(world).table.to_arrow() == before
    assert full or source_of(world).check().ok
    assert source_of(world).run(full=full, config=world.config({**CONFIG, "max_retired": 1})).deleted > 0


def test_few_enough_may_go_and_one_always(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": f"a{n}", "x": n} for n in range(10)])
    world.run({**CONFIG, "datasets": ["A a"], "equality": []})
    world.table("A").delete_where("x < 2")
    assert source_of(world).run().deleted == 2
    world.table("A").delete_where("x < 4")  # two of the eight that are left
    with pytest.raises(MaxRetiredError):
        source_of(world).run()
    world.put("A", [{"_id": "a2", "x": 2}])
    assert (
        source_of(world)
        .run(config=world.config({**CONFIG, "datasets": ["A a"], "equality": [], "max_retired": 0}))
        .deleted
        == 1
    )


# A merger of one's own


@dataclass(frozen=True, slots=True)
class Fragile(CommitTime):
    id = "5c1f9a52-8a0f-4c0c-9a0c-2b9f3a4d5e6f"
    name = "fragile"

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return frozenset((*columns, "y"))

    def merge_groups(self, groups: Groups) -> Merged:
        if "bad" in groups.column("y").to_pylist():
            raise ValueError("y is bad")
        return CommitTime.merge_groups(self, groups)


def test_what_a_merger_raises_is_no_damage(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = LakeTable.create(tmp_path / "A", SCHEMA, key=["_id"], merger=Fragile(), mergers=[Fragile])
    table.upsert(pa.table({"_id": ["a1"], "x": [1], "y": ["good"]}))
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1}])
    config = MergeConfig(datasets={"a": tmp_path / "A", "b": world.paths["B"]}, equality=["a.x = b.x"])
    source = MergeSource.create(tmp_path / "out", config, mergers=[Fragile])
    source.run()
    table.upsert(pa.table({"_id": ["a1"], "x": [1], "y": ["bad"]}))
    for full in (False, True):
        with pytest.raises(MergerContractError, match=r"merger 'fragile': .*y is bad") as caught:
            source.run(full=full)
        assert "dataset 'a'" in caught.value.__notes__[0]


# Rows that are erased


def purge(path: str) -> None:
    table = LakeTable.open(path)
    table.compact()
    table.expire_tombstones(retention=NOW)
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)


def holds(folder: Path, text: str) -> list[str]:
    """The files, other than those of the log, in which the text is, in whatever column."""
    found = []
    for file in folder.rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            table = pq.read_table(file, partitioning=None)
            for name in table.column_names:
                for value in table.column(name).to_pylist():
                    kept = name == "data" and value is not None
                    told = pa.ipc.open_stream(value).read_all().to_pylist() if kept else value
                    found += [f"{file.name} {name}"] * (text in str(told))
    return found


@pytest.mark.parametrize("full", [False, True])
def test_erased_rows_leave_output_and_state(full: bool, world: World) -> None:
    """Two rows that went in one run, of which one comes back; and the ids that were retired then."""
    world.put("A", [{"_id": "a3", "x": 3, "y": "secret-3"}, {"_id": "a4-secret", "x": 1, "y": "secret-4"}])
    config = {**CONFIG, "max_retired": 1, "deleted_retention": 0}
    world.run(config)
    world.apply("A", [{"delete": "a3"}, {"delete": "a4-secret"}])
    world.run(config)
    assert row_of(world, "0|a3")["y"] == ["secret-3"]
    world.put("A", [{"_id": "a3", "x": 3, "y": "open"}])
    assert source_of(world).run(full=full).removed == 2  # a4, and the id that it made with a1 and b1
    assert source_of(world).check().findings == ()
    assert not source_of(world).pending()
    for name in ("out", "out_state", Path(world.paths["A"]).name):
        purge(str(world.folder / name))
        assert holds(world.folder / name, "secret") == []
    assert source_of(world).run(full=True).emitted == 0


def test_a_deleted_entity_stays_until_its_time_has_passed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    days = 0.0
    monkeypatch.setattr(Handle, "store_now_ms", lambda self: int((20_000 + days) * 86_400_000))
    monkeypatch.setattr(Handle, "now_ms", lambda *_: int((20_000 + days) * 86_400_000))
    config = {**CONFIG, "deleted_retention": "30d"}
    world.run(config)
    world.apply("A", [{"delete": "a2"}])
    world.run(config)
    days = 29
    assert not source_of(world).pending()
    assert source_of(world).run(full=True).removed == 0
    world.apply("A", [{"upsert": {"_id": "a2", "x": 2, "y": "again"}}])
    world.apply("A", [{"delete": "a2"}])
    world.run(config)
    days = 31  # since the first deletion, and two since the last
    assert source_of(world).run().removed == 0
    assert row_of(world, "0|a2")["y"] == ["again"]
    days = 59.5
    assert source_of(world).pending().forgotten
    assert source_of(world).run(dry_run=True).removed == 1
    assert source_of(world).run().removed == 1
    assert source_of(world).table.get({"_id": "0|a2"}) is None
    world.put("A", [{"_id": "a2", "x": 2, "y": "anew"}])
    assert [entity["_id"] for entity in world.run(config)] == ["0|a2"]


# The command line


def job(world: World, **told: Any) -> str:
    path = world.folder / "job.json"
    tables = {name: os.path.basename(world.paths[name]) for name in "AB"}
    source = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": ["a.x = b.x"]}
    path.write_text(json.dumps({"output": "out", "tables": tables, "source": source, **told}))
    return str(path)


def test_the_first_dry_run_creates_nothing(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.folder / "cron").mkdir()
    monkeypatch.chdir(world.folder / "cron")  # paths are relative to the file
    path = job(world)
    before = sorted(os.listdir(world.folder))
    assert main(["merge-source", "run", path, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("a run would emit 2 entities (0 replaced, 0 deleted) of 2 clusters")
    assert sorted(os.listdir(world.folder)) == before
    assert os.listdir(world.folder / "cron") == []
    assert main(["merge-source", "run", path]) == 0
    assert main(["merge-source", "run", path, "--dry-run"]) == 0
    assert "a run would emit 0 entities" in capsys.readouterr().out.splitlines()[-1]
    assert os.listdir(world.folder / "cron") == []


def test_a_preview_needs_a_free_path(world: World) -> None:
    world.create("C", SCHEMA)
    with pytest.raises(TableExistsError):
        MergeSource.preview(world.paths["C"], world.config(CONFIG))


def test_a_dataset_without_a_table_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1}])
    config = MergeConfig(datasets={"a": world.paths["A"], "b": tmp_path / "misspelt"}, equality=["a.x = b.x"])
    MergeSource.create(tmp_path / "out", config).run()
    assert [record.getMessage() for record in caplog.records if "misspelt" in record.getMessage()] == [
        f"dataset 'b' is empty: there is no table at {tmp_path / 'misspelt'}"
    ]


def test_transactions_on_datasets_are_changes_like_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": f"a{n}", "x": n} for n in range(6)])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1}, {"_id": "b2", "x": 2}], merger="partial-update")
    world.run({**CONFIG, "max_retired": 1})
    world.table("A").update_where("x = 3", {"x": 2})  # a2, a3 and b2 are one
    world.table("B").delete_where("_id = 'b1'")
    inserted = pa.table({"_id": ["a9"], "x": [5]})
    merge = world.table("A").merge(inserted, "target._id = source._id")
    merge.whenNotMatchedInsert(values={"x": "source.x"}).execute()
    assert source_of(world).run().emitted > 0
    assert source_of(world).check().ok
    world.put("B", [{"_id": "b1", "x": 4}])
    world.table("B").update_where("_id = 'b2'", {"x": None})
    world.table("A").update_where("true", {"x": "x"})  # changes nothing
    assert source_of(world).run().emitted > 0
    assert source_of(world).check().ok
    assert source_of(world).run().emitted == 0
