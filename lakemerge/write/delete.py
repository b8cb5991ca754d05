"""Conditional deletes: rows that meet a condition, deleted as they stand."""

from __future__ import annotations

from collections.abc import Mapping

from lakemerge.errors import CommitConflictError, FilterError
from lakemerge.handle import Handle
from lakemerge.read.scan import scan
from lakemerge.slices.view import TableView
from lakemerge.write.commits import RowsChangedError
from lakemerge.write.upsert import UpsertResult, upsert_arrow

__all__ = ["delete_where"]

_ATTEMPTS = 20


def delete_where(handle: Handle, begin: TableView, condition: str, *, info: Mapping[str, object]) -> UpsertResult:
    """See :meth:`lakemerge.LakeTable.delete_where`.

    Each matching row becomes a delete that carries the row's own ordering. If rows changed before
    the commit, the condition is judged again on the new version.
    """
    if not condition:
        raise FilterError("delete_where needs a condition; to delete all rows use 'true'")
    view = begin
    for _ in range(_ATTEMPTS):
        ordering = view.config.ordering if handle.merger(view).uses_ordering(view.config.shape) else ()
        keys = scan(handle, view, columns=[*view.config.key, *ordering], filter=condition)
        try:
            return upsert_arrow(
                handle,
                view,
                keys,
                kind_column=None,
                deletes=True,
                txn=None,
                info={"predicate": condition, **info},
                only_onto_begin=True,
            )
        except RowsChangedError:
            view = handle.view(handle.log.update(view.snapshot))
    raise CommitConflictError(
        f"rows changed {_ATTEMPTS} times while the condition was judged; nothing was deleted, try again when fewer "
        "writers run"
    )
