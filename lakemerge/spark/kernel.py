"""Reads dirty file slices through the merge kernel, in Python tasks of even size. A task has parts of large file
slices, or several small ones.

Spark passes no filter on to the input of ``mapInArrow``. So if file slices are of several partitions, a scalar function
gives their rows, from Spark 4.1 on. Each call returns a list of rows, and the partition's values stand beside the call.
So a filter on partition columns anywhere in a query leaves out calls, just as ``to_df(filter=...)`` leaves out file
slices.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from lakemerge._internal.collector import collector_paused
from lakemerge.errors import TableError
from lakemerge.layout.view import FileSlice
from lakemerge.read.filter.filter import Filter
from lakemerge.read.merge import MergeSpec
from lakemerge.read.scan import scan_part
from lakemerge.read.splits import Part
from lakemerge.schema.schema import to_ddl, type_ddl
from lakemerge.spark.installed import can_write
from lakemerge.spark.names import quoted
from lakemerge.spark.sessions import prepare_workers
from lakemerge.spark.transport.jobs import even_tasks, limited, parallelism
from lakemerge.spark.transport.local import local_frame
from lakemerge.spark.transport.portable import portable
from lakemerge.spark.transport.sending import pickled
from lakemerge.spark_errors import carrying
from mergers.portions import bounded_batches, is_large, portion_bytes

__all__ = ["scan_merging"]

_BATCH_ROWS = 64 * 1024
_TASKS_TOGETHER = 16
_PARTS_TOGETHER = 64
"""The parts of so many tasks are pickled together, which takes half the time. They are few, because each task unpickles
all of them."""
_LIST_ROWS = 4096
_LIST_BYTES = 4 * 2**20
"""About the size of a list of rows. Spark copies each list as a whole."""
_PARQUET_TO_ARROW = 4
_SPARE_LISTS = 32
"""So many lists of a part are planned beyond those that its metadata asks for. They are empty, unless the rows are much
larger than the metadata says."""


def scan_merging(
    spark: SparkSession,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
    condition: Filter | None,
) -> DataFrame:
    """The merged rows of the file slices that meet the condition.

    :param columns: at least one.
    """
    prepare_workers(spark)
    with collector_paused():
        tasks = even_tasks(file_slices, spec.settings, at_least=parallelism(spark))
    if len({file_slice.bucket_id.partition for file_slice in file_slices}) > 1 and can_write(spark.version):
        return _by_partition(spark, spec, tasks, columns, condition)
    return _by_task(spark, _Reading.of(spec, columns, condition), tasks)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a task reads its parts."""

    spec: MergeSpec
    condition: Filter | None
    schema: pa.Schema
    """The schema of the columns that are read."""

    @classmethod
    def of(cls, spec: MergeSpec, columns: Sequence[str], condition: Filter | None) -> _Reading:
        schema = pa.schema([spec.config.schema.field(name).with_nullable(True) for name in columns])
        return cls(portable(spec), condition, schema)

    def tables(self, part: Part) -> Iterator[pa.Table]:
        with carrying():
            for table in scan_part(self.spec, part, self.schema.names, self.condition):
                yield table.cast(self.schema)


def _by_task(spark: SparkSession, reading: _Reading, tasks: Sequence[list[Part]]) -> DataFrame:
    together = min(_TASKS_TOGETHER, max(1, _PARTS_TOGETHER * len(tasks) // sum(map(len, tasks))))
    with collector_paused():
        given = [pickled(list(tasks[start : start + together])) for start in range(0, len(tasks), together)]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                parts = pickle.loads(given[number // together])[number % together]  # noqa: S301 - our own bytes
                for part in parts:
                    for table in reading.tables(part):
                        yield from bounded_batches(table, rows=_BATCH_ROWS)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(limited(run), to_ddl(reading.schema))


def _by_partition(
    spark: SparkSession, spec: MergeSpec, tasks: Sequence[list[Part]], columns: Sequence[str], condition: Filter | None
) -> DataFrame:
    """Rows from calls of the function. A call has the number of a part, counted over all tasks, the number of the list,
    and how many lists the part has."""
    from pyspark.sql.pandas.functions import arrow_udf  # from Spark 4.1 on

    partition_by = {name: f"p{number}" for number, name in enumerate(spec.config.partition_by)}
    stored = [name for name in columns if name not in partition_by] or [spec.config.key[0]]
    reading = _Reading.of(spec, stored, condition)
    plain = {name: f"c{number}" for number, name in enumerate(stored)}
    row = pa.struct([field.with_name(plain[field.name]) for field in reading.schema])
    parts, together = [part for task in tasks for part in task], _PARTS_TOGETHER
    with collector_paused():
        given = [pickled(parts[start : start + together]) for start in range(0, len(parts), together)]

    def run(calls: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        lists = _Lists(given, together, reading, row)
        for call in calls:
            for part, number, count in zip(*(argument.to_pylist() for argument in call), strict=True):
                yield lists.get(part, number, is_last=number == count)

    rows = cast("Any", arrow_udf)(run, type_ddl(pa.list_(row)))
    values = [
        f"CAST(`call`.`partition`[{number}] AS {type_ddl(spec.config.schema.field(name).type)}) AS {partition_by[name]}"
        for number, name in enumerate(partition_by)
    ]
    task = functions.get(_calls(spark, tasks).scalar(), functions.col("id").cast("int"))
    calls = spark.range(0, len(tasks), 1, len(tasks)).select(functions.explode(task).alias("call"))
    # Quoted, since some sessions reserve such words.
    lists = "`call`.`lists`"
    calls = calls.selectExpr(*values, "`call`.`part`", lists, f"explode(sequence(1, {lists})) AS `number`")
    # In one step: if the list were a column, Spark would call the function once more to see whether it is empty.
    found = calls.select(*partition_by.values(), functions.inline(rows("part", "number", "lists")))
    names = plain | partition_by
    return found.selectExpr(*(f"{names[name]} AS {quoted(name)}" for name in columns))


def _calls(spark: SparkSession, tasks: Sequence[list[Part]]) -> DataFrame:
    """One row with the arguments of the calls, by task."""
    planned, numbered = [], 0
    for task in tasks:
        entries = [
            {"part": number, "lists": _lists_of(part), "partition": list(part.file_slice.bucket_id.partition)}
            for number, part in enumerate(task, numbered)
        ]
        planned.append(entries)
        numbered += len(task)
    entry = {"part": pa.int32(), "lists": pa.int32(), "partition": pa.list_(pa.string())}
    kind = pa.list_(pa.list_(pa.struct(list(entry.items()))))
    return local_frame(spark, pa.table({"tasks": pa.array([planned], kind)}))


def _most_rows(file_slice: FileSlice) -> int:
    return file_slice.stored_rows + sum(block.rows for block in file_slice.blocks)


def _list_rows(file_slice: FileSlice) -> int:
    """How many rows each list of a file slice has by its metadata."""
    row_bytes = (file_slice.file_bytes * _PARQUET_TO_ARROW + file_slice.log_bytes) / max(1, _most_rows(file_slice))
    return max(1, min(_LIST_ROWS, int(_LIST_BYTES / max(1, row_bytes))))


def _lists_of(part: Part) -> int:
    """How many lists the part's rows need at most. Some lists may be empty. Parts of a file slice are about even."""
    rows = _most_rows(part.file_slice)
    share = rows if part.count == 1 else min(rows, 2 * rows // part.count)
    expected = max(1, -(-share // _list_rows(part.file_slice)))
    return max(expected, min(share, expected + _SPARE_LISTS))


class _Lists:
    """Rows of parts, list by list, for calls in the order of parts and lists."""

    def __init__(self, given: Sequence[bytes], together: int, reading: _Reading, row: pa.StructType) -> None:
        """
        :param given: the pickled parts, in groups of ``together``.
        """
        self._given = given
        self._together = together
        self._reading = reading
        self._row = row
        self._kind = pa.list_(pa.field("element", row))
        self._group: tuple[int, Sequence[Part]] = (-1, ())
        self._part, self._taken = -1, 0
        """The part that is being read, and how many of its lists were taken."""
        self._rows = _Rows(iter(()), 1)
        self._empty = pa.array([[]], self._kind)

    def get(self, number: int, place: int, *, is_last: bool) -> pa.Array:
        """
        :param number: the number of the part.
        :param place: the number of the list, from 1.
        :param is_last: whether it is the part's last list, which has all rows that are left.
        """
        if number != self._part or place <= self._taken:
            part = self._numbered(number)
            self._rows = _Rows(self._reading.tables(part), _list_rows(part.file_slice))
            self._part, self._taken = number, 0
        # A call that Spark left out has its rows, too.
        taken = [self._rows.take(all_left=is_last and at == place) for at in range(self._taken + 1, place + 1)]
        self._taken = place
        return self._as_list(taken[-1])

    def _numbered(self, number: int) -> Part:
        at = number // self._together
        if self._group[0] != at:
            self._group = (at, pickle.loads(self._given[at]))  # noqa: S301 - our own driver's bytes
        return self._group[1][number % self._together]

    def _as_list(self, batches: list[pa.RecordBatch]) -> pa.Array:
        if not batches:
            return self._empty
        table = pa.Table.from_batches(batches)
        if table.num_rows > 1 and is_large(table):
            raise TableError(
                f"a list of {table.num_rows} rows for Spark has {table.nbytes:,} bytes, because the rows are much "
                "larger than their files say; read one partition at a time, with a filter on the partition columns"
            )
        columns = [pa.concat_arrays(column.chunks) for column in table.columns]
        rows = pa.StructArray.from_arrays(columns, fields=list(self._row))
        return pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows, type=self._kind)


class _Rows:
    """A part's rows, from which lists are taken. A list has some number of rows, or fewer if they are many bytes; what
    it lacks comes with the next ones."""

    def __init__(self, tables: Iterable[pa.Table], size: int) -> None:
        self._size = size
        self._batches = (batch for table in tables for batch in bounded_batches(table, rows=size) if batch.num_rows)
        self._next: pa.RecordBatch | None = next(self._batches, None)
        self._due = 0
        """How many rows the lists so far would have and do not have."""

    def take(self, *, all_left: bool) -> list[pa.RecordBatch]:
        """The rows of the next list."""
        self._due += self._size
        taken: list[pa.RecordBatch] = []
        room = portion_bytes()
        while self._next is not None and (all_left or self._due > 0):
            if taken and not all_left and is_large(self._next, than=room):
                break
            batch = self._next if all_left else self._next.slice(0, self._due)
            rest = self._next.slice(batch.num_rows)
            self._next = rest if rest.num_rows else next(self._batches, None)
            taken.append(batch)
            self._due -= batch.num_rows
            room -= batch.nbytes
        return taken
