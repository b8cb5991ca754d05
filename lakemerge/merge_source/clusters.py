"""Which entities are the same: connected components over the values that they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from lakemerge.merge_source.ids import composite_ids
from lakemerge.merge_source.lists import Bools, Ints, contiguous, run_starts, spread
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.values import Held

__all__ = ["Clusters", "Link", "components", "find_clusters", "links_of"]


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


def find_clusters(rules: Rules, datasets: Ints, ids: pa.Array, deleted: Bools, held: Held) -> Clusters:
    """The clusters of entities, with composite ids.

    :param datasets: the datasets of the entities, which are sorted by dataset and id.
    :param held: the values of the entities; deleted entities have none.
    """
    left, right = _edges(rules, held)
    root = components(len(datasets), left, right)
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


def links_of(rules: Rules, held: Held) -> list[Link]:
    """The values that join entities; those with the most holders come first."""
    texts = held.encoded.dictionary
    found = []
    for number, rows, codes, numbers in _by_class(rules, held):
        starts = run_starts(codes)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(codes)], strict=True):
            expressions = tuple(np.unique(numbers[start:end]).tolist())
            entities = tuple(np.unique(rows[start:end]).tolist())
            if len(expressions) > 1 and len(entities) > 1:
                found.append(Link(number, texts[int(codes[start])].as_py(), expressions, entities))
    return sorted(found, key=lambda link: (-len(link.entities), link.class_number, link.value))


def _edges(rules: Rules, held: Held) -> tuple[Ints, Ints]:
    """Pairs of entities that share a value through two expressions of a class: each holder with the first holder."""
    left: list[Ints] = [np.empty(0, dtype=np.int64)]
    right: list[Ints] = [np.empty(0, dtype=np.int64)]
    for _, rows, codes, numbers in _by_class(rules, held):
        starts = run_starts(codes)
        sizes = np.diff(np.append(starts, len(codes)))
        run = np.repeat(np.arange(len(starts)), sizes)
        # Expressions ascend within a value: if the first is not the last, there are two.
        active = (numbers[starts] != numbers[starts + sizes - 1])[run]
        left.append(rows[starts][run][active])
        right.append(rows[active])
    return np.concatenate(left), np.concatenate(right)


def _by_class(rules: Rules, held: Held) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """For each class, the values of its expressions: rows, codes of the values, and expressions, sorted by value and
    expression."""
    codes = held.codes
    for number, expressions in enumerate(rules.classes):
        inside = np.flatnonzero(np.isin(held.expressions, expressions))
        order = inside[np.lexsort((held.expressions[inside], codes[inside]))]
        if len(order):
            yield number, held.rows[order], codes[order], held.expressions[order]
