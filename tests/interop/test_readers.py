"""What other engines see of a table, and that none of them can write it.

After a compaction of everything they see exactly the table; with logs pending, the last compacted
state. Rows are expected from a dictionary that the test keeps.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from benchmarks.duckdb_with import duckdb_with
from lakemerge import LakeTable

DDL = "c STRING, id BIGINT, seq INT, v STRING, amount DECIMAL(10,2), day DATE, seen TIMESTAMP, tags ARRAY<STRING>"
NAMES = ["c", "id", "seq", "v", "amount", "day", "seen", "tags"]
PLACES = ("NO", "S E", "x/y=%z")
Rows = dict[tuple[str, int], tuple[Any, ...]]


def row(place: str, number: int, seq: int) -> tuple[Any, ...]:
    """Strings are longer than the bounds that statistics keep of them."""
    return (
        place,
        number,
        seq,
        "v" * 40 + str(number),
        Decimal(number * seq).scaleb(-2),
        dt.date(1600, 1, 1) + dt.timedelta(number),
        dt.datetime(2024, 1, 1, 0, 0, 0, number, tzinfo=dt.UTC),
        None if number % 3 == 0 else (place, str(number)),
    )


class Written:
    """A table, its rows, and its rows at the last compaction."""

    def __init__(self, path: Path, spark: SparkSession | None, partition_by: list[str]) -> None:
        self.path = path
        self.spark = spark
        self.table = LakeTable.create(
            path, DDL, key=["c", "id"], ordering=["seq"], partition_by=partition_by, buckets=2, spark=spark
        )
        self.rows: Rows = {(place, number): row(place, number, 1) for place in PLACES for number in range(20)}
        self.upsert(list(self.rows.values()))
        self.compacted = dict(self.rows)

    def upsert(self, rows: list[tuple[Any, ...]]) -> None:
        frame = pa.Table.from_pylist(
            [dict(zip(NAMES, values, strict=True)) for values in rows],
            pa.schema([field.with_nullable(True) for field in self.table.schema]),
        )
        self.table.upsert(frame if self.spark is None else self.spark.createDataFrame(frame))
        self.rows |= {(values[0], values[1]): values for values in rows}

    def change(self, seq: int) -> None:
        """New and changed rows, deletes, and a place that loses all of its rows."""
        self.upsert([row(place, number, seq) for place in PLACES[:2] for number in range(15, 25)])
        self.table.delete_where(f"c = '{PLACES[2]}' OR id IN (1, 2)")
        self.rows = {key: values for key, values in self.rows.items() if key[0] != PLACES[2] and key[1] not in (1, 2)}

    def compact(self) -> None:
        self.table.compact()
        self.compacted = dict(self.rows)


@pytest.fixture(params=["plain", "partitioned", "loaded by Spark"])
def written(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Written:
    by_spark = request.param == "loaded by Spark"
    return Written(tmp_path, spark if by_spark else None, ["c"] if request.param == "partitioned" else [])


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb_with("delta")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def with_deltalake(spark: SparkSession, path: Path, where: str) -> pa.Table:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    return pa.table(builder.execute(f"SELECT * FROM t WHERE {where}").read_all())


def with_polars(spark: SparkSession, path: Path, where: str) -> pa.Table:
    return pl.scan_delta(str(path)).filter(pl.sql_expr(where)).collect().to_arrow()


def with_duckdb(spark: SparkSession, path: Path, where: str) -> pa.Table:
    found = connect().execute(f"SELECT * FROM delta_scan('{path}') WHERE {where}").to_arrow_table()
    return pa.table(found)


def with_spark(spark: SparkSession, path: Path, where: str) -> pa.Table:
    return spark.read.format("delta").load(str(path)).where(where).toArrow()


READERS: list[Callable[[SparkSession, Path, str], pa.Table]] = [with_deltalake, with_polars, with_duckdb, with_spark]


LAST = "v" * 40 + "7"
EVERYTHING = "id >= 0"
CONDITIONS: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    EVERYTHING: lambda values: True,
    "id = 17 AND seq > 1": lambda values: values[1] == 17 and values[2] > 1,
    f"v = '{LAST}'": lambda values: bool(values[3] == LAST),
    f"c = '{PLACES[1]}'": lambda values: bool(values[0] == PLACES[1]),
}
"""SQL that every engine reads, and what it means."""


def check(spark: SparkSession, written: Written, rows: Rows, *conditions: str) -> None:
    for read in READERS:
        for where in conditions or (EVERYTHING,):
            table = read(spark, written.path, where)
            assert sorted(table.column_names) == sorted(NAMES), read.__name__
            assert in_order(table) == sorted(filter(CONDITIONS[where], rows.values())), (read.__name__, where)


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows in the table's order of columns: some engines put partition columns last."""
    values = [[plain(value) for value in table.column(name).to_pylist()] for name in NAMES]
    return sorted(zip(*values, strict=True))


def plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_every_reader_sees_the_table_after_a_compaction(spark: SparkSession, written: Written) -> None:
    check(spark, written, written.rows)
    written.change(2)
    assert written.rows != written.compacted
    # With logs pending: the state before them. A minor compaction leaves base files as they are.
    check(spark, written, written.compacted)
    written.table.compact(minor=True)
    check(spark, written, written.compacted)
    ours = LakeTable.open(written.path, spark=spark).to_df().toArrow()
    assert in_order(ours) == sorted(written.rows.values())
    written.compact()
    check(spark, written, written.rows, *CONDITIONS)
    # What was deleted comes back only by a newer record.
    written.upsert([row(PLACES[2], 3, 9)])
    written.compact()
    check(spark, written, written.rows)


@pytest.mark.long
def test_every_reader_sees_it_through_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    written = Written(tmp_path, None, ["c"])
    written.change(2)
    written.compact()
    written.change(3)
    written.table.opened.handle.log.checkpoint(written.table.opened.view.snapshot)
    for version in range(written.table.version):
        (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    check(spark, written, written.compacted)


def test_history(spark: SparkSession, tmp_path: Path) -> None:
    written = Written(tmp_path, None, [])
    written.change(2)
    written.compact()
    found = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}`").orderBy("version").collect()
    told = [(entry.version, entry.operation) for entry in found]
    assert told == [
        (0, "CREATE TABLE"),
        (1, "UPSERT"),
        (2, "UPSERT"),
        (3, "DELETE"),
        (4, "RESERVE FILE NUMBERS"),
        (5, "COMPACT"),
    ]
    assert found[1].operationParameters["mode"] == "load"
    assert found[2].operationMetrics["numSourceRows"] == "20"
    assert found[5].operationMetrics["numOutputRows"] == str(len(written.rows))
    ours = {entry.version: entry.timestamp_ms for entry in written.table.history()}
    assert {entry.version: round(entry.timestamp.timestamp() * 1000) for entry in found} == ours
    theirs = deltalake.DeltaTable(str(tmp_path)).history()
    assert [(entry["version"], entry["operation"]) for entry in reversed(theirs)] == told


def test_time_travel(spark: SparkSession, tmp_path: Path) -> None:
    written = Written(tmp_path, None, [])
    first = dict(written.rows)
    written.change(2)
    written.compact()
    then = deltalake.DeltaTable(str(tmp_path), version=1).to_pyarrow_table()
    assert in_order(pa.table(then)) == sorted(first.values())
    assert spark.read.format("delta").option("versionAsOf", 1).load(str(tmp_path)).count() == len(first)


@pytest.mark.long
@pytest.mark.parametrize("by_checkpoint", [False, True], ids=["from commits", "from a checkpoint"])
def test_every_reader_sees_a_replaced_table(by_checkpoint: bool, spark: SparkSession, tmp_path: Path) -> None:
    """First empty, with the new columns and partitions, and then with what was written and compacted since."""
    written = Written(tmp_path, None, ["c"])
    first = dict(written.rows)
    written.change(2)
    written.compact()
    path, last = str(tmp_path), written.table.version
    table = LakeTable.create(path, "id STRING, d DATE, x DOUBLE", key=["id", "d"], partition_by=["d"], replace=True)
    if by_checkpoint:
        table.opened.handle.log.checkpoint(table.opened.view.snapshot)
        for version in range(table.version):
            (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    for read in READERS:
        empty = read(spark, tmp_path, "id > ''")
        assert (sorted(empty.column_names), empty.num_rows) == (["d", "id", "x"], 0), read.__name__
    day = dt.date(2026, 1, 2)
    table.upsert(pa.table({"id": ["a", "b"], "d": [day, day], "x": [1.5, None]}))
    table.upsert(pa.table({"id": ["a"], "d": [day], "x": [2.5]}))
    table.compact()
    for read in READERS:
        rows = read(spark, tmp_path, "id > ''").select(["id", "d", "x"]).to_pylist()
        assert sorted(tuple(found.values()) for found in rows) == [("a", day, 2.5), ("b", day, None)], read.__name__
    if not by_checkpoint:
        told = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where(f"version = {last + 1}").collect()
        assert [entry.operation for entry in told] == ["CREATE OR REPLACE TABLE"]
        then = deltalake.DeltaTable(path, version=1).to_pyarrow_table()
        assert in_order(pa.table(then)) == sorted(first.values())
        assert spark.read.format("delta").option("versionAsOf", 1).load(path).count() == len(first)


def files(path: Path) -> dict[str, bytes]:
    """All files of the table. Left out: what a refused write of Spark left at the root, which no log names."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            full = Path(folder) / name
            stray = full.parent == path and name.lstrip(".").startswith("part-")
            if not stray:
                found[str(full.relative_to(path))] = full.read_bytes()
    return found


@pytest.mark.long
def test_no_other_engine_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    written = Written(tmp_path, None, [])
    # Files that a vacuum would delete, and logs that no other engine knows of.
    written.change(2)
    written.compact()
    written.change(3)
    before, seen = files(tmp_path), in_order(written.table.to_arrow())
    path = str(tmp_path)
    frame = pa.Table.from_pylist(
        [dict(zip(NAMES, row("NO", 1, 9), strict=True))],
        pa.schema([field.with_nullable(True) for field in written.table.schema]),
    )
    source = spark.createDataFrame(frame)
    source.createOrReplaceTempView("lm_interop_source")
    merge = "USING lm_interop_source s ON t.c = s.c AND t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    spark_writes: list[Callable[[], object]] = [
        lambda: source.write.format("delta").mode("append").save(path),
        lambda: source.write.format("delta").mode("overwrite").save(path),
        lambda: spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 5"),
        lambda: spark.sql(f"UPDATE delta.`{path}` SET v = 'x' WHERE id = 5"),
        lambda: spark.sql(f"MERGE INTO delta.`{path}` t {merge}"),
        lambda: spark.sql(f"OPTIMIZE delta.`{path}`"),
        lambda: spark.sql(f"VACUUM delta.`{path}` RETAIN 1000 HOURS"),
        lambda: spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1"),
        lambda: spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (z INT)"),
    ]
    for write in spark_writes:
        # Some of these come out of Delta as Java errors that PySpark does not translate.
        with pytest.raises(Exception, match=r"(?s)DELTA_UNSUPPORTED_FEATURES_FOR_WRITE.*lakemerge") as caught:
            write()
        assert isinstance(caught.value, PySparkException) or "py4j" in type(caught.value).__module__
        assert files(tmp_path) == before
    theirs = deltalake.DeltaTable(path)
    rust_writes: list[Callable[[], object]] = [
        lambda: deltalake.write_deltalake(path, frame, mode="append"),
        lambda: deltalake.write_deltalake(path, frame, mode="overwrite"),
        lambda: theirs.delete("id = 5"),
        theirs.optimize.compact,
        lambda: theirs.vacuum(0, dry_run=False, enforce_retention_duration=False),
        lambda: theirs.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
        lambda: pl.DataFrame(frame).write_delta(path, mode="append"),
    ]
    for write in rust_writes:
        with pytest.raises(Exception, match=r"(?is)unsupported.*features.*lakemerge"):
            write()
        assert files(tmp_path) == before
    duck = connect()
    duck.execute(f"ATTACH '{path}' AS t (TYPE delta)")
    with pytest.raises(duckdb.Error, match="lakemerge"):
        duck.execute("INSERT INTO t SELECT * FROM t LIMIT 1")
    assert {name for name in files(tmp_path) if name.startswith("_delta_log")} == {
        name for name in before if name.startswith("_delta_log")
    }
    assert in_order(LakeTable.open(tmp_path).to_arrow()) == seen == sorted(written.rows.values())
