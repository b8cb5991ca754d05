"""Updates and merges of rows: against the read and the upsert that they consist of, and against Delta's MERGE.

An update of 1 % of the rows, by a range of keys, may take 1.3x the time of reading these rows and of upserting them.
The merge of 1 % of the rows is timed beside Delta's MERGE of the same source into the same rows; ``benchmarks.compare``
has Iceberg's. Last, rows are updated in a JVM of ``--heap``, and the largest resident memory of its Python processes is
compared with that of an upsert of the same rows. Every outcome is compared with plain arithmetic on the rows.

    python -m benchmarks.transactions --rows 3000000 --memory-rows 10000000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from benchmarks.compare.memory import measured
from benchmarks.measure import Contender, Line, Report, interleave, usable_cores
from benchmarks.services_logs import SCHEMA, random_rows
from lakemerge import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "measure_merge", "measure_update"]

_CHUNK_ROWS = 500_000
_UPDATE_RATIO = 1.3
_MEMORY_RATIO = 1.1
"""Noise, for what should take the same."""
_ROW = "k, ts, i0, i1, i2, f0, f1, d0, s0, s1"


def measure_update(report: Report, folder: Path, *, rows: int, rounds: int, spark: SparkSession | None) -> None:
    """An update of 1 % of the rows by a range of keys, against their read and their upsert."""
    original = _made(folder / "original", rows)
    low, high = rows // 2, rows // 2 + rows // 100 - 1
    between = f"k BETWEEN {low} AND {high}"
    before = LakeTable.open(original).to_arrow(columns=["k", "i0"], filter=between).sort_by("k")
    work = {name: folder / name for name in ("update", "read and upsert")}
    tables: dict[str, LakeTable] = {}

    def fresh(name: str) -> Callable[[], None]:
        def copy() -> None:
            shutil.rmtree(work[name], ignore_errors=True)
            shutil.copytree(original, work[name], copy_function=os.link)
            tables[name] = LakeTable.open(work[name], spark=spark)

        return copy

    def update() -> None:
        tables["update"].update_where(between, {"i0": "i0 + 1"})

    def read_and_upsert() -> None:
        table = tables["read and upsert"]
        if spark is None:
            found = table.to_arrow(filter=between)
            place = found.column_names.index("i0")
            table.upsert(found.set_column(place, "i0", pc.add(found.column("i0"), 1)))
        else:
            # Kept between, as whoever reads and then writes has the rows.
            found = table.to_df(filter=between).localCheckpoint(eager=True)
            table.upsert(found.withColumn("i0", found.i0 + 1))

    contenders = [
        Contender("update", update, fresh("update")),
        Contender("parts", read_and_upsert, fresh("read and upsert")),
    ]
    times = interleave(contenders, rounds=rounds)
    for name, table in tables.items():
        after = table.to_arrow(columns=["k", "i0"], filter=between).sort_by("k")
        same = after.column("i0").equals(pc.add(before.column("i0"), 1)) and after.num_rows == rows // 100
        counted = table.to_arrow(columns=["k"]).num_rows
        report.check(name, [] if same and counted == rows else ["the rows are not those of before, plus one"])
    where = "without Spark" if spark is None else "on Spark"
    what = f"update of {rows // 100:,} of {rows:,} rows {where} / read and upsert"
    report.add(Line.timed("update", what, times["update"], times["parts"], target=_UPDATE_RATIO, detail=_detail()))


def measure_merge(report: Report, folder: Path, *, rows: int, rounds: int, spark: SparkSession) -> None:
    """A merge of 1 % of the rows, a tenth of them new, beside Delta's MERGE, by the same calls."""
    from delta.tables import DeltaTable

    original = _made(folder / "original", rows)
    keys = _spread(rows)
    frame = random_rows(np.random.default_rng(5), keys, 100)
    spark.createDataFrame(frame).write.mode("overwrite").parquet(str(folder / "source"))
    source = spark.read.parquet(str(folder / "source"))
    loaded = folder / "loaded-delta"
    if not loaded.exists():
        written = LakeTable.open(original, spark=spark).to_df().repartition(8).sortWithinPartitions("k")
        written.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(loaded))
    paths = {"lakemerge": folder / "ours", "delta": folder / "theirs", "upsert": folder / "upserted"}

    def fresh(name: str) -> Callable[[], None]:
        def copy() -> None:
            shutil.rmtree(paths[name], ignore_errors=True)
            shutil.copytree(loaded if name == "delta" else original, paths[name], copy_function=os.link)

        return copy

    def merge(builder: Any) -> None:
        builder.whenMatchedUpdateAll("source.ts >= target.ts").whenNotMatchedInsertAll().execute()

    def ours() -> None:
        merge(LakeTable.open(paths["lakemerge"], spark=spark).merge(source, "target.k = source.k"))

    def theirs() -> None:
        table = DeltaTable.forPath(spark, str(paths["delta"])).alias("target")
        merge(table.merge(source.alias("source"), "target.k = source.k"))

    def upsert() -> None:
        LakeTable.open(paths["upsert"], spark=spark).upsert(source)

    contenders = [
        Contender("delta", theirs, fresh("delta")),
        Contender("lakemerge", ours, fresh("lakemerge")),
        Contender("upsert", upsert, fresh("upsert")),
    ]
    times = interleave(contenders, rounds=rounds)
    what = f"merge of {len(keys):,} rows into {rows:,}"
    theirs_by_ours = f"Delta's MERGE / {what}"
    report.add(Line.timed("merge", theirs_by_ours, times["delta"], times["lakemerge"], target=1, at_least=True))
    report.add(Line.timed("merge", f"{what} / blind upsert of them", times["lakemerge"], times["upsert"]))
    expected = _sums(frame, original, rows)
    for name, found in {
        "lakemerge": LakeTable.open(paths["lakemerge"], spark=spark).to_df(),
        "delta": spark.read.format("delta").load(str(paths["delta"])),
    }.items():
        sums = tuple(found.selectExpr("count(*)", "sum(k)", "sum(i0)", "sum(ts)").collect()[0])
        report.check(f"merge, {name}", [] if sums == expected else [f"sums are {sums}, not {expected}"])


def _spread(rows: int) -> np.ndarray[Any, Any]:
    """Keys of 1 % of the rows: nine of ten are spread over all there are, the others are new."""
    there = np.arange(0, rows, 111)[: rows * 9 // 1000]
    return np.concatenate([there, np.arange(rows, rows + rows // 1000)])


def _sums(frame: pa.Table, original: Path, rows: int) -> tuple[int, int, int, int]:
    """Count, sum of keys, of ``i0`` and of ``ts`` after the merge: every source row is newer."""
    found = LakeTable.open(original).to_arrow(columns=["k", "i0", "ts"])
    left = found.filter(pc.invert(pc.is_in(found.column("k"), frame.column("k"))))
    both = [pa.concat_arrays([*left.column(name).chunks, *frame.column(name).chunks]) for name in ("k", "i0", "ts")]
    return len(both[0]), *(int(pc.sum(column).as_py()) for column in both)  # type: ignore[return-value]


def measure_memory(report: Report, folder: Path, *, rows: int, heap: str) -> None:
    """An update of all rows in a JVM with a small heap, against an upsert of as many rows: the largest resident memory
    of Python's processes, and how long it took."""
    original = _made(folder / "original", rows)
    found: dict[str, dict[str, float]] = {}
    for name in ("upsert", "update"):
        work = folder / name
        shutil.copytree(original, work, copy_function=os.link)
        command = [
            sys.executable,
            "-m",
            "benchmarks.transactions",
            "--child",
            name,
            "--path",
            str(work),
            "--heap",
            heap,
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        changed = LakeTable.open(work).to_arrow(columns=["i0"]).column("i0")
        whole = LakeTable.open(original).to_arrow(columns=["i0"]).column("i0")
        right = pc.sum(changed).as_py() == pc.sum(whole).as_py() + rows
        report.check(f"memory, {name}", [] if right else ["the rows are not those of before, plus one"])
        shutil.rmtree(work)
    what = f"update of {rows:,} rows on Spark with -Xmx{heap} / read and upsert of them"
    update, upsert = found["update"], found["upsert"]
    for part in ("driver", "workers"):
        value = Line(case="memory", what=f"{what}: {part}", unit="bytes", value=update[part], floor=upsert[part],
                     target=_MEMORY_RATIO)  # fmt: skip
        report.add(value)
    report.add(Line(case="memory", what=f"{what}: JVM", unit="bytes", value=update["Java"], floor=upsert["Java"]))
    report.add(Line(case="memory", what=what, unit="s", value=update["seconds"], floor=upsert["seconds"]))
    line = Line(case="memory", what=f"{what}: processors", unit="s", value=update["busy"], floor=upsert["busy"])
    report.add(replace(line, target=_UPDATE_RATIO))


def _child(name: str, path: Path, heap: str) -> None:
    """Change all rows of a table in a JVM of its own, and print the memory and the seconds."""
    with _session(path.parent / "spark", heap=heap) as spark, measured(0.1) as peak:
        table = LakeTable.open(path, spark=spark)
        started = time.perf_counter()
        if name == "update":
            table.update_where("true", {"i0": "i0 + 1"})
        else:
            table.upsert(table.to_df().selectExpr("k", "ts", "i0 + 1 AS i0", "i1", "i2", "f0", "f1", "d0", "s0", "s1"))
        seconds = time.perf_counter() - started
        busy = _busy_seconds(os.getpid())
    print(json.dumps({**peak.parts, "seconds": seconds, "busy": busy}))  # noqa: T201 - what the parent reads


def _busy_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """Processor time of a process and of its descendants, of those too that ended: what other work on the machine
    leaves as it is."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            values = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        parents[int(folder.name)] = int(values[1])
        ticks[int(folder.name)] = sum(map(int, values[11:15]))
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks.get(pid, 0) for pid in below) / os.sysconf("SC_CLK_TCK")


def _made(path: Path, rows: int) -> Path:
    """A table of the keys 0 to ``rows`` - 1, all in base files."""
    if path.exists():
        return path
    rng = np.random.default_rng(1)

    def base() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _CHUNK_ROWS):
            keys = np.arange(first, min(rows, first + _CHUNK_ROWS))
            yield from random_rows(rng, keys, 0).combine_chunks().to_batches()

    properties = {"lakemerge.maintenance": "off"}
    table = LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], buckets=8, properties=properties)
    table.upsert(pa.RecordBatchReader.from_batches(random_rows(rng, np.arange(0), 0).schema, base()))
    table.compact()
    return path


def _detail() -> dict[str, object]:
    return {"cores": usable_cores(), "at": datetime.now(UTC).isoformat(timespec="seconds")}


@contextmanager
def _session(scratch: Path, *, heap: str = "4g", delta: bool = False) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName("lakemerge-transactions")
        .master("local[2]")
        .config("spark.driver.memory", heap)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    if delta:
        from delta import configure_spark_with_delta_pip

        builder = configure_spark_with_delta_pip(
            builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.snapshotPartitions", "2")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=3_000_000, help="of the table that is updated and merged into")
    parser.add_argument("--memory-rows", type=int, default=10_000_000, help="that are updated with the small heap")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="update,merge,memory")
    parser.add_argument("--heap", default="700m")
    parser.add_argument("--child", choices=("update", "upsert"), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child is not None:
        _child(given.child, given.path, given.heap)
        return 0
    report, cases = Report(Console()), given.cases.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "update" in cases:
            measure_update(report, folder / "plain", rows=given.rows, rounds=given.rounds, spark=None)
        if {"update", "merge"} & set(cases):
            with _session(folder, delta=True) as spark:
                if "update" in cases:
                    measure_update(report, folder / "spark", rows=given.rows, rounds=given.rounds, spark=spark)
                if "merge" in cases:
                    measure_merge(report, folder / "merge", rows=given.rows, rounds=given.rounds, spark=spark)
        shutil.rmtree(folder / "spark", ignore_errors=True)
        shutil.rmtree(folder / "merge", ignore_errors=True)
        if "memory" in cases:
            measure_memory(report, folder / "memory", rows=given.memory_rows, heap=given.heap)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
