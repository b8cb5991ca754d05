"""The units of the change feed: which file slices a commit changed, and which keys in them.

A unit is one file slice of the version that a commit made, with the records that the commit brought to it. Units share
no key. Their order follows from the version alone, so a stream's offset can hold the place of a unit in it.
A restore, an overwrite and a net change have units of another kind: all file slices of some buckets, before and after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lakemerge.format.keys import BucketId, Key, KeySpan, Partition
from lakemerge.format.log_block import LogBlock
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.sources import MergeSpec

__all__ = ["FeedUnit", "Side", "of_another_past", "units_between", "units_of_commit", "units_of_rows"]


@dataclass(frozen=True, slots=True)
class Side:
    """File slices of one version, and how they are merged."""

    spec: MergeSpec
    file_slices: tuple[FileSlice, ...]


@dataclass(frozen=True, slots=True)
class FeedUnit:
    """What one task computes. It is picklable, so executors do not read the log."""

    version: int
    timestamp_ms: int
    """The time of the commit, UTC epoch milliseconds."""
    before: Side
    after: Side
    keys: tuple[FileSlice, tuple[LogBlock, ...]] | None
    """The blocks whose keys may have changed, and the file slice that limits them; ``None``: any key may have."""

    is_one_commit: bool = False
    """Whether both versions have one file slice here, and the later version only adds the records of ``keys``."""

    @property
    def size_bytes(self) -> int:
        """The size of the data that may have changed: of records as Arrow data, of stored rows in their files."""
        if self.keys is not None:
            return sum(block.data_bytes for block in self.keys[1])
        return sum(file_slice.stored_bytes for side in (self.before, self.after) for file_slice in side.file_slices)


def units_of_commit(handle: Handle, before: TableView, after: TableView) -> list[FeedUnit]:
    """The units that the commit ``after.version`` may have changed. ``before`` is the version before it."""
    if of_another_past(before, after):
        return units_between(handle, before, after, None)
    if before.is_empty and after.base_files:
        return units_of_rows(handle, after)
    spec = _spec(handle, after)
    units = []
    for file_slice in _ordered(after.file_slices):
        brought = tuple(block for block in file_slice.blocks if _is_of(block, after.version))
        if brought:
            kept = tuple(block for block in file_slice.blocks if not _is_of(block, after.version))
            was = Side(spec, (replace(file_slice, blocks=kept),))
            moment = after.snapshot.timestamp_ms
            now = Side(spec, (file_slice,))
            units.append(FeedUnit(after.version, moment, was, now, (file_slice, brought), is_one_commit=True))
    return units


def units_of_rows(handle: Handle, view: TableView) -> list[FeedUnit]:
    """All rows of a version, as inserts of its commit."""
    spec, moment = _spec(handle, view), view.snapshot.timestamp_ms
    file_slices = [file_slice for file_slice in _ordered(view.file_slices) if not file_slice.is_empty]
    return [
        FeedUnit(view.version, moment, Side(spec, ()), Side(spec, (file_slice,)), None) for file_slice in file_slices
    ]


def units_between(
    handle: Handle, before: TableView, after: TableView, blocks: Sequence[LogBlock] | None
) -> list[FeedUnit]:
    """The units in which two versions may differ, whatever was committed between them. File slices that both have are
    left out.

    :param blocks: all records that were committed in between; ``None`` if they are not known.
    """
    old, new = _spec(handle, before), _spec(handle, after)
    sides = _apart(before, after), _apart(after, before)
    counts = [view.config.buckets or 1 for view in (before, after)]
    counts += [file_slice.buckets for file_slices in sides for file_slice in file_slices]
    common, moment = min(counts), after.snapshot.timestamp_ms
    groups: dict[tuple[Partition, int], tuple[list[FileSlice], list[FileSlice]]] = defaultdict(lambda: ([], []))
    for place, file_slices in enumerate(sides):
        for file_slice in file_slices:
            groups[file_slice.bucket_id.partition, file_slice.bucket_id.bucket % common][place].append(file_slice)
    units = []
    for group in sorted(groups, key=_slice_order):
        limits = FileSlice(BucketId(*group), common)
        for span in _spans(groups[group]):
            was, now = (
                tuple(_inside(file_slice, span) for file_slice in file_slices if _meets(file_slice, span))
                for file_slices in groups[group]
            )
            keys = None
            if blocks is not None:
                reach = tuple(b for b in blocks if b.covers(limits.bucket_id, common) and _may_hold(span, b))
                keys = (replace(limits, wanted=span), reach)
                if not reach:
                    continue
            units.append(FeedUnit(after.version, moment, Side(old, was), Side(new, now), keys))
    return units


def of_another_past(before: TableView, after: TableView) -> bool:
    """Whether a restore or an overwrite lies between two versions, so that records do not tell what changed."""
    then, now = before.state, after.state
    return (then.restore_epoch, then.overwrite_epoch) != (now.restore_epoch, now.overwrite_epoch)


def _spec(handle: Handle, view: TableView) -> MergeSpec:
    return MergeSpec.of(handle, view)


def _is_of(block: LogBlock, version: int) -> bool:
    """Whether a commit brought the records of the block. A consolidated log has older records."""
    return block.version == version and block.packed_from is None


def _apart(view: TableView, other: TableView) -> list[FileSlice]:
    """File slices of a version whose rows may differ from those of every file slice of another version."""
    same = set(map(_contents, other.file_slices)) if view.config == other.config else set()
    return [file_slice for file_slice in _ordered(view.file_slices) if _contents(file_slice) not in same]


def _contents(file_slice: FileSlice) -> Hashable:
    """A value that is equal for file slices with the same rows."""
    base = None if file_slice.base is None else file_slice.base.add.path
    return (
        file_slice.bucket_id,
        file_slice.buckets,
        base,
        file_slice.lower,
        file_slice.upper,
        file_slice.blocks,
        file_slice.minor,
        file_slice.expiries,
        # Only records of a consolidated log can be on both sides of an overwrite.
        any(block.packed_from is not None and block.packed_from <= file_slice.reset for block in file_slice.blocks),
    )


def _ordered(file_slices: Iterable[FileSlice]) -> list[FileSlice]:
    return sorted(
        file_slices,
        key=lambda file_slice: (
            _slice_order(file_slice.bucket_id),
            () if file_slice.lower is None else file_slice.lower,
        ),
    )


def _slice_order(of: tuple[Partition, int]) -> tuple[tuple[tuple[bool, str], ...], int]:
    partition, bucket = of
    return tuple((value is not None, value or "") for value in partition), bucket


def _spans(sides: tuple[list[FileSlice], list[FileSlice]]) -> Iterator[KeySpan]:
    """Key ranges, each of which begins where some file slice does."""
    lowers: set[Key] = {
        file_slice.lower for file_slices in sides for file_slice in file_slices if file_slice.lower is not None
    }
    bounds: list[Key | None] = [None, *sorted(lowers), None]
    return (KeySpan(low, high) for low, high in pairwise(bounds))


def _meets(file_slice: FileSlice, span: KeySpan) -> bool:
    begins = span.high is None or file_slice.lower is None or file_slice.lower < span.high
    return begins and (span.low is None or file_slice.upper is None or file_slice.upper > span.low)


def _inside(file_slice: FileSlice, span: KeySpan) -> FileSlice:
    blocks = tuple(block for block in file_slice.blocks if _may_hold(span, block))
    return replace(file_slice, wanted=span, blocks=blocks)


def _may_hold(span: KeySpan, block: LogBlock) -> bool:
    return span.may_hold(block.key_min or (), block.key_max or ())
