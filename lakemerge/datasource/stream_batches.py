"""What a micro-batch of a query is, beyond its number.

Spark's number tells a repeated batch only as long as one query has the checkpoint. Two queries that share a checkpoint,
or have copies of one, read different rows under one number. So each commit keeps, with the number, a mark of what was
read. A batch whose number is in the table is a repeated one only if its marks are the same.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lakemerge.commits.provenance import Along
from lakemerge.delta import Snapshot, Txn
from lakemerge.errors import InputError
from lakemerge.handle import Handle
from lakemerge.layout.xxhash64 import hash_columns, is_hashable
from lakemerge.spark.installed import check_writes
from lakemerge.spark.sessions import jvm_session
from lakemerge.write.start import OwnTxn

__all__ = ["QUERY_ID", "OneBatch", "RowSum", "current_batch", "stream_app"]

QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark keeps the id of a query, for its threads and tasks."""
_OFFSETS = "offsets"
_HASH_BITS = 43
_NUMBERS = 2**20
"""A mark holds the number of its batch modulo this, and then the hash of what was read."""


def stream_app(name: str) -> str:
    """The application under which the query with this id writes."""
    return f"lakemerge.stream.{name}"


@dataclass(frozen=True, slots=True)
class OneBatch:
    """A micro-batch of a query, as the query that runs it knows it."""

    app: str
    """The application under which it is committed."""
    number: int
    query: str
    """The query's id, or the application that the caller gave."""
    checkpoint: str | None
    """``None``: not known."""
    marks: Mapping[str, str]
    """Texts by what they tell: where the batch ends in its sources, which files it has, which rows. Only what is known
    is here."""
    begin: str | None = None
    """Where the batch begins in its sources, as the mark of the batch before tells where that one ended."""
    hint: str = ""
    """Why else the batch may have other rows than the one that the table has of its number, and what helps then."""

    @property
    def txn(self) -> OwnTxn:
        """The transaction of the batch's commit."""
        now = Handle.now_ms()
        actions = (Txn(self._mark_app(what), _mark(self.number, text), now) for what, text in self.marks.items())
        return OwnTxn(self.app, self.number, Along(tuple(actions), (self,)))

    def check(self, tip: Snapshot) -> None:
        """Check that the batch goes on where the table's last one ended; this is a condition of its commit.

        :raises InputError: it does not.
        """
        if self.begin is None or self.number == 0:
            return
        before = tip.txns.get(self.app)
        if before is not None and before.version == self.number - 1:
            self._compare(
                tip, self.number - 1, {_OFFSETS: self.begin}, f"begins elsewhere than batch {before.version} ended"
            )

    def check_repeated(self, tip: Snapshot) -> None:
        """Check a batch that was not written because the table has its number or a later one already.

        :raises InputError: it is not the batch that the table has. Spark repeats only its last batch.
        """
        done = tip.txns.get(self.app)
        if done is None:
            return  # it expired with a commit in between, or the table was replaced since
        landed = done.version
        if landed > self.number:
            raise self._refused(landed, f"comes after batch {landed} was written")
        self._compare(tip, landed, self.marks, f"has other rows than batch {landed} that is in the table")

    def _compare(self, tip: Snapshot, number: int, marks: Mapping[str, str], problem: str) -> None:
        for what, text in marks.items():
            there, mine = tip.txns.get(self._mark_app(what)), _mark(number, text)
            # A mark of another batch is left from a writer that knew more than the last one.
            comparable = there is not None and there.version >> _HASH_BITS == mine >> _HASH_BITS
            if there is not None and comparable and there.version != mine:
                raise self._refused(number, problem, self.hint)

    def _mark_app(self, what: str) -> str:
        return f"{self.app if self.app.startswith('lakemerge.') else stream_app(self.app)}.{what}"

    def _refused(self, landed: int, problem: str, hint: str = "") -> InputError:
        place = "its checkpoint" if self.checkpoint is None else f"the checkpoint {self.checkpoint}"
        return InputError(
            f"batch {self.number} of {self.app!r} {problem}: query {self.query} shares {place} with another query, or "
            "that is a copy or an earlier state of the checkpoint with which the table was written. Nothing of this "
            "batch was written. Let one query alone go on with that checkpoint; start the other one with a new "
            f"checkpoint, from the place in the source where it has to go on{hint}",
            app=self.app,
            batch=self.number,
            landed=landed,
            checkpoint=self.checkpoint,
        )


def current_batch(frame: DataFrame, number: int, app: str | None) -> OneBatch | None:
    """The batch that the calling thread's query runs. ``None``: the query's id is not known, and no ``app`` is given.

    :param app: the caller's own application.
    """
    check_writes("an upsert of a Spark DataFrame")
    query_id = _query_id(frame)
    if query_id is None and app is None:
        return None
    name = app or stream_app(str(query_id))
    running = None if query_id is None else _running(frame, query_id)
    plain = OneBatch(name, number, query_id or str(app), None, {})
    if running is None:
        return plain
    try:
        marks = {_OFFSETS: _offsets(running.availableOffsets())}
        if files := _files(running.lastExecution().logical()):
            # An offset of a stream of files is a place in a list that the checkpoint holds, so it says little.
            marks["files"] = files
        begin = _offsets(running.committedOffsets())
        return OneBatch(name, number, plain.query, str(running.resolvedCheckpointRoot()), marks, begin)
    except _py4j_error():  # another version of Spark
        return plain


class RowSum:
    """Counts the rows of batches that pass by, and adds up their hashes. So neither the order of rows nor their way
    into tasks matters. Floating-point and nested values are left out: they may differ when Spark computes a batch
    again, because its shuffles keep no order."""

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [column for column in batch.columns if is_hashable(column.type)]
            self.rows += batch.num_rows
            if columns and batch.num_rows:
                # Hashes are 64 bits, and so is their sum.
                self.total += int(hash_columns(columns).view(np.uint64).sum(dtype=np.uint64))
            yield batch

    @staticmethod
    def mark(sums: Iterable[tuple[int, int]]) -> Mapping[str, str]:
        """The mark of a batch, from the counts and totals of its tasks."""
        counts, totals = zip(*sums, strict=True)
        return {"rows": f"{sum(counts)} rows, {sum(totals) % 2**64}"}


def _query_id(frame: DataFrame) -> str | None:
    spark = frame.sparkSession
    if jvm_session(spark) is None:
        return None
    try:
        found = spark.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:
        return None
    return str(found) if found else None


def _running(frame: DataFrame, query_id: str) -> Any:
    """The query in the JVM. ``None``: it cannot be reached."""
    spark: Any = frame.sparkSession
    try:
        uuid = spark.sparkContext._jvm.java.util.UUID.fromString(query_id)
        return jvm_session(spark).sharedState().activeStreamingQueries().get(uuid)
    except _py4j_error():
        return None


def _offsets(progress: Any) -> str:
    """Offsets as Spark logs them. The order of sources is not the same in each run."""
    return "\n".join(sorted(str(progress.values().mkString("\n")).split("\n")))


def _files(plan: Any) -> str:
    """The files that a batch reads from streams of files. Those of tables that are joined to it are not told."""
    leaves = plan.collectLeaves()
    found = []
    for place in range(leaves.size()):
        leaf = leaves.apply(place)
        if _is(leaf, "LogicalRelation") and leaf.isStreaming() and _is(leaf.relation(), "HadoopFsRelation"):
            found.append(str(leaf.relation().location().rootPaths().mkString("\n")))
    return "\n".join(found)


def _is(thing: Any, name: str) -> bool:
    return str(thing.getClass().getSimpleName()) == name


def _py4j_error() -> type[Exception]:
    found: type[Exception] = importlib.import_module("py4j.protocol").Py4JError
    return found


def _mark(number: int, text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (number % _NUMBERS) << _HASH_BITS | int.from_bytes(digest, "big") >> (64 - _HASH_BITS)
