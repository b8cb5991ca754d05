"""Where the time of a load, an upsert and a compaction goes: on the driver, and inside its Python tasks.

The product has no timers. The driver's functions, and those that each Python task calls, run under ``cProfile``. A
phase is the cumulative time of some functions. Phases may contain each other; the indentation shows it.
"""

from __future__ import annotations

import cProfile
import pstats
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrameWriter

import compaction.run.group
import lakemerge.commits.compaction
import lakemerge.commits.rescale
import lakemerge.spark.load
import lakemerge.spark.transport.jobs
import lakemerge.spark.writer
import lakemerge.write.base_file
import lakemerge.write.pack
import lakemerge.write.upsert
import mergers.kernel
from benchmarks.foundation_cases import Bench
from lakemerge import Settings
from lakemerge._internal.cached import cached_property
from lakemerge.layout.view import TableView
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.write.frame import FramePlan

__all__ = ["IN_TASKS", "Phase", "profile", "profiled", "seconds_in"]

IN_TASKS = Settings(driver_bytes=1)
"""However small a table is, tasks of Spark do its services. Work on threads of the driver would be in no profile of a
task, and Python 3.12 has one profiler for all threads."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The cumulative time in ``functions``. None of them may call another one."""

    label: str
    functions: tuple[Callable[..., Any], ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    driver: tuple[Phase, ...]
    task: tuple[Phase, ...] = ()
    module: ModuleType | None = None
    """The module in which the driver finds the function that each task calls; ``function`` is its name."""
    function: str = ""
    streams: bool = False
    """Whether that function's first argument is the stream of batches from the JVM."""


def _arrow_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The stream from the JVM, under a name of its own."""
    yield from batches


def _getter(owner: type, name: str) -> Callable[..., Any]:
    """The function behind a cached property."""
    found = owner.__dict__[name]
    if not isinstance(found, cached_property):
        raise AssertionError(f"{owner.__name__}.{name} is not a cached property")
    return found.func


_PLANS = {
    "load": _Plan(
        driver=(
            Phase("plan", (lakemerge.write.upsert.Write.start, lakemerge.spark.writer._estimated_bytes)),
            Phase("Spark job: shuffle, sort, write", (DataFrameWriter.parquet,)),
            Phase("proof from keys and footers", (lakemerge.spark.load._check,)),
            Phase("commit", (lakemerge.spark.load._commit,)),
        )
    ),
    "upsert": _Plan(
        driver=(
            Phase("plan", (lakemerge.write.upsert.Write.start,)),
            Phase("Spark job", (lakemerge.spark.transport.jobs.collect_results,)),
            Phase("commit", (lakemerge.write.upsert.finish,)),
        ),
        task=(
            Phase("Arrow in", (_arrow_in,)),
            Phase("check and cast", (FramePlan.convert,)),
            Phase("file", (lakemerge.write.pack._write_file,)),
            Phase("  sort by bucket and key", (lakemerge.write.pack._arrange,)),
            Phase("  Parquet write", (pq.ParquetWriter.write_table, pq.ParquetWriter.close)),
        ),
        module=lakemerge.spark.writer,
        function="pack_partition",
        streams=True,
    ),
    "compact": _Plan(
        driver=(
            Phase("plan", (_getter(TableView, "file_slices"),)),
            Phase("reserve ordinals", (lakemerge.commits.rescale.reserve_ordinals,)),
            Phase("Spark job", (lakemerge.spark.transport.jobs.collect_results,)),
            Phase("commit", (lakemerge.commits.compaction.commit_compaction,)),
        ),
        task=(
            Phase("Parquet read", (ParquetFiles.stream,)),
            Phase("merge", (mergers.kernel.fold, mergers.kernel.overlay_rows)),
            Phase("Parquet write", (pq.ParquetWriter.write_table, pq.ParquetWriter.close)),
        ),
        module=compaction.run.group,
        function="run_job",
    ),
}


@dataclass(frozen=True, slots=True)
class _InTask:
    """Replaces a function that tasks call, and writes its profile into a folder. Picklable."""

    function: Callable[..., Any]
    folder: str
    streams: bool

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.streams:
            arguments = (_arrow_in(arguments[0]), *arguments[1:])
        collected = cProfile.Profile()
        try:
            return collected.runcall(self.function, *arguments, **options)
        finally:
            collected.dump_stats(f"{self.folder}/{uuid.uuid4().hex}.prof")


def profile(bench: Bench, cases: Sequence[str]) -> None:
    """Print the phases of ``cases``, if they have any."""
    inputs = bench.inputs
    if "load" in cases:
        source = bench.parquet(inputs.initial)
        _twice(bench, "load", "first upsert", lambda: partial(bench.create(bench.scratch / "profiled").upsert, source))
    if "upsert" in cases:
        table = bench.table("upserted", inputs.initial)
        for name in ("small", "large"):
            action = partial(table.upsert, bench.parquet(inputs.frame(name)))
            _twice(bench, "upsert", name, partial(_same, action))
    if "compact" in cases:
        _twice(bench, "compact", "dirty table", lambda: bench.copy(bench.dirty(), "profiled", IN_TASKS).compact)


def _twice(bench: Bench, case: str, name: str, ready: Callable[[], Callable[[], object]]) -> None:
    """Profile the action that ``ready`` makes: once to warm up, and once to print."""
    profiled(case, bench.scratch / "profiles", ready())
    _print(bench, case, name, *profiled(case, bench.scratch / "profiles", ready()))


def _same(action: Callable[[], object]) -> Callable[[], object]:
    return action


def profiled(case: str, folder: Path, action: Callable[[], object]) -> tuple[cProfile.Profile, list[pstats.Stats]]:
    """Run ``action``. Returns a profile of the driver, and one for each call in a task."""
    plan = _PLANS[case]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    driver = cProfile.Profile()
    if plan.module is None:
        driver.runcall(action)
        return driver, []
    stand_in = _InTask(getattr(plan.module, plan.function), str(folder), plan.streams)
    with mock.patch.object(plan.module, plan.function, stand_in):
        driver.runcall(action)
    return driver, [pstats.Stats(str(file)) for file in sorted(folder.iterdir())]


def seconds_in(stats: pstats.Stats, functions: Sequence[Callable[..., Any]]) -> float:
    """Cumulative seconds in some functions; 0 for those that were not called."""
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]  # not in its types
    total = 0.0
    for function in functions:
        if not isinstance(function, FunctionType):
            raise TypeError(f"{function!r} is not a Python function")
        code = function.__code__
        total += found.get((code.co_filename, code.co_firstlineno, code.co_name), (0, 0, 0.0, 0.0, None))[3]
    return total


def _print(bench: Bench, case: str, name: str, driver: cProfile.Profile, tasks: Sequence[pstats.Stats]) -> None:
    plan, report = _PLANS[case], bench.report
    stats = pstats.Stats(driver)
    total = _total(stats)
    report.say(f"profile of {case} ({name}): {total:.3f} s on the driver")
    times = {phase.label: seconds_in(stats, phase.functions) for phase in plan.driver}
    for label, seconds in {**times, "everything else": total - sum(times.values())}.items():
        report.say(f"  {label:<34}{seconds:8.3f} s")
    if tasks:
        busy = sum(map(_total, tasks))
        report.say(f"  in {len(tasks)} calls inside tasks{'':<18}{busy:8.3f} s, summed")
    for phase in plan.task:
        report.say(f"    {phase.label:<32}{sum(seconds_in(task, phase.functions) for task in tasks):8.3f} s")


def _total(stats: pstats.Stats) -> float:
    total: float = stats.total_tt  # type: ignore[attr-defined]  # not in its types
    return total
