"""Updates and merges of rows: against the read and the upsert that they consist of, and against Delta's MERGE."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.compare.memory import measured
from benchmarks.elsewhere import elsewhere
from benchmarks.harness import Rounds, Run, session
from benchmarks.measure import Contender, interleave
from benchmarks.tables import copied, loaded, random_rows
from lakemerge import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["change_all", "transactions"]

_UPDATE_RATIO = 1.3
_MEMORY_RATIO = 1.1
"""Noise, for what should take the same."""
_PLUS_ONE = ("k", "ts", "i0 + 1 AS i0", "i1", "i2", "f0", "f1", "d0", "s0", "s1")


def transactions(
    run: Run,
    *,
    rows: Annotated[int, "of the table that is updated and merged into"] = 3_000_000,
    memory_rows: Annotated[int, "that are updated with the small heap"] = 10_000_000,
    rounds: Rounds = 5,
    parts: Annotated[tuple[str, ...], "what to time"] = ("arrow", "spark", "merge", "memory"),
    heap: Annotated[str, "of the JVM whose update's memory is measured"] = "700m",
) -> None:
    """Updates and merges of rows, beside the read and the upsert that they consist of, and Delta's MERGE.

    An update of 1 % of the rows, by a range of keys, may take 1.3x the time of reading these rows and of upserting
    them. The merge of 1 % of the rows is timed beside Delta's MERGE of the same source into the same rows;
    ``benchmarks.compare`` has Iceberg's. Last, all rows are updated in a JVM of ``heap``, and the largest resident
    memory of its Python processes is compared with that of an upsert of the same rows. Every outcome is compared with
    plain arithmetic on the rows.
    """
    if "arrow" in parts:
        _update(run, run.folder / "plain", rows, rounds, None)
    if {"spark", "merge"} & set(parts):
        with session(run.folder, delta=True) as spark:
            if "spark" in parts:
                _update(run, run.folder / "spark", rows, rounds, spark)
            if "merge" in parts:
                _merge(run, run.folder / "merge", rows, rounds, spark)
    if "memory" in parts:
        _memory(run, run.folder / "memory", memory_rows, heap)


def _update(run: Run, folder: Path, rows: int, rounds: int, spark: SparkSession | None) -> None:
    original = _made(folder / "original", rows)
    low, high = rows // 2, rows // 2 + rows // 100 - 1
    between = f"k BETWEEN {low} AND {high}"
    tables: dict[str, LakeTable] = {}

    def fresh(name: str) -> Callable[[], None]:
        def copy() -> None:
            tables[name] = LakeTable.open(copied(original, folder / name), spark=spark)

        return copy

    def read_and_upsert() -> None:
        table = tables["parts"]
        if spark is None:
            found = table.to_arrow(filter=between)
            place = found.column_names.index("i0")
            table.upsert(found.set_column(place, "i0", pc.add(found.column("i0"), 1)))
        else:
            # Kept between, as whoever reads and then writes has the rows.
            frame = table.to_df(filter=between).localCheckpoint(eager=True)
            table.upsert(frame.withColumn("i0", frame.i0 + 1))

    contenders = [
        Contender("update", lambda: tables["update"].update_where(between, {"i0": "i0 + 1"}), fresh("update")),
        Contender("parts", read_and_upsert, fresh("parts")),
    ]
    times = interleave(contenders, rounds=rounds)
    before = LakeTable.open(original).to_arrow(columns=["k", "i0"]).sort_by("k")
    changed = pc.and_(pc.greater_equal(before["k"], low), pc.less_equal(before["k"], high))
    expected = pc.add(before["i0"], pc.cast(changed, pa.int64()))
    for name, table in tables.items():
        after = table.to_arrow(columns=["k", "i0"]).sort_by("k")
        same = after["k"].equals(before["k"]) and after["i0"].equals(expected)
        run.report.check(name, [] if same else ["the rows are not those of before, plus one"])
    what = f"update of {rows // 100:,} of {rows:,} rows {'without Spark' if spark is None else 'on Spark'}"
    run.report.timed("update", f"{what} / read and upsert", times["update"], times["parts"], target=_UPDATE_RATIO)


def _merge(run: Run, folder: Path, rows: int, rounds: int, spark: SparkSession) -> None:
    """A merge of 1 % of the rows, a tenth of them new, beside Delta's MERGE, by the same calls."""
    from delta.tables import DeltaTable

    original, keys = _made(folder / "original", rows), _spread(rows)
    frame = random_rows(np.random.default_rng(5), keys, 100)
    spark.createDataFrame(frame).write.parquet(str(folder / "source"))
    source = spark.read.parquet(str(folder / "source"))
    theirs = LakeTable.open(original, spark=spark).to_df().repartition(8).sortWithinPartitions("k")
    theirs.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(folder / "loaded"))

    def merge(builder: Any) -> None:
        builder.whenMatchedUpdateAll("source.ts >= target.ts").whenNotMatchedInsertAll().execute()

    def by_delta() -> None:
        table = DeltaTable.forPath(spark, str(folder / "delta")).alias("target")
        merge(table.merge(source.alias("source"), "target.k = source.k"))

    def ours(name: str) -> LakeTable:
        return LakeTable.open(folder / name, spark=spark)

    contenders = [
        Contender("delta", by_delta, lambda: copied(folder / "loaded", folder / "delta")),
        Contender(
            "lakemerge",
            lambda: merge(ours("lakemerge").merge(source, "target.k = source.k")),
            lambda: copied(original, folder / "lakemerge"),
        ),
        Contender("upsert", lambda: ours("upsert").upsert(source), lambda: copied(original, folder / "upsert")),
    ]
    times = interleave(contenders, rounds=rounds)
    what = f"merge of {len(keys):,} rows into {rows:,}"
    run.report.timed("merge", f"Delta's MERGE / {what}", times["delta"], times["lakemerge"], target=1, at_least=True)
    run.report.timed("merge", f"{what} / blind upsert of them", times["lakemerge"], times["upsert"])
    expected = _sums(frame, original)
    found = {name: ours(name).to_df() for name in ("lakemerge", "upsert")}
    for name, rows_of in {**found, "delta": spark.read.format("delta").load(str(folder / "delta"))}.items():
        sums = tuple(rows_of.selectExpr("count(*)", "sum(k)", "sum(i0)", "sum(ts)").collect()[0])
        run.report.check(f"merge, {name}", [] if sums == expected else [f"sums are {sums}, not {expected}"])


def _spread(rows: int) -> npt.NDArray[np.int64]:
    """Keys of 1 % of the rows: nine of ten are spread over all there are, the others are new."""
    there = np.arange(0, rows, 111)[: rows * 9 // 1000]
    return np.concatenate([there, np.arange(rows, rows + rows // 1000)])


def _sums(frame: pa.Table, original: Path) -> tuple[int, ...]:
    """Count, sum of keys, of ``i0`` and of ``ts`` after the merge: every source row is newer."""
    found = LakeTable.open(original).to_arrow(columns=["k", "i0", "ts"])
    left = found.filter(pc.invert(pc.is_in(found.column("k"), frame.column("k"))))
    both = pa.concat_tables([left, frame.select(left.column_names).cast(left.schema)])
    return both.num_rows, *(int(pc.sum(column).as_py()) for column in both.columns)


def _memory(run: Run, folder: Path, rows: int, heap: str) -> None:
    original = _made(folder / "original", rows)
    total = pc.sum(LakeTable.open(original).to_arrow(columns=["i0"]).column("i0")).as_py()
    found: dict[str, dict[str, float]] = {}
    for name in ("upsert", "update"):
        work = copied(original, folder / "work")
        found[name] = elsewhere("benchmarks.cases.transactions", "change_all", name=name, path=str(work), heap=heap)
        changed = pc.sum(LakeTable.open(work).to_arrow(columns=["i0"]).column("i0")).as_py()
        right = changed == total + rows
        run.report.check(f"memory, {name}", [] if right else ["the rows are not those of before, plus one"])
    what = f"update of {rows:,} rows on Spark with -Xmx{heap} / read and upsert of them"
    update, upsert = found["update"], found["upsert"]
    for part, target in (("driver", _MEMORY_RATIO), ("workers", _MEMORY_RATIO), ("Java", None)):
        run.report.value("memory", f"{what}: {part}", "bytes", update[part], upsert[part], target=target)
    run.report.value("memory", what, "s", update["seconds"], upsert["seconds"])
    run.report.value("memory", f"{what}: processors", "s", update["busy"], upsert["busy"], target=_UPDATE_RATIO)


def change_all(name: str, path: str, heap: str) -> dict[str, float]:
    """Change all rows of a table in a JVM of its own; the memory and the seconds."""
    settings = {"spark.driver.memory": heap}
    with session(Path(path).parent / "spark", settings) as spark, measured(0.1) as peak:
        table = LakeTable.open(path, spark=spark)
        started = time.perf_counter()
        if name == "update":
            table.update_where("true", {"i0": "i0 + 1"})
        else:
            table.upsert(table.to_df().selectExpr(*_PLUS_ONE))
        seconds = time.perf_counter() - started
        busy = _busy_seconds(os.getpid())
    return {**peak.parts, "seconds": seconds, "busy": busy}


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
    loaded(path, rows, np.random.default_rng(1), buckets=8).compact()
    return path
