"""Runs cases of one engine and its floor in one process, so in one JVM, and writes a file for each finished case.

    python -m benchmarks.compare.worker ENGINE CASE[,CASE...] --data FOLDER --tables FOLDER --results FOLDER ...

Started by ``python -m benchmarks.compare``, in the engine's own environment.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
            run(options.engine, Arena(engine, floor, workload, scratch), cases, options.results)
        finally:
            engine.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(name: str, arena: Arena, cases: Mapping[str, Callable[[Arena], Sequence[Row]]], results: Path) -> None:
    """Run cases in order; what one raises ends it, with the results of those before written."""
    engine: Engine = arena.engine
    for case, do in cases.items():
        started = time.perf_counter()
        with measured() as peak:
            rows = do(arena)
        CaseResult(
            engine=name,
            case=case,
            rows=tuple(rows),
            configuration=dict(engine.configuration),
            versions={**engine.versions, "python": sys.version.split()[0]},
            peak_memory_bytes=peak.bytes,
            seconds=time.perf_counter() - started,
        ).write(results)


def arguments(engine: str, cases: Sequence[str], data: Path, tables: Path, results: Path, of: Parameters) -> list[str]:
    """The command line of a worker, behind the interpreter."""
    numbers = {"scale": of.scale, "commits": of.commits, "rounds": of.rounds, "seed": of.seed}
    folders = {"data": data, "tables": tables, "results": results}
    options = [part for name, value in {**folders, **numbers}.items() for part in (f"--{name}", str(value))]
    return ["-m", "benchmarks.compare.worker", engine, ",".join(cases), *options]


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.worker")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("cases")
    for name in ("data", "tables", "results"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, kind in {"scale": float, "commits": int, "rounds": int, "seed": int}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
