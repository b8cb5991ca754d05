"""The benchmark of transactions: it finds an update that did something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.measure import Report
from benchmarks.transactions import measure_update
from lakemerge import LakeTable


@pytest.mark.parametrize("right", [True, False])
def test_an_update_is_compared_with_plain_sums(right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not right:
        update = LakeTable.update_where
        monkeypatch.setattr(LakeTable, "update_where", lambda table, where, _: update(table, where, {"i0": "i0 + 2"}))
    report = Report(Console(quiet=True))
    measure_update(report, tmp_path, rows=5_000, rounds=1, spark=None)
    (line,) = report.lines
    assert (line.case, line.unit, line.target) == ("update", "s", 1.3)
    assert report.problems == ([] if right else ["update: the rows are not those of before, plus one"])
