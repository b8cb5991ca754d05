"""Which variants of a parametrized test `make test` runs; `make test-all` runs every one."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

__all__ = ["sample"]

_ONE_IN: Final = 4


def sample(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run, and those to leave out: all variants but the first and every fourth after it.

    The choice is the same in each process and each run, so that a failure is seen again.
    """
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        test = _test(item)
        (left_out if seen[test] % _ONE_IN else kept).append(item)
        seen[test] += 1
    return kept, left_out


def _test(item: pytest.Item) -> str:
    """The test of which this is a variant: its file and name without parameters."""
    return item.nodeid.partition("[")[0]
