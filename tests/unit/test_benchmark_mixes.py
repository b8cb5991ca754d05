"""The case of mixes at a tiny size, its totals by hand, and what the report and the plot show of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.compare.book import Arena
from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.mixes import mixes
from benchmarks.compare.mixture import READS, Day
from benchmarks.compare.on_arrow import ArrowParquet
from benchmarks.compare.plots import draw
from benchmarks.compare.queries import Answer, Query
from benchmarks.compare.report import Comparison, markdown
from benchmarks.compare.results import CaseResult, Row
from benchmarks.compare.workload import RECENT, Frame, Parameters, Workload
from tests.unit.test_benchmark_compare import Folding

pytestmark = pytest.mark.long

PARAMETERS = Parameters(scale=0.001, commits=4, rounds=1, seed=5)
STREAMS = ("uniform", "recent keys", "partial updates")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return Workload.prepare(tmp_path_factory.mktemp("mixes"), PARAMETERS)


class Kept(Folding):
    """It is tidied after every second commit, or not at all if there are ten queries for each commit."""

    upkeeps = (Upkeep("tidied", {"kept": "yes"}, every=2), Upkeep("for ten", {}, reads_per_write=10.0))

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def load(self, place: Place, rows: Path) -> None:
        self.done.append(f"load {dict(place.properties)}")
        super().load(place, rows)

    def upsert(self, place: Place, frame: Frame) -> None:
        self.done.append("commit")
        super().upsert(place, frame)

    def tidy(self, place: Place) -> None:
        self.done.append("tidy")

    def answer(self, place: Place, query: Query) -> Answer:
        self.done.append("query")
        return super().answer(place, query)


class LosesRows(Kept):
    """When it tidies."""

    def tidy(self, place: Place) -> None:
        self.tables[place.path].popitem()


def test_totals_by_hand() -> None:
    """Ten commits, two kinds of queries: two seconds each on average when first asked, half a second again."""
    day = Day(Upkeep("any"), 10, 5.0, first=[[1.0, 3.0], [2.0, 2.0]], later=[[0.5, 0.5], [0.5, 0.5]], written_bytes=7)
    assert day.total(0.1) == pytest.approx(5 + 10 * 0.1 * 2)
    assert day.total(1) == pytest.approx(5 + 10 * 1 * 2)
    assert day.total(10) == pytest.approx(5 + 10 * (2 * 2 + 8 * 0.5))
    assert day.suits(10)
    meant = Day(Upkeep("ten", reads_per_write=10.0), 10, 5.0, day.first, day.later, 7)
    assert [reads for reads in READS if meant.suits(reads)] == [10.0]


def test_a_day_commits_tidies_and_asks_in_turn(workload: Workload, tmp_path: Path) -> None:
    engine = Kept()
    rows = mixes(Arena(engine, ArrowParquet(), workload, tmp_path))
    assert not [row for row in rows if row.problems or row.cannot]
    eight = ["query"] * 8  # four queries, twice
    warm_up = ["load {'kept': 'yes'}", "commit", *eight, "commit", "tidy", *eight]
    assert engine.done[: len(warm_up)] == warm_up
    first_day = ["load {'kept': 'yes'}", *["commit", *eight, "commit", "tidy", *eight] * 2]
    assert engine.done[len(warm_up) : len(warm_up) + len(first_day)] == first_day
    assert engine.done[len(warm_up) + len(first_day)] == "load {}"
    for stream in STREAMS:
        totals = {row.at: row for row in rows if row.step == f"{stream}: total"}
        assert list(totals) == list(READS)
        default = [row.value for row in rows if row.step == f"{stream}: total, by default"]
        for reads, by_default in zip(READS, default, strict=True):
            value = totals[reads].value
            assert value is not None
            assert by_default is not None
            assert value <= by_default
            assert totals[reads].floor
            if reads != 10:
                assert value == by_default, "the other upkeep is meant for ten queries alone"
        asked = [row for row in rows if row.step.startswith(f"{stream}, for ten: key look-up, ")]
        assert [len(row.samples) for row in asked] == [4, 4]


def test_wrong_rows_void_the_totals(workload: Workload, tmp_path: Path) -> None:
    rows = mixes(Arena(LosesRows(), ArrowParquet(), workload, tmp_path))
    assert rows
    assert all(row.is_void and row.value is None for row in rows)
    assert any("after 2 commits: full scan is wrong" in problem for problem in rows[0].problems)


def test_an_engine_without_an_upkeep_is_left_out(workload: Workload, tmp_path: Path) -> None:
    assert list(mixes(Arena(Folding(), ArrowParquet(), workload, tmp_path))) == []


def test_recent_frames_have_recent_keys(workload: Workload) -> None:
    keys = sorted(pq.read_table(workload.initial, columns=["l_orderkey"]).column("l_orderkey").to_pylist())
    least = keys[round(len(keys) * (1 - RECENT)) - 1]
    for number in (1, 4):
        drawn = pq.read_table(workload.recent(number).path, columns=["l_orderkey"]).column("l_orderkey").to_pylist()
        assert len(drawn) == round(len(keys) * 0.01)
        assert min(drawn) >= least


def result(engine: str, totals: Mapping[str, Mapping[float, float]]) -> CaseResult:
    rows = [
        Row(step=step, unit="s", samples=(value,), floor_samples=(10.0,), at=reads)
        for step, values in totals.items()
        for reads, value in values.items()
    ]
    rows.append(Row(step="uniform, auto: full scan, first", unit="s", samples=(1.0, 2.0), floor_samples=(1.0, 1.0)))
    return CaseResult(engine=engine, case="mixes", rows=tuple(rows))


def test_the_report_and_the_plot_show_every_mix(tmp_path: Path) -> None:
    ours = {reads: 10.0 * place for place, reads in enumerate(READS, start=1)}
    comparison = Comparison(
        name="made",
        date="2026-01-01",
        parameters=PARAMETERS,
        rows=6000,
        machine={"cores": 2},
        results=[
            result("lakemerge", {"uniform: total": ours, "uniform: total, by default": ours}),
            result("delta", {"uniform: total": {reads: 2 * value for reads, value in ours.items()}}),
        ],
    )
    text = markdown(comparison)
    assert "| uniform: total, at 0.1 | 1.00x (10.00 s) | 2.00x (20.00 s) |" in text
    assert "| uniform: total, at 100 | 4.00x (40.00 s) | 8.00x (80.00 s) |" in text
    assert "| uniform: total, by default, at 10 | 3.00x (30.00 s) |  |" in text
    assert "first" not in text
    made = {path.name: path.read_text() for path in draw(comparison, tmp_path)}
    assert list(made) == ["made-mix-uniform.svg"]
    for label in ("LakeMerge, default", "Delta", "plain Parquet", "queries for each commit"):
        assert label in made["made-mix-uniform.svg"]
