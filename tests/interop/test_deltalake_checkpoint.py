"""Checkpoints that deltalake writes of a table are passed over: the commits, or an older checkpoint, serve."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, TableDamagedError

DDL = "id BIGINT, at INT, v STRING"
Row = tuple[int, int, str]


def frame(*rows: Row) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    schema = pa.schema([("id", pa.int64()), ("at", pa.int32()), ("v", pa.string())])
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def rows(table: LakeTable) -> list[Row]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Base files, a compacted delete, live logs of two commits, and an application's transaction."""
    made = LakeTable.create(
        tmp_path, DDL, key=["id"], ordering=["at"], buckets=2, properties={"delta.checkpointInterval": "1000"}
    )
    made.upsert(frame(*((number, 1, "base") for number in range(10))))
    made.delete(pa.table({"id": [3], "at": pa.array([5], pa.int32())}))
    made.compact()
    made.upsert(frame((4, 2, "log"), (3, 4, "late")), txn=("app", 7))
    made.upsert(frame((5, 3, "log"), (20, 1, "log")))
    # The compaction wrote one, which would serve before another engine's.
    for own in (tmp_path / "_delta_log").glob("*checkpoint*"):
        own.unlink()
    assert rows(LakeTable.open(tmp_path)) == EXPECTED
    return made


EXPECTED: list[Row] = [
    *((number, 1, "base") for number in (0, 1, 2)),
    (4, 2, "log"),
    (5, 3, "log"),
    *((number, 1, "base") for number in (6, 7, 8, 9)),
    (20, 1, "log"),
]


def checkpoint(path: Path) -> Path:
    """Let deltalake write the checkpoint of the latest version; where it is."""
    theirs = deltalake.DeltaTable(str(path))
    theirs.create_checkpoint()
    return path / f"_delta_log/{theirs.version():020d}.checkpoint.parquet"


def lose_domains(file: Path) -> None:
    """As deltalake up to 1.2.1 wrote checkpoints: without the column of domains."""
    whole = pq.read_table(file)
    kept = whole.drop_columns(["domainMetadata"])
    valid = reduce(pc.or_, (pc.is_valid(column) for column in kept.columns))
    pq.write_table(kept.filter(valid), file)


def drop_commits(path: Path, through: int) -> None:
    for version in range(through + 1):
        (path / f"_delta_log/{version:020d}.json").unlink()


def check_goes_on(path: Path) -> None:
    """The table has lost nothing: rows, transactions, tombstones and ordinals are as they were."""
    table = LakeTable.open(path)
    assert rows(table) == EXPECTED
    assert table.upsert(frame((6, 9, "again")), txn=("app", 7)).mode == "repeated"
    table.upsert(frame((3, 5, "as new as the delete"), (0, 0, "older")))
    expected = sorted([*EXPECTED, (3, 5, "as new as the delete")])
    assert rows(table) == expected
    ordinals = {base.ordinal for base in table.opened.view.base_files}
    table.compact()
    assert rows(table) == expected
    assert not ordinals & {base.ordinal for base in table.opened.view.base_files}
    assert sorted(row["id"] for row in pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table()).to_pylist()) == [
        row[0] for row in expected
    ]


def test_a_whole_checkpoint_of_another_engine_is_passed_over(tmp_path: Path, table: LakeTable) -> None:
    """It does not say for which commit it stands, so it could be of a table that was here before."""
    checkpoint(tmp_path)
    version = table.version
    found = LakeTable.open(tmp_path)
    assert (found.version, found.opened.view.snapshot.checkpoint_version) == (version, None)
    assert len(found.opened.view.log_commits) == len(table.opened.view.log_commits) == 2
    found.opened.handle.log.checkpoint(found.opened.view.snapshot)  # ours takes its place
    assert LakeTable.open(tmp_path).opened.view.snapshot.checkpoint_version == version
    check_goes_on(tmp_path)


def test_without_the_commits_a_checkpoint_of_another_engine_is_refused(tmp_path: Path, table: LakeTable) -> None:
    file = checkpoint(tmp_path)
    drop_commits(tmp_path, table.version)
    with pytest.raises(TableDamagedError, match="does not say for which commit it stands") as caught:
        LakeTable.open(tmp_path)
    assert caught.value.facts["path"] == f"_delta_log/{file.name}"


def test_a_checkpoint_without_domains_is_passed_over_for_the_commits(tmp_path: Path, table: LakeTable) -> None:
    lose_domains(checkpoint(tmp_path))
    assert LakeTable.open(tmp_path).opened.view.snapshot.checkpoint_version is None
    check_goes_on(tmp_path)


def test_a_checkpoint_without_domains_is_passed_over_for_an_older_one(tmp_path: Path, table: LakeTable) -> None:
    log, first = table.opened.handle.log, table.version - 1
    log.checkpoint(log.snapshot(version=first))
    lose_domains(checkpoint(tmp_path))
    drop_commits(tmp_path, first)
    assert LakeTable.open(tmp_path).opened.view.snapshot.checkpoint_version == first
    check_goes_on(tmp_path)


def test_our_next_checkpoint_puts_things_right(tmp_path: Path, table: LakeTable) -> None:
    file = checkpoint(tmp_path)
    lose_domains(file)
    found = LakeTable.open(tmp_path)
    found.opened.handle.log.checkpoint(found.opened.view.snapshot)
    drop_commits(tmp_path, found.version)
    hint = json.loads((tmp_path / "_delta_log/_last_checkpoint").read_text())
    assert hint["version"] == found.version
    assert LakeTable.open(tmp_path).opened.view.snapshot.checkpoint_version == found.version
    check_goes_on(tmp_path)


def test_without_domains_and_commits_the_table_is_refused(tmp_path: Path, table: LakeTable) -> None:
    file = checkpoint(tmp_path)
    lose_domains(file)
    # deltalake itself still reads it: as base files without logs, which we must not.
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 9
    drop_commits(tmp_path, table.version)
    with pytest.raises(TableDamagedError, match=f"{file.name} has lost the table's domain metadata") as caught:
        LakeTable.open(tmp_path)
    assert caught.value.facts["domain"] == "lakemerge.state"
    with pytest.raises(TableDamagedError, match="lost the table's domain metadata"):
        LakeTable.open(tmp_path, version=table.version)


def test_a_part_of_the_commits_does_not_do(tmp_path: Path, table: LakeTable) -> None:
    lose_domains(checkpoint(tmp_path))
    drop_commits(tmp_path, 1)
    with pytest.raises(TableDamagedError, match="lost the table's domain metadata"):
        LakeTable.open(tmp_path)


def test_a_table_that_is_open_does_not_notice(tmp_path: Path, table: LakeTable) -> None:
    file = checkpoint(tmp_path)
    lose_domains(file)
    assert rows(table) == EXPECTED
    table.upsert(frame((30, 1, "more")))
    assert rows(table) == [*EXPECTED, (30, 1, "more")]
    assert rows(LakeTable.open(tmp_path)) == [*EXPECTED, (30, 1, "more")]
