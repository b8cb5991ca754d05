"""``expression``: what is refused, what a table keeps, and that every part of the library merges by the rules."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

import mergers.builtin.rules.checked as checked_rules
import mergers.builtin.rules.folds as folds
from lakemerge import CompactFirstError, FrameError, LakeTable, MergeOverflowError, MergerConfigurationError
from lakemerge.report import report_html
from mergers import Frame, Laws, Merger, TableShape, default_registry, fold
from mergers.builtin.rules.rounds import fold_in_rounds
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.testing import find_counterexample
from mergers.testing.laws import Law

DDL = "id BIGINT, n INT, s STRING, r INT, l ARRAY<INT>, st STRUCT<x: INT, y: STRING>, at BIGINT"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("n", pa.int32()), ("s", pa.string()), ("r", pa.int32()), ("l", pa.list_(pa.int32())),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])), ("at", pa.int64()),
    ]
)  # fmt: skip
SHAPE = TableShape(SCHEMA, ("id",), ("at",))


def made(options: Mapping[str, Any], shape: TableShape = SHAPE) -> Merger:
    return default_registry().resolve("expression").from_options(options, shape)


def table_of(
    path: Path, options: Mapping[str, Any], ddl: str = "id BIGINT, n BIGINT, s STRING, at BIGINT"
) -> LakeTable:
    return LakeTable.create(path / "t", ddl, key=["id"], ordering=["at"], merger="expression", options=options)


def put(table: LakeTable, *rows: Mapping[str, Any]) -> None:
    names = [name for name in table.schema.names if name in rows[0]]
    table.upsert(pa.Table.from_pylist([dict(row) for row in rows], pa.schema([table.schema.field(n) for n in names])))


def rule(text: str, column: str = "n") -> dict[str, Any]:
    return {"columns": {column: text}}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (rule("old.n +"), ["column 'n'", "is not SQL"]),
        (rule(""), ["column 'n'"]),
        (rule("old.n + n"), ["'n' says neither old nor new", "old.n or new.n"]),
        (rule("other.n"), ["'other.n' says neither old nor new"]),
        (rule("old.m"), ["no column 'm'", "it has id, n"]),
        (rule("old.st.z", "s"), ["no field 'z'"]),
        (rule("now()"), ["now() is not the same each time", "let the writer put the value in a column"]),
        (rule("current_date"), ["current_date() is not the same each time"]),
        (rule("CURRENT_TIMESTAMP()"), ["current_timestamp() is not the same each time"]),
        (rule("old.n + rand()"), ["rand() is not the same each time"]),
        (rule("uuid()", "s"), ["uuid() is not the same each time"]),
        (rule("sum(new.n)"), ["sum() is over several rows", "old.x + new.x"]),
        (rule("max(new.n)"), ["max() is over several rows", "greatest(old.x, new.x)"]),
        (rule("row_number()"), ["row_number() is over several rows"]),
        (rule("sum(new.n) OVER (ORDER BY new.r)"), ["not supported in a rule"]),
        (rule("(SELECT 1)"), ["not supported in a rule"]),
        (rule("greatst(old.n, new.n)"), ["greatst() is not among the functions of rules", "did you mean greatest()"]),
        (rule("reflect('java.lang.System', 'exit')"), ["reflect() is not among the functions of rules"]),
        (rule("__import__('os')", "s"), ["__import__() is not among the functions of rules"]),
        (rule("new.s"), ["it is STRING, and the column is INT", "CAST(new.s AS INT)"]),
        (rule("new.n", "l"), ["it is INT, and the column is ARRAY<INT>"]),
        (rule("old.n + new.s"), ["column 'n'", "new.s is STRING, not a number"]),
        (rule("array_union(old.l, new.n)", "l"), ["new.n is INT, not an array"]),
        (rule("is_set(old.n)"), ["is_set takes one column of the record"]),
        (rule("is_set(new.n + 1)"), ["is_set takes one column of the record"]),
        (rule("is_first(1)"), ["is_first() takes no argument"]),
        (rule("abs()"), ["abs takes 1 argument"]),
        ({"columns": {"n": 7}}, ["columns of column 'n' must be SQL text, not 7"]),
        ({"columns": {"m": "1"}}, ["columns names the unknown column 'm'"]),
        ({"columns": {"n": "1", "N": "2"}}, ["columns names column 'n' twice"]),
        ({"columns": {"id": "new.id"}}, ["key column 'id'"]),
        ({"first": {"at": "1"}}, ["ordering column 'at'"]),
        ({"first": {"n": "old.n"}}, ["first of column 'n'", "it reads old.n", "new.n"]),
        ({"ignore_when": "new.n"}, ["ignore_when", "INT, not a condition"]),
        ({"remove_when": "new.n = 'x'"}, ["'x' is not a valid BIGINT"]),
        (rule("old.n + 1 / 0"), ["divides by zero"]),
        ({"remove_when": 1}, ["remove_when must be a string"]),
        ({"default": "newest"}, ["default must be one of newer, last, first, keep"]),
        ({"rules": {}}, ["unknown option 'rules'"]),
        ({"columns": {"n": "old.m", "s": "now()"}, "ignore_when": "1"}, ["no column 'm'", "now()", "not a condition"]),
        ({**rule("old.n"), "checked": {"functions": 2}}, ["version 2 of the set of functions", "upgrade"]),
        ({**rule("old.n"), "checked": {"columns": {"n": ["old.n", ["eval", "1"]]}}}, ["is no expression of version 1"]),
        ({**rule("old.n"), "checked": {"columns": {"n": ["old.n", ["old", "gone"]]}}}, ["no column 'gone'"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_rule_says_is_refused_by_name(options: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(MergerConfigurationError) as refused:
        made(options)
    assert [part for part in told if part not in str(refused.value)] == []
    assert "filter" not in str(refused.value)


def test_a_deep_rule_is_refused() -> None:
    with pytest.raises(MergerConfigurationError, match=r"nested too deeply|is not SQL"):
        made(rule("(" * 2000 + "old.n" + ")" * 2000))


def test_a_refused_table_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(MergerConfigurationError):
        table_of(tmp_path, rule("now()"))
    assert not LakeTable.exists(tmp_path / "t")


def test_a_table_keeps_the_checked_trees_and_merges_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path, {"columns": {"N": "OLD.n + new.N"}, "remove_when": "new.s = 'x'"})
    put(table, {"id": 1, "n": 1, "s": "a", "at": 1})
    log = (tmp_path / "t" / "_delta_log" / "00000000000000000000.json").read_text()
    (metadata,) = (json.loads(line)["metaData"] for line in log.splitlines() if "metaData" in line)
    assert json.loads(metadata["configuration"]["lakemerge.merger.options"]) == {
        "columns": {"n": "OLD.n + new.N"},
        "remove_when": "new.s = 'x'",
        "checked": {
            "functions": 1,
            "types": {"n": "BIGINT", "s": "STRING"},
            "columns": {"n": ["OLD.n + new.N", ["+", ["old", "n"], ["new", "n"]]]},
            "remove_when": ["new.s = 'x'", ["=", ["new", "s"], ["text", "x"]]],
        },
    }

    def parse(text: str) -> Any:
        raise AssertionError(f"{text!r} was parsed again")

    monkeypatch.setattr(checked_rules, "tree_of", parse)
    again = LakeTable.open(tmp_path / "t")
    put(again, {"id": 1, "n": 2, "s": "b", "at": 2})
    again.compact()
    assert again.to_arrow().to_pylist() == [{"id": 1, "n": 3, "s": "b", "at": 2}]


def test_a_tree_goes_with_its_text() -> None:
    """Whoever copies a table's options and changes a text gets what the text says."""
    options = dict(made(rule("old.n + new.n")).options())
    changed = made({**options, "columns": {"n": "old.n - new.n"}})
    assert changed.options() == made(rule("old.n - new.n")).options()


@pytest.mark.parametrize(
    "text",
    [
        "old.n + 1 * (new.r - 2) / 3 % 4", "IF(new.n IN (1, 2L), CAST(1 AS BIGINT), -1)",
        "CASE new.n WHEN 1 THEN 2 END",
        "CASE WHEN new.s LIKE 'a%' OR new.s RLIKE 'b' AND NOT new.s ILIKE '%c' ESCAPE '!' THEN 1 ELSE 0 END",
        "nvl2(old.n, try_cast(new.s AS INT), IF((new.n BETWEEN 1 AND 2) IS TRUE, 1, 2))",
        "size(new.l) + new.l[0] + new.st.x",
        "year(DATE '2024-01-01' + INTERVAL 3 DAYS)", "length(trim(BOTH 'x' FROM substring(new.s, 1, 2)) || \"y\")",
        "IF(new.n <=> old.n OR new.n IS NOT DISTINCT FROM old.r, 1.50, 1e3)", "CAST(X'0A' = X'0B' AS INT)",
        "IF(is_first() OR is_set(new.st), hour(TIMESTAMP '2024-01-01 10:00:00+02:00'), old.n::INT)",
    ],
)  # fmt: skip
def test_a_kept_tree_computes_what_the_text_does(text: str) -> None:
    merger = made(rule(text))
    kept = json.loads(json.dumps(merger.options()))
    assert kept["checked"]["columns"]["n"][0] == text
    again = made(kept)
    assert again == merger
    assert pickle.loads(pickle.dumps(again)).options() == merger.options()
    row = {"id": 1, "n": 2, "s": "abx", "r": 5, "l": [7], "st": {"x": 1, "y": "z"}, "at": 1}
    answers = []
    for each in (merger, again):
        frames = [Frame(pa.Table.from_pylist([row | {"at": at}], SCHEMA), None, at) for at in (1, 2)]
        none = SCHEMA.empty_table(), tombstone_schema(SHAPE).empty_table()
        folded = fold(each, SHAPE, base=none[0], tombstones=none[1], frames=frames, columns=SCHEMA.names)
        answers.append(folded.rows.to_pylist())
    assert answers[0] == answers[1]


def test_a_wider_type_of_what_rules_read_is_a_change_of_the_merger(tmp_path: Path) -> None:
    table = table_of(tmp_path, rule("old.n + new.n"), "id BIGINT, n INT, v INT, st STRUCT<x: INT>, at BIGINT")
    put(table, {"id": 1, "n": 2**31 - 1, "at": 1})
    put(table, {"id": 1, "n": 1, "at": 2})
    epoch = table.opened.view.state.merger_epoch
    assert table.alter(properties={"owner": "me"}) == table.version
    table.alter(add_columns="st.y INT, w INT")
    assert table.opened.view.state.merger_epoch == epoch
    with pytest.raises(CompactFirstError):
        table.alter(widen={"n": "BIGINT"})
    table.delete(pa.table({"id": [1], "at": [3]}))
    put(table, {"id": 1, "n": 2**31 - 1, "at": 4})
    table.compact()
    table.alter(widen={"n": "BIGINT"})
    assert table.opened.view.state.merger_epoch == epoch + 1
    put(table, {"id": 1, "n": 1, "at": 5})
    assert table.to_arrow(columns=["n"]).to_pylist() == [{"n": 2**31}]


def test_rules_that_only_pick_may_be_folded_in_a_wider_type(tmp_path: Path) -> None:
    options = {"columns": {"n": "greatest(old.n, new.n)", "s": "CASE WHEN new.n >= old.n THEN new.s ELSE old.s END"}}
    table = table_of(tmp_path, options, "id BIGINT, n INT, s STRING, at BIGINT")
    put(table, {"id": 1, "n": 3, "s": "a", "at": 1}, {"id": 1, "n": 2, "s": "b", "at": 2})
    table.alter(widen={"n": "BIGINT"})
    put(table, {"id": 1, "n": 2**40, "s": "c", "at": 0})
    assert table.to_arrow().to_pylist() == [{"id": 1, "n": 2**40, "s": "c", "at": 2}]


def test_needs_are_what_rules_read_through_rules() -> None:
    merger = made({"columns": {"n": "old.n + new.r", "r": "greatest(old.r, length(new.s))"}, "first": {"l": "new.l"}})
    assert merger.needs(SHAPE, []) == frozenset()
    assert merger.needs(SHAPE, ["n"]) == {"n", "r", "s"}
    assert merger.needs(SHAPE, ["l"]) == {"l"}
    conditional = made({**rule("old.n + new.r"), "ignore_when": "old.n > 3", "remove_when": "new.st.y = 'x'"})
    assert conditional.needs(SHAPE, []) == {"n", "r", "st"}


PLAIN: list[tuple[dict[str, Any], TableShape]] = [
    ({}, SHAPE),
    ({"default": "newer"}, SHAPE),
    ({}, TableShape(SCHEMA, ("id",), ())),
]
OTHERS: list[dict[str, Any]] = [
    rule("old.n + new.n"),
    rule("greatest(old.n, new.n)"),
    {"default": "last"},
    {"default": "keep"},
    {"ignore_when": "new.at < old.at"},
    {"remove_when": "new.s = 'x'"},
    {"first": {"n": "1"}},
]


@pytest.mark.parametrize(("options", "shape"), PLAIN, ids=str)
def test_the_laws_of_a_configuration_without_rules_hold(options: dict[str, Any], shape: TableShape) -> None:
    small = TableShape(pa.schema([SCHEMA.field(name) for name in ("id", "n", "s", "at")]), ("id",), shape.ordering)
    merger = made(options, small)
    for full in (True, False):
        claimed = merger.laws(small, full_frames=full)
        for law in ("associative", "commutative", "replay_safe", "selective"):
            if getattr(claimed, law):
                name: Law = law
                assert find_counterexample(merger, small, name, full_frames=full, max_examples=40, shrink=False) is None
    assert merger.laws(small, full_frames=True).associative


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_other_configurations_claim_no_law(options: dict[str, Any]) -> None:
    laws = made(options).laws(SHAPE, full_frames=True)
    assert laws == Laws()


Rounds = Literal["none", "some"]


@pytest.mark.parametrize(
    ("text", "column", "rounds"),
    [
        ("old.n + new.n", "n", "none"),
        ("new.r + old.n", "n", "none"),
        ("old.n - new.n", "n", "none"),
        ("old.n + 1", "n", "none"),
        ("coalesce(old.n, 0) + new.n", "n", "none"),
        ("coalesce(old.n + new.n, new.n, old.n)", "n", "none"),
        ("greatest(old.s, new.s)", "s", "none"),
        ("least(new.n, old.n)", "n", "none"),
        ("coalesce(new.l, old.l)", "l", "none"),
        ("nvl(old.st, new.st)", "st", "none"),
        ("CASE WHEN new.n > old.n THEN new.n ELSE old.n END", "n", "none"),
        ("IF(old.n >= new.n, new.n, old.n)", "n", "none"),
        ("CASE WHEN new.r >= old.r AND new.s <> 'x' THEN new.l ELSE old.l END", "l", "none"),
        ("(new.l)", "l", "none"),
        ("old.l", "l", "none"),
        ("array_union(old.l, new.l)", "l", "some"),
        ("old.n * new.n", "n", "some"),
        ("old.n + new.n DIV new.r", "n", "some"),
        ("CASE WHEN length(old.s) > 3 THEN new.s ELSE old.s END", "s", "some"),
    ],
)
def test_which_rules_take_rounds(text: str, column: str, rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms that docs/mergers/expression.md lists are folds, however many records a key has."""
    asked: list[str] = []

    def noted(groups: Any, history: Any, rules: Any, policies: Any, names: list[str]) -> Any:
        asked.extend(names)
        return fold_in_rounds(groups, history, rules, policies, names)

    monkeypatch.setattr(folds, "fold_in_rounds", noted)
    row = {"id": 1, "n": 2, "s": "a", "r": 5, "l": [7], "st": {"x": 1, "y": "z"}}
    frames = [Frame(pa.Table.from_pylist([row | {"at": at}], SCHEMA), None, at) for at in range(3)]
    base, tombstones = SCHEMA.empty_table(), tombstone_schema(SHAPE).empty_table()
    merger = made(rule(text, column))
    fold(merger, SHAPE, base=base, tombstones=tombstones, frames=frames, columns=SCHEMA.names)
    assert asked == ([] if rounds == "none" else [column])


def test_a_tombstone_of_a_late_removal_is_as_old_as_the_removal() -> None:
    """It has the ordering of the row, which an earlier record or a stored row set."""
    merger = made({"remove_when": "new.s = 'x'"})
    row = {"id": 1, "n": 2, "s": "a", "r": 5, "l": [7], "st": None, "at": 10}
    late = Frame(pa.Table.from_pylist([row | {"s": "x", "at": 4}], SCHEMA), None, 7)
    stored = pa.Table.from_pylist([row], SCHEMA)
    none = tombstone_schema(SHAPE).empty_table()
    for base, frames in (
        (stored, [late]),
        (SCHEMA.empty_table(), [Frame(stored, None, 3), late]),
        (SCHEMA.empty_table(), [Frame(stored, np.array([4], dtype=np.int8), 3), late]),
    ):
        folded = fold(merger, SHAPE, base=base, tombstones=none, frames=frames, columns=SCHEMA.names)
        assert folded.rows.num_rows == 0
        assert folded.tombstones.to_pylist() == [{"id": 1, "at": 10, VERSION_COLUMN: 7}]


def test_readers_and_provenance_merge_by_the_rules(tmp_path: Path) -> None:
    options = {**rule("old.n + new.n"), "ignore_when": "new.n < 0", "remove_when": "new.s = 'x'"}
    table = table_of(tmp_path, options)
    start = table.version
    put(table, {"id": 1, "n": 5, "s": "a", "at": 10}, {"id": 2, "n": 5, "s": "a", "at": 10})
    put(table, {"id": 1, "n": 2, "s": "b", "at": 3})
    put(table, {"id": 1, "n": -2, "s": "c", "at": 12}, {"id": 2, "n": 0, "s": "x", "at": 11})
    assert table.get({"id": 1}) == {"id": 1, "n": 7, "s": "a", "at": 10}
    assert table.query("SELECT sum(n) AS n FROM self").to_pylist() == [{"n": 7}]
    words = [step.words for step in table.explain({"id": 1}).steps]
    assert words[1] == "folded: n is old.n + new.n, with old.n 5, new.n 2"
    assert words[2].startswith("ignored: ")
    assert words[2].endswith("ignore_when is true: new.n < 0")
    assert table.explain({"id": 2}).steps[-1].verdict == "deleted"
    assert "remove_when is true: new.s = 'x'" in table.explain({"id": 2}).steps[-1].words
    feed = table.changes(since=start).read_all().to_pylist()
    assert [(row["_row_kind"], row["n"]) for row in feed if row["id"] == 1] == [("+I", 5), ("-U", 5), ("+U", 7)]
    other = table.what_if("expression", {"columns": {"n": "greatest(old.n, new.n)"}}, since=start)
    assert [row["n"] for row in other.to_arrow().to_pylist()] == [5, 5]
    event_time = table.what_if("event-time", since=start).to_arrow().to_pylist()
    assert {row["id"]: row["n"] for row in event_time} == {1: -2, 2: 0}
    table.replay(tmp_path / "copy")
    table.replay(tmp_path / "copy", options=options)
    assert LakeTable.open(tmp_path / "copy").to_arrow().to_pylist() == table.to_arrow().to_pylist()
    page = report_html(table, key={"id": 1})
    assert "n is old.n + new.n, with old.n 5, new.n 2" in page
    assert "expression" in page
    table.compact_logs()
    table.compact(minor=True)
    table.compact()
    assert table.to_arrow().to_pylist() == [{"id": 1, "n": 7, "s": "a", "at": 10}]


def test_a_rule_that_fails_stops_its_key_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path, rule("old.n DIV new.n"))
    put(table, {"id": 1, "n": 8, "s": "a", "at": 1}, {"id": 2, "n": 8, "s": "a", "at": 1})
    table.compact()
    put(table, {"id": 1, "n": 0, "s": "b", "at": 2}, {"id": 2, "n": 2, "s": "b", "at": 2})
    with pytest.raises(MergeOverflowError) as failed:
        table.to_arrow()
    assert failed.value.facts["key"] == {"id": 1}
    assert failed.value.facts["column"] == "n"
    assert "old.n DIV new.n" in str(failed.value)
    assert "divides by zero" in str(failed.value)
    assert table.to_arrow(columns=["id", "s"]).num_rows == 2
    assert table.to_arrow(failed_keys="skip").to_pylist() == [{"id": 2, "n": 4, "s": "b", "at": 2}]
    assert [key.key for key in table.failed_keys().keys] == [{"id": 1}]
    (skipped,) = table.compact().skipped
    assert len(skipped.records) == 1
    table.delete(pa.table({"id": [1], "at": [3]}))
    assert table.to_arrow().to_pylist() == [{"id": 2, "n": 4, "s": "b", "at": 2}]


def test_a_removal_needs_no_values_in_not_null_columns(tmp_path: Path) -> None:
    ddl = "id BIGINT, n BIGINT NOT NULL, s STRING, at BIGINT"
    table = table_of(tmp_path, {"remove_when": "new.s = 'x' OR 1 DIV new.n = 7"}, ddl)
    put(table, {"id": 1, "n": 1, "s": "a", "at": 1})
    put(table, {"id": 1, "n": None, "s": "x", "at": 2})
    assert table.to_arrow(columns=["id"]).num_rows == 0
    with pytest.raises(FrameError, match="'n' is NOT NULL"):
        put(table, {"id": 1, "n": None, "s": "a", "at": 3})
    reading = LakeTable.create(
        tmp_path / "reading", ddl, key=["id"], ordering=["at"], merger="expression",
        options={"remove_when": "new.s = 'x' AND old.at < new.at"},
    )  # fmt: skip
    with pytest.raises(FrameError, match="'n' is NOT NULL"):
        put(reading, {"id": 1, "n": None, "s": "x", "at": 2})
