"""One harness for the benchmarks: ``python -m benchmarks CASE`` runs one of :data:`CASES`.

A case is a function of a :class:`Run`. Its keyword arguments are its options on the command line: the defaults are the
published sizes, and the annotations explain them. The case times contenders beside their floor
(:func:`benchmarks.measure.interleave`), reports a line for each figure, and checks every result. The harness parses the
command line, makes the folders, prints, and writes the numbers to a file. The exit status is 1 if a result was wrong. A
missed target does not change it. What each case measures: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from benchmarks.measure import Report, usable_cores, with_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CASES", "Rounds", "Run", "Seed", "description_of", "function_of", "main", "session"]

CASES: Mapping[str, str] = {
    "foundation": "foundation:foundation",
    "mergers": "mergers:mergers",
    "compaction": "services:compaction",
    "log-compaction": "services:log_compaction",
    "compaction-plan": "plans:compaction_plan",
    "vacuum": "services:vacuum",
    "publish": "publish:publish",
    "lookups": "lookups:lookups",
    "growth": "lookups:growth",
    "scale-files": "scale_log:scale_files",
    "scale-commits": "scale_log:scale_commits",
    "scale-writers": "scale_writers:scale_writers",
    "scale-rows": "scale_rows:scale_rows",
    "plan-time": "plans:plan_time",
    "merge-source": "merge_source:merge_source",
    "ingest": "ingest:ingest",
    "provenance": "provenance:provenance",
    "transactions": "transactions:transactions",
    "sql": "sql:sql",
    "tpch": "tpch_queries:tpch",
    "s3": "s3:s3",
    "streams": "streams:streams",
}
"""The module below ``benchmarks.cases`` and the function of each case."""
Rounds = Annotated[int, "samples of each timing, after one that warms up"]
Seed = Annotated[int, "of the generated rows"]
_PACKAGES = ("lakemerge", "pyspark", "pyarrow", "numpy", "delta-spark", "duckdb")


@dataclass(frozen=True, slots=True)
class Run:
    """What the harness gives to a case."""

    report: Report
    folder: Path
    """A folder of this run alone. It is deleted at the end."""
    data: Path
    """Where generated input is kept for the next run."""
    environments: Path = Path(sys.prefix)
    """Where the virtual environments of other engines are."""


def main(arguments: Sequence[str]) -> int:
    """Run one case; the exit status is 0 if every result was right."""
    from rich.console import Console

    asked = [name for name in arguments[:1] if name in CASES]
    given = vars(_parser(asked or list(CASES)).parse_args(arguments))
    name, path, out, environments = (given.pop(option) for option in ("case", "path", "out", "environments"))
    report, root = Report(Console()), path.resolve()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=root) as folder:
        function_of(name)(Run(report, Path(folder), root / "data", environments.absolute()), **given)
    report.end()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(_as_json(name, given, report))
    return 1 if report.problems else 0


def function_of(case: str) -> Callable[..., None]:
    module, _, function = CASES[case].partition(":")
    found: Callable[..., None] = getattr(importlib.import_module(f"benchmarks.cases.{module}"), function)
    return found


def description_of(case: str) -> str:
    """What the case shows, in one line."""
    return (inspect.getdoc(function_of(case)) or "").partition("\n")[0]


@contextmanager
def session(folder: Path, settings: Mapping[str, str] | None = None, *, delta: bool = False) -> Iterator[SparkSession]:
    """A Spark session with two local cores, and with Delta if asked for. Settings that affect the cost of a scan or a
    write are Spark's defaults, but for four shuffle partitions. ``settings`` overrides any."""
    from benchmarks.compare import on_spark

    theirs: Mapping[str, str] = {}
    if delta:
        from benchmarks.compare import delta as of_delta  # which the environments of other engines lack

        theirs = of_delta.SETTINGS
    spark = on_spark.session(folder, {**theirs, **(settings or {})})
    try:
        yield spark
    finally:
        spark.stop()


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run one of the benchmarks.")
    cases = parser.add_subparsers(dest="case", required=True, metavar="CASE")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--path", type=Path, default=Path(".demo"), help="keeps data/ between runs; tables are deleted (%(default)s)"
    )
    shared.add_argument("--out", type=Path, help="write all numbers, with their samples, to this JSON file")
    shared.add_argument(
        "--environments", type=Path, default=Path(sys.prefix), help="where other engines' virtual environments are"
    )
    for name in names:
        text = description_of(name)
        case = cases.add_parser(name, parents=[shared], help=text, description=text)
        hints = get_type_hints(function_of(name), include_extras=True)
        for option in inspect.signature(function_of(name)).parameters.values():
            if option.kind is option.KEYWORD_ONLY:
                _add_option(case, option, hints[option.name])
    return parser


def _add_option(parser: argparse.ArgumentParser, option: inspect.Parameter, hint: Any) -> None:
    kind, text = get_args(hint)
    flag, default = f"--{option.name.replace('_', '-')}", option.default
    if default is option.empty:
        parser.add_argument(flag, required=True, type=kind, help=text)
    elif kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
    elif get_origin(kind) is tuple:
        listed = _names(default) if isinstance(default[0], str) else _numbers
        shown = ",".join(map(str, default))
        parser.add_argument(flag, type=listed, default=default, metavar="A,B", help=f"{text} (default {shown})")
    else:
        shown = f"{text} (default %(default)s)"
        parser.add_argument(flag, type=_whole if kind is int else kind, default=default, help=shown)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_whole(number) for number in text.split(","))


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        asked = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in asked if name not in known]
        if unknown or not asked:
            raise argparse.ArgumentTypeError(f"there are {', '.join(known)}; not {', '.join(unknown) or 'none'}")
        return tuple(asked)

    return parse


def _as_json(case: str, options: Mapping[str, Any], report: Report) -> str:
    body = {
        "case": case,
        "options": options,
        "machine": {"cores": usable_cores(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {name: _version(name) for name in _PACKAGES},
        "problems": report.problems,
    }
    return with_lines(body, "lines", (json.dumps(line.as_json()) for line in report.lines)) + "\n"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
