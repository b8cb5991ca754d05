"""The guide on schemas runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.guides import blocks, count_of_blocks, run

GUIDE = "schema.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    code = blocks(GUIDE)
    assert len(code) == count_of_blocks(GUIDE) == 12
    names = run(GUIDE, code, path=str(tmp_path / "table"))
    assert names["version"] == 2
