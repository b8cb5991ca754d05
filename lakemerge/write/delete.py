"""Conditional deletes: rows that meet a condition, deleted as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakemerge.commits.base import RowsChangedError
from lakemerge.errors import CommitConflictError, FilterError, RecordRefusedError
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.scan import scan
from lakemerge.results.results import UpsertResult
from lakemerge.write.upsert import upsert_arrow
from mergers.wording import in_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["delete_where"]

_ATTEMPTS = 20


def delete_where(
    handle: Handle, begin: TableView, condition: str, *, info: Mapping[str, object], spark: SparkSession | None
) -> UpsertResult:
    """See :meth:`lakemerge.LakeTable.delete_where`.

    Each matching row becomes a delete that carries the row's own ordering. If rows changed before
    the commit, the condition is judged again on the new version. With a session Spark reads the
    rows and writes the deletes.
    """
    given: object = condition
    if not isinstance(given, str) or not given:
        raise FilterError("delete_where needs a condition, as SQL text; to delete all rows use 'true'")
    view = begin
    for _ in range(_ATTEMPTS):
        _check_removes(handle, view)
        ordering = view.config.ordering if handle.merger(view).uses_ordering(view.config.shape) else ()
        try:
            return _delete(handle, view, [*view.config.key, *ordering], condition, info, spark)
        except RowsChangedError:
            view = handle.view(handle.log.update(view.snapshot))
    raise CommitConflictError(
        f"rows changed {_ATTEMPTS} times while the condition was judged; nothing was deleted, try again when fewer "
        "writers run"
    )


def _check_removes(handle: Handle, view: TableView) -> None:
    """Raise :class:`RecordRefusedError` where the deletes would leave the rows."""
    merger = handle.merger(view)
    if not merger.bare_delete_removes(view.config.shape):
        raise RecordRefusedError(
            f"with {merger.name!r} as this table has it, the delete of a key does not remove the row, so delete_where "
            "would delete nothing. Alter the table to remove_record_on_delete=true where the merger has that option, "
            f"or write records that take the rows back{in_python(': upsert(frame, kind_column=...)')}",
            merger=merger.name,
        )


def _delete(
    handle: Handle,
    view: TableView,
    columns: list[str],
    condition: str,
    info: Mapping[str, object],
    spark: SparkSession | None,
) -> UpsertResult:
    known = {"predicate": condition, **info}
    if spark is not None:
        from lakemerge.spark.judging import judging
        from lakemerge.spark.reader import read_dataframe
        from lakemerge.spark.writer import upsert_dataframe

        with judging():
            keys = read_dataframe(spark, handle, view, columns=columns, filter=condition)
            return upsert_dataframe(
                handle, view, keys, kind_column=None, deletes=True, txn=None, info=known, only_onto_begin=True
            )
    rows = scan(handle, view, columns=columns, filter=condition)
    return upsert_arrow(handle, view, rows, kind_column=None, deletes=True, txn=None, info=known, only_onto_begin=True)
