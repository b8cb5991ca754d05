"""The parts of benchmarks that need Spark, small: they find their results right, and find out when one is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import harness
from benchmarks.cases import foundation, plans, sql, sql_peers, streams, tpch_engines, tpch_queries, transactions
from benchmarks.cases.foundation import Bench
from benchmarks.foundation_data import Inputs
from benchmarks.measure import Report
from lakemerge import LakeTable

pytestmark = pytest.mark.bench

SCALE = 0.001


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    for module in (foundation, plans, sql, sql_peers, tpch_engines, transactions):
        monkeypatch.setattr(module, "session", session)


def run(case: str, folder: Path, data: Path, **options: Any) -> Report:
    report = Report(Console(file=StringIO(), record=True))
    harness.function_of(case)(harness.Run(report, folder, data), **options)
    return report


def test_foundation(tmp_path: Path, data: Path) -> None:
    parts = ("load", "upsert", "read", "first", "compact")
    report = run("foundation", tmp_path, data, scale=SCALE, parts=parts, rounds=1, delta=False, profile=True)
    assert report.problems == []
    assert {line.case for line in report.lines} == set(parts)
    # load 2, upsert 2 x 3 + 2, read 2 x 5 clean, 5 + 1 minor-compacted, dirty and the first one, first 2, compact 2
    assert len([line for line in report.lines if line.target is not None]) == 32
    objects = [(line.value, line.target) for line in report.lines if line.unit == "objects"]
    assert objects == [(3, 4), (3, 4)]  # two log files and the commit
    printed = report._console.export_text()
    for function in ("spark/writer.py", "write/pack.py", "compaction/run/group.py"):
        assert function in printed, "profiles name what ran, on the driver and in tasks"


def test_a_wrong_table_and_a_wrong_merge_by_delta_are_found(spark: SparkSession, tmp_path: Path, data: Path) -> None:
    inputs = Inputs.prepare(data, scale=SCALE, seed=7)
    bench = Bench(spark, inputs, tmp_path, Report(Console(quiet=True)), rounds=1, delta=True, large=False)
    foundation.load_delta(bench, inputs.initial)
    contender = foundation.delta_merge(bench, "small")
    assert contender.before is not None
    contender.before()
    contender.run()
    foundation.check_delta(bench, inputs.initial, "small")
    assert bench.report.problems == []
    foundation.check_delta(bench, inputs.initial, "large")
    assert {problem.partition(":")[0] for problem in bench.report.problems} == {"Delta MERGE of large"}


def test_sql_finds_its_results_right_and_wrong_ones(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("look-up", "insert", "update", "delete", "merge")
    report = run("sql", tmp_path, data, rows=2_000, rounds=1, parts=parts)
    assert report.problems == []
    assert [line.case for line in report.lines] == ["look-up", *parts]
    monkeypatch.setattr(LakeTable, "upsert", lambda table, frame: None)
    report = run("sql", tmp_path / "again", data, rows=2_000, rounds=1, parts=("insert",))
    assert [problem.partition(":")[0] for problem in report.problems] == ["insert_call"]


def test_sql_beside_delta(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done in this process. A statement that does nothing is found, and so is Delta's."""
    monkeypatch.setattr(sql, "elsewhere", lambda module, do, python, **given: sql_peers.beside(**given))
    report = run("sql", tmp_path, data, rows=2_000, rounds=1, parts=("delta",))
    assert report.problems == []
    assert [line.what.split(" of ")[0] for line in report.lines] == [
        "Delta's UPDATE", "Delta's DELETE", "Delta's MERGE",
    ]  # fmt: skip
    run_it = sql_peers._Engine.run
    monkeypatch.setattr(
        sql_peers._Engine, "run", lambda engine, text: None if "DELETE" in text else run_it(engine, text)
    )
    report = run("sql", tmp_path / "again", data, rows=2_000, rounds=1, parts=("delta",))
    assert [problem.partition(":")[0] for problem in report.problems] == [
        "delta, DELETE, lakemerge", "delta, DELETE, delta",
    ]  # fmt: skip


def test_tpch_beside_delta(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done in this process. Where an engine takes no changes, its answers are found wrong."""
    monkeypatch.setattr(tpch_queries, "elsewhere", lambda module, do, python, **given: tpch_engines.played(**given))
    small: dict[str, Any] = {"scale": 0.01, "commits": 2, "peers": ("delta",), "rounds": 1}
    report = run("tpch", tmp_path, data, queries=(1, 4, 12, 18, 21), **small)
    assert report.problems == []
    assert len(report.lines) == 2 * 5 + 2 + 4
    monkeypatch.setattr(tpch_engines._Ours, "merge", lambda *_: None)
    report = run("tpch", tmp_path / "again", data, queries=(1, 6), **small)
    assert report.problems == [
        "delta, query 1, lakemerge: 4 rows, other than DuckDB's",
        "delta, query 6, lakemerge: 1 rows, other than DuckDB's",
        *(problem for problem in report.problems if problem.startswith("delta, merges, lakemerge: ")),
    ]
    assert len(report.problems) == 3


def test_transactions_find_wrong_updates_and_upserts(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And find that merges, by us and by Delta, are right."""
    update, upsert = LakeTable.update_where, LakeTable.upsert

    def short(table: LakeTable, rows: Any) -> Any:
        return upsert(table, rows.limit(3) if hasattr(rows, "limit") else rows)

    monkeypatch.setattr(LakeTable, "update_where", lambda table, where, _: update(table, where, {"i0": "i0 + 2"}))
    monkeypatch.setattr(LakeTable, "upsert", short)
    problems = run("transactions", tmp_path, data, rows=2_000, rounds=1, parts=("spark", "merge")).problems
    assert [problem.partition(":")[0] for problem in problems] == ["update", "parts", "merge, upsert"]


def test_plan_time(tmp_path: Path, data: Path) -> None:
    report = run("plan-time", tmp_path, data, files=20, commits=2, touched=5, rounds=1)
    assert report.problems == []
    assert [line.case for line in report.lines] == ["plan", "plan", "plan", "spark", "sql", "sql", "sql"]


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
