"""``format("lakemerge")`` in a session that nobody configured for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemerge import LakeTable, Settings
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import open_table
from lakemerge.testing.faults import Fail, Fault
from tests.unit.faults import open_over

DDL = "id BIGINT, at INT, v STRING"


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1: ids 0 to 9; version 2: id 3 changed, with a log of its own."""
    path = tmp_path_factory.mktemp("table")
    table = LakeTable.create(path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    table.upsert(spark.range(10).selectExpr("id", "1 AS at", "concat('v', id) AS v"))
    table.upsert(spark.createDataFrame([(3, 2, "new")], DDL))
    return path


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("lakemerge").options(**options).load(str(path))


def save(frame: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    frame.write.format("lakemerge").mode(mode).options(**options).save(str(path))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def objects(path: Path) -> set[str]:
    return {os.path.relpath(os.path.join(folder, name), path) for folder, _, names in os.walk(path) for name in names}


def test_the_session_is_plain(spark: SparkSession) -> None:
    settings = {key for key, _ in spark.sparkContext.getConf().getAll()}
    assert not any("lakemerge" in key or key.startswith("spark.sql.python.") for key in settings)


def test_load(spark: SparkSession, folder: Path) -> None:
    expected = [(i, 1, f"v{i}") for i in range(10) if i != 3] + [(3, 2, "new")]
    found = load(spark, folder)
    assert found.schema == spark.createDataFrame([], DDL).schema
    assert rows(found) == sorted(expected)
    # Spark filters and projects what the source gave.
    assert rows(found.where("v LIKE 'n%' OR id = 9").select("v")) == [("new",), ("v9",)]
    for name in ("version", "versionAsOf"):
        assert rows(load(spark, folder, **{name: 1}).where("id = 3")) == [(3, 1, "v3")]


def test_a_read_is_by_the_scan_and_shows_the_version_of_its_load(spark: SparkSession, tmp_path: Path) -> None:
    """However it is asked for. Python gives the same rows where the caller names the columns, or the scan is off."""
    table = LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    table.upsert(spark.range(6).selectExpr("id", "1 AS at", "concat('v', id) AS v"))
    before = datetime.now(UTC).isoformat()
    table.upsert(spark.createDataFrame([(3, 2, "new"), (4, 0, "old")], DDL))
    new = [(0, 1, "v0"), (1, 1, "v1"), (2, 1, "v2"), (3, 2, "new"), (4, 1, "v4"), (5, 1, "v5")]
    old = [(i, 1, f"v{i}") for i in range(6)]
    by_scan: dict[str, tuple[DataFrame, list[Any]]] = {
        "latest": (load(spark, tmp_path), new),
        "version": (load(spark, tmp_path, VersionAsOf=1), old),
        "time": (load(spark, tmp_path, timestampAsOf=before), old),
        "columns": (load(spark, tmp_path, columns="v"), [(row[2],) for row in new]),
        "base": (load(spark, tmp_path, mode="base"), old),
        "failed keys": (load(spark, tmp_path, failedKeys="skip"), new),
    }
    spark.conf.set("spark.lakemerge.nativeReads", "off")
    by_python = {"switched off": load(spark, tmp_path)}
    spark.conf.unset("spark.lakemerge.nativeReads")
    by_python["columns with types"] = spark.read.format("lakemerge").schema(DDL).load(str(tmp_path))
    table.upsert(spark.createDataFrame([(9, 9, "later")], DDL))
    for name, (frame, expected) in by_scan.items():
        assert rows(frame) == sorted(expected), name
        assert frame.schema.fields == [field for field in table.to_df().schema if field.name in frame.columns], name
        assert " files" in plan_of(frame), name
    assert rows(by_python["switched off"]) == new
    assert rows(by_python["columns with types"]) == [*new, (9, 9, "later")], "the version is that of the first action"
    for name, frame in by_python.items():
        assert " files" not in plan_of(frame), name


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_write_through_a_view_that_reads(spark: SparkSession, tmp_path: Path) -> None:
    LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=1).upsert(
        pa.table({"id": [1], "at": pa.array([1], pa.int32()), "v": ["one"]})
    )
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shown USING lakemerge OPTIONS (path '{tmp_path}')")
    assert rows(spark.table("shown")) == [(1, 1, "one")]
    spark.sql("INSERT INTO shown VALUES (2, 1, 'two')")
    assert rows(load(spark, tmp_path)) == [(1, 1, "one"), (2, 1, "two")]


def test_columns_and_schema_prune(spark: SparkSession, folder: Path) -> None:
    found = load(spark, folder, columns="V , id")
    assert found.columns == ["v", "id"]
    assert rows(found.where("id = 3")) == [("new", 3)]
    asked = spark.read.format("lakemerge").schema("v STRING").load(str(folder))
    assert rows(asked) == sorted([(f"v{i}",) for i in range(10) if i != 3] + [("new",)])
    asked = spark.read.format("lakemerge").schema("V STRING, ID BIGINT").load(str(folder))
    assert asked.columns == ["V", "ID"]
    assert rows(asked.where("id = 3")) == [("new", 3)]


REFUSED_READS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "unknown column": ({"columns": "id,z"}, None, r"unknown column\(s\) 'z'; the table has id, at, v"),
    "unknown column of a schema": ({}, "id BIGINT, z STRING", r"unknown column\(s\) 'z'; the table has id, at, v"),
    "another type": ({}, "id INT", "Return schema mismatch"),
    "version to come": ({"version": 77}, None, "version 77 is not in the table's history, which reaches from 0 to 2"),
    "version that is no number": ({"version": "x"}, None, "option version must be a whole number, not 'x'"),
    "Delta's name, no number": ({"versionAsOf": "x"}, None, "option versionAsOf must be a whole number, not 'x'"),
    "misspelled": ({"versionAsOff": 1}, None, "has no option 'versionasoff'; did you mean 'versionAsOf'"),
    "version twice": ({"versionAsOf": 1, "version": 1}, None, "options version and versionAsOf are one"),
    "bad time, by Delta's name": ({"timestampAsOf": "1999-01-01"}, None, "no version is known for"),
    "both": ({"version": 1, "timestamp": "2024-01-01"}, None, "ask for a version, a timestamp or a savepoint"),
    "bad time": ({"timestamp": "1999-01-01"}, None, "no version is known for"),
}


@pytest.mark.parametrize("name", REFUSED_READS)
def test_refused_reads(spark: SparkSession, folder: Path, name: str) -> None:
    options, schema, message = REFUSED_READS[name]
    reader = spark.read.format("lakemerge").options(**options)
    with pytest.raises(PySparkException, match=message):
        (reader if schema is None else reader.schema(schema)).load(str(folder)).collect()


def test_no_table(spark: SparkSession, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(PySparkException, match=r"there is no Delta log at .*missing"):
        load(spark, missing)
    with pytest.raises(PySparkException, match="give the table's path"):
        spark.read.format("lakemerge").load()
    with pytest.raises(PySparkException, match=r"there is no Delta log at .*missing"):
        save(spark.createDataFrame([(1, 1, "a")], DDL), missing)
    assert not missing.exists()
    plain = tmp_path / "plain"
    spark.range(3).write.format("delta").save(str(plain))
    with pytest.raises(PySparkException, match="is a Delta table, but not a LakeMerge table"):
        load(spark, plain)


def test_append_is_upsert(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    # The first write is a load, and goes through the kernel: equal keys become one row.
    save(spark.createDataFrame([(1, 1, "a"), (1, 2, "b"), (2, 1, "c")], DDL).coalesce(1), tmp_path)
    assert rows(table.to_df()) == [(1, 2, "b"), (2, 1, "c")]
    assert table.history(limit=1)[0].parameters["mode"] == "load"
    assert not any(name.startswith("_lakemerge") for name in objects(tmp_path))
    kinds = spark.createDataFrame([(1, 3, None, "-D"), (2, 0, "late", "+U"), (3, 1, "d", "+I")], DDL + ", op STRING")
    save(kinds.coalesce(1), tmp_path, kindColumn="op")
    assert rows(table.to_df()) == [(2, 1, "c"), (3, 1, "d")]
    assert table.version == 2
    narrow = spark.createDataFrame([(3, 2)], "ID INT, AT SMALLINT")
    for _ in range(2):
        save(narrow, tmp_path, txnAppId="stream", txnVersion=7)
    assert (table.version, rows(table.to_df())) == (3, [(2, 1, "c"), (3, 2, "d")])
    assert table.opened.view.snapshot.txns["stream"].version == 7


def test_refused_writes(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    good = spark.createDataFrame([(1, 1, "a")], DDL)
    save(good, tmp_path)
    before = objects(tmp_path)
    for frame, mode, options, message in (
        (good, "append", {"replaceWhere": "id = 1"}, r'replaceWhere is for mode\("overwrite"\)'),
        (good, "ignore", {}, "cannot be written in the .Ignore. mode"),
        (good.selectExpr("bigint(null) AS id", "at", "v"), "append", {}, "key column 'id' is null in 1 row"),
        (good.selectExpr("*", "1 AS z"), "append", {}, "unknown column 'z'; the table has id, at, v"),
        (good.selectExpr("*", "1 AS V"), "append", {}, "columns 'v' and 'V' are both 'v'"),
        (good.selectExpr("*", "'?' AS op"), "append", {"kindColumn": "op"}, r"kind column 'op' holds \['\?'\]"),
        (good.selectExpr("id", "at", "string(raise_error('boom')) AS v"), "append", {}, "boom"),
    ):
        with pytest.raises(PySparkException, match=message):
            save(frame, tmp_path, mode, **options)
        assert (table.version, objects(tmp_path)) == (1, before), message


class Narrow(LakeMergeDataSource):
    """With tasks so small that no first load is."""

    @classmethod
    def name(cls) -> str:
        return "narrow"

    def _open(self) -> OpenTable:
        return open_table(self.options["path"], settings=Settings(target_task_bytes=1))


def test_a_large_first_load_is_not_merged_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    spark.dataSource.register(Narrow)
    frame = spark.createDataFrame([(1, 1, "a"), (1, 2, "b"), (2, 1, "c")], DDL)
    frame.write.format("narrow").mode("append").save(str(tmp_path))
    assert not table.opened.view.base_files
    assert rows(table.to_df()) == [(1, 2, "b"), (2, 1, "c")]
    table.compact()
    assert sum(file.rows for file in table.opened.view.base_files) == 2


class Stuttering(LakeMergeDataSource):
    """Over a store that carries the commit of version 2 out, or does not, and then tells nothing of it."""

    lands = True

    @classmethod
    def name(cls) -> str:
        return "stuttering" if cls.lands else "silent"

    def _open(self) -> OpenTable:
        commit, gone = f"{2:020d}.json", Fail(ConnectionError("gone"))
        put = Fault(action=gone, method="put_if_absent", path=commit, lasting=True, after=self.lands)
        return open_over(Path(self.options["path"]), put, Fault(action=gone, path=commit, at=2, lasting=True))[0].opened


class Silent(Stuttering):
    lands = False


@pytest.mark.parametrize("source", [Stuttering, Silent])
def test_an_unknown_outcome_keeps_the_files(spark: SparkSession, tmp_path: Path, source: type[Stuttering]) -> None:
    """Spark aborts what it could not commit, in a process that knows nothing of the commit."""
    table = LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=2, spark=spark)
    save(spark.createDataFrame([(1, 1, "a")], DDL), tmp_path)
    before = objects(tmp_path)
    spark.dataSource.register(source)
    with pytest.raises(PySparkException, match="outcome-unknown"):
        spark.createDataFrame([(1, 2, "b")], DDL).write.format(source.name()).mode("append").save(str(tmp_path))
    new = objects(tmp_path) - before
    assert any("/log/" in name for name in new)
    assert rows(table.to_df()) == ([(1, 2, "b")] if source.lands else [(1, 1, "a")])
