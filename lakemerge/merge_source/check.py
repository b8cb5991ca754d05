"""Checks state and output against the rows: clusters and combines everything anew, and compares."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.columns import found_in
from lakemerge.merge_source.combine import OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import strings
from lakemerge.merge_source.full_run import remembered
from lakemerge.merge_source.inputs import Access, open_input
from lakemerge.merge_source.last_output import seen_clusters
from lakemerge.merge_source.output_ids import OldClusters
from lakemerge.merge_source.overrides import open_overrides
from lakemerge.merge_source.publish import output_number, target_schema
from lakemerge.merge_source.results import SourceCheck
from lakemerge.merge_source.run import as_taken_up
from lakemerge.merge_source.run_effects import Plan
from lakemerge.merge_source.run_plans import Work, plan_everything
from lakemerge.merge_source.spool import Spool
from lakemerge.merge_source.state import State
from lakemerge.results.findings import Finding
from lakemerge.table.table import LakeTable

__all__ = ["check"]

_EXAMPLES = 5
_REMEDY = "Run with full=True"
_PARTS = {
    "e": "the state disagrees with the rows of entities",
    "v": "the index of values disagrees with the rows",
    "u": "the state disagrees with the table of overrides",
    "o": "the values that are left out are not those that the rows require",
}


def check(output: LakeTable, state: State, config: MergeConfig, access: Access) -> SourceCheck:
    """Compare with the datasets at the versions that the last run took up.

    :param output: at the version that the state's run wrote, or an earlier one.
    :raises lakemerge.VersionNotFoundError: such a version cannot be read any more.
    """
    started, meta = time.monotonic(), state.meta
    if output_number(output) < meta.emitted_run:
        behind = Finding(
            None,
            "the last run has not written to the output: it is still running, or was interrupted",
            "Run again",
            "behind",
        )
        return SourceCheck(entities=0, clusters=0, seconds=time.monotonic() - started, findings=(behind,))
    if not meta.run:
        return SourceCheck(entities=0, clusters=0, seconds=time.monotonic() - started)
    opened = [open_input(place, one, access) for place, one in enumerate(config.inputs)]
    inputs = [as_taken_up(one, known) for one, known in zip(opened, meta.datasets, strict=True)]
    config = found_in(config, [None if one.shape is None else one.shape.schema for one in inputs])
    shape = OutputShape.of([one.shape for one in inputs], config)
    with Spool() as spool:
        target = target_schema(output.schema, shape)
        now_ms = state.table.opened.handle.now_ms()
        overrides = open_overrides(config, access)
        if overrides is not None and meta.overrides is not None:
            overrides = overrides.earlier(meta.overrides)
        work = Work(output, state, config, inputs, shape, meta.run, spool, target, now_ms, overrides=overrides)
        plan = Plan()
        plan_everything(work, list(range(len(inputs))), plan, last_output="state", guarded=False)
        findings = [*_of_output(work), *_of_state(plan.records)]
        return SourceCheck(
            entities=plan.entities,
            clusters=plan.clusters,
            seconds=time.monotonic() - started,
            findings=tuple(findings),
        )


def _of_output(work: Work) -> Iterator[Finding]:
    """How the output differs from what the state says about it."""
    told = OldClusters.of(remembered(work.state))
    seen, _ = seen_clusters(work.output, work.shape, told)
    extra = seen.output_ids.filter(pc.invert(pc.is_in(seen.output_ids, value_set=told.output_ids)))
    if len(extra):
        yield Finding(
            None, f"the output has {len(extra)} id(s) that no entities have: {_some(extra)}", _REMEDY, "output"
        )
    at = pc.index_in(told.output_ids, value_set=seen.output_ids)
    if at.null_count:
        missing = told.output_ids.filter(at.is_null())
        yield Finding(None, f"the output lacks {len(missing)} row(s): {_some(missing)}", _REMEDY, "output")
    same = pa.array(np.ones(len(told), dtype=np.bool_))
    for name in ("hash", "written", "updated"):
        same = pc.and_(
            same, pc.fill_null(pc.equal(strings(told.records, name), strings(seen.records, name).take(at)), False)
        )
    wrong = told.output_ids.filter(pc.and_(pc.invert(same), at.is_valid()))
    if len(wrong):
        yield Finding(
            None, f"{len(wrong)} row(s) of the output are not what was written: {_some(wrong)}", _REMEDY, "output"
        )


def _of_state(records: Sequence[pa.Table]) -> Iterator[Finding]:
    for part, problem in _PARTS.items():
        keys = [table.filter(pc.equal(table.column("part"), part)).column("k") for table in records]
        wrong = pa.chunked_array([chunk for key in keys for chunk in key.chunks], pa.string()).combine_chunks()
        if len(wrong):
            yield Finding(None, f"{problem}, in {len(wrong)} record(s): {_some(wrong)}", _REMEDY, "state")


def _some(texts: pa.Array) -> str:
    shown = ", ".join(map(repr, texts.slice(0, _EXAMPLES).to_pylist()))
    return shown + (", ..." if len(texts) > _EXAMPLES else "")
