"""The parts of benchmarks that need Spark, small: they find their results right, and find out when one is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import harness
from benchmarks.cases import foundation, ingest, merge_source, phases, plans, streams, transactions
from benchmarks.cases.foundation import Bench
from benchmarks.foundation_data import Inputs
from benchmarks.measure import Report
from lakemerge import LakeTable

pytestmark = pytest.mark.long

SCALE = 0.001


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    for module in (foundation, ingest, merge_source, plans, transactions):
        monkeypatch.setattr(module, "session", session)


def run(case: str, folder: Path, data: Path, **options: Any) -> Report:
    report = Report(Console(quiet=True))
    harness.function_of(case)(harness.Run(report, folder, data), **options)
    return report


def bench_of(spark: SparkSession, folder: Path, data: Path) -> Bench:
    inputs = Inputs.prepare(data, scale=SCALE, seed=7)
    return Bench(spark, inputs, folder, Report(Console(quiet=True)), rounds=1, delta=True, large=False)


def test_foundation(tmp_path: Path, data: Path) -> None:
    parts = ("load", "upsert", "read", "compact")
    report = run("foundation", tmp_path, data, scale=SCALE, parts=parts, rounds=1, delta=False, profile=True)
    assert report.problems == []
    assert {line.case for line in report.lines} == set(parts)
    # load 2, upsert 2 x 3 + 2, read 2 x 5 clean, 5 + 1 minor-compacted, dirty and the first one, compact 2
    assert len([line for line in report.lines if line.target is not None]) == 30
    objects = [(line.value, line.target) for line in report.lines if line.unit == "objects"]
    assert objects == [(3, 4), (3, 4)]  # two log files and the commit


def test_a_wrong_table_and_a_wrong_merge_by_delta_are_found(spark: SparkSession, tmp_path: Path, data: Path) -> None:
    bench = bench_of(spark, tmp_path, data)
    foundation.load_delta(bench, bench.inputs.initial)
    contender = foundation.delta_merge(bench, "small")
    assert contender.before is not None
    contender.before()
    contender.run()
    foundation.check_delta(bench, bench.inputs.initial, "small")
    assert bench.report.problems == []
    foundation.check_delta(bench, bench.inputs.initial, "large")
    assert {problem.partition(":")[0] for problem in bench.report.problems} == {"Delta MERGE of large"}


def test_a_wrong_answer_of_a_read_is_found(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LakeTable.to_df
    monkeypatch.setattr(LakeTable, "to_df", lambda *given, **named: right(*given, **named).limit(3))
    problems = run("foundation", tmp_path, data, scale=SCALE, parts=("read",), rounds=1, delta=False).problems
    assert any(problem.startswith("read: count, dirty") for problem in problems)
    assert any(problem.startswith("read of the loaded table") for problem in problems)


def test_profiles_see_what_ran(spark: SparkSession, tmp_path: Path, data: Path) -> None:
    bench = bench_of(spark, tmp_path, data)
    table = bench.copy(bench.table("loaded", bench.inputs.third), "profiled", phases.IN_TASKS)
    frame = bench.parquet(bench.inputs.frame("large"))
    for part, action, name in (
        ("upsert", lambda: table.upsert(frame), "pack_partition"),
        ("compact", table.compact, "run_job"),
    ):
        driver, tasks = phases.profiled(part, tmp_path / "profiles", action).values()
        assert any("lakemerge" in function for function, _ in phases._slowest(driver))
        assert any(name in function and seconds > 0 for function, seconds in phases._slowest(tasks))


@pytest.mark.parametrize("right", [True, False])
def test_transactions(right: bool, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not right:
        update, upsert = LakeTable.update_where, LakeTable.upsert
        monkeypatch.setattr(LakeTable, "update_where", lambda table, where, _: update(table, where, {"i0": "i0 + 2"}))
        monkeypatch.setattr(
            LakeTable, "upsert", lambda table, rows: upsert(table, rows.limit(3) if hasattr(rows, "limit") else rows)
        )
    problems = run("transactions", tmp_path, data, rows=3_000, rounds=1, parts=("spark", "merge")).problems
    assert [problem.partition(":")[0] for problem in problems] == (
        [] if right else ["update", "parts", "merge, upsert"]
    )


def test_plan_time_and_ingest(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run("plan-time", tmp_path / "plan", data, files=20, commits=2, touched=5, rounds=1)
    assert report.problems == []
    assert [line.case for line in report.lines] == ["plan", "plan", "plan", "spark"]
    (tmp_path / "ingest").mkdir()
    report = run("ingest", tmp_path / "ingest", data, scale=SCALE, parts=("spark",), rounds=1, many=3)
    assert report.problems == []
    assert len(report.lines) == 4


def test_streams(spark: SparkSession, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done in this process. Numbers that come from other processes are judged, too."""
    monkeypatch.setattr(streams, "_KEYS", 500)
    monkeypatch.setattr(streams, "_ROWS", 300)
    rows = streams._records(spark.range(600).toDF("value"), "CAST(floor(value / 300) + 1 AS BIGINT)")
    state = rows.unionByName(streams._first(spark).join(rows, "k", "left_anti"))
    assert streams._wrong(spark, state) == 0
    assert streams._wrong(spark, state.where("k <> 3 OR o > 1").limit(state.count() - 1)) > 0
    found: dict[str, Any] = {
        "batches": {"seconds": [0.1] * 20, "wrong": 0},
        "feed": {"upsert": [0.1], "feed": [0.1], "rows": 60_000},
        "parallel": {"seconds": [0.1], "rows": 7},
    }
    monkeypatch.setattr(streams, "elsewhere", lambda module, do, **_: found[do])
    assert run("streams", tmp_path, data).problems == []
    found = {
        "batches": {**found["batches"], "wrong": 2},
        "feed": {**found["feed"], "rows": 59_999},
        "parallel": {**found["parallel"], "rows": 0},
    }
    problems = run("streams", tmp_path, data).problems
    assert {problem.partition(":")[0] for problem in problems} == {"batches", "feed", "parallel"}
