"""The guide on transactions runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.guides import blocks, count_of_blocks, run

GUIDE = "transactions.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    code = blocks(GUIDE)
    assert len(code) == count_of_blocks(GUIDE) == 5
    run(GUIDE, code, folder=str(tmp_path))
