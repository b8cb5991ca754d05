"""The units of the change feed: which file slices a commit changed, and which keys in them.

A unit is one file slice of the version that a commit made, and the records that the commit brought to it. Units share
no key. Their order follows from the version alone, so the place of a unit in it can stand in a stream's offset.
A restore and a net change have units of another kind: all file slices, before and after, of some buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lakemerge.handle import Handle
from lakemerge.read.sources import MergeSpec
from lakemerge.slices.model import Key, KeySpan, LogBlock, Partition, SliceId
from lakemerge.slices.view import TableView, Tile

__all__ = ["FeedUnit", "Side", "units_between", "units_of_commit", "units_of_rows"]


@dataclass(frozen=True, slots=True)
class Side:
    """File slices of one version, and how they are merged."""

    spec: MergeSpec
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class FeedUnit:
    """What one task computes. Picklable, so that executors need no look at the log."""

    version: int
    timestamp_ms: int
    """Of the commit, UTC epoch milliseconds."""
    before: Side
    after: Side
    keys: tuple[Tile, tuple[LogBlock, ...]] | None
    """The blocks whose keys may have changed, and the file slice that limits them; ``None``: any key may have."""

    is_one_commit: bool = False
    """Whether the later version is the earlier one with the records of ``keys``, and both have one file slice here."""

    @property
    def size_bytes(self) -> int:
        """The size of what may have changed: records as Arrow data, stored rows as they are in files."""
        if self.keys is not None:
            return sum(block.data_bytes for block in self.keys[1])
        return sum(tile.stored_bytes for side in (self.before, self.after) for tile in side.tiles)


def units_of_commit(handle: Handle, before: TableView, after: TableView) -> list[FeedUnit]:
    """What the commit ``after.version`` may have changed. ``before`` is the version before it."""
    if before.state.restore_epoch != after.state.restore_epoch:
        return units_between(handle, before, after, None)
    if before.is_empty and after.base_files:
        return units_of_rows(handle, after)
    spec = _spec(handle, after)
    units = []
    for tile in _ordered(after.tiles):
        brought = tuple(block for block in tile.blocks if _is_of(block, after.version))
        if brought:
            kept = tuple(block for block in tile.blocks if not _is_of(block, after.version))
            was = Side(spec, (replace(tile, blocks=kept),))
            moment = after.snapshot.timestamp_ms
            now = Side(spec, (tile,))
            units.append(FeedUnit(after.version, moment, was, now, (tile, brought), is_one_commit=True))
    return units


def units_of_rows(handle: Handle, view: TableView) -> list[FeedUnit]:
    """All rows of a version, as inserts of its commit."""
    spec, moment = _spec(handle, view), view.snapshot.timestamp_ms
    tiles = [tile for tile in _ordered(view.tiles) if not tile.is_empty]
    return [FeedUnit(view.version, moment, Side(spec, ()), Side(spec, (tile,)), None) for tile in tiles]


def units_between(
    handle: Handle, before: TableView, after: TableView, blocks: Sequence[LogBlock] | None
) -> list[FeedUnit]:
    """How two versions differ, whatever was committed between them. File slices that both have are passed over.

    :param blocks: all records that were committed between; ``None`` where that is not known.
    """
    old, new = _spec(handle, before), _spec(handle, after)
    sides = _apart(before, after), _apart(after, before)
    counts = [view.config.buckets or 1 for view in (before, after)]
    counts += [tile.buckets for tiles in sides for tile in tiles]
    common, moment = min(counts), after.snapshot.timestamp_ms
    groups: dict[tuple[Partition, int], tuple[list[Tile], list[Tile]]] = defaultdict(lambda: ([], []))
    for place, tiles in enumerate(sides):
        for tile in tiles:
            groups[tile.slice.partition, tile.slice.bucket % common][place].append(tile)
    units = []
    for group in sorted(groups, key=_slice_order):
        limits = Tile(SliceId(*group), common, None, None, None, ())
        for span in _spans(groups[group]):
            was, now = (tuple(_inside(tile, span) for tile in tiles if _meets(tile, span)) for tiles in groups[group])
            keys = None
            if blocks is not None:
                reach = tuple(b for b in blocks if b.covers(limits.slice, common) and _may_hold(span, b))
                keys = (replace(limits, wanted=span), reach)
                if not reach:
                    continue
            units.append(FeedUnit(after.version, moment, Side(old, was), Side(new, now), keys))
    return units


def _spec(handle: Handle, view: TableView) -> MergeSpec:
    return MergeSpec(handle.store, view.config, handle.merger(view), handle.settings)


def _is_of(block: LogBlock, version: int) -> bool:
    """Whether a commit brought the block. One that a log compaction made has older records."""
    return block.version == version and block.packed_from is None


def _apart(view: TableView, other: TableView) -> list[Tile]:
    """File slices whose rows may not be those of a file slice of another version."""
    same = set(map(_contents, other.tiles)) if view.config == other.config else set()
    return [tile for tile in _ordered(view.tiles) if _contents(tile) not in same]


def _contents(tile: Tile) -> Hashable:
    """What decides of a file slice's rows."""
    base = None if tile.base is None else tile.base.add.path
    return tile.slice, tile.buckets, base, tile.lower, tile.upper, tile.blocks, tile.minor, tile.expiries


def _ordered(tiles: Iterable[Tile]) -> list[Tile]:
    return sorted(tiles, key=lambda tile: (_slice_order(tile.slice), () if tile.lower is None else tile.lower))


def _slice_order(of: tuple[Partition, int]) -> tuple[tuple[tuple[bool, str], ...], int]:
    partition, bucket = of
    return tuple((value is not None, value or "") for value in partition), bucket


def _spans(sides: tuple[list[Tile], list[Tile]]) -> Iterator[KeySpan]:
    """Key ranges, each of which begins where some file slice does."""
    lowers: set[Key] = {tile.lower for tiles in sides for tile in tiles if tile.lower is not None}
    bounds: list[Key | None] = [None, *sorted(lowers), None]
    return (KeySpan(low, high) for low, high in pairwise(bounds))


def _meets(tile: Tile, span: KeySpan) -> bool:
    begins = span.high is None or tile.lower is None or tile.lower < span.high
    return begins and (span.low is None or tile.upper is None or tile.upper > span.low)


def _inside(tile: Tile, span: KeySpan) -> Tile:
    blocks = tuple(block for block in tile.blocks if _may_hold(span, block))
    return replace(tile, wanted=span, blocks=blocks)


def _may_hold(span: KeySpan, block: LogBlock) -> bool:
    return span.may_hold(block.key_min or (), block.key_max or ())
