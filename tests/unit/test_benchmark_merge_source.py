"""The benchmark of merge sources measures all cases, and finds out when clusters are wrong."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from benchmarks.measure import Report
from benchmarks.merge_source import measure, problems_of
from benchmarks.merge_source_data import People, union_find
from lakemerge import LakeTable

pytestmark = pytest.mark.long


def test_every_case_is_measured_and_right(tmp_path: Path) -> None:
    report = Report(Console(file=StringIO()))
    measure(report, tmp_path, rows=300, changed=20, rounds=1, spark=None)
    assert report.problems == []
    assert [line.case for line in report.lines] == ["full", "full", "hub", *["changes", "changes", "hub"] * 2]
    assert all(line.value > 0 for line in report.lines)


def test_the_union_find_joins_by_both_rules(tmp_path: Path) -> None:
    people = People.drawn(4)
    people.who["a"]["email"][:] = [1, 2, 3, 3]
    people.who["b"]["mail"][:] = [2, 5, 3, 6]
    people.who["b"]["phone"][:] = [7, 8, 9, 7]
    people.who["c"]["phone"][:] = [9, 9, 1, 7]
    roots = union_find(people)
    entities = [f"{name}{place}" for name in "abc" for place in range(4)]
    groups: dict[int, list[str]] = {}
    for entity, root in zip(entities, [root for name in "abc" for root in roots[name].tolist()], strict=True):
        groups.setdefault(root, []).append(entity)
    assert sorted(groups.values()) == [["a0"], ["a1", "b0", "b3", "c3"], ["a2", "a3", "b2", "c0", "c1"], ["b1"], ["c2"]]


def test_wrong_clusters_are_found(tmp_path: Path) -> None:
    people = People.drawn(1)
    for columns in people.who.values():
        for who in columns.values():
            who[:] = 5
    table = LakeTable.create(
        tmp_path / "out", "_id STRING, _deleted BOOLEAN, _members ARRAY<STRUCT<dataset: INT, id: STRING>>", key=["_id"]
    )
    members = [{"dataset": place, "id": "0"} for place in range(3)]
    row = {"_id": "x", "_deleted": False, "_members": members}
    table.upsert(pa.Table.from_pylist([row], schema=table.schema))
    assert problems_of(people, tmp_path) == []
    parted = [{**row, "_members": members[:2]}, {**row, "_id": "y", "_members": members[2:]}]
    table.upsert(pa.Table.from_pylist(parted, schema=table.schema))
    assert problems_of(people, tmp_path) == ["2 clusters, not 1"]
    people.who["c"]["phone"][:] = 6
    table.upsert(pa.Table.from_pylist([row], schema=table.schema))
    assert any("not the same" in problem for problem in problems_of(people, tmp_path))
    assert any("twice or missing" in problem for problem in problems_of(people, tmp_path))
