"""Changing a table's merger or its options: what is allowed, what the rows are then, and races."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import (
    CommitConflictError,
    CompactFirstError,
    InputError,
    LakeTable,
    MergerConfigurationError,
    MergerMissingError,
    Record,
    RowMerger,
    SchemaError,
    TableDamagedError,
)
from lakemerge.testing.faults import Call, Fault
from mergers.builtin.commit_time import CommitTime
from mergers.builtin.delete_when import DeleteWhen
from mergers.builtin.event_time import EventTime
from tests.relink import relink
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

OLD = [(1, 5, "a"), (2, 5, "b"), (3, 5, "c")]
SOLD = {"delete_when": {"column": "v", "values": ["sold"]}}


@dataclass(frozen=True)
class Longest(RowMerger):
    """The longer text wins."""

    id = "5a2f2b0f-33f5-4a0b-8c27-0c8f8c7f0c11"
    name = "longest"

    bonus: int = 0

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return newer if len(newer["v"]) + self.bonus > len(older["v"]) else older


def loaded(path: Path, **options: Any) -> LakeTable:
    table = create(path, **options)
    table.upsert(frame(OLD))
    return table


def merger_of(path: Path, version: int | None = None) -> tuple[str, Mapping[str, object]]:
    config = LakeTable.open(path, version=version).opened.view.config
    return config.merger_name, config.merger_options


def test_later_records_are_folded_by_the_new_merger_onto_the_rows_that_stand(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.upsert(frame([(1, 4, "late"), (2, 9, "newer")]))
    table.delete(frame([(3, 6)], ["k", "o"]))
    table.compact()
    stood = [(1, 5, "a"), (2, 9, "newer")]
    before = table.version
    assert rows_of(table.to_arrow()) == stood

    assert table.alter(merger="commit-time") == before + 1
    assert rows_of(table.to_arrow()) == stood, "the change alone changes no row"
    table.upsert(frame([(1, 1, "late wins"), (3, 1, "back")]))
    after = [(1, 1, "late wins"), (2, 9, "newer"), (3, 1, "back")]
    assert rows_of(table.to_arrow()) == after
    assert state_of(path) == after
    assert rows_of(LakeTable.open(path).scan().read_all()) == after
    LakeTable.open(path).compact()
    assert state_of(path) == after

    assert merger_of(path) == ("commit-time", {})
    assert [merger_of(path, version)[0] for version in (before, before + 1)] == ["event-time", "commit-time"]
    # Version 2 has the logs of event-time, unfolded: they are folded by it.
    assert rows_of(LakeTable.open(path, version=2).to_arrow()) == [(1, 5, "a"), (2, 9, "newer"), (3, 5, "c")]
    assert rows_of(LakeTable.open(path, version=before).to_arrow()) == stood


def test_tombstones_outlive_a_merger_that_does_not_know_them(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.delete(frame([(1, 9), (2, 9)], ["k", "o"]))
    table.compact()
    table.alter(merger="commit-time")
    table.upsert(frame([(1, 1, "x")]))
    table.compact()
    table.alter(merger="event-time")
    table.upsert(frame([(1, 2, "newer than x"), (2, 8, "older than its delete"), (3, 5, "c2")]))
    for _ in range(2):
        assert state_of(path) == [(1, 2, "newer than x"), (3, 5, "c2")]
        table.compact()


def test_live_logs_ask_for_a_compaction_first(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, buckets=2)
    table.upsert(frame([(1, 6, "x")]))
    table.delete(frame([(2, 6)], ["k", "o"]))
    before = listing(path)
    changes: list[Mapping[str, Any]] = [
        {"merger": "commit-time"},
        {"options": SOLD},
        {"merger": EventTime.id, "options": SOLD},
    ]
    for change in changes:
        with pytest.raises(CompactFirstError, match=r"compact first \(table\.compact\(\)\)") as caught:
            table.alter(**change)
        assert caught.value.facts["versions"] == (2, 3)
    assert listing(path) == before
    table.compact()
    table.alter(merger="commit-time")
    assert state_of(path) == [(1, 6, "x"), (3, 5, "c")]


def test_options_alone_and_options_with_a_merger(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, properties={"delta.checkpointInterval": "1"})
    table.upsert(frame([(1, 5, "sold")]))
    table.compact()
    table.alter(options=SOLD)
    assert merger_of(path) == ("event-time", SOLD)
    # A stored row is a row, whatever the new options say of records.
    assert state_of(path)[0] == (1, 5, "sold")
    table.upsert(frame([(2, 5, "sold"), (1, 4, "older")]))
    assert state_of(path) == [(1, 5, "sold"), (3, 5, "c")]
    table.compact()
    table.alter(options={})
    assert merger_of(path) == ("event-time", {})
    table.alter(merger=CommitTime(DeleteWhen("v", ("b",))))
    assert merger_of(path) == ("commit-time", {"delete_when": {"column": "v", "values": ["b"]}})
    table.alter(merger="commit-time")
    assert merger_of(path) == ("commit-time", {}), "a merger without options has its defaults"
    assert LakeTable.open(path).opened.view.snapshot.metadata.configuration["delta.checkpointInterval"] == "1"
    assert LakeTable.open(path).opened.view.state.merger_epoch == 4


def test_what_the_table_has_already_makes_no_commit(tmp_path: Path) -> None:
    """So that a script may say at every start what it wants, live logs or not."""
    path = tmp_path / "t"
    table = create(path, options=SOLD)
    table.upsert(frame(OLD))
    table.upsert(frame([(1, 6, "x")]))
    before = listing(path)
    for change in (
        {"merger": "event-time", "options": SOLD},
        {"options": SOLD},
        {"merger": EventTime(DeleteWhen("v", ("sold",)))},
    ):
        assert table.alter(**change) == 2
    assert listing(path) == before


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({}, InputError, "nothing to alter"),
        ({"merger": "event-tme"}, MergerMissingError, "Did you mean 'event-time'"),
        ({"merger": 7}, InputError, "must be a name, a UUID or a Merger instance"),
        ({"options": ["x"]}, InputError, "options must be a mapping"),
        ({"merger": CommitTime(), "options": SOLD}, InputError, "options to the merger instance"),
        ({"options": {"delete_wen": 1}}, MergerConfigurationError, "unknown option 'delete_wen'"),
        ({"merger": "aggregate", "options": {"aggregates": {"v": "sum", "zz": "max"}}}, MergerConfigurationError, "zz"),
        ({"merger": "overwrite-non-defaults"}, MergerConfigurationError, "no ordering"),
        ({"merger": "debezium-mysql", "options": {"op_column": "v"}}, MergerConfigurationError, "two columns"),
        ({"add_columns": "w INT NOT NULL", "merger": "commit-time"}, SchemaError, "must be nullable"),
    ],
)
def test_what_does_not_validate_changes_nothing(
    change: Mapping[str, Any], error: type[Exception], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    before = listing(path)
    with pytest.raises(error, match=says):
        table.alter(**change)
    assert listing(path) == before


def test_event_time_needs_ordering_here_too(tmp_path: Path) -> None:
    table = create(tmp_path / "t", ordering=[])
    with pytest.raises(MergerConfigurationError, match="needs ordering columns"):
        table.alter(merger="event-time")


def test_columns_and_the_options_for_them_in_one_commit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, ordering=[], merger="aggregate", options={"aggregates": {"o": "sum"}})
    table.upsert(frame([(1, 2, "a")]))
    version = table.alter(add_columns="n BIGINT", options={"aggregates": {"o": "max", "n": "sum"}})
    assert version == 2
    more = pa.table({"k": [1, 1], "o": [1, 1], "n": [10, 20]})
    table.upsert(more)
    assert state_of(path) == [(1, 2, "a", 30)]
    entry = next(entry for entry in table.history() if entry.version == version)
    assert entry.operation == "ADD COLUMNS, CHANGE MERGER"
    assert entry.parameters == {
        "columns": '["n"]',
        "merger": "aggregate",
        "mergerOptions": '{"aggregates":{"o":"max","n":"sum"}}',
    }
    with pytest.raises(CompactFirstError):
        table.alter(add_columns="m BIGINT", options={"aggregates": {"o": "min"}})
    assert table.schema.names == ["k", "o", "v", "n"]
    assert table.alter(add_columns="m BIGINT") == version + 2, "columns alone need no compaction"


def test_a_column_that_the_merger_does_not_take_is_refused(tmp_path: Path) -> None:
    """Else nobody could read the table any more."""
    path = tmp_path / "t"
    table = create(
        path, schema="k BIGINT, n BIGINT", ordering=[], merger="aggregate", options={"default_aggregate": "sum"}
    )
    with pytest.raises(MergerConfigurationError, match="sum"):
        table.alter(add_columns="s STRING")
    assert table.alter(add_columns="m DOUBLE") == 1
    table.upsert(pa.table({"k": [1, 1], "n": [1, 2], "m": [0.5, 0.25]}))
    assert state_of(path) == [(1, 3, 0.75)]


def test_a_merger_that_nobody_has_can_be_left(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, merger="longest", mergers=[Longest], ordering=[])
    table.upsert(frame([(1, 1, "aaa"), (1, 2, "b")]))
    stranger = LakeTable.open(path)
    for refused in ({"options": {"bonus": 1}}, {"add_columns": "w INT"}):
        with pytest.raises(MergerMissingError, match="longest"):
            stranger.alter(**refused)
    stranger.alter(merger="commit-time")
    stranger.upsert(frame([(1, 3, "c")]))
    assert state_of(path) == [(1, 3, "c")]
    with pytest.raises(MergerMissingError, match="longest"):
        LakeTable.open(path, version=1).to_arrow()
    assert rows_of(LakeTable.open(path, version=1, mergers=[Longest]).to_arrow()) == [(1, 1, "aaa")]


def test_to_a_merger_of_ones_own_and_other_options_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, mergers=[Longest], ordering=[])
    table.upsert(frame([(1, 1, "aaa")]))
    table.alter(merger="longest")
    table.upsert(frame([(1, 2, "bb")]))
    assert rows_of(table.to_arrow()) == [(1, 1, "aaa")]
    table.compact()
    table.alter(options={"bonus": 2})
    table.upsert(frame([(1, 3, "cc")]))
    assert rows_of(LakeTable.open(path, mergers=[Longest]).to_arrow()) == [(1, 3, "cc")]


def altering(path: Path, *changes: Mapping[str, Any], method: str = "put_if_absent", at: int = 1) -> Fault:
    """Another process makes these changes just before a call of this table's store."""

    def act(call: Call) -> None:
        for change in changes:
            LakeTable.open(path).alter(**change)

    return Fault(action=act, method=method, at=at)


WRITES: list[Callable[[LakeTable], object]] = [
    lambda table: table.upsert(frame([(1, 6, "sold"), (4, 6, "d")])),
    lambda table: table.upsert(frame([(1, 6, "x")]), txn=("app", 1)),
    lambda table: table.delete(frame([(1,)], ["k"])),
]
"""A transaction runs again instead (``tests/unit/transactions/test_conflicts.py``)."""


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "changes",
    [
        ({"merger": "commit-time"},),
        ({"options": SOLD},),
        ({"merger": "commit-time"}, {"merger": "event-time"}),
    ],
    ids=["merger", "options", "there and back"],
)
def test_a_write_begun_before_the_change_is_refused(
    write: Callable[[LakeTable], object], changes: tuple[Mapping[str, Any], ...], tmp_path: Path
) -> None:
    """It packed and checked its records for another merger; its files go, and it can be repeated."""
    path = tmp_path / "t"
    loaded(path)
    before = {file for file in listing(path) if not file.startswith("_delta_log/")}
    table, store = open_over(path, altering(path, *changes))
    with pytest.raises(CommitConflictError, match=r"merger or its options changed meanwhile.*retry"):
        write(table)
    assert [call.method for call in store.calls].count("put_if_absent") == 1
    assert {file for file in listing(path) if not file.startswith("_delta_log/")} == before
    view = LakeTable.open(path).opened.view
    assert (view.version, view.log_commits) == (1 + len(changes), ())
    assert state_of(path) == OLD
    write(LakeTable.open(path))
    assert state_of(path) != OLD


def test_a_first_load_begun_before_the_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path)
    before = {file for file in listing(path) if not file.startswith("_delta_log/")}
    table, _ = open_over(path, altering(path, {"options": SOLD}))
    with pytest.raises(CommitConflictError, match="merger or its options changed"):
        table.upsert(frame([(1, 1, "sold"), (2, 1, "b")]))
    assert {file for file in listing(path) if not file.startswith("_delta_log/")} == before
    assert state_of(path) == []
    table.upsert(frame([(1, 1, "sold"), (2, 1, "b")]))
    assert state_of(path) == [(2, 1, "b")]


def test_logs_that_land_before_the_change_refuse_it(tmp_path: Path) -> None:
    """The change found the table compacted, but another writer's commit took its version."""
    path = tmp_path / "t"
    loaded(path)

    def append(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(1, 6, "x")]))

    table, _ = open_over(path, Fault(action=append, method="put_if_absent"))
    with pytest.raises(CompactFirstError) as caught:
        table.alter(merger="commit-time")
    assert caught.value.facts["versions"] == (2,)
    assert merger_of(path)[0] == "event-time"
    assert state_of(path)[0] == (1, 6, "x")


def test_a_compaction_that_lands_meanwhile_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)

    def write_and_compact(call: Call) -> None:
        other = LakeTable.open(path)
        other.upsert(frame([(1, 6, "x")]))
        other.compact()

    table, _ = open_over(path, Fault(action=write_and_compact, method="put_if_absent"))
    assert table.alter(merger="commit-time") == 5
    assert state_of(path)[0] == (1, 6, "x")


@pytest.mark.parametrize(
    ("first", "what"),
    [({"merger": "first-row"}, "merger"), ({"options": SOLD}, "merger"), ({"add_columns": "w INT"}, "schema")],
)
@pytest.mark.parametrize("second", [{"merger": "commit-time"}, {"add_columns": "u INT"}])
def test_of_two_changes_the_later_is_void(
    first: Mapping[str, Any], what: str, second: Mapping[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "t"
    loaded(path)
    table, _ = open_over(path, altering(path, first))
    with pytest.raises(CommitConflictError, match=f"the {what} changed meanwhile"):
        table.alter(**second)
    assert LakeTable.open(path).version == 2
    table.alter(**second)
    assert LakeTable.open(path).version == 3


def test_a_compaction_begun_before_the_change_is_refused(tmp_path: Path) -> None:
    """The logs it reads were compacted by somebody else, after which the merger changed."""
    path = tmp_path / "t"
    loaded(path)
    LakeTable.open(path).upsert(frame([(1, 6, "x")]))

    def compact_and_alter(call: Call) -> None:
        LakeTable.open(path).compact()
        LakeTable.open(path).alter(merger="commit-time")

    table, _ = open_over(path, Fault(action=compact_and_alter, method="open_output", path="base/"))
    with pytest.raises(CommitConflictError, match="merger or its options changed"):
        table.compact()
    assert state_of(path)[0] == (1, 6, "x")


def test_a_log_of_another_merger_is_never_folded(tmp_path: Path) -> None:
    """Only a foreign writer can leave one; then the table is damaged, and says so."""
    path = tmp_path / "t"
    loaded(path)
    LakeTable.open(path).upsert(frame([(1, 6, "x")]))
    commit = path / f"_delta_log/{2:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "domainMetadata" in line:
            body = json.loads(line["domainMetadata"]["configuration"])
            assert body["mergerEpoch"] == 0
            line["domainMetadata"]["configuration"] = json.dumps(body | {"mergerEpoch": 1})
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    relink(path)
    table = LakeTable.open(path)
    for act in (table.to_arrow, table.compact, lambda: table.alter(merger="commit-time")):
        with pytest.raises(TableDamagedError, match=r"live logs \(of versions \[2\]\).*another merger"):
            act()
