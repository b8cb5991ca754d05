"""What version 0.1 pickled is read: tests/earlier_pickles was made before the modules had their present names."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeTable, Settings

FOLDER = Path(__file__).resolve().parents[1] / "earlier_pickles"
TABLE = "LakeTable('/data/orders', version={}, key=['k'], merger='event-time', buckets=2)"


def read(name: str) -> Any:
    return pickle.loads((FOLDER / f"{name}.pickle").read_bytes())


def test_tables() -> None:
    for name, version in (("table", 11), ("pinned", 1)):
        table = read(name)
        assert isinstance(table, LakeTable)
        assert repr(table) == TABLE.format(version)
        assert (table.key, table.ordering) == (("k",), ("o",))


def test_results() -> None:
    compaction, check, detail = read("compaction"), read("check"), read("detail")
    assert (compaction.version, compaction.tiles, compaction.rows, compaction.plan.version) == (5, 1, 3, 3)
    assert [part.bucket for group in compaction.plan.groups for part in group.slices] == [1]
    assert (check.ok, check.files, check.rows) == (True, 2, 4)
    assert (detail.slices, detail.base_rows, detail.merger) == (2, 4, "event-time")
    assert detail.maintenance == "", "there was no such thing"
    assert pickle.loads(pickle.dumps(detail)) == detail
    assert [(part.bucket, part.base_rows) for part in read("slices")] == [(0, 1), (1, 3)]
    assert read("explain_read").tiles == 2
    assert [entry.operation for entry in read("history")][-1] == "CREATE TABLE"
    assert (read("savepoint").name, read("savepoint").version) == ("s", 6)
    assert read("settings") == Settings(write_budget_bytes=1_000_000, row_group_rows=262_144), "it was the default"


@pytest.mark.parametrize("name", ["table", "history", "savepoint"])
def test_in_a_new_process(name: str) -> None:
    """Spark's workers import no more than a pickle names; the first name in it brings the package, and so the rest."""
    code = f"import pickle, lakemerge; pickle.load(open({str(FOLDER / name)!r} + '.pickle', 'rb'))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=FOLDER.parents[1]
    )
    assert done.returncode == 0, done.stderr
