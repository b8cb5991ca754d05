"""Filters on a table's columns, and which files they can pass over.

A filter is SQL text in Spark's dialect or a ready Arrow expression. Both become one
:class:`Filter`; :func:`prune` asks it of files' statistics.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.read.filter.judging import Judgement, judge
from lakemerge.read.filter.long import compile_long
from lakemerge.read.filter.points import points_of
from lakemerge.read.filter.predicates import Points, bind, constant
from lakemerge.read.filter.simplifier import can_hold
from lakemerge.sql.nodes import Node, Rows, positions_of

__all__ = ["FileStats", "Filter", "parse_filter", "prune"]

_SPLIT_COLUMNS = 3
"""For Arrow expressions: for at most this many nullable columns, rows with and without a value are judged apart."""
_BATCH_ROWS = 64 * 1024
"""How many rows are computed with at a time."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on rows. It keeps rows for which ``expression`` and all of ``computed`` are true. False and null are
    treated alike, so the negation is not the opposite filter. Picklable."""

    expression: Judgement
    """The part that Arrow evaluates."""
    columns: frozenset[str]
    """The top-level columns that the expression reads, as the schema spells them."""
    schema: pa.Schema
    """The types of those columns."""
    may_match: Judgement | None
    """The condition on statistics, for SQL filters and long expressions; see
    :mod:`lakemerge.read.filter.predicates`."""
    points: Points = field(default_factory=dict)
    """The only values that matching rows can have, by columns. Columns of which this is not known have no entry."""
    may_fail: bool = True
    """Whether Spark may fail on some rows, because the condition computes with columns or casts them, and a number
    overflows. For Arrow expressions this is not known."""
    needs_ansi: bool = False
    """Whether Spark without ANSI mode compares other values in a condition that is not computed."""
    computed: tuple[Node, ...] = ()
    """Conditions of SQL filters that cannot be Arrow expressions. If an earlier condition drops a row, later conditions
    are not evaluated on it."""

    def kept(self, rows: pa.Table) -> pa.Table:
        """The rows that match. Raises :class:`FilterError` if the condition cannot be computed for a row's values."""
        try:
            found = self._judged(rows)
        except pa.ArrowInvalid as error:
            raise FilterError(f"the filter cannot be judged: {error}") from error
        if not self.computed:
            return found
        masks = [self._holds(batch) for batch in found.to_batches(max_chunksize=_BATCH_ROWS)]
        return found.filter(pa.chunked_array(masks, pa.bool_()))

    def _judged(self, rows: pa.Table) -> pa.Table:
        own = rows.select(sorted(self.columns & set(rows.column_names)))
        masks = []
        for start in range(0, rows.num_rows, _BATCH_ROWS):
            part = own.slice(start, _BATCH_ROWS)
            masks.append(judge(self.expression, part if own.num_columns else rows.slice(start, _BATCH_ROWS)))
        return rows.filter(pa.chunked_array([chunk for mask in masks for chunk in mask.chunks], pa.bool_()))

    def _holds(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        left, places = Rows(batch), np.arange(batch.num_rows)
        for node in self.computed:
            holds = node.evaluate(left).fill_null(False)
            left, places = left.where(holds), places[positions_of(holds)]
        mask = np.zeros(batch.num_rows, dtype=np.bool_)
        mask[places] = True
        return pa.array(mask)


@dataclass(frozen=True, slots=True)
class FileStats:
    """What is known of one file, by top-level column. ``None`` or no entry means that it is not known.

    ``min`` and ``max`` bound every value that is neither null nor NaN (they need not be values
    themselves: a writer that rounds must round outwards). All values are Python values of the
    columns' types, not text.
    """

    min: Mapping[str, object] = field(default_factory=dict)
    max: Mapping[str, object] = field(default_factory=dict)
    null_count: Mapping[str, int] = field(default_factory=dict)
    num_rows: int | None = None
    partition_values: Mapping[str, object] = field(default_factory=dict)
    """The one value, or null, of all rows of the file."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of one column in one file."""

    low: Any
    high: Any
    nulls: int | None
    rows: int | None


def parse_filter(
    filter: str | pc.Expression | None, schema: pa.Schema, *, zone: dt.tzinfo | None = dt.UTC
) -> Filter | None:
    """The filter over a table's canonical ``schema``; ``None`` for ``None``.

    ``zone`` is the zone of times that have none in the SQL text (``None``: not known; such times are refused).
    Raises :class:`FilterError` that names what is unknown, not supported or of a wrong type. An
    Arrow expression must name its columns: their positions differ from read to read.
    """
    if filter is None:
        return None
    if not isinstance(filter, str | pc.Expression):
        raise FilterError(f"a filter is SQL text or a pyarrow.compute.Expression, not {type(filter).__name__}")
    if isinstance(filter, pc.Expression):
        long = compile_long(filter, schema)
        if long is not None:
            return Filter(long.expression, long.columns, _select(schema, long.columns), long.may_match, long.points)
    try:
        str(filter).encode()
    except UnicodeError as error:
        raise FilterError(f"the filter holds text that is not UTF-8: {error}") from error
    if isinstance(filter, str):
        from lakemerge.read.filter.sql import compile_sql  # with the SQL parser, which takes time to load

        found = compile_sql(filter, schema, zone)
        return Filter(
            found.expression,
            found.columns,
            _select(schema, found.columns),
            may_match=found.may_match,
            points=found.points,
            may_fail=found.may_fail,
            needs_ansi=found.needs_ansi,
            computed=found.computed,
        )
    columns = _columns_of(filter, schema)
    own = _select(schema, columns)
    ready = Filter(filter, columns, own, None, points=points_of(filter, own))
    ready.kept(pa.table([pa.nulls(1, column.type) for column in schema], schema.names))  # some faults show only here
    return ready


def prune(filter: Filter, stats: Sequence[FileStats]) -> npt.NDArray[np.bool_]:
    """For each file, whether it may hold rows that match. It is false only if no row can match.

    SQL filters are asked of all files at once; of Arrow expressions only Arrow's own simplifier
    knows the inside, at some 100 microseconds per different set of facts.
    """
    if not stats:
        return np.zeros(0, dtype=np.bool_)
    columns = [column for column in filter.schema if not pa.types.is_nested(column.type)]
    facts = [[_facts(file, column) for column in columns] for file in stats]
    if filter.may_match is not None:
        return _prune_table(filter.may_match, columns, facts)
    if not columns or filter.computed or not isinstance(filter.expression, pc.Expression):
        return np.ones(len(stats), dtype=np.bool_)
    return _prune_expression(filter.expression, filter.schema, columns, facts)


def _select(schema: pa.Schema, columns: frozenset[str]) -> pa.Schema:
    return pa.schema([column for column in schema if column.name in columns])


def _columns_of(expression: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """The columns without which the expression cannot be bound. Arrow does not say which columns it reads."""
    if "FieldPath(" in _STRING.sub("", str(expression)):
        raise FilterError(f"the filter {expression} names a column by its position: use its name")
    if not pa.types.is_boolean(bind(expression, schema)):
        raise FilterError(f"the filter {expression} is not a condition")
    return frozenset(name for name in schema.names if not _binds_without(expression, schema, name))


def _binds_without(expression: pc.Expression, schema: pa.Schema, name: str) -> bool:
    try:
        bind(expression, pa.schema([column for column in schema if column.name != name]))
    except FilterError:
        return False
    return True


def _facts(file: FileStats, column: pa.Field) -> _Facts:
    name = column.name
    if name in file.partition_values:
        value = file.partition_values[name]
        if value is None:
            return _Facts(None, None, 1, 1)
        return _Facts(_bound(value), _bound(value), 0, 1)
    return _Facts(_bound(file.min.get(name)), _bound(file.max.get(name)), file.null_count.get(name), file.num_rows)


def _bound(value: object) -> object:
    """NaN bounds nothing."""
    return None if isinstance(value, float) and value != value else value


def _prune_table(
    may_match: Judgement, columns: Sequence[pa.Field], facts: Sequence[Sequence[_Facts]]
) -> npt.NDArray[np.bool_]:
    # The count is there for conditions without columns.
    table = {"": pa.array(range(len(facts)), pa.int64())}
    for index, column in enumerate(columns):
        of_column = [row[index] for row in facts]
        table[f"min:{column.name}"] = _bounds([fact.low for fact in of_column], column.type)
        table[f"max:{column.name}"] = _bounds([fact.high for fact in of_column], column.type)
        table[f"nulls:{column.name}"] = pa.array([fact.nulls for fact in of_column], pa.int64())
        table[f"rows:{column.name}"] = pa.array([fact.rows for fact in of_column], pa.int64())
    kept = judge(may_match, pa.table(table))
    return kept.combine_chunks().fill_null(True).to_numpy(zero_copy_only=False)


def _bounds(values: list[Any], kind: pa.DataType) -> pa.Array:
    array = pa.array(values, kind)
    # Floats are compared as doubles.
    return array.cast(pa.float64()) if pa.types.is_floating(kind) else array


def _prune_expression(
    expression: pc.Expression,
    schema: pa.Schema,
    columns: Sequence[pa.Field],
    facts: Sequence[Sequence[_Facts]],
) -> npt.NDArray[np.bool_]:
    """Arrow does not use bounds of columns that may be null, so a file with such a column enters once per combination
    of null and not null. Bounds of floats are left out: to Arrow they would rule out NaN."""
    keys = [tuple(row) for row in facts]
    entered = [(key, guarantee) for key in dict.fromkeys(keys) for guarantee in _guarantees(columns, key)]
    possible = can_hold(expression, schema, [guarantee for _, guarantee in entered])
    kept = {key for place, (key, _) in enumerate(entered) if place in possible}
    return np.array([key in kept for key in keys], dtype=np.bool_)


def _guarantees(columns: Sequence[pa.Field], facts: Sequence[_Facts]) -> list[pc.Expression]:
    """Expressions of which at least one is true on every row of a file."""
    always: list[pc.Expression] = []
    split: list[tuple[pc.Expression, pc.Expression]] = []
    for column, fact in zip(columns, facts, strict=True):
        reference = pc.field(column.name)
        if fact.nulls is not None and fact.nulls == fact.rows:
            always.append(reference.is_null())
            continue
        valid = _valid(reference, column.type, fact)
        if fact.nulls == 0:
            always.append(valid)
        elif len(split) < _SPLIT_COLUMNS:
            split.append((reference.is_null(), valid))
    together = pc.scalar(True)
    for expression in always:
        together = together & expression
    result = []
    for choice in itertools.product(*split):
        guarantee = together
        for expression in choice:
            guarantee = guarantee & expression
        result.append(guarantee)
    return result


def _valid(reference: pc.Expression, kind: pa.DataType, fact: _Facts) -> pc.Expression:
    if pa.types.is_floating(kind) or (fact.low is None and fact.high is None):
        return reference.is_valid()
    low, high = (None if bound is None else constant(bound, kind) for bound in (fact.low, fact.high))
    if low is None:
        return reference <= high
    if high is None:
        return reference >= low
    if fact.low == fact.high:
        return reference == low
    return (reference >= low) & (reference <= high)
