"""The benchmark of log compaction at a tiny scale, and that it sees a wrong answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import services_logs
from benchmarks.measure import Report
from lakemerge import LakeTable, LogCompactionResult

pytestmark = pytest.mark.long


def test_it_measures_and_finds_the_rows_right(tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    services_logs.measure(report, tmp_path, commits=4, rows=50, rounds=1)
    assert report.problems == []
    assert [line.target for line in report.lines] == [1.5, None, 1, None, 1] * 2


@pytest.mark.parametrize("wrong", ["a row is lost", "a commit is left out"])
def test_it_sees_a_wrong_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = LakeTable.compact_logs

    def compact_logs(table: LakeTable, **arguments: Any) -> LogCompactionResult:
        result = right(table, **arguments)
        if wrong == "a row is lost":
            table.delete(pa.table({"k": pa.array([1], pa.int64())}))
            return result
        return replace(result, records=result.records - 50)

    monkeypatch.setattr(LakeTable, "compact_logs", compact_logs)
    report = Report(Console(quiet=True))
    services_logs.measure(report, tmp_path, commits=4, rows=50, rounds=1)
    assert report.problems


def test_the_floor_writes_all_log_rows_by_key(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v BIGINT", key=["k"], buckets=2)
    for keys in ([9], [5, 3], [4, 5]):
        table.upsert(pa.table({"k": pa.array(keys), "v": pa.array(keys)}))
    assert services_logs.rewrite_once(tmp_path / "t", tmp_path / "floor.parquet") == 4
    assert pq.read_table(tmp_path / "floor.parquet").column("k").to_pylist() == [3, 4, 5, 5]
