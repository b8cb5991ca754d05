"""Errors of transactions."""

from __future__ import annotations

from lakemerge.errors import InputError

__all__ = ["MultipleMatchesError"]


class MultipleMatchesError(InputError):
    """Several rows of a merge's source match one row of the table or have one new key, so it is not known which one
    counts."""

    code = "multiple-matches"
