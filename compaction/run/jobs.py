"""Runs the jobs of a service: in tasks of Spark if there is a session and much to do, else on threads here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, TypeVar

from lakemerge._internal.pools import thread_pool
from lakemerge.handle import Handle
from mergers.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_jobs"]

J = TypeVar("J")
R = TypeVar("R")

_logger = logger(__name__)


def run_jobs(
    handle: Handle,
    work: Callable[[J], R],
    jobs: Sequence[J],
    *,
    sizes: Sequence[int],
    name: str,
    spark: SparkSession | None,
) -> list[R]:
    """Call ``work`` for each job. Returns the results in their order. If a job raises an error, it is raised once no
    job runs any more.

    :param sizes: how many bytes each job reads. Spark's tasks are made even by them.
    :param name: the name of the service, for the log.
    """
    settings, url = handle.settings, handle.store.url
    if spark is not None:
        from lakemerge.spark.transport.jobs import map_in_tasks, stays_on_driver

        if not stays_on_driver(spark, sizes, settings):
            return map_in_tasks(spark, work, jobs, sizes=sizes, target_bytes=settings.target_task_bytes)
    with thread_pool(settings.threads) as pool:
        running = [pool.submit(work, job) for job in jobs]
        for done, _ in enumerate(as_completed(running), start=1):
            _logger.info("%s of %s: %d of %d jobs", name, url, done, len(jobs))
        return [job.result() for job in running]
