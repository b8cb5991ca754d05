"""The benchmark of look-ups at a tiny scale, and that it sees a wrong row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import lookups
from benchmarks.measure import Report
from lakemerge import LakeTable

pytestmark = pytest.mark.long

SMALL = {"rows": 2_000, "commits": 3, "commit_rows": 200, "keys": 40}


def test_it_measures_and_finds_the_rows_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    lookups.measure(report, tmp_path, **SMALL)
    assert report.problems == []
    assert [line.unit for line in report.lines] == ["ms", *["ms", "requests", "requests", "bytes"] * 4]
    most = {line.what: line.value for line in report.lines if line.what.endswith(": most")}
    # One listing of the log; of every file a footer and one row group: the base file's, and each commit's.
    assert most["full compaction: most"] < most["3 commits pending: most"]


@pytest.mark.parametrize("wrong", ["a stale row", "a row too many"])
def test_it_sees_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right: Any = LakeTable.get

    def get(table: LakeTable, key: Any) -> Any:
        row = right(table, key)
        if wrong == "a row too many":
            return row or {**key, "ts": 0}
        return row if row is None else {**row, "ts": row["ts"] - 1}

    monkeypatch.setattr(LakeTable, "get", get)
    report = Report(Console(quiet=True))
    lookups.measure(report, tmp_path, **SMALL)
    assert report.problems
