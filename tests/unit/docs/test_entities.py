"""The guide on entities runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides import blocks, count_of_blocks, run

GUIDE = "entities.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = blocks(GUIDE), blocks(GUIDE, "text")
    assert len(code) + len(shown) == count_of_blocks(GUIDE)
    run(GUIDE, code, path=str(tmp_path))
    assert capsys.readouterr().out == "".join(shown)
