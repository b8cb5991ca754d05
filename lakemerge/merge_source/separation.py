"""Keeps rows apart that must not be one entity: pairs that an override calls different, and rows of a dataset of which
an entity has at most one.

Only clusters in which this is violated are looked at. Their links are taken one by one, the strongest first, and a link
that would put two such rows together is cut. The order is in docs/merge-source.md, "Overrides".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakemerge.merge_source.nested_arrays import Ints
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.rules import Rules

__all__ = ["Cut", "Group", "Separated", "different_pairs", "separated", "violated"]

_MOST_GROUPS = 100
"""How many groups of a value's holders a further holder may join."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A link that was cut."""

    class_number: int
    value: str
    one: int
    other: int
    """The places of the entities that it would have joined."""
    pair: str | None
    """The override that keeps them apart; ``None``: both have a row of ``dataset``."""
    dataset: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A value that joins entities of one cluster."""

    class_number: int
    value: str
    holders: Sequence[int]
    """The places of the entities, ascending."""


@dataclass(frozen=True, slots=True)
class Separated:
    """Clusters after links were cut."""

    root: Ints
    """For each entity the first one of its cluster."""
    touched: Ints
    """The entities of clusters in which links were cut."""
    cuts: tuple[Cut, ...] = ()


def different_pairs(rules: Rules, held: Held, root: Ints) -> list[tuple[int, int, str]]:
    """The entities of one cluster that overrides call different, and the override."""
    inside = np.flatnonzero(np.isin(held.expressions, rules.different))
    codes, rows = held.codes[inside], held.rows[inside]
    order = np.lexsort((rows, codes))
    codes, rows = codes[order], rows[order]
    # An override that both of its rows hold is there twice.
    both = np.flatnonzero((codes[1:] == codes[:-1]) & (root[rows[1:]] == root[rows[:-1]]))
    texts = held.encoded.dictionary.take(pa.array(codes[both])).to_pylist()
    return list(zip(rows[both].tolist(), rows[both + 1].tolist(), texts, strict=True))


def violated(
    rules: Rules, held: Held, root: Ints, datasets: Ints, one_per: Collection[int]
) -> tuple[Ints, list[tuple[int, int, str]]]:
    """The first entities of clusters that must be cut, and the pairs that are apart in them."""
    together = different_pairs(rules, held, root)
    found = [np.array([root[one] for one, _, _ in together], dtype=np.int64)]
    for dataset in one_per:
        counts = np.bincount(root[datasets == dataset], minlength=len(root))
        found.append(np.flatnonzero(counts > 1))
    return np.unique(np.concatenate(found)), together


def separated(
    rules: Rules,
    root: Ints,
    datasets: Ints,
    one_per: Collection[int],
    bad: Ints,
    pairs: Sequence[tuple[int, int, str]],
    groups: Sequence[Group],
) -> Separated:
    """Cut the clusters that must be cut.

    :param bad: their first entities.
    :param groups: the values that join entities in these clusters.
    """
    touched = np.flatnonzero(np.isin(root, bad))
    joined = _Joined(touched.tolist(), datasets, frozenset(one_per), pairs)
    same = {number for number, numbers in enumerate(rules.classes) if set(numbers) & set(rules.same)}
    cuts: list[Cut] = []

    def strength(group: Group) -> tuple[bool, int, int, bytes]:
        is_same = group.class_number in same
        return not is_same, 0 if is_same else len(group.holders), group.class_number, group.value.encode()

    for group in sorted(groups, key=strength):
        firsts: list[int] = []
        for entity in group.holders:
            if any(joined.join(first, entity) for first in firsts[:_MOST_GROUPS]):
                continue
            if firsts:
                pair, dataset = joined.reason(firsts[0], entity)
                cuts.append(Cut(group.class_number, group.value, firsts[0], entity, pair, dataset))
            firsts.append(entity)
    new = root.copy()
    new[touched] = [joined.first(entity) for entity in touched.tolist()]
    return Separated(new, touched, tuple(cuts))


@dataclass(slots=True)
class _Joined:
    """Groups of entities that may be one. Each entity begins alone."""

    entities: Sequence[int]
    datasets: Ints
    one_per: frozenset[int]
    pairs: Sequence[tuple[int, int, str]]
    _group: dict[int, int] = field(default_factory=dict)
    _members: dict[int, list[int]] = field(default_factory=dict)
    _single: dict[int, set[int]] = field(default_factory=dict)
    """Datasets of which a group has its one row."""
    _apart: dict[int, dict[int, str]] = field(default_factory=dict)
    """For each entity those that are not the same."""

    def __post_init__(self) -> None:
        for entity in self.entities:
            self._group[entity] = entity
            self._members[entity] = [entity]
            self._single[entity] = {int(self.datasets[entity])} & self.one_per
        # Of several overrides of a pair the first by key is told.
        for one, other, pair in sorted(self.pairs, key=lambda told: told[2].encode()):
            self._apart.setdefault(one, {}).setdefault(other, pair)
            self._apart.setdefault(other, {}).setdefault(one, pair)

    def first(self, entity: int) -> int:
        return min(self._members[self._group[entity]])

    def join(self, one: int, other: int) -> bool:
        """Make the groups of two entities one. False if they must not be."""
        stays, goes = self._group[one], self._group[other]
        if stays == goes:
            return True
        if self.reason(one, other) != (None, None):
            return False
        if len(self._members[stays]) < len(self._members[goes]):
            stays, goes = goes, stays
        for entity in self._members[goes]:
            self._group[entity] = stays
        self._members[stays] += self._members.pop(goes)
        self._single[stays] |= self._single.pop(goes)
        return True

    def reason(self, one: int, other: int) -> tuple[str | None, int | None]:
        """Why two groups must not be one: the first override by key, or else a dataset."""
        left, right = self._group[one], self._group[other]
        if len(self._members[left]) > len(self._members[right]):
            left, right = right, left
        found = [
            pair
            for entity in self._members[left]
            for enemy, pair in self._apart.get(entity, {}).items()
            if self._group[enemy] == right
        ]
        if found:
            return min(found), None
        both = self._single[left] & self._single[right]
        return None, min(both) if both else None
