"""Hints for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

__all__ = ["did_you_mean", "nearest"]

_MOST_KNOWN: Final = 500
"""Names are compared one by one, so a hint among more of them would take long."""


def nearest(name: object, known: Collection[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like this one, whatever the case; ``None`` if none is like it.

    :param cutoff: how like it must be, from 0 to 1.
    """
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=cutoff)
    return lower[near[0]] if near else None


def did_you_mean(name: object, known: Collection[str]) -> str:
    """A clause for the end of a message, or nothing."""
    near = nearest(name, known) if len(known) <= _MOST_KNOWN else None
    return f"; did you mean {near!r}?" if near else ""
