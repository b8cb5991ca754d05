"""Spark's workers search little for garbage where this library works in them."""

from __future__ import annotations

import gc

from pyspark.sql import SparkSession

from lakemerge.spark.transport.jobs import map_in_tasks


def searched(_: int) -> int:
    """How many objects a search passes over, in a task."""
    return len(gc.get_objects())


def test_a_task_does_not_search_what_was_there_before_it(spark: SparkSession) -> None:
    found = [map_in_tasks(spark, searched, [0, 1], sizes=[1, 1], target_bytes=1) for _ in range(2)]
    assert max(map(max, found)) < 1_000
