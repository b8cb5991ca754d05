"""A run is killed, or fails, or meets another one, at each call of a store in turn: every entity is emitted once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeMergeError, LakeTable, Settings
from lakemerge.merge_source import MergeSource
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fail, Fault, FaultStore
from tests.interrupting import raised_in, raising_at
from tests.merge_source.world import World
from tests.property.effort import some

ONE = Settings(threads=1)
"""One thread makes the order of calls the same in every run."""
CONFIG = {
    "type": "merge",
    "version": 2,
    "datasets": ["A a", "B b"],
    "equality": [["eq", "a.x", "b.x"]],
}
CHANGES = ("put_if_absent", "put", "delete", "publish")
Entities = list[dict[str, Any]]


class Killed(BaseException):
    pass


class Stage:
    """A source after its first run with changes to take up, ready to be copied; the datasets are only read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        world = World(folder)
        world.create("A", "_id STRING, x BIGINT", [{"_id": f"a{n}", "x": n} for n in range(4)])
        world.create("B", "_id STRING, x BIGINT, y STRING", [{"_id": f"b{n}", "x": n, "y": "old"} for n in range(3)])
        world.run(CONFIG)
        world.apply("B", [{"upsert": {"_id": "b0", "x": 3, "y": "new"}}, {"delete": "b1"}])
        world.apply("A", [{"upsert": {"_id": "a2", "x": 2}}, {"upsert": {"_id": "a9", "x": 9}}])
        self.clean = self.copy("clean")
        source = self.open(self.clean)
        self.stores = {name: faulty(table) for name, table in tables_of(source).items()}
        self.emitted = source.run().emitted
        self.calls = {name: store.calls for name, store in self.stores.items()}
        self.after = source.entities()
        assert source.check().ok

    def copy(self, name: str) -> Path:
        for suffix in ("", "_state"):
            shutil.copytree(self.folder / f"out{suffix}", self.folder / f"{name}{suffix}")
        return self.folder / name

    def drop(self, path: Path) -> None:
        for suffix in ("", "_state"):
            shutil.rmtree(f"{path}{suffix}")

    @staticmethod
    def open(path: Path) -> MergeSource:
        return MergeSource.open(path, settings=ONE)

    def holds(self, path: Path, about: str) -> None:
        """Whatever happened: the next run brings the output to what an undisturbed run gives, with one commit in all
        that emits, and nothing is left to do."""
        source = self.open(path)
        source.run()
        assert source.entities() == self.after, about
        operations = [entry.operation for entry in source.table.history()]
        assert operations == ["UPSERT", "UPSERT", "CREATE TABLE"], about
        assert source.run().emitted == 0, about
        assert source.check().findings == (), about


def tables_of(source: MergeSource) -> dict[str, LakeTable]:
    return {"output": source.table, "state": source._tables.state}


def faulty(table: LakeTable, *faults: Fault) -> FaultStore:
    """The table goes through a store with faults from now on."""
    store = FaultStore(LocalStore(table.opened.handle.store.url.removeprefix("file://")), *faults)
    object.__setattr__(table.opened.handle, "store", store)
    table.opened.handle.log.store = store
    return store


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


Place = tuple[str, int, Call, bool]
"""A table, the number of a call to its store, the call, and whether it is after its effect."""


def places(stage: Stage) -> list[Place]:
    """After a call that changes nothing is before the next one."""
    return [
        (name, number, call, after)
        for name, calls in stage.calls.items()
        for number, call in enumerate(calls, start=1)
        for after in ((False, True) if call.method in CHANGES else (False,))
    ]


def at_each(
    chosen: Sequence[Place], stage: Stage, action: Callable[[Call], None], attempt: Callable[[MergeSource, str], None]
) -> None:
    """For each place, a source of its own, on which the attempt is made."""
    for name, number, call, after in chosen:
        about = f"{name} {number} {call}, {'after' if after else 'before'} its effect"
        path = stage.copy("copy")
        source = stage.open(path)
        faulty(tables_of(source)[name], Fault(action=action, at=number, after=after))
        attempt(source, about)
        stage.holds(path, about)
        stage.drop(path)


@pytest.mark.long
def test_a_run_that_is_killed_is_made_good_by_the_next(stage: Stage) -> None:
    def kill(call: Call) -> None:
        raise Killed(call)

    left = set()

    def attempt(source: MergeSource, about: str) -> None:
        try:
            source.run()
        except Killed:
            left.add((source.pending().unpublished, bool(source.pending().datasets)))
            return
        # Calls after both commits serve the upkeep of the state alone.
        assert source.entities() == stage.after, about

    at_each(places(stage), stage, kill, attempt)
    # Before both commits, between them, and after them.
    assert left == {(False, True), (True, False), (False, False)}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_after_a_commit_was_sent_costs_nothing(stage: Stage) -> None:
    """At lines of the library that run after the first of a run's commits, as a signal handler raises it."""
    stage.copy("copy")
    with raising_at(stage.folder, 0) as counted:
        stage.open(stage.folder / "copy").run()
    stage.drop(stage.folder / "copy")
    assert counted["lines"] > 100
    raised = 0
    for number in some(range(1, counted["lines"] + 1, max(1, counted["lines"] // 20))):
        path = stage.copy("copy")
        source = stage.open(path)
        raised += raised_in(source.run, stage.folder, number)
        stage.holds(path, f"an exception at line {number}")
        stage.drop(path)
    assert raised >= 3


@pytest.mark.long
def test_a_store_that_fails_once(stage: Stage) -> None:
    outcomes = set()

    def attempt(source: MergeSource, about: str) -> None:
        try:
            source.run()
        except (ConnectionError, LakeMergeError):
            outcomes.add("failed")
            return
        outcomes.add("done")
        assert source.entities() == stage.after, about

    at_each(some(places(stage)), stage, Fail(ConnectionError("gone")), attempt)
    assert outcomes == {"failed", "done"}


@pytest.mark.long
def test_two_runs_at_once(stage: Stage) -> None:
    """The other run takes place within a call of this one: one of them emits, and the other finds it done."""
    emitted: list[int] = []
    winners = set()

    def other(call: Call) -> None:
        emitted.append(stage.open(stage.folder / "copy").run().emitted)

    def attempt(source: MergeSource, about: str) -> None:
        emitted.clear()
        own = source.run().emitted
        assert sorted([own, *emitted]) == [0, stage.emitted], about
        assert source.entities() == stage.after, about
        winners.add("own" if own else "other")

    at_each(some(places(stage)), stage, other, attempt)
    assert winners == {"own", "other"}
