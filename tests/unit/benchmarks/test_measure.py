"""How the foundation benchmark times, judges and counts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave


class Clock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def report() -> tuple[Report, io.StringIO]:
    out = io.StringIO()
    return Report(Console(file=out)), out


def test_rounds_alternate_and_the_first_is_not_counted() -> None:
    clock, order = Clock(), list[str]()

    def takes(name: str, *seconds: float) -> Contender:
        left = list(seconds)

        def run() -> None:
            order.append(name)
            clock.now += left.pop(0)

        def before() -> None:
            order.append(f"before {name}")
            clock.now += 1000

        return Contender(name, run, before if name == "a" else None)

    samples = interleave(
        [takes("a", 50, 1, 2), takes("b", 90, 10, 20)], rounds=2, clock=clock, settle=lambda: order.append("settle")
    )
    assert samples == {"a": (1.0, 2.0), "b": (10.0, 20.0)}
    a, b = ["before a", "settle", "a"], ["settle", "b"]
    assert order == [*a, *b, *b, *a, *a, *b]


def test_a_slow_contender_takes_fewer_rounds() -> None:
    """Those that it is given, or one if it takes longer than others have patience for."""
    clock = Clock()

    def takes(name: str, seconds: float, rounds: int | None = None) -> Contender:
        def run() -> None:
            clock.now += seconds

        return Contender(name, run, rounds=rounds)

    contenders = [takes("fast", 60), takes("seldom", 1, rounds=1), takes("slow", 61)]
    samples = interleave(contenders, rounds=2, clock=clock, settle=lambda: None, patience_s=60)
    assert samples == {"fast": (60.0, 60.0), "seldom": (1.0,), "slow": (61.0,)}


@pytest.mark.parametrize(
    ("value", "floor", "target", "at_least", "missed_by"),
    [
        (1.5, 1.0, 1.6, False, 0.0),
        (1.6, 1.0, 1.6, False, 0.0),
        (2.4, 1.0, 1.6, False, 0.5),
        (6.0, 3.0, 1.6, False, 0.25),
        (9.0, 1.0, 8.0, True, 0.0),
        (4.0, 1.0, 8.0, True, 0.5),
        (0.5, None, 1.0, False, 0.0),
        (3.0, None, 2.0, False, 0.5),
        (3.0, 1.0, None, False, None),
    ],
)
def test_targets_are_judged(
    value: float, floor: float | None, target: float | None, at_least: bool, missed_by: float | None
) -> None:
    line = Line(case="c", what="w", unit="s", value=value, floor=floor, target=target, at_least=at_least)
    assert line.missed_by == (None if missed_by is None else pytest.approx(missed_by))


def test_a_timed_line_takes_medians() -> None:
    made, _ = report()
    made.timed("c", "w", [9.0, 1.0, 3.0], [2.0, 1.0, 100.0], target=1.2)
    (line,) = made.lines
    assert (line.value, line.floor, line.ratio) == (3.0, 2.0, 1.5)
    assert line.as_json()["samples"] == [9.0, 1.0, 3.0]
    assert line.verdict == "missed by 25%"
    assert line.cells() == ("c", "w", "3.000 s", "2.000 s", "1.50x", "<=1.2", "missed by 25%")


def test_the_report_ends_with_what_was_missed_and_wrong() -> None:
    made, out = report()
    made.value("upsert", "bytes", "bytes", 3e6, 2e6, target=1.1)
    made.value("upsert", "objects", "objects", 4, target=4)
    made.value("upsert", "no target", "requests", 7)
    made.check("read", [])
    made.check("load", ["row count: 1, expected 2"])
    made.end()
    lines = out.getvalue().splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "case what value floor ratio target verdict",
        "upsert bytes 3.000 MB 2.000 MB 1.50x <=1.1 missed by 36%",
        "upsert objects 4 <=4 met",
    ]
    assert lines[4:] == [
        "1 of 2 targets met",
        "MISSED upsert: bytes: 1.50x, target <=1.1, missed by 36%",
        "WRONG load: row count: 1, expected 2",
    ]
