"""Merge sources: a full run beside Spark's join of the same tables, and runs over what changed."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.cases.people import RULES, SCHEMAS, People, union_find
from benchmarks.elsewhere import Elsewhere, peak_bytes
from benchmarks.harness import Run, session
from benchmarks.measure import Report, usable_cores
from benchmarks.tables import counted
from lakemerge import LakeTable, Settings
from lakemerge.merge_source import MergeConfig, MergeSource, run_plans
from lakemerge.merge_source.inputs import Access
from lakemerge.merge_source.run import Tables
from lakemerge.merge_source.state import STATE_SETTINGS
from lakemerge.testing.counting import CountingStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["first_run", "merge_source", "peak_bytes", "problems_of"]

_FULL_RATIO, _SECONDS, _BYTES_RATIO = 3.0, 5.0, 1.5
_FEW, _TENTH = 10, 10
_HUB_RATIO = 1.2
"""Noise, for what should cost the same."""
_PUBLISHED_SECONDS, _ENTITIES_RATIO = 4.7, 2.0
"""The published median of a plain run over 1,000 changed rows, and what entities may take beside it."""
_SHARE_CHANGED = 10_000
_ROWS_PER_OVERRIDE = 1_000
_SURVIVORSHIP: Mapping[str, object] = {
    "name": "longest",
    "source": "most_frequent",
    "amount": {"newest": "id"},
    "score": {"expression": "old.score + new.score"},
}


def merge_source(
    run: Run,
    *,
    rows: Annotated[int, "of each of the three tables"] = 1_000_000,
    changed: Annotated[int, "rows that change before a run"] = 1_000,
    rounds: Annotated[int, "runs over what changed"] = 3,
    spark: Annotated[bool, "also time Spark's join, and a full run in Spark's tasks"] = True,
) -> None:
    """Merge sources: a full run beside Spark's join of the same tables, and runs over what changed.

    Three tables, two rules. After each run the output's clusters are compared with those of a union-find over all rows.
    A full run may take 3x the time in which Spark reads the three tables, joins them by the rules' values and writes
    them once. A run over changed rows may take 5 s without Spark, and may read 1.5x the bytes that it reads of tables a
    tenth as large. A value that all rows of one table hold may cost no more than a value of each row of its own.
    With stable ids, overrides and survivorship, a run over one changed row in 10,000 may take 2x what a plain run over
    1,000 took.
    """
    report = run.report
    large = _made(report, run.folder / "large", f"full, 3 x {rows:,} rows", People.drawn(rows))
    what = f"full run of 3 x {rows:,} rows"
    cores = {"cores": usable_cores()}
    report.value("full", f"{what}: peak memory, without Spark", "bytes", large.peak_bytes)
    if spark:
        with session(run.folder, {"spark.sql.shuffle.partitions": "200"}) as started:
            floor, in_tasks = _spark_join(started, large), _full_in_tasks(report, large, started)
        report.value("full", what, "s", large.full_seconds, floor, target=_FULL_RATIO, detail=cores)
        report.value("full", f"{what}, in Spark's tasks", "s", in_tasks, floor, detail=cores)
    else:
        report.value("full", f"{what}, without Spark", "s", large.full_seconds, detail=cores)
    small = _made(report, run.folder / "small", "full, a tenth", People.drawn(rows // _TENTH))
    hub = _made(report, run.folder / "hub", "full, one value", People.drawn(rows, alone="one"))
    each = _made(report, run.folder / "each", "full, as many values", People.drawn(rows, alone="each"))
    what = f"all of one table hold one value: full run of 3 x {rows:,} rows"
    report.value("hub", what, "s", hub.full_seconds, each.full_seconds, target=_HUB_RATIO)
    for count in (changed, _FEW):
        for kept in (large, small, hub, each):
            kept.seconds, kept.bytes_read = [], []
            for _ in range(rounds):
                kept.changed_run(report, f"{count} changed rows in {kept.folder.name}", count)
        target = _SECONDS if count == changed else None
        report.timed("changes", f"a run over {count:,} changed rows", large.seconds, target=target)
        read = [statistics.median(kept.bytes_read) for kept in (large, small)]
        what = f"bytes read by it, against a tenth of the rows ({count:,} changed)"
        report.value("changes", what, "bytes", read[0], read[1], target=_BYTES_RATIO)
        what = f"all of one table hold one value: {count:,} changed rows"
        report.timed("hub", what, hub.seconds, each.seconds, target=_HUB_RATIO)
    what = f"stable ids, overrides and survivorship: a run over 1 of {_SHARE_CHANGED:,} rows"
    seconds = _entities(run.folder / "entities", rows, rounds)
    report.timed("entities", what, seconds, [_PUBLISHED_SECONDS], target=_ENTITIES_RATIO)


def _entities(folder: Path, rows: int, rounds: int) -> list[float]:
    """The seconds of runs of a source with stable ids, overrides and survivorship over what changed."""
    people = People.drawn(rows)
    folder.mkdir(parents=True)
    tables = people.create(folder)
    count, names, lots = max(1, rows // _ROWS_PER_OVERRIDE), list(SCHEMAS), np.random.default_rng(1)
    columns = "left_dataset STRING, left_id STRING, right_dataset STRING, right_id STRING, verdict STRING"
    overrides = LakeTable.create(folder / "overrides", f"nr BIGINT, {columns}", key=["nr"])
    sides = [pa.array(lots.integers(0, rows, count)).cast(pa.string()) for _ in "12"]
    verdicts = ["different" if number % 2 else "same" for number in range(count)]
    frame = [pa.array(range(count)), [names[0]] * count, sides[0], [names[1]] * count, sides[1], verdicts]
    overrides.upsert(pa.table(frame, names=overrides.schema.names))
    config = MergeConfig(
        datasets={name: folder / name for name in SCHEMAS},
        equality=list(RULES),
        identity="stable",
        overrides=overrides,
        survivorship=_SURVIVORSHIP,
    )
    MergeSource.create(folder / "out", config).run()
    seconds = []
    for _ in range(rounds):
        people.change(tables, max(len(tables), rows * len(tables) // _SHARE_CHANGED))
        source = MergeSource.open(folder / "out")
        started = time.perf_counter()
        source.run()
        seconds.append(time.perf_counter() - started)
    return seconds


@dataclass
class _Kept:
    """A source that stays from run to run."""

    folder: Path
    people: People
    tables: Mapping[str, LakeTable]
    full_seconds: float
    peak_bytes: int
    seconds: list[float] = field(default_factory=list)
    bytes_read: list[int] = field(default_factory=list)

    def changed_run(self, report: Report, what: str, rows: int) -> None:
        """Change rows, and take that up with stores that count and nothing in memory from before."""
        self.people.change(self.tables, rows)
        source, stores = _counted(self.folder)
        started = time.perf_counter()
        source.run()
        self.seconds.append(time.perf_counter() - started)
        self.bytes_read.append(sum(store.counts().bytes_read for store in stores))
        report.check(what, problems_of(self.people, self.folder))


def _spark_join(spark: SparkSession, kept: _Kept) -> float:
    """Spark's time to read the tables, join them by the rules' values, and write them once; the second time."""

    def frame(name: str) -> DataFrame:
        table = LakeTable.open(kept.folder / name, spark=spark).to_df()
        return table.toDF(*(f"{name}_{column}" for column in table.columns))

    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        a, b, c = (frame(name) for name in SCHEMAS)
        joined = a.join(b, a.a_email == b.b_mail, "full").join(c, b.b_phone == c.c_phone, "full")
        joined.write.mode("overwrite").parquet(str(kept.folder / "joined"))
        seconds = time.perf_counter() - started
    shutil.rmtree(kept.folder / "joined")
    return seconds


def _full_in_tasks(report: Report, kept: _Kept, spark: SparkSession) -> float:
    """The time of a full run that goes through Spark although the tables are small; the second time."""
    limit, run_plans.SPARK_FROM_BYTES = run_plans.SPARK_FROM_BYTES, 0
    seconds = 0.0
    for name in ("warm", "on_spark"):
        source = MergeSource.create(kept.folder / name, _config(kept.folder), spark=spark)
        started = time.perf_counter()
        source.run()
        seconds = time.perf_counter() - started
    run_plans.SPARK_FROM_BYTES = limit
    report.check("full, in Spark's tasks", problems_of(kept.people, kept.folder, output="on_spark"))
    return seconds


def _made(report: Report, folder: Path, what: str, people: People) -> _Kept:
    """A source after its first run, which has a process of its own, so that its peak of memory can be told."""
    folder.mkdir(parents=True)
    tables = people.create(folder)
    MergeSource.create(folder / "out", _config(folder))
    with Elsewhere(__name__) as process:
        seconds = process.ask("first_run", path=str(folder / "out"))
        peak = process.ask("peak_bytes")
    report.check(what, problems_of(people, folder))
    return _Kept(folder, people, tables, seconds, peak)


def first_run(path: str) -> float:
    source = MergeSource.open(path)
    started = time.perf_counter()
    source.run()
    return time.perf_counter() - started


def _config(folder: Path) -> MergeConfig:
    return MergeConfig(datasets={name: folder / name for name in SCHEMAS}, equality=list(RULES))


def _counted(folder: Path) -> tuple[MergeSource, list[CountingStore]]:
    """The source, opened anew, whose every table counts what is read of it."""
    stores: list[CountingStore] = []

    def opened(name: str, settings: Settings | None = None) -> LakeTable:
        table, store = counted(folder / name, settings)
        stores.append(store)
        return table

    config = MergeConfig(datasets={name: opened(name) for name in SCHEMAS}, equality=list(RULES))
    return MergeSource(Tables(opened("out"), opened("out_state", STATE_SETTINGS), Access()), config), stores


def problems_of(people: People, folder: Path, *, output: str = "out") -> Sequence[str]:
    """How the clusters of the output differ from those that a union-find makes."""
    roots = union_find(people)
    rows = LakeTable.open(folder / output).to_arrow(columns=["_members"], filter="NOT _deleted")
    lists = rows.column("_members").combine_chunks()
    members = pc.list_flatten(lists)
    datasets = members.field("dataset").to_numpy()
    places = members.field("id").cast(pa.int64()).to_numpy()
    problems = []
    if len(np.unique(datasets * people.rows + places)) != len(places) or len(places) != len(SCHEMAS) * people.rows:
        problems.append(f"{len(places)} members, of which some are twice or missing")
    root = np.stack([roots[name] for name in SCHEMAS])[datasets, places]
    cluster = pc.list_parent_indices(lists).to_numpy()
    apart = int((root[1:] != root[:-1])[cluster[1:] == cluster[:-1]].sum())
    if apart:
        problems.append(f"{apart} entities are in a cluster with others that are not the same")
    if (expected := len(np.unique(root))) != rows.num_rows:
        problems.append(f"{rows.num_rows} clusters, not {expected}")
    return problems
