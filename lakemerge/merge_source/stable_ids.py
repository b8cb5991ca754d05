"""Ids that stay: which entity continues an id, and what became of the ids whose rows went elsewhere.

The rule is in docs/merge-source.md, "Stable ids". It needs only the clusters before and after a run, so full and
incremental runs give the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import InputError
from lakemerge.merge_source.clusters import Clusters, grouped
from lakemerge.merge_source.combine import STABLE
from lakemerge.merge_source.entity_states import Known
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, run_starts, spread
from lakemerge.merge_source.output_ids import OldClusters
from lakemerge.merge_source.results import IdChanges
from lakemerge.table.table import LakeTable

__all__ = [
    "Minting",
    "Named",
    "Overlaps",
    "id_changes",
    "ids_ever",
    "ids_of_now",
    "next_number_of",
    "overlaps",
    "split_before",
    "used_up",
    "with_stable_ids",
]

_LISTS = STABLE.field("$split_into").type
_NUMBER = r"^[1-9][0-9]{0,17}$"
_LAST_NUMBER = 10**18 - 1
"""Ids have at most 18 digits, so that they fit in 64 bits."""


@dataclass(frozen=True, slots=True)
class Minting:
    """Where ids of new entities come from."""

    next_number: int
    continues: bool
    """Whether the earlier ids are stable ones, and stay."""


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Pairs of an earlier and a present cluster that share live rows, by number of the earlier one."""

    olds: Ints
    news: Ints
    counts: Ints
    """How many rows they share."""

    def where(self, keep: Bools) -> Overlaps:
        return Overlaps(self.olds[keep], self.news[keep], self.counts[keep])

    def ordered(self, ages: Ints) -> Overlaps:
        """Sorted by the earlier cluster. The present cluster with most of its rows comes first; if several have as
        many, the oldest of them does.

        :param ages: a number for each present cluster.
        """
        order = np.lexsort((ages[self.news], -self.counts, self.olds))
        return Overlaps(self.olds[order], self.news[order], self.counts[order])

    def lists(self, ids: pa.Array) -> dict[int, list[str]]:
        """The ids of the present clusters, by earlier one."""
        starts = [*run_starts(self.olds).tolist(), len(self.olds)]
        texts = ids.take(pa.array(self.news)).to_pylist()
        return {int(self.olds[at]): texts[at:end] for at, end in pairwise(starts)}


@dataclass(frozen=True, slots=True)
class Named:
    """Clusters with stable ids."""

    clusters: Clusters
    next_number: int
    went_to: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Retired id -> the ids that have its rows."""


def overlaps(known: Known, clusters: Clusters, old: OldClusters) -> Overlaps:
    """Which earlier and present clusters share rows that are live."""
    place = known.places_of(old.datasets, old.ids)
    group, _ = spread(np.diff(old.offsets))
    there = (place >= 0) & np.append(~known.deleted, False)[place]
    cluster_of = np.empty(len(known), dtype=np.int64)
    cluster_of[clusters.members] = clusters.of_members
    width = max(len(clusters), 1)
    pairs, counts = np.unique(group[there] * width + cluster_of[place[there]], return_counts=True)
    return Overlaps(pairs // width, pairs % width, counts.astype(np.int64))


def with_stable_ids(known: Known, clusters: Clusters, old: OldClusters, minting: Minting) -> Named:
    """The clusters with the ids that they keep or get. Deleted entities are together, and shown, where they are all
    that is left of an id; any other does not show."""
    pairs = overlaps(known, clusters, old)
    numbers = _numbers(old.output_ids) if minting.continues else np.zeros(len(old), dtype=np.int64)
    numbers = np.where(old.unknown, 0, numbers)
    holders = _claimed(pairs.where(numbers[pairs.olds] > 0), numbers, ~old.live, len(clusters))
    firsts = clusters.members[clusters.offsets[:-1]]
    fresh = np.flatnonzero((holders < 0) & ~clusters.deleted)
    given = np.where(holders >= 0, numbers[holders] if len(old) else 0, 0)
    if minting.next_number + len(fresh) - 1 > _LAST_NUMBER:
        raise used_up()
    given[fresh] = minting.next_number + np.arange(len(fresh))
    number_of = np.zeros(len(known), dtype=np.int64)  # by first member
    number_of[firsts] = given
    went = _split_lists(pairs, holders, given, len(old))
    lists = _carried(old, holders, went)
    list_of = np.full(len(known), -1, dtype=np.int64)  # by first member
    list_of[firsts] = np.arange(len(clusters))
    list_of[firsts[clusters.deleted]] = -1
    remains = _remains(known, clusters, old, pairs, numbers)
    if remains is not None:
        number_of[remains.firsts] = numbers[remains.olds]
        list_of[remains.firsts] = len(lists) + remains.olds
        lists = contiguous(pa.chunked_array([lists, contiguous(old.records.column("split_into"))], _LISTS))
        clusters = grouped(remains.root, known.datasets, known.ids, known.deleted)
    leading = clusters.members[clusters.offsets[:-1]]
    shown = number_of[leading]
    ids = pa.array(shown, mask=shown == 0).cast(pa.string())
    lists = lists.take(pa.array(list_of[leading], mask=list_of[leading] < 0))
    told = old.output_ids.to_pylist() if went else []
    kept = set(holders[holders >= 0].tolist())
    return Named(
        replace(clusters, output_ids=ids, split_into=contiguous(lists)),
        minting.next_number + len(fresh),
        {told[place]: names for place, names in went.items() if place not in kept},
    )


def next_number_of(ids: pa.Array, at_least: int) -> int:
    """The first number from ``at_least`` on that is after all ids that are numbers."""
    return max(at_least, 1 + int(_numbers(ids).max(initial=0)))


def used_up() -> InputError:
    """The error for a source that has no numbers left."""
    return InputError(
        f"stable ids are numbers of at most 18 digits, and ids up to {_LAST_NUMBER} were given or are in the output. "
        "Nothing was changed. If a row of the output that no run wrote has such an id, delete the row. Otherwise "
        "create the source at a new path"
    )


def ids_of_now(output: LakeTable, output_id: str) -> list[str]:
    """The ids that have what an id of the output had. Raises :class:`lakemerge.InputError` if there is no such id."""
    seen, found, waiting = {output_id}, list[str](), [output_id]
    while waiting:
        told = [name for name in ("_id", "_deleted", *STABLE.names) if name in output.schema.names]
        by_id = {row["_id"]: row for row in output.get(pa.table({"_id": waiting}), columns=told).to_pylist()}
        if output_id in waiting and output_id not in by_id:
            raise InputError(f"the output has no entity {output_id!r}", id=output_id)
        following: list[str] = []
        for name in waiting:
            row = by_id.get(name)
            if row is None:
                continue
            if not row["_deleted"]:
                found.append(name)
            heirs = [*(row.get("$split_into") or ()), *filter(None, [row.get("$replaced_by")])]
            following += [heir for heir in dict.fromkeys(heirs) if heir not in seen]
            seen.update(following)
        waiting = following
    return found


def ids_ever(output: LakeTable) -> pa.Array:
    """All ids of the output, those of retired entities, too."""
    return contiguous(output.to_arrow(columns=["_id"]).column("_id"))


def split_before(old: OldClusters, retired: pa.Array) -> dict[str, list[str]]:
    """Retired id -> the ids that it was split into while it lived."""
    lists = contiguous(old.records.column("split_into"))
    chosen = pc.and_(lists.is_valid(), pc.is_in(old.output_ids, value_set=retired))
    return dict(zip(old.output_ids.filter(chosen).to_pylist(), lists.filter(chosen).to_pylist(), strict=True))


def id_changes(known: Known, clusters: Clusters, old: OldClusters, retired: pa.Array, *, stable: bool) -> IdChanges:
    """What becomes of ids.

    :param retired: the ids that no entities have any more.
    :param stable: whether the ids of now are stable ones, whose age decides among equals.
    """
    shown = clusters.output_ids
    there = shown.is_valid().to_numpy(zero_copy_only=False)
    before = old.output_ids
    found = overlaps(known, clusters, old)
    found = found.where(there[found.news])
    own = pc.equal(before.take(pa.array(found.olds)), shown.take(pa.array(found.news)))
    ranked = _own_first(found, own.to_numpy(zero_copy_only=False))
    lists = ranked.ordered(_numbers(shown) if stable else np.arange(len(clusters))).lists(shown)
    gone = set(retired.to_pylist())
    join, split = {}, {}
    told = before.to_pylist() if lists else []
    for place, names in lists.items():
        if told[place] in gone:
            join[told[place]] = names[0]
        if len(names) > 1:
            split[told[place]] = tuple(names)
    dead = shown.filter(pa.array(there & clusters.deleted))
    died = dead.filter(pc.is_in(dead, value_set=before.filter(pa.array(old.live))))
    lost = [name for name in retired.to_pylist() if name not in join]
    # What only a deleted entity had, and a live one has now, appears again.
    alive = pa.array(there & ~clusters.deleted)
    known_before = pc.if_else(
        alive,
        pc.is_in(shown, value_set=before.filter(pa.array(old.live))),
        pc.is_in(shown, value_set=before),
    )
    appear = shown.filter(pc.and_(shown.is_valid(), pc.invert(known_before)))
    return IdChanges(
        appear=tuple(appear.to_pylist()), join=join, split=split, go=tuple(sorted([*died.to_pylist(), *lost]))
    )


def _numbers(ids: pa.Array) -> Ints:
    """The numbers that ids are; 0 for one that is none."""
    good = pc.fill_null(pc.match_substring_regex(ids, _NUMBER), False)
    return pc.if_else(good, ids, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)


def _claimed(pairs: Overlaps, numbers: Ints, dead: Bools, count: int) -> Ints:
    """For each present cluster the earlier one whose id it keeps, or -1.

    In each round those pairs win that come first for both of their clusters. That gives what settling pair after pair
    in order gives, in few rounds over whole arrays.

    :param dead: which of the earlier clusters were deleted. Their ids come after those that live.
    """
    holders = np.full(count, -1, dtype=np.int64)
    order = np.lexsort((pairs.news, numbers[pairs.olds], -pairs.counts, dead[pairs.olds]))
    olds, news, ranks = pairs.olds[order], pairs.news[order], np.arange(len(order))
    while len(ranks):
        first_old = np.full(len(numbers), len(order), dtype=np.int64)
        first_new = np.full(count, len(order), dtype=np.int64)
        np.minimum.at(first_old, olds, ranks)
        np.minimum.at(first_new, news, ranks)
        won = (ranks == first_old[olds]) & (ranks == first_new[news])
        holders[news[won]] = olds[won]
        open_pairs = ~np.isin(olds, olds[won]) & ~np.isin(news, news[won])
        olds, news, ranks = olds[open_pairs], news[open_pairs], ranks[open_pairs]
    return holders


def _split_lists(pairs: Overlaps, holders: Ints, given: Ints, count: int) -> dict[int, list[str]]:
    """By earlier cluster, the ids that have its rows, where these are not its own alone. Its own comes first."""
    own = holders[pairs.news] == pairs.olds
    plain = np.bincount(pairs.olds, minlength=count) == np.bincount(pairs.olds[own], minlength=count)
    chosen = ~plain[pairs.olds]
    moved = _own_first(pairs, own).where(chosen)
    return moved.ordered(given).lists(pa.array(given).cast(pa.string()))


def _own_first(pairs: Overlaps, own: Bools) -> Overlaps:
    """The same pairs with counts by which those of an id and the entity that keeps it come first."""
    return Overlaps(pairs.olds, pairs.news, np.where(own, np.int64(2**62), pairs.counts))


def _carried(old: OldClusters, holders: Ints, went: Mapping[int, Sequence[str]]) -> pa.Array:
    """The lists of ids that present clusters' own ids were split into, those of earlier splits, too."""
    lists = contiguous(old.records.column("split_into")).take(pa.array(holders, mask=holders < 0))
    new_of = {cluster: went[place] for cluster, place in enumerate(holders.tolist()) if place in went} if went else {}
    if not new_of:
        return lists
    before = lists.take(pa.array(list(new_of))).to_pylist()
    joined = [
        list(dict.fromkeys([*(earlier or ()), *names])) for earlier, names in zip(before, new_of.values(), strict=True)
    ]
    both = contiguous(pa.chunked_array([lists, pa.array(joined, _LISTS)], _LISTS))
    at = np.arange(len(lists))
    at[list(new_of)] = len(lists) + np.arange(len(joined))
    return both.take(pa.array(at))


@dataclass(frozen=True, slots=True)
class _Remains:
    """Deleted entities that are all that is left of an id. They are one cluster."""

    root: Ints
    """For each entity the first one of its cluster."""
    firsts: Ints
    olds: Ints
    """The earlier clusters of these first members."""


def _remains(known: Known, clusters: Clusters, old: OldClusters, pairs: Overlaps, numbers: Ints) -> _Remains | None:
    if not clusters.deleted.any() or not len(old):
        return None
    place = known.places_of(old.datasets, old.ids)
    group, _ = spread(np.diff(old.offsets))
    ended = numbers > 0
    ended[pairs.olds] = False
    inside = (place >= 0) & ended[group]
    place, group = place[inside], group[inside]
    if not len(place):
        return None
    firsts = np.full(len(old), len(known), dtype=np.int64)
    np.minimum.at(firsts, group, place)
    root = np.empty(len(known), dtype=np.int64)
    root[clusters.members] = clusters.members[clusters.offsets[:-1]][clusters.of_members]
    root[place] = firsts[group]
    olds = np.unique(group)
    return _Remains(root, firsts[olds], olds)
