"""`lakemerge forget`: what it erases, prints and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from tests.grep import grep
from tests.unit.compaction.test_forget import NAME, PERSON, age, as_a_row, left_of, people

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("name", ["keys.csv", "keys.json"])
def test_it_ends_with_what_is_left(tmp_path: Path, capsys: Captured, name: str) -> None:
    path = tmp_path / "t"
    as_a_row(people(path))
    keys = tmp_path / name
    keys.write_text(f"email\n{PERSON}\n" if name.endswith("csv") else json.dumps({"email": PERSON}) + "\n")
    line = ["forget", str(path), "--keys", str(keys), "--quiet"]
    assert main(line) == 3
    told = capsys.readouterr().out
    assert told.startswith("state: waiting until 20")
    assert "keys: 1, of which 1 had a row" in told
    assert "salt: " in told
    assert PERSON not in told
    assert NAME not in told
    age(path)
    (path / "note.txt").write_text(PERSON)
    assert main([*line, "--json", "--salt", "pepper"]) == 4
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (found["state"], found["keys"], found["rows"], found["until"]) == ("found", 1, 0, None)
    assert found["left"][0]["path"] == "note.txt"
    assert "salt" not in found, "whoever gave it has it"
    (path / "note.txt").unlink()
    assert main([*line, "--json"]) == 0
    (done,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (done["state"], done["waits"], done["left"]) == ("done", [], [])
    assert len(done["salt"]) == 32
    assert left_of(path) == []


def test_what_is_refused(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    table.savepoint("saved")
    (tmp_path / "keys.csv").write_text(f"email\n{PERSON}\n")
    (tmp_path / "other.csv").write_text("name\nx\n")
    line = ["forget", str(path), "--quiet", "--keys"]
    assert main([*line, str(tmp_path / "keys.csv")]) == 2
    assert "--drop-history" in capsys.readouterr().err
    assert main([*line, str(tmp_path / "other.csv")]) == 2
    assert "email" in capsys.readouterr().err
    assert LakeTable.open(path).version == table.version
    assert grep(path, PERSON)
    assert main([*line, str(tmp_path / "keys.csv"), "--drop-history"]) == 3
