"""Streams: micro-batches over minutes, the feed of a commit beside its upsert, ten commits on one core and on two.

    python -m benchmarks.streams --minutes 10

Each case has a Spark session of its own, in a process of its own. Batches of 10,000 rows go into a LakeMerge table that
maintains itself, into plain Parquet, and into a Delta and an Iceberg table by MERGE. Iceberg needs another Spark, so
its process runs in the environment that ``make bench-streams`` makes for it. The rows of the three tables are compared
with what Spark computes from the same numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.compare.engines import ENGINES
from benchmarks.measure import Line, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_ROWS = 10_000
_KEYS = 1_000_000
_GROWTH, _OVER_PARQUET, _OVER_UPSERT, _PARALLEL = 1.2, 1.3, 2.0, 1.6
Writing: TypeAlias = "Callable[[DataFrame, int], object]"
_COLUMNS = "k BIGINT, o BIGINT, name STRING, amount DOUBLE"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of each stream (10)")
    parser.add_argument("--rows", type=int, default=3_000_000, help="of the table whose feed is read (3 million)")
    parser.add_argument("--cases", default="batches,feed,parallel", help="which, by name")
    parser.add_argument("--path", default=None, help="where the tables go; by default a temporary folder")
    parser.add_argument(
        "--environments", type=Path, default=Path(sys.prefix), help="where the engines' virtual environments are"
    )
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker is not None:
        print(json.dumps(_WORK[given.worker.partition(":")[0]](given)))  # noqa: T201 - the parent reads it
        return 0
    from rich.console import Console  # the environments of other engines lack it

    report, folder = Report(Console()), Path(given.path or tempfile.mkdtemp(prefix="streams-"))
    for case in given.cases.split(","):
        _CASES[case](report, given, folder / case)
    if given.path is None:
        shutil.rmtree(folder, ignore_errors=True)
    report.end()
    return 1 if report.problems else 0


def _batches(report: Report, given: argparse.Namespace, folder: Path) -> None:
    what = f"batches of {_ROWS:,} rows for {given.minutes:g} minutes"
    found = {name: _worker(given, folder, f"batches:{name}") for name in _MERGES}
    ours, floor = found["lakemerge"]["seconds"], found["parquet"]["seconds"]
    tenth = max(1, len(ours) // 10)
    first, last = statistics.median(ours[:tenth]), statistics.median(ours[-tenth:])
    report.add(Line.timed("batches", f"{what}: Parquet", floor))
    report.add(Line.timed("batches", f"{what}: LakeMerge", ours, floor, target=_OVER_PARQUET))
    for name in ("delta", "iceberg"):
        if seconds := found[name]["seconds"]:  # in a short run no batch may have ended
            report.add(Line.timed("batches", f"{what}: {ENGINES[name].title}'s MERGE", seconds, floor))
    report.add(Line.timed("batches", f"last tenth of {len(ours)} batches", [last], [first], target=_GROWTH))
    for name, of in found.items():
        report.check("batches", [f"{of['wrong']} rows of {name} differ"] if of["wrong"] else [])


def _feed(report: Report, given: argparse.Namespace, folder: Path) -> None:
    found = _worker(given, folder, "feed")
    what = f"30,000 rows changed in {given.rows:,}"
    report.add(Line.timed("feed", f"{what}: upsert", found["upsert"]))
    report.add(Line.timed("feed", f"{what}: feed", found["feed"], found["upsert"], target=_OVER_UPSERT))
    report.check("feed", [] if found["rows"] == 60_000 else [f"the feed has {found['rows']} rows, not 60,000"])


def _parallel(report: Report, given: argparse.Namespace, folder: Path) -> None:
    one = _worker(given, folder, "parallel:1")
    two = _worker(given, folder, "parallel:2")
    report.add(Line.timed("parallel", "ten commits on two cores", two))
    report.add(Line.timed("parallel", "on one core, beside that", one, two, target=_PARALLEL, at_least=True))


_CASES: dict[str, Callable[[Report, argparse.Namespace, Path], None]] = {
    "batches": _batches,
    "feed": _feed,
    "parallel": _parallel,
}


def _worker(given: argparse.Namespace, folder: Path, work: str) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = ["--minutes", str(given.minutes), "--rows", str(given.rows), "--path", str(folder)]
    engine = ENGINES.get(work.partition(":")[2])
    python = Path(sys.executable)
    if engine is not None and engine.environment:
        python = engine.python(given.environments.absolute())
    command = [str(python), "-m", "benchmarks.streams", "--worker", work, *sizes]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ran.stdout.splitlines()[-1])


def _session(cores: int) -> SparkSession:
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _records(frame: DataFrame, at: str) -> DataFrame:
    """Records of keys all over the table, from numbers in a column ``value``. A key gets the highest of its numbers."""
    newest = frame.selectExpr(f"CAST(pmod(xxhash64(value), {_KEYS}) AS BIGINT) AS k", "value").groupBy("k")
    told = (f"{at} AS o", "concat('name ', value % 1000) AS name", "CAST(value AS DOUBLE) / 7 AS amount")
    return newest.agg({"value": "max"}).toDF("k", "value").selectExpr("k", *told)


def _first(spark: SparkSession) -> DataFrame:
    return _records(spark.range(_KEYS).toDF("value"), "CAST(0 AS BIGINT)")


def _into_lakemerge(folder: Path) -> tuple[SparkSession, Writing, Callable[[], DataFrame]]:
    from lakemerge import LakeTable

    spark, inline = _session(2), {"lakemerge.maintenance.inline": "true"}
    table = LakeTable.create(
        folder / "t", _COLUMNS, key=["k"], ordering=["o"], buckets=4, properties=inline, spark=spark
    )
    table.upsert(_first(spark))
    return spark, table.batch_writer(), table.to_df


def _into_delta(folder: Path) -> tuple[SparkSession, Writing, Callable[[], DataFrame]]:
    from delta.tables import DeltaTable

    spark = _session(2)
    _first(spark).write.format("delta").save(str(folder / "t"))
    delta = DeltaTable.forPath(spark, str(folder / "t")).alias("t")

    def write(batch: DataFrame, _: int) -> object:
        merge = delta.merge(batch.alias("s"), "t.k = s.k")
        return merge.whenMatchedUpdateAll("s.o >= t.o").whenNotMatchedInsertAll().execute()

    return spark, write, lambda: spark.read.format("delta").load(str(folder / "t"))


def _into_iceberg(folder: Path) -> tuple[SparkSession, Writing, Callable[[], DataFrame]]:
    from benchmarks.compare import iceberg, on_spark

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


def _into_parquet(folder: Path) -> tuple[SparkSession, Writing, None]:
    def write(batch: DataFrame, _: int) -> object:
        batch.write.mode("append").parquet(str(folder / "t"))
        return None

    return _session(2), write, None


_MERGES: dict[str, Callable[[Path], tuple[SparkSession, Writing, Callable[[], DataFrame] | None]]] = {
    "lakemerge": _into_lakemerge,
    "parquet": _into_parquet,
    "delta": _into_delta,
    "iceberg": _into_iceberg,
}


def _work_batches(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each micro-batch's write, and how many rows are not as they should be."""
    engine = given.worker.partition(":")[2]
    folder = Path(given.path).absolute() / engine
    shutil.rmtree(folder, ignore_errors=True)
    spark, write, rows = _MERGES[engine](folder)
    seconds: list[float] = []

    def timed(batch: DataFrame, number: int) -> None:
        started = time.perf_counter()
        write(_records(batch, f"CAST({number + 1} AS BIGINT)"), number)
        seconds.append(time.perf_counter() - started)

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).option("numPartitions", 2).load()
    query = source.writeStream.foreachBatch(timed).option("checkpointLocation", str(folder / "cp")).start()
    query.awaitTermination(int(given.minutes * 60))
    query.stop()
    return {"seconds": seconds[1:], "wrong": 0 if rows is None else _wrong(spark, rows())}


def _wrong(spark: SparkSession, rows: DataFrame) -> int:
    """How many rows are not those of the batches up to the last one that is in the table."""
    (last,) = rows.selectExpr("max(o)").collect()[0]
    batch = f"CAST(floor(value / {_ROWS}) + 1 AS BIGINT)"
    later = spark.range(last * _ROWS).toDF("value")
    # The highest number of a key is in its last batch.
    expected = _records(later, batch)
    expected = expected.unionByName(_first(spark).join(expected, "k", "left_anti"))
    rows = rows.select(*expected.columns)
    return rows.exceptAll(expected).count() + expected.exceptAll(rows).count()


def _work_feed(given: argparse.Namespace) -> dict[str, Any]:
    from lakemerge import LakeTable

    spark, path = _session(2), Path(given.path) / "t"
    shutil.rmtree(path, ignore_errors=True)
    table = LakeTable.create(path, _COLUMNS, key=["k"], ordering=["o"], buckets=4, spark=spark)
    told = ("concat('name ', id % 1000) AS name", "CAST(id AS DOUBLE) / 7 AS amount")
    table.upsert(spark.range(given.rows).selectExpr("id AS k", "CAST(0 AS BIGINT) AS o", *told))
    found: dict[str, Any] = {"upsert": [], "feed": [], "rows": 0}
    step = given.rows // 30_000
    for number in range(1, 5):
        frame = spark.range(30_000).selectExpr(f"id * {step} AS k", f"CAST({number} AS BIGINT) AS o", *told)
        started = time.perf_counter()
        table.upsert(frame)
        found["upsert"].append(time.perf_counter() - started)
        changes = table.changes_df(table.version - 1)
        started = time.perf_counter()
        changes.write.format("noop").mode("overwrite").save()
        found["feed"].append(time.perf_counter() - started)
        found["rows"] = changes.count()
    return {"upsert": found["upsert"][1:], "feed": found["feed"][1:], "rows": found["rows"]}


def _work_parallel(given: argparse.Namespace) -> list[float]:
    from lakemerge import LakeTable

    spark, path = _session(int(given.worker.partition(":")[2])), Path(given.path) / "t"
    if not path.exists():
        by_hand = {"lakemerge.maintenance": "off"}
        table = LakeTable.create(path, _COLUMNS, key=["k"], ordering=["o"], buckets=4, properties=by_hand, spark=spark)
        for number in range(11):
            rows = _records(
                spark.range(number, number + (_KEYS if number == 0 else 50_000)).toDF("value"), f"{number}L"
            )
            table.upsert(rows)
    table = LakeTable.open(path, spark=spark)
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        table.changes_df(1).write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


_WORK: dict[str, Callable[[argparse.Namespace], Any]] = {
    "batches": _work_batches,
    "feed": _work_feed,
    "parallel": _work_parallel,
}


if __name__ == "__main__":
    raise SystemExit(main())
