"""Streams: micro-batches over minutes, the feed of a commit beside its upsert, ten commits on one core and on two.

The functions without ``run`` do the work in a process of their own. Iceberg's process runs in another environment, with
another Spark, where neither LakeMerge nor rich may be installed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from benchmarks.compare import on_spark
from benchmarks.compare.engines import ENGINES
from benchmarks.elsewhere import elsewhere
from benchmarks.harness import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["batches", "feed", "parallel", "streams"]

_ROWS, _KEYS, _CHANGED = 10_000, 1_000_000, 30_000
_GROWTH, _OVER_PARQUET, _OVER_UPSERT, _PARALLEL = 1.2, 1.3, 2.0, 1.6
_COLUMNS = "k BIGINT, o BIGINT, name STRING, amount DOUBLE"
_Stream: TypeAlias = "tuple[SparkSession, Callable[[DataFrame, int], object], Callable[[], DataFrame]]"


def streams(
    run: Run,
    *,
    minutes: Annotated[float, "of each stream"] = 10.0,
    rows: Annotated[int, "of the table whose feed is read"] = 3_000_000,
    parts: Annotated[tuple[str, ...], "what to time"] = ("batches", "feed", "parallel"),
) -> None:
    """Micro-batches over minutes, the feed of a commit beside its upsert, ten commits on one core and on two.

    Each measurement has a Spark session and a process of its own. Batches of 10,000 rows go into a LakeMerge table that
    maintains itself, into plain Parquet, and into a Delta and an Iceberg table by MERGE. The rows of the tables are
    compared with what Spark computes from the same numbers.
    """
    if "batches" in parts:
        _report_batches(run, minutes)
    if "feed" in parts:
        found = elsewhere(__name__, "feed", folder=str(run.folder / "feed"), rows=rows)
        what = f"{_CHANGED:,} rows changed in {rows:,}"
        run.report.timed("feed", f"{what}: upsert", found["upsert"])
        run.report.timed("feed", f"{what}: feed", found["feed"], found["upsert"], target=_OVER_UPSERT)
        right = found["rows"] == 2 * _CHANGED
        run.report.check("feed", [] if right else [f"the feed has {found['rows']} rows, not {2 * _CHANGED}"])
    if "parallel" in parts:
        one, two = (elsewhere(__name__, "parallel", folder=str(run.folder / "ten"), cores=n) for n in (1, 2))
        run.report.timed("parallel", "ten commits on two cores", two["seconds"])
        what = "on one core, beside that"
        run.report.timed("parallel", what, one["seconds"], two["seconds"], target=_PARALLEL, at_least=True)
        same = one["rows"] == two["rows"] > 0
        run.report.check("parallel", [] if same else [f"the feed has {one['rows']} rows, then {two['rows']}"])


def _report_batches(run: Run, minutes: float) -> None:
    what, found = f"batches of {_ROWS:,} rows for {minutes:g} minutes", {}
    for name in _STREAMS:
        environment = ENGINES[name].environment if name in ENGINES else ""
        python = ENGINES[name].python(run.environments) if environment else None
        if python is not None and not python.exists():
            run.report.say(f"NOT RUN: {name}: there is no {python} (make bench-streams makes it)")
            continue
        folder = str(run.folder / name)
        found[name] = elsewhere(__name__, "batches", python=python, folder=folder, engine=name, minutes=minutes)
    ours, floor = found["lakemerge"]["seconds"], found["parquet"]["seconds"]
    if not ours or not floor:
        run.report.check("batches", ["no batch but the first has ended: more minutes are needed"])
        return
    tenth = max(1, len(ours) // 10)
    first, last = statistics.median(ours[:tenth]), statistics.median(ours[-tenth:])
    run.report.timed("batches", f"{what}: Parquet", floor)
    run.report.timed("batches", f"{what}: LakeMerge", ours, floor, target=_OVER_PARQUET)
    for name in ("delta", "iceberg"):
        if name in found and (seconds := found[name]["seconds"]):  # in a short run no batch may have ended
            run.report.timed("batches", f"{what}: {ENGINES[name].title}'s MERGE", seconds, floor)
    run.report.timed("batches", f"last tenth of {len(ours)} batches", [last], [first], target=_GROWTH)
    for name, of in found.items():
        run.report.check("batches", [f"{of['wrong']} rows of {name} differ"] if of["wrong"] else [])


def _session(folder: Path, cores: int = 2) -> SparkSession:
    from benchmarks.compare.delta import SETTINGS

    cut = {"spark.master": f"local[{cores}]", "spark.sql.shuffle.partitions": str(cores)}
    return on_spark.session(folder, {**SETTINGS, **cut})


def _records(frame: DataFrame, at: str) -> DataFrame:
    """Records of keys all over the table, from numbers in a column ``value``. A key gets the highest of its numbers."""
    newest = frame.selectExpr(f"CAST(pmod(xxhash64(value), {_KEYS}) AS BIGINT) AS k", "value").groupBy("k")
    columns = (f"{at} AS o", "concat('name ', value % 1000) AS name", "CAST(value AS DOUBLE) / 7 AS amount")
    return newest.agg({"value": "max"}).toDF("k", "value").selectExpr("k", *columns)


def _first(spark: SparkSession) -> DataFrame:
    return _records(spark.range(_KEYS).toDF("value"), "CAST(0 AS BIGINT)")


def _into_lakemerge(folder: Path) -> _Stream:
    from lakemerge import LakeTable

    spark, inline = _session(folder), {"lakemerge.maintenance.inline": "true"}
    table = LakeTable.create(
        folder / "t", _COLUMNS, key=["k"], ordering=["o"], buckets=4, properties=inline, spark=spark
    )
    table.upsert(_first(spark))
    return spark, table.batch_writer(), table.to_df


def _into_delta(folder: Path) -> _Stream:
    from delta.tables import DeltaTable

    spark, path = _session(folder), str(folder / "t")
    _first(spark).write.format("delta").save(path)
    delta = DeltaTable.forPath(spark, path).alias("t")

    def write(batch: DataFrame, _: int) -> object:
        merge = delta.merge(batch.alias("s"), "t.k = s.k")
        return merge.whenMatchedUpdateAll("s.o >= t.o").whenNotMatchedInsertAll().execute()

    return spark, write, lambda: spark.read.format("delta").load(path)


def _into_iceberg(folder: Path) -> _Stream:
    from benchmarks.compare import iceberg

    settings = {**iceberg.SETTINGS, **iceberg.warehouse(folder), "spark.sql.shuffle.partitions": "2"}
    spark, table = on_spark.session(folder, settings), iceberg.name_of(folder / "t")
    made = _first(spark).writeTo(table).using("iceberg")
    for name, value in iceberg.PROPERTIES.items():
        made = made.tableProperty(name, value)
    made.create()

    def write(batch: DataFrame, _: int) -> object:
        batch.createOrReplaceTempView("s")
        changes = "WHEN MATCHED AND s.o >= t.o THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        return batch.sparkSession.sql(f"MERGE INTO {table} t USING s ON t.k = s.k {changes}")

    return spark, write, lambda: spark.table(table)


def _into_parquet(folder: Path) -> _Stream:
    """The appended records, of which a key may have several."""
    spark, path = _session(folder), str(folder / "t")

    def write(batch: DataFrame, _: int) -> object:
        batch.write.mode("append").parquet(path)
        return None

    return spark, write, lambda: spark.read.parquet(path)


_STREAMS: dict[str, Callable[[Path], _Stream]] = {
    "lakemerge": _into_lakemerge,
    "parquet": _into_parquet,
    "delta": _into_delta,
    "iceberg": _into_iceberg,
}


def batches(folder: str, engine: str, minutes: float) -> dict[str, Any]:
    """Seconds of each micro-batch's write, and how many rows are not as they should be."""
    Path(folder).mkdir(parents=True)
    spark, write, rows = _STREAMS[engine](Path(folder))
    seconds: list[float] = []

    def timed(batch: DataFrame, number: int) -> None:
        started = time.perf_counter()
        write(_records(batch, f"CAST({number + 1} AS BIGINT)"), number)
        seconds.append(time.perf_counter() - started)

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).option("numPartitions", 2).load()
    query = source.writeStream.foreachBatch(timed).option("checkpointLocation", f"{folder}/checkpoint").start()
    query.awaitTermination(int(minutes * 60))
    query.stop()
    wrong = 0 if engine == "parquet" else _wrong(spark, rows())
    spark.stop()
    return {"seconds": seconds[1:], "wrong": wrong}


def _wrong(spark: SparkSession, rows: DataFrame) -> int:
    """How many rows are not those of the batches up to the last one that is in the table."""
    (last,) = rows.selectExpr("max(o)").collect()[0]
    # The highest number of a key is in its last batch.
    expected = _records(spark.range(last * _ROWS).toDF("value"), f"CAST(floor(value / {_ROWS}) + 1 AS BIGINT)")
    expected = expected.unionByName(_first(spark).join(expected, "k", "left_anti"))
    rows = rows.select(*expected.columns)
    return rows.exceptAll(expected).count() + expected.exceptAll(rows).count()


def _noop(frame: DataFrame) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def feed(folder: str, rows: int) -> dict[str, Any]:
    from lakemerge import LakeTable

    spark = _session(Path(folder))
    table = LakeTable.create(f"{folder}/t", _COLUMNS, key=["k"], ordering=["o"], buckets=4, spark=spark)
    values = ("concat('name ', id % 1000) AS name", "CAST(id AS DOUBLE) / 7 AS amount")
    table.upsert(spark.range(rows).selectExpr("id AS k", "CAST(0 AS BIGINT) AS o", *values))
    found: dict[str, Any] = {"upsert": [], "feed": []}
    for number in range(1, 5):
        keys = f"id * {rows // _CHANGED} AS k"
        frame = spark.range(_CHANGED).selectExpr(keys, f"CAST({number} AS BIGINT) AS o", *values)
        started = time.perf_counter()
        table.upsert(frame)
        found["upsert"].append(time.perf_counter() - started)
        changes = table.changes_df(table.version - 1)
        found["feed"].append(_noop(changes))
    count = changes.count()
    spark.stop()
    return {"upsert": found["upsert"][1:], "feed": found["feed"][1:], "rows": count}


def parallel(folder: str, cores: int) -> dict[str, Any]:
    """Seconds to read the feed of ten commits, and how many rows it has."""
    from lakemerge import LakeTable

    spark, path = _session(Path(folder), cores), Path(folder) / "t"
    if not path.exists():
        by_hand = {"lakemerge.maintenance": "off"}
        table = LakeTable.create(path, _COLUMNS, key=["k"], ordering=["o"], buckets=4, properties=by_hand, spark=spark)
        for number in range(11):
            end = number + (_KEYS if number == 0 else 50_000)
            table.upsert(_records(spark.range(number, end).toDF("value"), f"{number}L"))
    changes = LakeTable.open(path, spark=spark).changes_df(1)
    seconds = [_noop(changes) for _ in range(4)]
    count = changes.count()
    spark.stop()
    return {"seconds": seconds[1:], "rows": count}
