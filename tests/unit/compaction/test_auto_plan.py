"""``lakemerge.maintenance = auto`` against other ways to maintain a table, in a simulation, and its rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from compaction.plan import costs
from compaction.plan.auto import decide, is_turn
from lakemerge.format.schedule import Auto
from tests.unit.compaction.simulated import MIB, ROW, Change, Simulated, Slice

BUCKETS = 8
ROWS = 200_000.0
"""Rows of each file slice."""
COMMITS = 96
FACTOR = 1.5
"""The total cost under auto is at most so many times that of the best fixed plan, known only afterwards."""
FACTOR_OF_ONE = 1.15
"""The same with one read a write, without Spark. On Spark any log makes a read dearer, but the writer of every eighth
commit decides all the same."""


def uniform(random_: random.Random, slices: list[Slice]) -> list[tuple[int, float, float, float]]:
    return [(number, part.rows / 100, 0.0, 0.0) for number, part in enumerate(slices)]


def recent(random_: random.Random, slices: list[Slice]) -> list[tuple[int, float, float, float]]:
    """The last of the file slices gets nearly all."""
    return [(len(slices) - 1, ROWS / 20, ROWS / 50, 0.0)]


def hot(random_: random.Random, slices: list[Slice]) -> list[tuple[int, float, float, float]]:
    """A few hundred keys again and again."""
    return [(number, 300.0, 0.0, 0.0) for number in random_.sample(range(len(slices)), 2)]


def append_mostly(random_: random.Random, slices: list[Slice]) -> list[tuple[int, float, float, float]]:
    return [(number, 20.0, ROWS / 100, 0.0) for number in range(len(slices))]


def deletes(random_: random.Random, slices: list[Slice]) -> list[tuple[int, float, float, float]]:
    return [(number, 0.0, 0.0, min(ROWS / 120, part.rows / 4)) for number, part in enumerate(slices)]


WORKLOADS = [uniform, recent, hot, append_mostly, deletes]
READS = [0.1, 1.0, 10.0, 100.0]


def total(
    change: Change,
    reads: float,
    after: Callable[[Simulated, int], object],
    *,
    rows: float = ROWS,
    on_spark: bool = False,
) -> tuple[float, Simulated]:
    table = Simulated([Slice(rows) for _ in range(BUCKETS)], on_spark=on_spark)
    random_ = random.Random(5)
    for number in range(1, COMMITS + 1):
        table.commit(change(random_, table.slices))
        after(table, number)
        table.read(reads)
    return table.seconds, table


def fixed(minor_each: int | None, full_each: int | None) -> Callable[[Simulated, int], None]:
    def after(table: Simulated, number: int) -> None:
        if full_each is not None and number % full_each == 0:
            table.compact(table.dirty(minor=False), minor=False)
        elif minor_each is not None and number % minor_each == 0:
            table.compact(table.dirty(minor=True), minor=True)

    return after


def automatic(reads: float, *, on_spark: bool = False) -> Callable[[Simulated, int], object]:
    auto, chance = Auto(reads_per_write=reads, on_spark=on_spark), random.Random(1).random
    return lambda table, _: table.automatic(auto, chance)


FIXED = {
    "never": fixed(None, None),
    "minor at each commit": fixed(1, None),
    **{f"full at each {n} commits": fixed(None, n) for n in (1, 2, 4, 8, 16, 32, 48)},
}


@pytest.mark.parametrize("on_spark", [False, True], ids=["without Spark", "on Spark"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("change", WORKLOADS)
def test_auto_costs_about_what_the_best_fixed_plan_costs(change: Change, reads: float, on_spark: bool) -> None:
    best = {name: total(change, reads, after, on_spark=on_spark)[0] for name, after in FIXED.items()}
    name = min(best, key=lambda one: best[one])
    seconds, table = total(change, reads, automatic(reads, on_spark=on_spark), on_spark=on_spark)
    factor = FACTOR_OF_ONE if reads == 1 and not on_spark else FACTOR
    assert seconds <= factor * best[name], (name, table.services)


@pytest.mark.parametrize("mib", [0.5, 20, 500])
def test_nor_does_the_size_of_the_table_matter(mib: float) -> None:
    rows = mib * MIB / ROW / BUCKETS
    for reads in READS:
        best = min(total(uniform, reads, after, rows=rows)[0] for after in FIXED.values())
        seconds, _ = total(uniform, reads, automatic(reads), rows=rows)
        assert seconds <= FACTOR * best


@pytest.mark.parametrize("lasting", [2, 4, 7])
def test_of_many_writers_one_decides(lasting: int) -> None:
    """Each commit is another writer's. A service lands some commits after it began; who began meanwhile is lost."""
    lost = {eager: lost_services(lasting, eager=eager) for eager in (False, True)}
    assert lost[False] == 0
    assert lost[True] > 10, "if every writer that sees the debt began, most would work for nothing"


def lost_services(lasting: int, *, eager: bool) -> int:
    auto, chance = Auto(reads_per_write=1), random.Random(2).random
    table, random_ = Simulated([Slice(ROWS) for _ in range(BUCKETS)]), random.Random(5)
    running: list[int] = []
    """When those that are under way began."""
    lost = 0
    for number in range(1, 200):
        if running and running[0] + lasting == number:
            table.compact(table.dirty(minor=True), minor=True)
            lost += len(running) - 1
            running = []
        table.commit(uniform(random_, table.slices))
        if eager or is_turn(auto, table.live, chance):
            decision = decide(auto, table.loads(), version=table.version, commits=table.live)
            if decision.service != "nothing":
                running.append(number)
    return lost


def test_the_writer_of_every_eighth_commit_decides_and_later_others_may() -> None:
    auto = Auto(reads_per_write=1)
    assert [live for live in range(40) if is_turn(auto, live, lambda: 1.0)] == [8, 16, 24, 32]
    assert [live for live in range(20) if is_turn(auto, live, lambda: 0.0)] == [8, 16, 17, 18, 19]
    asked = [is_turn(auto, 17, random.Random(seed).random) for seed in range(800)]
    assert 60 <= sum(asked) <= 140, "one of eight"
    assert [live for live in range(5) if is_turn(Auto(reads_per_write=100), live, lambda: 1.0)] == [1, 2, 3, 4]
    assert [live for live in range(20) if is_turn(Auto(reads_per_write=4), live, lambda: 1.0)][:3] == [2, 4, 6]
    assert [live for live in range(20) if is_turn(Auto(reads_per_write=0), live, lambda: 1.0)] == [8, 16]


def test_small_tables_are_compacted_for_reads_on_spark() -> None:
    """A thousand rows: without Spark nothing is worth a commit; on Spark a read pays for any log."""
    table = Simulated([Slice(1000.0) for _ in range(BUCKETS)])
    for _ in range(2):
        table.commit(uniform(random.Random(1), table.slices))
    services = [
        decide(Auto(reads_per_write=1, on_spark=on_spark), table.loads(), version=table.version, commits=table.live)
        for on_spark in (False, True)
    ]
    assert [decision.service for decision in services] == ["nothing", "minor compaction"]


def test_nobody_reads_so_nothing_is_worth_it() -> None:
    seconds, table = total(uniform, 0, lambda one, _: one.automatic(Auto(reads_per_write=0), lambda: 0.0))
    assert not table.services
    assert seconds == total(uniform, 0, FIXED["never"])[0]


def test_what_a_table_sets_itself_is_not_decided() -> None:
    table = Simulated([Slice(ROWS) for _ in range(BUCKETS)])
    for _ in range(64):
        table.commit(uniform(random.Random(1), table.slices))

    def service(**options: Any) -> str:
        auto = Auto(reads_per_write=10, **options)
        return decide(auto, table.loads(), version=table.version, commits=table.live).service

    assert service() == "full compaction"
    assert service(full=False) == "minor compaction"
    assert service(full=False, minor=False) == "nothing"
    assert service(full=False, minor=False, logs_after_commits=64) == "log compaction"
    assert service(full=False, minor=False, logs_after_commits=65) == "nothing"


def test_only_file_slices_that_are_worth_it_are_compacted() -> None:
    table = Simulated([Slice(ROWS), Slice(ROWS * 50), Slice(ROWS)])
    for _ in range(8):
        table.commit([(0, ROWS / 20, 0.0, 0.0)])
    table.commit([(1, 1.0, 0.0, 0.0)])
    decision = decide(Auto(reads_per_write=1), table.loads(), version=table.version, commits=table.live)
    assert decision.service == "minor compaction"
    assert {part.bucket for part, _ in decision.parts} == {0}
    assert "reads have paid" in str(decision)


def test_writers_spend_no_more_than_a_multiple_of_their_writes() -> None:
    for change in WORKLOADS:
        table = Simulated([Slice(ROWS) for _ in range(BUCKETS)])
        random_ = random.Random(3)
        for _ in range(300):
            table.commit(change(random_, table.slices))
            table.automatic(Auto(reads_per_write=1), lambda: 1.0)
        assert table.serviced <= 2 * costs.WRITES * (table.seconds - table.serviced), "half for either compaction"
