"""Which variants of a parametrized test `make test` and `make test-all` run; `make test-deep` runs every one."""

from __future__ import annotations

from collections import Counter

import pytest

__all__ = ["sample"]


def sample(items: list[pytest.Item], one_in: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run, and those to leave out: all variants but the first and every ``one_in``-th after it.

    A test marked ``every_variant`` keeps all of its own: they are parts of one whole. The choice is the same in each
    process and each run, so that a failure is seen again.
    """
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        test = _test(item)
        whole = item.get_closest_marker("every_variant") is not None
        (left_out if seen[test] % one_in and not whole else kept).append(item)
        seen[test] += 1
    return kept, left_out


def _test(item: pytest.Item) -> str:
    """The test of which this is a variant: its file and name without parameters."""
    return item.nodeid.partition("[")[0]
