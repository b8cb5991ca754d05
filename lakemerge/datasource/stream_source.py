"""``spark.read`` and ``spark.readStream`` of the change feed.

The planner of a stream runs in one Python process beside the driver. A task gets its work in its partition.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lakemerge.datasource.feed_options import FeedOptions
from lakemerge.datasource.read_limits import (
    IS_LIMITED,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from lakemerge.errors import InputError, TableReplacedError
from lakemerge.feed.changes import REMEDY, check_free_names, feed_plan
from lakemerge.feed.difference import CHANGE_TYPE, CHANGE_TYPES, TIMESTAMP, TOLD, VERSION, FeedShape, unit_batches
from lakemerge.feed.fixed_columns import FixedColumns
from lakemerge.feed.planner import Limits, Overtaken, Planner, check_not_overtaken, unless_overtaken
from lakemerge.feed.units import FeedUnit
from lakemerge.format.feed_offset import Offset
from lakemerge.spark.feed import in_tasks
from lakemerge.spark.transport.portable import carried
from lakemerge.spark.writer import frame_schema
from lakemerge.spark_errors import carrying
from lakemerge.table.open_table import OpenTable
from mergers import RowKind

__all__ = ["FeedReader", "FeedStreamReader", "RowsShown", "batch_plan", "stream_schema"]

_BATCH_ROWS = 64 * 1024
_TASK_BYTES = 4 * 2**20
"""How many bytes of changed records a task gets."""
_LEAST_TASKS = 4
_REMEDY = (
    "Start the query anew with a new checkpoint, from the present rows (without startingVersion) into an empty copy. A "
    "consumer (option consumer) holds back vacuum for what it has yet to read"
)


def stream_schema(table: OpenTable) -> pa.Schema:
    """The columns of a stream of the table's changes: the table's present columns, and those of the feed."""
    check_free_names(table.view.config, spark_names=True)
    told = TOLD.set(0, pa.field(CHANGE_TYPE, pa.string()))
    return pa.schema([*(field.with_nullable(True) for field in table.schema), *told])


@dataclass(frozen=True, slots=True)
class RowsShown:
    """A stream without a column for the kind of a change: of each change, the row after it."""

    skip_deletes: bool

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch of changes without before images.

        :raises InputError: a row was deleted, and deletes are not skipped.
        """
        deleted = pc.equal(batch.column(CHANGE_TYPE), CHANGE_TYPES[RowKind.DELETE])
        if not pc.any(deleted).as_py():
            return batch
        if not self.skip_deletes:
            version = batch.column(VERSION)[pc.index(deleted, True).as_py()].as_py()
            raise InputError(
                f"version {version} deleted rows, and a stream of the table's columns cannot show that: read the table "
                "`NAME$changes` or spark.readStream.changes(NAME), which have a column for the kind of a change, or "
                "set option skipDeletes to true"
            )
        return batch.filter(pc.invert(deleted))


class _Partition(InputPartition):
    def __init__(
        self,
        shape: FeedShape,
        units: Sequence[FeedUnit],
        names: Sequence[str],
        tip_check: Any,
        rows: RowsShown | None = None,
    ) -> None:
        super().__init__(None)
        self.sent = carried((shape, list(units), list(names), tip_check, rows))


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition on an executor."""
    if not isinstance(partition, _Partition):
        return
    shape, units, names, overtaken, rows = pickle.loads(partition.sent)  # noqa: S301 - our own driver's bytes
    with carrying(), overtaken.checked():
        for unit in units:
            for batch in unit_batches(unit, shape):
                told = (batch if rows is None else rows.of(batch)).select(names)
                yield from (told.slice(at, _BATCH_ROWS) for at in range(0, told.num_rows, _BATCH_ROWS))


class FeedReader(DataSourceReader):
    """A batch of changes."""

    def __init__(self, table: OpenTable, schema: StructType, options: FeedOptions) -> None:
        self._table = table
        self._options = options
        self._names = list(schema.names)

    @carrying()
    def partitions(self) -> Sequence[InputPartition]:
        table, options = self._table, self._options
        shape, units = batch_plan(table, options)
        known = {name.lower(): name for name in shape.schema.names}
        if unknown := [name for name in self._names if name.lower() not in known]:
            raise InputError(f"the changes have no column(s) {', '.join(unknown)}; they have {', '.join(known)}")
        names = [known[name.lower()] for name in self._names]
        start = Offset(min(options.since(table), table.version) + 1)
        with unless_overtaken(table.handle, start, table.view.snapshot, REMEDY):
            planned = list(units)
        check = Overtaken(table.handle, start, None, REMEDY)
        tasks = in_tasks(planned, _TASK_BYTES, at_least=_LEAST_TASKS)
        # If this list is empty, Spark runs one task without a partition.
        return [_Partition(shape, task, names, check) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


def batch_plan(table: OpenTable, options: FeedOptions) -> tuple[FeedShape, Iterator[FeedUnit]]:
    """The shape of a batch of changes, and its units."""
    until = options.until(table)
    view = table.view if until is None else table.handle.view_at(until, of=table.view.snapshot)
    since = min(options.since(table), view.version)
    net, images = options.net, options.before_images
    return feed_plan(table.handle, view, since, net=net, before_images=images, spark_names=True)


class FeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of changes."""

    def __init__(
        self, table: OpenTable, schema: StructType, options: FeedOptions, rows: RowsShown | None = None
    ) -> None:
        """
        :param rows: whether the stream has no column for the kind of a change.
        """
        if not IS_LIMITED and options.limits != Limits():
            raise InputError("options maxBytesPerTrigger and maxVersionsPerTrigger need Spark 4.2: leave them out")
        asked = frame_schema(schema)
        told = (CHANGE_TYPE, VERSION, TIMESTAMP)
        self._columns = FixedColumns.of(pa.schema([field for field in asked if field.name not in told]))
        self._names = list(asked.names)
        self._table = table
        self._options = options
        before_images = options.before_images and rows is None
        self._shape = FeedShape(self._columns, before_images=before_images, spark_names=True)
        self._rows = rows
        self._planner = Planner(table.handle, table.view.snapshot.metadata.id)
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Nothing is sent to tasks."""
        return {}

    @carrying()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._told(self._options.begin(self._table))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limits = self._options.limits
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        # Spark has no limit by versions. The kind of limit that it passes back only says whether our limits apply.
        return ReadAllAvailable() if limits.max_versions is None else ReadMaxFiles(limits.max_versions)

    @carrying()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Spark 4.1 gives no arguments."""
        if start is None:
            return self._told(max(Offset(self._until() + 1), self._options.begin(self._table)))
        begin, until = self._known(start), self._until()
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        with self._unless_overtaken(begin):
            return self._told(self._planner.next_offset(begin, until, limits))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._told(Offset(self._until() + 1))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._table.version

    @carrying()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = self._known(start)
        with self._unless_overtaken(begin):
            units = self._planner.units(begin, Offset.of(end))
        for unit in units:
            self._check(unit)
        check = Overtaken(self._table.handle, begin, None, _REMEDY)
        tasks = in_tasks(units, _TASK_BYTES, at_least=_LEAST_TASKS)
        return [_Partition(self._shape, task, self._names, check, self._rows) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    @carrying()
    def commit(self, end: dict[str, Any]) -> None:
        if self._options.consumer is not None:
            consumers, done = self._table.consumers, Offset.of(end)
            # A query that repeats a batch is behind the position that it has stored before.
            if done > consumers.position(self._options.consumer):
                consumers.move(self._options.consumer, done)

    def _check(self, unit: FeedUnit) -> None:
        for side in (unit.before, unit.after):
            if side.file_slices:
                self._columns.check(side.spec.config.schema, unit.version, stop_at_new=self._options.stop_at_schema)

    def _unless_overtaken(self, begin: Offset) -> AbstractContextManager[None]:
        return unless_overtaken(self._table.handle, begin, self._table.view.snapshot, _REMEDY)

    def _until(self) -> int:
        ends = [self._table.version if self._target is None else self._target]
        last = self._options.until(self._table)
        return min(ends if last is None else [*ends, last])

    def _known(self, start: dict[str, Any]) -> Offset:
        """Where a batch begins. Raises an error if the table was made anew, or if a vacuum deleted what is needed."""
        offset, tip = Offset.of(start), self._table.view.snapshot
        if start.get("table") not in (None, tip.metadata.id):
            raise TableReplacedError(
                f"the checkpoint is of another table than there is at {self._table.url} now; start the query with "
                "a new checkpoint"
            )
        check_not_overtaken(offset, tip, _REMEDY)
        return offset

    def _told(self, offset: Offset) -> dict[str, Any]:
        return {**offset.to_json(), "table": self._table.view.snapshot.metadata.id}
