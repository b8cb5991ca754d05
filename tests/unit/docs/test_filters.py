"""The guide on filters runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "filters.md"


def test_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == text.count("```") // 2 == 5
    names: dict[str, object] = {"path": str(tmp_path / "table")}
    for code in blocks:
        exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102 - the guide's own code
    assert "plan" in names
