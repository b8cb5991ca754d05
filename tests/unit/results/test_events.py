"""Events of calls: what listeners and the log are told, and that a listener cannot make a call fail."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lakemerge import Event, FrameError, LakeTable, listen
from tests.unit.faults import create, frame


@pytest.fixture
def told() -> list[Event]:
    return []


def test_calls_are_told_in_order(tmp_path: Path, told: list[Event]) -> None:
    table = create(tmp_path / "t")
    end = listen(told.append)
    try:
        table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
        table.to_arrow(filter="k = 1")
        with pytest.raises(FrameError):
            table.upsert(frame([(1, "a")], ["k", "unknown"]))
        table.get({"k": 2})
        table.compact()
    finally:
        end()
    table.upsert(frame([(1, 2, "c")]))
    assert [event.operation for event in told] == ["upsert", "to_arrow", "upsert", "get", "compact"]
    assert {event.table for event in told} == {table.url}
    assert all(event.seconds > 0 for event in told)
    first, read, failed, got, _ = told
    assert (first.values()["version"], first.values()["rows"], first.error) == (1, 2, None)
    assert read.values() == {"rows": 1}
    assert (type(failed.error), failed.result, failed.values()) == (FrameError, None, {})
    assert got.result == {"k": 2, "o": 1, "v": "b"}


def test_a_listener_that_fails_changes_nothing(
    tmp_path: Path, told: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        raise ValueError("no metrics today")

    table = create(tmp_path / "t")
    ends = [listen(fail), listen(told.append)]
    try:
        assert table.upsert(frame([(1, 1, "a")])).rows == 1
    finally:
        for end in ends:
            end()
    assert len(told) == 1
    assert "no metrics today" in caplog.text


def test_each_event_is_a_line_that_can_be_searched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create(tmp_path / "t")
    with caplog.at_level(logging.INFO, "lakemerge.events"):
        table.upsert(frame([(1, 1, "a")]))
        with pytest.raises(FrameError):
            table.delete(frame([(1,)], ["o"]))
    upsert, delete = [record.getMessage() for record in caplog.records if record.name == "lakemerge.events"]
    fields = dict(part.split("=", 1) for part in upsert.split(" "))
    assert (fields["operation"], fields["table"], fields["version"], fields["rows"]) == ("upsert", table.url, "1", "1")
    assert delete.startswith(f"operation=delete table={table.url} seconds=")
    assert delete.endswith(" error=FrameError")


def test_methods_keep_their_names_and_words() -> None:
    assert LakeTable.upsert.__name__ == "upsert"
    assert "Write records" in (LakeTable.upsert.__doc__ or "")
