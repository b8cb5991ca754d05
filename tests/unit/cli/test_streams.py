"""``lakemerge changes`` and ``lakemerge consumers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from tests.unit.faults import create, frame


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.upsert(frame([(1, 2, "A")]))
    table.upsert(frame([(1, 3, "B")]))
    return str(tmp_path / "t")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[Any, ...]]:
    assert main(list(arguments)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(row["k"], row["v"], row["_row_kind"], row["_commit_version"]) for row in rows]


def test_changes(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    second = [(1, "a", "-U", 2), (1, "A", "+U", 2)]
    assert told(capsys, "changes", path, "--since", "1", "--until", "2") == second
    assert told(capsys, "changes", path) == [(1, "B", "+I", 3), (2, "b", "+I", 3)]
    assert told(capsys, "changes", path, "--since", "1", "--net") == [(1, "a", "-U", 3), (1, "B", "+U", 3)]
    assert main(["changes", path, "--net"]) == 2


def test_consumers(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consumers", "register", path, "billing", "--version", "2", "--expires-after", "2d"]) == 0
    assert main(["consumers", "list", path]) == 0
    assert "billing: has read version 2; 2 versions, 1 records" in capsys.readouterr().out
    assert told(capsys, "changes", path, "--consumer", "billing") == [(1, "A", "-U", 3), (1, "B", "+U", 3)]
    assert told(capsys, "changes", path, "--consumer", "billing") == []
    assert main(["consumers", "expire", path]) == 0
    assert "no consumer is old enough" in capsys.readouterr().out
    assert main(["consumers", "advance", path, "billing", "99"]) == 2
    assert main(["consumers", "drop", path, "billing"]) == 0
    assert list(LakeTable.open(path).consumers.list()) == []
    assert main(["consumers", "drop", path, "billing"]) == 2
