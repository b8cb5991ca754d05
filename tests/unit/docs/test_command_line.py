"""The guide on the command line runs as it stands, and its sentences on the rows are true."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from tests import guides
from tests.unit.cli.test_json import DOCUMENTS, LINES

blocks = partial(guides.blocks, "command-line.md")


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "orders.csv").write_text(blocks("csv")[0])
    (tmp_path / "changes.jsonl").write_text(blocks("json")[0])
    for line in (line for block in blocks("sh") for line in block.splitlines()):
        assert main(shlex.split(line)[1:]) == 0, line
        assert capsys.readouterr().out
    table = LakeTable.open("orders")
    rows = {row["id"]: (row["state"], row["amount"]) for row in table.to_arrow().to_pylist()}
    assert rows == {1: ("paid", 10.0), 2: ("new", 25.5), 3: ("new", None)}


def test_what_each_command_prints_with_json_is_told() -> None:
    rows = re.findall(
        r"^\| (one document|an object a line) \| (.*) \|$", guides.text_of("command-line.md"), re.MULTILINE
    )
    told = {kind: set(re.findall(r"`([a-z- ]+)`", text)) for kind, text in rows}
    for kind, names in (("one document", DOCUMENTS), ("an object a line", LINES)):
        for name in names:
            group, _, inner = name.partition(" ")
            assert {name, group, inner} & told[kind], name


def test_every_option_that_is_named_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    paragraphs = re.findall(
        r"^- \*\*`(\w+)`\*\* (.*?)(?=^- |^#)", guides.text_of("command-line.md"), re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in paragraphs] == ["init", "upsert", "get", "query", "diff"]
    for command, text in paragraphs:
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", text):
            assert option in shown, (command, option)
