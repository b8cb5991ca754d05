"""What a merge source may be told, in both forms; everything else is refused, by name and place."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from lakemerge import MergeConfigError
from lakemerge.merge_source import Dataset, MergeConfig
from lakemerge.merge_source.rules import Rules

TABLES = {"A": "/t/A", "B": "/t/B", "C": "/t/C"}


def config(**options: Any) -> MergeConfig:
    return MergeConfig(datasets={"a": "/t/A", "b": "/t/B", "c": "/t/C"}, **options)


def shown(rules: Rules) -> list[list[str]]:
    return [[rules.shown(number, "abc") for number in group] for group in rules.classes]


def problems(**options: Any) -> str:
    with pytest.raises(MergeConfigError) as caught:
        MergeConfig(**{"datasets": {"a": "/t/A", "b": "/t/B", "c": "/t/C"}, **options})
    return caught.value.message


def test_both_forms_of_a_rule_mean_the_same() -> None:
    lists = config(
        equality=[["eq", "a.x", "b.y"], ["eq", ["lower", "a.n"], ["concat", "b.f", " ", ["upper", "b.l"]]]],
    )
    texts = config(equality=["a.x = b.y", "LOWER(a.n) == concat(b.f, ' ', upper(b.l))"])
    assert lists.rules == texts.rules
    assert shown(lists.rules) == [["lower(a.n)", "concat(b.f, ' ', upper(b.l))"], ["a.x", "b.y"]]


def test_the_order_of_rules_means_nothing() -> None:
    one = config(equality=["a.x = b.x", "c.z = b.z"], equality_sets=[["a.p", "c.p"]])
    other = config(equality=["b.z = c.z", "b.x = a.x", "c.p = a.p"])
    assert one.rules.text == other.rules.text


def test_expressions_are_in_the_order_of_their_datasets() -> None:
    """Of eleven datasets, the last comes after the third, whatever their numbers as text."""
    datasets = {f"d{number}": f"/t/{number}" for number in range(11)}
    rules = MergeConfig(
        datasets=datasets, equality=["d10.x = d9.x", "d2.x = d3.x", "d2.b = d3.b", "lower(d2.z) = d3.z"]
    )
    found = [[rules.rules.shown(number, list(datasets)) for number in group] for group in rules.rules.classes]
    assert found == [["lower(d2.z)", "d3.z"], ["d2.b", "d3.b"], ["d2.x", "d3.x"], ["d9.x", "d10.x"]]


def test_rules_that_share_an_expression_are_one_class() -> None:
    """As the documentation has it: overlapping sets are one, sets and rules too."""
    assert shown(config(equality_sets=[["a.x", "b.x", "c.y"], ["c.y", "b.w"]]).rules) == [["a.x", "b.w", "b.x", "c.y"]]
    assert shown(config(equality=["a.x = b.x", "b.x = c.y"]).rules) == [["a.x", "b.x", "c.y"]]
    assert shown(config(equality=["a.x = b.x"], equality_sets=[["c.z", "b.x"]]).rules) == [["a.x", "b.x", "c.z"]]
    pairwise = config(equality=["a.x = b.x", "b.x = c.y"], transitive="entities")
    assert shown(pairwise.rules) == [["a.x", "b.x"], ["b.x", "c.y"]]


def test_a_set_of_one_expression_adds_no_rule() -> None:
    assert config(equality_sets=[["a.x"], ["b.y", "b.y"]], equality=[]).rules == Rules((), ())


def test_paths_and_literals() -> None:
    rules = config(equality_sets=[["a.first name.`x.y`", "b.$ids", "c.p.q"], ["concat(a.x, 'it''s', 1, 2.5)", "b._id"]])
    assert shown(rules.rules) == [
        ["concat(a.x, 'it''s', 1, 2.5)", "b._id"],
        ["a.`first name`.`x.y`", "b.$ids", "c.p.q"],
    ]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("a.x", "write two expressions with = between them"),
        ("a.x = b.y = c.z", "more than an expression: '='"),
        ("z.x = b.y", "names the dataset 'z'; there are 'a', 'b', 'c'"),
        ("a.x = soundex(b.y)", "no function 'soundex'; there are coalesce, concat"),
        ("a.x = lower(b.y, b.z)", "'lower' takes one argument, not 2"),
        ("a.x = lower(b.y", r"a '\)' is missing"),
        ("a.x = concat(b.y, c.y)", "names exactly one dataset; this one names 'b', 'c'"),
        ("a.x = 'NO'", "names exactly one dataset; this one names none"),
        ("a.x = b", "'b' is not a path"),
        ("a.x = b.y;", "cannot be read from ';' on"),
        (["eq", "a.x", ["concat", "b.y", "z.w"]], "'z.w' names the dataset 'z'"),
        (["eq", "a..x", "b.y"], "'a..x' is not a path"),
        (["eq", "a.x = b.y", "b.y"], "more than an expression: '='"),
        (["eq", "a.x", ["lower"]], "'lower' takes one argument, not 0"),
        (["eq", "a.x", {"path": "b.y"}], "is not an expression"),
        (["neq", "a.x", "b.y"], 'a rule is \\["eq"'),
        (7, "a rule is"),
    ],
)
def test_rules_that_are_none(rule: object, why: str) -> None:
    with pytest.raises(MergeConfigError, match=r"equality\[0\]: .*(" + why + ")"):
        config(equality=[rule])


def test_every_problem_is_named() -> None:
    told = problems(
        datasets={"a.b": "/t/A", "b": "/t/B", "c": "/t/B/", "d": 7},
        equality=["b.x = q.y"],
        equality_sets=["b.x"],
        identity="last",
        strategy="best",
        max_merged=0,
        initial_datasets=["e"],
        supports_signalling="yes",
        version=3,
        type_conflicts="ignore",
        transitive=True,
    )
    for part in (
        "'a.b' is not an alias",
        "'/t/B' appears twice",
        "'d' must be a path, a LakeTable or a Dataset, not 7",
        "equality[0]: 'q.y' names the dataset 'q'",
        "equality_sets[0] is not a list",
        "identity must be 'composite' or 'first' or 'stable', not 'last'",
        "strategy must be 'default' or 'compact' or 'list', not 'best'",
        "max_merged must be a whole number from 1 on, not 0",
        "there is no dataset 'e'",
        "supports_signalling must be true or false, not 'yes'",
        "version must be 2",
        "type_conflicts must be 'refuse' or 'string', not 'ignore'",
        "transitive must be 'values' or 'entities', not True",
    ):
        assert part in told


def test_datasets_are_needed() -> None:
    assert "at least one alias" in problems(datasets={})


def test_sesams_configuration() -> None:
    source = {
        "type": "merge",
        "version": 2,
        "datasets": ["A a", "B b", "C"],
        "equality": [["eq", "a.x", "b.x"]],
        "equality_sets": [["b.y", "C.y"]],
        "identity": "first",
        "strategy": "compact",
        "max_merged": 7,
        "initial_datasets": ["A"],
        "ignore_non_existent_datasets": False,
        "supports_signalling": True,
    }
    loaded = MergeConfig.from_sesam({"_id": "p", "type": "pipe", "source": source}, TABLES)
    assert loaded == MergeConfig.from_sesam(source, TABLES)
    assert (loaded.aliases, loaded.names) == (("a", "b", "C"), ("A", "B", "C"))
    assert (loaded.identity, loaded.strategy, loaded.max_merged) == ("first", "compact", 7)
    assert loaded.initial_datasets == ("A",)
    assert (loaded.ignore_non_existent_datasets, loaded.supports_signalling) == (False, True)


def test_sesams_json_as_text_and_as_a_file(tmp_path: Path) -> None:
    text = json.dumps({"source": {"type": "merge", "version": 2, "datasets": ["A a", "B b"]}})
    (tmp_path / "pipe.json").write_text(text)
    expected = MergeConfig(datasets={"a": Dataset("/t/A", "A"), "b": Dataset("/t/B", "B")})
    assert MergeConfig.from_sesam(text, TABLES) == expected
    assert MergeConfig.from_sesam(tmp_path / "pipe.json", TABLES) == expected
    assert MergeConfig.from_sesam(str(tmp_path / "pipe.json"), TABLES) == expected


@pytest.mark.parametrize("version", [{}, {"version": 1}])
def test_version_1_is_read_as_2_with_a_warning(version: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = MergeConfig.from_sesam({"type": "merge", "datasets": ["A a"], **version}, TABLES)
    assert loaded.version == 2
    assert "version 1 is deprecated and is read as version 2" in caplog.text


def test_a_transform_is_not_run_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    pipe = {"source": {"type": "merge", "version": 2, "datasets": ["A a"]}, "transform": {"type": "dtl"}}
    with caplog.at_level(logging.WARNING):
        MergeConfig.from_sesam(pipe, TABLES)
    assert "transform is not run" in caplog.text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"type": "merge", "datasets": ["A a"], "equalities": []}, "no property 'equalities'"),
        ({"type": "dataset", "datasets": ["A a"]}, "type is 'dataset'; only 'merge'"),
        ({"type": "merge", "datasets": []}, "datasets must be a list"),
        ({"type": "merge", "datasets": ["A a b"]}, "'A a b' is not a dataset id and an alias"),
        ({"type": "merge", "datasets": ["Z z"]}, "no table is given for 'Z'"),
        ({"type": "merge", "datasets": ["A a", "B a"]}, "alias 'a' is used twice"),
        ({"source": []}, "source must be an object"),
        ("{", "is not JSON"),
        ("nowhere.json", "cannot be read"),
        (7, "cannot be read"),
    ],
)
def test_sesams_configuration_refused(source: Any, why: str) -> None:
    with pytest.raises(MergeConfigError, match=why):
        MergeConfig.from_sesam(source, TABLES)


def test_a_configuration_is_stored_and_read_back() -> None:
    made = config(
        equality=[["eq", "a.x", ["lower", "b.y"]]],
        equality_sets=[["a.z", "c.z"]],
        identity="first",
        initial_datasets=["a"],
        transitive="entities",
        type_conflicts="string",
    )
    back = MergeConfig.from_json(json.loads(json.dumps(made.to_json())))
    assert back.to_json() == made.to_json()
    assert back.rules == made.rules
    assert pickle.loads(pickle.dumps(made)) == made


def test_credentials_are_not_stored() -> None:
    secret = Dataset("s3://l/A", storage_options={"secret": "hunter2"})
    made = MergeConfig(datasets={"a": secret})
    assert "hunter2" not in json.dumps(made.to_json()) + repr(made)
