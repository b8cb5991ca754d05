"""Which entities are the same: connected components over the values that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.ids import composite_ids
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, run_starts, spread
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.separation import Cut, Group, separated, violated

__all__ = [
    "Clusters",
    "Formed",
    "LeftOut",
    "Link",
    "certain_holders",
    "components",
    "find_clusters",
    "grouped",
    "joining",
    "links_of",
    "oversize",
]


@dataclass(frozen=True)
class Clusters:
    """Clusters, sorted by their first members; the members of each are sorted, too. A deleted entity is alone."""

    offsets: Ints
    """Where the members of each cluster begin, and where those of the last one end."""
    members: Ints
    """The places of the members among the entities from which the clusters were formed."""
    datasets: Ints
    """The datasets of the members."""
    ids: pa.Array
    """The ids of the members."""
    deleted: Bools
    """Which clusters are deleted."""
    output_ids: pa.Array
    """The output ids of the clusters."""
    split_into: pa.Array | None = None
    """The lists of ids that the entities were split into; ``None`` if ids are not stable."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def of_members(self) -> Ints:
        """The cluster of each member."""
        return spread(np.diff(self.offsets))[0]

    def range(self, start: int, end: int) -> Clusters:
        """Some consecutive clusters."""
        first, last = int(self.offsets[start]), int(self.offsets[end])
        return Clusters(
            self.offsets[start : end + 1] - first,
            self.members[first:last],
            self.datasets[first:last],
            contiguous(self.ids.slice(first, last - first)),
            self.deleted[start:end],
            contiguous(self.output_ids.slice(start, end - start)),
            None if self.split_into is None else contiguous(self.split_into.slice(start, end - start)),
        )

    def batches(self, members: int) -> Iterator[tuple[int, Clusters]]:
        """All clusters, about so many members at a time, each time with the number of the first cluster."""
        start = 0
        while start < len(self):
            limit = int(self.offsets[start]) + members
            end = max(start + 1, int(np.searchsorted(self.offsets, limit, side="right")) - 1)
            yield start, self.range(start, end)
            start = end

    def named(self, output_ids: pa.Array) -> Clusters:
        return replace(self, output_ids=output_ids)


@dataclass(frozen=True, slots=True)
class Link:
    """A value that joins entities within a class of expressions."""

    class_number: int
    value: str
    expressions: tuple[int, ...]
    entities: tuple[int, ...]
    """The places of the entities, ascending."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Values that join nobody in their class, since they would make too many entities one."""

    classes: Ints
    values: pa.Array
    counts: Ints
    """How many entities hold each."""
    chains: Bools
    """Whether each is left out because of a chain; else because of its own holders alone."""

    def __len__(self) -> int:
        return len(self.classes)

    def codes(self, class_number: int, held: Held) -> Ints:
        """Those of a class, as the numbers that the held values have."""
        values = self.values.filter(pa.array(self.classes == class_number))
        found = pc.index_in(values, value_set=held.encoded.dictionary)
        return found.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)

    @staticmethod
    def none() -> LeftOut:
        nothing = np.empty(0, dtype=np.int64)
        return LeftOut(nothing, pa.array([], pa.string()), nothing, nothing.astype(np.bool_))

    @staticmethod
    def together(parts: Sequence[LeftOut]) -> LeftOut:
        given = [LeftOut.none(), *parts]
        return LeftOut(
            np.concatenate([part.classes for part in given]),
            contiguous(pa.chunked_array([part.values for part in given], pa.string())),
            np.concatenate([part.counts for part in given]),
            np.concatenate([part.chains for part in given]),
        )


@dataclass(frozen=True, slots=True)
class Formed:
    """Clusters, and what was left out so that none is too large."""

    clusters: Clusters
    chained: Ints
    """For each entity the first of those that would be one if no chain were cut; -1 where no chain is cut."""
    left_out: LeftOut
    """The values that cut chains."""
    cuts: tuple[Cut, ...] = ()
    """The links that were cut so that rows stay apart."""
    uncut: Clusters | None = None
    """The clusters before that, if any link was cut."""


def components(count: int, left: Ints, right: Ints) -> Ints:
    """For each node, the smallest node that edges connect with it.

    Roots hook to smaller roots, and pointers jump until all point to roots. This takes a few rounds over whole arrays.
    """
    root = np.arange(count, dtype=np.int64)
    while len(left):
        one, other = root[left], root[right]
        apart = one != other
        left, right, one, other = left[apart], right[apart], one[apart], other[apart]
        # If several edges hook the same root, one wins; the others come again in the next round.
        root[np.maximum(one, other)] = np.minimum(one, other)
        while True:
            further = root[root]
            if np.array_equal(further, root):
                break
            root = further
    return root


def find_clusters(
    rules: Rules,
    datasets: Ints,
    ids: pa.Array,
    deleted: Bools,
    held: Held,
    *,
    left_out: LeftOut | None = None,
    limit: int | None = None,
    one_per: Collection[int] = (),
) -> Formed:
    """The clusters of entities, with composite ids.

    :param datasets: the datasets of the entities, which are sorted by dataset and id.
    :param held: the values of the entities; deleted entities have none.
    :param left_out: values that join nobody.
    :param limit: how many entities may become one. If more would, the values with the most holders among them are left
        out, all of the same number at once, until no cluster is too large.
    :param one_per: the datasets of which a cluster has at most one entity.
    """
    edges = _Edges.of(rules, held, LeftOut.none() if left_out is None else left_out)
    root, chained, cut = _within(limit, len(datasets), edges, edges.strengths(rules))
    cuts: tuple[Cut, ...] = ()
    uncut = None
    if rules.different or one_per:
        bad, pairs = violated(rules, held, root, datasets, one_per)
        if len(bad):
            uncut = grouped(root, datasets, ids, deleted)
            groups = list(edges.groups_in(np.isin(root, bad), held, without=cut))
            parts = separated(rules, root, datasets, one_per, bad, pairs, groups)
            chained[parts.touched] = np.where(chained < 0, root, chained)[parts.touched]
            root, cuts = parts.root, parts.cuts
    clusters = grouped(root, datasets, ids, deleted)
    values = held.encoded.dictionary.take(pa.array(edges.codes[cut]))
    chains = np.ones(len(cut), dtype=np.bool_)
    return Formed(clusters, chained, LeftOut(edges.classes[cut], values, edges.widths[cut], chains), cuts, uncut)


def grouped(root: Ints, datasets: Ints, ids: pa.Array, deleted: Bools) -> Clusters:
    """Clusters with composite ids.

    :param root: for each entity the first one of its cluster.
    """
    order = np.argsort(root, kind="stable")
    starts = run_starts(root[order])
    offsets = np.concatenate([starts, np.array([len(order)], dtype=np.int64)])
    member_datasets, member_ids = datasets[order], ids.take(pa.array(order))
    return Clusters(
        offsets=offsets,
        members=order,
        datasets=member_datasets,
        ids=member_ids,
        deleted=deleted[order[starts]],
        output_ids=composite_ids(offsets, member_datasets, member_ids),
    )


def _within(limit: int | None, count: int, edges: _Edges, widths: Ints) -> tuple[Ints, Ints, Ints]:
    """The first entity of the cluster of each; that of the cluster that an uncut chain would make, or -1; and the
    groups of edges that are cut.

    :param widths: for each group how soon it is cut: the highest goes first.
    """
    root = components(count, edges.left, edges.right)
    chained = np.full(count, -1, dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    if limit is None:
        return root, chained, none
    large = np.bincount(root, minlength=count)[root] > limit
    chained[large] = root[large]
    alive = np.ones(len(edges.classes), dtype=np.bool_)
    while large.any():
        # Groups that hold large clusters together; each lies in one cluster.
        groups = np.flatnonzero(alive & large[edges.firsts])
        cluster, own = root[edges.firsts[groups]], widths[groups]
        widest = np.zeros(count, dtype=np.int64)
        np.maximum.at(widest, cluster, own)
        alive[groups[own == widest[cluster]]] = False
        kept = alive[edges.groups]
        root = components(count, edges.left[kept], edges.right[kept])
        large = np.bincount(root, minlength=count)[root] > limit
    return root, chained, np.flatnonzero(~alive)


def oversize(rules: Rules, held: Held, limit: int) -> LeftOut:
    """The values whose own holders are more than may become one, as :func:`certain_holders` counts them."""
    datasets = np.array([one.dataset for one in rules.expressions], dtype=np.int64)
    parts = []
    for number, _, codes, numbers in _by_class(rules, held):
        starts = run_starts(codes, numbers)
        counts = np.diff(np.append(starts, len(codes)))
        given, through = codes[starts], numbers[starts]
        size = int(codes.max()) + 1
        total = certain_holders(given, datasets[through], counts, size)
        joins = joining(rules, given, through, size)
        wide = np.flatnonzero(joins & (total > limit))
        values = held.encoded.dictionary.take(pa.array(wide))
        parts.append(
            LeftOut(
                np.full(len(wide), number, dtype=np.int64), values, total[wide], np.zeros(len(wide), dtype=np.bool_)
            )
        )
    return LeftOut.together(parts)


def certain_holders(codes: Ints, datasets: Ints, counts: Ints, size: int) -> Ints:
    """How many entities hold each value at least, from how many hold it through each expression of a class: entities of
    two datasets are different, and an expression counts each entity once.

    :param codes: the number of the value, for each pair of an expression and a value.
    :param size: how many numbers of values there are.
    """
    total = np.zeros(size, dtype=np.int64)
    for dataset in np.unique(datasets):
        own = datasets == dataset
        most = np.zeros(size, dtype=np.int64)
        np.maximum.at(most, codes[own], counts[own])
        total += most
    return total


def joining(rules: Rules, codes: Ints, numbers: Ints, size: int) -> Bools:
    """Which values can join entities of a class: those that two expressions give, or one that joins alone.

    :param codes: the number of the value, for each pair of an expression and a value that somebody holds.
    :param numbers: the expressions.
    """
    joins: Bools = np.bincount(codes, minlength=size) > 1
    joins[codes[np.isin(numbers, rules.alone)]] = True
    return joins


def links_of(rules: Rules, held: Held, left_out: LeftOut | None = None) -> list[Link]:
    """The values that join entities; those with the most holders come first."""
    texts = held.encoded.dictionary
    found = []
    for number, rows, codes, numbers in _by_class(rules, held):
        skipped = set() if left_out is None else set(left_out.codes(number, held).tolist())
        starts = run_starts(codes)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(codes)], strict=True):
            expressions = tuple(np.unique(numbers[start:end]).tolist())
            entities = tuple(np.unique(rows[start:end]).tolist())
            joins = len(expressions) > 1 or expressions[0] in rules.alone
            if joins and len(entities) > 1 and int(codes[start]) not in skipped:
                found.append(Link(number, texts[int(codes[start])].as_py(), expressions, entities))
    return sorted(found, key=lambda link: (-len(link.entities), link.class_number, link.value))


@dataclass(frozen=True, slots=True)
class _Edges:
    """Pairs of entities that share a value through two expressions of a class, or through one that joins alone: each
    holder with the first holder. The pairs of one value in one class are a group."""

    left: Ints
    right: Ints
    groups: Ints
    """The group of each pair."""
    classes: Ints
    codes: Ints
    """The class and the value of each group."""
    widths: Ints
    """How many entities hold it."""
    firsts: Ints
    """Its first holder."""

    def strengths(self, rules: Rules) -> Ints:
        """For each group how many hold its value; 1 for what an override joins, which is cut after all values."""
        same = [number for number, numbers in enumerate(rules.classes) if set(numbers) & set(rules.same)]
        return np.where(np.isin(self.classes, same), 1, self.widths)

    def groups_in(self, inside: Bools, held: Held, *, without: Ints) -> Iterator[Group]:
        """The values that join chosen entities.

        :param without: groups that are cut.
        """
        chosen = np.flatnonzero(inside[self.left] & ~np.isin(self.groups, without))
        starts = run_starts(self.groups[chosen])
        texts = held.encoded.dictionary
        for start, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
            group = int(self.groups[chosen[start]])
            holders = np.unique(self.right[chosen[start:end]]).tolist()
            yield Group(int(self.classes[group]), texts[int(self.codes[group])].as_py(), holders)

    @staticmethod
    def of(rules: Rules, held: Held, left_out: LeftOut) -> _Edges:
        parts: list[tuple[Ints, ...]] = [(np.empty(0, dtype=np.int64),) * 7]
        count = 0
        for number, rows, codes, numbers in _by_class(rules, held):
            starts = run_starts(codes)
            sizes = np.diff(np.append(starts, len(codes)))
            run = np.repeat(np.arange(len(starts)), sizes)
            # Expressions ascend within a value: if the first is not the last, there are two.
            joins = numbers[starts] != numbers[starts + sizes - 1]
            for single in set(rules.alone) & set(rules.classes[number]):
                joins[run[numbers == single]] = True
            if len(left_out):
                joins &= ~np.isin(codes[starts], left_out.codes(number, held))
            widths = np.bincount(run[_distinct_pairs(run, rows)], minlength=len(starts))
            joins &= widths > 1
            active, new = joins[run], np.cumsum(joins) - 1 + count
            count += int(joins.sum())
            whole = np.full(int(joins.sum()), number, dtype=np.int64)
            firsts = rows[starts]
            parts.append(
                (
                    firsts[run][active],
                    rows[active],
                    new[run][active],
                    whole,
                    codes[starts][joins],
                    widths[joins],
                    firsts[joins],
                )
            )
        return _Edges(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _distinct_pairs(groups: Ints, rows: Ints) -> Ints:
    """The places of the first of each pair."""
    order = np.lexsort((rows, groups))
    found: Ints = order[run_starts(groups[order], rows[order])]
    return found


def _by_class(rules: Rules, held: Held) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """For each class, the values of its expressions: rows, codes of the values, and expressions, sorted by value and
    expression."""
    codes = held.codes
    for number, expressions in enumerate(rules.classes):
        inside = np.flatnonzero(np.isin(held.expressions, expressions))
        order = inside[np.lexsort((held.expressions[inside], codes[inside]))]
        if len(order):
            yield number, held.rows[order], codes[order], held.expressions[order]
