"""The benchmark of planning at a tiny scale, and that it sees a wrong plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import services_plan
from benchmarks.measure import Report
from lakemerge import CompactionPlan, LakeTable


def test_it_measures_and_finds_the_plan_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    services_plan.measure(report, tmp_path, slices=20, commits=3, rounds=1)
    assert report.problems == []
    assert [line.target for line in report.lines] == [2.0, 2.0, None, None, None, None]


@pytest.mark.parametrize("wrong", ["a group less", "no block"])
def test_it_sees_a_wrong_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = LakeTable.compact

    def compact(table: LakeTable, **arguments: object) -> CompactionPlan:
        plan: CompactionPlan = right(table, **arguments)  # type: ignore[call-overload]
        if wrong == "a group less":
            return replace(plan, groups=plan.groups[1:])
        (group,) = plan.groups
        return replace(plan, groups=(replace(group, buckets=tuple(replace(p, log_blocks=0) for p in group.buckets)),))

    monkeypatch.setattr(LakeTable, "compact", compact)
    report = Report(Console(quiet=True))
    services_plan.measure(report, tmp_path, slices=20, commits=3, rounds=1)
    assert report.problems
