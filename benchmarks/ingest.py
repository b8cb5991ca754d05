"""Ingest of TPC-H line items, as ratios to the engine's own reader followed by the same upsert.

    python -m benchmarks.ingest --scale 0.5

CSV and JSON lines, in one file and in a thousand, with Spark and without; a window of one small file; discovery of
100,000 files and planning of a terabyte. Rows are compared, value by value, with those that the files were made of.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as ds
import pyarrow.json as pj
from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from benchmarks.tpch import LINEITEM, Workload, compare, connect
from lakemerge import LakeTable
from lakemerge.ingest import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CASES", "main", "measure"]

CASES = ("arrow", "spark", "small", "plan")
FORMATS = ("csv", "json")
ON_SPARK, ON_ARROW = 1.15, 1.2
"""Targets: at most so many times the reader and the same upsert."""
SMALL_S, LISTING, PLAN_BYTES = 0.1, 1.2, 256 << 20
_SMALL_ROWS = 100
_TERABYTE = 1 << 40


@dataclass(frozen=True)
class Bench:
    """``folder`` is for files and tables, and is deleted at the end."""

    report: Report
    folder: Path
    workload: Workload
    rounds: int
    many: int
    """Files, where there are many."""

    def landing(self, kind: str, files: int) -> Path:
        """Line items as ``files`` files of a format, in the order of the rows, made once."""
        target = self.folder / f"{kind}-{files}"
        if not target.exists():
            partial_folder = self.folder / f".{kind}-{files}"
            partial_folder.mkdir(parents=True)
            source = f"read_parquet('{self.workload.initial(LINEITEM)}', file_row_number = true)"
            how = "FORMAT csv, HEADER" if kind == "csv" else "FORMAT json"
            with connect(self.folder) as db:
                names = ", ".join(LINEITEM.names)
                count = db.execute(f"SELECT count(*) FROM {source}").fetchone()
                rows = -(-(count[0] if count else 0) // files)
                db.execute(f"CREATE TEMP TABLE part AS SELECT {names}, file_row_number AS nr FROM {source}")
                for number in range(files):
                    part = f"nr >= {number * rows} AND nr < {(number + 1) * rows}"
                    query = f"SELECT {names} FROM part WHERE {part} ORDER BY nr"
                    db.execute(f"COPY ({query}) TO '{partial_folder}/{number:05}.{kind}' ({how})")
            partial_folder.rename(target)
        return target

    def table(self, spark: SparkSession | None = None) -> LakeTable:
        """A new table with one row, which the files replace: what follows is an upsert, not a first load."""
        path = self.folder / "table"
        shutil.rmtree(path, ignore_errors=True)
        table = LakeTable.create(path, LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], buckets=16)
        first = ds.dataset(self.workload.initial(LINEITEM)).head(1)
        older = pa.array([0], pa.int64())
        table.upsert(first.set_column(first.schema.get_field_index(LINEITEM.ordering), LINEITEM.ordering, older))
        return LakeTable.open(path, spark=spark)

    def ingest(self, kind: str, landing: Path, spark: SparkSession | None = None) -> None:
        table = self.table_now(spark)
        files = Files(landing, format=kind)
        table.ingest("bench", files, blocks_per_window=1_000_000, bytes_per_window="1TiB").run()

    def table_now(self, spark: SparkSession | None) -> LakeTable:
        return LakeTable.open(self.folder / "table", spark=spark)

    def check(self, what: str) -> None:
        """That the table holds the rows that the files were made of."""
        found = LakeTable.open(self.folder / "table").to_arrow()
        with connect(self.folder) as db:
            db.register("found", found)
            expected = f"read_parquet('{self.workload.initial(LINEITEM)}')"
            self.report.check(what, compare(db, LINEITEM, "found", expected).problems)

    def timed(self, case: str, floor: Callable[[str, Path], object], target: float, spark: SparkSession | None) -> None:
        for kind in FORMATS:
            for files in (1, self.many):
                landing = self.landing(kind, files)
                what = f"{kind}, {files:,} files"
                ready = partial(self.table, spark)
                contenders = [
                    Contender("ingest", partial(self.ingest, kind, landing, spark), before=ready),
                    Contender("floor", partial(floor, kind, landing), before=ready),
                ]
                times = interleave(contenders, rounds=self.rounds)
                self.report.add(Line.timed(case, what, times["ingest"], times["floor"], target=target))
                for name, run in (("ingest", contenders[0].run), ("the reader", contenders[1].run)):
                    self.table(spark)
                    run()
                    self.check(f"{case}, {what}, {name}")

    def small(self) -> None:
        """A job that goes on: each window is one new file of a hundred rows."""
        table = self.table()
        landing = self.folder / "small"
        shutil.rmtree(landing, ignore_errors=True)
        landing.mkdir()
        rows = ds.dataset(self.workload.initial(LINEITEM)).head(_SMALL_ROWS).to_pylist()
        text = "".join(json.dumps(row, default=str) + "\n" for row in rows)
        job = table.ingest("small", Files(landing, format="json"))
        times = []
        for number in range(20):
            (landing / f"{number}.json").write_text(text)
            started = time.perf_counter()
            result = job.run()
            times.append(time.perf_counter() - started)
            self.report.check("small", [] if result.rows == len(rows) else [f"{result.rows} rows were taken up"])
        self.report.add(Line.timed("small", f"a window of one file of {len(rows)} rows", times[3:], target=SMALL_S))
        found = sorted(LakeTable.open(table.url).to_arrow().to_pylist(), key=lambda row: [row[k] for k in LINEITEM.key])
        expected = sorted(rows, key=lambda row: [row[k] for k in LINEITEM.key])
        self.report.check("small", [] if found == expected else ["the table has other rows than the file"])

    def plan(self, count: int) -> None:
        folder = self.folder / "many"
        for number in range(count):
            path = folder / f"{number // 1000:03}" / f"{number % 1000:03}.json"
            if number % 1000 == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"k": 1}\n')
        told = _planned(folder, self.rounds)
        what = f"{count:,} files"
        self.report.check(what, [] if told["files"] == told["blocks"] == count else [f"planned {told}"])
        for floor, name in (("bare", "a bare walk"), ("store", "the store's listing")):
            told_of = f"{what}: discovered; floor: {name}"
            self.report.add(Line.timed("plan", told_of, told["discovered"], told[floor], target=LISTING))
        self.report.add(Line.timed("plan", f"{what}: planned", [told["planned"]]))
        self.report.add(self._memory(f"{what}: memory of discovery and planning", told["peak"], PLAN_BYTES))
        peaks = []
        for size in (_TERABYTE >> 10, _TERABYTE):
            sparse = self.folder / f"sparse-{size}"
            sparse.mkdir()
            with open(sparse / "one.json", "wb") as file:
                file.truncate(size)
            told = _planned(sparse, 1)
            blocks = size // (64 << 20)
            self.report.check("sparse", [] if told["blocks"] == blocks else [f"{told['blocks']} blocks, not {blocks}"])
            peaks.append(told["peak"])
        self.report.add(
            Line(case="plan", what="a file of 1 TB, memory; floor: 1 GB", unit="bytes", value=peaks[1], floor=peaks[0],
                 target=1.05)
        )  # fmt: skip

    def _memory(self, what: str, value: float, target: float) -> Line:
        return Line(case="plan", what=what, unit="bytes", value=value, target=target)


def measure(bench: Bench, cases: Sequence[str], *, files: int) -> None:
    if "arrow" in cases:
        bench.timed("arrow", partial(_read_by_arrow, bench), ON_ARROW, None)
    if "spark" in cases:
        with _session() as spark:
            bench.timed("spark", partial(_read_by_spark, bench, spark), ON_SPARK, spark)
    if "small" in cases:
        bench.small()
    if "plan" in cases:
        bench.plan(files)


def _read_by_arrow(bench: Bench, kind: str, landing: Path) -> None:
    """Arrow's readers, several files at a time, with the table's types, and an upsert of what they read."""
    table = bench.table_now(None)
    schema = table.schema
    if kind == "csv":
        types = pcsv.ConvertOptions(column_types={field.name: field.type for field in schema})
        read: Callable[[Path], pa.Table] = partial(pcsv.read_csv, convert_options=types)
    else:
        # Arrow reads no dates from JSON, and reads decimals with 38 digits alone.
        fields = [field.with_type(_read_as(field.type)) for field in schema]
        options = pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error")
        read = partial(pj.read_json, parse_options=options)
    # A dataset of JSON files waits for itself on two cores (pyarrow 26).
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pa.concat_tables(pool.map(read, sorted(landing.iterdir())))
    table.upsert(found.select(schema.names).cast(schema))


def _read_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.string() if pa.types.is_date(kind) else kind


def _read_by_spark(bench: Bench, spark: SparkSession, kind: str, landing: Path) -> None:
    table = bench.table_now(spark)
    reader = spark.read.schema(LINEITEM.ddl.replace(" NOT NULL", ""))
    frame = reader.csv(str(landing), header=True) if kind == "csv" else reader.json(str(landing))
    table.upsert(frame)


def _planned(folder: Path, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.ingest_planning", str(folder), "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@contextmanager
def _session() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("lakemerge-ingest").master("local[*]").config("spark.driver.memory", "4g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H scale factor; 1 is 6 M line items")
    parser.add_argument("--cases", default=",".join(CASES), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--many", type=int, default=1_000, help="files, where there are many")
    parser.add_argument("--files", type=int, default=100_000, help="that are discovered and planned")
    parser.add_argument("--path", type=Path, default=Path(".demo"), help="keeps the generated data in data/")
    parser.add_argument("--out", type=Path, help="all numbers with their samples, as JSON")
    given = parser.parse_args(arguments)
    cases = given.cases.split(",")
    if strange := sorted(set(cases) - set(CASES)):
        parser.error(f"cases are {', '.join(CASES)}, not {strange[0]}")
    root = given.path.resolve()
    workload = Workload.prepare(root / "data", scale=given.scale, commits=1, fraction=0.02, seed=7)
    folder = root / "ingest"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    report = Report(Console())
    try:
        measure(Bench(report, folder, workload, given.rounds, given.many), cases, files=given.files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.end()
    if given.out is not None:
        given.out.write_text(json.dumps([line.as_json() for line in report.lines], indent=1) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
