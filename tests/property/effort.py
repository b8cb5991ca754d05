"""How hard property tests try: how many examples and seeds, and what Hypothesis is told about them.

``make test-deep`` sets ``LAKEMERGE_EFFORT=all``: all of them. ``make test-all`` plays an eighth of them, and
``make test`` a tenth.
Either way Hypothesis draws new examples in each run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

__all__ = ["examples", "some", "thorough"]

T = TypeVar("T")

EFFORTS: Final = {"all": 1, "many": 8, "few": 10}
_ONE_IN: Final = EFFORTS[os.environ.get("LAKEMERGE_EFFORT", "few")]


def examples(count: int, *, variable: str = "LAKEMERGE_EXAMPLES") -> int:
    """The number of examples that a test draws: ``count`` or a tenth of it, or what the environment says."""
    return int(os.environ.get(variable, str(-(-count // _ONE_IN))))


def some(cases: Sequence[T]) -> Sequence[T]:
    """The cases that a test plays, such as seeds or states of a table: all, or the first and every tenth after it."""
    return cases[::_ONE_IN]


def thorough(count: int) -> settings:
    """For tests that draw whole histories, which are large and take long."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
