"""Runs cases of one engine and its floor in one process, so in one JVM, and writes a file for each finished case.

    python -m benchmarks.compare.worker ENGINE CASE[,CASE...] --data FOLDER --tables FOLDER --results FOLDER ...

Started by ``python -m benchmarks.compare``, in the engine's own environment.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from benchmarks.compare.book import Arena
from benchmarks.compare.cases import CASES
from benchmarks.compare.engine import Engine
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.memory import measured
from benchmarks.compare.results import CaseResult, Row
from benchmarks.compare.workload import Parameters, Workload

__all__ = ["arguments", "main", "run"]


def main(given: Sequence[str] | None = None) -> None:
    options = _options(given)
    parameters = Parameters(scale=options.scale, commits=options.commits, rounds=options.rounds, seed=options.seed)
    workload = Workload.open(options.data, parameters)
    options.tables.mkdir(parents=True, exist_ok=True)
    # Part of a table's name in SQL.
    scratch = Path(tempfile.mkdtemp(prefix="run_", dir=options.tables.resolve()))
    try:
        engine, floor = ENGINES[options.engine].make(scratch)
        try:
            cases = {name: CASES[name] for name in options.cases.split(",")}
            arena = Arena(engine, floor, workload, scratch)
            run(options.engine, arena, cases, options.results, minutes=options.minutes)
        finally:
            engine.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(
    name: str,
    arena: Arena,
    cases: Mapping[str, Callable[[Arena], Sequence[Row]]],
    results: Path,
    *,
    minutes: float = math.inf,
) -> None:
    """Run cases in order. An error of a case ends the run; the results of the cases before are written. A case that
    takes longer than ``minutes`` is given up, and ends the run, too, because the engine may be in the middle of
    something."""
    engine: Engine = arena.engine
    for case, do in cases.items():
        started, given_up, rows = time.perf_counter(), None, tuple[Row, ...]()
        with measured() as peak:
            try:
                with _at_most(minutes):
                    rows = tuple(do(arena))
            except _TakesTooLong:
                given_up = f"not done in {minutes:g} minutes"
        CaseResult(
            engine=name,
            case=case,
            rows=rows,
            configuration=dict(engine.configuration),
            versions={**engine.versions, "python": sys.version.split()[0]},
            peak_memory_bytes=peak.bytes,
            peak_memory_parts=peak.parts,
            seconds=time.perf_counter() - started,
            given_up=given_up,
        ).write(results)
        if given_up:
            return


class _TakesTooLong(BaseException):  # no Exception, so that engines do not catch it
    pass


@contextlib.contextmanager
def _at_most(minutes: float) -> Iterator[None]:
    """Raise :class:`_TakesTooLong` after so many minutes. It works only in the main thread, because it uses a
    signal."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _TakesTooLong

    if math.isinf(minutes):
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, minutes * 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def arguments(
    engine: str, cases: Sequence[str], data: Path, tables: Path, results: Path, of: Parameters, minutes: float
) -> list[str]:
    """The command line of a worker, without the interpreter."""
    numbers = {"scale": of.scale, "commits": of.commits, "rounds": of.rounds, "seed": of.seed, "minutes": minutes}
    folders = {"data": data, "tables": tables, "results": results}
    options = [part for name, value in {**folders, **numbers}.items() for part in (f"--{name}", str(value))]
    return ["-m", "benchmarks.compare.worker", engine, ",".join(cases), *options]


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.worker")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("cases")
    for name in ("data", "tables", "results"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, kind in {"scale": float, "commits": int, "rounds": int, "seed": int, "minutes": float}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
