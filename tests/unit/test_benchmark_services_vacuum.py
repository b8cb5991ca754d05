"""The benchmark of vacuum at a tiny scale, and that it sees a wrong answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import services_vacuum
from benchmarks.measure import Report
from lakemerge import LakeTable, VacuumResult


def test_it_measures_and_finds_the_files_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    services_vacuum.measure(report, tmp_path, files=2000, rounds=1)
    assert report.problems == []
    assert [line.target for line in report.lines] == [5, None, None]


@pytest.mark.parametrize("wrong", ["a file too many", "nothing is deleted"])
def test_it_sees_a_wrong_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = LakeTable.vacuum

    def vacuum(table: LakeTable, **arguments: Any) -> VacuumResult:
        if wrong == "nothing is deleted":
            return right(table)
        result = right(table, **arguments)
        return replace(result, files={**result.files, "log": result.files["log"] + 1})

    monkeypatch.setattr(LakeTable, "vacuum", vacuum)
    report = Report(Console(quiet=True))
    services_vacuum.measure(report, tmp_path, files=2000, rounds=1)
    assert report.problems
