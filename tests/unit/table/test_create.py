"""Creating and opening tables: what is refused, with every problem named, and nothing left behind."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakemerge import (
    InputError,
    LakeMergeError,
    LakeTable,
    MergerConfigurationError,
    MergerMissingError,
    NotATableError,
    SchemaError,
    Settings,
    StoreError,
    TableExistsError,
    VersionNotFoundError,
)
from mergers import CommitTime, EventTime
from mergers.builtin.delete_when import DeleteWhen
from tests.unit.faults import create, frame, listing, state_of

DDL = "k BIGINT, s STRING, o BIGINT, d DOUBLE, a ARRAY<INT>, b BINARY"
MANY = {
    "key": ["d", "zz"],
    "ordering": ["a", "d", "d"],
    "partition_by": ["s"],
    "buckets": 5,
    "properties": {"delta.appendOnly": "true", "lakemerge.key": "x", "mine": 1},
}


def delete_when(column: str, *values: Any) -> dict[str, Any]:
    return {"delete_when": {"column": column, "values": [*values]}}


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"key": []}, SchemaError, ["at least one key column"]),
        ({"key": "k"}, InputError, ["list of names", r"\['k'\]"]),
        ({"key": [1]}, InputError, ["list of names"]),
        ({"key": None}, InputError, ["list of names"]),
        ({"key": ["zz"]}, SchemaError, ["'zz' is not in the schema"]),
        ({"key": ["k", "K"]}, SchemaError, ["'K' is named twice"]),
        ({"key": ["d"]}, SchemaError, ["'d' is DOUBLE", "integers, strings"]),
        ({"key": ["a"]}, SchemaError, ["'a' is ARRAY<"]),
        ({"ordering": ["a"]}, SchemaError, ["'a'", "no order"]),
        ({"ordering": ["k"]}, SchemaError, ["'k' is a key column"]),
        ({"partition_by": ["s"]}, SchemaError, ["'s' must be a key column"]),
        ({"key": ["b"], "partition_by": ["b"]}, SchemaError, ["'b' is BINARY"]),
        ({"buckets": 0}, SchemaError, ["power of two from 1 to 65536, not 0"]),
        ({"buckets": 3}, SchemaError, ["not 3"]),
        ({"buckets": 2**17}, SchemaError, ["not 131072"]),
        ({"buckets": True}, InputError, ["not True"]),
        ({"buckets": 2.0}, InputError, ["not 2.0"]),
        ({"name": 7}, InputError, ["name must be text, not 7"]),
        ({"properties": {"mine": 1}}, SchemaError, ["'mine' must be a string, not 1"]),
        ({"properties": {"delta.enableChangeDataFeed": "true"}}, SchemaError, ["not one that users set"]),
        ({"properties": {"": "x"}}, SchemaError, ["'' is not one that users set"]),
        ({"properties": {7: "x"}}, InputError, ["the names in properties must be text"]),
        ({"properties": {"lakemerge.tombstoneRetention": "soon"}}, SchemaError, ["an interval such as", "'soon'"]),
        ({"properties": {"delta.logRetentionDuration": "interval -1 days"}}, SchemaError, ["an interval such as"]),
        (
            {"properties": {"delta.deletedFileRetentionDuration": "interval 1 month"}},
            SchemaError,
            ["an interval such as 'interval 7 days'"],
        ),
        ({"properties": {"delta.checkpointInterval": "0"}}, SchemaError, ["a positive number of commits"]),
        ({"properties": {"delta.checkpointInterval": "9" * 5_000}}, SchemaError, ["a positive number of commits"]),
        ({"properties": {"delta.checkpointInterval": "\u0661"}}, SchemaError, ["a positive number of commits"]),
        (
            {"properties": {"delta.logRetentionDuration": f"interval {'9' * 5_000} days"}},
            SchemaError,
            ["an interval such as"],
        ),
        ({"properties": {"delta.logRetentionDuration": "interval \u0667 days"}}, SchemaError, ["an interval such as"]),
        ({"schema": "k BIGNT"}, SchemaError, ["BIGNT", "'k'"]),
        ({"schema": None}, SchemaError, ["pyarrow.Schema", "DDL", "StructType"]),
        ({"schema": "k INT, K INT"}, SchemaError, ["one name"]),
        ({"schema": pa.schema([("k", pa.int64()), ("t", pa.time32("s"))])}, SchemaError, ["t: .*cast it"]),
        ({"merger": 5}, InputError, ["name, a UUID or a Merger instance"]),
        ({"merger": CommitTime}, InputError, ["name, a UUID or a Merger instance"]),
        ({"merger": "event-tim"}, MergerMissingError, ["Did you mean 'event-time'", "register_merger"]),
        ({"merger": "0e8c1a55-0000-4000-8000-000000000000"}, MergerMissingError, ["Registered: .*commit-time"]),
        ({"merger": "event-time"}, MergerConfigurationError, ["ordering columns", "commit-time"]),
        ({"merger": CommitTime(), "options": {"x": 1}}, InputError, ["options to the merger instance"]),
        ({"options": [1]}, InputError, ["mapping"]),
        ({"options": {"x": 1, "delete_when": {}}}, MergerConfigurationError, ["'x'", "delete_when must be"]),
        ({"options": delete_when("zz", 1)}, MergerConfigurationError, ["unknown column 'zz'"]),
        ({"options": delete_when("k")}, MergerConfigurationError, ["at least one value"]),
        ({"options": delete_when("k", 1.5)}, MergerConfigurationError, ["1.5", "BIGINT"]),
        ({"options": delete_when("k", 2**70)}, MergerConfigurationError, ["BIGINT"]),
        ({"options": delete_when("k", None)}, MergerConfigurationError, ["null never matches"]),
        ({"options": delete_when("a", 1)}, MergerConfigurationError, ["nested"]),
        (MANY, SchemaError, ["'d' is DOUBLE", "zz", "'a'", "'d' is named twice", "partition column 's'", "not 5"]),
        (MANY, SchemaError, ["appendOnly", "lakemerge.key", "'mine'"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_created(
    arguments: dict[str, Any], kind: type[Exception], says: list[str], tmp_path: Path
) -> None:
    given: dict[str, Any] = {"schema": DDL, "key": ["k"], **arguments}
    with pytest.raises(LakeMergeError) as caught:
        LakeTable.create(tmp_path / "t", given.pop("schema"), **given)
    assert type(caught.value) is kind
    for part in says:
        assert caught.match(part)
    assert listing(tmp_path) == {}
    if arguments is MANY:
        assert len(caught.value.facts["problems"]) == 10  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("merger", "options"),
    [
        ("event-time", {"delete_when": {"column": "s", "values": ["gone"]}}),
        ("eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", {"delete_when": {"column": "s", "values": ["gone"]}}),
        (EventTime(DeleteWhen("s", ("gone",))), None),
        (None, {"delete_when": {"column": "s", "values": ["gone"]}}),
    ],
    ids=["name", "UUID", "instance", "default"],
)
def test_a_merger_by_name_by_id_or_as_it_is(merger: Any, options: Any, tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path, "k INT, o INT, s STRING", key=["k"], ordering=["O"], merger=merger, options=options
    )
    config = LakeTable.open(tmp_path).opened.view.config
    assert (config.merger_id, config.merger_name) == (EventTime.id, "event-time")
    assert config.merger_options == {"delete_when": {"column": "s", "values": ["gone"]}}
    assert (table.key, table.ordering) == (("k",), ("o",))
    assert repr(table) == f"LakeTable({str(tmp_path)!r}, version=0, key=['k'], merger='event-time', buckets=None)"


def test_what_is_written(tmp_path: Path) -> None:
    create(
        tmp_path, name="orders", description="all of them", properties={"owner": "me", "delta.checkpointInterval": "3"}
    )
    actions = [json.loads(line) for line in (tmp_path / f"_delta_log/{0:020d}.json").read_text().splitlines()]
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    assert (metadata["name"], metadata["description"]) == ("orders", "all of them")
    configuration = metadata["configuration"]
    assert (configuration["owner"], configuration["delta.checkpointInterval"]) == ("me", "3")
    assert configuration["lakemerge.key"] == '["k"]'
    schema = LakeTable.open(tmp_path).schema
    assert [(field.name, field.nullable) for field in schema] == [("k", False), ("o", True), ("v", True)]


def test_a_table_is_not_created_twice(tmp_path: Path) -> None:
    create(tmp_path).upsert(frame([(1, 1, "x")]))
    before = listing(tmp_path)
    with pytest.raises(TableExistsError, match=r"open it \(LakeTable\.open\), replace it .*\(replace=True\), or"):
        create(tmp_path)
    assert listing(tmp_path) == before


def test_a_table_cannot_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"file' is a file"):
        create(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"


def test_a_store_that_cannot_commit(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="put-if-absent"):
        LakeTable.create("memory://folder/table", DDL, key=["k"])


def test_folders_that_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "_delta_log").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("missing", "empty", "log", "file"):
        with pytest.raises(NotATableError, match=f"no Delta log at .*{name}"):
            LakeTable.open(tmp_path / name)
    with pytest.raises(InputError, match="empty: pass a path"):
        LakeTable.open("")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"version": 9}, "version 9 .* from 0 to 1"),
        ({"version": -1}, "version -1 "),
        ({"version": "1"}, "must be an integer"),
        ({"version": True}, "must be an integer"),
        ({"timestamp": "2001-01-01"}, "history reaches from"),
        ({"timestamp": dt.datetime(2001, 1, 1, tzinfo=dt.UTC)}, "history reaches from"),
        ({"timestamp": "2999-01-01"}, "history reaches from .* for the latest version name no timestamp"),
        ({"timestamp": dt.datetime(2001, 1, 1)}, "no time zone"),  # noqa: DTZ001 - the point
        ({"timestamp": "yesterday"}, "not an ISO 8601"),
        ({"timestamp": 5}, "datetime or an ISO 8601 string"),
        ({"version": 0, "timestamp": "2001-01-01"}, "not for several"),
    ],
)
def test_versions_that_are_not_there(arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    create(tmp_path).upsert(frame([(1, 1, "x")]))
    with pytest.raises(InputError, match=says) as caught:
        LakeTable.open(tmp_path, **arguments)
    assert isinstance(caught.value, VersionNotFoundError) == ("from" in says or "-1" in says)


def test_a_table_opened_at_a_version_is_read_only(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert(frame([(1, 1, "x")]))
    table.upsert(frame([(2, 1, "y")]))
    before = listing(tmp_path)
    old = LakeTable.open(tmp_path, version=1)
    assert (old.version, old.to_arrow().num_rows) == (1, 1)
    writes: list[Callable[[], object]] = [
        lambda: old.upsert(frame([])),
        lambda: old.delete(frame([(1,)], ["k"])),
        lambda: old.delete_where("true"),
        old.compact,
        lambda: old.alter(add_columns="w INT"),
    ]
    for write in writes:
        with pytest.raises(InputError, match=r"at version 1 and is read-only.*without a version"):
            write()
    assert listing(tmp_path) == before
    assert len(state_of(tmp_path)) == 2


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("w INT NOT NULL", "must be nullable"),
        ("k INT", "there already"),
        ("V STRING", "there already"),
        ("w TIMESTAMP_NTZ", "higher Delta reader version"),
        ("w BIGNT", "unknown type"),
    ],
)
def test_columns_that_cannot_be_added(columns: str, says: str, tmp_path: Path) -> None:
    table = create(tmp_path)
    with pytest.raises(SchemaError, match=says):
        table.alter(add_columns=columns)
    assert (table.version, table.schema.names) == (0, ["k", "o", "v"])


def test_settings_are_positive_integers() -> None:
    for value in (0, -1, True, 1.0, "1", None):
        with pytest.raises(InputError, match=r"Settings\.threads must be a positive integer"):
            Settings(threads=value)  # type: ignore[arg-type]
    assert Settings(threads=1).threads == 1


HOW: dict[str, Any] = {"key": ["k"], "ordering": ["o"], "options": delete_when("s", "gone"), "description": "mine"}


def test_a_table_that_is_there_is_opened(tmp_path: Path) -> None:
    made = LakeTable.create(tmp_path, "k BIGINT, o BIGINT, s STRING COMMENT 'c'", if_exists="open", **HOW)
    made.upsert(pa.table({"k": [1], "o": [1], "s": ["a"]}))
    made.alter(properties={"team": "x", "lakemerge.maintenance": "off"})
    again = LakeTable.create(tmp_path, "k BIGINT, o BIGINT, s STRING COMMENT 'c'", if_exists="open", **HOW)
    assert (again.version, again.to_arrow().num_rows) == (made.version, 1)
    named = {**HOW, "buckets": again.bucket_count, "properties": {"team": "x"}}
    assert LakeTable.create(tmp_path, again.schema, if_exists="open", **named).version == made.version


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"schema": "k BIGINT, o BIGINT, s STRING, n INT"}, "its columns are .*`s` STRING, not .*`n` INT"),
        ({"schema": "k BIGINT, o INT, s STRING"}, "its columns are"),
        ({"schema": "k BIGINT, o BIGINT, s STRING COMMENT 'x'"}, "its columns are"),
        ({"key": ["k", "s"], "options": {}}, "its key is k, not k, s"),
        ({"ordering": [], "options": {}}, "its ordering is o, not nothing.* is 'event-time', not 'commit-time'"),
        ({"options": {}}, "the merger's options are"),
        ({"partition_by": ["k"]}, "it is partitioned by nothing, not k"),
        ({"buckets": 8}, "it has 2 buckets, not 8"),
        ({"description": None}, "its description is 'mine', not None"),
        ({"properties": {"team": "x"}}, "its property 'team' is None, not 'x'"),
        ({"replace": True}, "not both"),
        ({"if_exists": "skip"}, "if_exists must be one of 'error', 'open'"),
    ],
)
def test_a_table_of_another_definition_is_not_opened(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    LakeTable.create(tmp_path, "k BIGINT, o BIGINT, s STRING", buckets=2, **HOW)
    how = {"schema": "k BIGINT, o BIGINT, s STRING", "if_exists": "open", **HOW, **other}
    with pytest.raises(LakeMergeError, match=message):
        LakeTable.create(tmp_path, how.pop("schema"), **how)
    assert LakeTable.open(tmp_path).version == 0


def test_of_those_who_make_a_table_at_once_one_does(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(
            lambda _: LakeTable.create(tmp_path, "k BIGINT, o BIGINT, s STRING", if_exists="open", **HOW), range(8)
        )
        assert {table.version for table in made} == {0}
    assert [entry.operation for entry in LakeTable.open(tmp_path).history()] == ["CREATE TABLE"]


def test_a_plain_delta_table_is_not_opened(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"k": [1], "o": [1], "s": ["a"]}))
    with pytest.raises(TableExistsError, match="plain Delta table"):
        LakeTable.create(tmp_path, "k BIGINT, o BIGINT, s STRING", if_exists="open", **HOW)
