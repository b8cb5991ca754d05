"""The demo: two TPC-H tables, a bulk load, upserts, files ingested, a dirty read, a compaction and a clean read.

    python -m benchmarks.demo --scale 0.5 --commits 10 --path .demo

Every step is timed and shown as it ends; every read is compared, value by value, with rows that
DuckDB computed from the input files (see :mod:`benchmarks.tpch`). Steps marked "plain" do the same
work with Spark's own Parquet reader and writer, as a yardstick. Exits with 1 when an answer is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from benchmarks.tpch import ENTITIES, KIND_COLUMN, Entity, Workload, compare, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakemerge import LakeTable

__all__ = ["Report", "Step", "main"]

_HEADINGS = ("step", "seconds", "rows", "objects", "bytes", "check")
_WIDTHS = (38, 8, 10, 8, 10)
_FILES = 8
"""That the last change lands in."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the report. ``objects`` and ``size_bytes`` are measured in the folder: what a
    write added there, what was there for a read. They are ``None`` where the line before has them.
    ``wrong`` says how an answer differs."""

    name: str
    seconds: float
    rows: int | None = None
    objects: int | None = None
    size_bytes: int | None = None
    checked: bool = False
    wrong: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            f"{self.seconds:.2f}",
            "" if self.rows is None else f"{self.rows:,}",
            "" if self.objects is None else f"{self.objects:,}",
            "" if self.size_bytes is None else f"{self.size_bytes / 1e6:,.1f} MB",
            "WRONG" if self.wrong else "equal" if self.checked else "",
        )


class Report:
    """Shows steps as they run: a live table on a terminal, one line per step elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: list[Step] = []
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            self._line(_HEADINGS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    @property
    def problems(self) -> list[str]:
        return [f"{step.name}: {problem}" for step in self._steps for problem in step.wrong]

    def doing(self, name: str) -> None:
        """Say what runs now."""
        if self._live:
            grid = Table.grid()
            grid.add_row(self._table())
            grid.add_row(Spinner("dots", f" {name}"))
            self._live.update(grid)

    def done(self, step: Step) -> None:
        self._steps.append(step)
        if self._live:
            self._live.update(self._table())
        else:
            self._line(step.cells())

    def _table(self) -> Table:
        table = Table()
        for heading in _HEADINGS:
            table.add_column(heading, justify="left" if heading in ("step", "check") else "right")
        for step in self._steps:
            table.add_row(*step.cells(), style="bold red" if step.wrong else "dim" if "plain" in step.name else None)
        return table

    def _line(self, cells: tuple[str, ...]) -> None:
        padded = [f"{cell:>{width}}" for cell, width in zip(cells[1:-1], _WIDTHS[1:], strict=True)]
        self._console.print(
            "  ".join([f"{cells[0]:<{_WIDTHS[0]}}", *padded, cells[-1]]), highlight=False, soft_wrap=True
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit status is 0 when every answer was right."""
    options = _options(arguments)
    root: Path = options.path.resolve()
    console = Console()
    console.print(
        f"TPC-H at scale {options.scale:g}; {options.commits} commits, each of {options.change:.0%} of the rows"
    )
    started = time.perf_counter()
    with console.status("preparing data and Spark"):
        workload = Workload.prepare(
            root / "data", scale=options.scale, commits=options.commits, fraction=options.change, seed=options.seed
        )
        spark = _session()
    console.print(f"data and Spark are ready after {time.perf_counter() - started:.0f} s")
    tables = root / "tables"
    shutil.rmtree(tables, ignore_errors=True)
    tables.mkdir(parents=True)
    started = time.perf_counter()
    try:
        with Report(console) as report:
            for entity in ENTITIES:
                _Run(spark, workload, entity, tables, report).all()
    finally:
        spark.stop()
    console.print(f"{time.perf_counter() - started:.0f} s; the tables are in {tables}", soft_wrap=True)
    if report.problems:
        for problem in report.problems:
            console.print(f"WRONG {problem}", style="bold red", soft_wrap=True)
        return 1
    console.print("every answer equals the independent computation")
    return 0


class _Run:
    """The steps for one table."""

    def __init__(self, spark: SparkSession, workload: Workload, entity: Entity, tables: Path, report: Report) -> None:
        self._spark = spark
        self._workload = workload
        self._entity = entity
        self._report = report
        self._path = tables / entity.name
        self._plain = tables / f".plain-{entity.name}"
        self._expected = self._plain / "expected"

    def all(self) -> None:
        # Imported here: a demo that cannot import the product still says what it would do (--help).
        from lakemerge import LakeTable

        entity, workload = self._entity, self._workload
        initial = self._frame(workload.initial(entity))
        self._write_plain("bulk load, plain append", initial)
        table = LakeTable.create(
            str(self._path), entity.ddl, key=list(entity.key), ordering=[entity.ordering], spark=self._spark,
            properties={"lakemerge.maintenance": "off"},  # each step here is shown by itself
        )  # fmt: skip
        self._write("bulk load", lambda: table.upsert(initial).rows)
        self._write_plain("upsert 1, plain append", self._frame(workload.change(entity, 1)))
        for number in range(1, workload.commits):
            self._upsert(table, number)
        self._ingest(table, workload.commits)
        self._read_plain("dirty read")
        self._read("dirty read", table.to_df, parts=True)
        self._time("dirty read, again, plain", lambda: _scan(self._frame(self._expected)))
        self._time("dirty read, again", lambda: _scan(table.to_df()))
        self._time(
            "dirty read, table opened anew", lambda: _scan(LakeTable.open(str(self._path), spark=self._spark).to_df())
        )
        self._write("compaction", lambda: table.compact().rows)
        self._read("clean read", table.to_df)
        self._read_as_delta("clean read by deltalake")
        shutil.rmtree(self._plain)

    def _frame(self, path: Path) -> DataFrame:
        return self._spark.read.parquet(str(path))

    def _upsert(self, table: LakeTable, number: int) -> None:
        frame = self._frame(self._workload.change(self._entity, number))
        self._write(f"upsert {number}", lambda: table.upsert(frame, kind_column=KIND_COLUMN).rows)

    def _ingest(self, table: LakeTable, number: int) -> None:
        """The last change as files of JSON lines, in the order of its records."""
        from lakemerge.ingest import Files

        landing = self._plain / "landing"
        landing.mkdir(parents=True)
        columns = ", ".join((*self._entity.names, KIND_COLUMN))
        change = f"read_parquet('{self._workload.change(self._entity, number)}', file_row_number = true)"
        with connect(self._plain) as db:
            for part in range(_FILES):
                rows = f"file_row_number * {_FILES} // (SELECT count(*) FROM {change}) = {part}"
                query = f"SELECT {columns} FROM {change} WHERE {rows} ORDER BY file_row_number"
                db.execute(f"COPY ({query}) TO '{landing}/{part}.json' (FORMAT json)")
        job = table.ingest("changes", Files(landing, format="json"), kind_column=KIND_COLUMN)
        self._write(f"upsert {number}, ingested from files", lambda: job.run().rows)

    def _write(self, name: str, action: Callable[[], int | None]) -> None:
        """Time an action that returns the rows it wrote, and measure what it added to the table's folder."""
        label = f"{self._entity.name}: {name}"
        self._report.doing(label)
        objects, size_bytes = _measure(self._path)
        started = time.perf_counter()
        rows = action()
        seconds = time.perf_counter() - started
        objects_after, size_after = _measure(self._path)
        self._report.done(Step(label, seconds, rows, objects_after - objects, size_after - size_bytes))

    def _write_plain(self, name: str, frame: DataFrame) -> None:
        label = f"{self._entity.name}: {name}"
        self._report.doing(label)
        target = self._plain / name
        started = time.perf_counter()
        frame.write.parquet(str(target))
        self._report.done(Step(label, time.perf_counter() - started, frame.count(), *_measure(target)))

    def _read(self, name: str, frame: Callable[[], DataFrame], *, parts: bool = False) -> None:
        """Time a scan of all columns, then compare the rows with the expected ones (not timed).

        :param parts: whether to show what the scan is made of, too.
        """
        label = f"{self._entity.name}: {name}"
        self._report.doing(label)
        started = time.perf_counter()
        planned = frame()
        merged = time.perf_counter()
        _scan(planned)
        ended = time.perf_counter()
        seconds = ended - started
        self._report.doing(f"{label}: comparing")
        target = self._plain / name
        # Spark's default writes INT96, which carries no zone.
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        frame().write.parquet(str(target))
        self._spark.conf.unset("spark.sql.parquet.outputTimestampType")
        rows, wrong = self._compare(f"read_parquet('{target}/*.parquet')")
        self._report.done(Step(label, seconds, rows, *_measure(self._path), checked=True, wrong=wrong))
        if parts:
            # to_df() finds out which stored rows are superseded, and which records of the logs take their place.
            self._report.done(Step("  its logs, merged with stored keys", merged - started))
            self._report.done(Step("  its scan", ended - merged))

    def _time(self, name: str, scan: Callable[[], None]) -> None:
        label = f"{self._entity.name}: {name}"
        self._report.doing(label)
        started = time.perf_counter()
        scan()
        self._report.done(Step(label, time.perf_counter() - started))

    def _read_plain(self, name: str) -> None:
        """The floor of a read: the expected rows, as plain Parquet files that Spark wrote."""
        label = f"{self._entity.name}: {name}, plain"
        self._report.doing(label)
        self._frame(self._workload.expected(self._entity)).write.parquet(str(self._expected))
        frame = self._frame(self._expected)
        started = time.perf_counter()
        _scan(frame)
        self._report.done(Step(label, time.perf_counter() - started, frame.count(), *_measure(self._expected)))

    def _read_as_delta(self, name: str) -> None:
        """What a Delta reader that knows nothing of LakeMerge sees once everything is compacted."""
        from deltalake import DeltaTable

        label = f"{self._entity.name}: {name}"
        self._report.doing(label)
        started = time.perf_counter()
        found = DeltaTable(self._path).to_pyarrow_table()
        seconds = time.perf_counter() - started
        rows, wrong = self._compare("found", found=found)
        self._report.done(Step(label, seconds, rows, *_measure(self._path), checked=True, wrong=wrong))

    def _compare(self, relation: str, **views: object) -> tuple[int, tuple[str, ...]]:
        with connect(self._plain) as db:
            for view, rows in views.items():
                db.register(view, rows)
            found = compare(db, self._entity, relation, f"read_parquet('{self._workload.expected(self._entity)}')")
        return found.rows, found.problems


def _scan(frame: DataFrame) -> None:
    """Read all rows with all columns."""
    frame.write.format("noop").mode("overwrite").save()


def _measure(folder: Path) -> tuple[int, int]:
    """Number and total size of the files below ``folder``, without the checksum files of Spark's local file system."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"]
    return len(sizes), sum(sizes)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.appName("lakemerge-demo")
        .master("local[*]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--scale", type=float, default=0.5, help="TPC-H scale factor; 1 is 6 M line items (default 0.5)"
    )
    parser.add_argument("--commits", type=int, default=10, help="upserts per table after the bulk load (default 10)")
    parser.add_argument("--change", type=float, default=0.02, help="part of the rows a commit touches (default 0.02)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the change stream (default 7)")
    parser.add_argument(
        "--path", type=Path, default=Path(".demo"), help="keeps data/ between runs and replaces tables/ (default .demo)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
