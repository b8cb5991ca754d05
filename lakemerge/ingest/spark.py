"""Windows of ingest on Spark. Each window is one job, whose tasks run the same readers. No row goes through the JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from lakemerge.ingest.packing import Task
from lakemerge.ingest.runner import Engine
from lakemerge.spark.transport.jobs import map_in_tasks, parallelism
from lakemerge.spark.writer import load_on_spark

__all__ = ["engine_on"]

R = TypeVar("R")


def engine_on(spark: SparkSession) -> Engine:
    return Engine(partial(_run, spark), partial(load_on_spark, spark), partial(parallelism, spark))


def _run(spark: SparkSession, function: Callable[[Task], R], tasks: Sequence[Task]) -> list[R]:
    sizes = [max(1, task.bytes) for task in tasks]
    return map_in_tasks(spark, function, tasks, sizes=sizes, target_bytes=max(sizes, default=1))
