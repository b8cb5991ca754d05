"""Overrides and limits of datasets: what they say of themselves, and what is refused. Their cases are those of
test_stable_ids.py."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakemerge import DatasetsMissingError, IdCollisionError, InputError, LakeTable, MaxMergedError, MergeConfigError
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource
from tests.merge_source.entities import Entities


def joined(folder: Path, **config: Any) -> Entities:
    """a1 and b1 are one by x, and b1 and c1 by y."""
    world = Entities(folder, ["a.x = b.x", "b.y = c.y"], count=3, overridden=True, **config)
    world.apply({"put": {"A": {"a1": 1}, "B": {"b1": [1, 5]}, "C": {"c1": [None, 5]}}})
    world.source.run()
    return world


def test_a_cut_link_is_said_with_who_when_and_why(tmp_path: Path) -> None:
    world = joined(tmp_path)
    world.override({"o1": ["a", "a1", "c", "c1", "different"]})
    result = world.source.run()
    (found,) = result.findings
    assert (found.kind, found.rule, found.value) == ("cut", "b.y = c.y", "5")
    assert found.members == (("b", "b1"), ("c", "c1"))
    assert found.override is not None
    assert (found.override.key, found.override.verdict) == ("o1", "different")
    assert (found.override.who, found.override.at, found.override.why) == (
        "Ann",
        "2026-01-02T00:00:00Z",
        "I asked them",
    )
    assert str(found) == (
        "cut: b 'b1' and c 'c1' are not joined by b.y = c.y with the value 5, because of override 'o1' "
        "(a 'a1' and c 'c1' are different, by Ann, at 2026-01-02T00:00:00Z): I asked them"
    )
    assert world.source.findings() == result.findings
    assert "1 findings" in str(result)
    for entity in ("1", "2"):
        told = world.source.explain(entity)
        assert told.findings == result.findings
        assert str(found) in str(told)
    assert [link.value for link in world.source.explain("1").links] == ["1"]


def test_a_same_is_said_as_what_joins(tmp_path: Path) -> None:
    world = joined(tmp_path)
    world.apply({"put": {"A": {"a2": 9}}, "override": {"o7": ["a", "a2", "c", "c1", "same"]}})
    assert world.run()["1"] == {"rows": ["0|a1", "0|a2", "1|b1", "2|c1"]}
    links = world.source.explain("1").links
    assert [(link.rule, link.value, link.members) for link in links if link.value == "o7"] == [
        ("override", "o7", (("a", "a2"), ("c", "c1")))
    ]
    assert world.source.findings() == ()


def test_what_counts_for_nothing_or_waits_is_a_finding(tmp_path: Path) -> None:
    world = joined(tmp_path)
    world.override(
        {
            "o1": ["a", "a1", "b", "b1", "maybe"],
            "o2": ["a", "a1", "zz", "b1", "same"],
            "o3": ["a", "a1", "a", "a1", "same"],
            "o4": ["a", "a1", "b", "b77", "different"],
        }
    )
    world.overrides.upsert(pa.table({"nr": ["o5"], "left_dataset": ["a"], "right_dataset": ["b"], "verdict": ["same"]}))
    expected = [
        ("unusable", "override 'o1' counts for nothing: its verdict is neither same nor different"),
        ("unusable", "override 'o2' counts for nothing: it names a dataset that the source does not have"),
        ("unusable", "override 'o3' counts for nothing: it names one row twice"),
        ("unusable", "override 'o5' counts for nothing: it names no row"),
    ]
    result = world.source.run()
    assert [(one.kind, one.problem) for one in result.findings[:-1]] == expected
    assert (result.findings[-1].kind, result.findings[-1].members) == ("waiting", (("b", "b77"),))
    assert world.source.findings() == result.findings
    assert world.now() == {"1": {"rows": ["0|a1", "1|b1", "2|c1"]}}
    world.put("B", {"b77": 1})
    world.source.run()
    assert [one.kind for one in world.source.findings()] == ["cut", *["unusable"] * 4]


def test_findings_of_overrides_come_by_key(tmp_path: Path) -> None:
    """By the bytes of the key; of one key's rows by dataset and id."""
    world = joined(tmp_path)
    for key in ("o9", "o10", "O2"):
        world.override({key: ["c", f"c{key}", "b", "b0", "same"], f"{key}x": ["a", "a1", "zz", "b1", "same"]})
    found = world.source.run().findings
    assert [(one.kind, one.override.key) for one in found[:3] if one.override is not None] == [
        ("unusable", "O2x"), ("unusable", "o10x"), ("unusable", "o9x"),
    ]  # fmt: skip
    assert [one.members[0] for one in found[3:]] == [
        ("b", "b0"), ("c", "cO2"), ("b", "b0"), ("c", "co10"), ("b", "b0"), ("c", "co9"),
    ]  # fmt: skip
    assert world.source.findings() == found


def test_values_of_overrides_are_taken_as_they_are_and_null_is_nothing(tmp_path: Path) -> None:
    """Case counts in a verdict, a dataset and an id. The first reason is told."""
    world = joined(tmp_path)
    world.override(
        {
            "o1": ["a", "a1", "b", "b1", "Different"],
            "o2": ["A", "a1", "b", "b1", "different"],
            "o3": ["a", "A1", "b", "b1", "different"],
        }
    )
    sides = {"left_dataset": ["a"], "left_id": ["a1"], "right_dataset": ["b"], "right_id": ["b1"]}
    world.overrides.upsert(pa.table({"nr": ["n1"], **sides}))
    world.overrides.upsert(pa.table({"nr": ["n2"], **sides, "left_dataset": pa.nulls(1, pa.string())}))
    world.overrides.upsert(
        pa.table({"nr": ["n3"], "left_id": ["a1"], "right_dataset": ["b"], "right_id": ["b1"], "verdict": ["same"]})
    )
    world.overrides.upsert(
        pa.table(
            {
                "nr": ["n4"],
                **sides,
                "right_id": pa.nulls(1, pa.string()),
                "verdict": ["same"],
                "who": pa.nulls(1, pa.string()),
            }
        )
    )
    found = world.source.run().findings
    neither = "its verdict is neither same nor different"
    absent = "it names a dataset that the source does not have"
    unusable = [one for one in found if one.kind == "unusable"]
    assert {one.override.key: one.problem.partition(": ")[2] for one in unusable if one.override is not None} == {
        "n1": neither, "n2": neither, "n3": absent, "n4": "it names no row", "o1": neither, "o2": absent,
    }  # fmt: skip
    assert [one.members for one in found if one.kind == "waiting"] == [(("a", "A1"),)]
    assert world.now() == {"1": {"rows": ["0|a1", "1|b1", "2|c1"]}}


@pytest.mark.parametrize("full", [False, True])
def test_of_several_overrides_of_a_pair_the_first_by_key_is_told(full: bool, tmp_path: Path) -> None:
    """Whatever the order in which they came."""
    world = joined(tmp_path)
    world.override({"o9": ["a", "a1", "b", "b1", "different"]})
    world.source.run()
    world.override({"o10": ["b", "b1", "a", "a1", "different"], "p": ["a", "a1", "b", "b1", "different"]})
    world.put("B", {"b0": None})
    world.source.run(full=full)
    (found,) = world.source.findings()
    assert found.override is not None
    assert found.override.key == "o10"


@pytest.mark.parametrize("full", [False, True])
def test_same_is_left_out_of_a_chain_after_all_values(full: bool, tmp_path: Path) -> None:
    """A value of two holders joins as many rows as a same does, but nobody decided it."""
    world = Entities(tmp_path, ["a.x = b.x"], overridden=True, max_merged=2)
    world.apply({"put": {"A": {"a1": 1}, "B": {"b1": 1, "b2": 2}}})
    world.run()
    world.override({"o1": ["a", "a1", "b", "b2", "same"]})
    result = world.source.run(full=full)
    assert [(one.rule, one.value, one.chain) for one in result.left_out] == [("a.x = b.x", "1", True)]
    now = {key: told["rows"] for key, told in world.now().items() if "rows" in told}
    assert sorted(now.values()) == [["0|a1", "1|b2"], ["1|b1"]]
    world.override({"o2": ["b", "b1", "b", "b2", "same"]})
    result = world.source.run(full=full)
    assert sorted(one.rule for one in result.left_out) == ["a.x = b.x", "override", "override"]
    assert len([told for told in world.now().values() if "rows" in told]) == 3
    assert world.source.check().ok


@pytest.mark.parametrize("limited", [False, True])
def test_with_first_ids_rows_of_one_id_cannot_be_parted(limited: bool, tmp_path: Path) -> None:
    """Unless one of them is not the first member of its entity."""
    config: dict[str, Any] = {"identity": "first", "one_per_dataset": ["b"] if limited else []}
    world = Entities(tmp_path, ["a._id = b._id", "a.x = b.x"], overridden=True, **config)

    def members() -> dict[str, list[str]]:
        rows = world.source.table.to_arrow(filter="NOT _deleted").to_pylist()
        return {row["_id"]: [f"{one['dataset']}|{one['id']}" for one in row["_members"]] for row in rows}

    world.apply({"put": {"A": {"k": 1, "m": 2}, "B": {"k": 2, "n": 7}}})
    world.source.run()
    if limited:
        world.override({"o1": ["a", "k", "b", "n", "same"]})
        told = {"k": ["0|k", "1|n"], "m": ["0|m", "1|k"]}
    else:
        world.override({"o1": ["a", "k", "b", "k", "different"]})
        told = {"k": ["0|k"], "m": ["0|m", "1|k"], "n": ["1|n"]}
    for full in (False, True):
        world.source.run(full=full)
        assert members() == told
    world.put("B", {"k": 9})
    for full in (False, True):
        with pytest.raises(IdCollisionError, match="identity 'stable'"):
            world.source.run(full=full)
    assert members() == told


def test_a_name_that_is_the_alias_of_another_dataset_is_refused(tmp_path: Path) -> None:
    a, b = (str(tmp_path / name) for name in "AB")
    with pytest.raises(MergeConfigError, match="'b' is the name of dataset 'a' and the alias of another one"):
        MergeConfig(datasets={"a": Dataset(a, name="b"), "b": Dataset(b, name="c")})
    with pytest.raises(MergeConfigError, match="to take an override back, delete its row"):
        MergeConfig(datasets={"a": a}, overrides=Dataset(b, deleted="gone"))


def test_the_rest_of_a_dataset_is_a_finding(tmp_path: Path) -> None:
    world = joined(tmp_path, one_per_dataset=["c"])
    world.put("C", {"c2": [None, 5], "c3": [None, 5]})
    result = world.source.run()
    assert [(one.kind, one.members) for one in result.findings] == [
        ("more_than_one", (("b", "b1"), ("c", "c2"))),
        ("more_than_one", (("b", "b1"), ("c", "c3"))),
    ]
    assert str(result.findings[0]).endswith("with the value 5, because an entity has at most one row of c")
    assert world.now()["1"] == {"rows": ["0|a1", "1|b1", "2|c1"]}
    assert world.source.run().findings == ()
    assert len(world.source.findings()) == 2


@pytest.mark.parametrize("how", ["restored", "recreated", "swapped"])
def test_a_table_of_overrides_that_became_another_is_read_whole(how: str, tmp_path: Path) -> None:
    """Nothing tells what changed in it; the state tells what rows held before."""
    world = joined(tmp_path)
    before = world.overrides.version
    world.override({"o1": ["a", "a1", "b", "b1", "different"], "o2": ["b", "b1", "c", "c1", "different"]})
    assert len(world.run()) == 3
    if how == "restored":
        world.overrides.restore(version=before)
    else:
        schema = world.overrides.schema
        if how == "recreated":
            shutil.rmtree(tmp_path / "overrides")
        path = tmp_path / ("overrides" if how == "recreated" else "others")
        world.overrides = LakeTable.create(path, schema, key=["nr"])
        world.override({"o9": ["a", "a1", "b", "b1", "different"]})
    config = dataclasses.replace(world.config, overrides=world.overrides)
    assert world.source.run(config=config).full is False
    assert world.source.check().ok
    now = [told["rows"] for told in world.now().values() if "rows" in told]
    whole = [["0|a1", "1|b1", "2|c1"]] if how == "restored" else [["0|a1"], ["1|b1", "2|c1"]]
    assert sorted(now) == whole


def test_a_table_that_lacks_columns_or_is_missing_is_refused(tmp_path: Path) -> None:
    world = joined(tmp_path)
    bad = LakeTable.create(tmp_path / "bad", "nr STRING, left_dataset STRING, left_id BIGINT", key=["nr"])
    for table, error, text in (
        (bad, MergeConfigError, "left_id, right_dataset, right_id, verdict"),
        (str(tmp_path / "none"), DatasetsMissingError, "no table of overrides"),
    ):
        config = dataclasses.replace(world.config, overrides=table)
        with pytest.raises(error, match=text):
            world.source.run(config=config)
        with pytest.raises(error, match=text):
            MergeSource.create(tmp_path / "new", config)
    assert not (tmp_path / "new").exists()
    assert world.source.run().emitted == 0
    with pytest.raises(MergeConfigError, match="overrides: the table is a dataset, too"):
        MergeConfig(datasets={"a": str(tmp_path / "A")}, overrides=str(tmp_path / "A"))
    with pytest.raises(MergeConfigError, match="overrides must be a path"):
        MergeConfig(datasets={"a": str(tmp_path / "A")}, overrides=cast("Any", 7))
    with pytest.raises(MergeConfigError, match="one_per_dataset: there is no dataset 'z'"):
        MergeConfig(datasets={"a": str(tmp_path / "A")}, one_per_dataset=["z"])


def test_pending_knows_of_overrides_and_leaving_them_out_undoes_them(tmp_path: Path) -> None:
    world = joined(tmp_path)
    assert not world.source.pending()
    world.override({"o1": ["a", "a1", "b", "b1", "different"]})
    assert list(world.source.pending().datasets) == ["overrides"]
    assert len(world.run()) == 2
    assert not MergeSource.open(tmp_path / "out").pending()
    world.source.run(config=dataclasses.replace(world.config, overrides=None))
    assert world.source.check().ok
    assert world.now()["1"]["rows"] == ["0|a1", "1|b1", "2|c1"]


def test_composite_ids_follow_overrides_too(tmp_path: Path) -> None:
    world = joined(tmp_path, identity="composite")
    world.override({"o1": ["a", "a1", "c", "c1", "different"]})
    world.source.run()
    rows = world.source.table.to_arrow().to_pylist()
    assert sorted(row["_id"] for row in rows if not row["_deleted"]) == ["0|a1|1|b1", "2|c1"]


def test_max_merged_counts_rows_before_links_are_cut(tmp_path: Path) -> None:
    """Incremental runs count the holders of a value without reading them all, so a full run does, too."""
    for number, full in enumerate((False, True)):
        world = Entities(
            tmp_path / str(number), ["a.x = b.x"], overridden=True, max_merged=2, oversize="fail", one_per_dataset=["b"]
        )
        world.apply({"put": {"A": {"a1": 1}, "B": {"b1": 1}}})
        world.source.run()
        world.put("B", {"b2": 1})
        with pytest.raises(MaxMergedError):
            world.source.run(full=full)


def test_overrides_with_a_key_of_several_columns_and_ids_that_are_numbers(tmp_path: Path) -> None:
    crm = LakeTable.create(tmp_path / "crm", "nr BIGINT, mail STRING", key=["nr"])
    shop = LakeTable.create(tmp_path / "shop", "country STRING, nr INT, mail STRING", key=["country", "nr"])
    crm.upsert(pa.table({"nr": [1, 2], "mail": ["a", "b"]}))
    shop.upsert(pa.table({"country": ["NO", "SE"], "nr": pa.array([7, 7], pa.int32()), "mail": ["a", "c"]}))
    columns = "left_dataset STRING, left_id STRING, right_dataset STRING, right_id STRING, verdict STRING"
    key = ["left_dataset", "left_id", "right_dataset", "right_id"]
    overrides = LakeTable.create(tmp_path / "overrides", columns, key=key)
    config = MergeConfig(
        datasets={"c": Dataset(crm, name="crm"), "s": Dataset(shop, name="shop")},
        equality=["c.mail = s.mail"], identity="stable", overrides=overrides,
    )  # fmt: skip
    source = MergeSource.create(tmp_path / "out", config)
    source.run()

    def override(*rows: tuple[str, str, str, str, str]) -> None:
        names = [*key, "verdict"]
        overrides.upsert(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], overrides.schema))

    def ids() -> dict[str, list[str]]:
        rows = source.table.to_arrow(filter="NOT _deleted").to_pylist()
        return {row["_id"]: row["$ids"] for row in rows}

    assert ids() == {"1": ["1", '["NO",7]'], "2": ["2"], "3": ['["SE",7]']}
    override(("crm", "1", "shop", '["NO",7]', "different"), ("c", "2", "s", '["SE",7]', "same"))
    (found,) = source.run().findings
    assert found.override is not None
    assert (found.override.left, found.override.right) == (("crm", "1"), ("shop", '["NO",7]'))
    assert (found.override.who, found.override.at) == (None, None)
    assert ids() == {"1": ["1"], "2": ["2", '["SE",7]'], "4": ['["NO",7]']}
    override(("crm", "1", "shop", '["NO",7]', "same"))
    assert source.run().findings == ()
    assert ids() == {"1": ["1", '["NO",7]'], "2": ["2", '["SE",7]']}
    assert source.check().ok


def test_a_plain_delta_table_of_overrides_is_read_whole(tmp_path: Path) -> None:
    world = joined(tmp_path)
    names = ["nr", "left_dataset", "left_id", "right_dataset", "right_id", "verdict"]

    def write(*rows: list[str], mode: Any = "overwrite") -> None:
        columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        write_deltalake(str(tmp_path / "plain"), pa.table(columns, names=names), mode=mode)

    write(["1", "a", "a1", "b", "b1", "different"], ["2", "b", "b1", "c", "c1", "different"])
    config = dataclasses.replace(world.config, overrides=Dataset(tmp_path / "plain", id="nr"))
    world.source.run(config=config)
    assert len([told for told in world.now().values() if "rows" in told]) == 3
    write(["2", "b", "b1", "c", "c1", "different"], ["2", "a", "a1", "c", "c1", "same"])
    with pytest.raises(InputError, match="has the key '2' twice"):
        world.source.run()
    write(["2", "b", "b1", "c", "c1", "different"])
    assert world.source.run().full is False
    assert sorted(told["rows"] for told in world.now().values() if "rows" in told) == [["0|a1", "1|b1"], ["2|c1"]]
    assert world.source.check().ok


@pytest.mark.parametrize("full", [False, True], ids=["incremental", "full"])
def test_classes_are_ordered_by_the_json_of_their_expressions(full: bool, tmp_path: Path) -> None:
    """a1 and b1 have k1 in common, a1 and c1 have q, each with two holders. Of the expressions over a,
    ``["concat", ["lower", {"path": ["y"]}]]`` comes before ``["concat", {"literal": "k"}, {"path": ["x"]}]``, since a
    bracket comes before a brace: so the link to c1 is taken, and that to b1 is cut."""
    columns = "_id STRING, X STRING, Y STRING"
    tables = {name: LakeTable.create(tmp_path / name, columns, key=["_id"]) for name in "abc"}
    tables["a"].upsert(pa.table({"_id": ["a1"], "X": ["1"], "Y": ["Q"]}))
    tables["b"].upsert(pa.table({"_id": ["b1"], "X": ["k1"], "Y": ["-"]}))
    tables["c"].upsert(pa.table({"_id": ["c1"], "X": ["-"], "Y": ["q"]}))
    names = "left_dataset, left_id, right_dataset, right_id, verdict"
    overrides = LakeTable.create(tmp_path / "o", "nr BIGINT, " + names.replace(",", " STRING,") + " STRING", key=["nr"])
    told = ["b", "b1", "c", "c1", "different"]
    overrides.upsert(pa.table({"nr": [1], **{name: [one] for name, one in zip(names.split(", "), told, strict=True)}}))
    config = MergeConfig(
        datasets=tables, equality=["concat('k', a.x) = b.x", "concat(lower(a.y)) = c.y"], overrides=overrides
    )
    source = MergeSource.create(tmp_path / "out", config)
    source.run(full=full)
    assert sorted(row["_id"] for row in source.table.to_arrow().to_pylist()) == ["0|a1|2|c1", "1|b1"]
