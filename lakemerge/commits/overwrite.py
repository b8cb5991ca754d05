"""The commit of an overwrite: it forgets what the table has in some partitions, and adds base files instead.

Source: docs/table-format.md, section 4; docs/merge-semantics.md, section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from lakemerge.commits.appends import already_done, also, defining, grown, state_after
from lakemerge.commits.base import check_same_meaning, commit_records, rows_changed
from lakemerge.commits.compaction import removals, slices_after, without_dead_logs
from lakemerge.commits.footprint import RowsChangedError
from lakemerge.commits.provenance import Provenance
from lakemerge.delta import AddFile, AlreadyDone, Attempt, Committed
from lakemerge.errors import CommitConflictError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.keys import Partition
from lakemerge.format.reset import Reset
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView

__all__ = ["Scope", "commit_overwrite"]


@dataclass(frozen=True, slots=True)
class Scope:
    """The partitions that an overwrite is about."""

    among: Callable[[Collection[Partition]], Collection[Partition]] | None = None
    """Those of some partitions that are in the scope. ``None``: all are."""

    def partitions(self, view: TableView, written: Sequence[BaseFile]) -> Collection[Partition] | None:
        """The partitions in the scope that a version or the written files have, each once; ``None``: all."""
        if self.among is None:
            return None
        known = dict.fromkeys(base.bucket_id.partition for base in (*view.base_files, *written))
        known |= dict.fromkeys(block.bucket_id.partition for commit in view.log_commits for block in commit.blocks)
        return dict.fromkeys(self.among(known.keys()))


def commit_overwrite(
    handle: Handle,
    begin: TableView,
    adds: Sequence[AddFile],
    scope: Scope,
    provenance: Provenance,
    metrics: Mapping[str, object],
    *,
    buckets: int,
) -> Committed | AlreadyDone:
    """Replace whatever is in the scope at the tip by base files. Log appends that land before it are replaced, too;
    those that land after it are newer.

    Raises :class:`RowsChangedError` if the overwrite has read the table and rows were written since, and
    :class:`CommitConflictError` if the definition or the bucket count changed, or the table was restored.

    :param adds: the base files, whose ordinals are reserved. Each is in the scope.
    :param buckets: their bucket count.
    """
    written = [BaseFile.of(add, begin.config.stored_partition_by) for add in adds]

    def build(before: TableView) -> Attempt | AlreadyDone:
        if done := already_done(before, provenance):
            return done
        view = grown(handle, before, begin) if provenance.merge_schema else before
        check_same_meaning(begin, view)
        if provenance.isolation is not None and rows_changed(handle, begin, before):
            raise RowsChangedError(
                f"rows were written after version {begin.version}, which the overwrite read: it would lose them"
            )
        epochs = [(state.schema_epoch, state.layout_epoch) for state in (begin.state, before.state)]
        other_count = bool(written) and before.config.buckets not in (None, buckets)
        if epochs[0] != epochs[1] or other_count:
            raise CommitConflictError(
                "schema or bucket count changed while the rows were written; open the table again and retry"
            )
        now = handle.store_now_ms()
        partitions = scope.partitions(before, written)
        # A reset of a partition that comes with the commit says that the commit made it.
        resets = [Reset(before.version + 1, one) for one in ((None,) if partitions is None else partitions)]
        replaced = [b for b in before.base_files if partitions is None or b.bucket_id.partition in partitions]
        gone = {base.add.path for base in replaced}
        ended = [minor.removal() for path, minor in before.minors.items() if path in gone]
        kept = {path: minor for path, minor in before.minors.items() if path not in gone}
        files = [*(base for base in before.base_files if base.add.path not in gone), *written]
        state = state_after(before, view)
        return Attempt(
            [
                *defining(before, view, buckets if written else None),
                state.overwritten().domain(),
                *removals(before, gone, now),
                *(base.merged_to(before.version) for base in written),
                *ended,
                *without_dead_logs(before, slices_after(before, files, kept, resets), resets),
                *also(provenance, before),
            ],
            {**metrics, "numRemovedFiles": len(replaced)},
        )

    return commit_records(handle, begin, build, provenance)
