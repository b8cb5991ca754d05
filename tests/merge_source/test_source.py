"""A merge source day by day: runs, dry runs, what is pending, following, explaining, reporting, checking."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import (
    DatasetsMissingError,
    DatasetsRemovedError,
    InputError,
    LakeTable,
    NotATableError,
    TableExistsError,
    TableReplacedError,
)
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource
from lakemerge.merge_source.combine import FIXED
from tests.merge_source.world import World
from tests.unit.faults import listing

CONFIG = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
SCHEMA = "_id STRING, x BIGINT, y STRING"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1, "y": "p"}, {"_id": "a2", "x": 2}])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1, "y": "q"}])
    return world


def source_of(world: World, **changes: Any) -> MergeSource:
    return MergeSource.create(world.folder / "out", world.config({**CONFIG, **changes}))


def test_the_output_is_a_typed_table(world: World) -> None:
    source = source_of(world)
    source.run()
    table = LakeTable.open(world.folder / "out")
    assert (table.key, table.opened.view.config.merger_name) == (("_id",), "commit-time")
    assert table.schema.names == [*FIXED.names, "x", "y"]
    assert table.schema.field("x").type == pa.list_(pa.field("element", pa.int64()))
    assert table.get({"_id": "0|a1|1|b1"}) == {
        "_id": "0|a1|1|b1",
        "$ids": ["a1", "b1"],
        "_deleted": False,
        "$replaced": False,
        "_updated": 0,
        "_members": [{"dataset": 0, "id": "a1"}, {"dataset": 1, "id": "b1"}],
        "x": [1, 1],
        "y": ["p", "q"],
    }
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    source.run()
    retired = source.table.get({"_id": "0|a1|1|b1"})
    assert retired is not None
    assert {name for name, value in retired.items() if value is not None} == {
        "_id",
        "_deleted",
        "$replaced",
        "_updated",
    }


def test_what_a_run_tells(world: World) -> None:
    source = source_of(world)
    first = source.run()
    assert (first.emitted, first.replaced, first.deleted, first.clusters) == (2, 0, 0, 2)
    assert (first.versions, first.populated, first.full, first.number) == ({"A": 1, "B": 1}, True, True, 1)
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    world.apply("A", [{"delete": "a1"}])
    second = source.run()
    # 0|a1|1|b1 and 0|a2 are replaced; 0|a1 is deleted; 0|a2|1|b1 is new.
    assert (second.emitted, second.replaced, second.deleted, second.clusters) == (4, 2, 1, 2)
    assert (second.versions, second.full, second.number) == ({"A": 2, "B": 2}, False, 2)
    idle = source.run()
    assert (idle.emitted, idle.clusters, idle.number) == (0, 0, 2)
    assert source.table.version == 2


def test_what_no_rule_reads_clusters_nothing_anew_but_its_own(world: World) -> None:
    source = source_of(world)
    source.run()
    world.apply("B", [{"upsert": {"_id": "b1", "x": 1, "y": "new"}}])
    result = source.run()
    assert (result.emitted, result.replaced, result.clusters) == (1, 0, 1)


def test_a_change_that_changes_nothing_in_the_output_emits_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", "_id STRING, t ARRAY<BIGINT>, _updated BIGINT", [{"_id": "a1", "t": [1, 1, 2], "_updated": 1}])
    world.create("B", SCHEMA)
    source = source_of(world, equality=[], strategy="compact", initial_datasets=["A"])
    source.run()
    world.apply("A", [{"upsert": {"_id": "a1", "t": [1, 2, 2], "_updated": 7}}])
    assert source.run().emitted == 0
    assert source.pending().datasets == {}


def test_a_dataset_that_is_overwritten(world: World) -> None:
    """Its entities change as by the difference of its rows."""
    source = source_of(world)
    source.run()
    world.table("A").overwrite(pa.table({"_id": ["a2", "a3"], "x": [1, 7]}))
    source.run()
    rows = source.table.to_arrow(columns=["_id", "_deleted", "$replaced"]).to_pylist()
    assert {row["_id"] for row in rows if not row["_deleted"] and not row["$replaced"]} == {"0|a2|1|b1", "0|a3"}
    assert source.check().ok


def test_a_dry_run_tells_and_writes_nothing(world: World) -> None:
    source = source_of(world)
    before = listing(world.folder)
    told = source.run(dry_run=True)
    assert (told.emitted, told.dry_run, told.number) == (2, True, 0)
    assert listing(world.folder) == before
    assert source.entities() == []
    assert source.run().emitted == 2
    world.apply("A", [{"upsert": {"_id": "a3", "x": 9}}])
    before = listing(world.folder)
    assert (source.run(dry_run=True).emitted, source.run(dry_run=True, full=True).emitted) == (1, 1)
    assert listing(world.folder) == before
    assert source.run().emitted == 1


def test_entities_since(world: World) -> None:
    source = source_of(world)
    source.run()
    everything = source.entities()
    assert [entity["_id"] for entity in everything] == ["0|a1|1|b1", "0|a2"]
    assert source.entities(since=everything[0]["_updated"]) == everything[1:]
    assert source.entities(since=everything[1]["_updated"]) == []


def test_a_source_is_opened_by_the_path_of_its_output(world: World) -> None:
    source_of(world).run()
    world.apply("A", [{"upsert": {"_id": "a3", "x": 1}}])
    opened = MergeSource.open(world.folder / "out")
    assert opened.run().emitted == 2
    assert opened.config.to_json() == world.config(CONFIG).to_json()
    assert repr(opened).endswith("datasets=['A', 'B'])")


def test_there_is_one_source_at_a_path(world: World) -> None:
    source_of(world)
    with pytest.raises(TableExistsError):
        source_of(world)
    with pytest.raises(NotATableError, match=r"there is no merge source at .*MergeSource\.create"):
        MergeSource.open(world.folder / "nowhere")
    with pytest.raises(NotATableError, match="there is no merge source"):
        MergeSource.open(world.paths["A"])


def test_making_a_source_that_was_cut_short_is_made_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    create = LakeTable.create

    def cut_short(path: object, *arguments: Any, **options: Any) -> LakeTable:
        if str(path).endswith("_state"):
            raise ConnectionError("gone")
        return create(path, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "create", cut_short)
        with pytest.raises(ConnectionError):
            source_of(world)
    assert source_of(world).run().emitted == 2


def test_what_is_pending(world: World) -> None:
    source = source_of(world)
    assert source.pending().datasets == {"A": (None, 1), "B": (None, 1)}
    source.run()
    assert not source.pending()
    world.apply("B", [{"upsert": {"_id": "b9", "x": 9}}])
    assert source.pending().datasets == {"B": (1, 2)}
    assert source.pending()


def test_following_runs_when_there_is_something_to_do(world: World) -> None:
    source = source_of(world, supports_signalling=True)
    stop = threading.Event()
    results = source.follow(every=0.01, stop=stop)
    assert next(results).emitted == 2
    world.apply("A", [{"upsert": {"_id": "a3", "x": 3}}])
    assert next(results).emitted == 1
    world.apply("A", [{"upsert": {"_id": "a4", "x": 1}}])
    stop.set()
    assert list(results) == []


def _made_anew(world: World, name: str) -> None:
    """With as many commits as the table before, so that its version is the same."""
    shutil.rmtree(world.paths[name])
    LakeTable.create(world.paths[name], SCHEMA, key=["_id"], buckets=1)
    world.put(name, [{"_id": "z1", "x": 1}])


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (lambda world: shutil.rmtree(world.paths["A"]), DatasetsMissingError),
        (lambda world: _made_anew(world, "A"), DatasetsRemovedError),
        (lambda world: shutil.rmtree(world.folder / "out"), TableReplacedError),
        (lambda world: shutil.rmtree(world.folder / "out_state"), TableReplacedError),
    ],
    ids=["dataset removed", "dataset made anew", "output removed", "state removed"],
)
def test_following_ends_by_name_where_a_table_was_removed(
    world: World, happens: Callable[[World], object], error: type[Exception]
) -> None:
    """Nothing is taken for deleted because its table is away for a moment."""
    source = source_of(world)
    stop = threading.Event()
    results = source.follow(every=0, stop=stop)
    assert next(results).emitted == 2
    output = source.table.to_arrow()
    happens(world)
    giving_up = threading.Timer(60, stop.set)
    giving_up.start()
    try:
        with pytest.raises(error):
            next(results)
    finally:
        giving_up.cancel()
    if error in (DatasetsMissingError, DatasetsRemovedError):
        assert LakeTable.open(world.folder / "out").to_arrow() == output


def test_signalling_looks_more_often_than_the_schedule(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[bool, list[float | None]] = {}
    for signalling in (False, True):
        stop = threading.Event()
        waits[signalling] = []

        def wait(timeout: float | None = None, stop: threading.Event = stop, on: bool = signalling) -> bool:
            waits[on].append(timeout)
            stop.set()
            return True

        monkeypatch.setattr(stop, "wait", wait)
        folder = world.folder / str(signalling)
        source = MergeSource.create(folder, world.config({**CONFIG, "supports_signalling": signalling}))
        assert [result.emitted for result in source.follow(every=dt.timedelta(minutes=1), stop=stop)] == [2]
    assert waits == {False: [60.0], True: [1.0]}
    with pytest.raises(InputError, match="seconds"):
        next(source.follow(every=-1))


def test_why_entities_are_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": "a1", "x": 1, "y": "P"}, {"_id": "a2", "x": 2}, {"_id": "a3", "x": 1}])
    world.create("B", SCHEMA, [{"_id": "b1", "x": 1, "y": "p"}])
    source = source_of(world, equality=[["eq", "a.x", "b.x"], ["eq", ["lower", "a.y"], "b.y"]])
    source.run()
    told = source.explain("0|a1|0|a3|1|b1")
    assert told.members == (("A", "a1"), ("A", "a3"), ("B", "b1"))
    assert [(link.rule, link.value, link.members) for link in told.links] == [
        ("a.x = b.x", "1", (("A", "a1"), ("A", "a3"), ("B", "b1"))),
        ("lower(a.y) = b.y", "'p'", (("A", "a1"), ("B", "b1"))),
    ]
    assert str(told).splitlines()[-1] == "  by lower(a.y) = b.y: 'p' holds A 'a1', B 'b1'"
    alone = source.explain("0|a2")
    assert (alone.members, alone.links, alone.deleted, alone.replaced) == ((("A", "a2"),), (), False, False)
    world.apply("B", [{"delete": "b1"}])
    source.run()
    gone, dead = source.explain("0|a1|0|a3|1|b1"), source.explain("1|b1")
    assert (gone.members, gone.replaced) == ((), True)
    assert (dead.members, dead.deleted) == ((("B", "b1"),), True)
    with pytest.raises(InputError, match="the output has no entity 'nobody'"):
        source.explain("nobody")


def test_what_a_source_holds(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("A", SCHEMA, [{"_id": f"a{n}", "x": 0, "y": str(n % 2)} for n in range(6)])
    world.create("B", SCHEMA, [{"_id": f"b{n}", "x": n, "y": "1"} for n in range(1, 4)])
    source = source_of(world, equality=[["eq", "a.x", "b.x"], ["eq", "a.y", "b.y"]])
    source.run()
    world.apply("B", [{"delete": "b3"}])
    source.run()
    told = source.report(top=2)
    assert (told.entities, told.deleted, told.clusters, told.merged) == ({"A": 6, "B": 3}, 1, 4, 1)
    assert told.largest[0] == ("0|a1|0|a3|0|a5|1|b1|1|b2", 5)
    assert [(wide.value, dict(wide.holders), wide.active) for wide in told.widest] == [
        ("0", {"a.x": 6}, False),
        ("'1'", {"a.y": 3, "b.y": 2}, True),
    ]
    assert source.report(top=0).widest == ()
    with pytest.raises(InputError, match="top must be a whole number"):
        source.report(top=-1)


def test_a_check_finds_what_was_tampered_with(world: World) -> None:
    source = source_of(world)
    assert source.check().ok
    source.run()
    checked = source.check()
    assert (checked.ok, checked.entities, checked.clusters) == (True, 3, 2)
    assert str(checked).endswith("nothing is wrong")
    source.table.upsert(pa.table({"_id": ["0|a2"], "y": [["tampered"]]}))
    assert [finding.problem for finding in source.check().findings] == [
        "1 row(s) of the output are not what was written: '0|a2'"
    ]
    source.table.delete(pa.table({"_id": ["0|a1|1|b1"]}))
    assert source.check().findings[0].problem == "the output lacks 1 row(s): '0|a1|1|b1'"
    state = LakeTable.open(f"{world.folder / 'out'}_state")
    state.delete_where("part = 'v' AND k = 'n1' AND a = 0")
    state.upsert(
        pa.table(
            {
                "part": ["e"],
                "k": ["a2"],
                "a": pa.array([0], pa.int32()),
                "b": pa.array([0], pa.int32()),
                "deleted": [True],
            }
        )
    )
    problems = [finding.problem for finding in source.check().findings]
    assert problems[2:] == [
        "the state disagrees with the rows of entities, in 1 record(s): 'a2'",
        "the index of values disagrees with the rows, in 1 record(s): 'n1'",
    ]
    assert not source.check().ok


def test_keys_of_any_type_and_number(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    a = LakeTable.create(tmp_path / "A", "n BIGINT, x BIGINT", key=["n"])
    a.upsert(pa.table({"n": [9, 10], "x": [1, 2]}))
    b = LakeTable.create(tmp_path / "B", "t TIMESTAMP, s STRING, x BIGINT", key=["t", "s"])
    b.upsert(pa.table({"t": pa.array([moment], pa.timestamp("us", "UTC")), "s": ['q"'], "x": [1]}))
    c = LakeTable.create(tmp_path / "C", "k BINARY, x BIGINT, is_gone BOOLEAN", key=["k"])
    c.upsert(pa.table({"k": pa.array([b"\x01\xff", b"\x02"]), "x": [1, 2], "is_gone": [False, True]}))
    datasets: dict[str, Any] = {"a": a, "b": tmp_path / "B", "c": Dataset(c, deleted="is_gone")}
    source = MergeSource.create(tmp_path / "out", MergeConfig(datasets=datasets, equality_sets=[["a.x", "b.x", "c.x"]]))
    source.run()
    assert [(entity["_id"], entity["$ids"]) for entity in source.entities()] == [
        ("0|10", ["10"]),
        ('0|9|1|["2026-07-01T12:00:00Z","q\\""]|2|01ff', ["9", '["2026-07-01T12:00:00Z","q\\""]', "01ff"]),
        ("2|02", ["02"]),
    ]
    merged = source.entities()[1]
    # Key columns are properties, too; the mark of deleted entities is none.
    assert {name: merged[name] for name in ("n", "t", "s", "k", "x")} == {
        "n": 9, "t": moment, "s": 'q"', "k": b"\x01\xff", "x": [1, 1, 1],
    }  # fmt: skip
    assert source.entities()[2] == {
        "_id": "2|02",
        "_deleted": True,
        "$ids": ["02"],
        "_updated": 2,
        "k": b"\x02",
        "x": 2,
    }
    b.delete(pa.table({"t": pa.array([moment], pa.timestamp("us", "UTC")), "s": ['q"']}))
    c.upsert(pa.table({"k": pa.array([b"\x02"]), "x": [2], "is_gone": [False]}))
    source.run()
    assert [entity["_id"] for entity in source.entities() if "_deleted" not in entity] == ["0|10|2|02", "0|9|2|01ff"]
    assert source.check().ok


def test_sources_may_use_any_merger(tmp_path: Path) -> None:
    """The rows as their tables' mergers make them; late records and retractions change what counts only."""
    orders = LakeTable.create(
        tmp_path / "orders",
        "c STRING, total BIGINT",
        key=["c"],
        merger="aggregate",
        options={"aggregates": {"total": "sum"}},
    )
    people = LakeTable.create(tmp_path / "people", "id STRING, at BIGINT, mail STRING", key=["id"], ordering=["at"])
    orders.upsert(pa.table({"c": ["1", "2"], "total": [5, 1]}))
    people.upsert(pa.table({"id": ["1", "2"], "at": [10, 10], "mail": ["m", "n"]}))
    config = MergeConfig(datasets={"o": orders, "p": people}, equality=["o._id = p._id"], identity="first")
    source = MergeSource.create(tmp_path / "out", config)
    source.run()
    orders.upsert(pa.table({"c": ["1"], "total": [-2]}))
    people.upsert(pa.table({"id": ["2"], "at": [9], "mail": ["too late"]}))
    assert source.run().emitted == 1
    entities = {entity["_id"]: entity for entity in source.entities()}
    assert (entities["1"]["total"], entities["2"]["mail"]) == (3, "n")
    assert source.check().ok


def test_a_merge_source_may_read_the_output_of_another(world: World) -> None:
    """``$ids`` go on, so that rules on them find the first entities; what is retired or deleted merges with nothing."""
    first = source_of(world)
    first.run()
    world.create("C", SCHEMA, [{"_id": "c1", "y": "b1"}])
    config = MergeConfig(
        datasets={"m": first.table, "c": world.paths["C"]}, equality=["m.$ids = c.y"], identity="composite"
    )
    second = MergeSource.create(world.folder / "second", config)
    second.run()
    assert [(entity["_id"], entity["$ids"]) for entity in second.entities()] == [
        ("0|0|a1|1|b1|1|c1", ["a1", "b1", "c1"]),
        ("0|0|a2", ["a2"]),
    ]
    world.apply("B", [{"upsert": {"_id": "b1", "x": 2}}])
    first.run()
    second.run()
    live = [(entity["_id"], entity["$ids"]) for entity in second.entities() if "_deleted" not in entity]
    assert live == [("0|0|a1", ["a1"]), ("0|0|a2|1|b1|1|c1", ["a2", "b1", "c1"])]
    assert [entity["_id"] for entity in second.entities() if entity.get("$replaced")] == ["0|0|a1|1|b1|1|c1", "0|0|a2"]
    assert second.check().ok
