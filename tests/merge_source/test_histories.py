"""Random histories give, after each run, what a union-find over everything gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge.merge_source import emission, index, inputs, member_rows, run
from tests.merge_source.histories import History
from tests.property.effort import some


@pytest.mark.parametrize("seed", some(range(8)))
def test_a_random_history(seed: int, tmp_path: Path) -> None:
    follow(History(seed, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("seed", some(range(100, 108)))
def test_a_random_history_in_small_parts(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if values had thousands of holders, and runs thousands of members: pages, batches and chunks of a few."""
    monkeypatch.setattr(index, "_PAGE", 1)
    monkeypatch.setattr(member_rows, "BATCH_MEMBERS", 2)
    monkeypatch.setattr(emission, "BATCH_ROWS", 1)
    monkeypatch.setattr(inputs, "_GET_KEYS", 2)
    monkeypatch.setattr(run, "_RETIRED_ROWS", 1)
    follow(History(seed, tmp_path))


def follow(history: History) -> None:
    for _ in range(8):
        history.step()
    history.finish()
