"""Explains one entity of the output, and reports on a source as a whole."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import InputError
from lakemerge.merge_source.clusters import links_of
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.known import held_of, ints, strings
from lakemerge.merge_source.leftout import left_out_now, remembered_of, shown
from lakemerge.merge_source.lists import Ints, contiguous
from lakemerge.merge_source.outcome import OldClusters, shown_value
from lakemerge.merge_source.results import ClusterLink, Explanation, Report, WideValue
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import State
from lakemerge.table.table import LakeTable

__all__ = ["explain", "report"]


def explain(output: LakeTable, state: State, config: MergeConfig, output_id: str) -> Explanation:
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
            rule=" = ".join(config.rules.shown(number, config.aliases) for number in link.expressions),
            value=shown_value(link.value),
            members=tuple(sorted((names[place] for place in link.entities), key=_named_order(config))),
        )
        for link in links_of(config.rules, held, remembered_of(state, config.rules, held))
    ]
    return Explanation(
        id=output_id,
        deleted=bool(row["_deleted"]),
        replaced=bool(row["$replaced"]),
        members=tuple(_named(config, datasets, ids)),
        links=tuple(links),
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
