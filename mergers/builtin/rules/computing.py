"""Computes rules over records, and finds the records on which they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakemerge.sql.nodes import Node, Rows
from lakemerge.sql.trees import FilterError
from mergers.builtin.rules.checked import IS_FIRST, Rule, is_set_name, new_name, old_name, worded
from mergers.contract import Bools, Groups
from mergers.errors import MergeOverflowError

__all__ = ["Computed", "chosen", "compute", "failure", "truths"]

Fetch = Callable[[str], pa.Array]


@dataclass(frozen=True, slots=True)
class Computed:
    """The values of a rule for some records, in their order."""

    values: pa.Array
    """Null where the rule fails."""
    failed: Bools | None = None
    """Where it fails; ``None`` if nowhere."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """What is wrong there."""


def compute(
    rule: Rule, kind: pa.DataType, count: int, *, old: Fetch, new: Fetch, is_set: Callable[[str], Bools], is_first: bool
) -> Computed:
    """The values of a rule for ``count`` records.

    :param kind: the type of the result.
    :param old: gives the values of a column of the rows before, one for each record; ``new`` those of the records.
    :param is_set: says which records set a column.
    """
    names, arrays = [IS_FIRST], [pa.repeat(pa.scalar(is_first), count) if count else pa.nulls(0, pa.bool_())]
    for side, reads, fetch in ((old_name, rule.old, old), (new_name, rule.new, new)):
        for name in sorted(reads):
            names.append(side(name))
            arrays.append(fetch(name))
    for name in sorted(rule.asked):
        names.append(is_set_name(name))
        arrays.append(pa.array(is_set(name)))
    return evaluated(rule.node, pa.RecordBatch.from_arrays(arrays, names=names), kind)


def evaluated(node: Node, batch: pa.RecordBatch, kind: pa.DataType) -> Computed:
    """The values of a node. The rows on which it fails are found by halving."""
    try:
        values = node.evaluate(Rows(batch))
        return Computed(values if values.type == kind else values.cast(kind))
    except FilterError as error:
        if batch.num_rows == 1:
            return Computed(pa.nulls(1, kind), np.ones(1, dtype=np.bool_), {0: worded(error.message)})
    half = batch.num_rows // 2
    left, right = (evaluated(node, part, kind) for part in (batch.slice(0, half), batch.slice(half)))
    masks = [
        np.zeros(len(part.values), dtype=np.bool_) if part.failed is None else part.failed for part in (left, right)
    ]
    problems = {**left.problems, **{half + place: why for place, why in right.problems.items()}}
    return Computed(pa.concat_arrays([left.values, right.values]), np.concatenate(masks), problems)


def chosen(mask: Bools, one: pa.Array, other: pa.Array) -> pa.Array:
    """The values of ``one`` where the mask is true, and those of ``other`` elsewhere."""
    if mask.all():
        return one
    if not mask.any():
        return other
    places = np.arange(len(mask), dtype=np.int64)
    return pa.concat_arrays([one, other]).take(pa.array(np.where(mask, places, places + len(mask))))


def truths(values: pa.Array) -> Bools:
    """Where a condition is true."""
    if values.null_count:
        values = values.fill_null(False)
    return np.asarray(values.to_numpy(zero_copy_only=False))


def failure(groups: Groups, group: int, column: str | None, rule: Rule, problem: str) -> MergeOverflowError:
    """The error for a key whose rule fails.

    :param column: the rule's column; ``None`` for a condition.
    """
    row = pa.array([groups.order[groups.offsets[group]]])
    key = {name: groups.rows.column(name).take(row)[0].as_py() for name in groups.shape.key}
    what = f"the rule of column {column!r}" if column else "a condition"
    where = {} if column is None else {"column": column}
    if not key:  # rows of no table
        return MergeOverflowError(f"{what}, {rule.text!r}, fails: {problem}", keys=1, **where)
    return MergeOverflowError(
        f"{what}, {rule.text!r}, fails for key {key}: {problem}. So the row cannot be read or compacted. Nothing is "
        "lost: a record that deletes it, or gives the value anew, makes it readable.",
        key=key,
        keys=1,
        **where,
    )
