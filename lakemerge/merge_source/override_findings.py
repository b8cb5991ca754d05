"""What overrides and limits of datasets did, told in names of datasets and ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.clusters import LeftOut, find_clusters
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import Fresh, Known, assemble, ints, strings
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.output_ids import shown_value
from lakemerge.merge_source.overrides import OVERRIDE, Holdings, OverrideTable, Unusable
from lakemerge.merge_source.oversize_values import remembered_of
from lakemerge.merge_source.results import EntityFinding, Override
from lakemerge.merge_source.separation import Cut
from lakemerge.merge_source.state import State

__all__ = ["CutRows", "Found", "all_findings", "cut_rows", "findings_of", "found_by"]


@dataclass(frozen=True, slots=True)
class CutRows:
    """A link that was cut, and the rows that it would have joined."""

    cut: Cut
    members: tuple[tuple[int, str], tuple[int, str]]
    """Offset of the dataset, and id."""


@dataclass(frozen=True, slots=True)
class Found:
    """Findings."""

    shown: tuple[EntityFinding, ...]
    """The first ones."""
    count: int


def cut_rows(known: Known, cuts: Sequence[Cut]) -> tuple[CutRows, ...]:
    """The cut links of known entities."""

    def row(place: int) -> tuple[int, str]:
        return int(known.datasets[place]), known.ids[place].as_py()

    return tuple(CutRows(cut, (row(cut.one), row(cut.other))) for cut in cuts)


def found_by(
    config: MergeConfig,
    overrides: OverrideTable | None,
    cuts: Sequence[CutRows],
    unusable: Unusable | None,
    waiting: Holdings | None,
    *,
    top: int | None = None,
) -> Found:
    """The findings of a run.

    :param top: how many are shown.
    """
    parts: list[tuple[str, object]] = [("cut", one) for one in cuts]
    if unusable is not None:
        pairs = sorted(zip(unusable.keys.to_pylist(), unusable.reasons, strict=True))
        parts += [("unusable", pair) for pair in pairs]
    if waiting is not None:
        at = waiting.held.rows
        ids, values = waiting.ids.take(pa.array(at)).to_pylist(), waiting.held.values.to_pylist()
        rows = zip(waiting.datasets[at].tolist(), ids, values, strict=True)
        parts += [("waiting", one) for one in sorted(rows, key=lambda one: (one[2], one[0], one[1]))]
    chosen = parts[:top]
    told = _overrides_of(overrides, chosen)
    return Found(tuple(_finding(config, told, kind, one) for kind, one in chosen), len(parts))


def _overrides_of(overrides: OverrideTable | None, parts: Sequence[tuple[str, object]]) -> dict[str, Override]:
    if overrides is None:
        return {}
    keys: list[str] = []
    for _, one in parts:
        match one:
            case CutRows(cut, _):
                keys += [text[1:] for text in (cut.pair, cut.value) if text is not None and text[0] == OVERRIDE]
            case (str(key), str(_)):
                keys.append(key)
            case (_, _, str(value)):
                keys.append(value[1:])
    return overrides.told(pa.array(sorted(set(keys)), pa.string())) if keys else {}


def _finding(config: MergeConfig, told: dict[str, Override], kind: str, one: object) -> EntityFinding:
    match one:
        case CutRows():
            return _cut(config, told, one)
        case (str(key), str(reason)):
            return EntityFinding(
                kind=kind, problem=f"override {key!r} counts for nothing: {reason}", override=told.get(key)
            )
        case (int(offset), str(name), str(value)):
            override = told.get(value[1:])
            dataset = config.names[offset]
            shown = f"override {value[1:]!r}" if override is None else str(override)
            problem = f"{dataset} has no row {name!r}, or it is deleted, for {shown}"
            return EntityFinding(kind=kind, problem=problem, members=((dataset, name),), override=override)
    raise AssertionError(f"no finding: {one!r}")


def _cut(config: MergeConfig, told: dict[str, Override], one: CutRows) -> EntityFinding:
    cut = one.cut
    is_same = cut.value[0] == OVERRIDE
    members = tuple((config.names[offset], name) for offset, name in one.members)
    numbers = config.rules.classes[cut.class_number]
    rule = "override" if is_same else " = ".join(config.rules.shown(number, config.aliases) for number in numbers)
    value = shown_value(cut.value)
    link = str(told.get(value, f"override {value!r}")) if is_same else f"{rule} with the value {value}"
    rows = " and ".join(f"{dataset} {name!r}" for dataset, name in members)
    if cut.pair is not None:
        key = cut.pair[1:]
        why, override = f"of {told.get(key, f'override {key!r}')}", told.get(key)
    else:
        dataset = config.names[cut.dataset or 0]
        why, override = f"an entity has at most one row of {dataset}", None
    kind = "conflict" if is_same else "cut" if cut.pair is not None else "more_than_one"
    problem = f"{rows} are not joined by {link}, because {why}"
    return EntityFinding(kind=kind, problem=problem, members=members, rule=rule, value=value, override=override)


def findings_of(
    state: State, config: MergeConfig, overrides: OverrideTable | None, records: pa.Table
) -> tuple[EntityFinding, ...]:
    """The cut links of some entities.

    :param records: the state's records of them.
    """
    chained = records.filter(records.column("chain_id").is_valid())
    if not chained.num_rows or not (config.rules.different or config.single_offsets):
        return ()
    firsts = state.entities(ints(chained, "chain_dataset"), strings(chained, "chain_id"))
    inside = pc.list_flatten(strings(firsts, "chain_members"))
    datasets = inside.field("dataset").to_numpy(zero_copy_only=False).astype(np.int64)
    once = np.unique(
        key_texts(datasets, inside.field("id")).dictionary_encode().indices.to_numpy(zero_copy_only=False),
        return_index=True,
    )[1]
    whole = state.entities(datasets[once], inside.field("id").take(pa.array(once)))
    own = set(zip(ints(records, "dataset").tolist(), strings(records, "id").to_pylist(), strict=True))
    cuts = [one for one in _cuts_of(state, config, whole) if own & set(one.members)]
    return found_by(config, overrides, cuts, None, None).shown


def all_findings(state: State, config: MergeConfig, overrides: OverrideTable | None) -> tuple[EntityFinding, ...]:
    """All that holds as of the last run."""
    none = np.empty(0, dtype=np.int64)
    records = pa.concat_tables([state.entities(none, pa.array([], pa.string())), *state.all_entities()])
    given = Holdings.none()
    if overrides is not None and state.meta.overrides is not None:
        given = overrides.earlier(state.meta.overrides).all()
    live = records.filter(pc.invert(strings(records, "deleted")))
    there = pc.is_in(given.texts, value_set=key_texts(ints(live, "dataset"), strings(live, "id")))
    waiting = given.where(~there.to_numpy(zero_copy_only=False))
    return found_by(config, overrides, list(_cuts_of(state, config, records)), given.unusable, waiting).shown


def _cuts_of(state: State, config: MergeConfig, records: pa.Table) -> Iterator[CutRows]:
    """The links that are cut among entities, which are whole clusters as they would be without cuts."""
    known = assemble(records.combine_chunks(), Fresh.together([]))
    left_out = remembered_of(state, config.rules, known.held)
    formed = find_clusters(
        config.rules,
        known.datasets,
        known.ids,
        known.deleted,
        known.held,
        left_out=LeftOut.together([left_out]),
        one_per=config.single_offsets,
    )
    yield from cut_rows(known, formed.cuts)
