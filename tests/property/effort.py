"""How hard property tests try: how many examples, and what Hypothesis is told about them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["examples", "thorough"]


def examples(default: int, *, variable: str = "LAKEMERGE_EXAMPLES") -> int:
    """How many a test draws, unless the environment says."""
    return int(os.environ.get(variable, str(default)))


def thorough(count: int) -> settings:
    """For tests that draw whole histories, which are large and take long."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
