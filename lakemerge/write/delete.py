"""Conditional deletes: delete the rows that meet a condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lakemerge.commits.base import RowsChangedError
from lakemerge.errors import CommitConflictError, FilterError, RecordRefusedError
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.scan import scan
from lakemerge.results.results import UpsertResult
from lakemerge.write.request import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers.wording import in_python

__all__ = ["delete_matching", "delete_where"]

_ATTEMPTS = 20


def delete_where(
    handle: Handle, begin: TableView, condition: str, *, delete: Callable[[TableView, Sequence[str]], UpsertResult]
) -> UpsertResult:
    """See :meth:`lakemerge.LakeTable.delete_where`.

    Each matching row becomes a delete that carries the row's own ordering. If rows changed before
    the commit, the condition is evaluated again on the new version.

    :param delete: a function such as :func:`delete_matching` that deletes the rows of a version that meet the
        condition. It gets the columns to read, and raises :class:`RowsChangedError` if rows changed meanwhile.
    """
    given: object = condition
    if not isinstance(given, str) or not given:
        raise FilterError("delete_where needs a condition, as SQL text; to delete all rows use 'true'")
    view = begin
    for _ in range(_ATTEMPTS):
        _check_removes(handle, view)
        ordering = view.config.ordering if handle.merger(view).traits(view.config.shape).uses_ordering else ()
        try:
            return delete(view, [*view.config.key, *ordering])
        except RowsChangedError:
            view = handle.latest(view)
    raise CommitConflictError(
        f"rows changed {_ATTEMPTS} times while the condition was judged; nothing was deleted, try again when fewer "
        "writers run"
    )


def delete_matching(
    handle: Handle, view: TableView, columns: Sequence[str], *, condition: str, info: Mapping[str, object]
) -> UpsertResult:
    """Delete without Spark, in one commit. The commit lands only if no rows were written since ``view``."""
    rows = scan(handle, view, columns=columns, filter=condition)
    known = {"predicate": condition, **info}
    return upsert_arrow(handle, view, rows, WriteRequest(deletes=True, info=known, only_onto_begin=True))


def _check_removes(handle: Handle, view: TableView) -> None:
    """Raise :class:`RecordRefusedError` if deletes do not remove rows with the table's merger."""
    merger = handle.merger(view)
    if not merger.traits(view.config.shape).bare_delete_removes:
        raise RecordRefusedError(
            f"with {merger.name!r} as this table has it, the delete of a key does not remove the row, so delete_where "
            "would delete nothing. Alter the table to remove_record_on_delete=true where the merger has that option, "
            f"or write records that take the rows back{in_python(': upsert(frame, kind_column=...)')}",
            merger=merger.name,
        )
