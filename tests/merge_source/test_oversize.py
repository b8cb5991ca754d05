"""Values and chains over ``max_merged``: they join nobody, are named, stop nobody else, and join again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakemerge import MaxMergedError
from lakemerge.merge_source import RunResult
from tests.merge_source.twin import Twin

RULE = {"datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"], ["eq", "a.y", "b.y"]], "max_merged": 3}


@pytest.fixture
def twin(tmp_path: Path) -> Twin:
    twin = Twin(tmp_path, {**RULE, "max_retired": 1}, A="x BIGINT, y STRING", B="x BIGINT, y STRING")
    twin.put("A", {"_id": "a1", "x": 1}, {"_id": "a2", "x": 2})
    twin.put("B", {"_id": "b1", "x": 1}, {"_id": "b2", "x": 2})
    assert twin.run() == ["0|a1|1|b1", "0|a2|1|b2"]
    return twin


def result_of(twin: Twin, **options: Any) -> RunResult:
    assert twin.world.source is not None
    return twin.world.source.run(**options)


def named(result: RunResult) -> list[tuple[str, str, int, bool]]:
    return [(one.rule, one.value, one.count, one.chain) for one in result.left_out]


def test_a_hub_is_left_out_and_the_rest_goes_on(twin: Twin) -> None:
    twin.put("A", *({"_id": f"i{n}", "y": "info"} for n in range(3)), {"_id": "n1", "x": 7})
    twin.put("B", {"_id": "i9", "y": "info"}, {"_id": "n9", "x": 7})
    assert twin.run() == ["0|i0", "0|i1", "0|i2", "0|n1|1|n9", "1|i9"]
    assert named(result_of(twin)) == [("a.y = b.y", "'info'", 4, False)]  # also of a run that finds nothing to do
    assert twin.world.source is not None
    assert "left out of matching:\n  'info' of a.y = b.y (4 entities)" in str(twin.world.source.report())
    assert not next(one for one in twin.world.source.report().widest if one.value == "'info'").active


def test_a_hub_joins_again_when_few_enough_hold_it(twin: Twin) -> None:
    """Others change than those that join: the index tells that they do."""
    twin.put("A", *({"_id": f"i{n}", "y": "info"} for n in range(3)))
    twin.put("B", {"_id": "i9", "y": "info"})
    twin.run()
    twin.put("A", {"_id": "i0", "y": "own"})
    assert twin.run() == [">0|i1", ">0|i2", ">1|i9", "0|i0", "0|i1|0|i2|1|i9"]
    assert named(result_of(twin)) == []
    twin.put("B", {"_id": "i8", "y": "info"})  # and apart again
    assert twin.run() == [">0|i1|0|i2|1|i9", "0|i1", "0|i2", "1|i8", "1|i9"]


def test_members_of_a_hub_still_merge_by_other_values(twin: Twin) -> None:
    twin.put("A", {"_id": "a1", "x": 1, "y": "info"}, {"_id": "a2", "x": 2, "y": "info"})
    twin.put("B", {"_id": "b1", "x": 1, "y": "info"}, {"_id": "b2", "x": 2, "y": "info"})
    assert twin.run() == ["0|a1|1|b1", "0|a2|1|b2"]
    assert twin.world.source is not None
    links = twin.world.source.explain("0|a1|1|b1").links
    assert [(link.rule, link.value) for link in links] == [("a.x = b.x", "1")]


def test_a_chain_is_cut_at_all_values_of_one_width(twin: Twin) -> None:
    twin.put("A", {"_id": "a1", "x": 1, "y": "v"})
    assert twin.run() == ["0|a1|1|b1"]
    twin.put("B", {"_id": "b2", "x": 2, "y": "v"})
    assert twin.run() == [">0|a1|1|b1", ">0|a2|1|b2", "0|a1", "0|a2", "1|b1", "1|b2"]
    assert named(result_of(twin)) == [
        ("a.x = b.x", "1", 2, True),
        ("a.x = b.x", "2", 2, True),
        ("a.y = b.y", "'v'", 2, True),
    ]


def test_a_chain_that_gets_shorter_joins_again(twin: Twin) -> None:
    twin.put("A", {"_id": "a3", "x": 3, "y": "v"}, {"_id": "a1", "x": 1, "y": "v"})
    twin.put("B", {"_id": "b3", "x": 3, "y": "v"})
    twin.run()  # v has three holders of a chain of four
    assert named(result_of(twin)) == [("a.y = b.y", "'v'", 3, True)]
    twin.delete("B", "b1")
    assert twin.run() == [">0|a1|1|b1", ">0|a3|1|b3", "0|a1|0|a3|1|b3", "-1|b1"]
    assert named(result_of(twin)) == []


def test_only_parts_that_are_still_too_large_are_cut_again(tmp_path: Path) -> None:
    """A limit of four, and a chain of nine. W has the most holders (four) and is left out. What is left is 1, 2, 3 of
    both tables, with v1 (three holders) and v2 to v4 (two), and 7, 8, 9, with u (three). The first part has six rows:
    v1 is left out: 1 of either table is alone, and four rows stay. u has as many holders, in a part of three."""
    lists = "x ARRAY<STRING>"
    twin = Twin(
        tmp_path, {"datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]], "max_merged": 4}, A=lists, B=lists
    )
    told = {"1": ["v1", "W"], "2": ["v1", "v2"], "3": ["v3", "v4"], "7": ["u", "W"], "8": ["u", "W"]}
    twin.put("A", *({"_id": key, "x": value} for key, value in told.items()))
    told = {"1": ["v1", "W"], "2": ["v2", "v3"], "3": ["v4"], "9": ["u"]}
    twin.put("B", *({"_id": key, "x": value} for key, value in told.items()))
    assert twin.run() == ["0|1", "0|2|0|3|1|2|1|3", "0|7|0|8|1|9", "1|1"]
    assert [(value, count) for _, value, count, _ in named(result_of(twin))] == [("'W'", 4), ("'v1'", 3)]


@pytest.mark.long
def test_a_lower_limit_holds_for_what_is_there(twin: Twin) -> None:
    twin.put("A", {"_id": "a3", "x": 1})
    assert twin.run() == [">0|a1|1|b1", "0|a1|0|a3|1|b1"]
    assert twin.run(max_merged=2) == [">0|a1|0|a3|1|b1", "0|a1", "0|a3", "1|b1"]
    assert twin.run(max_merged=3) == [">0|a1", ">0|a3", ">1|b1", "0|a1|0|a3|1|b1"]
    assert twin.world.source is not None
    with pytest.raises(MaxMergedError):
        twin.world.run({**twin.config, "max_merged": 2, "oversize": "fail"})


def test_a_rule_over_one_dataset(tmp_path: Path) -> None:
    """An expression compared with itself joins alone; two of one dataset as those of two."""
    config = {"datasets": ["A a"], "equality": [["eq", "a.x", "a.x"], ["eq", "a.y", "a.z"]]}
    twin = Twin(tmp_path, config, A="x BIGINT, y STRING, z STRING")
    twin.put("A", {"_id": "1", "x": 1}, {"_id": "2", "x": 1}, {"_id": "3", "y": "v"}, {"_id": "4", "y": "v"})
    assert twin.run() == ["0|1|0|2", "0|3", "0|4"]
    twin.put("A", {"_id": "5", "z": "v", "x": 1})
    assert twin.run() == [">0|1|0|2", ">0|3", ">0|4", "0|1|0|2|0|3|0|4|0|5"]
