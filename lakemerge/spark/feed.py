"""The change feed on Spark: tasks compute its units, in order."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakemerge.feed.changes import REMEDY, feed_plan
from lakemerge.feed.difference import FeedShape, unit_batches
from lakemerge.feed.planner import Overtaken, unless_overtaken
from lakemerge.feed.units import FeedUnit
from lakemerge.format.feed_offset import Offset
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.schema.schema import to_ddl
from lakemerge.spark.sessions import prepare_workers
from lakemerge.spark.transport.jobs import limited, parallelism
from lakemerge.spark.transport.portable import carried
from lakemerge.spark_errors import carrying

__all__ = ["changes_dataframe", "in_tasks"]


def changes_dataframe(
    spark: SparkSession, handle: Handle, until: TableView, since: int, *, net: bool, before_images: bool
) -> DataFrame:
    """See :meth:`lakemerge.LakeTable.changes_df`."""
    prepare_workers(spark)
    shape, units = feed_plan(handle, until, since, net=net, before_images=before_images, spark_names=True)
    start = Offset(since + 1)
    with unless_overtaken(handle, start, until.snapshot, REMEDY):
        planned = list(units)
    tasks = in_tasks(planned, handle.settings.target_task_bytes, at_least=parallelism(spark))
    overtaken = Overtaken(handle, start, None, REMEDY)
    given = [carried((shape, task, overtaken)) for task in tasks]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                told, mine, check = pickle.loads(given[number])  # noqa: S301 - our own driver's bytes
                with carrying(), check.checked():
                    for unit in mine:
                        yield from unit_batches(unit, told)

    count = max(1, len(tasks))
    return spark.range(0, len(tasks), 1, count).mapInArrow(limited(run), to_ddl(_nullable(shape)))


def _nullable(shape: FeedShape) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in shape.schema])


def in_tasks(units: Sequence[FeedUnit], target_bytes: int, *, at_least: int) -> list[list[FeedUnit]]:
    """The units in groups of about even size, in their order. So who reads the tasks' rows one after the other sees the
    commits in order."""
    total = sum(unit.size_bytes for unit in units)
    count = min(len(units), max(at_least, -(-total // target_bytes)))
    tasks: list[list[FeedUnit]] = []
    done = 0
    for place, unit in enumerate(units):
        left = len(units) - place
        if not tasks or (done * count >= total * len(tasks) and len(tasks) < count) or left <= count - len(tasks):
            tasks.append([])
        tasks[-1].append(unit)
        done += unit.size_bytes
    return tasks
