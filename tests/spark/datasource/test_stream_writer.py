"""The writer of a stream's batches, asked as Spark asks it: repeated, late, killed in between, with nothing in it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StringType, StructType

from lakemerge import InputError, LakeTable
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.datasource.stream_batches import RowSum
from lakemerge.datasource.stream_sink import StreamWriter
from tests.unit.faults import create, frame, listing, state_of

COLUMNS = StructType().add("k", LongType()).add("o", LongType()).add("v", StringType())


def writer(path: Path, **options: str) -> StreamWriter:
    found = LakeMergeDataSource({"path": str(path), **options}).streamWriter(COLUMNS, overwrite=False)
    assert isinstance(found, StreamWriter)
    return found


def packed(planned: StreamWriter, rows: list[Any], query: str | None = "q") -> list[WriterCommitMessage | None]:
    message: Any = planned.write(iter(pa.table(frame(rows)).to_batches()))
    message.query_id = query  # there is no query here that tells it
    return [message]


def write(path: Path, rows: list[Any], batch: int, query: str | None = "q", **options: str) -> None:
    """With a writer for the tasks and another one for the commit, as Spark does."""
    told = packed(writer(path, **options), rows, query)
    writer(path, **options).commit(told, batch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(tmp_path / "t").upsert(frame([(0, 1, "first")]))
    return tmp_path / "t"


def test_a_batch_is_there_once(path: Path) -> None:
    write(path, [(1, 1, "a")], 0)
    write(path, [(1, 2, "b")], 1)
    before = listing(path)
    write(path, [(1, 2, "b")], 1)
    assert listing(path) == before, "the files of a repeated batch are gone"
    with pytest.raises(InputError, match=r"batch 0 of 'lakemerge\.stream\.q' comes after batch 1 was written"):
        write(path, [(9, 9, "other")], 0)
    assert listing(path) == before
    write(path, [(9, 9, "other")], 0, "another query")
    assert state_of(path) == [(0, 1, "first"), (1, 2, "b"), (9, 9, "other")]


def test_a_batch_with_the_number_of_another_one(path: Path) -> None:
    """Two queries with copies of one checkpoint: Spark counts the batches of both from the same number."""
    write(path, [(1, 1, "a"), (2, 1, "b")], 0, checkpointLocation="/cp")
    version, before = LakeTable.open(path).version, listing(path)
    planned = writer(path)
    in_two_tasks = [*packed(planned, [(2, 1, "b")]), *packed(planned, [(1, 1, "a")])]
    writer(path).commit(in_two_tasks, 0)
    assert LakeTable.open(path).version == version, "the rows are the same, in other tasks"
    for other in ([(1, 1, "a"), (2, 1, "c")], [(1, 1, "a")], [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]):
        with pytest.raises(
            InputError, match=r"batch 0 .*other rows.*query q shares the checkpoint /cp .*repeatedBatch"
        ):
            write(path, other, 0, checkpointLocation="/cp")
    assert listing(path) == before
    write(path, [(1, 1, "a"), (2, 1, "c")], 0, repeatedBatch="skip")
    assert LakeTable.open(path).version == version
    assert state_of(path) == [(0, 1, "first"), (1, 1, "a"), (2, 1, "b")]
    with pytest.raises(InputError, match="must be one of check, skip"):
        writer(path, repeatedBatch="x")


def test_values_that_a_shuffle_changes_tell_no_batches_apart() -> None:
    """A sum of floating-point numbers depends on their order, which no shuffle keeps."""
    one, same, other = RowSum(), RowSum(), RowSum()
    for told, key, total, items in ((one, 1, 0.3, [1, 2]), (same, 1, 0.30000000000000004, [2, 1]), (other, 2, 0.3, [])):
        list(told.passing(pa.table({"k": [key], "total": [total], "items": [items]}).to_batches()))
    assert RowSum.mark([(one.rows, one.total)]) == RowSum.mark([(same.rows, same.total)])
    assert RowSum.mark([(one.rows, one.total)]) != RowSum.mark([(other.rows, other.total)])


def test_killed_between_its_steps(path: Path) -> None:
    """After the files and before the commit; Spark begins the batch anew, with files of other names."""
    packed(writer(path), [(1, 1, "a")])
    assert LakeTable.open(path).version == 1
    write(path, [(1, 1, "a")], 0)
    assert state_of(path) == [(0, 1, "first"), (1, 1, "a")]
    aborted = writer(path)
    told = packed(aborted, [(2, 1, "b")])
    before = listing(path)
    writer(path).abort([*told, None], 1)
    assert listing(path) == before, "another process may have sent the commit, which names the files"
    table = LakeTable.open(path)
    assert table.version == 2
    for _ in range(2):  # a write that began at the latest version may be under way: the first vacuum adds one
        table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert len([name for name in listing(path) if name.startswith("_lakemerge/log")]) == 1, "that of the one commit"
    assert state_of(path) == [(0, 1, "first"), (1, 1, "a")]


def test_the_first_batch_of_a_table_is_a_load(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    write(tmp_path / "t", [(1, 1, "a")], 0)
    write(tmp_path / "t", [(1, 1, "a")], 0)
    assert table.history()[0].parameters["mode"] == "load"
    assert table.version == 1


def test_nothing_to_write(path: Path) -> None:
    write(path, [], 0)
    assert LakeTable.open(path).version == 1


def test_refused(path: Path) -> None:
    with pytest.raises(InputError, match="did not tell the id of the query"):
        write(path, [(1, 1, "a")], 0, None)
    with pytest.raises(InputError, match="give no txnAppId and txnVersion"):
        writer(path, txnAppId="mine", txnVersion="1")
    with pytest.raises(InputError, match=r'takes outputMode\("append"\)'):
        LakeMergeDataSource({"path": str(path)}).streamWriter(COLUMNS, overwrite=True)
    assert len([name for name in listing(path) if name.startswith("_lakemerge/log")]) == 0


def test_the_schedule_is_kept(path: Path) -> None:
    table = LakeTable.open(path)
    table.alter(properties={"lakemerge.maintenance.inline": "true", "lakemerge.minorCompaction.afterCommits": "2"})
    for number in range(4):
        write(path, [(number, 5, "x")], number)
    operations = [entry.operation for entry in table.history()]
    assert any("COMPACT" in str(operation) or "OPTIMIZE" in str(operation) for operation in operations), operations
    assert table.detail().log_commits <= 2
