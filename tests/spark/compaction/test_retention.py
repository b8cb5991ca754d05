"""Expiry, restore and vacuum through Spark: the same answers as without it."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from lakemerge import LakeTable, VersionNotFoundError
from lakemerge.spark_errors import unwrap_error
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import Row, create, frame, open_over, rows_of

DDL = "k BIGINT, o BIGINT, v STRING"
NOW = dt.timedelta(0)


def seen(table: LakeTable) -> list[Row]:
    rows = sorted(tuple(row) for row in table.to_df().collect())
    assert rows == rows_of(table.to_arrow())
    return rows


def test_a_table_that_forgets_and_goes_back(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = LakeTable.create(path, DDL, key=["k"], ordering=["o"], buckets=2, spark=spark)
    table.upsert(spark.createDataFrame([(k, 1, f"a{k}") for k in range(6)], DDL))
    table.delete(spark.createDataFrame([(1, 10), (2, 10)], "k BIGINT, o BIGINT"))
    table.compact()
    table.upsert(spark.createDataFrame([(1, 5, "lost"), (7, 1, "b")], DDL))
    known = table.version
    assert table.expire_tombstones(retention=NOW).horizon is not None
    table.upsert(spark.createDataFrame([(1, 4, "new"), (2, 3, "new too")], DDL))
    expected = [(0, 1, "a0"), (1, 4, "new"), (2, 3, "new too"), *((k, 1, f"a{k}") for k in (3, 4, 5)), (7, 1, "b")]
    assert seen(table) == expected
    table.compact(minor=True)
    assert seen(table) == expected
    saved = table.savepoint("here")
    table.restore(version=known)
    assert seen(table) == [row for row in expected if row[0] not in (1, 2)]
    table.upsert(frame([(2, 9, "held off")]))
    assert seen(table) == [row for row in expected if row[0] not in (1, 2)]
    table.compact()
    assert table.vacuum(dry_run=False, retention=NOW, enforce_retention=False).files
    assert seen(table) == [row for row in expected if row[0] not in (1, 2)]
    assert seen(LakeTable.open(path, savepoint="here", spark=spark)) == expected
    table.restore(savepoint=saved.name)
    assert seen(table) == expected


OVERTAKEN = r"a vacuum was faster.*start again from the present rows"


def forget(path: Path) -> None:
    """What a vacuum without retention and a compaction before it do to older versions."""
    table = LakeTable.open(path)
    table.compact()
    table.upsert(frame([(99, 1, "late")]))
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)


def changed(path: Path) -> None:
    table = create(path, properties={"lakemerge.maintenance": "off"})
    for at in range(3):
        table.upsert(frame([(1, at, f"v{at}"), (2, at, f"w{at}"), (3 + at, at, "x")]))


def told(table: LakeTable, *, net: bool) -> VersionNotFoundError:
    """The error that the call or one of its tasks raised."""
    with pytest.raises((PythonException, VersionNotFoundError)) as raised:
        table.changes_df(0, net=net).collect()
    error = unwrap_error(raised.value)
    assert isinstance(error, VersionNotFoundError)
    return error


@pytest.mark.long
@pytest.mark.parametrize("net", [False, True])
def test_changes_that_a_vacuum_overtakes_say_so(net: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Before the call, between the plan and the tasks, while the plan reads the log, and while a task opens a file."""
    path = tmp_path / "t"
    changed(path)
    table = LakeTable.open(path, spark=spark)
    planned = table.changes_df(0, net=net)
    forget(path)
    with pytest.raises(PythonException, match=OVERTAKEN):
        planned.collect()
    assert re.search(OVERTAKEN, told(table, net=net).message)
    for number, fault in enumerate((("get", 1), ("get", 2), ("open_input", 1))):
        path, done = tmp_path / str(number), tmp_path / f"{number} is done"
        changed(path)

        def overtake(_: Call, path: Path = path, done: Path = done) -> None:
            """Once, of all tasks."""
            with contextlib.suppress(FileExistsError):
                done.touch(exist_ok=False)
                forget(path)

        method, at = fault
        slow, _ = open_over(path, Fault(action=overtake, method=method, at=at), spark=spark)
        assert re.search(OVERTAKEN, told(slow, net=net).message), fault
        assert done.exists()
