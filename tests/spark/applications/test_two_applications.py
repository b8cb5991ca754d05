"""Two Spark applications write and compact one table at once; afterwards every acknowledged record is there once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakemerge import LakeTable
from tests.property.batches import DDL, SETTINGS, batch_of, fold
from tests.spark.application import Application, Signals

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 4


@dataclass(frozen=True)
class Told:
    """What an application was told."""

    versions: dict[str, int]
    """Batch -> its version."""
    modes: list[str]
    compacted: int
    """Tiles."""


def write_and_compact(spark: SparkSession, path: str, application: int, signals: Signals) -> Told:
    """Each round both applications upsert and then compact. They begin the upserts together, in every other round also
    the compactions; in the rest one compacts while the other may still write."""
    table = LakeTable.open(path, settings=SETTINGS, spark=spark)
    versions, modes, compacted = {}, [], 0

    def meet(step: str) -> None:
        signals.set(f"{application} {step}")
        signals.wait(f"{1 - application} {step}")

    for number in range(ROUNDS):
        name = f"{application}.{number}"
        frame = spark.createDataFrame(batch_of(application, number)).repartition(2)
        meet(f"writes {number}")
        result = table.upsert(frame, info={"batch": name})
        versions[name] = result.version
        modes.append(result.mode)
        if number % 2:
            meet(f"compacts {number}")
        compacted += table.compact(minor=application == 1).file_slices
    return Told(versions, modes, compacted)


def test_two_applications_on_one_table(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    LakeTable.create(path, DDL, key=["k"], ordering=["o"], buckets=2)
    signals = Signals(tmp_path / "signals")
    signals.folder.mkdir()
    first, second = (Application(tmp_path / str(number), master="local[1]") for number in (0, 1))
    with first, second:
        first.start(write_and_compact, path, 0, signals)
        second.start(write_and_compact, path, 1, signals)
        told: list[Told] = [first.result(), second.result()]
    table = LakeTable.open(path)
    versions = told[0].versions | told[1].versions
    assert versions.keys() == {f"{application}.{number}" for application in (0, 1) for number in range(ROUNDS)}
    assert len({*versions.values()}) == len(versions), "a version of its own for each"
    assert {e.info["batch"]: e.version for e in table.history() if "batch" in e.info} == versions
    modes = told[0].modes + told[1].modes
    assert modes.count("load") == 1, "one was first; the other's load became an append"
    assert sum(part.compacted for part in told)
    expected = fold(sorted(versions, key=versions.__getitem__))
    for _ in range(2):  # with what logs are left, then without
        assert sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()) == expected
        table.compact()
    assert not table.opened.view.log_commits
