"""Behaviour of stores that the world of property tests must not report as a defect."""

from __future__ import annotations

from pathlib import Path

from lakemerge.testing.faults import Fault, Lag
from tests.property.world import SMALL, Step, Work, World
from tests.unit.faults import open_over


def test_a_reader_whose_listing_lags_may_still_find_a_dropped_savepoint(tmp_path: Path) -> None:
    world = World(tmp_path / "t")
    write = Work("write", records=((1, 1, "+U"),))
    works = [write, write, write, Work("save", choice=2), write, Work("full"), Work("vacuum"), Work("drop")]
    for place, work in enumerate(works, start=1):
        world.play(Step(work, None, 1, False), place)
    saved = sorted(world.numbers, reverse=True).index(1)
    before = world.verified
    lags = Fault(action=Lag(3), method="list", at=1, after=True, lasting=True)
    table, store = open_over(world.path, lags, settings=SMALL)
    assert world.attempt(table, Work("read", choice=saved), "late", overtaken=False, troubled=True)
    assert store.injected["list"]
    assert world.verified > before
    clean, _ = open_over(world.path, settings=SMALL)
    assert not world.attempt(clean, Work("read", choice=saved), "after", overtaken=False, troubled=False)
