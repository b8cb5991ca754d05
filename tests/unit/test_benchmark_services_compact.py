"""The benchmark of compactions at a tiny scale, and that it sees a wrong answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from benchmarks import services_compact
from benchmarks.measure import Report
from lakemerge import CompactionResult, LakeTable

pytestmark = pytest.mark.long


def test_it_measures_and_finds_the_rows_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    services_compact.measure(report, tmp_path, rows=6000, rounds=1)
    assert report.problems == []
    assert [line.target for line in report.lines] == [0.3, 1.5, 0.5]
    files = report.lines[-1]
    assert files.floor is not None
    assert files.value < files.floor, "changes of the newest keys touch fewer files"


@pytest.mark.parametrize("wrong", ["a row is lost", "nothing is done"])
def test_it_sees_a_wrong_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = LakeTable.compact

    def compact(table: LakeTable, **arguments: Any) -> CompactionResult:
        if wrong == "nothing is done":
            arguments["where"] = "false"
        result = right(table, **arguments)
        if wrong == "a row is lost":
            table.delete(pa.table({"k": pa.array([1], pa.int64())}))
            right(table)
        return result

    monkeypatch.setattr(LakeTable, "compact", compact)
    report = Report(Console(quiet=True))
    services_compact.measure(report, tmp_path, rows=2000, rounds=1)
    assert len(report.problems) == 4, report.problems
