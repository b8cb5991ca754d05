"""History and time travel: what each commit says of itself, and every version as it was."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable, TableDamagedError, VersionNotFoundError
from tests.unit.faults import create, frame, rows_of


def written(path: Path) -> list[list[tuple[object, ...]]]:
    """Rows by version."""
    table = create(path, properties={"delta.checkpointInterval": "3"})
    states = [rows_of(table.to_arrow())]

    def note() -> None:
        while len(states) <= table.version:
            states.append(rows_of(table.to_arrow()))

    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]), info={"job": "load"})
    note()
    table.delete(frame([(1,)], ["k"]))
    note()
    table.compact()
    note()
    table.delete_where("v = 'b'")
    note()
    table.upsert(frame([(3, 1, "c", "+I")], ["k", "o", "v", "op"]), kind_column="op")
    note()
    return states


def test_what_commits_say(tmp_path: Path) -> None:
    written(tmp_path)
    history = LakeTable.open(tmp_path).history()
    assert [(entry.version, entry.operation) for entry in history] == [
        (6, "UPSERT"),
        (5, "DELETE"),
        (4, "COMPACT"),
        (3, "RESERVE FILE NUMBERS"),
        (2, "DELETE"),
        (1, "UPSERT"),
        (0, "CREATE TABLE"),
    ]
    by_version = {entry.version: entry for entry in history}
    assert by_version[6].parameters == {"columns": '["k","o","v"]', "kindColumn": "op"}
    assert by_version[6].metrics["numSourceRows"] == "1"
    assert by_version[5].info["predicate"] == "v = 'b'"
    assert (by_version[1].info["job"], by_version[1].parameters["mode"]) == ("load", "load")
    times = [entry.timestamp_ms for entry in history]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times), "in-commit timestamps strictly rise"
    assert [entry.version for entry in LakeTable.open(tmp_path).history(limit=2)] == [6, 5]
    assert LakeTable.open(tmp_path).history(limit=0) == []
    for wrong in (-1, "2"):
        with pytest.raises(InputError, match="limit must be"):
            LakeTable.open(tmp_path).history(limit=wrong)  # type: ignore[arg-type]


def test_every_version_reads_as_it_was(tmp_path: Path) -> None:
    states = written(tmp_path)
    assert len(states) == 7
    for version, rows in enumerate(states):
        assert rows_of(LakeTable.open(tmp_path, version=version).to_arrow()) == rows
    for entry in LakeTable.open(tmp_path).history():
        instant = dt.datetime.fromtimestamp(entry.timestamp_ms / 1000, dt.UTC)
        for timestamp in (instant, instant.isoformat(), instant.replace(tzinfo=None).isoformat()):
            assert LakeTable.open(tmp_path, timestamp=timestamp).version == entry.version


def test_versions_that_a_clean_up_took(tmp_path: Path) -> None:
    """Before the checkpoint at 3 nothing is left; from there on all is."""
    states = written(tmp_path)
    for version in range(3):
        (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="from 3 to 6"):
        LakeTable.open(tmp_path, version=2)
    for version in range(3, 7):
        assert rows_of(LakeTable.open(tmp_path, version=version).to_arrow()) == states[version]
    assert [entry.version for entry in LakeTable.open(tmp_path).history()] == [6, 5, 4, 3]


def test_a_table_follows_the_tip(tmp_path: Path) -> None:
    table, other = create(tmp_path), LakeTable.open(tmp_path)
    pinned = LakeTable.open(tmp_path, version=0)
    table.upsert(frame([(1, 1, "a")]))
    table.alter(add_columns="w INT")
    assert (other.version, other.schema.names) == (2, ["k", "o", "v", "w"])
    assert (pinned.version, pinned.schema.names, pinned.to_arrow().num_rows) == (0, ["k", "o", "v"], 0)


def test_commits_of_strangers_are_listed(tmp_path: Path) -> None:
    """A commit without commitInfo has a version and a time, and nothing to say. The table says that it is damaged."""
    log = create(tmp_path).opened.handle.log
    (tmp_path / f"_delta_log/{1:020d}.json").write_text(json.dumps({"txn": {"appId": "x", "version": 1}}) + "\n")
    entry = log.history(limit=1)[0]
    assert (entry.version, entry.operation, entry.parameters, entry.metrics, entry.info) == (1, None, {}, {}, {})
    with pytest.raises(TableDamagedError, match="does not say what it holds"):
        LakeTable.open(tmp_path)


def test_a_read_asks_for_at_least_one_column(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"])
    table.upsert(pa.table({"id": [1, 2]}))
    for read in (table.to_arrow, table.scan):
        with pytest.raises(InputError, match="at least one column"):
            read(columns=[])
