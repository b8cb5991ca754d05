"""The benchmark of plan time at a tiny scale, and that it sees a wrong plan and a request too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import plan_time
from benchmarks.measure import Report
from lakemerge.layout.view import TableView
from lakemerge.read.filter.prune import prune_file_slices

SMALL: dict[str, Any] = {"files": 60, "commits": 3, "touched": 10, "rounds": 1, "spark": False}


def test_it_measures_and_finds_the_plan_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    plan_time.measure(report, tmp_path, **SMALL)
    assert report.problems == []
    assert [line.target for line in report.lines] == [2.0, None, None]


@pytest.mark.parametrize("wrong", ["a file slice less", "a request a file"])
def test_it_sees_a_wrong_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def pruned(view: TableView, condition: None) -> Any:
        file_slices = prune_file_slices(view, condition)
        if wrong == "a file slice less":
            return file_slices[1:]
        for path in view.snapshot.files:
            view.store.stat(path)
        return file_slices

    monkeypatch.setattr(plan_time, "prune_file_slices", pruned)
    report = Report(Console(quiet=True))
    plan_time.measure(report, tmp_path, **SMALL)
    assert report.problems
