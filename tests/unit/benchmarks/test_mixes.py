"""The case of mixes at a tiny size, its totals by hand, and what the report and the plot show of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.compare.book import Arena
from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.mixes import mixes
from benchmarks.compare.mixture import READS, Day
from benchmarks.compare.on_arrow import ArrowParquet
from benchmarks.compare.queries import Answer, Query
from benchmarks.compare.results import Row
from benchmarks.compare.workload import Frame, Parameters, Workload
from tests.unit.benchmarks.test_compare import Folding

pytestmark = pytest.mark.bench

PARAMETERS = Parameters(scale=0.001, commits=4, rounds=1, seed=5)
STREAMS = ("uniform", "recent keys", "partial updates")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return Workload.prepare(tmp_path_factory.mktemp("mixes"), PARAMETERS)


class Kept(Folding):
    """It is tidied after every second commit, or not at all if there are ten queries for each commit. It counts
    queries."""

    upkeeps = (
        Upkeep("tidied", {"kept": "yes"}, every=2),
        Upkeep("for ten", {}, reads_per_write=10.0, counts=True),
    )

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

    def note_reads(self, place: Place, reads: int) -> None:
        self.done.append(f"{reads} reads")

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
    counting_day = ["load {}", *["commit", *eight, "2 reads"] * 4]
    assert engine.done[len(warm_up) + len(first_day) :][: len(counting_day)] == counting_day
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
            if reads == 10:
                assert by_default == pytest.approx(total_of_ten(rows, f"{stream}, for ten"))
            else:
                assert value == by_default, "the other upkeep is meant for ten queries alone"
        asked = [row for row in rows if row.step.startswith(f"{stream}, for ten: key look-up, ")]
        assert [len(row.samples) for row in asked] == [4, 4]


def total_of_ten(rows: Sequence[Row], about: str) -> float:
    """Four commits; four queries are new after each, and six are asked again."""

    def samples(what: str) -> list[float]:
        return [
            sample for row in rows if row.step.startswith(f"{about}: ") and what in row.step for sample in row.samples
        ]

    (written,) = [row.value for row in rows if row.step == f"{about}: commits and maintenance" and row.unit == "s"]
    assert written is not None
    return written + 4 * (4 * fmean(samples(", first")) + 6 * fmean(samples(", again")))


def test_wrong_rows_void_the_totals(workload: Workload, tmp_path: Path) -> None:
    rows = mixes(Arena(LosesRows(), ArrowParquet(), workload, tmp_path))
    assert rows
    assert all(row.is_void and row.value is None for row in rows)
    assert any("after 2 commits: full scan is wrong" in problem for problem in rows[0].problems)
