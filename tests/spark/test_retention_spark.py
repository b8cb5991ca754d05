"""Expiry, restore and vacuum through Spark: the same answers as without it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.unit.faults import Row, frame, rows_of

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
