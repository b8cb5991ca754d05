"""Merge sources: a full run beside Spark's join of the same tables, and runs over what changed.

Three tables of ``--rows`` rows, two rules. After each run the output's clusters are compared with those of a
union-find over all rows. A full run may take 3x the time in which Spark reads the three tables, joins them by the
rules' values and writes them once. A run over ``--changed`` changed rows may take 5 s without Spark. It may read 1.5x
the bytes that it reads of tables a tenth as large. A value that all rows of one table hold may cost no more than a
value of each row of its own.

    python -m benchmarks.merge_source --rows 1000000
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from benchmarks.measure import Line, Report, usable_cores
from benchmarks.merge_source_data import RULES, SCHEMAS, People, union_find
from lakemerge import LakeTable, Settings
from lakemerge.merge_source import MergeConfig, MergeSource, run_plans
from lakemerge.merge_source.inputs import Access
from lakemerge.merge_source.run import Tables
from lakemerge.merge_source.state import STATE_SETTINGS
from lakemerge.testing.counting import CountingStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main", "measure", "problems_of"]

_FULL_RATIO = 3.0
_SECONDS = 5.0
_BYTES_RATIO = 1.5
_FEW = 10
_TENTH = 10
_HUB_RATIO = 1.2
"""Noise, for what should cost the same."""


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


def measure(report: Report, folder: Path, *, rows: int, changed: int, rounds: int, spark: SparkSession | None) -> None:
    """Time and count all cases, and compare each outcome with the union-find's."""
    large = _made(report, folder / "large", f"full, 3 x {rows:,} rows", People.drawn(rows))
    _full(report, large, rows, spark)
    small = _made(report, folder / "small", "full, a tenth", People.drawn(rows // _TENTH))
    hub = _made(report, folder / "hub", "full, one value", People.drawn(rows, alone="one"))
    each = _made(report, folder / "each", "full, as many values", People.drawn(rows, alone="each"))
    what = f"all of one table hold one value: full run of 3 x {rows:,} rows"
    line = Line(case="hub", what=what, unit="s", value=hub.full_seconds, floor=each.full_seconds, target=_HUB_RATIO)
    report.add(line)
    for count in (changed, _FEW):
        for kept in (large, small, hub, each):
            kept.seconds, kept.bytes_read = [], []
            for _ in range(rounds):
                kept.changed_run(report, f"{count} changed rows in {kept.folder.name}", count)
        target = _SECONDS if count == changed else None
        report.add(Line.timed("changes", f"a run over {count:,} changed rows", large.seconds, target=target))
        report.add(_read_more(f"bytes read by it, against a tenth of the rows ({count:,} changed)", large, small))
        what = f"all of one table hold one value: {count:,} changed rows"
        report.add(Line.timed("hub", what, hub.seconds, each.seconds, target=_HUB_RATIO))


def _read_more(what: str, large: _Kept, small: _Kept) -> Line:
    values = [statistics.median(kept.bytes_read) for kept in (large, small)]
    return Line(case="changes", what=what, unit="bytes", value=values[0], floor=values[1], target=_BYTES_RATIO)


def _full(report: Report, kept: _Kept, rows: int, spark: SparkSession | None) -> None:
    what = f"full run of 3 x {rows:,} rows"
    cores = {"cores": usable_cores()}
    report.add(Line(case="full", what=f"{what}: peak memory, without Spark", unit="bytes", value=kept.peak_bytes))
    if spark is None:
        report.add(Line(case="full", what=f"{what}, without Spark", unit="s", value=kept.full_seconds, detail=cores))
        return
    floor = _spark_join(spark, kept)
    in_tasks = _full_in_tasks(report, kept, spark)
    for name, value, target in (("", kept.full_seconds, _FULL_RATIO), (", in Spark's tasks", in_tasks, None)):
        line = Line(case="full", what=f"{what}{name}", unit="s", value=value, floor=floor, target=target)
        report.add(replace(line, detail=cores))


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
    run_plans.SPARK_FROM_BYTES = 0
    seconds = 0.0
    for name in ("warm", "on_spark"):
        source = MergeSource.create(kept.folder / name, _config(kept.folder), spark=spark)
        started = time.perf_counter()
        source.run()
        seconds = time.perf_counter() - started
    report.check("full, in Spark's tasks", problems_of(kept.people, kept.folder, output="on_spark"))
    return seconds


def _made(report: Report, folder: Path, what: str, people: People) -> _Kept:
    """A source after its first run, which has a process of its own, so that its peak of memory can be told."""
    folder.mkdir(parents=True)
    tables = people.create(folder)
    MergeSource.create(folder / "out", _config(folder))
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        seconds, peak = pool.apply(_first_run, (folder,))
    report.check(what, problems_of(people, folder))
    return _Kept(folder, people, tables, seconds, peak)


def _first_run(folder: Path) -> tuple[float, int]:
    source = MergeSource.open(folder / "out")
    started = time.perf_counter()
    source.run()
    seconds = time.perf_counter() - started
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _config(folder: Path) -> MergeConfig:
    return MergeConfig(datasets={name: folder / name for name in SCHEMAS}, equality=list(RULES))


def _counted(folder: Path) -> tuple[MergeSource, list[CountingStore]]:
    """The source, opened anew, whose every table counts what is read of it."""
    stores: list[CountingStore] = []

    def opened(name: str, settings: Settings | None = None) -> LakeTable:
        table = LakeTable.open(folder / name, settings=settings)
        store = CountingStore(table.handle.store)
        stores.append(store)
        handle = replace(table.handle, store=store, log=type(table.handle.log)(store))
        return LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)

    config = MergeConfig(datasets={name: opened(name) for name in SCHEMAS}, equality=list(RULES))
    tables = Tables(opened("out"), opened("out_state", STATE_SETTINGS), Access())
    return MergeSource(tables, config), stores


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


def _session(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("lakemerge-merge-source").master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each of the three tables")
    parser.add_argument("--changed", type=int, default=1_000, help="rows that change before a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs over what changed; medians are told")
    parser.add_argument("--no-spark", action="store_true")
    given = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = None if given.no_spark else _session(folder)
        measure(report, folder, rows=given.rows, changed=given.changed, rounds=given.rounds, spark=spark)
        if spark is not None:
            spark.stop()
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
