"""The guide on ingest runs as it stands, its crash and its commands too."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lakemerge.cli import main
from tests.guides import blocks, count_of_blocks, run

GUIDE = "ingest.md"


def test_the_guide_runs_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = blocks(GUIDE)
    shown = blocks(GUIDE, "text")
    (commands,) = blocks(GUIDE, "sh")
    assert len(code) + len(shown) + 1 == count_of_blocks(GUIDE)
    run(GUIDE, code, path=str(tmp_path / "lake"))
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
