"""A table's life in an application, and what its rows are after each step, in plain Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import lakemerge
from lakemerge import LakeTable, ReadPolicy, RowMerger, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COMPUTED", "NEWEST", "ROUTES", "Told", "computed_table", "live", "look", "newest_table"]

Row = tuple[int, int, str | None]
DDL = "k BIGINT, o BIGINT, v STRING"
_PREMERGE = ReadPolicy(premerge_from_bytes=0, premerge_stored_per_place=0.001, premerge_stored_per_record=0.001)
ROUTES: Mapping[str, tuple[str, ReadPolicy]] = {
    "native, premerged": ("on", _PREMERGE),
    "native, kernel": ("on", ReadPolicy(premerge=False)),
    "union, premerged": ("off", _PREMERGE),
    "union, kernel": ("off", ReadPolicy(premerge=False)),
}
"""Ways to read logs: whether LakeMerge's own scan may be used, and what merges."""


@dataclass
class Told:
    """What an application did."""

    executors: int
    modes: list[str] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=dict)
    """Step -> sorted rows."""
    ways: dict[str, list[Any]] = field(default_factory=dict)
    """Route -> file slices premerged and merged while reading, and whether the scan was LakeMerge's own."""
    processes: set[int] = field(default_factory=set)
    """The Python workers of a job, and the driver's last."""


def upserted(number: int, keys: range) -> list[Row]:
    return [(k, number, f"{number}.{k}") for k in keys]


LOADED = upserted(1, range(400))
DELETED = range(150, 160)


def newest() -> dict[int, Row]:
    """The rows of :func:`newest_table` by key."""
    found = {row[0]: row for row in (*LOADED, *upserted(2, range(350, 450)), *upserted(3, range(100, 200)))}
    return {k: row for k, row in found.items() if k not in DELETED}


NEWEST = sorted(newest().values())


def frame(spark: SparkSession, number: int, keys: range) -> DataFrame:
    """:func:`upserted` in four partitions."""
    numbers = spark.range(keys.start, keys.stop, 1, 4)
    return numbers.selectExpr("id AS k", f"{number}L AS o", f"concat('{number}.', id) AS v")


def opened(spark: SparkSession, path: Path, route: str) -> LakeTable:
    """The table, read by the route, with tasks for work that a driver would do itself."""
    native, reads = ROUTES[route]
    spark.conf.set("spark.lakemerge.nativeReads", native)
    return LakeTable.open(path, spark=spark, settings=Settings(driver_bytes=1, reads=reads))


def newest_table(spark: SparkSession, path: Path) -> list[str]:
    """A table in four buckets with a load, upserts and deletes, none of them compacted. How each was written."""
    table = LakeTable.create(path, DDL, key=["k"], ordering=["o"], buckets=4, spark=spark)
    results = [table.upsert(frame(spark, number, keys)) for number, keys in ((1, range(400)), (2, range(350, 450)))]
    results.append(table.upsert(frame(spark, 3, range(100, 200))))
    gone = spark.range(DELETED.start, DELETED.stop, 1, 2).selectExpr("id AS k", "4L AS o")
    results.append(table.delete(gone))
    return [result.mode for result in results]


COMPUTED = sorted((k, 2 if k % 2 else 1, ("a" if k < 50 else "") + ("b" if k % 2 else "")) for k in range(100))


def computed_table(spark: SparkSession, path: Path) -> None:
    """A table whose merger a job brings: the class is of no installed module."""

    class Joined(RowMerger):
        id = "7d0c4a52-6f7e-4d53-9a43-000000000001"
        name = "joined-words"

        def merge(self, older: Any, newer: Any) -> Any:
            return {**newer, "v": older["v"] + newer["v"]}

    table = LakeTable.create(
        path, DDL, key=["k"], ordering=["o"], buckets=4, merger="joined-words", mergers=[Joined], spark=spark,
        settings=Settings(driver_bytes=1),
    )  # fmt: skip
    table.upsert(spark.range(0, 100, 1, 2).selectExpr("id AS k", "1L AS o", "IF(id < 50, 'a', '') AS v"))
    table.upsert(spark.range(1, 100, 2, 2).selectExpr("id AS k", "2L AS o", "'b' AS v"))
    _joined[str(path)] = table


_joined: dict[str, LakeTable] = {}
"""Tables of :func:`computed_table`, which only their process can open."""


def look(table: LakeTable) -> list[Any]:
    return sorted(tuple(row) for row in table.to_df().collect())


def live(spark: SparkSession, folder: Path) -> Told:
    """All that is done with tables, in tasks of the application's executors."""
    told = Told(executors=len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1)
    path = folder / "newest"
    told.modes = newest_table(spark, path)
    for route in ROUTES:
        table = opened(spark, path, route)
        plan = table.explain_read()
        told.ways[route] = [plan.first, plan.merged, plan.not_native is None, plan.through_arrow]
        told.rows[route] = look(table)
    told.rows["through format()"] = sorted(
        tuple(row) for row in spark.read.format("lakemerge").load(str(path)).collect()
    )
    table = opened(spark, path, "native, premerged")
    changes = table.changes_df(table.version - 1).select("_change_type", "k", "o", "v")
    told.rows["changes"] = sorted(tuple(row) for row in changes.collect())
    told.rows["filtered"] = sorted(tuple(row) for row in table.to_df(filter="k IN (10, 155, 360)").collect())

    lakemerge.catalog(spark, "lake", warehouse=str(folder / "lake"))
    spark.sql("CREATE NAMESPACE lake.db")
    spark.sql(f"CREATE TABLE lake.db.t ({DDL}) TBLPROPERTIES ('key' = 'k', 'ordering' = 'o')")
    spark.sql("INSERT INTO lake.db.t SELECT id, 1, concat('1.', id) FROM range(6)")
    spark.sql("UPDATE lake.db.t SET v = 'u', o = 2 WHERE k = 1")
    spark.sql(
        "MERGE INTO lake.db.t t USING (SELECT 5L AS k, 3L AS o, 'm' AS v UNION ALL SELECT 9L, 3L, 'n') s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    told.rows["in SQL"] = sorted(tuple(row) for row in spark.sql("SELECT * FROM lake.db.t WHERE k <> 0").collect())

    computed_table(spark, folder / "joined")
    joined = _joined.pop(str(folder / "joined"))
    told.rows["a user's merger"] = look(joined)
    joined.compact()
    told.rows["a user's merger, compacted"] = look(joined)

    told.ways["minor compaction"] = [table.compact(minor=True).file_slices, table.explain_read().minor]
    told.rows["minor compaction"] = look(table)
    told.ways["compaction"] = [table.compact().file_slices, table.explain_read().clean]
    told.rows["compaction"] = look(table)

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})

    told.processes = {row[0] for row in spark.range(0, 2, 1, 2).mapInArrow(where, "pid BIGINT").collect()}
    told.processes.discard(os.getpid())
    return told
