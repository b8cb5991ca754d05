"""What a merge source outputs, in plain Python: a union-find over the full current state, then the difference from
what was output. It shares no code with the product, and knows nothing of increments."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Any

__all__ = ["Model", "Refused"]

Entity = dict[str, Any]
Member = tuple[int, str]
"""Offset of the dataset, and id."""
_RESERVED = ("_id", "$ids", "_deleted", "$replaced", "_updated", "_members")


class Refused(Exception):
    """A run that fails as a whole; the code says why."""


@dataclass
class Kept:
    """What is known of one entity: its properties, also where its row went."""

    row: Entity
    deleted: bool
    gone: bool = False


@dataclass
class Output:
    """An output id: what was emitted last, and the members that it was made from."""

    entity: Entity
    members: tuple[tuple[str, str], ...]
    """By table, so that they outlive a removal."""
    live: bool


@dataclass
class Model:
    """A merge source over tables whose rows are dictionaries; a table's name is what no renaming changes."""

    tables: dict[str, dict[str, Entity]] = field(default_factory=dict)
    kept: dict[str, dict[str, Kept]] = field(default_factory=dict)
    last: dict[tuple[str, str], Entity] = field(default_factory=dict)
    """Rows that went, as they were."""
    output: dict[str, Output] = field(default_factory=dict)
    returned: set[tuple[str, str]] = field(default_factory=set)
    """Rows that were there since the last run."""
    order: list[str] | None = None
    """The tables of the last run."""
    left_out: set[Any] = field(default_factory=set)
    """The values that joined nobody in the last run."""
    updated: int = 0

    def put(self, table: str, row: Entity, key: str | None = None) -> None:
        name = row["_id"] if key is None else key
        self.tables.setdefault(table, {})[name] = row
        self.returned.add((table, name))

    def delete(self, table: str, key: str) -> None:
        row = self.tables.setdefault(table, {}).pop(key, None)
        if row is not None:
            self.last[table, key] = row

    def run(self, config: Mapping[str, Any], tables: Mapping[str, str], *, full: bool = False) -> list[Entity]:
        """One run; what it emits, in order. ``tables``: of each dataset's name, the table behind it."""
        pairs = [item.split() for item in config["datasets"]]
        order = [tables[name] for name, _ in pairs]
        aliases = [alias for _, alias in pairs]
        self._check_order(order, full=full)
        forget = config.get("deleted_retention") == 0
        kept = {table: self._seen(table, forget=forget) for table in order}
        everything = {(offset, key): one for offset, table in enumerate(order) for key, one in kept[table].items()}
        limit = config.get("max_merged", 50_000)
        clusters, left_out = _clusters(everything, config, aliases, limit)
        wanted = _outputs(everything, clusters, config, aliases)
        self._check_retired(everything, order, config.get("max_retired", 0.2))
        if forget:
            self._forget(kept, wanted)
        emitted = self._difference(wanted, everything, order)
        self.kept, self.order, self.left_out = kept, order, left_out
        self.returned.clear()
        return emitted

    def _check_retired(self, everything: dict[Member, Kept], order: Sequence[str], share: float) -> None:
        """An entity is lost if nobody lives of those that it was made of, and one of their tables is still there."""
        alive = {(order[offset], key) for (offset, key), one in everything.items() if not one.deleted}
        succeeded = {
            (table, key) for table in order for key, row in self.tables.get(table, {}).items() if _is_replaced(row)
        }
        before = [one for one in self.output.values() if one.live and not one.entity.get("_deleted")]
        lost = [
            one
            for one in before
            if not any(member in alive | succeeded for member in one.members)
            and any(table in order for table, _ in one.members)
        ]
        if len(lost) > max(1, share * len(before)):
            raise Refused("max-retired")

    def _forget(self, kept: dict[str, dict[str, Kept]], wanted: Mapping[str, Any]) -> None:
        """What went before this run leaves the output."""
        for key, one in list(self.output.items()):
            known = [kept.get(table, {}).get(name) for table, name in one.members]
            if key not in wanted and (not one.live or (one.entity.get("_deleted") and known == [None])):
                table = one.members[0][0] if one.members else None
                row = self.tables.get(table or "", {}).get(one.members[0][1]) if one.members else None
                if not one.live or (table in kept and row is None):
                    del self.output[key]

    @property
    def state(self) -> list[Entity]:
        return sorted((output.entity for output in self.output.values()), key=lambda entity: entity["_updated"])

    def _check_order(self, order: Sequence[str], *, full: bool) -> None:
        before = self.order if self.order is not None else []
        if full:
            return
        both = [table for table in before if table in order]
        if both != [table for table in order if table in before]:
            raise Refused("datasets-reordered")
        removed = len(both) < len(before)
        if not removed and list(order[: len(before)]) != before:
            raise Refused("datasets-reordered")
        if removed and not full:
            raise Refused("datasets-removed")

    def _seen(self, table: str, *, forget: bool) -> dict[str, Kept]:
        """The entities of a table: its rows, and those that went, with what they had last.

        :param forget: without those that had gone by the last run, and were not there since.
        """
        rows = {key: row for key, row in self.tables.get(table, {}).items() if not _is_replaced(row)}
        known = self.kept.get(table, {})
        gone = [key for key in known if key not in self.tables.get(table, {})]
        if forget:
            gone = [key for key in gone if not known[key].gone or (table, key) in self.returned]
        seen = {key: Kept(self.last[table, key], deleted=True, gone=True) for key in gone}
        seen |= {key: Kept(row, deleted=bool(row.get("_deleted"))) for key, row in rows.items()}
        return seen

    def _difference(
        self, wanted: dict[str, tuple[tuple[Member, ...], Entity]], everything: dict[Member, Kept], order: Sequence[str]
    ) -> list[Entity]:
        there = {(order[offset], key) for members, _ in wanted.values() for offset, key in members}
        emitted = []
        for key in sorted(self.output, key=lambda text: text.encode()):
            before = self.output[key]
            if not before.live or key in wanted:
                continue
            entity: Entity = {"_id": key, "_deleted": True}
            succeeded = any(_is_replaced(self.tables.get(table, {}).get(name, {})) for table, name in before.members)
            if succeeded or any(member in there for member in before.members):
                entity["$replaced"] = True
            emitted.append(self._emit(key, entity, (), live=False))
        for key, (members, entity) in sorted(wanted.items(), key=lambda item: _rank(item[1][0][0])):
            now = tuple((order[offset], name) for offset, name in members)
            last = self.output.get(key)
            if last is None or not last.live or {**last.entity, "_updated": 0} != {**entity, "_updated": 0}:
                emitted.append(self._emit(key, entity, now, live=True))
            else:
                last.members = now
        return emitted

    def _emit(self, key: str, entity: Entity, members: tuple[tuple[str, str], ...], *, live: bool) -> Entity:
        numbered = {**entity, "_updated": self.updated}
        self.updated += 1
        self.output[key] = Output(numbered, members, live)
        return numbered


def _is_replaced(row: Entity) -> bool:
    """A row that another source says has a successor is no entity."""
    return bool(row.get("$replaced"))


def _rank(member: Member) -> tuple[int, bytes]:
    return member[0], member[1].encode()


class _Sets:
    """Union-find."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, item: Any) -> Any:
        self._parent.setdefault(item, item)
        while self._parent[item] != item:
            item = self._parent[item]
        return item

    def join(self, one: Any, other: Any) -> None:
        self._parent[self.find(other)] = self.find(one)


def _clusters(
    everything: dict[Member, Kept], config: Mapping[str, Any], aliases: Sequence[str], limit: int
) -> tuple[list[list[Member]], set[Any]]:
    """The clusters, and the values that are left out. A value that more than the limit hold joins nobody. While a
    cluster is too large, its widest values are left out, all of the same width at once."""
    held = _holders(everything, config, aliases)
    out = {value for value, members in held.items() if len(members) > limit}
    if out and config.get("oversize", "leave_out") == "fail":
        raise Refused("max-merged")
    while True:
        clusters = _joined(everything, {value: members for value, members in held.items() if value not in out})
        large = [set(cluster) for cluster in clusters if len(cluster) > limit]
        if not large:
            return clusters, out
        if config.get("oversize", "leave_out") == "fail":
            raise Refused("max-merged")
        for cluster in large:
            widths = {value: len(m) for value, m in held.items() if value not in out and m <= cluster}
            out |= {value for value, width in widths.items() if width == max(widths.values())}


def _holders(
    everything: dict[Member, Kept], config: Mapping[str, Any], aliases: Sequence[str]
) -> dict[Any, set[Member]]:
    """By class and value, who is joined by it."""
    found: dict[Any, set[Member]] = {}
    for place, expressions in enumerate(_classes(config)):
        holders: dict[Any, list[tuple[int, Member]]] = {}
        alone = [number for number, one in enumerate(expressions) if _joins_alone(one, config)]
        for number, expression in enumerate(expressions):
            offset = aliases.index(_alias(expression, aliases))
            for member, one in everything.items():
                if member[0] == offset and not one.deleted:
                    for value in set(_matching(_evaluate(expression, one.row, member[1], aliases))):
                        holders.setdefault(value, []).append((number, member))
        for value, held in holders.items():
            numbers = {number for number, _ in held}
            members = {member for _, member in held}
            if len(members) > 1 and (len(numbers) > 1 or numbers <= set(alone)):
                found[place, value] = members
    return found


def _joins_alone(expression: Any, config: Mapping[str, Any]) -> bool:
    return any(rule[1] == rule[2] == expression for rule in config.get("equality", ()))


def _joined(everything: dict[Member, Kept], held: Mapping[Any, set[Member]]) -> list[list[Member]]:
    same = _Sets()
    for members in held.values():
        first, *others = members
        for member in others:
            same.join(first, member)
    gathered: dict[Member, list[Member]] = {}
    for member in sorted(everything, key=_rank):
        gathered.setdefault(same.find(member), []).append(member)
    return list(gathered.values())


def _classes(config: Mapping[str, Any]) -> list[list[Any]]:
    """Expressions by class; a class for each pair where rules are taken pair by pair."""
    pairs = [(rule[1], rule[2]) for rule in config.get("equality", ())]
    for expressions in config.get("equality_sets", ()):
        pairs += [(one, other) for place, one in enumerate(expressions) for other in expressions[place + 1 :]]
    if config.get("transitive") == "entities":
        return [[one] if one == other else [one, other] for one, other in pairs]
    same = _Sets()
    known: dict[str, Any] = {}
    for one, other in pairs:
        known |= {json.dumps(one): one, json.dumps(other): other}
        same.find(json.dumps(one))
        same.join(json.dumps(one), json.dumps(other))
    classes: dict[str, list[Any]] = {}
    for text, expression in known.items():
        classes.setdefault(same.find(text), []).append(expression)
    return list(classes.values())


def _alias(expression: Any, aliases: Sequence[str]) -> str:
    return next(
        text.partition(".")[0] for text in _strings(expression) if text.partition(".")[0] in aliases and "." in text
    )


def _strings(expression: Any) -> Iterator[str]:
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, list):
        for part in expression[1:]:
            yield from _strings(part)


def _evaluate(expression: Any, row: Entity, key: str, aliases: Sequence[str]) -> list[Any]:
    if isinstance(expression, list):
        values = [_evaluate(part, row, key, aliases) for part in expression[1:]]
        if expression[0] == "concat":
            literal = [isinstance(part, str) and not _is_path(part, aliases) for part in expression[1:]]
            return _concat(values, literal)
        return _FUNCTIONS[expression[0]](values)
    if not isinstance(expression, str):
        return [expression]
    path = expression.partition(".")[2]
    if not _is_path(expression, aliases):
        return [expression]
    if path == "_id":
        return [key]
    if path == "$ids" and row.get("$ids") is None:
        return [key]
    return list(_at(row, path.split(".")))


def _is_path(text: str, aliases: Sequence[str]) -> bool:
    return "." in text and text.partition(".")[0] in aliases


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if isinstance(value, list):
        for part in value:
            yield from _at(part, path)
    elif not path:
        if value is not None:
            yield value
    elif isinstance(value, dict):
        yield from _at(value.get(path[0]), path[1:])


def _flat(values: Iterable[list[Any]]) -> list[Any]:
    return [value for part in values for value in part]


def _of_strings(change: Any) -> Any:
    return lambda values: [change(value) for value in _flat(values) if isinstance(value, str)]


def _concat(values: list[list[Any]], literal: list[bool]) -> list[Any]:
    """All strings in one; literals alone make none."""
    own = [value for part, fixed in zip(values, literal, strict=True) if not fixed for value in part]
    if not any(isinstance(value, str) for value in own):
        return []
    return ["".join(value for value in _flat(values) if isinstance(value, str))]


def _coalesce(values: list[list[Any]]) -> list[Any]:
    if len(values) == 1:
        return values[0][:1]
    return next((part for part in values if part), [])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)


_FUNCTIONS: dict[str, Any] = {
    "lower": _of_strings(str.lower),
    "upper": _of_strings(str.upper),
    "strip": _of_strings(str.strip),
    "string": lambda values: [_text(value) for value in _flat(values)],
    "list": _flat,
    "nullif": lambda values: [v for v in values[0] if not set(_matching([v])) & set(_matching(_flat(values[1:])))],
    "coalesce": _coalesce,
    "tuples": lambda values: [tuple(part) for part in product(*values)],
}


def _matching(values: Iterable[Any]) -> Iterator[Any]:
    """Values that are equal where the source takes them for equal."""
    for value in values:
        if isinstance(value, tuple):
            parts = [list(_matching([part])) for part in value]
            if all(parts):
                yield ("tuple", *(part[0] for part in parts))
        elif isinstance(value, bool):
            yield ("bool", value)
        elif isinstance(value, int | float | Decimal):
            if not math.isnan(value):
                yield ("number", value)
        else:
            yield (type(value).__name__, value)


def _outputs(
    everything: dict[Member, Kept], clusters: Sequence[list[Member]], config: Mapping[str, Any], aliases: Sequence[str]
) -> dict[str, tuple[tuple[Member, ...], Entity]]:
    """By output id, the members and the entity."""
    first = config.get("identity", "composite") == "first"
    if first:
        _check_ids(everything, config, aliases)
    found: dict[str, tuple[tuple[Member, ...], Entity]] = {}
    for cluster in clusters:
        if first and everything[cluster[0]].deleted and _is_hidden(cluster[0], everything):
            continue
        key = cluster[0][1] if first else "|".join(f"{offset}|{name}" for offset, name in cluster)
        if key in found:
            raise Refused("id-collision")
        found[key] = tuple(cluster), _combined(key, [(member, everything[member]) for member in cluster], config)
    return found


def _is_hidden(member: Member, everything: dict[Member, Kept]) -> bool:
    offset, key = member
    others = [(other, one) for other, one in everything.items() if other[1] == key and other != member]
    return any(not one.deleted or other[0] < offset for other, one in others)


def _check_ids(everything: dict[Member, Kept], config: Mapping[str, Any], aliases: Sequence[str]) -> None:
    covered = []
    for expressions in _classes({**config, "transitive": None}):
        paths = [text.partition(".") for text in expressions if isinstance(text, str)]
        covered.append({aliases.index(alias) for alias, _, path in paths if path in ("_id", "$ids")})
    offsets: dict[str, set[int]] = {}
    for (offset, key), one in everything.items():
        if not one.deleted:
            offsets.setdefault(key, set()).add(offset)
    if any(len(at) > 1 and not any(at <= by for by in covered) for at in offsets.values()):
        raise Refused("id-collision")


def _combined(key: str, members: Sequence[tuple[Member, Kept]], config: Mapping[str, Any]) -> Entity:
    entity: Entity = {"_id": key}
    if members[0][1].deleted:
        entity["_deleted"] = True
    ids = [name for (_, own), one in members for name in one.row.get("$ids") or [own]]
    entity["$ids"] = list(dict.fromkeys(ids))
    strategy = config.get("strategy", "default")
    if strategy == "list":
        entity["$merged"] = [{"_id": own, **_properties(one.row, ids=True)} for (_, own), one in members]
        return entity
    gathered: dict[str, list[Any]] = {}
    for _, one in members:
        for name, value in _properties(one.row).items():
            gathered.setdefault(name, []).append(value)
    for name, values in gathered.items():
        joined = [part for value in values for part in (value if isinstance(value, list) else [value])]
        if strategy == "compact":
            joined = [value for place, value in enumerate(joined) if value not in joined[:place]]
            if joined and joined != [None]:
                entity[name] = joined[0] if len(joined) == 1 else joined
        else:
            entity[name] = values[0] if len(values) == 1 else joined
    return entity


def _properties(row: Entity, *, ids: bool = False) -> Entity:
    own = {name: value for name, value in row.items() if name not in _RESERVED and value is not None}
    if ids and row.get("$ids") is not None:
        own["$ids"] = row["$ids"]
    return own
