"""Updates and deletes of the rows that meet a condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from lakemerge.commits.provenance import Isolation
from lakemerge.errors import FilterError
from lakemerge.format.names import KIND_COLUMN
from lakemerge.format.operations import Operation
from lakemerge.frames import as_reader, collected, is_spark_frame
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.scan import scan
from lakemerge.results.results import UpsertResult
from lakemerge.transactions.assignments import Assignments, assigned_columns, compile_assignments, updated
from lakemerge.transactions.attempts import RETRIES, in_attempts
from lakemerge.transactions.clauses import Clause, shown_clause
from lakemerge.transactions.merging import Merging
from lakemerge.write.request import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers.restart import CLEAR, SET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TransactionOptions", "delete_where", "merge_into", "update_where"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """What all transactions take besides rows and values."""

    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    retries: int = RETRIES
    isolation: Isolation = "snapshot"

    def request(self, operation: str, **info: object) -> WriteRequest:
        return WriteRequest(
            txn=self.txn,
            info={**info, **self.info, "isBlindAppend": False},
            states=True,
            isolation=self.isolation,
            operation=operation,
        )


def update_where(
    handle: Handle,
    begin: TableView,
    condition: str,
    assignments: Assignments,
    options: TransactionOptions,
    spark: SparkSession | None,
) -> UpsertResult:
    """See :meth:`lakemerge.LakeTable.update_where`."""
    _check_condition(condition, "update_where")

    def attempt(view: TableView) -> UpsertResult:
        values = assigned_columns(assignments, view.config)
        request = options.request(
            Operation.UPDATE, predicate=condition, set={name: str(v) for name, v in values.items()}
        )
        if spark is not None:
            from lakemerge.transactions.spark import update_dataframe

            return update_dataframe(spark, handle, view, condition, values, request)
        nodes = compile_assignments(values, view.config.schema, view.config.schema)
        rows = scan(handle, view, columns=None, filter=condition)
        names = view.config.schema.names
        return upsert_arrow(handle, view, _states(rows, (updated(b, nodes, names) for b in rows), SET), request)

    return in_attempts(handle, begin, attempt, options.retries)


def delete_where(
    handle: Handle, begin: TableView, condition: str, options: TransactionOptions, spark: SparkSession | None
) -> UpsertResult:
    """See :meth:`lakemerge.LakeTable.delete_where`."""
    _check_condition(condition, "delete_where")

    def attempt(view: TableView) -> UpsertResult:
        request = options.request(Operation.DELETE, predicate=condition)
        columns = _remembered(handle, view)
        if spark is not None:
            from lakemerge.transactions.spark import delete_dataframe

            return delete_dataframe(spark, handle, view, condition, columns, request)
        rows = scan(handle, view, columns=columns, filter=condition)
        return upsert_arrow(handle, view, _states(rows, rows, CLEAR), request)

    return in_attempts(handle, begin, attempt, options.retries)


def merge_into(
    handle: Handle,
    begin: TableView,
    source: object,
    on: str,
    clauses: Sequence[Clause],
    options: TransactionOptions,
    spark: SparkSession | None,
) -> UpsertResult:
    """See :meth:`lakemerge.LakeTable.merge`."""
    held: pa.Table | None = None if is_spark_frame(source) else as_reader(collected(source)).read_all()

    def attempt(view: TableView) -> UpsertResult:
        request = options.request(Operation.MERGE, predicate=on, clauses=[shown_clause(clause) for clause in clauses])
        if held is None:
            from lakemerge.transactions.spark import merge_dataframe

            return merge_dataframe(handle, view, cast("DataFrame", source), on, clauses, request)
        merging = Merging(handle, view, held, clauses, on)
        return upsert_arrow(handle, view, merging.records(), request)

    return in_attempts(handle, begin, attempt, options.retries)


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


def _check_condition(condition: object, call: str) -> None:
    if not isinstance(condition, str) or not condition:
        raise FilterError(f"{call} needs a condition, as SQL text; for all rows use 'true'")
