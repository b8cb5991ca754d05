"""Events of calls: what listeners and the log are told, and that a listener cannot make a call fail."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lakemerge import Event, FilterError, FrameError, InputError, LakeTable, TransactionPlan, listen
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


def test_transactions_are_told(tmp_path: Path, told: list[Event]) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    end = listen(told.append)
    try:
        table.update_where("k = 1", {"v": "'A'"})
        table.delete_where("k = 2")
        merge = table.merge(frame([(1, 2, "c"), (3, 1, "c")]), "target.k = source.k").whenNotMatchedInsertAll()
        merge.execute(explain=True)
        merge.execute()
        with pytest.raises(FilterError):
            table.merge(frame([(1, 2, "c")]), "target.k = source.x").whenMatchedDelete().execute()
        with pytest.raises(InputError):
            table.merge(frame([(1, 2, "c")]), "target.k = source.k").execute()
    finally:
        end()
    assert [event.operation for event in told] == ["update_where", "delete_where", *["merge"] * 4]
    assert {event.table for event in told} == {table.url}
    _, _, planned, merged, *failed = told
    assert isinstance(planned.result, TransactionPlan)
    assert (merged.values()["version"], merged.values()["rows"]) == (table.version, 1)
    assert [type(event.error) for event in failed] == [FilterError, InputError]


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


NO_EVENTS = {
    *("open", "opened_anew", "exists", "create", "convert", "drop", "check"),
    *("scan", "changes", "changes_df", "follow", "what_if", "verify_merger"),
    *("detail", "history", "gauges", "buckets", "explain_read", "savepoints"),
    *("savepoint", "drop_savepoint"),
    *("create_temp_view", "register"),
    *("ingest", "merge", "batch_writer", "write_stream"),  # what they make makes the events
}


def test_each_method_makes_events_or_is_known_not_to() -> None:
    methods = {name: method for name, method in vars(LakeTable).items() if not name.startswith("_")}
    calls = {name: method for name, method in methods.items() if callable(getattr(method, "__func__", method))}
    assert {name for name, method in calls.items() if not hasattr(method, "__lakemerge_observed__")} == NO_EVENTS


def test_methods_keep_their_names_and_words() -> None:
    assert LakeTable.upsert.__name__ == "upsert"
    assert "Write records" in (LakeTable.upsert.__doc__ or "")
