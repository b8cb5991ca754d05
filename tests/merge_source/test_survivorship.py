"""Survivorship: each rule by hand, all rules in random histories beside plain Python, and what explain says."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable, MergeConfigError, SchemaError
from lakemerge.merge_source import MergeConfig, MergeSource
from tests.merge_source.test_stable_ids import killed_at
from tests.property.effort import some

A = "_id STRING, x BIGINT, name STRING, n INT, day DATE, tags ARRAY<STRING>"
B = "_id STRING, x BIGINT, name STRING, n BIGINT, day DATE, tags STRING"
Row = dict[str, Any]


def day(number: int) -> dt.date:
    return dt.date(2026, 1, number)


class Crowd:
    """Datasets ``a`` and ``b``, whose rows are one entity where x is equal."""

    def __init__(self, folder: Path, rules: Mapping[str, object], **config: Any) -> None:
        self.tables = {
            name: LakeTable.create(folder / name, ddl, key=["_id"], buckets=1) for name, ddl in (("a", A), ("b", B))
        }
        told: dict[str, Any] = {"equality": ["a.x = b.x"], "initial_datasets": [], "max_retired": 1.0, **config}
        self.config = MergeConfig(datasets=self.tables, survivorship=rules, **told)
        self.source = MergeSource.create(folder / "out", self.config)

    def put(self, name: str, *rows: Row) -> None:
        schema = pa.schema([field.with_nullable(True) for field in self.tables[name].schema])
        self.tables[name].upsert(pa.Table.from_pylist(list(rows), schema))

    def values(self) -> dict[str, Row]:
        """Of each live entity its properties, in the output's own form."""
        rows = [row for row in self.source.table.to_arrow().to_pylist() if not row["_deleted"]]
        return {row["_id"]: {k: v for k, v in row.items() if k in ("x", "name", "n", "day", "tags")} for row in rows}


def crowd(folder: Path, rules: Mapping[str, object], **config: Any) -> Crowd:
    made = Crowd(folder, rules, **config)
    made.put(
        "a",
        {"_id": "a1", "x": 1, "name": "Ann", "n": 1, "day": day(1), "tags": ["p", "q"]},
        {"_id": "a2", "x": 1, "name": "Anna", "n": 2, "day": None, "tags": []},
    )
    made.put(
        "b",
        {"_id": "b1", "x": 1, "name": "Ann", "n": 30, "day": day(3), "tags": "q"},
        {"_id": "b2", "x": 1, "name": None, "n": None, "day": day(9), "tags": "r"},
    )
    made.source.run()
    return made


@pytest.mark.parametrize(
    ("column", "rule", "value", "rows", "why"),
    [
        ("name", "first", "Ann", ["a a1"], "the first of 3 rows with a value"),
        ("name", "longest", "Anna", ["a a2"], "4 characters, the longest of 3 rows with a value"),
        ("name", "most_frequent", "Ann", ["a a1"], "2 of 3 rows with a value have it"),
        ("name", {"newest": "day"}, "Ann", ["b b1"], "day is 2026-01-03, the highest, of 3 rows with a value"),
        ("name", {"priority": ["b"]}, "Ann", ["b b1"], "b comes first of the datasets of 3 rows with a value"),
        ("name", "union", ["Ann", "Anna"], ["a a1", "a a2", "b b1"], "all values of 3 rows with a value"),
        ("name", {"expression": "concat(old.name, '+', new.name)"}, "Ann+Anna+Ann", ["a a1", "a a2", "b b1"],
         "folded over 3 rows with a value, in the order of members"),
        ("n", "longest", 30, ["b b1"], "2 characters, the longest of 3 rows with a value"),
        ("n", {"newest": "N"}, 30, ["b b1"], "N is 30, the highest, of 3 rows with a value"),
        ("N", {"priority": ["b", "a"]}, 30, ["b b1"], "b comes first of the datasets of 3 rows with a value"),
        ("n", {"expression": "old.n + new.n"}, 33, ["a a1", "a a2", "b b1"],
         "folded over 3 rows with a value, in the order of members"),
        ("n", {"expression": "case when new.day is null then old.n else new.n end"}, 30, ["a a1", "a a2", "b b1"],
         "folded over 3 rows with a value, in the order of members"),
        ("tags", "first", ["p", "q"], ["a a1"], "the first of 3 rows with a value"),
        ("tags", "longest", ["p", "q"], ["a a1"], "2 elements, the longest of 3 rows with a value"),
        ("tags", {"newest": "day"}, ["r"], ["b b2"], "day is 2026-01-09, the highest, of 3 rows with a value"),
        ("tags", "union", ["p", "q", "r"], ["a a1", "b b1", "b b2"], "all values of 3 rows with a value"),
        ("day", {"newest": "day"}, day(9), ["b b2"], "day is 2026-01-09, the highest, of 3 rows with a value"),
        ("x", "most_frequent", 1, ["a a1"], "4 of 4 rows with a value have it"),
    ],
)  # fmt: skip
def test_each_rule(column: str, rule: object, value: object, rows: list[str], why: str, tmp_path: Path) -> None:
    made = crowd(tmp_path, {column: rule})
    ((entity, told),) = made.values().items()
    assert told[column.lower()] == value
    assert made.source.entities()[0][column.lower()] == value
    (origin,) = made.source.explain(entity).columns
    assert (origin.column, origin.why) == (column.lower(), why)
    assert [" ".join(member) for member in origin.members] == rows
    assert f"{why})" in str(made.source.explain(entity))
    assert made.source.check().ok
    assert made.source.run(full=True).emitted == 0


@pytest.mark.parametrize(
    ("column", "rule", "value"),
    [
        # Members: a10, a2, b1, b2, by dataset and the bytes of their ids.
        ("name", "first", "Bo"),
        ("name", "longest", "Bo"),  # all have two characters
        ("name", "most_frequent", "Bo"),  # each once
        ("name", {"newest": "day"}, "Al"),  # a2 and b1 have the highest
        ("name", {"newest": "tags_at"}, "Bo"),  # null in all rows
        ("name", {"newest": "w"}, "Xy"),  # NaN is the highest
        ("name", {"priority": []}, "Bo"),
        ("name", {"priority": ["b", "b"]}, "Xy"),
        ("name", "union", ["Bo", "Al", "Xy"]),
        ("w", "first", -0.0),
        ("w", "most_frequent", -0.0),  # three of four, as -0.0 equals 0.0; the first is told
        ("w", {"newest": "w"}, float("nan")),
        ("w", "longest", float("nan")),  # NaN has three characters, -0.0 and 0.0 are 0
        ("tags", "longest", ["p", None, "q"]),  # nulls in it count
        ("tags", "union", ["p", "q", "r"]),
        ("tags", "first", ["p", None, "q"]),
    ],
)  # fmt: skip
def test_ties_nulls_and_the_order_of_members(column: str, rule: object, value: object, tmp_path: Path) -> None:
    ddl = "_id STRING, x BIGINT, name STRING, w DOUBLE, day DATE, tags ARRAY<STRING>, tags_at DATE"
    tables = {name: LakeTable.create(tmp_path / name, ddl, key=["_id"], buckets=1) for name in "ab"}
    rows: dict[str, list[Row]] = {
        "a": [
            {"_id": "a2", "name": "Al", "w": 0.0, "day": day(3), "tags": ["r", "p"]},
            {"_id": "a10", "name": "Bo", "w": -0.0, "day": None, "tags": ["p", None, "q"]},
        ],
        "b": [
            {"_id": "b2", "name": None, "w": 0.0, "day": day(9), "tags": []},
            {"_id": "b1", "name": "Xy", "w": float("nan"), "day": day(3), "tags": None},
        ],
    }
    for name, table in tables.items():
        schema = pa.schema([field.with_nullable(True) for field in table.schema])
        table.upsert(pa.Table.from_pylist([{**row, "x": 1} for row in rows[name]], schema))
    source = MergeSource.create(
        tmp_path / "out", MergeConfig(datasets=tables, equality=["a.x = b.x"], survivorship={column: rule})
    )
    source.run()
    (row,) = source.table.to_arrow().to_pylist()
    assert row["$ids"] == ["a10", "a2", "b1", "b2"]
    assert str(row[column]) == str(value)  # so that NaN is NaN, and -0.0 is not 0.0
    assert source.run(full=True).emitted == 0


def test_what_old_is_in_an_expression(tmp_path: Path) -> None:
    """The value so far of the rule's column; of another column what the row before had, null included."""
    rule = "concat(old.name, '<', coalesce(string(old.n), '-'), '>', new.name)"
    made = crowd(tmp_path, {"name": {"expression": rule}})
    (told,) = made.values().values()
    assert told["name"] == "Ann<1>Anna<2>Ann"
    made.put("a", {"_id": "a2", "x": 1, "name": "Anna", "n": None})
    made.source.run()
    (told,) = made.values().values()
    assert told["name"] == "Ann<1>Anna<->Ann"


def test_in_an_expression_an_empty_list_is_null_and_rows_without_a_value_do_not_count(tmp_path: Path) -> None:
    rules = {
        "n": {"expression": "case when new.tags is null then -1 else size(new.tags) end"},
        "name": {"expression": "concat(old.name, string(size(old.tags)))"},
    }
    made = Crowd(tmp_path, rules)
    made.put("a", {"_id": "a1", "x": 1, "n": 1, "name": "N", "tags": ["p", "q"]})
    made.put("a", {"_id": "a2", "x": 1, "n": 1, "name": None, "tags": ["p"]})
    made.put("a", {"_id": "a3", "x": 1, "n": 1, "name": "M", "tags": []})
    made.put("b", {"_id": "b1", "x": 1})
    made.source.run()
    ((_, told),) = made.values().items()
    # The last row with an n is a3, whose tags are []. The last one before it with a name is a1: a2 has none.
    assert (told["n"], told["name"]) == (-1, "N2")


def test_a_union_of_lists_of_nulls_is_null(tmp_path: Path) -> None:
    made = Crowd(tmp_path, {"tags": "union"})
    made.put("a", {"_id": "a1", "x": 1, "tags": [None]}, {"_id": "a2", "x": 1, "tags": [None, None]})
    made.put("a", {"_id": "a3", "x": 2, "tags": [None, "p"]})
    made.put("b", {"_id": "b1", "x": 1})
    made.put("b", {"_id": "b2", "x": 2})
    made.source.run()
    assert [told["tags"] for _, told in sorted(made.values().items())] == [None, ["p"]]


def test_a_rule_may_change_as_long_as_the_type_stays(tmp_path: Path) -> None:
    made = crowd(tmp_path, {"name": "first"})
    made.source.run(config=dataclasses.replace(made.config, survivorship={"name": "longest"}))
    ((_, told),) = made.values().items()
    assert told["name"] == "Anna"
    for rules in ({"name": "union"}, {}, {"name": "first", "day": "first"}):
        with pytest.raises(SchemaError, match="Create the source at a new path"):
            made.source.run(config=dataclasses.replace(made.config, survivorship=rules))
    assert made.source.run().emitted == 0
    assert made.source.check().ok


def test_a_deleted_entity_is_chosen_from_the_last_values_of_its_rows(tmp_path: Path) -> None:
    made = crowd(tmp_path, {"name": "longest", "n": {"expression": "old.n + new.n"}}, identity="stable")
    for name, table in made.tables.items():
        table.delete(pa.table({"_id": [f"{name}1", f"{name}2"]}))
    made.source.run()
    (row,) = made.source.table.to_arrow().to_pylist()
    assert (row["_id"], row["_deleted"], row["name"], row["n"]) == ("1", True, "Anna", 33)
    assert made.source.run(full=True).emitted == 0


def test_other_columns_are_as_the_strategy_says(tmp_path: Path) -> None:
    made = crowd(tmp_path, {"name": "first"}, strategy="compact")
    (told,) = made.values().values()
    assert (told["n"], told["x"]) == ([1, 2, 30], [1])
    assert made.source.explain("0|a1|0|a2|1|b1|1|b2").columns[0].rule == "first"


def test_an_entity_without_a_value_has_null(tmp_path: Path) -> None:
    made = Crowd(
        tmp_path, {"name": "first", "n": {"expression": "old.n + new.n"}, "tags": "union", "day": {"newest": "n"}}
    )
    made.put("a", {"_id": "a1", "x": 1})
    made.source.run()
    assert made.values() == {"0|a1": {"x": [1], "name": None, "n": None, "day": None, "tags": None}}
    assert {one.why for one in made.source.explain("0|a1").columns} == {"no row has a value"}


Choice = Callable[[Sequence[tuple[Row, str]]], Any]
"""Of the rows that have a value, each with its dataset, in the order of members."""


def highest(key: Callable[[Row, str], Any]) -> Callable[[str], Choice]:
    return lambda column: lambda rows: max(rows, key=lambda one: key(*one))[0][column] if rows else None


def frequent(column: str) -> Choice:
    def chosen(rows: Sequence[tuple[Row, str]]) -> Any:
        values = [row[column] for row, _ in rows]
        return max(values, key=values.count) if values else None

    return chosen


def total(column: str) -> Choice:
    return lambda rows: sum(row[column] for row, _ in rows) if rows else None


def union(column: str) -> Choice:
    return lambda rows: list(dict.fromkeys(row[column] for row, _ in rows)) or None


RULES: list[tuple[dict[str, object], dict[str, Choice]]] = [
    (
        {"name": "longest", "n": {"newest": "day"}, "day": "first"},
        {
            "name": highest(lambda row, _: len(row["name"]))("name"),
            "n": highest(lambda row, _: row["day"] or dt.date.min)("n"),
            "day": highest(lambda row, _: 0)("day"),
        },
    ),
    (
        {"name": "most_frequent", "n": {"expression": "old.n + new.n"}, "day": "union"},
        {"name": frequent("name"), "n": total("n"), "day": union("day")},
    ),
    ({"name": {"priority": ["b", "a"]}}, {"name": highest(lambda row, dataset: dataset == "b")("name")}),
]


@pytest.mark.parametrize(("rules", "choices"), RULES)
@pytest.mark.parametrize("seed", some(range(4)))
def test_a_random_history(
    rules: dict[str, object], choices: dict[str, Choice], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lots = random.Random(seed)
    made = Crowd(tmp_path, rules)
    rows: dict[tuple[str, str], Row] = {}
    kill = killed_at(lots.choice(["before the output", "after the output"]), monkeypatch)
    for number in range(5):
        for name in lots.sample("ab", lots.randint(1, 2)):
            fresh = [drawn(lots, f"k{key}") for key in lots.sample(range(6), lots.randint(1, 4))]
            made.put(name, *fresh)
            rows |= {(name, row["_id"]): row for row in fresh}
        if number == 3:
            kill(made.source)
        else:
            made.source.run(full=lots.random() < 0.3)
        assert made.source.check().ok
        groups: dict[int, list[tuple[Row, str]]] = {}
        for (name, _), row in sorted(rows.items()):
            groups.setdefault(row["x"], []).append((row, name))
        alone = [x for x, group in groups.items() if len({name for _, name in group}) == 1]
        clusters = [[one] for x in alone for one in groups[x]] + [groups[x] for x in groups if x not in alone]
        expected = {
            "|".join(f"{'ab'.index(name)}|{row['_id']}" for row, name in group): {
                column: choice([one for one in group if one[0][column] is not None])
                for column, choice in choices.items()
            }
            for group in clusters
        }
        assert {key: {c: told[c] for c in choices} for key, told in made.values().items()} == expected


def drawn(lots: random.Random, key: str) -> Row:
    return {
        "_id": key,
        "x": lots.randrange(4),
        "name": lots.choice([None, "Ann", "Bo", "Cyd", "Å"]),
        "n": lots.choice([None, 1, 2, 3]),
        "day": lots.choice([None, day(1), day(2), day(3)]),
    }


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"nam": "first"}, "no dataset has the column 'nam'"),
        ({"name": {"newest": "dy"}}, "no dataset has the column 'dy'"),
        ({"name": {"newest": "tags"}}, "values of 'tags' have no order"),
        ({"name": {"priority": ["c"]}}, "there is no dataset 'c'"),
        ({"name": {"expression": "old.nme"}}, "nme"),
        ({"n": {"expression": "old.n + new._id"}}, "no column '_id'; it has x, name, n, day, tags"),
        ({"n": {"expression": "old.n + new._updated"}}, "no column '_updated'"),
        ({"name": {"expression": "old.n + new.n"}}, "name"),
        ({"name": "oldest"}, "'name' must be one of 'first'"),
        ({"name": {"first": 1}}, "'name' must be one of 'first'"),
        ({"name": "first", "NAME": "first"}, "names column 'NAME' twice"),
        (["name"], "survivorship must be a mapping"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(rules: Any, problem: str, tmp_path: Path) -> None:
    made = Crowd(tmp_path, {})
    made.source.run()
    with pytest.raises(MergeConfigError, match=problem):
        made.source.run(config=dataclasses.replace(made.config, survivorship=rules))
    assert made.source.config.survivorship == {}


def test_the_strategy_list_has_no_columns_to_choose_for(tmp_path: Path) -> None:
    with pytest.raises(MergeConfigError, match="needs the strategy 'default' or 'compact'"):
        MergeConfig(datasets={"a": str(tmp_path / "a")}, strategy="list", survivorship=cast("Any", {"x": "first"}))


def test_an_expression_that_fails_for_an_entity_fails_the_run(tmp_path: Path) -> None:
    made = Crowd(tmp_path, {"n": {"expression": "old.n * new.n"}})
    made.put("a", {"_id": "a1", "x": 1, "n": 2_000_000_000})
    made.source.run()
    before = made.values()
    made.put("b", {"_id": "b1", "x": 1, "n": 9_000_000_000})
    with pytest.raises(LakeMergeError, match=r"rule of column 'n', 'old.n \* new.n', fails: .* not a valid BIGINT"):
        made.source.run()
    assert made.values() == before
    made.put("b", {"_id": "b1", "x": 1, "n": 2})
    made.source.run()
    assert made.values()["0|a1|1|b1"]["n"] == 4_000_000_000


def test_the_configuration_survives_and_a_run_without_changes_does_nothing(tmp_path: Path) -> None:
    made = crowd(tmp_path, {"name": {"priority": ("b", "a")}, "n": {"newest": "day"}})
    source = MergeSource.open(tmp_path / "out")
    assert source.config.survivorship == {"name": {"priority": ["b", "a"]}, "n": {"newest": "day"}}
    version = source._tables.state.version
    assert made.source.run(config=made.config).emitted == 0
    assert MergeSource.open(tmp_path / "out")._tables.state.version == version
