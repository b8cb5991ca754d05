"""Runs functions on Spark: one Python task for each bin of items. Results and errors come back as values."""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import LakeMergeError
from lakemerge.layout.view import FileSlice
from lakemerge.options import Settings
from lakemerge.read.splits import Part, split_file_slices
from lakemerge.spark.sessions import jvm_session, prepare_workers
from lakemerge.spark.transport.portable import carried, portable

__all__ = [
    "bins",
    "collect_results",
    "even_tasks",
    "in_limit",
    "limited",
    "map_evenly",
    "map_in_tasks",
    "parallelism",
    "result_batch",
    "stays_on_driver",
]

RESULT_DDL = "result BINARY"
_LIMIT = "spark.sql.execution.arrow.maxRecordsPerOutputBatch"

T = TypeVar("T")
R = TypeVar("R")


def map_evenly(
    spark: SparkSession,
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    sizes: Sequence[int],
    settings: Settings,
) -> list[R]:
    """The same as :func:`map_in_tasks`, but for little work on threads of the driver."""
    if stays_on_driver(spark, sizes, settings):
        with thread_pool(settings.threads) as pool:
            return list(pool.map(function, items))
    return map_in_tasks(spark, function, items, sizes=sizes, target_bytes=settings.target_task_bytes)


def stays_on_driver(spark: SparkSession, sizes: Sequence[int], settings: Settings) -> bool:
    """Whether work is so little (``settings.driver_bytes``) that a job would take longer. A client of Spark Connect
    leaves all to the cluster: it may be far from the table."""
    return sum(sizes) <= settings.driver_bytes and jvm_session(spark) is not None


def map_in_tasks(
    spark: SparkSession, function: Callable[[T], R], items: Sequence[T], *, sizes: Sequence[int], target_bytes: int
) -> list[R]:
    """Call ``function`` for every item, in even tasks of about ``target_bytes``. Results are in the order of the items.

    A :class:`LakeMergeError` that a task raises is raised here unchanged. For errors of the workers' Python see
    :func:`lakemerge.spark.sessions.prepare_workers`.
    """
    prepare_workers(spark)
    tasks = bins(sizes, target_bytes=target_bytes, at_least=parallelism(spark))
    work = portable(function)
    given = [carried([(index, items[index]) for index in task]) for task in tasks]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for index, item in pickle.loads(given[number]):  # noqa: S301 - our own driver's bytes
                    yield result_batch(partial(_numbered, work, item, index))

    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, RESULT_DDL)
    results = dict(collect_results(frame))
    return [results[index] for index in range(len(items))]


def _numbered(function: Callable[[T], R], item: T, index: int) -> tuple[int, R]:
    return index, function(item)


def even_tasks(file_slices: Sequence[FileSlice], settings: Settings, *, at_least: int) -> list[list[Part]]:
    """Tasks of about ``settings.target_task_bytes``. A task reads parts of large file slices, or several small ones."""
    parts = split_file_slices(file_slices, settings.target_task_bytes)
    sizes = [part.stored_bytes for part in parts]
    groups = bins(sizes, target_bytes=settings.target_task_bytes, at_least=at_least)
    return [[parts[index] for index in group] for group in groups]


def bins(sizes: Sequence[int], *, target_bytes: int, at_least: int) -> list[list[int]]:
    """Indices of items in bins of even size, of about ``target_bytes`` each. If there are few bytes, there are
    ``at_least`` bins, or as many as items. The largest items are placed first, each into the emptiest bin."""
    count = min(len(sizes), max(at_least, -(-sum(sizes) // target_bytes)))
    filled: list[tuple[int, int]] = [(0, number) for number in range(count)]
    result: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size, number = heapq.heappop(filled)
        result[number].append(index)
        heapq.heappush(filled, (size + sizes[index], number))
    return result


def parallelism(spark: SparkSession) -> int:
    """How many tasks the cluster runs at a time: as many as the parts into which Spark splits a range."""
    if jvm_session(spark) is not None:
        return spark.sparkContext.defaultParallelism
    numbers = spark.range(2**20).select(functions.spark_partition_id().alias("number"))
    last = numbers.agg(functions.max("number")).collect()[0][0]
    return int(last) + 1


def limited(
    run: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``, whose batches :func:`in_limit` cuts."""
    return lambda batches: in_limit(run(batches))


def in_limit(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the rows, in batches that Spark does not cut. If the session limits the rows of a task's batches
    (``spark.sql.execution.arrow.maxRecordsPerOutputBatch``), Spark 4.2 gives rows of larger batches several times, and
    fails for batches without rows."""
    context = TaskContext.get()
    limit = int((None if context is None else context.getLocalProperty(_LIMIT)) or 0)
    for batch in batches:
        if limit <= 0:
            yield batch
            continue
        for start in range(0, batch.num_rows, limit):
            yield batch.slice(start, limit)


def result_batch(work: Callable[[], object]) -> pa.RecordBatch:
    """Do the work. Its result, or the :class:`LakeMergeError` that it raised, is returned as one row for the driver."""
    try:
        outcome: tuple[bool, object] = (True, work())
    except LakeMergeError as error:
        outcome = (False, error)
    return pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(outcome)], type=pa.binary())})


def collect_results(frame: DataFrame) -> list[Any]:
    """Run the job. Returns the results of :func:`result_batch` in the tasks' order. Raises the error of a task."""
    results = []
    # Collected as Arrow data. For collect() the JVM would pickle the pickled bytes again, which takes long.
    for outcome in frame.toArrow().column("result"):
        ok, value = pickle.loads(outcome.as_buffer())  # noqa: S301 - our own executors' bytes
        if not ok:
            raise value
        results.append(value)
    return results
