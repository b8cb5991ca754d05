"""``df.writeStream.format("lakemerge")``: each micro-batch is one upsert, exactly once.

Spark makes a writer to plan a batch, and sends it to the tasks. It makes another one, in another process, to commit the
tasks' messages. So each message has everything that the commit needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from compaction import maintain_after_write, make_room
from lakemerge.commits.provenance import Provenance
from lakemerge.datasource.feed_options import flag, word
from lakemerge.datasource.stream_batches import QUERY_ID, OneBatch, RowSum, stream_app
from lakemerge.delta import check_table_id
from lakemerge.errors import InputError
from lakemerge.layout.view import TableView
from lakemerge.results.writes import UpsertResult
from lakemerge.spark.writer import frame_schema, pack_rows
from lakemerge.spark_errors import carrying
from lakemerge.table.open_table import OpenTable
from lakemerge.write.discard import discard
from lakemerge.write.pack import Packed, PackSpec
from lakemerge.write.start import Write, WriteRequest
from lakemerge.write.upsert import finish, load_in_process
from mergers.wording import argument

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0, where nothing makes a writer of streams
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter  # type: ignore[assignment]

__all__ = ["StreamWriter"]

_LOAD_HERE_TASKS = 8
"""A first load that would make up to so many tasks is merged on the driver."""
_REPEATED = ("check", "skip")
_HINT = (
    ". If nothing else uses the checkpoint, the query itself gives other rows each time, as with uuid() or rand(): "
    "start it once with .option('repeatedBatch', 'skip'), which keeps the rows that are in the table"
)


class _Message(WriterCommitMessage):
    def __init__(self, task: int, packed: Packed, plan: _Plan, query_id: str | None, told: tuple[int, int]) -> None:
        self.task = task
        self.packed = packed
        self.plan = plan
        self.query_id = query_id
        self.told = told


class _Plan:
    """One batch's write, as its tasks know it."""

    def __init__(self, table: OpenTable, schema: StructType, options: Mapping[str, str]) -> None:
        write = Write.start(
            table.handle,
            table.view,
            frame_schema(schema),
            WriteRequest(kind_column=options.get("kindColumn"), merge_schema=flag(options, "mergeSchema")),
            estimated_bytes=None,
        )
        if isinstance(write, UpsertResult):
            raise AssertionError("a write without an application transaction is never done already")
        self.begin_version = table.view.version
        self.table_id = table.view.snapshot.metadata.id
        self.pack: PackSpec = write.pack
        self.provenance: Provenance = write.provenance
        self.started = write.started

    def discard(self) -> None:
        """Delete the files of a batch whose commit was not tried."""
        discard(self.pack.store, self.provenance.transaction, self.pack.name)


class StreamWriter(DataSourceStreamArrowWriter):
    """Packs on the executors, commits on the driver."""

    def __init__(self, table: OpenTable, schema: StructType, options: Mapping[str, str]) -> None:
        if "txnAppId" in options or "txnVersion" in options:
            raise InputError("a stream's batches have numbers of their own: give no txnAppId and txnVersion")
        self._handle = table.handle
        make_room(table)
        self._plan = _Plan(table, schema, options)
        self._checkpoint = options.get("checkpointLocation")
        self._trusts_numbers = word(options, "repeatedBatch", _REPEATED) == "skip"

    @carrying()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID)
        told = RowSum()
        task, packed = pack_rows(told.passing(iterator), self._plan.pack)
        return _Message(task, packed, self._plan, query_id, (told.rows, told.total))

    @carrying()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        told = sorted((m for m in messages if isinstance(m, _Message)), key=lambda message: message.task)
        packed = [message.packed for message in told]
        if not any(task.rows for task in packed):
            return  # an empty batch makes no version: if Spark repeats it, it is empty again
        plan, query_id = told[0].plan, told[0].query_id
        if not query_id:
            plan.discard()
            raise InputError(
                "Spark did not tell the id of the query, by which its batches are known; use "
                f"df.writeStream.foreachBatch(table.batch_writer({argument('app', '...')}))"
            )
        marks = RowSum.mark(message.told for message in told)
        batch = OneBatch(stream_app(query_id), batchId, query_id, self._checkpoint, marks, hint=_HINT)
        own = batch.txn
        try:
            snapshot = self._handle.log.snapshot(version=plan.begin_version)
            check_table_id(self._handle.store, plan.table_id, snapshot, since=plan.begin_version)
        except BaseException:
            plan.discard()
            raise
        begin = TableView(snapshot, plan.pack.config, self._handle.store, self._handle.decoded)
        provenance = replace(plan.provenance, app_txn=(own.app, own.number), along=own.along)
        write = Write(self._handle, begin, plan.pack.frame, plan.pack, provenance, plan.started)
        size = sum(file.size_bytes for task in packed for file in task.files)
        here = size <= _LOAD_HERE_TASKS * plan.pack.settings.target_task_bytes
        result = finish(write, packed, load_file_slices=load_in_process if here else None)
        # The commit's version is known. To look for it again could fail, and call a batch failed that has landed.
        tip = self._handle.landed.snapshot
        if result.mode == "repeated" or tip is None:
            tip = self._handle.log.snapshot()
        if result.mode == "repeated":
            (replace(batch, marks={}) if self._trusts_numbers else batch).check_repeated(tip)
        maintain_after_write(OpenTable.without_session(self._handle, tip))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Deletes nothing. Spark calls this in another process than :meth:`commit`, also if that raised or was killed.
        So it cannot know whether the commit may land. Vacuum deletes the files if it did not."""
