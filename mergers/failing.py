"""Keys whose merge fails: finding them among others, so that they stop no other key.

Source: docs/merge-semantics.md, section 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from mergers.contract import Bools, Ints, TableShape
from mergers.errors import LakeMergeError, MergeOverflowError, MergerContractError, MergeValueError
from mergers.kernel import Frame
from mergers.keys import group_starts, key_columns, locate, sort_order

__all__ = ["FAILURES", "Failing", "find_failing", "has_keys", "with_key", "without_keys"]

FAILURES: Final = (MergeOverflowError, MergeValueError, MergerContractError)
"""The errors of a merge that are one key's own."""


@dataclass(frozen=True, slots=True)
class Failing:
    """Keys whose merge fails."""

    keys: pa.Table
    """The key columns, sorted by key."""
    errors: tuple[LakeMergeError, ...]
    """Why, for each key."""


def find_failing(
    frames: Sequence[Frame],
    shape: TableShape,
    attempt: Callable[[Sequence[Frame]], object],
    error: LakeMergeError,
    *,
    at_most: int,
    first: bool = False,
) -> Failing:
    """The keys whose records fail to merge. Ranges of keys are halved until each that fails has one key.

    :param attempt: merges some of the records. It raises one of :data:`FAILURES` if one of their keys fails.
    :param error: what it raised for all of them.
    :param at_most: if more keys fail than that, ``error`` is raised. It is then not theirs, but the merger's.
    :param first: whether only the first of the keys is looked for.
    """
    keys = pa.concat_tables([frame.rows.select(shape.key) for frame in frames], promote_options="permissive")
    columns = key_columns(keys, shape.key)
    order = sort_order(columns)
    starts = group_starts(tuple(column.take(pa.array(order)) for column in columns))
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts), dtype=np.int64), np.diff(np.append(starts, len(order))))
    found: dict[int, LakeMergeError] = {}
    ranges: list[tuple[int, int, LakeMergeError]] = [(0, len(starts), error)]
    while ranges and not (first and found):
        low, high, why = ranges.pop()
        if high - low == 1:
            found[low] = why
            if len(found) > at_most:
                raise error
            continue
        middle = (low + high) // 2
        failed = []
        for part in ((low, middle), (middle, high)):
            try:
                attempt(_of_groups(frames, group, *part))
            except FAILURES as own:
                failed.append((*part, own))
                if first:
                    break
        if not failed:
            raise why
        ranges += reversed(failed)
    places = sorted(found)
    return Failing(keys.take(pa.array(order[starts[places]])), tuple(found[place] for place in places))


def without_keys(frames: Sequence[Frame], shape: TableShape, keys: pa.Table) -> list[Frame]:
    """The frames without the records of some keys, which are sorted. Frames of which nothing is left are left out."""
    left = (_filtered(frame, ~has_keys(frame.rows, shape, keys)) for frame in frames)
    return [frame for frame in left if frame.rows.num_rows]


def has_keys(rows: pa.Table, shape: TableShape, keys: pa.Table) -> Bools:
    """Which rows have one of the keys, which are sorted."""
    return locate(key_columns(keys, shape.key), key_columns(rows, shape.key))[1]


def with_key(error: LakeMergeError, key: dict[str, object]) -> LakeMergeError:
    """The error, with the key whose merge raised it."""
    if "key" in error.facts:
        return error
    return type(error)(f"{error.message} (at key {key})", **{**error.facts, "key": key})


def _of_groups(frames: Sequence[Frame], group: Ints, low: int, high: int) -> list[Frame]:
    found, begin = [], 0
    for frame in frames:
        own = group[begin : begin + frame.rows.num_rows]
        begin += frame.rows.num_rows
        part = _filtered(frame, (own >= low) & (own < high))
        if part.rows.num_rows:
            found.append(part)
    return found


def _filtered(frame: Frame, keep: Bools) -> Frame:
    return replace(
        frame,
        rows=frame.rows.filter(pa.array(keep)),
        kinds=None if frame.kinds is None else frame.kinds[keep],
        version=frame.version if isinstance(frame.version, int) else frame.version[keep],
        columns=frozenset(frame.rows.column_names) if frame.columns is None else frame.columns,
    )
