"""Planning a compaction: which file slices are due, in which order, and which buckets share a commit.

A plan is made from metadata: tags of base files, log domains and block index files. It is a value of
:mod:`lakemerge.results.compactions`, and it locks or reserves nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Literal

import pyarrow as pa

from compaction.plan.loads import FileSliceLoad, file_slice_loads
from lakemerge.bins import BinItem, BinLimits, fill
from lakemerge.delta import old_through
from lakemerge.errors import FilterError, InputError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Partition
from lakemerge.format.publish import Publish
from lakemerge.handle import Handle
from lakemerge.layout.partition import parse_partition_value
from lakemerge.layout.view import TableView
from lakemerge.read.filter.filter import parse_filter
from lakemerge.results.compactions import (
    CompactionGroup,
    CompactionPlan,
    CompactionStrategy,
    PlannedBucket,
    threshold_words,
)
from mergers.wording import argument

__all__ = ["plan_compaction"]

_MINUTE_MS = 60_000
_SMALL_SHARE = 4
"""A base file is small if it is smaller than the target size divided by this."""

_Due = tuple[FileSliceLoad, tuple[str, ...]]
"""A file slice, and why it is due."""


def plan_compaction(
    handle: Handle,
    view: TableView,
    *,
    minor: bool,
    strategy: CompactionStrategy,
    where: str | None = None,
    max_bytes: int | None = None,
    loads: Sequence[FileSliceLoad] | None = None,
    why: Callable[[FileSliceLoad], tuple[str, ...]] | None = None,
    clock: Callable[[], int] | None = None,
) -> CompactionPlan:
    """The plan of what is due at a version.

    :param where: a SQL condition over partition columns.
    :param max_bytes: the plan reads and writes at most this many bytes, as estimated. The first bucket is taken even
        if it needs more.
    :param loads: the loads of the version, if they are known already.
    :param why: says why a file slice is due, and returns nothing if it is not. It replaces the strategy's thresholds.
    :param clock: gives the time that ages are measured at, by default that of the store's clock. To ask the store, a
        file is written.
    :raises FilterError: the condition cannot be understood, or names a column that is not a partition column.
    :raises InputError: ``max_bytes`` is not a size.
    """
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
        raise InputError(f"{argument('max_bytes')} must be a number of bytes from 1 on, not {max_bytes!r}")
    publish = Publish.of(view.snapshot.metadata.configuration)
    as_asked, minor = minor, minor and not publish.rewrites
    everything = file_slice_loads(view) if loads is None else loads
    wanted = _in_partitions(everything, view.config, where)
    clock = handle.store_now_ms if clock is None else clock
    judge = _Judge(strategy, minor=minor, publish=publish)
    judge.old_through = _old_through(handle, map(judge.oldest, wanted), strategy, clock)
    by_bucket: dict[BucketId, list[FileSliceLoad]] = defaultdict(list)
    for load in wanted:
        by_bucket[load.bucket_id].append(load)
    due: dict[BucketId, list[_Due]] = {}
    for part, file_slices in by_bucket.items():
        if found := [
            (file_slice, reasons) for file_slice in file_slices if (reasons := (why or judge.reasons)(file_slice))
        ]:
            due[part] = (
                found if minor else _with_small_neighbours(file_slices, found, handle.settings.target_file_bytes)
            )
    planned = (_planned(part, due[part], judge.oldest) for part in sorted(due, key=_by_name))
    ordered = sorted(planned, key=_order(strategy))
    taken = _within(ordered, max_bytes, minor=minor)
    return CompactionPlan(
        version=view.version,
        mode=_mode(minor),
        strategy=strategy,
        # A publication is one commit, so that it shows one version.
        groups=_groups(taken, None if publish.is_on and as_asked else handle.settings.target_commit_bytes, minor=minor),
        postponed=len(ordered) - len(taken),
        base_bytes=sum(load.base_bytes for load in everything),
        winner_bytes=sum(load.winner_bytes for load in everything),
        log_bytes=sum(load.log_bytes for load in everything),
    )


def _mode(minor: bool) -> Literal["full", "minor"]:
    return "minor" if minor else "full"


class _Judge:
    """Says whether a file slice is due."""

    def __init__(self, strategy: CompactionStrategy, *, minor: bool, publish: Publish) -> None:
        self._thresholds = strategy.thresholds
        self._minor = minor
        self._publish = publish
        self.old_through: int | None = None
        """The last version that is as old as the strategy asks."""

    def reasons(self, load: FileSliceLoad) -> tuple[str, ...]:
        """Why the file slice is due. Empty if it is not."""
        if load.is_clean or (self._minor and load.is_merged and not self._shows(load)):
            return ()
        if not self._thresholds:
            return ("not merged yet",)
        return tuple(
            threshold_words(name, value) for name, value in self._thresholds if self._reached(name, value, load)
        )

    def oldest(self, load: FileSliceLoad) -> int | None:
        """The oldest commit that the compaction takes up or shows. ``None`` if there is none."""
        return load.oldest_live if self._minor and not self._shows(load) else load.oldest_version

    def _shows(self, load: FileSliceLoad) -> bool:
        """Whether a minor compaction shows other engines what an earlier one merged."""
        return self._publish.by_vectors and load.is_hidden

    def _reached(self, name: str, value: float, load: FileSliceLoad) -> bool:
        beside = load.log_bytes if self._minor else load.log_bytes + load.winner_bytes
        match name:
            case "after_commits":
                return load.log_commits >= value
            case "after_bytes":
                return beside >= value
            case "ratio":
                return beside >= value * load.base_bytes
            case _:
                oldest = self.oldest(load)
                return self.old_through is not None and oldest is not None and oldest <= self.old_through


def _with_small_neighbours(file_slices: Sequence[FileSliceLoad], due: Sequence[_Due], target_bytes: int) -> list[_Due]:
    """Add small clean files that are next to files which are rewritten anyway, so that they are joined. Otherwise base
    files that deletes made small would stay small for ever.

    :param file_slices: the file slices of one bucket, sorted by key.
    """
    reasons = {file_slice.file: why for file_slice, why in due}
    found: list[_Due] = []
    for place, file_slice in enumerate(file_slices):
        if file_slice.file in reasons:
            found.append((file_slice, reasons[file_slice.file]))
        elif file_slice.is_clean and file_slice.base_bytes * _SMALL_SHARE <= target_bytes:
            beside = [other for other in file_slices[max(0, place - 1) : place + 2] if other.file in reasons]
            if any(other.bytes + file_slice.bytes <= target_bytes for other in beside):
                found.append((file_slice, ("small, and next to a file that is rewritten",)))
    return found


def _old_through(
    handle: Handle, oldest: Iterable[int | None], strategy: CompactionStrategy, clock: Callable[[], int]
) -> int | None:
    """The last version that is as old as the strategy asks. ``None`` if there is none, or if it does not ask.

    :param oldest: of each file slice the oldest commit that the compaction takes up.
    """
    first = min((version for version in oldest if version is not None), default=None)
    if strategy.after_minutes is None or first is None:
        return None
    # Not by in-commit timestamps: these are by the clocks of writers, and one that is ahead takes all later ones along.
    now_ms = clock()
    old_ms = now_ms - int(strategy.after_minutes * _MINUTE_MS)
    return old_through(handle.store, old_ms, now_ms=now_ms, since=first)


def _in_partitions(loads: Sequence[FileSliceLoad], config: TableConfig, where: str | None) -> Sequence[FileSliceLoad]:
    """The file slices of the partitions that meet a condition."""
    condition = parse_filter(where, config.schema)
    if condition is None:
        return loads
    if others := condition.columns - set(config.partition_by):
        raise FilterError(
            f"a compaction is chosen by partition: {where!r} names {', '.join(sorted(others))}, and the table's "
            f"partition columns are: {', '.join(config.partition_by) or 'none'}"
        )
    partitions = list(dict.fromkeys(load.bucket_id.partition for load in loads))
    columns = {
        name: pa.array(
            [_typed(values[place], config.schema.field(name).type) for values in partitions],
            config.schema.field(name).type,
        )
        for place, name in enumerate(config.partition_by)
    }
    numbered = pa.table({**columns, "number": pa.array(range(len(partitions)), pa.int64())})
    kept = condition.kept(numbered).column("number").to_pylist()
    chosen: set[Partition] = {partitions[number] for number in kept}
    return [load for load in loads if load.bucket_id.partition in chosen]


def _typed(value: str | None, kind: pa.DataType) -> object:
    return None if value is None else parse_partition_value(value, kind)


def _by_name(part: BucketId) -> tuple[list[str], int]:
    return [value or "" for value in part.partition], part.bucket


def _planned(
    part: BucketId, file_slices: Sequence[_Due], oldest: Callable[[FileSliceLoad], int | None]
) -> PlannedBucket:
    loads = [load for load, _ in file_slices]
    return PlannedBucket(
        partition=part.partition,
        bucket=part.bucket,
        files=tuple(load.file for load in loads),
        base_bytes=sum(load.base_bytes for load in loads),
        winner_bytes=sum(load.winner_bytes for load in loads),
        log_blocks=sum(load.log_blocks for load in loads),
        log_rows=sum(load.log_rows for load in loads),
        log_bytes=sum(load.log_bytes for load in loads),
        oldest_version=min(version for load in loads if (version := oldest(load)) is not None),
        reasons=tuple(dict.fromkeys(reason for _, reasons in file_slices for reason in reasons)),
    )


def _order(strategy: CompactionStrategy) -> Callable[[PlannedBucket], tuple[float, ...]]:
    """A sort key that puts the most urgent buckets first. Among equals, older buckets come first, so that none waits
    for ever."""
    match strategy.order:
        case "log-bytes":
            return lambda part: (-part.log_bytes, part.oldest_version)
        case "log-count":
            return lambda part: (-part.log_blocks, part.oldest_version)
        case "read-amplification":
            return lambda part: (-part.extra_bytes / max(part.base_bytes, 1), part.oldest_version)
        case _:
            return lambda part: (part.oldest_version, -part.log_bytes)


def _written(part: PlannedBucket, *, minor: bool) -> int:
    """An estimate of the most bytes that are written."""
    return part.log_bytes if minor else part.bytes_read


def _within(ordered: Sequence[PlannedBucket], max_bytes: int | None, *, minor: bool) -> Sequence[PlannedBucket]:
    """The first buckets that a run of this many bytes can do. It ends at the first bucket that does not fit. If it took
    smaller ones after that, a large one could wait for ever."""
    if max_bytes is None:
        return ordered
    costs = [part.bytes_read + _written(part, minor=minor) for part in ordered]
    count = bisect_right(list(accumulate(costs)), max_bytes)
    return ordered[: max(count, 1)]


def _groups(parts: Sequence[PlannedBucket], target_bytes: int | None, *, minor: bool) -> tuple[CompactionGroup, ...]:
    """Put the buckets, in their order, into groups that each read about this many bytes. ``None``: into one group."""
    items = [
        BinItem(value=part, records=part.log_rows, bytes=part.bytes_read, at_ms=rank) for rank, part in enumerate(parts)
    ]
    limits = BinLimits() if target_bytes is None else BinLimits(max_bytes=target_bytes)
    bins = fill(items, limits, now_ms=0, force=True).closed
    return tuple(
        CompactionGroup(
            buckets=part.values,
            closed=str(part.closed),
            bytes_read=part.bytes,
            bytes_written=sum(_written(value, minor=minor) for value in part.values),
        )
        for part in bins
    )
