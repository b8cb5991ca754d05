"""Executors come when there is work and go when there is none (``spark.dynamicAllocation.enabled``)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakemerge import LakeTable
from tests.clusters.life import NEWEST, look, newest_table, opened
from tests.clusters.settings import CONFIG
from tests.spark.application import Application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.serial, pytest.mark.cluster]

DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
}


def idle(spark: SparkSession) -> int:
    """Wait until all executors are gone."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + 120
    while left := len(tracker.getExecutorInfos()) - 1:
        assert time.monotonic() < deadline, "an executor stays"
        time.sleep(0.2)
    return left


def with_executors_that_go(spark: SparkSession, path: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"executors": [idle(spark)], "modes": newest_table(spark, path)}
    table = opened(spark, path, "native, premerged")
    kept = table.to_df()
    told["first"] = look(table)
    told["executors"].append(idle(spark))
    told["again"] = sorted(tuple(row) for row in kept.collect())
    table = opened(spark, path, "union, kernel")
    told["kernel"] = look(table)
    told["compacted"] = table.compact().file_slices
    told["clean"] = look(table)
    return told


def test_executors_that_come_and_go(master: str, tmp_path: Path) -> None:
    """A frame that was made before they went reads again when others came."""
    with Application(tmp_path / "spark", master=master, config=CONFIG | DYNAMIC) as application:
        told = application.run(with_executors_that_go, tmp_path / "t")
    assert told["executors"] == [0, 0]
    assert told["modes"] == ["load", "append", "append", "append"]
    assert told["first"] == told["again"] == told["kernel"] == told["clean"] == NEWEST
    assert told["compacted"] == 4
    assert LakeTable.check(tmp_path / "t").ok
