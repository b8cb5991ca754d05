"""Where the time of a load, an upsert and a compaction goes: on the driver, and inside its Python tasks.

The product has no timers. The driver's action, and the function that each Python task calls, run under ``cProfile``.
Functions may call each other, and each has its cumulative time.
"""

from __future__ import annotations

import cProfile
import pstats
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import compaction.run.group
import lakemerge.spark.writer
from benchmarks.cases.foundation import Bench
from lakemerge import Settings

__all__ = ["IN_TASKS", "profile", "profiled"]

IN_TASKS = Settings(driver_bytes=1)
"""However small a table is, tasks of Spark do its services. Work on threads of the driver would be in no profile of a
task, and Python 3.12 has one profiler for all threads."""
_CALLED: Mapping[str, tuple[Any, str]] = {
    "upsert": (lakemerge.spark.writer, "pack_partition"),
    "compact": (compaction.run.group, "run_job"),
}
"""The function that each task calls, and the module in which the driver finds it."""
_SHOWN = ("lakemerge", "mergers", "compaction", "pyarrow", "pyspark")
"""Packages whose functions are printed."""
_MOST = 20


@dataclass(frozen=True, slots=True)
class _InTask:
    """Replaces a function that tasks call, and writes its profile into a folder. Picklable."""

    function: Callable[..., Any]
    folder: Path

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        collected = cProfile.Profile()
        try:
            return collected.runcall(self.function, *arguments, **options)
        finally:
            collected.dump_stats(self.folder / f"{uuid.uuid4().hex}.prof")


def profile(bench: Bench, parts: Sequence[str]) -> None:
    """Print what takes the time of those of ``parts`` that write."""
    inputs = bench.inputs
    actions: dict[tuple[str, str], Callable[[], Callable[[], object]]] = {}
    if "load" in parts:
        source = bench.parquet(inputs.initial)
        actions["load", "first upsert"] = lambda: partial(bench.create(bench.scratch / "profiled").upsert, source)
    if "upsert" in parts:
        table = bench.table("upserted", inputs.initial)
        for name in ("small", "large"):
            actions["upsert", name] = partial(partial, table.upsert, bench.parquet(inputs.frame(name)))
    if "compact" in parts:
        actions["compact", "dirty table"] = lambda: bench.copy(bench.dirty(), "profiled", IN_TASKS).compact
    for (part, name), ready in actions.items():
        profiled(part, bench.scratch / "profiles", ready())  # warms up
        for place, stats in profiled(part, bench.scratch / "profiles", ready()).items():
            total: float = stats.total_tt  # type: ignore[attr-defined]  # not in its types
            bench.report.say(f"profile of {part} ({name}): {total:.3f} s {place}")
            for function, seconds in _slowest(stats):
                bench.report.say(f"  {seconds:8.3f} s  {function}")


def profiled(part: str, folder: Path, action: Callable[[], object]) -> dict[str, pstats.Stats]:
    """Run ``action``. Gives the profile of the driver, and the sum of those of all calls in tasks."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    driver = cProfile.Profile()
    module, name = _CALLED.get(part, (None, ""))
    if module is None:
        driver.runcall(action)
    else:
        with mock.patch.object(module, name, _InTask(getattr(module, name), folder)):
            driver.runcall(action)
    found, tasks = {"on the driver": pstats.Stats(driver)}, sorted(map(str, folder.iterdir()))
    return {**found, f"in {len(tasks)} calls inside tasks": pstats.Stats(*tasks)} if tasks else found


def _slowest(stats: pstats.Stats) -> list[tuple[str, float]]:
    """The functions with the most cumulative time, and this time."""
    found: Mapping[tuple[str, int, str], Sequence[Any]] = stats.stats  # type: ignore[attr-defined]  # not in its types
    times: dict[str, float] = {}
    for (file, line, name), values in found.items():
        parts = Path(file).parts
        place = next((at for at, part in enumerate(parts) if part in _SHOWN), None)
        if place is not None:
            times[f"{'/'.join(parts[place:])}:{line} {name}"] = values[3]
    return sorted(times.items(), key=lambda item: -item[1])[:_MOST]
