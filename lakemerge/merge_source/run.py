"""One run: it finds what changed, plans, and makes two commits.

The commit of the state decides. The commit of the output follows under the same number, with the rows that are newer in
the state. If a run is cut short in between, the next run first writes those rows. If two runs are made at once, one of
them gets the number, and the other plans again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from lakemerge.commits.provenance import Along
from lakemerge.delta.actions import Txn
from lakemerge.errors import CommitConflictError, FullRunNeededError, LakeMergeError, VersionNotFoundError
from lakemerge.merge_source.columns import found_in, warn_of_kinds
from lakemerge.merge_source.combine import OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.config_changes import Succession, check_missing, dataset_states, succession
from lakemerge.merge_source.inputs import Access, Input, open_input
from lakemerge.merge_source.override_findings import found_by
from lakemerge.merge_source.overrides import OverrideTable, open_overrides
from lakemerge.merge_source.oversize_values import left_out_now, new_ones, shown
from lakemerge.merge_source.publish import (
    output_number,
    publish,
    target_schema,
    unpublished_removals,
    unpublished_rows,
)
from lakemerge.merge_source.removed_entities import is_due
from lakemerge.merge_source.results import IdChanges, RunResult
from lakemerge.merge_source.run_effects import Plan
from lakemerge.merge_source.run_plans import LastOutput, Work, plan_changes, plan_everything
from lakemerge.merge_source.spool import Spool
from lakemerge.merge_source.state import (
    APPLICATION,
    NEXT_ID,
    RETIRED,
    DatasetState,
    Meta,
    State,
    deletes,
    records,
    write_rows,
)
from lakemerge.table.table import LakeTable
from lakemerge.write.start import OwnTxn
from mergers.interrupts import is_foreign
from mergers.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Tables", "as_taken_up", "not_populated", "run_once", "with_tables"]

_ATTEMPTS = 20
_RETIRED_ROWS = 100_000
_SHOWN = 100
"""How many of the values that are left out a result names."""

_logger = logger(__name__)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a source writes, and how it opens the tables that it reads."""

    output: LakeTable
    state: LakeTable
    access: Access
    spark: SparkSession | None = None
    """Full runs over large datasets use it."""


def run_once(
    tables: Tables, config_of: Callable[[Meta], MergeConfig], *, full: bool = False, dry_run: bool = False
) -> RunResult:
    """Take up what changed; see :meth:`lakemerge.merge_source.MergeSource.run`.

    :param config_of: gives the configuration of the run, from the record of the state.
    """
    started = time.monotonic()
    for _ in range(_ATTEMPTS):
        state = State.at(tables.state)
        config = config_of(state.meta)
        done = _Run(tables, state, config, full=full, dry_run=dry_run, started=started).go()
        if done is not None:
            return done
    raise CommitConflictError(f"other runs were first {_ATTEMPTS} times; nothing was changed, try again")


def not_populated(config: MergeConfig, inputs: Sequence[Input]) -> tuple[str, ...]:
    """The datasets that must be populated first, and are not."""
    initial = config.initial_datasets
    found = []
    for alias, one in zip(config.aliases, inputs, strict=True):
        if initial is not None and alias not in initial and one.name not in initial:
            continue
        if one.table is None:
            if not config.ignore_non_existent_datasets:
                found.append(one.name)
        elif not one.is_filled:
            found.append(one.name)
    return tuple(dict.fromkeys(found))


class _Run:
    """One attempt of a run."""

    def __init__(
        self, tables: Tables, state: State, config: MergeConfig, *, full: bool, dry_run: bool, started: float
    ) -> None:
        self._tables = tables
        self._state = state
        self._meta = state.meta
        self._config = config
        self._full = full
        self._dry_run = dry_run
        self._started = started
        self._output = tables.output
        self._done = output_number(self._output)
        self._unwritten_after: int | None = None
        # The next number after the state that was read. If another run commits meanwhile, it has this number, and this
        # run is refused.
        self._number = state.number + 1

    def go(self) -> RunResult | None:
        """``None``: another run was faster."""
        if self._done > self._state.number:
            return None
        spoilt = self._restored()
        if not spoilt:
            self._catch_up()
        inputs = [open_input(place, one, self._tables.access) for place, one in enumerate(self._config.inputs)]
        check_missing(self._meta, self._config, inputs)
        schemas = [None if one.shape is None else one.shape.schema for one in inputs]
        self._config = found_in(self._config, schemas)
        overrides = open_overrides(self._config, self._tables.access)
        _warn_of_missing(inputs)
        waits_for = not_populated(self._config, inputs)
        if waits_for:
            return self._result(None, inputs, waits_for=waits_for, everything=False)
        before = succession(self._meta, self._config, inputs, full=self._full)
        behind = self._done < self._meta.emitted_run
        if behind:
            # What the last run was to write cannot be read any more. All that the output lacks is found by looking.
            before = replace(before, everything=True)
        if before.everything and self._config.to_json() != dict(MergeConfig.from_json(self._meta.config).to_json()):
            warn_of_kinds(self._config.rules, self._config.aliases, schemas)
        forget = self._forget_before()
        if self._is_idle(before, inputs, overrides) and not (forget is not None and is_due(self._state, forget)):
            return self._result(None, inputs, everything=False)
        shape = OutputShape.of([one.shape for one in inputs], self._config)
        target = target_schema(self._output.schema, shape)
        with Spool() as spool:
            work = Work(
                output=self._output,
                state=self._state,
                config=self._config,
                inputs=inputs,
                shape=shape,
                number=self._number,
                spool=spool,
                target=target,
                now_ms=self._now_ms(),
                forget_before_ms=forget,
                spark=self._tables.spark,
                overrides=overrides,
                tells_ids=self._dry_run,
                unwritten_after=self._unwritten_after,
            )
            plan = Plan(next_id=self._state.next_id)
            try:
                if before.everything:
                    is_lost = behind or "state" in spoilt
                    last: LastOutput = "output" if is_lost else "both" if self._full else "state"
                    bars = plan_everything(work, before.offsets, plan, last_output=last)
                else:
                    bars = plan_changes(work, plan)
                if not self._dry_run:
                    meta = self._meta_after(plan, inputs, overrides, bars=bars)
                    if not self._commit(plan, meta):
                        return None
                    for value in shown(new_ones(self._state, plan.all_left_out), self._config, _SHOWN):
                        _logger.warning("%s joins nobody: max_merged is %d", value, self._config.max_merged)
                    self._publish(plan, meta, target)
            finally:
                if plan.emitter is not None:
                    plan.emitter.close()
            return self._result(plan, inputs, everything=before.everything, overrides=overrides)

    def _now_ms(self) -> int:
        """The time by the clock of the state's store, which all runs share. A dry run does not write to ask for it."""
        handle = self._tables.state.opened.handle
        return handle.now_ms() if self._dry_run else handle.store_now_ms()

    def _forget_before(self) -> int | None:
        kept = self._config.retention_ms
        return None if kept is None else self._now_ms() - kept

    def _restored(self) -> set[str]:
        """Which of ``state`` and ``output`` are not as runs left them. If one is not, and the run is no full run, it
        raises :class:`FullRunNeededError`."""
        meta, view = self._meta, self._output.opened.view
        found = set()
        if meta.run and self._state.restore_epoch != meta.state_epoch:
            found.add("state")
        if meta.run and (view.snapshot.metadata.id, view.state.restore_epoch) != (meta.output_id, meta.output_epoch):
            found.add("output")
        if found and not self._full:
            which = "state" if "state" in found else "output"
            raise FullRunNeededError(
                f"its {which} was restored to an earlier version, or recreated, since the last run of the merge source "
                f"{self._output.url}. Run with full=True"
            )
        return found

    def _catch_up(self) -> None:
        """Write the rows that the last run did not write because it was cut short.

        A dry run makes them, since only that shows whether they can be made, and goes on as if they were written.
        """
        meta = self._meta
        if self._done >= meta.emitted_run:
            return
        config = MergeConfig.from_json(meta.config)
        try:
            inputs = [
                as_taken_up(open_input(place, one, self._tables.access), meta.datasets[place])
                for place, one in enumerate(with_tables(config, self._config).inputs)
            ]
            shape = OutputShape.of([one.shape for one in inputs], config)
            rows = unpublished_rows(self._state, inputs, shape, after=self._done)
            target = target_schema(self._output.schema, shape)
            removed = unpublished_removals(self._state)
            if self._dry_run:
                deque(rows, maxlen=0)
                self._unwritten_after, self._done = self._done, meta.emitted_run
                return
            publish(self._output, target, rows, meta.emitted_run, removed=removed, held=False)
        except (VersionNotFoundError, FullRunNeededError) as error:
            _logger.warning(
                "the last run of the merge source %s was interrupted, and the versions that it read can no longer be "
                "read (%s): this run looks at everything",
                self._output.url,
                error.message,
            )
        self._done = output_number(self._output)

    def _is_idle(self, before: Succession, inputs: Sequence[Input], overrides: OverrideTable | None) -> bool:
        if overrides is not None and overrides.state != self._meta.overrides:
            return False
        if before.everything:
            return False
        told = self._config.to_json() == dict(MergeConfig.from_json(self._meta.config).to_json())
        return told and dataset_states(inputs) == self._meta.datasets

    def _meta_after(self, plan: Plan, inputs: Sequence[Input], overrides: OverrideTable | None, *, bars: bool) -> Meta:
        meta = self._meta
        emits = plan.writes
        chunks = -(-(plan.retired.num_rows + len(plan.removed)) // _RETIRED_ROWS)
        return replace(
            meta,
            config=self._config.to_json(),
            run=self._number,
            next_id=plan.next_id,
            updated=plan.updated,
            emitted_run=self._number if emits else min(meta.emitted_run, self._done),
            live=meta.live + plan.live_change,
            left_out=len(plan.all_left_out),
            retired_chunks=chunks if emits else meta.retired_chunks,
            datasets=dataset_states(inputs),
            overrides=None if overrides is None else overrides.state,
            output_id=self._output.opened.view.snapshot.metadata.id,
            output_epoch=self._output.opened.view.state.restore_epoch,
            state_epoch=self._state.restore_epoch,
            bars=bars,
        )

    def _commit(self, plan: Plan, meta: Meta) -> bool:
        """Write the state. False if another run was faster."""
        tables = [*plan.records, *self._retired_records(plan, meta), _meta_record(meta)]
        frame = pa.concat_tables(tables)
        number = Txn(NEXT_ID, meta.next_id, self._tables.state.opened.handle.now_ms())
        along = Along((number,) if meta.next_id > 1 else ())
        own = cast("tuple[str, int]", OwnTxn(APPLICATION, self._number, along))
        result = self._tables.state.upsert(frame, kind_column="_kind", txn=own)
        return result.mode != "repeated"

    def _retired_records(self, plan: Plan, meta: Meta) -> Iterator[pa.Table]:
        """Records of the ids that this run retires. They replace those of the last run."""
        if not plan.writes:
            return
        removed = pa.table({"_id": plan.removed}).cast(pa.schema([RETIRED.field("_id")]))
        both = pa.concat_tables([plan.retired, removed], promote_options="default")
        for number in range(meta.retired_chunks):
            data = write_rows(both.slice(number * _RETIRED_ROWS, _RETIRED_ROWS))
            zero = np.zeros(1, dtype=np.int64)
            yield records("r", pa.array([""]), zero + number, zero, {"data": pa.array([data], pa.binary())})
        stale = np.arange(meta.retired_chunks, self._meta.retired_chunks, dtype=np.int64)
        if len(stale):
            yield deletes("r", pa.array([""] * len(stale)), stale, np.zeros_like(stale))

    def _forget_removed(self, meta: Meta) -> None:
        """Delete the list of ids that were taken out of the output. A run that is cut short before leaves it to the
        next one that writes something."""
        names = pa.array([""] * meta.retired_chunks)
        numbers = np.arange(meta.retired_chunks, dtype=np.int64)
        self._tables.state.upsert(deletes("r", names, numbers, np.zeros_like(numbers)), kind_column="_kind")

    def _publish(self, plan: Plan, meta: Meta, target: pa.Schema) -> None:
        if plan.writes and plan.emitter is not None:
            plan.emitter.write(self._output, target, plan.retired, plan.removed, self._number)
            if len(plan.removed):
                self._forget_removed(meta)
        try:
            self._tables.state.maintain()
        except (LakeMergeError, OSError) as error:
            if is_foreign(error):
                raise
            _logger.warning("maintenance of the state %s failed", self._tables.state.url, exc_info=True)

    def _result(
        self,
        plan: Plan | None,
        inputs: Sequence[Input],
        *,
        everything: bool,
        waits_for: tuple[str, ...] = (),
        overrides: OverrideTable | None = None,
    ) -> RunResult:
        taken = {one.name: one.version for one in inputs}
        if waits_for:
            known = dict(zip(MergeConfig.from_json(self._meta.config).names, self._meta.datasets, strict=False))
            taken = {name: known[name].version if name in known else None for name in taken}
        left = left_out_now(self._state) if plan is None else plan.all_left_out
        found = None
        if plan is not None:
            found = found_by(self._config, overrides, plan.cuts, plan.unusable, plan.waiting, top=_SHOWN)
        return RunResult(
            emitted=0 if plan is None else plan.emitted_count,
            replaced=0 if plan is None else plan.replaced_count,
            deleted=0 if plan is None else plan.deleted + plan.retired.num_rows - plan.replaced_count,
            clusters=0 if plan is None else plan.clusters,
            versions=taken,
            populated=not waits_for,
            waits_for=waits_for,
            full=everything,
            dry_run=self._dry_run,
            number=self._meta.run if plan is None or self._dry_run else self._number,
            seconds=time.monotonic() - self._started,
            removed=0 if plan is None else len(plan.removed),
            left_out=shown(left, self._config, _SHOWN),
            left_out_count=len(left),
            findings=() if found is None else found.shown,
            findings_count=0 if found is None else found.count,
            ids=plan.ids if plan is not None else IdChanges() if self._dry_run else None,
        )


def _meta_record(meta: Meta) -> pa.Table:
    zero = np.zeros(1, dtype=np.int64)
    return records("m", pa.array([""]), zero, zero, {"text": pa.array([meta.to_text()])})


def as_taken_up(one: Input, known: DatasetState) -> Input:
    """The dataset at the version that the state has taken up. Raises :class:`VersionNotFoundError`."""
    if one.table_id != known.table_id:
        raise VersionNotFoundError(f"the table of dataset {one.name!r} is another one now")
    return one if known.version is None else one.earlier(known.version)


def with_tables(stored: MergeConfig, given: MergeConfig) -> MergeConfig:
    """The stored configuration, with the tables and credentials of the given one."""
    known = {one.place: one for one in given.inputs}
    datasets = {
        alias: replace(one, table=known[place].table, storage_options=known[place].storage_options)
        if (place := one.place) in known
        else one
        for alias, one in zip(stored.aliases, stored.inputs, strict=True)
    }
    one, other = stored.override_dataset, given.override_dataset
    if one is not None and other is not None and one.place == other.place:
        one = replace(one, table=other.table, storage_options=other.storage_options)
    return replace(stored, datasets=datasets, overrides=one)


def _warn_of_missing(inputs: Sequence[Input]) -> None:
    """A dataset may have no table before its first rows. It may as well be misspelt."""
    for one in inputs:
        if one.table is None:
            _logger.warning("dataset %r is empty: there is no table at %s", one.name, one.dataset.table)
