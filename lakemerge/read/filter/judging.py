"""Conditions of any length, judged in steps that Arrow can take.

Arrow walks an expression recursively, and turns a chain of ``AND`` or ``OR`` into one that nests as deep as it is long:
some thousand parts end the process, and its time grows with the square of their number. So an expression has a few
parts at most, and what joins more of them is a :class:`Chain` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MOST_PARTS", "AmongRows", "Chain", "Judgement", "Untrue", "expressions_of", "joined", "judge", "projected"]

MOST_PARTS = 32
"""How many conditions an expression of Arrow joins."""


@dataclass(frozen=True, slots=True)
class Chain:
    """``AND`` or ``OR`` of at least two conditions."""

    parts: tuple[Judgement, ...]
    is_or: bool


@dataclass(frozen=True, slots=True)
class Untrue:
    """True where the condition is false or null."""

    part: Judgement


@dataclass(frozen=True, slots=True)
class AmongRows:
    """Whether the columns' values are among some rows of values, as in ``(a, b) IN ((1, 'x'), (2, 'y'))``. A null is
    among none."""

    rows: pa.Table
    """At least one row and one column. No column of floats."""

    def of(self, table: pa.Table) -> pa.ChunkedArray:
        sought = np.zeros(self.rows.num_rows, dtype=np.int64)
        codes = np.zeros(table.num_rows, dtype=np.int64)
        here = np.ones(table.num_rows, dtype=np.bool_)
        for name in self.rows.column_names:
            wanted = self.rows.column(name).combine_chunks()
            values = wanted.unique()
            place = pc.index_in(table.column(name), value_set=values)
            here &= place.is_valid().to_numpy()
            sought = sought * len(values) + pc.index_in(wanted, value_set=values).to_numpy()
            codes = codes * len(values) + place.fill_null(0).to_numpy()
            # The pairs so far get small numbers, so that no product of counts overflows.
            pairs, sought = np.unique(sought, return_inverse=True)
            at = np.minimum(np.searchsorted(pairs, codes), len(pairs) - 1)
            here &= pairs[at] == codes
            codes = at.astype(np.int64)
        return pa.chunked_array([pa.array(here)], pa.bool_())


Judgement: TypeAlias = pc.Expression | Chain | Untrue | AmongRows


def joined(parts: Sequence[Judgement], *, is_or: bool) -> Judgement:
    """The parts joined by ``AND`` or ``OR``. Expressions that stand beside each other become balanced trees."""
    found: list[Judgement] = []
    run: list[pc.Expression] = []
    for part in _flat(parts, is_or):
        if isinstance(part, pc.Expression):
            run.append(part)
            continue
        found += _trees(run, is_or)
        run = []
        found.append(part)
    found += _trees(run, is_or)
    return found[0] if len(found) == 1 else Chain(tuple(found), is_or)


def judge(judgement: Judgement, table: pa.Table) -> pa.ChunkedArray:
    """For each row true, false or null, by the logic of SQL."""
    parts = list(expressions_of(judgement))
    return _combined(judgement, iter(_evaluated(parts, table).columns), table)


def expressions_of(judgement: Judgement) -> Iterator[pc.Expression]:
    """The expressions that it consists of, in the order of :func:`judge`."""
    if isinstance(judgement, pc.Expression):
        yield judgement
    elif isinstance(judgement, Untrue):
        yield from expressions_of(judgement.part)
    elif isinstance(judgement, Chain):
        for part in judgement.parts:
            yield from expressions_of(part)


def _flat(parts: Sequence[Judgement], is_or: bool) -> Iterator[Judgement]:
    for part in parts:
        if isinstance(part, Chain) and part.is_or is is_or:
            yield from part.parts
        else:
            yield part


def _trees(parts: Sequence[pc.Expression], is_or: bool) -> list[pc.Expression]:
    return [_tree(parts[start : start + MOST_PARTS], is_or) for start in range(0, len(parts), MOST_PARTS)]


def _tree(parts: Sequence[pc.Expression], is_or: bool) -> pc.Expression:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    left, right = _tree(parts[:middle], is_or), _tree(parts[middle:], is_or)
    return left | right if is_or else left & right


def projected(table: pa.Table, expressions: Sequence[pc.Expression]) -> pa.Table:
    """The values of the expressions, a column for each. Raises what Arrow raises.

    Scanners of datasets would add columns of their own, such as ``__filename``, and threads of Arrow would outlive this
    call (:mod:`lakemerge._internal.parquet`).
    """
    from pyarrow import acero  # loads pandas where that is installed

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    names = [str(place) for place in range(len(expressions))]
    project = acero.Declaration("project", acero.ProjectNodeOptions(expressions, names))
    return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)


def _evaluated(parts: Sequence[pc.Expression], table: pa.Table) -> pa.Table:
    found = [
        # A few expressions at a time, because the time of one projection grows with their square.
        projected(table, parts[start : start + MOST_PARTS])
        for start in range(0, len(parts), MOST_PARTS)
    ]
    columns = [column for one in found for column in one.columns]
    return pa.table(columns, [str(at) for at in range(len(columns))])


def _combined(judgement: Judgement, values: Iterator[pa.ChunkedArray], table: pa.Table) -> pa.ChunkedArray:
    if isinstance(judgement, pc.Expression):
        return next(values)
    if isinstance(judgement, AmongRows):
        return judgement.of(table)
    if isinstance(judgement, Untrue):
        return pc.invert(pc.fill_null(_combined(judgement.part, values, table), False))
    join = pc.or_kleene if judgement.is_or else pc.and_kleene
    found = _combined(judgement.parts[0], values, table)
    for part in judgement.parts[1:]:
        found = join(found, _combined(part, values, table))
    return found
