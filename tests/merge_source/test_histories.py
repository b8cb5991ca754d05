"""Random histories give, after each run, what a union-find over everything gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.merge_source.histories import History


@pytest.mark.parametrize("seed", range(12))
def test_a_random_history(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path)
    for _ in range(8):
        history.step()
    history.finish()
