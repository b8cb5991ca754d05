"""Explains one entity of the output, reports on a source as a whole, and gives entities in Sesam's form: dictionaries
without nulls, in which a single value is no list."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import InputError
from lakemerge.merge_source.clusters import links_of
from lakemerge.merge_source.column_origins import column_origins
from lakemerge.merge_source.combine import FIXED, STABLE, OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import held_of, ints, strings
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.inputs import Access
from lakemerge.merge_source.nested_arrays import Ints, contiguous
from lakemerge.merge_source.output_ids import OldClusters, shown_value
from lakemerge.merge_source.override_findings import findings_of
from lakemerge.merge_source.overrides import open_overrides
from lakemerge.merge_source.oversize_values import left_out_now, remembered_of, shown
from lakemerge.merge_source.results import ClusterLink, EntityExplanation, Report, WideValue
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import State
from lakemerge.table.table import LakeTable

__all__ = ["entities_of", "explain", "report"]


def explain(output: LakeTable, state: State, config: MergeConfig, output_id: str, access: Access) -> EntityExplanation:
    """The members of an entity of the output, and the values that join them.

    Raises :class:`InputError` if the output has no such id.
    """
    row = output.get({"_id": output_id}, columns=["_id", "_deleted", "$replaced", "_members"])
    if row is None:
        raise InputError(f"the output has no entity {output_id!r}", id=output_id)
    members: list[dict[str, Any]] = row["_members"] or []
    datasets = np.array([one["dataset"] for one in members], dtype=np.int64)
    ids = pa.array([one["id"] for one in members], pa.string())
    found = state.entities(datasets, ids).combine_chunks()
    names = _named(config, ints(found, "dataset"), strings(found, "id"))
    held = held_of(strings(found, "held"))
    links = [
        ClusterLink(
            rule=" = ".join(dict.fromkeys(config.rules.shown(number, config.aliases) for number in link.expressions)),
            value=shown_value(link.value),
            members=tuple(sorted((names[place] for place in link.entities), key=_named_order(config))),
        )
        for link in links_of(config.rules, held, remembered_of(state, config.rules, held))
    ]
    return EntityExplanation(
        id=output_id,
        deleted=bool(row["_deleted"]),
        replaced=bool(row["$replaced"]),
        members=tuple(_named(config, datasets, ids)),
        links=tuple(links),
        findings=findings_of(state, config, open_overrides(config, access), found),
        columns=column_origins(state, config, access, found, output_id),
    )


def report(state: State, config: MergeConfig, *, top: int) -> Report:
    """Counts, the largest clusters and the widest values. Reads the whole state, a part at a time."""
    given: Any = top
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InputError(f"top must be a whole number from 0 on, not {top!r}")
    entities: Counter[int] = Counter()
    deleted = clusters = merged = 0
    largest: list[tuple[int, str]] = []
    for part in state.all_entities():
        numbers, counts = np.unique(ints(part, "dataset"), return_counts=True)
        entities.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        is_deleted = strings(part, "deleted")
        deleted += pc.sum(is_deleted).as_py()
        leading = OldClusters.of(part.filter(pc.invert(is_deleted)))
        sizes = np.diff(leading.offsets)
        clusters, merged = clusters + len(sizes), merged + int((sizes > 1).sum())
        chosen = np.argsort(-sizes, kind="stable")[:top]
        ids = leading.output_ids.take(pa.array(chosen)).to_pylist()
        largest = heapq.nlargest(top, [*largest, *zip(sizes[chosen].tolist(), ids, strict=True)])
    return Report(
        entities={name: entities[offset] for offset, name in enumerate(config.names)},
        deleted=deleted,
        clusters=clusters,
        merged=merged,
        largest=tuple((name, size) for size, name in largest),
        widest=tuple(_widest(state, config, top)),
        left_out=shown(left_out_now(state), config, top),
    )


def _widest(state: State, config: MergeConfig, top: int) -> Iterable[WideValue]:
    """The values with the most holders. A value with many holders usually has many through one expression, so only the
    widest values of each expression are compared. A value that several expressions share evenly may be missed."""
    candidates: dict[int, list[tuple[int, str]]] = {}
    for part in state.all_values():
        heads = part.filter(pc.equal(part.column("b"), 0))
        numbers, counts, texts = ints(heads, "a"), ints(heads, "count"), strings(heads, "k")
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            chosen = own[np.argsort(-counts[own], kind="stable")[:top]]
            fresh = zip(counts[chosen].tolist(), texts.take(pa.array(chosen)).to_pylist(), strict=True)
            candidates[number] = heapq.nlargest(top, [*candidates.get(number, []), *fresh])
    texts = sorted({text for found in candidates.values() for _, text in found})
    every = np.tile(np.arange(len(config.rules.expressions), dtype=np.int64), len(texts))
    wanted = pa.array(texts, pa.string()).take(
        pa.array(np.repeat(np.arange(len(texts)), len(config.rules.expressions)))
    )
    found = state.values(wanted, every, np.zeros_like(every))
    held: dict[str, dict[int, int]] = {}
    for text, number, count in zip(
        *(contiguous(found.column(n)).to_pylist() for n in ("k", "a", "count")), strict=True
    ):
        held.setdefault(text, {})[number] = count
    skipped = left_out_now(state)
    left = set(zip(skipped.classes.tolist(), skipped.values.to_pylist(), strict=True))
    values = [_wide(text, counts, config, left) for text, counts in held.items()]
    return sorted(values, key=lambda value: (-value.count, value.value))[:top]


def _wide(text: str, counts: dict[int, int], config: MergeConfig, left: set[tuple[int, str]]) -> WideValue:
    return WideValue(
        value=shown_value(text),
        holders={config.rules.shown(number, config.aliases): count for number, count in sorted(counts.items())},
        active=_is_active(config.rules, counts, [number for number, value in left if value == text]),
    )


def _is_active(rules: Rules, counts: dict[int, int], left: Sequence[int]) -> bool:
    there = set(counts)
    groups = [there & set(group) for number, group in enumerate(rules.classes) if number not in left]
    return any(len(group) > 1 or any(counts[one] > 1 for one in group & set(rules.alone)) for group in groups)


def _named(config: MergeConfig, datasets: Ints, ids: pa.Array) -> list[tuple[str, str]]:
    return [(config.names[offset], one) for offset, one in zip(datasets.tolist(), ids.to_pylist(), strict=True)]


def _named_order(config: MergeConfig) -> Any:
    places: Sequence[str] = config.names
    return lambda member: (places.index(member[0]), member[1].encode())


def entities_of(rows: pa.Table, shape: OutputShape, state: State) -> Iterator[dict[str, Any]]:
    """The rows, in order of ``_updated``."""
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[("_updated", "ascending")])).combine_chunks()
    own = [name for name in ordered.column_names if name not in FIXED.names]
    columns = {name: _values(contiguous(ordered.column(name))) for name in [*FIXED.names, *own]}
    singles = _singles(ordered, shape, state)
    for place in range(ordered.num_rows):
        entity: dict[str, Any] = {"_id": columns["_id"][place]}
        entity |= {name: True for name in ("_deleted", "$replaced") if columns[name][place]}
        if columns["$ids"][place] is not None:
            entity["$ids"] = columns["$ids"][place]
        entity["_updated"] = columns["_updated"][place]
        for name in own:
            value = columns[name][place]
            if value is None:
                continue
            if name.lower() in shape.survivors or (shape.stable and name in STABLE.names):
                entity[name] = value
            elif name == "$merged" and shape.strategy == "list":
                entity[name] = _members(value, columns["_members"][place], shape)
            elif len(value) == 1 and _is_single(name, shape, singles.get(place, ())):
                if value[0] is not None:
                    entity[name] = value[0]
            else:
                entity[name] = value
        yield entity


def _is_single(name: str, shape: OutputShape, singles: tuple[str, ...]) -> bool:
    """Whether a list of one in the table is a single value of the entity."""
    known = next((one for one in shape.properties if one.name.lower() == name.lower()), None)
    if shape.strategy == "compact" or known is None or not known.lists:
        return True
    return len(known.lists) < len(known.columns) and known.name in singles


def _singles(rows: pa.Table, shape: OutputShape, state: State) -> dict[int, tuple[str, ...]]:
    """Place of the row -> the properties that are single values, where only the state says so."""
    told = [one.name for one in shape.properties if one.lists and len(one.lists) < len(one.columns)]
    there = {name.lower() for name in rows.column_names}
    told = [name for name in told if name.lower() in there]
    if shape.strategy != "default" or not told:
        return {}
    members = strings(rows, "_members")
    places = np.flatnonzero(members.is_valid().to_numpy(zero_copy_only=False))
    firsts = pc.list_element(members.take(pa.array(places)), 0)
    datasets = firsts.field("dataset").to_numpy(zero_copy_only=False).astype(np.int64)
    ids = contiguous(firsts.field("id"))
    found = state.entities(datasets, ids)
    own = key_texts(ints(found, "dataset"), strings(found, "id"))
    lists = strings(found, "singles").take(pc.index_in(key_texts(datasets, ids), value_set=own)).to_pylist()
    return {place: tuple(names) for place, names in zip(places.tolist(), lists, strict=True) if names}


def _members(members: list[dict[str, Any]], datasets: list[dict[str, Any]], shape: OutputShape) -> list[Any]:
    return [_member(row, who["dataset"], shape) for row, who in zip(members, datasets, strict=True)]


def _member(row: Mapping[str, Any], dataset: int, shape: OutputShape) -> dict[str, Any]:
    """A member as it is: a property that is no list in its dataset is a single value."""
    known = {one.name: one for one in shape.properties}
    told = {}
    for name, value in row.items():
        one = known.get(name)
        told[name] = value[0] if one is not None and one.lists and dataset not in one.lists else value
    return told


def _values(column: pa.Array) -> list[Any]:
    convert = _converter(column.type)
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Converts pyarrow's Python values: structs lose their nulls, and maps become dictionaries."""
    if pa.types.is_struct(kind):
        inner = {field.name: _converter(field.type) for field in kind}
        return lambda value: {name: inner[name](part) for name, part in value.items() if part is not None}
    if pa.types.is_list(kind):
        element = _converter(kind.value_type)
        return lambda value: [None if part is None else element(part) for part in value]
    if pa.types.is_map(kind):
        item = _converter(kind.item_type)
        return lambda value: {key: None if part is None else item(part) for key, part in value}
    return lambda value: value
