"""Corners, each with the ids that the design and Sesam's documentation ask for; all else is as the model has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import FullRunNeededError, LakeTable, MaxMergedError
from lakemerge.merge_source import MergeConfig, MergeSource
from tests.merge_source.twin import Twin

PAIRS = {"datasets": ["A a", "B b", "C c"], "equality": [["eq", "a.x", "b.x"], ["eq", "b.y", "c.y"]]}
SCHEMAS = {"A": "x BIGINT", "B": "x BIGINT, y STRING", "C": "y STRING"}


@pytest.fixture
def chain(tmp_path: Path) -> Twin:
    """``a1`` and ``c1`` are the same by ``b1`` alone."""
    twin = Twin(tmp_path, PAIRS, **SCHEMAS)
    twin.put("A", {"_id": "a1", "x": 1})
    twin.put("B", {"_id": "b1", "x": 1, "y": "u"})
    twin.put("C", {"_id": "c1", "y": "u"})
    assert twin.run() == ["0|a1|1|b1|2|c1"]
    return twin


def test_a_member_that_joins_two_halves_is_deleted_and_comes_back(chain: Twin) -> None:
    chain.delete("B", "b1")
    assert chain.run() == [">0|a1|1|b1|2|c1", "0|a1", "-1|b1", "2|c1"]
    chain.put("B", {"_id": "b1", "x": 1, "y": "u"})
    assert chain.run() == [">0|a1", ">1|b1", ">2|c1", "0|a1|1|b1|2|c1"]
    chain.put("B", {"_id": "b1", "x": 1, "y": "u", "_deleted": True})
    assert chain.run() == [">0|a1|1|b1|2|c1", "0|a1", "-1|b1", "2|c1"]
    assert chain.run() == []


def test_a_member_is_deleted_and_comes_back_between_two_runs(chain: Twin) -> None:
    chain.delete("B", "b1")
    chain.put("B", {"_id": "b1", "x": 1, "y": "u"})
    assert chain.run() == []


def test_a_member_goes_over_to_another_cluster(chain: Twin) -> None:
    chain.put("A", {"_id": "a2", "x": 2})
    assert chain.run() == ["0|a2"]
    chain.put("B", {"_id": "b1", "x": 2, "y": "u"})
    assert chain.run() == [">0|a1|1|b1|2|c1", ">0|a2", "0|a1", "0|a2|1|b1|2|c1"]


def test_two_rules_hold_the_same_two_entities(tmp_path: Path) -> None:
    """One of them may go, and nothing changes but the property."""
    config = {"datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"], ["eq", "a.y", "b.y"]]}
    twin = Twin(tmp_path, config, A="x BIGINT, y STRING", B="x BIGINT, y STRING")
    twin.put("A", {"_id": "k", "x": 1, "y": "u"})
    twin.put("B", {"_id": "k", "x": 1, "y": "u"})
    assert twin.run() == ["0|k|1|k"]
    twin.put("B", {"_id": "k", "x": 2, "y": "u"})
    assert twin.run() == ["0|k|1|k"]
    twin.put("B", {"_id": "k", "x": 2, "y": "v"})
    assert twin.run() == [">0|k|1|k", "0|k", "1|k"]


def test_one_expression_joins_by_way_of_another_dataset_only(tmp_path: Path) -> None:
    twin = Twin(tmp_path, {"datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}, A="x BIGINT", B="x BIGINT")
    twin.put("A", *({"_id": f"a{number}", "x": 7} for number in range(3)))
    assert twin.run() == ["0|a0", "0|a1", "0|a2"]
    twin.put("B", {"_id": "b", "x": 7})
    assert twin.run() == [">0|a0", ">0|a1", ">0|a2", "0|a0|0|a1|0|a2|1|b"]
    twin.delete("B", "b")
    assert twin.run() == [">0|a0|0|a1|0|a2|1|b", "0|a0", "0|a1", "0|a2", "-1|b"]


def test_lists_null_and_nothing(tmp_path: Path) -> None:
    """A list matches by any element; null, an empty list and a list of nulls match nothing, the empty string does."""
    config = {"datasets": ["A a", "B b"], "equality": [["eq", "a.t", "b.t"], ["eq", "a.n.m", "b.t"]]}
    nested = "n ARRAY<STRUCT<m: ARRAY<STRING>>>"
    twin = Twin(tmp_path, config, A=f"t ARRAY<STRING>, {nested}", B="t ARRAY<STRING>")
    twin.put(
        "A",
        {"_id": "none"},
        {"_id": "empty", "t": []},
        {"_id": "nulls", "t": [None, None]},
        {"_id": "blank", "t": [None, ""]},
        {"_id": "deep", "n": [{}, {"m": []}, {"m": ["p", None, "q"]}]},
    )
    twin.put(
        "B", {"_id": "none"}, {"_id": "empty", "t": []}, {"_id": "nulls", "t": [None]}, {"_id": "q", "t": ["", "q"]}
    )
    assert twin.run() == ["0|blank|0|deep|1|q", "0|empty", "0|none", "0|nulls", "1|empty", "1|none", "1|nulls"]
    twin.put("B", {"_id": "q", "t": []})
    assert twin.run() == [">0|blank|0|deep|1|q", "0|blank", "0|deep", "1|q"]


def test_letters_of_any_language(tmp_path: Path) -> None:
    config = {
        "datasets": ["A a", "B b"],
        "equality_sets": [[["upper", ["strip", "a.y"]], ["upper", "b.y"]]],
    }
    twin = Twin(tmp_path, config, A="y STRING", B="y STRING")
    twin.put("A", {"_id": "1", "y": " straße\t"}, {"_id": "2", "y": "\u00a0ǆ"}, {"_id": "3", "y": "É"})
    twin.put("B", {"_id": "1", "y": "STRASSE"}, {"_id": "2", "y": "ǅ"}, {"_id": "3", "y": "é"}, {"_id": "4", "y": "e"})
    assert twin.run() == ["0|1|1|1", "0|2|1|2", "0|3|1|3", "1|4"]


@pytest.mark.long
@pytest.mark.parametrize("full", [False, True])
def test_another_identity_renames_everything_and_back(full: bool, chain: Twin) -> None:
    chain.put("A", {"_id": "a2"})
    chain.run()
    assert chain.run(full=full, identity="first") == [">0|a1|1|b1|2|c1", ">0|a2", "a1", "a2"]
    chain.delete("A", "a1")
    assert chain.run() == ["-a1", "b1"]
    chain.put("A", {"_id": "a1", "x": 1})
    assert chain.run() == [">b1", "a1"]
    assert chain.run(full=full, identity="composite") == [">a1", ">a2", "0|a1|1|b1|2|c1", "0|a2"]


@pytest.mark.parametrize("strategy", ["compact", "list"])
def test_another_strategy_takes_hold_of_every_entity_that_it_changes(strategy: str, chain: Twin) -> None:
    chain.put("A", {"_id": "a2", "x": 9})
    chain.run()
    emitted = chain.run(strategy=strategy)
    assert emitted == (["0|a1|1|b1|2|c1"] if strategy == "compact" else ["0|a1|1|b1|2|c1", "0|a2"])


@pytest.mark.long
def test_an_id_that_was_retired_comes_back_and_is_retired_again(chain: Twin) -> None:
    for number in range(3):
        chain.put("A", {"_id": "a1", "x": 5 + number})
        assert chain.run() == [">0|a1|1|b1|2|c1", "0|a1", "1|b1|2|c1"]
        chain.put("A", {"_id": "a1", "x": 1})
        assert chain.run() == [">0|a1", ">1|b1|2|c1", "0|a1|1|b1|2|c1"]


def test_all_members_are_deleted_at_once(chain: Twin) -> None:
    chain.delete("A", "a1")
    chain.delete("B", "b1")
    chain.delete("C", "c1")
    # Something of the id lives on: its members are output alone, deleted.
    assert chain.run() == [">0|a1|1|b1|2|c1", "-0|a1", "-1|b1", "-2|c1"]
    assert chain.run(full=True) == []


def test_a_hub_that_becomes_active_fails_as_a_whole_and_is_mended(tmp_path: Path) -> None:
    config = {"datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]], "max_merged": 5, "oversize": "fail"}
    twin = Twin(tmp_path, config, A="x BIGINT", B="x BIGINT")
    twin.put("A", *({"_id": f"a{number}", "x": 7} for number in range(9)))
    twin.run()
    twin.put("B", {"_id": "b", "x": 7}, {"_id": "other", "x": 8})
    source = twin.world.source
    assert source is not None
    before = source.entities()
    for full in (False, True):
        with pytest.raises(MaxMergedError, match=r"a\.x = b\.x") as caught:
            source.run(full=full)
        assert caught.value.code == "max-merged"
    assert source.entities() == before
    twin.put("B", {"_id": "b", "x": 9})
    assert twin.run() == ["1|b", "1|other"]


def test_a_table_is_compacted_rescaled_and_vacuumed_between_runs(chain: Twin) -> None:
    """Nothing in it changes for the source, as long as what changed since its last run is kept."""
    chain.put("A", {"_id": "a2", "x": 2})
    table = chain.world.table("A")
    table.compact()
    assert chain.run() == ["0|a2"]
    chain.delete("A", "a1")
    table.rescale(buckets=4)
    table.compact_logs()
    table.compact()
    assert chain.run() == [">0|a1|1|b1|2|c1", "-0|a1", "1|b1|2|c1"]


def test_a_table_goes_back_to_an_earlier_version(chain: Twin) -> None:
    chain.put("A", {"_id": "a2", "x": 2})
    chain.run()
    chain.world.table("A").restore(version=1)
    assert chain.world.source is not None
    with pytest.raises(FullRunNeededError):
        chain.world.source.run()
    chain.model.delete("A", "a2")
    assert chain.run(full=True) == ["-0|a2"]
    chain.put("A", {"_id": "a2", "x": 2})
    assert chain.run() == ["0|a2"]


def test_a_table_is_altered_between_runs(tmp_path: Path) -> None:
    """Wider types, another order of columns and new ones emit nothing by themselves; later rows have what is new."""
    a = LakeTable.create(tmp_path / "A", "id STRING, x INT, y STRING NOT NULL", key=["id"])
    b = LakeTable.create(tmp_path / "B", "id STRING, x BIGINT", key=["id"])
    a.upsert(pa.table({"id": ["a"], "x": pa.array([1], pa.int32()), "y": ["u"]}))
    b.upsert(pa.table({"id": ["b"], "x": [1]}))
    source = MergeSource.create(tmp_path / "out", MergeConfig(datasets={"a": a, "b": b}, equality=["a.x = b.x"]))
    source.run()
    a.compact()
    a.alter(widen={"x": "BIGINT"}, nullable=["y"], order=["y", "x"], add_columns="z DOUBLE")
    assert source.run().emitted == 0
    a.upsert(pa.table({"id": ["a"], "x": [2**40], "y": pa.array([None], pa.string()), "z": [0.5]}))
    b.upsert(pa.table({"id": ["b"], "x": [2**40]}))
    assert source.run().emitted == 1
    last = source.entities()[-1]
    assert last == {
        "_id": "0|a|1|b", "$ids": ["a", "b"], "_updated": last["_updated"], "id": ["a", "b"], "x": [2**40, 2**40],
        "z": 0.5,
    }  # fmt: skip
    assert source.check().ok
    assert source.run(full=True).emitted == 0


def test_keys_of_several_columns_with_separators_in_them(tmp_path: Path) -> None:
    """Ids of several key columns are JSON, so that no values run into each other; rows are found by them again."""
    odd = ["|", '"', "\\", ",", '","', "\n", "0|a", "", "[1]", "ø😀", "null"]
    a = LakeTable.create(tmp_path / "A", "s STRING, n BIGINT, x BIGINT", key=["s", "n"])
    b = LakeTable.create(tmp_path / "B", "x BIGINT, s STRING", key=["s"])
    count = len(odd)
    a.upsert(pa.table({"s": odd, "n": range(count), "x": range(count)}))
    b.upsert(pa.table({"s": odd, "x": range(count)}))
    source = MergeSource.create(tmp_path / "out", MergeConfig(datasets={"a": a, "b": b}, equality=["a.x = b.x"]))
    assert source.run().emitted == count
    together = {tuple(entity["s"]) for entity in source.entities()}
    assert together == {(text, text) for text in odd}
    b.upsert(pa.table({"s": odd, "x": [-1] * count}))
    assert source.run().emitted == 3 * count
    parted = [entity for entity in source.entities() if "_deleted" not in entity]
    assert sorted(entity["s"] for entity in parted) == sorted([*odd, *odd])
    assert all(len(entity["$ids"]) == 1 for entity in parted)
    assert source.check().ok
    for entity in parted:
        assert len(source.explain(entity["_id"]).members) == 1


def test_datasets_that_are_not_filled_yet_wait_for_each_other(tmp_path: Path) -> None:
    """Only the datasets that are named must be filled; until then nothing is taken up, and after it everything."""
    a = LakeTable.create(tmp_path / "A", "id STRING, x BIGINT", key=["id"])
    b = LakeTable.create(tmp_path / "B", "id STRING, x BIGINT", key=["id"])
    config = MergeConfig(
        datasets={"a": a, "b": b, "c": tmp_path / "C"},
        equality_sets=[["a.x", "b.x", "c.x"]],
        initial_datasets=["a", "b"],
    )
    source = MergeSource.create(tmp_path / "out", config)
    a.upsert(pa.table({"id": ["a"], "x": [1]}))
    result = source.run()
    assert (result.populated, result.emitted, result.versions) == (False, 0, {"a": None, "b": None, "c": None})
    b.upsert(pa.table({"id": ["b"], "x": [1]}))
    assert source.run().emitted == 1
    c = LakeTable.create(tmp_path / "C", "id STRING, x BIGINT", key=["id"])
    assert source.run().emitted == 0
    c.upsert(pa.table({"id": ["c"], "x": [1]}))
    assert source.run().emitted == 2
    assert [entity["_id"] for entity in source.entities()] == ["0|a|1|b", "0|a|1|b|2|c"]
    assert source.check().ok


def test_numbers_booleans_and_strings_that_look_alike(tmp_path: Path) -> None:
    config = {"datasets": ["A a", "B b"], "equality": [["eq", "a.v", "b.v"], ["eq", "a.w", "b.w"]]}
    twin = Twin(tmp_path, config, A="v BIGINT, w BOOLEAN", B="v DOUBLE, w STRING")
    big = 2**53 + 1
    twin.put("A", {"_id": "1", "v": 1}, {"_id": "t", "w": True}, {"_id": "big", "v": big}, {"_id": "0", "v": 0})
    rows: list[dict[str, Any]] = [
        {"_id": "1", "v": 1.0},
        {"_id": "t", "w": "true"},
        {"_id": "big", "v": float(2**53)},
        {"_id": "0", "v": -0.0},
        {"_id": "nan", "v": float("nan")},
    ]
    twin.world.put("B", rows)
    source = twin.world
    emitted = [entity["_id"] for entity in source.run(twin.config | {"type_conflicts": "string"})]
    assert emitted == ["0|0|1|0", "0|1|1|1", "0|big", "0|t", "1|big", "1|nan", "1|t"]
