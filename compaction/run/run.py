"""Compaction: merges live logs into base files, or into winner files beside them, with one commit for each group.

*Full* compaction rewrites the base file of every file slice that has logs. *Minor* compaction leaves base files as they
are, and writes the changed rows beside them, with the positions that they supersede. That is cheap to write, and is
read without a merge (docs/table-format.md, section 8).

Writers are never blocked: appends that land meanwhile are newer than the version read, and stay live. If a run is
killed, the groups that it committed stay, and the next run plans the rest again. If two compactions merge one file
slice, the later one to commit discards its group's files, and nothing is lost. A file slice with a total that does not
fit its column is skipped and reported, and its logs stay live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from compaction.plan.plan import plan_compaction
from compaction.run.file_slice import FileSliceJob
from compaction.run.group import GroupOutcome, GroupRun, compact_group
from lakemerge.bins import BinItem, BinLimits, fill
from lakemerge.commits.base import FileSlicesChangedError
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.delta import Snapshot
from lakemerge.errors import LakeMergeError
from lakemerge.format.keys import BucketId
from lakemerge.format.publish import Publish
from lakemerge.handle import Handle
from lakemerge.layout.published import is_shown
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.merge import MergeSpec
from lakemerge.results.compactions import (
    CompactionGroup,
    CompactionPlan,
    CompactionResult,
    CompactionStrategy,
    LostGroup,
)
from lakemerge.storage.base import is_own_failure
from lakemerge.table.open_table import OpenTable
from lakemerge.write.base_file import ordinals_needed
from mergers.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact", "compact_open", "run_plan", "shorten_log", "stays"]

_logger = logger(__name__)
_MOST_COMMITS = 4
"""A compaction leaves at most so many commits after the last checkpoint."""


def compact_open(
    table: OpenTable,
    *,
    minor: bool = False,
    strategy: CompactionStrategy | None = None,
    where: str | None = None,
    max_bytes: int | None = None,
) -> CompactionResult:
    """See :meth:`lakemerge.LakeTable.compact`."""
    view = table.writable()
    with unless_vacuumed(table.handle.log, view.snapshot):
        result = compact(
            table.handle,
            view,
            minor=minor,
            strategy=strategy,
            where=where,
            max_bytes=max_bytes,
            spark=table.services_session,
        )
    table.follow()
    if result.commits:
        shorten_log(table.handle, table.standing.snapshot)
    return result


def shorten_log(handle: Handle, snapshot: Snapshot) -> None:
    """Write a checkpoint if readers who open the table would ask for many commits after the last one. A compaction has
    read and written so much that this costs little beside it."""
    last = -1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version
    if snapshot.version - last <= _MOST_COMMITS:
        return
    try:
        handle.log.checkpoint(snapshot)
    except Exception as error:
        if not (is_own_failure(error) or isinstance(error, MemoryError | LakeMergeError)):
            raise
        _logger.warning("the checkpoint of version %d could not be written", snapshot.version, exc_info=True)


def compact(
    handle: Handle,
    read: TableView,
    *,
    minor: bool = False,
    strategy: CompactionStrategy | None = None,
    where: str | None = None,
    max_bytes: int | None = None,
    spark: SparkSession | None = None,
) -> CompactionResult:
    """Compact the file slices that are due at the version read; see :meth:`lakemerge.LakeTable.compact`.

    A full compaction takes up the results of minor ones. A minor compaction writes base files for buckets that have
    none yet.
    """
    started = time.monotonic()
    due = strategy or CompactionStrategy()
    plan = plan_compaction(handle, read, minor=minor, strategy=due, where=where, max_bytes=max_bytes)
    whole = where is None and max_bytes is None
    return run_plan(handle, read, plan, spark=spark, started=started, whole=whole)


def run_plan(
    handle: Handle,
    read: TableView,
    plan: CompactionPlan,
    *,
    spark: SparkSession | None = None,
    stop: Callable[[], bool] | None = None,
    started: float | None = None,
    whole: bool = True,
) -> CompactionResult:
    """Run a plan, which was made for the version read, group by group.

    In a table that publishes, a plan of one group takes all other file slices along that other engines do not see as
    they are, so that its commit shows one version.

    :param whole: whether it may do so. It may not if the caller chose partitions or a budget.
    :param stop: called before each group. True ends the run there.
    :param started: when planning began, by the monotonic clock.
    """
    began = time.monotonic()
    started = began if started is None else started
    run = _Run(handle, read, plan, spark, plan_seconds=began - started)
    stopped = False
    for number, jobs in enumerate(_jobs(handle, read, plan, whole=whole), start=1):
        stopped = stop is not None and stop()
        if stopped:
            break
        run.do(number, jobs)
    return run.result(time.monotonic() - started, stopped=stopped)


class _Run:
    """Runs the groups of a plan."""

    def __init__(
        self, handle: Handle, read: TableView, plan: CompactionPlan, spark: SparkSession | None, *, plan_seconds: float
    ) -> None:
        self._plan = plan
        self._plan_seconds = plan_seconds
        parameters = {"due": str(plan.strategy), "why": "; ".join(plan.reasons)}
        metrics = {"planTimeMs": round(plan_seconds * 1000)}
        merge = MergeSpec(handle.store, read.config, handle.merger(read), handle.settings)
        publish = Publish.of(read.snapshot.metadata.configuration)
        self._run = GroupRun(handle, read, merge, plan.mode == "minor", spark, publish.by_vectors, parameters, metrics)
        self._done: list[GroupOutcome] = []
        self._lost: list[LostGroup] = []

    def do(self, number: int, jobs: Sequence[FileSliceJob]) -> None:
        count, url = len(self._plan.groups), self._run.handle.store.url
        try:
            outcome = compact_group(self._run, jobs, number=number, of=count)
        except FileSlicesChangedError as error:
            group = self._plan.groups[number - 1]
            self._lost.append(LostGroup(buckets=len(group.buckets), bytes_read=group.bytes_read, reason=error.message))
            _logger.info("compaction of %s lost group %d of %d: %s", url, number, count, error.message)
            return
        self._done.append(outcome)
        if outcome.version is not None:
            _logger.info("compaction of %s: group %d of %d is version %d", url, number, count, outcome.version)

    def result(self, seconds: float, *, stopped: bool) -> CompactionResult:
        done = self._done
        versions = [outcome.version for outcome in done if outcome.version is not None]
        return CompactionResult(
            plan=self._plan,
            version=max(versions, default=self._plan.version),
            commits=len(versions),
            file_slices=sum(len(outcome.done) for outcome in done),
            rows=sum(outcome.rows for outcome in done),
            files=sum(outcome.files for outcome in done),
            bytes=sum(outcome.bytes for outcome in done),
            bytes_read=sum(outcome.bytes_read for outcome in done),
            replaced_files=sum(outcome.replaced_files for outcome in done),
            log_blocks=sum(outcome.log_blocks for outcome in done),
            seconds=seconds,
            phases={
                "plan": self._plan_seconds,
                "merge": sum(outcome.merge_seconds for outcome in done),
                "commit": sum(outcome.commit_seconds for outcome in done),
            },
            skipped=tuple(file_slice for outcome in done for file_slice in outcome.skipped),
            lost=tuple(self._lost),
            stopped=stopped,
        )


def _jobs(handle: Handle, read: TableView, plan: CompactionPlan, *, whole: bool) -> Iterator[list[FileSliceJob]]:
    """The jobs of each group. One commit reserves the ordinals of all of them."""
    if not plan.groups:
        return
    settings = handle.settings
    publish = Publish.of(read.snapshot.metadata.configuration)
    beside = partial(stays, read=read, publish=publish)
    target_bytes, minor = settings.target_file_bytes, plan.mode == "minor"
    groups = [_units(_file_slices(read, group), target_bytes, beside if minor else None) for group in plan.groups]
    if publish.is_on and whole and len(groups) == 1 and not plan.postponed:
        done = {id(file_slice) for file_slices, _ in groups[0] for file_slice in file_slices}
        others = [each for each in read.file_slices if id(each) not in done and not is_shown(each)]
        groups[0] += _units(others, target_bytes, beside if publish.by_vectors else None)
    counts = [
        1 if is_minor else ordinals_needed(_bytes(file_slices), settings)
        for group in groups
        for file_slices, is_minor in group
    ]
    first = reserve_ordinals(handle, read, sum(counts))
    firsts = accumulate(counts[:-1], initial=first)
    ordinals = zip(firsts, counts, strict=True)
    for group in groups:
        yield [
            FileSliceJob(file_slices, is_minor, *next(ordinals), publish=publish.by_vectors)
            for file_slices, is_minor in group
        ]


def _units(
    file_slices: Sequence[FileSlice], target_bytes: int, stays: Callable[[FileSlice], bool] | None
) -> list[tuple[tuple[FileSlice, ...], bool]]:
    """The file slices of a group that are compacted together, and whether the compaction is minor. Base files that are
    replaced anyway are joined with neighbours in their bucket, up to the target size of a file.

    :param stays: for a minor compaction: whether a base file stays.
    """
    if stays is not None:
        return [((file_slice,), stays(file_slice)) for file_slice in file_slices]
    items: list[BinItem[FileSlice]] = []
    neighbourhood = 0
    for rank, file_slice in enumerate(file_slices):
        if rank and not _adjoin(file_slices[rank - 1], file_slice):
            neighbourhood += 1
        items.append(BinItem(value=file_slice, records=0, bytes=file_slice.stored_bytes, at_ms=rank, key=neighbourhood))
    bins = fill(items, BinLimits(min_records=0, max_bytes=target_bytes), now_ms=0, force=True).closed
    return [(part.values, False) for part in bins]


def stays(file_slice: FileSlice, *, read: TableView, publish: Publish) -> bool:
    """Whether a minor compaction leaves the base file where it is.

    A file with a deletion vector needs statistics. And once a table does not publish any more, its next compaction, of
    either kind, takes the vectors of a file slice away.
    """
    if file_slice.base is None:
        return False
    published = () if file_slice.minor is None or not file_slice.minor.published else file_slice.minor.winners
    if not publish.by_vectors:
        return file_slice.minor is None or not file_slice.minor.published
    paths = (file_slice.base.add.path, *(winner.path for winner in published))
    return all(read.snapshot.files[path].stats is not None for path in paths)


def _adjoin(before: FileSlice, file_slice: FileSlice) -> bool:
    """Whether the second file slice's keys begin where those of the first end."""
    return before.bucket_id == file_slice.bucket_id and before.upper is not None and before.upper == file_slice.lower


def _bytes(file_slices: Sequence[FileSlice]) -> int:
    return sum(file_slice.stored_bytes for file_slice in file_slices)


def _file_slices(read: TableView, group: CompactionGroup) -> list[FileSlice]:
    due = {BucketId(part.partition, part.bucket): frozenset(part.files) for part in group.buckets}
    return [
        file_slice
        for part, files in due.items()
        for file_slice in read.file_slices_by_bucket[part]
        if _file(file_slice) in files
    ]


def _file(file_slice: FileSlice) -> str | None:
    return None if file_slice.base is None else file_slice.base.add.path
