"""The guide on merge sources runs as it stands, its file for the command line too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakemerge.cli import main
from tests.guides import blocks, count_of_blocks, run

GUIDE = "merge-source.md"


def test_the_guide_runs_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = blocks(GUIDE)
    shown = blocks(GUIDE, "text")
    described = blocks(GUIDE, "json")
    assert len(code) + len(shown) + len(described) + 1 == count_of_blocks(GUIDE)
    run(GUIDE, code, path=str(tmp_path / "lake"))
    assert capsys.readouterr().out == "".join(shown)
    # The same source, as the command line makes it.
    told = json.loads(described[0])
    (tmp_path / "customers.json").write_text(json.dumps({**told, "output": "lake/again"}))
    monkeypatch.chdir(tmp_path)
    assert main(["merge-source", "run", "customers.json"]) == 0
    assert capsys.readouterr().out.startswith("run 1 emitted 4 entities (0 replaced, 1 deleted)")
