"""Plans incremental runs and full runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.changes import changed_entities, reach
from lakemerge.merge_source.combine import OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.emission import Emitter, LocalEmitter
from lakemerge.merge_source.everything import (
    all_entities,
    each_once,
    gone_entities,
    index_records,
    leftover_records,
    remembered,
    still_there,
)
from lakemerge.merge_source.inputs import Input
from lakemerge.merge_source.known import Fresh, Known, assemble
from lakemerge.merge_source.outcome import Bystanders, OldClusters, collision
from lakemerge.merge_source.plan import Plan, Settling, settle
from lakemerge.merge_source.rows import Chunks, ScannedRows, SoughtRows
from lakemerge.merge_source.seen import seen_clusters
from lakemerge.merge_source.spool import Spool
from lakemerge.merge_source.state import DatasetState, State, chunk_rows
from lakemerge.table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK_FROM_BYTES", "Work", "plan_changes", "plan_everything"]

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
    spark: SparkSession | None = None
    """Full runs over large datasets use it."""

    @property
    def session(self) -> SparkSession | None:
        """The session that a full run uses."""
        is_large = sum(one.stored_bytes for one in self.inputs) >= SPARK_FROM_BYTES
        return self.spark if is_large else None

    @property
    def threads(self) -> int:
        return self.output.handle.settings.threads


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

    with ThreadPoolExecutor(work.threads) as pool:
        parts = list(pool.map(changed, work.inputs, meta.datasets))
    reached = reach(state, config, Fresh.together(parts))
    known = assemble(reached.old, reached.fresh)
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
    )
    plan.records += reached.records
    settle(settling, plan)
    bars = meta.bars or known.has_bars
    if bars and config.identity == "composite":
        _check_collisions(work.output, plan, settling.old)
    plan.records += [chunk_rows(name, rows) for name, rows in chunks.fresh.items()]
    return bars


def plan_everything(work: Work, offsets: Sequence[int], plan: Plan, *, by_output: bool) -> bool:
    """Fill the plan from all rows. Returns whether there is an id with a bar.

    :param offsets: for each old offset of a dataset its new one; -1 if it was removed.
    :param by_output: whether to read the last output from the output itself, because the state may be wrong.
    """
    config, state, meta = work.config, work.state, work.state.meta
    old = remembered(state)
    there = still_there(old, offsets)
    fresh = _all_entities(work)
    gone, kept = gone_entities(work.inputs, _versions_now(work, offsets), there, fresh, work.number)
    chunks = Chunks(state, kept)
    shifted = any(now not in (then, -1) for then, now in enumerate(offsets))
    known = assemble(there, Fresh.together([fresh, gone]))
    if shifted:
        known = replace(known, was=np.zeros(len(known), dtype=np.bool_))
    clusters, updated = OldClusters.of(old), meta.updated
    if by_output:
        clusters, last = seen_clusters(work.output, work.shape, clusters)
        updated = max(updated, last + 1)
    settling = Settling(
        config=config,
        run=work.number,
        updated=updated,
        known=known,
        old=clusters.moved(offsets),
        bystanders=Bystanders.none(),
        emitter=_emitter_of_all(work, known, chunks),
    )
    # Several threads ask for these below. They are made before, so that each is made once.
    with ThreadPoolExecutor(2) as pool:
        for made in [pool.submit(getattr, known.held, "encoded"), pool.submit(getattr, known, "by_text")]:
            made.result()
    # The index depends on the values alone, so another thread makes its records meanwhile.
    with ThreadPoolExecutor(1) as pool:
        index = pool.submit(lambda: list(index_records(state if meta.run else None, known)))
        settle(settling, plan)
        plan.records += index.result()
    if meta.run:
        plan.records += leftover_records(state, offsets, known)
    plan.records += [chunk_rows(name, rows) for name, rows in kept.items()]
    return known.has_bars


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
