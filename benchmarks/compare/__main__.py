"""LakeMerge and its peers on one workload, one machine and the same data.

    python -m benchmarks.compare --scale 0.1 --engines lakemerge,delta,iceberg --cases history,sizes,longevity

Each engine runs in a process of its own, with its floor in the same session. Every state and answer is compared
with what DuckDB computes from the input; a wrong one voids its row. A run that was interrupted, or whose workers
failed, goes on where it stopped. The exit status is 1 when an answer was wrong or a worker failed. What each case
measures: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.compare.cases import CASES
from benchmarks.compare.engines import CORE, ENGINES, FULL
from benchmarks.compare.plots import draw
from benchmarks.compare.report import Comparison, markdown
from benchmarks.compare.results import CaseResult
from benchmarks.compare.worker import arguments
from benchmarks.compare.workload import Parameters, Workload
from benchmarks.measure import usable_cores

__all__ = ["compared", "main"]

_ROOT = Path(__file__).resolve().parents[2]
_CORE_CASES = ("history", "sizes", "merge", "longevity")
_TAIL_LINES = 15
_JAVA_FRAME = "\tat "

Start = Callable[[str, Sequence[str], Path], int]
"""Runs a worker for an engine and cases, with a file for what it prints; its exit status."""


def main(given: Sequence[str] | None = None) -> int:
    """Run the comparison; the exit status is 0 when every answer was right and every case finished."""
    options = _options(given)
    parameters = Parameters(scale=options.scale, commits=options.commits, rounds=options.rounds, seed=options.seed)
    root: Path = options.path.resolve()
    data = root / "data"
    data.mkdir(parents=True, exist_ok=True)
    _say(f"preparing line items of scale {parameters.scale:g}")
    workload = Workload.prepare(data, parameters)
    state = root / "compare" / parameters.folder
    state.mkdir(parents=True, exist_ok=True)

    def start(engine: str, cases: Sequence[str], log: Path) -> int:
        python = ENGINES[engine].python(options.environments.absolute())
        if not python.exists():
            log.write_text(f"there is no {python}: `make bench` and `make bench-full` make it\n")
            return 1
        command = [str(python), *arguments(engine, cases, data, state / "tables", state, parameters, options.minutes)]
        with log.open("w") as out:
            return subprocess.run(command, check=False, cwd=_ROOT, stdout=out, stderr=subprocess.STDOUT).returncode

    results = [
        result for engine in options.engines for result in compared(engine, options.cases, state, start, say=_say)
    ]
    date = dt.datetime.now(dt.UTC).date().isoformat()
    comparison = Comparison(
        name=options.name or date,
        date=date,
        parameters=parameters,
        rows=workload.initial_rows,
        machine={
            "cores": usable_cores(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "platform": platform.platform(),
        },
        results=results,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    comparison.write(options.out / f"{comparison.name}.json")
    table = markdown(comparison)
    (options.out / f"{comparison.name}.md").write_text(table)
    draw(comparison, options.out)
    _say(table)
    for problem in comparison.problems:
        _say(f"WRONG {problem}")
    for failure in comparison.failures:
        _say(f"FAILED {failure}")
    if not comparison.failures:
        shutil.rmtree(state)
    return 1 if comparison.problems or comparison.failures else 0


def compared(
    engine: str, cases: Sequence[str], state: Path, start: Start, *, say: Callable[[str], object]
) -> list[CaseResult]:
    """The results of an engine's cases: those that ``state`` has from an interrupted run, and the rest from
    workers. A case that ends its worker has failed, and another worker goes on with the next."""
    failed: dict[str, CaseResult] = {}
    log = state / f"{engine}.log"
    while left := [case for case in cases if case not in failed and not CaseResult.read(state, engine, case)]:
        say(f"{engine}: {', '.join(left)}")
        started = time.monotonic()
        status = start(engine, left, log)
        say(f"{engine}: {time.monotonic() - started:,.0f} s")
        broken = next((case for case in left if not CaseResult.read(state, engine, case)), None)
        if broken is not None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(_JAVA_FRAME)]
            tail = "\n".join(lines[-_TAIL_LINES:])
            failed[broken] = CaseResult(engine=engine, case=broken, failure=f"exit status {status}:\n{tail}")
            say(f"{engine}: {broken} failed with {failed[broken].failure}")
    found = {case: failed.get(case) or CaseResult.read(state, engine, case) for case in cases}
    return [result for result in found.values() if result is not None]


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        asked = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in asked if name not in known]
        if unknown or not asked:
            raise argparse.ArgumentTypeError(f"there are {', '.join(known)}; not {', '.join(unknown) or 'none'}")
        return asked

    return parse


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor (default 0.1: 600,000 rows)")
    parser.add_argument(
        "--engines", type=_names(list(ENGINES)), default=list(CORE), help=f"of {','.join(ENGINES)} (default: three)"
    )
    parser.add_argument(
        "--cases", type=_names(list(CASES)), default=list(_CORE_CASES), help=f"of {','.join(CASES)} (default: no wide)"
    )
    parser.add_argument("--full", action="store_true", help="all engines and all cases")
    parser.add_argument("--rounds", type=int, default=3, help="samples after the warm-up (default 3)")
    parser.add_argument("--commits", type=int, default=12, help="commits of the longevity run (default 12)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the frames (default 7)")
    parser.add_argument("--minutes", type=float, default=60, help="for each case of an engine, at most (default 60)")
    parser.add_argument(
        "--path", type=Path, default=Path(".demo"), help="keeps data/ and unfinished runs (default .demo)"
    )
    parser.add_argument(
        "--environments", type=Path, default=Path(sys.prefix), help="where the engines' virtual environments are"
    )
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results", help="folder of the results")
    parser.add_argument("--name", help="of the files there (default: today's date)")
    options = parser.parse_args(given)
    if options.full:
        options.engines, options.cases = list(FULL), list(CASES)
    return options


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the worker as well
    sys.exit(main())
