"""Merging a source into a table without Spark.

The source is held in memory, sorted by key; the table's rows are streamed past it. Each row goes to the first clause of
its side whose condition holds.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError, FrameError
from lakemerge.format.config import TableConfig
from lakemerge.format.names import KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.lookup import find_rows
from lakemerge.read.scan import scan
from lakemerge.schema.schema import castable, safe_cast
from lakemerge.sql.compiling import compile_value
from lakemerge.sql.logic import condition as as_condition
from lakemerge.sql.nodes import Node, Rows
from lakemerge.sql.parsing import parsed
from lakemerge.transactions.assignments import compile_assignments
from lakemerge.transactions.clauses import (
    Aliases,
    Clause,
    Match,
    MergeCall,
    Side,
    brought_columns,
    matched_on,
    qualified,
    resolved,
    row_schema,
)
from lakemerge.transactions.errors import MultipleMatchesError
from lakemerge.write.start import with_columns_of
from mergers.contract import Ints
from mergers.keys import KeyColumns, group_starts, key_columns, locate, sort_order
from mergers.portions import gather, together
from mergers.restart import CLEAR, SET
from mergers.type_names import type_name

__all__ = ["Merging"]

_ROWS = 65_536
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Step:
    """A clause, ready to run."""

    clause: Clause
    condition: Node | None
    values: Mapping[str, Node]


@dataclass
class Merging:
    """One attempt of a merge: the records that it writes, and how many rows each action took."""

    handle: Handle
    view: TableView
    source: pa.Table
    call: MergeCall
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.call.evolves:
            names = brought_columns(self.call, self.view.config, self.source.column_names)
            self.view = with_columns_of(self.handle, self.view, self.source.select(names).schema)

    def records(self) -> pa.RecordBatchReader:
        """Sets and clears with all columns of the table, and their kinds.

        :raises MultipleMatchesError: several source rows match a row of the table.
        """
        config = self.view.config
        match = matched_on(self.call.on, config, self.source.column_names, self.call.aliases)
        steps = self._steps(match)
        schema = pa.schema([*(f.with_nullable(True) for f in config.schema), pa.field(KIND_COLUMN, pa.int8())])
        return pa.RecordBatchReader.from_batches(schema, self._batches(match, steps, schema))

    def _steps(self, match: Match) -> dict[Side, list[_Step]]:
        """The clauses by their sides, compiled. All errors of names and types come from here, before rows are read."""
        config, names, aliases = self.view.config, self.source.column_names, self.call.aliases
        schema = row_schema(config, self.source.schema, aliases)
        steps: dict[Side, list[_Step]] = {"matched": [], "not matched": [], "not matched by source": []}
        for clause in self.call.clauses:
            target = () if clause.side == "not matched" else config.schema.names
            own = () if clause.side == "not matched by source" else names
            # Names that the row of this side lacks are unknown.
            seen = pa.schema([f for f, there in zip(schema, (target, own), strict=True) if there])
            condition = None
            if clause.condition is not None:
                condition = as_condition(_compiled(clause.condition, seen, target, own, aliases))
            values: Mapping[str, Node] = {}
            if clause.writes_set:
                given = resolved(clause, config, names, match, self.call)
                rewrite = partial(qualified, target=target, source=own, aliases=aliases)
                values = compile_assignments(given, seen, config.schema, rewrite)
            steps[clause.side].append(_Step(clause, condition, values))
        return steps

    def _batches(self, match: Match, steps: Mapping[Side, list[_Step]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        config = self.view.config
        rows, keys, unkeyed = self._keyed_source(match)
        starts = group_starts(keys)
        ends = np.append(starts[1:], rows.num_rows)
        distinct = tuple(column.take(pa.array(starts)) for column in keys)
        rest = None
        if match.rest is not None:
            aliases = self.call.aliases
            seen = row_schema(config, rows.schema, aliases)
            rest = as_condition(_compiled(match.rest, seen, config.schema.names, rows.column_names, aliases))
        matched = np.zeros(rows.num_rows, dtype=np.bool_)
        found = np.zeros(len(starts), dtype=np.bool_)
        for batch in self._target_rows(distinct, all_rows=bool(steps["not matched by source"])):
            at, hit = locate(distinct, key_columns(batch, config.key))
            found[at[hit]] = True
            # A pair for each row of the table and each source row of its key.
            sizes = np.where(hit, (ends - starts)[np.minimum(at, max(len(starts) - 1, 0))] if len(starts) else 0, 0)
            left = np.repeat(np.arange(batch.num_rows), sizes)
            right = _ranges(starts[at[hit]], sizes[hit])
            pairs = self._pairs(batch, left, rows, right)
            if rest is not None and len(left):
                held = _truth(rest, pairs)
                left, right, pairs = left[held], right[held], pairs.filter(pa.array(held))
            self._check_single(batch, left, steps["matched"])
            matched[right] = True
            found_here, once = np.unique(left, return_index=True)
            self.counts["matched"] += len(found_here)
            if self.call.only_deletes_matched:
                left, right, pairs = left[once], right[once], pairs.take(pa.array(once))
            yield from self._applied("matched", steps, pairs, schema)
            alone = np.setdiff1d(np.arange(batch.num_rows), left)
            if steps["not matched by source"] and len(alone):
                lone = _wrapped(batch.take(pa.array(alone)), self.call.aliases.target)
                yield from self._applied("not matched by source", steps, lone, schema)
        yield from self._inserts(steps, rows, unkeyed, matched, found, starts, ends, schema)

    def _inserts(
        self,
        steps: Mapping[Side, list[_Step]],
        rows: pa.Table,
        unkeyed: pa.Table,
        matched: npt.NDArray[np.bool_],
        found: npt.NDArray[np.bool_],
        starts: Ints,
        ends: Ints,
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        if not steps["not matched"]:
            return
        left = np.flatnonzero(~matched)
        groups = np.repeat(np.arange(len(starts)), ends - starts)[left]
        taken: Counter[int] = Counter()
        for start in range(0, len(left), _ROWS):
            some = left[start : start + _ROWS]
            part = together(gather(rows, some)).to_batches()[0]
            for applied, picks in self._chosen("not matched", steps, self._lone(part), schema):
                own = groups[start : start + _ROWS][picks]
                taken.update(own.tolist())
                wrong = [int(group) for group in own if found[group] or taken[int(group)] > 1]
                if wrong:
                    self._refuse_insert(rows.slice(int(starts[wrong[0]]), 1), there=bool(found[wrong[0]]))
                yield applied
        if unkeyed.num_rows:
            # The write refuses keys that are null.
            yield from self._applied("not matched", steps, self._lone(together(unkeyed).to_batches()[0]), schema)

    def _refuse_insert(self, row: pa.Table, *, there: bool) -> None:
        key = row.to_pylist()[0]
        if there:
            raise MultipleMatchesError(
                f"the merge would insert a row for the source row {key}, and the table has a row of its key that does "
                f"not meet the other conditions of {self.call.on!r}: put these into the conditions of the clauses"
            )
        raise MultipleMatchesError(f"the merge would insert several rows of one key, such as that of {key}")

    def _keyed_source(self, match: Match) -> tuple[pa.Table, KeyColumns, pa.Table]:
        """The source's rows sorted by key, their keys in the table's types, and the rows whose key has a null."""
        config, source = self.view.config, together(self.source)
        batch = source.to_batches()[0] if source.num_rows else pa.RecordBatch.from_pylist([], schema=source.schema)
        wrapped = self._lone(batch)
        columns = []
        for name in config.key:
            node = _compiled(match.keys[name], wrapped.schema, (), source.column_names, self.call.aliases)
            values, kind = node.evaluate(Rows(wrapped)), config.schema.field(name).type
            if not castable(values.type, kind):
                given = type_name(values.type)
                raise FrameError(f"the merge compares key column {name!r}, {type_name(kind)}, with {given}: cast it")
            columns.append(values)
        keys = pa.RecordBatch.from_arrays(columns, names=list(config.key))
        valid = np.ones(keys.num_rows, dtype=np.bool_)
        for column in keys.columns:
            valid &= pc.is_valid(column).to_numpy(zero_copy_only=False)
        schema = pa.schema([pa.field(name, config.schema.field(name).type) for name in config.key])
        known = safe_cast(keys.filter(pa.array(valid)), schema)
        there = key_columns(known, config.key)
        order = sort_order(there)
        rows = gather(source.filter(pa.array(valid)), order)
        return rows, tuple(c.take(pa.array(order)) for c in there), source.filter(pa.array(~valid))

    def _target_rows(self, keys: KeyColumns, *, all_rows: bool) -> Iterator[pa.RecordBatch]:
        config = self.view.config
        if all_rows:
            rows = scan(self.handle, self.view, columns=None, filter=None, ordered=False)
            yield from (batch for batch in rows if batch.num_rows)
            return
        schema = pa.schema([config.schema.field(name) for name in config.key])
        wanted = pa.table(list(keys), schema=schema)
        for start in range(0, wanted.num_rows, _ROWS):
            rows = find_rows(self.handle, self.view, wanted.slice(start, _ROWS), config.schema.names)
            yield from (batch for batch in together(rows).to_batches() if batch.num_rows)

    def _check_single(self, batch: pa.RecordBatch, left: Ints, steps: Sequence[_Step]) -> None:
        counts = np.bincount(left, minlength=batch.num_rows)
        if counts.max(initial=0) <= 1 or not steps or self.call.only_deletes_matched:
            return
        several = np.flatnonzero(counts > 1)
        keys = batch.select(list(self.view.config.key)).take(pa.array(several[:_SHOWN])).to_pylist()
        raise MultipleMatchesError(
            f"several source rows match one row of the table, for {len(several)} row(s) such as "
            f"{', '.join(map(str, keys))}: leave one source row for each key",
            keys=tuple(keys),
        )

    def _applied(
        self, side: Side, steps: Mapping[Side, list[_Step]], rows: pa.RecordBatch, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in self._chosen(side, steps, rows, schema))

    def _chosen(
        self, side: Side, steps: Mapping[Side, list[_Step]], rows: pa.RecordBatch, schema: pa.Schema
    ) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        """For each clause of the side, its records, and the numbers of the rows that it took."""
        left = np.arange(rows.num_rows)
        for step in steps[side]:
            if not len(left):
                return
            there = rows.take(pa.array(left))
            takes = np.ones(len(left), dtype=np.bool_) if step.condition is None else _truth(step.condition, there)
            picked, left = left[takes], left[~takes]
            if len(picked):
                self.counts[step.clause.action] += len(picked)
                there = rows.take(pa.array(picked))
                yield _records(step, there, self.view.config, schema, self.call.aliases.target), picked

    def _lone(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Source rows that match no row of the table."""
        return _wrapped(rows, self.call.aliases.source)

    def _pairs(self, batch: pa.RecordBatch, left: Ints, rows: pa.Table, right: Ints) -> pa.RecordBatch:
        source = together(gather(rows, right))
        own = source.to_batches()[0] if source.num_rows else pa.RecordBatch.from_pylist([], schema=source.schema)
        names = [self.call.aliases.target, self.call.aliases.source]
        return pa.RecordBatch.from_arrays([_struct(batch.take(pa.array(left))), _struct(own)], names=names)


def _records(step: _Step, rows: pa.RecordBatch, config: TableConfig, schema: pa.Schema, alias: str) -> pa.RecordBatch:
    """What a clause writes for some rows. ``alias``: that of the table's row."""
    seen = Rows(rows)
    target = rows.column(alias) if alias in rows.schema.names else None
    remembered = {*config.key, *config.ordering}
    arrays: list[pa.Array] = []
    for field_ in config.schema:
        if field_.name in step.values:
            arrays.append(step.values[field_.name].evaluate(seen))
        elif target is not None and (step.clause.writes_set or field_.name in remembered):
            arrays.append(pc.struct_field(target, field_.name))
        else:
            arrays.append(pa.nulls(rows.num_rows, field_.type))
    kind = SET if step.clause.writes_set else CLEAR
    return pa.RecordBatch.from_arrays([*arrays, pa.array(np.full(rows.num_rows, kind, dtype=np.int8))], schema=schema)


def _compiled(text: str, schema: pa.Schema, target: Sequence[str], source: Sequence[str], aliases: Aliases) -> Node:
    try:
        return compile_value(qualified(parsed(text), target, source, aliases), schema, dt.UTC)
    except RecursionError:
        raise FilterError("the expression is nested too deeply", filter=text) from None


def _truth(node: Node, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    known = pc.fill_null(node.evaluate(Rows(rows)), fill_value=False)
    found: npt.NDArray[np.bool_] = known.to_numpy(zero_copy_only=False)
    return found


def _struct(rows: pa.RecordBatch) -> pa.StructArray:
    return pa.StructArray.from_arrays(rows.columns, fields=[f.with_nullable(True) for f in rows.schema])


def _wrapped(rows: pa.RecordBatch, alias: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_struct(rows)], names=[alias])


def _ranges(starts: Ints, sizes: Ints) -> Ints:
    """The numbers of all ranges, one after the other."""
    total = int(sizes.sum())
    if not total:
        return np.empty(0, dtype=np.int64)
    ends = np.cumsum(sizes)
    return np.arange(total, dtype=np.int64) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)
