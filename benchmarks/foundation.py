"""The costs that LakeMerge is judged by, each as a ratio to a floor measured in the same run.

    python -m benchmarks.foundation --scale 0.5 --cases load,upsert,read,compact,metadata,requests

One Spark session with two cores; every case warms up, then takes the medians of rounds in which
floor and subject alternate. Every answer is compared with rows that DuckDB computed from the
inputs; the exit status is 1 when one is wrong. Missed targets are listed at the end, by how much.
What each case measures: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import foundation_cases, foundation_log
from benchmarks.foundation_cases import Bench
from benchmarks.foundation_data import Inputs
from benchmarks.measure import Report, usable_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CASES", "main", "run"]

_ON_SPARK = {
    "load": foundation_cases.load,
    "upsert": foundation_cases.upsert,
    "read": foundation_cases.read,
    "compact": foundation_cases.compact,
}
CASES = (*_ON_SPARK, "metadata", "requests")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the exit status is 0 when every answer was right."""
    options = _options(arguments)
    report = Report(Console())
    root: Path = options.path.resolve()
    report.say(f"preparing line items of scale {options.scale:g}")
    inputs = Inputs.prepare(root / "data", scale=options.scale, seed=options.seed)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    try:
        if any(case in _ON_SPARK for case in options.cases):
            with _session(scratch, delta=options.delta and "upsert" in options.cases) as spark:
                run(options, inputs, scratch, report, spark)
        else:
            run(options, inputs, scratch, report, None)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report.end()
    if options.out is not None:
        options.out.write_text(json.dumps(_as_json(options, inputs, report), indent=1) + "\n")
    return 1 if report.problems else 0


def run(options: argparse.Namespace, inputs: Inputs, scratch: Path, report: Report, spark: SparkSession | None) -> None:
    """Run the cases that ``options`` names, in the order of :data:`CASES`; ``spark`` may be ``None``
    where none of them needs it."""
    if spark is not None:
        bench = Bench(spark, inputs, scratch, report, options.repeat, options.delta, options.large)
        for name, case in _ON_SPARK.items():
            if name in options.cases:
                case(bench)
        if options.profile:
            from benchmarks.phases import profile

            profile(bench, options.cases)
    if "metadata" in options.cases:
        foundation_log.metadata(inputs, scratch, report, rounds=options.repeat)
    if "requests" in options.cases:
        foundation_log.requests(inputs, scratch, report)


@contextmanager
def _session(scratch: Path, *, delta: bool) -> Iterator[SparkSession]:
    """A session with two local cores and, if ``delta`` is true, Delta. All settings that affect the cost of a scan or
    a write are Spark's defaults."""
    from pyspark.sql import SparkSession

    # Workers unpickle functions by their module, so they must find the source tree like this process.
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.appName("lakemerge-foundation")
        .master("local[2]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    if delta:
        from delta import configure_spark_with_delta_pip

        builder = configure_spark_with_delta_pip(
            builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.snapshotPartitions", "2")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _as_json(options: argparse.Namespace, inputs: Inputs, report: Report) -> dict[str, object]:
    versions = {name: _version(name) for name in ("lakemerge", "pyspark", "pyarrow", "delta-spark", "duckdb")}
    return {
        "machine": {"cores": usable_cores(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": versions,
        "scale": options.scale,
        "rows": inputs.initial_rows,
        "repeat": options.repeat,
        "seed": options.seed,
        "cases": options.cases,
        "lines": [line.as_json() for line in report.lines],
        "problems": report.problems,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cases(text: str) -> list[str]:
    asked = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in asked if name not in CASES]
    if unknown or not asked:
        raise argparse.ArgumentTypeError(f"cases are {', '.join(CASES)}; not {', '.join(unknown) or 'none'}")
    return asked


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("at least one round is needed")
    return rounds


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.foundation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--scale", type=float, default=0.5, help="TPC-H scale factor; 0.5 is 3 M line items (default 0.5)"
    )
    parser.add_argument("--cases", type=_cases, default=list(CASES), help=f"of {','.join(CASES)} (default: all)")
    parser.add_argument("--repeat", type=_rounds, default=5, help="rounds after the warm-up (default 5)")
    parser.add_argument(
        "--delta",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also time Delta's MERGE of the same frames (default: yes)",
    )
    parser.add_argument(
        "--large", action="store_true", help="compare upserts with a table of ten times the rows, not three"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time of load, upsert and compact goes")
    parser.add_argument("--seed", type=int, default=7, help="seed of the frames (default 7)")
    parser.add_argument(
        "--path", type=Path, default=Path(".demo"), help="keeps data/ between runs; tables are deleted (default .demo)"
    )
    parser.add_argument("--out", type=Path, help="write all numbers, with their samples, to this JSON file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
