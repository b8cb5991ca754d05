"""The guide on ingest runs as it stands, its crash and its commands too."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lakemerge.cli import main

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "ingest.md"


def test_the_guide_runs_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GUIDE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) + len(shown) + 1 == text.count("```") // 2
    names: dict[str, object] = {"path": str(tmp_path / "lake")}
    for code in blocks:
        exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102 - the guide's own code
    assert capsys.readouterr().out == "".join(shown)
    # Commands that need no bucket, with what the guide's tables say by then.
    monkeypatch.chdir(tmp_path)
    local = [shlex.split(line)[1:] for line in commands.splitlines() if "s3://" not in line]
    assert len(local) == 5
    for command in local:
        assert main(command) == 0, command
    told = capsys.readouterr().out
    assert "4, generation 1" in told
    assert "504" in told
