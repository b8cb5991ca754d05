"""What a write asks the store for. The number does not depend on how many commits or files the table has."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge import LakeTable
from tests.unit.faults import create, frame
from tests.unit.read.test_requests import calls, counted


@pytest.mark.parametrize("before", [0, 4])
def test_an_upsert_asks_five_times(tmp_path: Path, before: int) -> None:
    """A look at the log, the log file, a look before the commit, the commit. The table then stands at its commit.

    In a folder the next look also reads the own commit, once: only its content tells that it is the same file. An
    object store tells by the listed token (tests/s3/test_table_s3.py).
    """
    made = create(tmp_path / "t", buckets=2)
    for number in range(1 + before):
        made.upsert(frame([(k, number, "base") for k in range(20)]))
    table, store = counted(tmp_path / "t")
    table.upsert(frame([(1, 50, "first")]))
    calls(store)
    for number in (60, 70):
        result = table.upsert(frame([(1, number, "new")]))
        asked = calls(store)
        asked.pop("write")  # parts of the log file, which a store buffers
        assert asked == {"list": 2, "get": 1, "open_output": 1, "put_if_absent": 1}
        assert repr(table).count(f"version={result.version},") == 1
        assert calls(store) == {}


def test_a_write_is_seen_at_once_beside_those_of_others(tmp_path: Path) -> None:
    """The table stands at its own commit, and the next call finds what others committed after it."""
    one = create(tmp_path / "t")
    other = LakeTable.open(tmp_path / "t")
    one.upsert(frame([(1, 1, "one")]))
    other.upsert(frame([(2, 1, "other")]))
    assert (one.version, other.version) == (2, 2)
    assert sorted(one.to_arrow()["v"].to_pylist()) == sorted(other.to_arrow()["v"].to_pylist()) == ["one", "other"]
    other.upsert(frame([(3, 1, "other")]))
    assert one.upsert(frame([(1, 2, "one")])).version == 4
    assert one.get({"k": 3}) == {"k": 3, "o": 1, "v": "other"}
    assert one.compact().version == 6, "the first compaction reserves ordinals in a commit of its own"
    assert other.get({"k": 1}) == {"k": 1, "o": 2, "v": "one"}
