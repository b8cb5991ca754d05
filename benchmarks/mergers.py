"""Times every built-in merger against reading and writing the same rows as Parquet, on one core.

    python -m benchmarks.mergers --scale 1.0 --cases updates,versions,functions,row,pypaimon

At scale 1: 2 M stored rows with 10 % log rows, and 1 M log-only records of five versions a key with
100,000 of one key, all of 12 columns; both once more with arrays, wide decimals, sketches, bitmaps, and
records that take back what came before; what the row contract costs; and a table of 1 M rows with five
commits of 100,000 read by us and by pypaimon. Every result is compared with rows that DuckDB computed
from the records, or that a plain fold in Python gives; the exit status is 1 when one is wrong. What each
case measures: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks import mergers_functions, mergers_paimon
from benchmarks.measure import Contender, Line, Report, interleave, usable_cores
from benchmarks.mergers_cases import CASES as CONFIGURATIONS
from benchmarks.mergers_cases import ROW_CASE, SCHEMA, Case, Inputs, logs_only, merged, one_table, updates
from benchmarks.mergers_checks import Answers
from benchmarks.mergers_folds import Folds
from lakemerge import LakeTable, Settings

__all__ = ["CASES", "main"]

CASES = ("updates", "versions", "functions", "row", "pypaimon")
_PAIMON_TARGET = 20.0
_PAIMON_ROUNDS = 3
"""It takes so long that a few rounds tell enough."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status is 0 when every answer was right."""
    options = _options(arguments)
    report = Report(Console())
    cores = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        run(options, report)
    finally:
        pa.set_cpu_count(cores)
    report.end()
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(_as_json(options, report), indent=1) + "\n")
    return 1 if report.problems else 0


def run(options: argparse.Namespace, report: Report) -> None:
    """Run the cases that ``options`` names, in the order of :data:`CASES`."""
    made: Mapping[str, Sequence[Callable[..., Inputs]]] = {
        "updates": [updates],
        "versions": [logs_only],
        "functions": [mergers_functions.changes, mergers_functions.versions],
    }
    for name, makers in made.items():
        for make in makers if name in options.cases else ():
            built_ins(make(options.scale, seed=options.seed), report, rounds=options.repeat)
    if "row" in options.cases:
        row_contract(updates(options.scale, seed=options.seed), report, rounds=options.repeat)
    if "pypaimon" in options.cases:
        if mergers_paimon.PYTHON.exists():
            with _scratch(options.path) as folder:
                against_pypaimon(one_table(options.scale, seed=options.seed), Path(folder), report, options.repeat)
        else:
            report.say(f"NOT RUN: pypaimon, which is not installed: there is no {mergers_paimon.PYTHON} (make paimon)")


def built_ins(inputs: Inputs, report: Report, *, rounds: int) -> None:
    """The merge of each configuration for such records, against Parquet."""
    cases: Sequence[Case] = mergers_functions.CASES if inputs.taken_back else CONFIGURATIONS
    (_folds_are_right if inputs.taken_back else _rows_are_right)(inputs, cases, report)
    files = [_parquet(table) for table in (inputs.base, *inputs.frames)]
    floor = Contender("parquet", partial(_read_and_write, files))
    merges = [Contender(case.name, partial(merged, case, inputs)) for case in cases]
    samples = interleave([floor, *merges], rounds=rounds)
    for case in cases:
        what = f"{case.name}: {inputs.base.num_rows:,} rows + {inputs.log_rows:,}"
        report.add(Line.timed(inputs.name, what, samples[case.name], samples["parquet"], target=case.target))


def _rows_are_right(inputs: Inputs, cases: Sequence[Case], report: Report) -> None:
    answers = Answers(inputs)
    for case in cases:
        report.check(f"{inputs.name}, {case.name}", answers.problems(case.name, merged(case, inputs)))
    answers.close()


def _folds_are_right(inputs: Inputs, cases: Sequence[Case], report: Report) -> None:
    folds = Folds(inputs)
    for case in cases:
        report.check(f"{inputs.name}, {case.name}", folds.problems(case, merged(case, inputs)))


def row_contract(inputs: Inputs, report: Report, *, rounds: int) -> None:
    """``event-time`` as a function of two rows, against the built-in."""
    built_in = next(case for case in CONFIGURATIONS if case.name == "event-time")
    answers = Answers(inputs)
    report.check("row contract", answers.problems(ROW_CASE.name, merged(ROW_CASE, inputs)))
    answers.close()
    keys = pa.concat_tables([inputs.base, *inputs.frames]).column("k")
    pairs = inputs.rows - pc.count_distinct(keys).as_py()
    samples = interleave(
        [Contender(case.name, partial(merged, case, inputs)) for case in (built_in, ROW_CASE)], rounds=rounds
    )
    row, vector = samples[ROW_CASE.name], samples[built_in.name]
    micros = {name: statistics.median(samples[name]) / pairs * 1e6 for name in samples}
    what = f"event-time in Python, {pairs:,} pairs of 12 columns"
    report.add(Line.timed("row", what, row, vector, detail={"pairs": pairs, "us_per_pair": micros}))
    report.say(f"row contract: {micros[ROW_CASE.name]:.1f} us a pair, event-time {micros[built_in.name]:.1f} us")


def against_pypaimon(inputs: Inputs, folder: Path, report: Report, rounds: int) -> None:
    """One dirty table of each, read whole: ours as it comes and on one core, theirs as it comes."""
    path = folder / "ours"
    off = {"lakemerge.maintenance": "off"}
    ours = LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], buckets=4, properties=off)
    one_core = LakeTable.open(path, settings=Settings(threads=1))
    required = pa.schema([f.with_nullable(f.name != "k") for f in SCHEMA])
    with mergers_paimon.Paimon(folder / "theirs") as paimon:
        theirs = paimon.create(required, key=["k"], options={"sequence.field": "ts"})
        for rows in (inputs.base, *inputs.frames):
            ours.upsert(rows)
            paimon.write(theirs, rows.cast(required))
        answers = Answers(inputs)
        read = {"ours": one_core.to_arrow(), "pypaimon": paimon.read(theirs, all_files=False)}
        for name, rows in read.items():
            in_order = rows.select(SCHEMA.names).cast(SCHEMA).sort_by("k")
            report.check(f"{name}, read", answers.problems("event-time", in_order))
        answers.close()
        every = usable_cores()
        contenders = [
            Contender("as it comes", ours.to_arrow, before=partial(pa.set_cpu_count, every)),
            Contender("one core", one_core.to_arrow, before=partial(pa.set_cpu_count, 1)),
            Contender("pypaimon", partial(paimon.seconds_to_read, theirs), rounds=min(rounds, _PAIMON_ROUNDS)),
        ]
        samples = interleave(contenders, rounds=rounds)
        pa.set_cpu_count(1)
    rows_read = f"pypaimon's merge-on-read of {inputs.base.num_rows:,} + {inputs.log_rows:,} rows, ours"
    for name, target in (("as it comes", _PAIMON_TARGET), ("one core", None)):
        line = Line.timed(
            "pypaimon", f"{rows_read} {name}", samples["pypaimon"], samples[name], target=target, at_least=True
        )
        report.add(line)


def _scratch(path: Path) -> tempfile.TemporaryDirectory[str]:
    path.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="run-", dir=path)


def _read_and_write(files: Sequence[bytes]) -> None:
    for data in files:
        _parquet(pq.read_table(io.BytesIO(data), use_threads=False))


def _parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", compression_level=1, store_decimal_as_integer=True)
    return sink.getvalue()


def _as_json(options: argparse.Namespace, report: Report) -> dict[str, object]:
    return {
        "machine": {"cores": usable_cores(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {"pyarrow": pa.__version__, "numpy": np.__version__},
        "scale": options.scale,
        "repeat": options.repeat,
        "seed": options.seed,
        "cases": options.cases,
        "lines": [line.as_json() for line in report.lines],
        "problems": report.problems,
    }


def _cases(text: str) -> list[str]:
    asked = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in asked if name not in CASES]
    if unknown or not asked:
        raise argparse.ArgumentTypeError(f"cases are {', '.join(CASES)}; not {', '.join(unknown) or 'none'}")
    return asked


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mergers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="part of the sizes above (default 1)")
    parser.add_argument("--cases", type=_cases, default=list(CASES), help=f"of {','.join(CASES)} (default: all)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds after the warm-up (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the records (default 1)")
    parser.add_argument(
        "--path", type=Path, default=Path(".demo"), help="where tables are made, and deleted at the end (default .demo)"
    )
    parser.add_argument("--out", type=Path, help="write all numbers, with their samples, to this JSON file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
