"""Windows of ingest on Spark: the same readers in tasks over blocks, one job each. No row passes through the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from lakemerge.ingest.packing import Done, Job, Task, run_task
from lakemerge.ingest.runner import Engine
from lakemerge.spark.jobs import map_evenly, parallelism
from lakemerge.spark.writer import load_on_spark

__all__ = ["engine_on"]


def engine_on(spark: SparkSession) -> Engine:
    return Engine(partial(_run, spark), partial(load_on_spark, spark), partial(parallelism, spark))


def _run(spark: SparkSession, job: Job, tasks: Sequence[Task]) -> list[Done]:
    sizes = [max(1, task.bytes) for task in tasks]
    return map_evenly(spark, partial(run_task, job), tasks, sizes=sizes, target_bytes=max(sizes, default=1))
