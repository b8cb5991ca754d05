"""``lineage``: the commits as events. ``what_if``: the same records under another merger."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakemerge import InputError, LakeTable, RowMerger, VersionNotFoundError
from lakemerge.format.operations import CHANGING, REPLACING, WRITING, Operation
from lakemerge.provenance.lineage import WITHOUT_EVENT
from mergers.row import Record
from tests.unit.faults import create, frame, listing, rows_of

NOW = dt.timedelta(0)


def busy(path: Path) -> LakeTable:
    table = create(path)
    table.upsert(frame([(7, 100, "a"), (8, 100, "x")]))
    table.upsert(frame([(7, 200, "b")]), txn=("nightly", 3))
    table.upsert(frame([(9, 1, "n")]))
    table.compact_logs()
    table.compact(minor=True)
    table.compact()
    table.rescale(buckets=4)
    table.restore(version=3)
    return table


def test_what_each_commit_did(tmp_path: Path) -> None:
    table = busy(tmp_path / "t")
    found = table.lineage()
    kinds = [(event.kind, event.operation) for event in found]
    assert kinds == [
        ("CREATE", "UPSERT"), ("CREATE", "UPSERT"), ("CREATE", "UPSERT"), ("JOIN", "COMPACT LOGS"), ("JOIN", "COMPACT"),
        ("JOIN", "COMPACT"), ("FORK", "RESCALE"), ("FORK", "RESCALE"), ("RESTORE", "RESTORE"),
    ]  # fmt: skip
    assert "by nightly, number 3" in found.events[1].words
    assert "; reason: not merged yet" in found.events[5].words
    # What a step takes is what an earlier one made.
    made: set[str] = set()
    for event in found:
        assert set(event.inputs) <= made
        made |= set(event.outputs)
    assert found.events[3].inputs == (*found.events[1].outputs, *found.events[2].outputs)
    files = set(listing(tmp_path / "t"))
    assert made <= files
    assert not any(event.gone for event in found)
    assert [event.version for event in table.lineage(3)] == [1, 2, 3]
    assert found.to_arrow().column("event").to_pylist() == [kind for kind, _ in kinds]


CHANGES: dict[Operation, tuple[dict[str, Any], str]] = {
    Operation.ADD_COLUMNS: ({"add_columns": "w STRING"}, 'columns were added: ["w"]'),
    Operation.CHANGE_COLUMNS: ({"comments": {"v": "words"}}, 'columns were changed: comments {"v":"words"}'),
    Operation.RENAME_COLUMN: ({"rename_columns": {"v": "text"}}, 'columns were renamed: {"v":"text"}'),
    Operation.DROP_COLUMNS: ({"drop_columns": ["v"]}, 'columns were dropped: ["v"]'),
    Operation.CHANGE_MERGER: (
        {"merger": "first-row"},
        "the merger is first-row instead of event-time, with options {}",
    ),
    Operation.ADD_CONSTRAINT: ({"add_constraints": {"some": "k > 0"}}, 'constraints were added: {"some":"k > 0"}'),
    Operation.DROP_CONSTRAINT: ({"drop_constraints": ["first"]}, 'constraints were dropped: {"first":"o > 0"}'),
    Operation.SET_PROPERTIES: ({"properties": {"mine": "yes"}}, 'properties were set: {"mine":"yes"}'),
    Operation.SET_DESCRIPTION: ({"description": "orders"}, "the description is 'orders'"),
}
EVENTS = {
    Operation.CONVERT: "CREATE",
    Operation.COMPACT: "JOIN",
    Operation.COMPACT_LOGS: "JOIN",
    Operation.RESCALE: "FORK",
    Operation.VACUUM_FENCE: "DROP",
    Operation.FORGET: "DROP",
    Operation.EXPIRE_TOMBSTONES: "EXPIRE",
    Operation.RESTORE: "RESTORE",
    Operation.SEND: "SEND",
    Operation.ADD_INFO: "ADDINFO",
}
"""Operations that neither write, replace nor change a definition, and that are events."""


@pytest.mark.parametrize("operation", sorted(CHANGING))
def test_each_change_of_the_definition_is_told(operation: Operation, tmp_path: Path) -> None:
    change, words = CHANGES[operation]
    table = create(tmp_path / "t")
    table.alter(add_constraints={"first": "o > 0"})
    table.alter(**change)
    event = table.lineage().events[-1]
    assert (event.kind, event.version, event.operation, event.words) == ("CHANGE", 2, operation, words)


def test_changes_of_one_commit_are_told_together(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.alter(rename_columns={"v": "text"}, add_columns="w STRING", description="orders")
    (event,) = table.lineage().events
    assert event.operation == "RENAME COLUMN, ADD COLUMNS, SET DESCRIPTION"
    assert event.words == (
        "columns were renamed: {\"v\":\"text\"}; columns were added: [\"w\"]; the description is 'orders'"
    )  # fmt: skip


def test_each_operation_is_an_event_or_known_to_be_none(tmp_path: Path) -> None:
    kinds = (CHANGING, REPLACING | WRITING, frozenset(EVENTS), WITHOUT_EVENT)
    assert {operation: sum(operation in kind for kind in kinds) for operation in Operation} == dict.fromkeys(
        Operation, 1
    )
    table = busy(tmp_path / "t")
    write_deltalake(tmp_path / "plain", pa.table({"k": [1]}))
    LakeTable.convert(tmp_path / "plain", key=["k"])
    table.delete(frame([(9, 5)], ["k", "o"]))
    table.compact()
    table.expire_tombstones(retention=NOW)
    table.record_send("somewhere")
    table.associate("https://tickets.example/1")
    table.forget([{"k": 8}], drop_history=True)
    table.upsert(frame([(1, 1, "a")]))
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    events = [*table.lineage().events, *LakeTable.open(tmp_path / "plain").lineage().events]
    assert {event.operation: event.kind for event in events}.items() >= EVENTS.items()


def test_forgetting_ends_earlier_versions(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.forget([{"k": 1}])
    (told,) = [event for event in table.lineage() if event.operation == "FORGET"]
    assert (told.kind, told.details["keys"]) == ("DROP", "1")
    assert told.words.startswith(f"1 key was forgotten: versions before {told.version} are dropped")
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", version=told.version - 1)
    LakeTable.open(tmp_path / "t", version=told.version)


def test_events_outlive_their_content(tmp_path: Path) -> None:
    table = busy(tmp_path / "t")
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    found = table.lineage()
    files = set(listing(tmp_path / "t"))
    gone = {path for event in found for path in event.gone}
    assert gone == {path for event in found for path in event.paths} - files
    assert gone
    assert found.events[-1].kind == "DROP"
    assert any("vacuumed" in note for note in found.notes)
    assert "style=dashed" in found.to_dot()
    assert "(gone)" in repr(found)


def test_the_graph_and_the_page(tmp_path: Path) -> None:
    table = busy(tmp_path / "t")
    dot = table.lineage().to_dot()
    assert dot.startswith("digraph lineage {")
    assert dot.endswith("}")
    assert dot.count(" -> event") == sum(len(event.inputs) for event in table.lineage())
    assert "<table>" in table.lineage()._repr_html_()


def test_the_way_of_one_key(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=4)
    table.upsert(frame([(k, 1, "a") for k in range(40)]))
    table.upsert(frame([(7, 2, "b")]))
    table.upsert(frame([(8, 2, "b")]))
    table.compact()
    found = table.lineage(key={"k": 7})
    assert [event.version for event in found if event.kind == "CREATE"] == [1, 2]
    assert [event.kind for event in found][-1] == "JOIN"
    assert found.key == {"k": 7}


def test_other_mergers_and_options(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(7, 100, "a"), (8, 100, "x")]))
    table.upsert(frame([(7, 200, "b")]))
    table.upsert(frame([(7, 150, "c"), (9, 1, "n")]))
    rows = rows_of(table.to_arrow())
    assert rows_of(table.what_if().to_arrow()) == rows
    assert rows_of(table.what_if("commit-time").to_arrow()) == [(7, 150, "c"), (8, 100, "x"), (9, 1, "n")]
    deleting = {"delete_when": {"column": "v", "values": ["b"]}}
    assert rows_of(table.what_if(options=deleting).to_arrow()) == [(8, 100, "x"), (9, 1, "n")]
    table.compact()
    assert rows_of(table.what_if("commit-time").to_arrow()) == rows  # nothing is left to fold anew
    again = table.what_if("commit-time", since=0)
    assert rows_of(again.to_arrow(filter="k = 7", columns=["v"])) == [("c",)]
    assert again.get({"k": 9}) == {"k": 9, "o": 1, "v": "n"}
    assert rows_of(again.scan().read_all()) == rows_of(again.to_arrow())
    assert "stay as they are" in again.notes[0]
    assert "commit-time" in again._repr_html_()
    # Nothing of it is in the table.
    assert rows_of(table.to_arrow()) == rows
    assert table.detail().merger == "event-time"


class Shortest(RowMerger):
    id = "0c7a3b52-9f7c-4c6a-8a68-0c1b1e3d6a55"
    name = "shortest"

    def merge(self, older: Record, newer: Record) -> Any:
        return newer if len(newer["v"]) < len(older["v"]) else older


def test_a_merger_that_nobody_registered(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    for o, v in [(1, "aaa"), (2, "b"), (3, "cc")]:
        table.upsert(frame([(7, o, v)]))
    assert table.what_if(Shortest()).get({"k": 7}) == {"k": 7, "o": 2, "v": "b"}


def test_consolidated_logs_are_read_as_they_were(tmp_path: Path) -> None:
    """A log compaction lets go of what lost under the table's own merger; under another one it may win."""
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "seed")]))
    table.upsert(frame([(7, 200, "new")]))
    table.upsert(frame([(7, 100, "old")]))
    expected = rows_of(table.what_if("commit-time").to_arrow())
    assert (7, 100, "old") in expected
    table.compact_logs()
    assert rows_of(table.what_if("commit-time").to_arrow()) == expected
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    late = table.what_if("commit-time")
    assert (7, 200, "new") in rows_of(late.to_arrow())
    assert any("consolidated" in note for note in late.notes)


def test_what_would_need_more_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(7, 1, "a")]))
    table.delete(frame([(7, 5)], ["k", "o"]))
    table.compact()
    expired = table.expire_tombstones(retention=NOW).version
    table.upsert(frame([(7, 3, "again")]))
    with pytest.raises(InputError, match=f"since={expired}"):
        table.what_if("commit-time", since=0)
    assert table.what_if("event-time", since=expired).get({"k": 7}) == table.get({"k": 7})
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    with pytest.raises(VersionNotFoundError, match="since=0 shows all"):
        table.what_if("commit-time", since=2)
