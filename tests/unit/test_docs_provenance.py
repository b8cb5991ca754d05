"""The guide on provenance runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "provenance.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GUIDE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == text.count("```") // 2 == 7
    names: dict[str, object] = {"path": str(tmp_path / "table")}
    for code in blocks:
        exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102 - the guide's own code
    assert capsys.readouterr().out.startswith("id 7 at version 3, records known from version 1 on\n")
