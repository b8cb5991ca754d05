"""Folding step by step, all groups at once: for what rounds, so that the order of the steps counts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mergers.builtin.segments import Segments
from mergers.contract import Bools

__all__ = ["fold_steps"]

_LONG = 64
"""Groups with more steps are folded one after the other; the rest together, a step of all at a time."""


def fold_steps(
    segments: Segments,
    values: np.ndarray[Any, Any],
    there: Bools,
    step: np.ufunc,
    *,
    inverse: tuple[Bools, np.ufunc] | None = None,
) -> np.ndarray[Any, Any]:
    """The left fold of the values in the mask, per group, in their own type; 0 where there are none.

    The first value of a group is taken as it is. ``inverse``: records that take the other function.
    """
    part, records, groups = segments.within(there)
    taken = values[records]
    back = None if inverse is None else inverse[0][records]
    folded = taken[part.starts].copy()
    with np.errstate(all="ignore"):
        open_, rank = np.flatnonzero((part.sizes > 1) & (part.sizes <= _LONG)), 1
        while len(open_):
            at = part.starts[open_] + rank
            result = step(folded[open_], taken[at])
            if inverse is not None and back is not None:
                result = np.where(back[at], inverse[1](folded[open_], taken[at]), result)
            folded[open_] = result
            rank += 1
            open_ = open_[part.sizes[open_] > rank]
        for long in np.flatnonzero(part.sizes > _LONG).tolist():
            run = slice(int(part.offsets[long]), int(part.offsets[long + 1]))
            folded[long] = _run(taken[run], None if back is None else back[run], step, inverse)
    result = np.zeros(len(segments.sizes), dtype=values.dtype)
    result[groups] = folded
    return result


def _run(
    values: np.ndarray[Any, Any], back: Bools | None, step: np.ufunc, inverse: tuple[Bools, np.ufunc] | None
) -> Any:
    """One long run. ``accumulate`` goes strictly from left to right, where ``reduce`` adds in pairs."""
    if inverse is None or back is None or not back.any():
        return step.accumulate(values)[-1]
    total = values[0]
    cuts = [1, *(np.flatnonzero(np.diff(back[1:])) + 2).tolist(), len(values)]
    for start, end in pairwise(cuts):
        chosen = inverse[1] if back[start] else step
        total = chosen.accumulate(np.concatenate([[total], values[start:end]]).astype(values.dtype))[-1]
    return total
