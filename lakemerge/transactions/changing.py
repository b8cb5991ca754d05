"""Updates and deletes of the rows that meet a condition, and merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from lakemerge.commits.provenance import Isolation
from lakemerge.errors import FilterError, FrameError
from lakemerge.format.names import KIND_COLUMN
from lakemerge.format.operations import Operation
from lakemerge.frames import as_reader, collected, is_spark_column, is_spark_frame
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.scan import scan
from lakemerge.results.writes import TransactionPlan, UpsertResult
from lakemerge.spark.installed import check_writes
from lakemerge.transactions.assignments import (
    Assignments,
    assigned_columns,
    compile_assignments,
    only_text,
    updated,
)
from lakemerge.transactions.attempts import RETRIES, in_attempts
from lakemerge.transactions.clauses import Aliases, MergeCall, names_row, shown_clause
from lakemerge.transactions.merging import Merging
from lakemerge.write.pack import Packed
from lakemerge.write.start import WriteRequest, repeated
from lakemerge.write.upsert import pack_dry, upsert_arrow
from mergers.restart import CLEAR, SET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TransactionOptions", "aliases_of", "delete_where", "merge_into", "update_where"]

Outcome = UpsertResult | TransactionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """What all transactions take besides rows and values."""

    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    retries: int = RETRIES
    isolation: Isolation = "snapshot"
    explain: bool = False

    @property
    def written_txn(self) -> tuple[str, int] | None:
        """The application transaction of the commit. An explanation makes none."""
        return None if self.explain else self.txn

    def request(self, operation: str, **info: object) -> WriteRequest:
        return WriteRequest(
            txn=self.written_txn,
            info={**self.info, **info, "isBlindAppend": False},
            states=True,
            isolation=self.isolation,
            operation=operation,
        )


def update_where(
    handle: Handle,
    begin: TableView,
    condition: object,
    assignments: Assignments,
    options: TransactionOptions,
    spark: SparkSession | None,
) -> Outcome:
    """See :meth:`lakemerge.LakeTable.update_where`."""
    _check_condition(condition, "update_where", spark)

    def attempt(view: TableView) -> Outcome:
        values = assigned_columns(assignments, view.config)
        shown = {name: str(value) for name, value in values.items()}
        request = options.request(Operation.UPDATE, predicate=str(condition), set=shown)
        started = monotonic()
        if spark is not None:
            from lakemerge.transactions.spark import update_frame, written

            frame = update_frame(spark, handle, view, condition, values)
            done, packed = written(handle, view, frame, request, dry=options.explain)
        else:
            nodes = compile_assignments(values, view.config.schema, view.config.schema)
            rows = scan(handle, view, columns=None, filter=cast("str", condition), ordered=False)
            names = view.config.schema.names
            records = _states(rows, (updated(b, nodes, names) for b in rows), SET)
            done, packed = _written(handle, view, records, request, dry=options.explain)
        return done or _plan(Operation.UPDATE, handle, view, packed, started, None)

    return in_attempts(handle, begin, attempt, options.retries, options.written_txn)


def delete_where(
    handle: Handle, begin: TableView, condition: object, options: TransactionOptions, spark: SparkSession | None
) -> Outcome:
    """See :meth:`lakemerge.LakeTable.delete_where`."""
    _check_condition(condition, "delete_where", spark)

    def attempt(view: TableView) -> Outcome:
        request = options.request(Operation.DELETE, predicate=str(condition))
        started = monotonic()
        columns = _remembered(handle, view)
        if spark is not None:
            from lakemerge.transactions.spark import delete_frame, written

            frame = delete_frame(spark, handle, view, condition, columns)
            done, packed = written(handle, view, frame, request, dry=options.explain)
        else:
            rows = scan(handle, view, columns=columns, filter=cast("str", condition), ordered=False)
            done, packed = _written(handle, view, _states(rows, rows, CLEAR), request, dry=options.explain)
        return done or _plan(Operation.DELETE, handle, view, packed, started, None)

    return in_attempts(handle, begin, attempt, options.retries, options.written_txn)


def merge_into(
    handle: Handle,
    begin: TableView,
    source: object,
    call: MergeCall,
    options: TransactionOptions,
) -> Outcome:
    """See :meth:`lakemerge.LakeTable.merge`."""
    clauses = [shown_clause(clause) for clause in call.clauses]
    request = options.request(Operation.MERGE, predicate=call.on, clauses=clauses)
    if done := repeated(handle, begin, request.txn):
        return done  # before the source is computed
    started = monotonic()
    request = request if not call.evolves else request.merging_schema()
    if is_spark_frame(source):
        from lakemerge.transactions.spark import HeldSource, MergeOnSpark, written

        # All attempts, and all that Spark computes in one of them, see the same source rows.
        kept = HeldSource.of(cast("DataFrame", source), begin.config, call)

        def attempt_on_spark(view: TableView) -> Outcome:
            merge = MergeOnSpark(handle, view, kept)
            done, packed = written(handle, view, merge.records(), request, dry=options.explain)
            return done or _plan(Operation.MERGE, handle, view, packed, started, merge.counts())

        try:
            return in_attempts(handle, begin, attempt_on_spark, options.retries, options.written_txn)
        finally:
            kept.release()
    for clause in call.clauses:
        only_text(clause.condition, "the condition of a clause")
    held = as_reader(collected(source)).read_all()
    _check_names(held)

    def attempt(view: TableView) -> Outcome:
        merging = Merging(handle, view, held, call)
        done, packed = _written(handle, view, merging.records(), request, dry=options.explain)
        return done or _plan(Operation.MERGE, handle, view, packed, started, merging.counts)

    return in_attempts(handle, begin, attempt, options.retries, options.written_txn)


def aliases_of(source: object, on: str, target: str, given: str | None) -> Aliases:
    """The names of both rows. A frame of Spark may have one itself, which is taken if ``on`` uses it."""
    if is_spark_frame(source):
        check_writes("a merge of a Spark DataFrame")
    if given is None and is_spark_frame(source):
        from lakemerge.transactions.spark import alias_of

        own = alias_of(cast("DataFrame", source))
        if own is not None and names_row(on, own):
            return Aliases(target, own)
    return Aliases(target, "source" if given is None else given)


def _written(
    handle: Handle, view: TableView, records: pa.RecordBatchReader, request: WriteRequest, *, dry: bool
) -> tuple[UpsertResult | None, Sequence[Packed]]:
    """The result of the write; of a dry one, what would be written."""
    if dry:
        return None, pack_dry(handle, view, records, request)
    return upsert_arrow(handle, view, records, request), ()


def _plan(
    operation: str,
    handle: Handle,
    view: TableView,
    packed: Sequence[Packed],
    started: float,
    counts: Counter[str] | None,
) -> TransactionPlan:
    """:param counts: how many rows of the table match, and how many rows each action takes. ``None``: all that are
    written match, and the operation is their action."""
    if counts is None:
        rows = sum(part.rows for part in packed)
        counts = Counter(matched=rows, **{"update" if operation == Operation.UPDATE else "delete": rows})
    blocks = [block for part in packed for block in part.blocks]
    files = {block.file for block in blocks}
    buckets = {(block.bucket_id, block.buckets) for block in blocks}
    index = len(blocks) > handle.settings.inline_blocks
    return TransactionPlan(
        operation=operation,
        version=view.version,
        matched=counts["matched"],
        updated=counts["update"],
        deleted=counts["delete"],
        inserted=counts["insert"],
        partitions=len({bucket.partition for bucket, _ in buckets}),
        buckets=len(buckets),
        files=len(files) + index + 1,
        bytes=sum(file.size_bytes for file in files),
        seconds=monotonic() - started,
    )


def _check_names(source: pa.Table) -> None:
    names = Counter(name.lower() for name in source.column_names)
    if twice := [name for name, count in names.items() if count > 1]:
        raise FrameError(f"the source has several columns {twice[0]!r}: drop or rename one of them")


def _remembered(handle: Handle, view: TableView) -> Sequence[str]:
    """The columns of a clear."""
    shape = view.config.shape
    uses_ordering = handle.merger(view).traits(shape).uses_ordering
    return [*shape.key, *(name for name in shape.ordering if uses_ordering)]


def _states(rows: pa.RecordBatchReader, batches: Iterator[pa.RecordBatch], kind: int) -> pa.RecordBatchReader:
    """The rows as records of one kind."""
    column = pa.field(KIND_COLUMN, pa.int8())
    # Computed values may be null where the table's are not, which the write refuses.
    schema = pa.schema([*(f.with_nullable(True) for f in rows.schema), column])

    def marked() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kinds = pa.array(np.full(batch.num_rows, kind, dtype=np.int8))
            yield pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, marked())


def _check_condition(condition: object, call: str, spark: Any) -> None:
    if spark is None:
        only_text(condition, "the condition")
    if not is_spark_column(condition) and (not isinstance(condition, str) or not condition):
        raise FilterError(f"{call} needs a condition, as SQL text; for all rows use 'true'")
