"""The guide on retention runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides import blocks, count_of_blocks, run

GUIDE = "retention.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(GUIDE)
    assert len(code) == count_of_blocks(GUIDE) == 7
    run(GUIDE, code, path=str(tmp_path / "table"))
    assert capsys.readouterr().out.startswith("VacuumResult(dry_run=True, ")
