"""Checkpoints against the schema of the Delta protocol, read with pyarrow alone, and against the state they hold."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakemerge.delta import (
    Action,
    AddFile,
    Attempt,
    Committed,
    DeltaLog,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Snapshot,
    Txn,
    dead_log_files,
)
from lakemerge.delta.checkpoint import encode_checkpoint, write_checkpoint
from lakemerge.errors import TableDamagedError, UnsupportedFeatureError
from lakemerge.storage import open_store
from tests.packages import needs_newer_arrow

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS

STATE = Snapshot(
    version=12,
    timestamp_ms=5,
    protocol=Protocol(1, 7, frozenset(), frozenset({"domainMetadata", "lakemerge"})),
    metadata=Metadata("id", None, "words", '{"type":"struct","fields":[]}', ("p",), {"k": "v"}, None),
    files={
        "p=N O/a": AddFile("p=N O/a", {"p": "N O"}, 3, 4, True, '{"numRecords":1}', {"t": "1"}, {"baseRowId": 8}),
        "p=x/b+c": AddFile("p=x/b+c", {"p": None}, 3, 4, False, encoded_path="p=x/b+c"),
    },
    tombstones={
        "new": RemoveFile("new", NOW_MS - 6 * DAY_MS, True, {"p": "1"}, 9),
        "old": RemoveFile("old", NOW_MS - 8 * DAY_MS, True),
        "undated": RemoveFile("undated", None, True),
    },
    txns={"app": Txn("app", 4, 6), "other": Txn("other", 0)},
    domains={"lakemerge.state": DomainMetadata("lakemerge.state", "{}"), "d": DomainMetadata("d", "é")},
    checkpoint_version=None,
    digest="d1",
)


def log_at(root: Path) -> DeltaLog:
    return DeltaLog(open_store(root), clock_ms=lambda: NOW_MS)


def write(root: Path, snapshot: Snapshot) -> None:
    """The file alone: a log writes it only where it holds the snapshot's commit, and these have none."""
    write_checkpoint(open_store(root), snapshot, now_ms=NOW_MS)


def file_of(root: Path, version: int = 12) -> Path:
    return root / "_delta_log" / f"{version:020d}.checkpoint.parquet"


@pytest.mark.parametrize("answers", [[False], [True, False]])
def test_nothing_is_left_where_the_table_is_gone(tmp_path: Path, answers: list[bool]) -> None:
    """It goes before the checkpoint is there, or before the hint is."""
    told = iter(answers)
    write_checkpoint(open_store(tmp_path), STATE, now_ms=NOW_MS, still_holds=lambda: next(told))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "_last_checkpoint" in path.name]
    assert next(told, None) is None, "it asked each time"


@needs_newer_arrow("gives no maps as dicts")
def test_rows_as_the_protocol_has_them(tmp_path: Path) -> None:
    write(tmp_path, STATE)
    rows = pq.read_table(file_of(tmp_path)).to_pylist(maps_as_pydicts="strict")
    found = [{key: value for key, value in row.items() if value is not None} for row in rows]
    assert all(len(row) == 1 for row in found)
    by_kind: dict[str, list[dict[str, object]]] = {}
    for row in found:
        for kind, fields in row.items():
            by_kind.setdefault(kind, []).append({k: v for k, v in fields.items() if v is not None})
    add = {"size": 3, "modificationTime": 4}
    assert by_kind == {
        "protocol": [{"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "lakemerge"]}],
        "metaData": [
            {
                "id": "id",
                "description": "words",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": '{"type":"struct","fields":[]}',
                "partitionColumns": ["p"],
                "configuration": {"k": "v"},
            }
        ],
        "txn": [{"appId": "app", "version": 4, "lastUpdated": 6}, {"appId": "other", "version": 0}],
        "domainMetadata": [
            {"domain": "lakemerge.state", "configuration": "{}", "removed": False},
            {"domain": "d", "configuration": "é", "removed": False},
        ],
        "add": [
            {
                **add,
                "path": "p=N%20O/a",
                "partitionValues": {"p": "N O"},
                "dataChange": True,
                "stats": '{"numRecords":1}',
                "tags": {"t": "1"},
                "baseRowId": 8,
            },
            {**add, "path": "p=x/b+c", "partitionValues": {"p": None}, "dataChange": False},
        ],
        "remove": [
            {
                "path": "new",
                "deletionTimestamp": NOW_MS - 6 * DAY_MS,
                "dataChange": True,
                "extendedFileMetadata": False,
                "size": 9,
            }
        ],
    }
    pointer = json.loads((tmp_path / "_delta_log/_last_checkpoint").read_bytes())
    size = file_of(tmp_path).stat().st_size
    assert pointer == {"version": 12, "size": 9, "sizeInBytes": size, "numOfAddFiles": 2}


def test_the_state_survives(tmp_path: Path) -> None:
    write(tmp_path, STATE)
    found = log_at(tmp_path).snapshot()
    expected = replace(
        STATE,
        timestamp_ms=found.timestamp_ms,
        checkpoint_version=12,
        tombstones={"new": replace(STATE.tombstones["new"], partition_values=None)},
    )
    assert found == expected


def test_an_empty_table_survives(tmp_path: Path) -> None:
    empty = replace(STATE, files={}, tombstones={}, txns={})
    write(tmp_path, empty)
    found = log_at(tmp_path).snapshot()
    assert (found.files, found.domains) == ({}, STATE.domains)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (None, {"new"}),
        ("interval 5 days", set()),
        ("interval 2 weeks", {"new", "old"}),
        ("??", {"new", "old", "undated"}),
    ],
)
def test_expired_tombstones_are_left_out(retention: str | None, kept: set[str]) -> None:
    configuration = {} if retention is None else {"delta.deletedFileRetentionDuration": retention}
    snapshot = replace(STATE, metadata=replace(STATE.metadata, configuration=configuration))
    removes = pc.struct_field(encode_checkpoint(snapshot, now_ms=NOW_MS)["remove"], "path").drop_null()
    assert set(removes.to_pylist()) == kept


def test_writing_again_touches_nothing_and_repairs_damage(tmp_path: Path) -> None:
    write(tmp_path, STATE)
    whole = file_of(tmp_path).read_bytes()
    stamp = file_of(tmp_path).stat().st_ino
    write(tmp_path, STATE)
    assert file_of(tmp_path).stat().st_ino == stamp
    file_of(tmp_path).write_bytes(b"torn")
    write(tmp_path, STATE)
    assert file_of(tmp_path).read_bytes() == whole


def test_the_pointer_never_goes_back(tmp_path: Path) -> None:
    write(tmp_path, STATE)
    write(tmp_path, replace(STATE, version=11))
    assert file_of(tmp_path, 11).exists()
    assert json.loads((tmp_path / "_delta_log/_last_checkpoint").read_bytes())["version"] == 12


def test_a_table_that_is_not_ours_to_write_gets_no_checkpoint(tmp_path: Path) -> None:
    foreign = replace(STATE, protocol=Protocol(1, 7, frozenset(), frozenset({"rowTracking"})))
    with pytest.raises(UnsupportedFeatureError, match="rowTracking"):
        log_at(tmp_path).checkpoint(foreign)
    assert not file_of(tmp_path).exists()


def other_table(root: Path) -> Path:
    """The folder of another table's checkpoint of version 2: the same definition and names, another history."""
    grow(root / "other", "theirs")
    return file_of(root / "other", 2)


def grow(root: Path, name: str) -> Snapshot:
    log = log_at(root)
    protocol = Protocol(1, 7, frozenset(), frozenset({"domainMetadata", "lakemerge"}))
    actions: list[Action] = [protocol, STATE.metadata, DomainMetadata("lakemerge.state", "{}")]
    made = log.commit(None, lambda _: Attempt(actions), operation="CREATE TABLE", parameters={})
    for number in range(4):
        assert isinstance(made, Committed)
        added = AddFile(f"{name}-{number}", {}, 1, 0, True)
        begin = made.snapshot
        made = log.commit(begin, partial(lambda add, _: Attempt([add]), added), operation="WRITE", parameters={})
        if number == 1:
            assert isinstance(made, Committed)
            log.checkpoint(made.snapshot)
    assert isinstance(made, Committed)
    return made.snapshot


@pytest.mark.parametrize("last", [2, 4])
def test_a_checkpoint_of_another_table_is_passed_over(tmp_path: Path, last: int) -> None:
    """With and without commits after it. The clean-up of the log does not count it, and check names it."""
    grow(tmp_path / "t", "ours")
    for version in range(last + 1, 5):
        (tmp_path / "t" / f"_delta_log/{version:020d}.json").unlink()
    log = log_at(tmp_path / "t")
    expected = log.snapshot()
    assert expected.checkpoint_version == 2
    shutil.copyfile(other_table(tmp_path), file_of(tmp_path / "t", 2))
    found = log.snapshot()
    assert (found.checkpoint_version, found.version) == (None, last)
    assert (found.files, found.domains) == (expected.files, expected.domains)
    store = open_store(tmp_path / "t")
    dead = dead_log_files(store, needed=last, before_ms=2**62, now_ms=2**62, required_domain="lakemerge.state")
    assert dead == []
    log.checkpoint(log.snapshot(version=2))
    assert log.snapshot().checkpoint_version == 2
    dead = dead_log_files(store, needed=last, before_ms=2**62, now_ms=2**62, required_domain="lakemerge.state")
    assert [stat.path for stat in dead] == [f"_delta_log/{version:020d}.json" for version in range(2)]


def test_a_commit_that_does_not_fit_its_checkpoint_is_the_damaged_one(tmp_path: Path) -> None:
    grow(tmp_path / "t", "ours")
    grow(tmp_path / "other", "theirs")
    third = f"_delta_log/{3:020d}.json"
    shutil.copyfile(tmp_path / "other" / third, tmp_path / "t" / third)
    with pytest.raises(TableDamagedError, match="another version or table") as caught:
        log_at(tmp_path / "t").snapshot()
    assert caught.value.facts["path"] == third


def test_a_checkpoint_without_its_commits_says_which_commit_comes_next(tmp_path: Path) -> None:
    """Commits up to the checkpoint's are gone, and what comes after it fits it."""
    expected = grow(tmp_path / "t", "ours")
    for version in range(3):
        (tmp_path / "t" / f"_delta_log/{version:020d}.json").unlink()
    found = log_at(tmp_path / "t").snapshot()
    assert (found.files, found.digest) == (expected.files, expected.digest)
    shutil.copyfile(other_table(tmp_path), file_of(tmp_path / "t", 2))
    with pytest.raises(TableDamagedError, match="stands for another commit"):
        log_at(tmp_path / "t").snapshot()
