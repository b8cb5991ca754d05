"""The guide on provenance runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides import blocks, count_of_blocks, run

GUIDE = "provenance.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(GUIDE)
    assert len(code) == count_of_blocks(GUIDE) == 9
    run(GUIDE, code, path=str(tmp_path / "table"))
    assert capsys.readouterr().out.startswith("id 7 at version 3, records known from version 1 on\n")
