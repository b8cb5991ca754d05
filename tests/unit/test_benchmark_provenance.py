"""The benchmark of provenance at a tiny scale, and that it sees a wrong answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import provenance
from benchmarks.measure import Report
from lakemerge import LakeTable

pytestmark = pytest.mark.long

SMALL = {"rows": 2_000, "records": 400, "keys": 10, "rounds": 1}


def test_it_measures_and_finds_the_answers_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    provenance.measure(report, tmp_path, **SMALL)
    assert report.problems == []
    assert [line.case for line in report.lines] == ["explain"] * 3 + ["what_if"] * 2 + ["replay"]
    assert report.lines[2].missed_by == 0


def test_it_sees_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = LakeTable.get
    monkeypatch.setattr(LakeTable, "get", lambda table, key: {**right(table, key), "ts": -1})
    report = Report(Console(quiet=True))
    provenance.measure(report, tmp_path, **SMALL)
    assert any("end in another row" in problem for problem in report.problems)
