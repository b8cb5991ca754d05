"""The guide on merge sources runs as it stands, its file for the command line too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lakemerge.cli import main

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "merge-source.md"


def test_the_guide_runs_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GUIDE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    described = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) + len(shown) + len(described) + 1 == text.count("```") // 2
    names: dict[str, object] = {"path": str(tmp_path / "lake")}
    for code in blocks:
        exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102 - the guide's own code
    assert capsys.readouterr().out == "".join(shown)
    # The same source, as the command line makes it.
    told = json.loads(described[0])
    (tmp_path / "customers.json").write_text(json.dumps({**told, "output": "lake/again"}))
    monkeypatch.chdir(tmp_path)
    assert main(["merge-source", "run", "customers.json"]) == 0
    assert capsys.readouterr().out.startswith("run 1 emitted 3 entities (0 replaced, 1 deleted)")
