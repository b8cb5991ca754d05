"""An erasure in a table that is filled from files: rejects and ledgers."""

from __future__ import annotations

import json
from pathlib import Path

from lakemerge import LakeTable
from lakemerge.ingest import Files
from tests.grep import grep
from tests.unit.compaction.test_forget import PERSON, age, people

KEY = [{"email": PERSON}]


def filled(tmp_path: Path, name: str = "one.json") -> LakeTable:
    """A table with a person in its rows, and in a record that was set aside."""
    table = people(tmp_path / "t")
    landing = tmp_path / "landing"
    landing.mkdir()
    lines = [
        {"email": PERSON, "o": 1, "name": "x"},
        {"email": PERSON, "o": "not a number", "name": "x"},
        {"email": "bob@example.org", "o": "not a number", "name": "x"},
    ]
    (landing / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    table.ingest("job", Files(landing, format="json"), bad_records="quarantine", max_bad_records=10).run()
    assert table.ingest("job").rejects().num_rows == 2
    return table


def test_records_that_were_set_aside_are_told_and_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = filled(tmp_path)
    table.forget(KEY)
    age(path)
    told = table.forget(KEY)
    assert told.state == "found"
    assert ["on request" in left.reason for left in told.left] == [True]
    assert table.ingest("job").rejects().num_rows == 2
    table.forget(KEY, drop_rejects=True)
    assert ["bob@example.org" in text for text in table.ingest("job").rejects()["text"].to_pylist()] == [True]
    age(path)
    assert table.forget(KEY).state == "done"
    assert grep(path, PERSON) == []
    assert LakeTable.check(path).ok
    (tmp_path / "landing/two.json").write_text(json.dumps({"email": "eve@example.org", "o": 1, "name": "x"}) + "\n")
    assert table.ingest("job", Files(tmp_path / "landing", format="json")).run().rows == 1, "the job goes on"


def test_a_source_file_with_the_key_in_its_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = filled(tmp_path, f"{PERSON}.json")
    table.forget(KEY, drop_rejects=True)
    age(path)
    told = table.forget(KEY)
    assert told.state == "found"
    assert any("reset the job" in left.reason for left in told.left)
    assert PERSON not in str(told)
