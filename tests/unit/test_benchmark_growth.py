"""The benchmark of growth at a tiny scale, and that it sees a wrong row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import growth
from benchmarks.measure import Report
from lakemerge import LakeTable

SMALL: dict[str, Any] = {"sizes": (2_000, 4_000), "commits": 2, "commit_rows": 50}


def test_it_measures_both_tables_and_finds_the_rows_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    growth.measure(report, tmp_path, **SMALL)
    assert report.problems == []
    timed = {(line.case, line.what): line for line in report.lines if line.unit == "s"}
    assert {case for case, _ in timed} == {"2,000", "4,000"}
    assert {what for case, what in timed if case == "4,000"} == {
        *(f"{step} of {keys} keys" for keys in ("recent", "uniform") for step in ("upsert", "minor compaction")),
        *(f"look-up after {keys} keys" for keys in ("recent", "uniform")),
        "full scan",
        "full compaction",
    }
    upsert = timed["4,000", "upsert of recent keys"]
    assert (len(upsert.samples), len(upsert.floor_samples)) == (2, 2)
    asked = [line for line in report.lines if line.unit == "requests"]
    assert asked
    assert all(line.value for line in asked)


def test_it_sees_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = LakeTable.get

    def get(table: LakeTable, key: Any) -> Any:
        return {**right(table, key), "ts": -1}

    monkeypatch.setattr(LakeTable, "get", get)
    report = Report(Console(quiet=True))
    growth.measure(report, tmp_path, **SMALL)
    assert report.problems
