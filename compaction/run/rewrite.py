"""Rewrites chosen file slices in one commit, and moves boundaries between base files.

The key at which a base file's range begins stands in its tag, and stays there when the row of that key is deleted: a
compaction keeps the range of what it rewrites. To move it, the file before it is rewritten, too, and both together get
new boundaries, which are keys of rows that are there (docs/table-format.md, section 2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from compaction.run.file_slice import FileSliceJob
from compaction.run.group import GroupOutcome, GroupRun, compact_group
from compaction.run.run import stays
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.format.keys import Key
from lakemerge.format.publish import Publish
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.merge import MergeSpec
from lakemerge.write.base_file import ordinals_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["off_boundaries", "rewrite"]


def off_boundaries(
    view: TableView, touched: Collection[FileSlice], keys: Collection[Key]
) -> list[tuple[FileSlice, ...]]:
    """What to rewrite, so that file slices are rewritten and no base file's range begins at one of the keys: file
    slices that adjoin in their bucket, each for a rewrite of its own.

    :param touched: file slices of the view.
    """
    wanted = {_place(file_slice) for file_slice in touched}
    parts: list[tuple[FileSlice, ...]] = []
    for file_slices in view.file_slices_by_bucket.values():
        part: list[FileSlice] = []
        for before, file_slice in zip((None, *file_slices), file_slices, strict=False):
            moves = file_slice.lower is not None and file_slice.lower in keys
            if moves and before is not None:
                part = [*(part or [before]), file_slice]
                continue
            if part:
                parts.append(tuple(part))
            part = [file_slice] if _place(file_slice) in wanted else []
        if part:
            parts.append(tuple(part))
    return parts


def rewrite(
    handle: Handle,
    read: TableView,
    parts: Sequence[tuple[FileSlice, ...]],
    *,
    beside: Sequence[FileSlice] = (),
    why: str,
    spark: SparkSession | None = None,
) -> GroupOutcome:
    """Merge file slices and commit them together. New base files begin at rows.

    :param parts: see :func:`off_boundaries`. Their base files are rewritten.
    :param beside: other file slices, whose logs are merged as a minor compaction does.
    :param why: what the commit says about itself.
    :raises lakemerge.commits.base.FileSlicesChangedError: another compaction changed one of them.
    """
    publish = Publish.of(read.snapshot.metadata.configuration)
    jobs = [*((part, False) for part in parts)]
    jobs += [((file_slice,), stays(file_slice, read=read, publish=publish)) for file_slice in beside]
    counts = [
        1 if minor else ordinals_needed(sum(each.stored_bytes for each in job), handle.settings) for job, minor in jobs
    ]
    first = reserve_ordinals(handle, read, sum(counts))
    merge = MergeSpec(handle.store, read.config, handle.merger(read), handle.settings)
    parameters = {"due": why, "why": why}
    run = GroupRun(handle, read, merge, False, spark, publish.by_vectors, parameters, {})
    work = [
        FileSliceJob(job, minor, begin, count, publish=publish.by_vectors, at_rows=True)
        for (job, minor), begin, count in zip(jobs, accumulate(counts[:-1], initial=first), counts, strict=True)
    ]
    return compact_group(run, work, number=1, of=1)


def _place(file_slice: FileSlice) -> tuple[object, ...]:
    return (file_slice.bucket_id, file_slice.buckets, file_slice.lower)
