"""Folds step by step, all groups at once, for functions that round: for these the order of the steps matters."""

from __future__ import annotations

from typing import Any

import numpy as np

from mergers.builtin.segments import Segments
from mergers.contract import Bools

__all__ = ["fold_steps"]


def fold_steps(
    segments: Segments,
    values: np.ndarray[Any, Any],
    there: Bools,
    step: np.ufunc,
    *,
    inverse: tuple[Bools, np.ufunc] | None = None,
) -> np.ndarray[Any, Any]:
    """The left fold of the values in the mask for each group, in their own type; 0 if there are none.

    The first value of a group is taken as it is. ``inverse`` marks records that use the inverse function. The first
    record of a group is never marked.
    """
    part, records, groups = segments.within(there)
    taken = values[records]
    back = np.zeros(len(records), dtype=np.bool_) if inverse is None else inverse[0][records]
    folded = taken[part.starts]
    # Records are cut into runs of one function; even runs use the one, odd runs the other. All first runs are folded
    # at once, then all second runs, and so on. Each record is touched only in its own run.
    turns = np.diff(back, prepend=False)
    turns[part.starts] = False
    run = np.cumsum(turns)
    run -= part.spread(run[part.starts])
    rest = np.ones(len(records), dtype=np.bool_)
    rest[part.starts] = False
    order = np.flatnonzero(rest)
    if run.any():
        order = order[np.argsort(run[order], kind="stable")]
    with np.errstate(all="ignore"):
        for chosen in np.split(order, np.flatnonzero(np.diff(run[order])) + 1) if len(order) else ():
            function = inverse[1] if inverse is not None and run[chosen[0]] % 2 else step
            # ``at`` takes one element after the other, from left to right; ``reduceat`` would add in pairs.
            function.at(folded, part.group[chosen], taken[chosen])
    result = np.zeros(len(segments.sizes), dtype=values.dtype)
    result[groups] = folded
    return result
