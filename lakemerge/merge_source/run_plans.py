"""Plans incremental runs and full runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.merge_source.clusters import LeftOut, oversize
from lakemerge.merge_source.combine import OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.config_changes import shape_taken_up
from lakemerge.merge_source.emission import Emitter, LocalEmitter
from lakemerge.merge_source.entity_states import Fresh, Known, assemble, ints, strings
from lakemerge.merge_source.full_run import (
    all_entities,
    each_once,
    emptied_chunks,
    gone_entities,
    index_records,
    leftover_records,
    remembered,
    still_there,
)
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.incremental_run import changed_entities, reach
from lakemerge.merge_source.inputs import Input
from lakemerge.merge_source.last_output import completed, confirmed, seen_clusters
from lakemerge.merge_source.member_rows import Chunks, ScannedRows, SoughtRows
from lakemerge.merge_source.nested_arrays import Bools
from lakemerge.merge_source.output_ids import Bystanders, Left, OldClusters, collision
from lakemerge.merge_source.overrides import Holdings, OverrideTable, differences, with_holdings
from lakemerge.merge_source.oversize_values import all_left_out_records, left_out_of, left_out_records
from lakemerge.merge_source.removed_entities import Departures, due_departures, forgotten_entities, forgotten_of
from lakemerge.merge_source.run_effects import Plan, Settling, departures, settle
from lakemerge.merge_source.spool import Spool
from lakemerge.merge_source.stable_ids import Minting, ids_ever, next_number_of
from lakemerge.merge_source.state import DatasetState, State, chunk_rows, deletes, redated
from lakemerge.table.table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK_FROM_BYTES", "Work", "plan_changes", "plan_everything"]

LastOutput = Literal["state", "output", "both"]
SPARK_FROM_BYTES = 2**30
"""Full runs over fewer bytes of datasets do not use Spark. One process takes less time for them than it takes to move
the rows between Spark and Python."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run works with. Every table is pinned to a version."""

    output: LakeTable
    state: State
    config: MergeConfig
    inputs: Sequence[Input]
    shape: OutputShape
    number: int
    """The run's number."""
    spool: Spool
    """Where rows of the output wait in a run without Spark."""
    target: pa.Schema
    """The columns of the output after the run."""
    now_ms: int
    """The time of the run."""
    forget_before_ms: int | None = None
    """Entities whose rows were gone by then are forgotten."""
    spark: SparkSession | None = None
    """Full runs over large datasets use it."""
    overrides: OverrideTable | None = None
    tells_ids: bool = False
    """Whether the plan tells what becomes of ids."""
    unwritten_after: int | None = None
    """The last run whose rows the output has, where the plan assumes that it has those of later runs, too."""

    @property
    def session(self) -> SparkSession | None:
        """The session that a full run uses."""
        is_large = sum(one.stored_bytes for one in self.inputs) >= SPARK_FROM_BYTES
        return self.spark if is_large else None

    @property
    def threads(self) -> int:
        return self.output.opened.handle.settings.threads


def plan_changes(work: Work, plan: Plan) -> bool:
    """Fill the plan from what changed since the last run. Returns whether an id with a bar was ever seen."""
    config, state, meta = work.config, work.state, work.state.meta
    chunks = Chunks(state)

    def changed(one: Input, last: DatasetState) -> Fresh:
        name = f"{work.number:020d}-{one.offset}"
        fresh, kept = changed_entities(one, config.rules, last.version or 0, name)
        if kept is not None:
            chunks.fresh[name] = kept
        return fresh

    with thread_pool(work.threads) as pool:
        parts = list(pool.map(changed, work.inputs, meta.datasets))
    fresh = Fresh.together(parts)
    if work.overrides is not None:
        changed_overrides = work.overrides.changed(state, meta.overrides)
        fresh = with_holdings(state, config.rules, fresh, changed_overrides)
        plan.records += changed_overrides.records()
    due = due_departures(state, work.forget_before_ms)
    forgotten = forgotten_entities(state, due, fresh, work.forget_before_ms)
    reached = reach(state, config, Fresh.together([fresh, forgotten]))
    everybody = assemble(reached.old, reached.fresh)
    known = everybody.where(~_in(everybody.texts, reached.fresh.texts.filter(pa.array(reached.fresh.dropped))))
    cut = left_out_of(state, config, known, reached.sizes)
    settling = Settling(
        config=config,
        run=work.number,
        updated=meta.updated,
        known=known,
        old=OldClusters.of(reached.old),
        bystanders=reached.bystanders,
        emitter=LocalEmitter(
            work.shape, work.spool, work.threads, lambda clusters: SoughtRows(work.inputs, known, clusters, chunks)
        ),
        left=_left(reached.fresh, forgotten.texts),
        left_out=cut,
        live=meta.live,
        now_ms=work.now_ms,
        minting=_minting(work),
        tells_ids=work.tells_ids,
    )
    plan.records += reached.records
    settle(settling, plan)
    if work.overrides is not None:
        _tell_of_overrides(state, known, changed_overrides, plan)
    bars = meta.bars or known.has_bars
    if bars and config.identity == "composite":
        _check_collisions(work.output, plan, settling.old)
    plan.records += [chunk_rows(name, rows) for name, rows in chunks.fresh.items()]
    plan.records += departures(known, plan, work.number, work.now_ms)
    plan.records += emptied_chunks(state, reached.old, known, whole=False)
    plan.records += _no_more(everybody, known)
    changes, plan.all_left_out = left_out_records(state, config, known, reached.sizes, plan.left_out)
    plan.records += changes
    _forget_ids(work, plan, due)
    return bars


def plan_everything(
    work: Work, offsets: Sequence[int], plan: Plan, *, last_output: LastOutput, guarded: bool = True
) -> bool:
    """Fill the plan from all rows. Returns whether there is an id with a bar.

    :param offsets: for each old offset of a dataset its new one; -1 if it was removed.
    :param last_output: where to read the last output: from the ``state``; from the ``output`` itself, because the state
        may be wrong; or from ``both``, so that rows that differ are written again.
    :param guarded: whether to check how many entities go.
    """
    config, state, meta = work.config, work.state, work.state.meta
    old = remembered(state)
    there = still_there(old, offsets)
    fresh = _all_entities(work)
    given = Holdings.none() if work.overrides is None else work.overrides.all()
    if len(given):
        fresh = with_holdings(state, config.rules, fresh, given, everything=True)
    if work.overrides is not None or meta.overrides is not None:
        plan.records += differences(state, given).records()
    gone, kept = gone_entities(work.inputs, _versions_now(work, offsets), there, fresh, work.number)
    due = due_departures(state, work.forget_before_ms)
    gone, forgotten = forgotten_of(there, gone, work.forget_before_ms)
    chunks = Chunks(state, kept)
    shifted = any(now not in (then, -1) for then, now in enumerate(offsets))
    present = Fresh.together([fresh, gone])
    everybody = assemble(there, present)
    known = everybody.where(~_in(everybody.texts, present.texts.filter(pa.array(present.dropped))))
    if shifted:
        known = replace(known, was=np.zeros(len(known), dtype=np.bool_))
    clusters, updated = OldClusters.of(old), meta.updated
    live = int(clusters.live.sum())
    if last_output != "state":
        trusted = last_output == "both"
        shape = shape_taken_up(meta) if trusted else work.shape
        seen, last = seen_clusters(work.output, shape, clusters)
        updated = max(updated, last + 1)
        if trusted and work.unwritten_after is not None:
            clusters = completed(clusters, seen.without(state.retired().column("_id")), after=work.unwritten_after)
        elif trusted:
            # A row that the output lacks has lost its text, and not its id.
            clusters = completed(clusters, seen) if _continues(work) else confirmed(clusters, seen)
        else:
            clusters = seen
    settling = Settling(
        config=config,
        run=work.number,
        updated=updated,
        known=known,
        old=clusters.moved(offsets),
        bystanders=Bystanders.none(),
        emitter=_emitter_of_all(work, known, chunks),
        left=_left(present, forgotten),
        left_out=LeftOut.none() if config.oversize == "fail" else oversize(config.rules, known.held, config.max_merged),
        live=live if guarded else None,
        now_ms=work.now_ms,
        minting=_minting(work, seen=last_output != "state"),
        tells_ids=work.tells_ids,
    )
    # Several threads ask for these below. They are made before, so that each is made once.
    with thread_pool(2) as pool:
        for made in [pool.submit(getattr, known.held, "encoded"), pool.submit(getattr, known, "by_text")]:
            made.result()
    # The index depends on the values alone, so another thread makes its records meanwhile.
    with thread_pool(1) as pool:
        index = pool.submit(lambda: list(index_records(state if meta.run else None, known)))
        settle(settling, plan)
        plan.records += index.result()
    plan.live_change += int(settling.old.live.sum()) - meta.live
    _tell_of_overrides(None, known, given, plan)
    if meta.run:
        plan.records += leftover_records(state, known, old)
        plan.records += emptied_chunks(state, there, known, whole=True)
        plan.records += _moved_departures(state, offsets)
    plan.records += all_left_out_records(state, plan.left_out)
    plan.all_left_out = plan.left_out
    plan.records += [chunk_rows(name, rows) for name, rows in kept.items()]
    plan.records += departures(known, plan, work.number, work.now_ms)
    _forget_ids(work, plan, due)
    return known.has_bars


def _tell_of_overrides(state: State | None, known: Known, given: Holdings, plan: Plan) -> None:
    """Put into the plan which overrides count for nothing, and which wait for rows.

    :param state: if the run does not look at all rows.
    """
    place = known.places_of(given.datasets, given.ids)
    there = (place >= 0) & np.append(~known.deleted, False)[place]
    if state is not None:
        others = np.flatnonzero(place < 0)
        found = state.entities(given.datasets[others], given.ids.take(pa.array(others)))
        live = found.filter(pc.invert(strings(found, "deleted")))
        there |= _in(given.texts, key_texts(ints(live, "dataset"), strings(live, "id")))
    held = np.bincount(given.held.rows, minlength=len(given)) > 0
    plan.unusable, plan.waiting = given.unusable, given.where(~there & held)


def _minting(work: Work, *, seen: bool = False) -> Minting | None:
    """Where stable ids come from.

    :param seen: whether the output is read, and tells ids that the state does not know. They are retired, and no
        retired id lives again.
    """
    if work.config.identity != "stable":
        return None
    continues, number = _continues(work), work.state.next_id
    if not continues or seen:
        number = next_number_of(ids_ever(work.output), number)
    return Minting(number, continues)


def _continues(work: Work) -> bool:
    """Whether ids are stable, and were so in the last run."""
    meta = work.state.meta
    return work.config.identity == "stable" and MergeConfig.from_json(meta.config).identity == "stable" and meta.run > 0


def _in(texts: pa.Array, others: pa.Array) -> Bools:
    return pc.is_in(texts, value_set=others).to_numpy(zero_copy_only=False)


def _left(fresh: Fresh, forgotten: pa.Array) -> Left:
    """The entities that are none any more."""
    dropped = fresh.texts.filter(pa.array(fresh.dropped))
    return Left(dropped.filter(pc.invert(pc.is_in(dropped, value_set=forgotten))), forgotten)


def _no_more(before: Known, known: Known) -> Iterator[pa.Table]:
    """Deletes for the records of entities that are none any more."""
    gone = before.was & (known.by_text.of(before.texts) < 0)
    if gone.any():
        yield deletes("e", before.ids.filter(pa.array(gone)), before.datasets[gone], np.zeros(gone.sum(), np.int64))


def _forget_ids(work: Work, plan: Plan, due: Departures) -> None:
    """Take the rows of ids that were retired long ago out of the output, unless entities have the ids again."""
    plan.records += due.deletes()
    if not len(due.retired):
        return
    found = work.output.get(pa.table({"_id": due.retired}), columns=["_id", "_members"])
    ids = strings(found.filter(found.column("_members").is_null()), "_id")
    again = (
        [strings(plan.retired, "_id")] if plan.output_ids is None else [plan.output_ids, strings(plan.retired, "_id")]
    )
    taken = pa.chunked_array(again, pa.string()).combine_chunks()
    going = ids.filter(pc.invert(pc.is_in(ids, value_set=taken)))
    plan.removed = pa.concat_arrays([plan.removed, going])
    if plan.ids is not None:
        plan.ids = replace(plan.ids, go=tuple(sorted({*plan.ids.go, *going.to_pylist()})))


def _moved_departures(state: State, offsets: Sequence[int]) -> Iterator[pa.Table]:
    """The records of what went, with the datasets' new offsets."""
    if all(now == then for then, now in enumerate(offsets)):
        return
    for key, rows in state.departures().items():
        datasets = ints(rows, "dataset")
        now = np.where(datasets < 0, -1, np.array([*offsets, -2], dtype=np.int64)[datasets])
        left = (datasets < 0) | (now >= 0)
        moved = pa.table(
            {"dataset": pa.array(now[left].astype(np.int32)), "id": rows.column("id").filter(pa.array(left))}
        )
        yield redated(key, moved)


def _emitter_of_all(work: Work, known: Known, chunks: Chunks) -> Emitter:
    session = work.session
    if session is None:
        threads = work.threads
        return LocalEmitter(
            work.shape, work.spool, threads, lambda formed: ScannedRows(work.inputs, known, formed, chunks, threads)
        )
    from lakemerge.merge_source.spark import SparkEmitter

    return SparkEmitter(session, work.inputs, work.shape, known, chunks, work.config.identity, work.target)


def _all_entities(work: Work) -> Fresh:
    session = work.session
    if session is None:
        return all_entities(work.inputs, work.config.rules)
    from lakemerge.merge_source.spark import entities_on_spark

    return each_once(entities_on_spark(session, work.inputs, work.config.rules), work.inputs)


def _check_collisions(output: LakeTable, plan: Plan, old: OldClusters) -> None:
    """Check for equal composite ids. Two clusters can have one only if an id contains a bar."""
    if plan.output_ids is None:
        return
    new = plan.output_ids.filter(pc.invert(pc.is_in(plan.output_ids, value_set=old.output_ids)))
    if not len(new):
        return
    found = output.get(pa.table({"_id": new}), columns=["_id", "_members"])
    taken = found.filter(found.column("_members").is_valid())
    if taken.num_rows:
        raise collision(taken.column("_id")[0].as_py())


def _versions_now(work: Work, offsets: Sequence[int]) -> list[int | None]:
    """For each new offset, the version of the same table that the state has taken up."""
    versions: list[int | None] = [None] * len(work.inputs)
    for then, now in enumerate(offsets):
        known = work.state.meta.datasets[then]
        if now >= 0 and work.inputs[now].table_id == known.table_id:
            versions[now] = known.version
    return versions
