"""Stable ids, overrides and limits of datasets in plain Python, as docs/merge-source.md says them. It shares no code
with the product, clusters everything anew in each run, and knows nothing of increments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EntityModel", "Row"]

Row = tuple[int, str]
"""Offset of the dataset, and id."""


@dataclass
class Entity:
    rows: list[Row]
    live: bool = True
    split: list[str] = field(default_factory=list)
    retired: bool = False
    heir: str | None = None
    replaced: bool = False

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.rows:
            found["rows"] = [f"{offset}|{name}" for offset, name in self.rows]
        if self.retired or not self.live:
            found["deleted"] = True
        if self.replaced:
            found["replaced"] = True
        if self.heir is not None:
            found["replaced_by"] = self.heir
        if self.split:
            found["split_into"] = self.split
        return found


def _order(row: Row) -> tuple[int, bytes]:
    return row[0], row[1].encode()


class EntityModel:
    """Tables of rows ``{"x": ..., "y": ...}``; any two different expressions of a class that share a value join.

    :param classes: of each expression the offset of its dataset and its column.
    """

    def __init__(self, classes: Sequence[Sequence[tuple[int, str]]], one_per: Iterable[int] = ()) -> None:
        self.classes = [list(expressions) for expressions in classes]
        self.one_per = set(one_per)
        self.rows: dict[Row, Mapping[str, Any] | None] = {}
        """``None``: deleted."""
        self.overrides: dict[str, tuple[Row, Row, str]] = {}
        self.entities: dict[str, Entity] = {}
        self.next_number = 1
        self.cuts: list[tuple[str, Row, Row]] = []
        """The links that were cut: override or value, and two rows."""

    def run(self) -> dict[str, dict[str, Any]]:
        """The whole output after a run."""
        clusters = self._clusters()
        before = {name: one for name, one in self.entities.items() if not one.retired}
        now = {row: place for place, rows in enumerate(clusters) for row in rows}
        shared: dict[tuple[str, int], int] = {}
        for name, one in before.items():
            for row in one.rows:
                if row in now:
                    shared[name, now[row]] = shared.get((name, now[row]), 0) + 1
        ids = self._settled(before, shared, clusters)
        for name, one in before.items():
            places = [place for held, place in shared if held == name]
            heirs = sorted(
                (ids[place] for place in places),
                key=lambda heir: (heir != name, -shared[name, self._place(ids, heir)], int(heir)),
            )
            if name not in ids.values():
                self._end(one, heirs)
            elif len(heirs) > 1:
                one.split = list(dict.fromkeys([*one.split, *heirs]))
        for place, name in ids.items():
            self.entities.setdefault(name, Entity([]))
            self.entities[name].rows, self.entities[name].live = clusters[place], True
        return {name: one.told() for name, one in self.entities.items()}

    def _settled(
        self, before: Mapping[str, Entity], shared: Mapping[tuple[str, int], int], clusters: Sequence[Sequence[Row]]
    ) -> dict[int, str]:
        """The ids of the clusters, by their place."""
        ids: dict[int, str] = {}

        def rank(pair: tuple[str, int]) -> tuple[bool, int, int, tuple[int, bytes]]:
            name, place = pair
            return not before[name].live, -shared[pair], int(name), _order(clusters[place][0])

        for name, place in sorted(shared, key=rank):
            if place not in ids and name not in ids.values():
                ids[place] = name
        for place in range(len(clusters)):
            if place not in ids:
                ids[place] = str(self.next_number)
                self.next_number += 1
        return ids

    @staticmethod
    def _place(ids: Mapping[int, str], name: str) -> int:
        return next(place for place, held in ids.items() if held == name)

    def _end(self, one: Entity, heirs: list[str]) -> None:
        if heirs:
            one.rows, one.live, one.retired, one.replaced = [], False, True, True
            one.heir = heirs[0]
            one.split = list(dict.fromkeys([*one.split, *(heirs if len(heirs) > 1 else [])]))
        else:
            one.live = False

    def _clusters(self) -> list[list[Row]]:
        """The live rows in clusters, in order."""
        live = sorted((row for row, values in self.rows.items() if values is not None), key=_order)
        group = {row: place for place, row in enumerate(live)}
        self.cuts = []
        for key, (one, other, verdict) in sorted(self.overrides.items()):
            if verdict == "same" and one in group and other in group and not self._joined(group, one, other):
                first, second = sorted((one, other), key=_order)
                self.cuts.append((key, first, second))
        found_values = sorted(self._values(live), key=lambda one: (len(one[2]), one[0], str(one[1])))
        for _, value, holders in found_values:
            firsts: list[Row] = []
            for row in holders:
                if any(self._joined(group, first, row) for first in firsts):
                    continue
                if firsts:
                    self.cuts.append((str(value), firsts[0], row))
                firsts.append(row)
        found: dict[int, list[Row]] = {}
        for row in live:
            found.setdefault(group[row], []).append(row)
        return list(found.values())

    def _joined(self, group: dict[Row, int], one: Row, other: Row) -> bool:
        """Join the groups of two rows, if they may be one."""
        stays, goes = group[one], group[other]
        if stays == goes:
            return True
        if self._apart(group, stays, goes):
            return False
        group.update({row: stays for row, number in group.items() if number == goes})
        return True

    def _apart(self, group: dict[Row, int], one: int, other: int) -> bool:
        left, right = ({row[0] for row, number in group.items() if number == side} for side in (one, other))
        return bool(left & right & self.one_per) or any(
            verdict == "different" and {group.get(first, -1), group.get(second, -1)} == {one, other}
            for first, second, verdict in self.overrides.values()
        )

    def _values(self, live: Sequence[Row]) -> Iterable[tuple[int, Any, list[Row]]]:
        """Class, value and holders of each value that joins."""
        for place, expressions in enumerate(self.classes):
            held: dict[Any, set[tuple[int, Row]]] = {}
            for row in live:
                for number, (offset, column) in enumerate(expressions):
                    value = (self.rows[row] or {}).get(column)
                    if offset == row[0] and value is not None:
                        held.setdefault(value, set()).add((number, row))
            for value, pairs in held.items():
                if len({number for number, _ in pairs}) > 1:
                    yield place, value, sorted({row for _, row in pairs}, key=_order)
