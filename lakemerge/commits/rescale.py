"""The commits of a rescale: they reserve ordinals for files, and set another number of buckets.

Source: docs/table-format.md, sections 2 and 4.
"""

from __future__ import annotations

from dataclasses import replace

from lakemerge.commits.base import (
    FileSlicesChangedError,
    check_fence,
    check_same_meaning,
    commit_to,
    landed,
    with_buckets,
)
from lakemerge.delta import (
    AlreadyDone,
    Attempt,
    Snapshot,
)
from lakemerge.errors import CommitConflictError
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView

__all__ = ["commit_layout", "reserve_ordinals"]


def reserve_ordinals(handle: Handle, begin: TableView, count: int) -> int:
    """Reserve file ordinals by a commit of its own; returns the first."""
    first = 0

    def build(view: TableView) -> Attempt | AlreadyDone:
        nonlocal first
        check_same_meaning(begin, view)
        first = view.state.next_ordinal
        return Attempt([view.state.reserving(count).domain()])

    commit_to(handle, begin, build, operation=Operation.RESERVE_ORDINALS, parameters={"count": count})
    return first


def commit_layout(handle: Handle, begin: TableView, buckets: int) -> Snapshot:
    """Make ``buckets`` the table's bucket count. Base files of smaller counts keep their counts.

    Raises :class:`FileSlicesChangedError` while there are base files of a larger count, and
    :class:`CommitConflictError` if somebody else changed the count meanwhile.
    """

    def build(view: TableView) -> Attempt:
        check_fence(begin, view)
        if view.state.layout_epoch != begin.state.layout_epoch:
            raise CommitConflictError("the bucket count changed meanwhile; open the table again and retry")
        if view.state.restore_epoch != begin.state.restore_epoch:
            raise CommitConflictError("the table was restored to an earlier version meanwhile; open it again and retry")
        if any(base.buckets > buckets for base in view.base_files):
            raise FileSlicesChangedError("a compaction wrote base files of the old bucket count meanwhile")
        state = replace(view.state, layout_epoch=view.state.layout_epoch + 1)
        return Attempt([with_buckets(view.snapshot.metadata, view.config, buckets), state.domain()])

    parameters = {"buckets": buckets, "before": begin.config.buckets}
    return landed(commit_to(handle, begin, build, operation=Operation.RESCALE, parameters=parameters)).snapshot
