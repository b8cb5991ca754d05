"""Computes what a run changes: from the entities that it looks at, the rows of the output and the records of the state.

Nothing is written here. An incremental run and a full run take the same steps. They differ in the entities that they
look at, and in the source of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.merge_source.clusters import Clusters, LeftOut, find_clusters
from lakemerge.merge_source.combine import STABLE, members_of
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.content_hash import hash_rows
from lakemerge.merge_source.emission import REMEMBERED, Emitter
from lakemerge.merge_source.entity_states import Known, held_lists, ints, strings
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, run_starts
from lakemerge.merge_source.output_ids import (
    Bystanders,
    Left,
    OldClusters,
    check_ids,
    check_retired,
    check_sizes,
    retired_ids,
    with_first_ids,
)
from lakemerge.merge_source.override_findings import CutRows, cut_rows
from lakemerge.merge_source.overrides import Holdings, Unusable
from lakemerge.merge_source.results import IdChanges
from lakemerge.merge_source.stable_ids import Minting, id_changes, next_number_of, split_before, with_stable_ids
from lakemerge.merge_source.state import ENTITY, MEMBERS_EVERYWHERE, RETIRED, departed, records

_LISTS = ENTITY.field("split_into").type

__all__ = ["Plan", "Settling", "departures", "settle"]


@dataclass(slots=True)
class Plan:
    """What a run would do."""

    emitter: Emitter | None = None
    """It has the changed rows of the output; ``None`` before the plan is made."""
    records: list[pa.Table] = field(default_factory=list)
    """The records of the state, without the record ``m``."""
    retired: pa.Table = field(default_factory=RETIRED.empty_table)
    """Retired ids, in the columns of :data:`RETIRED`."""
    removed: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    """The ids whose rows are taken out of the output."""
    left_out: LeftOut = field(default_factory=LeftOut.none)
    """The values that join nobody, of all that the run looked at."""
    all_left_out: LeftOut = field(default_factory=LeftOut.none)
    """All values that join nobody after the run."""
    live_change: int = 0
    """By how many the output has more entities that are not deleted."""
    updated: int = 0
    """The next number of an emitted entity."""
    changed: int = 0
    """How many clusters are emitted. Clusters with other members alone are written, too, and keep their numbers."""
    deleted: int = 0
    """How many of the emitted entities are deleted."""
    clusters: int = 0
    """How many clusters were formed anew, including those of one entity."""
    entities: int = 0
    """How many entities were looked at."""
    output_ids: pa.Array | None = None
    """The ids of all clusters that were looked at."""
    cuts: tuple[CutRows, ...] = ()
    """The links that were cut so that rows stay apart."""
    unusable: Unusable | None = None
    """Overrides that count for nothing."""
    waiting: Holdings | None = None
    """The rows that overrides name, and that are not there."""
    next_id: int = 1
    """The next number that becomes an id, where ids are stable."""
    ids: IdChanges | None = None
    """What becomes of ids, if the run is to tell."""

    @property
    def replaced_count(self) -> int:
        return int(pc.sum(self.retired.column("$replaced")).as_py() or 0)

    @property
    def emitted_count(self) -> int:
        return self.changed + self.retired.num_rows

    @property
    def writes(self) -> bool:
        """Whether there is anything to write to the output."""
        return bool(self.retired.num_rows or len(self.removed)) or (self.emitter is not None and self.emitter.rows > 0)


@dataclass(frozen=True, slots=True)
class Settling:
    """What a run knows before it forms clusters."""

    config: MergeConfig
    run: int
    updated: int
    known: Known
    old: OldClusters
    bystanders: Bystanders
    emitter: Emitter
    left: Left
    """Entities that are none any more, and are not among the known ones."""
    left_out: LeftOut
    """Values that too many entities hold."""
    live: int | None
    """How many entities of the output are not deleted; ``None``: do not check how many of them go."""
    now_ms: int
    minting: Minting | None = None
    """Where stable ids come from; ``None``: ids are not stable."""
    tells_ids: bool = False
    """Whether to tell what becomes of ids."""


def settle(given: Settling, plan: Plan) -> None:
    """Fill the plan. Raises :class:`lakemerge.MaxMergedError`, :class:`lakemerge.MaxRetiredError` and
    :class:`lakemerge.IdCollisionError`."""
    config, known = given.config, given.known
    formed = find_clusters(
        config.rules,
        known.datasets,
        known.ids,
        known.deleted,
        known.held,
        left_out=given.left_out,
        limit=config.max_merged if config.oversize == "leave_out" else None,
        one_per=config.single_offsets,
    )
    plan.cuts = cut_rows(known, formed.cuts)
    clusters = formed.clusters
    plan.left_out = LeftOut.together([given.left_out, formed.left_out])
    if config.oversize == "fail":
        check_sizes(config.rules, config.aliases, known, formed.uncut or clusters, config.max_merged)
    first = config.identity == "first"
    if first:
        clusters = with_first_ids(known, clusters, given.bystanders)
    named = None
    if given.minting is not None:
        named = with_stable_ids(known, clusters, given.old, given.minting)
        clusters, plan.next_id = named.clusters, named.next_number
    else:
        check_ids(config.rules, config.names, known, clusters, given.bystanders, first=first)
    if first:
        # A number that is an id here is never given where ids become stable.
        plan.next_id = next_number_of(clusters.output_ids.drop_null(), plan.next_id)
    if given.live is not None:
        check_retired(config, known, clusters, given.old, given.left, live=given.live)
    retired = retired_ids(known, clusters, given.old, given.left)
    count = len(retired.ids)
    numbers = np.arange(given.updated, given.updated + count, dtype=np.int64)
    heirs = _heirs(retired.ids, {} if named is None else named.went_to, split_before(given.old, retired.ids))
    plan.retired = pa.table([retired.ids, pa.array(retired.replaced), pa.array(numbers), *heirs], schema=RETIRED)
    if given.tells_ids:
        gone = pa.concat_arrays([retired.ids, retired.removed])
        plan.ids = id_changes(known, clusters, given.old, gone, stable=given.minting is not None)
    plan.removed = retired.removed
    plan.updated = given.updated + count
    shows = clusters.output_ids.is_valid().to_numpy(zero_copy_only=False)
    plan.live_change = int((shows & ~clusters.deleted).sum()) - int(given.old.live.sum())
    same = _unchanged(known, clusters)
    plan.clusters, plan.entities = int((~same).sum()), len(known)
    plan.output_ids = clusters.output_ids.drop_null()
    with thread_pool(1) as pool:
        own = pool.submit(_own_columns, known, clusters, formed.chained, given.now_ms)
        leading = _emit(given, clusters, same, plan)
    plan.records += _entity_records(known, clusters, own.result(), leading)


def _heirs(
    retired: pa.Array, went_to: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]
) -> list[pa.Array]:
    """The last two columns of :data:`RETIRED`."""
    if not (went_to or before):
        return [pa.nulls(len(retired), field.type) for field in STABLE]
    replaced_by: list[str | None] = []
    split_into: list[list[str] | None] = []
    for name in retired.to_pylist():
        heirs = went_to.get(name, ())
        replaced_by.append(heirs[0] if heirs else None)
        split_into.append(list(dict.fromkeys([*before.get(name, ()), *(heirs if len(heirs) > 1 else ())])) or None)
    return [pa.array(column, field.type) for column, field in zip((replaced_by, split_into), STABLE, strict=True)]


def _unchanged(known: Known, clusters: Clusters) -> Bools:
    """Which clusters have the same members as before, none of which may have changed."""
    if not known.was.any():
        return np.zeros(len(clusters), dtype=np.bool_)
    members, firsts = clusters.members, clusters.offsets[:-1]
    lead = clusters.of_members
    same = known.was[members] & ~known.fresh[members]
    same &= ints(known.old, "first_dataset")[members] == clusters.datasets[firsts][lead]
    before = strings(known.old, "first_id").take(pa.array(members))
    now = clusters.ids.take(pa.array(firsts[lead]))
    same &= pc.fill_null(pc.equal(before, now), False).to_numpy(zero_copy_only=False)
    listed = pc.list_value_length(strings(known.old, "members").take(pa.array(members[firsts])))
    sizes = listed.fill_null(1).to_numpy(zero_copy_only=False)
    all_same = np.bincount(lead, weights=~same, minlength=len(clusters)) == 0
    shown = clusters.output_ids.is_valid()
    had = strings(known.old, "output_id").take(pa.array(members[firsts]))
    same_id = pc.or_(
        pc.and_(pc.invert(shown), had.is_null()), pc.fill_null(pc.equal(had, clusters.output_ids), False)
    ).to_numpy(zero_copy_only=False)
    unchanged: Bools = all_same & (sizes == np.diff(clusters.offsets)) & same_id
    return unchanged


def _emit(given: Settling, clusters: Clusters, same: Bools, plan: Plan) -> pa.Table:
    """Combine the clusters that may have changed. Returns what the state remembers about each, in columns of
    :data:`ENTITY`."""
    known, count = given.known, len(clusters)
    firsts = clusters.members[clusters.offsets[:-1]]
    names = ["output_id", "split_into", *REMEMBERED.names]
    shown = np.flatnonzero(clusters.output_ids.is_valid().to_numpy(zero_copy_only=False) & ~same)
    formed = _chosen(clusters, shown)
    emission = given.emitter.emit(formed, given.old, run=given.run, number=plan.updated)
    plan.emitter, plan.updated = given.emitter, emission.next_number
    plan.changed, plan.deleted = emission.changed, emission.deleted
    made = emission.remembered.append_column("output_id", formed.output_ids)
    lists = pa.nulls(len(formed), _LISTS) if formed.split_into is None else formed.split_into
    made = made.append_column("split_into", lists).select(names).combine_chunks()
    if len(shown) == count:
        return made
    place = np.full(count, -1, dtype=np.int64)
    place[shown] = np.arange(len(shown))
    made = made.take(pa.array(place, mask=place < 0))
    kept = known.old.select(names).take(pa.array(firsts, mask=~same))
    return pa.table({name: pc.if_else(pa.array(same), strings(kept, name), strings(made, name)) for name in names})


def _chosen(clusters: Clusters, wanted: Ints) -> Clusters:
    """Some of the clusters, in order."""
    if len(wanted) == len(clusters):
        return clusters
    sizes = np.diff(clusters.offsets)[wanted]
    inside = np.isin(clusters.of_members, wanted)
    return Clusters(
        np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)]),
        clusters.members[inside],
        clusters.datasets[inside],
        clusters.ids.filter(pa.array(inside)),
        clusters.deleted[wanted],
        clusters.output_ids.take(pa.array(wanted)),
        None if clusters.split_into is None else clusters.split_into.take(pa.array(wanted)),
    )


def _own_columns(known: Known, clusters: Clusters, chained: Ints, now_ms: int) -> dict[str, pa.Array]:
    """The columns of all entities' records that say nothing about the output."""
    members, count, firsts = clusters.members, len(known), clusters.offsets[:-1]
    cluster = np.empty(count, dtype=np.int64)
    cluster[members] = clusters.of_members
    sizes = np.diff(clusters.offsets)
    listed = np.where((sizes > 1) & (sizes <= MEMBERS_EVERYWHERE), np.arange(len(clusters)), -1)[cluster]
    listed[members[firsts]] = np.where(sizes > 1, np.arange(len(clusters)), -1)
    lists = members_of(clusters.offsets, clusters.datasets, clusters.ids)
    return {
        "first_dataset": pa.array(clusters.datasets[firsts][cluster].astype(np.int32)),
        "first_id": clusters.ids.take(pa.array(firsts[cluster])),
        "deleted": pa.array(known.deleted),
        "gone": pa.array(known.gone),
        "went": _went(known, now_ms),
        "chunk": known.chunks,
        "place": pa.array(known.places.astype(np.int32), mask=known.chunks.is_null().to_numpy(zero_copy_only=False)),
        "held": held_lists(known.held, count),
        "members": lists.take(pa.array(listed, mask=listed < 0)),
        **_chain_columns(known, chained),
    }


def _went(known: Known, now_ms: int) -> pa.Array:
    """When each row was found gone. A row that came back and went again is kept elsewhere than before."""
    before = strings(known.old, "went")
    same = pc.and_(before.is_valid(), pc.fill_null(pc.equal(strings(known.old, "chunk"), known.chunks), False))
    same = pc.or_(same, pc.and_(before.is_valid(), known.chunks.is_null()))
    went = pc.if_else(same, before, pa.scalar(now_ms, pa.int64()))
    return pc.if_else(pa.array(known.gone), went, pa.scalar(None, pa.int64()))


def _chain_columns(known: Known, chained: Ints) -> dict[str, pa.Array]:
    """For entities of cut chains the first one of the chain, and for that one all of them."""
    inside = np.flatnonzero(chained >= 0)
    order = inside[np.argsort(chained[inside], kind="stable")]
    starts = run_starts(chained[order])
    lists = members_of(np.append(starts, len(order)), known.datasets[order], known.ids.take(pa.array(order)))
    at = np.full(len(known), -1, dtype=np.int64)
    at[chained[order[starts]]] = np.arange(len(starts))
    none = chained < 0
    return {
        "chain_dataset": pa.array(known.datasets[chained].astype(np.int32), mask=none),
        "chain_id": known.ids.take(pa.array(chained, mask=none)),
        "chain_members": lists.take(pa.array(at, mask=at < 0)),
    }


def departures(known: Known, plan: Plan, run: int, now_ms: int) -> Iterator[pa.Table]:
    """A record of the entities whose rows a run found gone, and of the ids that it retired."""
    fresh = np.flatnonzero(pc.equal(_went(known, now_ms), now_ms).fill_null(False).to_numpy(zero_copy_only=False))
    retired = strings(plan.retired, "_id")
    if len(fresh) or len(retired):
        datasets = np.concatenate([known.datasets[fresh], np.full(len(retired), -1, dtype=np.int64)])
        ids = contiguous(pa.chunked_array([known.ids.take(pa.array(fresh)), retired], pa.string()))
        yield departed(now_ms, run, datasets, ids)


def _entity_records(
    known: Known, clusters: Clusters, own: Mapping[str, pa.Array], leading: pa.Table
) -> Iterator[pa.Table]:
    """Records of the entities for which the state has no record or a different one.

    :param own: the columns of :func:`_own_columns`.
    :param leading: the other columns, for the first members of the clusters.
    """
    lead = np.full(len(known), -1, dtype=np.int64)
    lead[clusters.members[clusters.offsets[:-1]]] = np.arange(len(clusters))
    told = leading.take(pa.array(lead, mask=lead < 0))
    columns = {**own, **{name: told.column(name) for name in told.column_names}}
    now = pa.table([contiguous(columns[one.name]).cast(one.type) for one in ENTITY], schema=ENTITY)
    changed = np.flatnonzero(~known.was | _differ(now, known))
    if len(changed):
        ids = known.ids
        if len(changed) < len(known):
            now, ids = now.take(pa.array(changed)), ids.take(pa.array(changed))
        zeros = np.zeros(len(changed), dtype=np.int64)
        yield records("e", ids, known.datasets[changed], zeros, {name: now.column(name) for name in ENTITY.names})


def _differ(now: pa.Table, known: Known) -> Bools:
    """Which records differ from the state's."""
    differ = np.zeros(len(known), dtype=np.bool_)
    was = np.flatnonzero(known.was)
    if len(was):
        there = pa.array(was)
        differ[was] = hash_rows(now.take(there)) != hash_rows(known.old.take(there))
    return differ
