"""The registry of mergers: it refuses rather than replaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, Self

import pytest

from lakemerge import LakeTable, Merger, MergerMissingError, MergerRegistrationError, RowMerger
from mergers import CommitTime, EventTime, Groups, Merged, MergerRegistry, TableShape, default_registry
from mergers.registry import ENTRY_POINT_GROUP

ID = "0d3c6c1e-9c4a-4b86-a1a0-5e2a4f6b8c01"


def merger(
    name: Any = "mine", merger_id: Any = ID, *, qualname: str = "Mine", module: str = "a.module"
) -> type[Merger]:
    class Mine(Merger):
        @classmethod
        def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
            raise AssertionError("the registry makes no merger")

        def options(self) -> Mapping[str, object]:
            return {}

        def merge_groups(self, groups: Groups) -> Merged:
            raise AssertionError("the registry folds nothing")

    Mine.__qualname__, Mine.__module__ = qualname, module
    for attribute, value in (("id", merger_id), ("name", name)):
        if value is not None:
            setattr(Mine, attribute, value)
    return Mine


def test_found_by_name_and_by_id() -> None:
    mine = merger()
    registry = MergerRegistry([EventTime, mine])
    assert registry.resolve("mine") is registry.resolve(ID) is registry.of_table(ID, "whatever") is mine
    assert list(registry) == [EventTime, mine]


def test_built_ins_keep_their_ids() -> None:
    """Tables persist them."""
    ids = {kind.name: kind.id for kind in default_registry()}
    assert ids["event-time"] == "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
    assert ids["commit-time"] == "ce9acb64-bde0-424c-9b91-f6ebba25356d"
    assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize("wrong", [None, "", "mine", ID.upper(), "{" + ID + "}", ID.replace("-", ""), 7])
def test_ids_that_are_none(wrong: Any) -> None:
    with pytest.raises(
        MergerRegistrationError, match=r"a\.module\.Mine needs a class attribute `id`.*for example [0-9a-f]{8}-"
    ):
        MergerRegistry([merger(merger_id=wrong)])


@pytest.mark.parametrize("wrong", [None, "", 7])
def test_names_that_are_none(wrong: Any) -> None:
    with pytest.raises(MergerRegistrationError, match="needs a class attribute `name`"):
        MergerRegistry([merger(wrong)])


@pytest.mark.parametrize("wrong", ["a.module.Mine", CommitTime(), None])
def test_what_is_no_class(wrong: Any) -> None:
    with pytest.raises(MergerRegistrationError, match="not a class"):
        MergerRegistry([wrong])


def test_a_class_that_lacks_its_method_is_refused_by_the_method() -> None:
    class NoMerge(RowMerger):
        id = "3f6a1d0a-6c0f-4d5e-9a55-0d5a3d1c7b11"
        name = "no-merge"

    class NoGroups(Merger):
        id = "3f6a1d0a-6c0f-4d5e-9a55-0d5a3d1c7b12"
        name = "no-groups"

    class NoMerger:
        id = "3f6a1d0a-6c0f-4d5e-9a55-0d5a3d1c7b13"
        name = "none"

    for wrong, told in ((NoMerge, "merge()"), (NoGroups, "merge_groups()"), (NoMerger, "subclass")):
        with pytest.raises(MergerRegistrationError, match=re.escape(told)):
            MergerRegistry([wrong])  # type: ignore[list-item]


def test_taken_ids_and_names_are_refused() -> None:
    registry = MergerRegistry([merger()])
    with pytest.raises(MergerRegistrationError, match=f"has the id {ID} of a.module.Mine; mint"):
        registry.add(merger("other", qualname="Other"))
    with pytest.raises(MergerRegistrationError, match=r"has the name 'mine' of a\.module\.Mine; choose another"):
        registry.add(merger(merger_id="0d3c6c1e-9c4a-4b86-a1a0-5e2a4f6b8c02", qualname="Other"))
    with pytest.raises(MergerRegistrationError, match="EventTime; mint"):
        default_registry().extended([merger(merger_id=EventTime.id)])


def test_the_same_class_defined_again_takes_its_place() -> None:
    """A notebook cell that was run twice."""
    first, second = merger(), merger()
    registry = MergerRegistry([first])
    registry.add(second)
    assert list(registry) == [second]


def test_extending_leaves_the_registry_as_it_was() -> None:
    registry = MergerRegistry([EventTime])
    assert list(registry.extended([merger()])) != list(registry) == [EventTime]


def test_what_is_missing_is_named_with_near_misses() -> None:
    registry = MergerRegistry([EventTime, CommitTime])
    with pytest.raises(
        MergerMissingError,
        match=r"no merger 'comit-time'.*Did you mean 'commit-time'\? Registered: commit-time, event-time",
    ):
        registry.resolve("comit-time")
    with pytest.raises(MergerMissingError) as caught:
        registry.resolve("zzz")
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(MergerMissingError, match=rf"strategy {ID} \(named 'theirs' when it was created\)"):
        registry.of_table(ID, "theirs")


def test_an_entry_point_that_is_broken_hurts_only_those_who_need_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = EntryPoints(
        EntryPoint(name, value, ENTRY_POINT_GROUP)
        for name, value in (
            ("gone", "no_such_module:Merger"),
            ("taken", "tests.unit.mergers.test_registry:taken"),
            ("fine", "tests.unit.mergers.test_registry:fine"),
        )
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries.select(group=group))
    registry = default_registry.__wrapped__()  # not the one of this process, which keeps what was registered
    monkeypatch.setattr("lakemerge.table.opening.default_registry", lambda: registry)
    assert registry.resolve("mine") is fine
    assert registry.resolve("event-time") is EventTime
    assert LakeTable.create(tmp_path, "k BIGINT", key=["k"]).version == LakeTable.open(tmp_path).version == 0
    searches: list[Callable[[], object]] = [
        lambda: registry.resolve("other"),
        lambda: registry.extended([]).of_table(ID.replace("1", "2"), "x"),
    ]
    for missed in searches:
        with pytest.raises(MergerMissingError) as caught:
            missed()
        for part in (
            "The entry point gone = no_such_module:Merger of an unknown package could not be used",
            "No module named 'no_such_module'",
            "taken = tests.unit.mergers.test_registry:taken",
            "repair or uninstall it",
        ):
            assert part in str(caught.value)
            assert part in caplog.text


fine = merger()
taken = merger("another", EventTime.id, qualname="Taken")
