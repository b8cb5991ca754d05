"""Ingest of TPC-H line items, as ratios to the engine's own reader followed by the same upsert."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as ds
import pyarrow.json as pj

from benchmarks.elsewhere import elsewhere, peak_bytes
from benchmarks.harness import Rounds, Run, session
from benchmarks.measure import Contender, Report, interleave
from benchmarks.tpch import LINEITEM, Workload, compare, connect
from lakemerge import LakeTable
from lakemerge.ingest import Files
from lakemerge.ingest.discovery import Settling, found_by
from lakemerge.ingest.formats.choose import chosen_format
from lakemerge.ingest.job import listing_of
from lakemerge.ingest.windows import Gathering, Window, Windows
from lakemerge.storage import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bench", "ingest", "planned"]

_FORMATS = ("csv", "json")
_ON_SPARK, _ON_ARROW = 1.15, 1.2
"""Targets: at most so many times the reader and the same upsert."""
_SMALL_S, _LISTING, _PLAN_BYTES, _ONE_FILE = 0.1, 1.2, 256 << 20, 1.05
_SMALL_ROWS = 100
_GIGABYTE, _BLOCK_BYTES = 1 << 30, 64 << 20


def ingest(
    run: Run,
    *,
    scale: Annotated[float, "TPC-H scale factor; 1 is 6 M line items"] = 0.5,
    parts: Annotated[tuple[str, ...], "what to time"] = ("arrow", "spark", "small", "plan"),
    rounds: Rounds = 3,
    many: Annotated[int, "files, where there are many"] = 1_000,
    files: Annotated[int, "that are discovered and planned"] = 100_000,
) -> None:
    """Ingest of TPC-H line items, as ratios to the engine's own reader followed by the same upsert.

    CSV and JSON lines, in one file and in a thousand, with Spark and without; a window of one small file; discovery of
    100,000 files and planning of a terabyte. Rows are compared, value by value, with those that the files were made of.
    """
    if set(parts) - {"plan"}:
        workload = Workload.prepare(run.data, scale=scale, commits=1, fraction=0.02, seed=7)
        bench = Bench(run.report, run.folder, workload.initial(LINEITEM), rounds, many)
        if "arrow" in parts:
            bench.timed("arrow", bench.read_by_arrow, _ON_ARROW)
        if "spark" in parts:
            settings = {"spark.master": "local[*]", "spark.sql.shuffle.partitions": "200"}
            with session(run.folder, settings) as spark:
                bench.timed("spark", partial(bench.read_by_spark, spark), _ON_SPARK, spark)
        if "small" in parts:
            bench.small()
    if "plan" in parts:
        _plan(run.report, run.folder, files, rounds)


@dataclass(frozen=True)
class Bench:
    """``rows`` is the Parquet file that everything is made of."""

    report: Report
    folder: Path
    rows: Path
    rounds: int
    many: int
    """Files, where there are many."""

    def landing(self, kind: str, files: int) -> Path:
        """Line items as ``files`` files of a format, in the order of the rows, made once."""
        target = self.folder / f"{kind}-{files}"
        if not target.exists():
            target.mkdir(parents=True)
            source = f"read_parquet('{self.rows}', file_row_number = true)"
            how = "FORMAT csv, HEADER" if kind == "csv" else "FORMAT json"
            with connect(self.folder) as db:
                names = ", ".join(LINEITEM.names)
                db.execute(f"CREATE TEMP TABLE part AS SELECT {names}, file_row_number AS nr FROM {source}")
                count = db.execute("SELECT count(*) FROM part").fetchone()
                rows = -(-(count[0] if count else 0) // files)
                for number in range(files):
                    part = f"nr >= {number * rows} AND nr < {(number + 1) * rows}"
                    query = f"SELECT {names} FROM part WHERE {part} ORDER BY nr"
                    db.execute(f"COPY ({query}) TO '{target}/{number:05}.{kind}' ({how})")
        return target

    def create(self) -> None:
        """A new table with one row, which the files replace: what follows is an upsert, not a first load."""
        path = self.folder / "table"
        shutil.rmtree(path, ignore_errors=True)
        table = LakeTable.create(path, LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], buckets=16)
        first = ds.dataset(self.rows).head(1)
        older = pa.array([0], pa.int64())
        table.upsert(first.set_column(first.schema.get_field_index(LINEITEM.ordering), LINEITEM.ordering, older))

    def table(self, spark: SparkSession | None = None) -> LakeTable:
        return LakeTable.open(self.folder / "table", spark=spark)

    def ingest(self, kind: str, landing: Path, spark: SparkSession | None = None) -> None:
        files = Files(landing, format=kind)
        self.table(spark).ingest("bench", files, blocks_per_window=1_000_000, bytes_per_window="1TiB").run()

    def check(self, what: str) -> None:
        """That the table holds the rows that the files were made of."""
        found = self.table().to_arrow()
        with connect(self.folder) as db:
            db.register("found", found)
            self.report.check(what, compare(db, LINEITEM, "found", f"read_parquet('{self.rows}')").problems)

    def timed(
        self, case: str, floor: Callable[[str, Path], object], target: float, spark: SparkSession | None = None
    ) -> None:
        for kind in _FORMATS:
            for files in (1, self.many):
                landing, what = self.landing(kind, files), f"{kind}, {files:,} files"
                contenders = [
                    Contender("ingest", partial(self.ingest, kind, landing, spark), before=self.create),
                    Contender("the reader", partial(floor, kind, landing), before=self.create),
                ]
                times = interleave(contenders, rounds=self.rounds)
                self.report.timed(case, what, times["ingest"], times["the reader"], target=target)
                for contender in contenders:
                    self.create()
                    contender.run()
                    self.check(f"{case}, {what}, {contender.name}")

    def read_by_arrow(self, kind: str, landing: Path) -> None:
        """Arrow's readers, several files at a time, with the table's types, and an upsert of what they read."""
        table = self.table()
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

    def read_by_spark(self, spark: SparkSession, kind: str, landing: Path) -> None:
        reader = spark.read.schema(LINEITEM.ddl.replace(" NOT NULL", ""))
        frame = reader.csv(str(landing), header=True) if kind == "csv" else reader.json(str(landing))
        self.table(spark).upsert(frame)

    def small(self) -> None:
        """A job that goes on: each window is one new file of a hundred rows."""
        self.create()
        landing = self.folder / "small"
        landing.mkdir()
        rows = ds.dataset(self.rows).head(_SMALL_ROWS).to_pylist()
        text = "".join(json.dumps(row, default=str) + "\n" for row in rows)
        job = self.table().ingest("small", Files(landing, format="json"))
        times = []
        for number in range(20):
            (landing / f"{number}.json").write_text(text)
            started = time.perf_counter()
            result = job.run()
            times.append(time.perf_counter() - started)
            self.report.check("small", [] if result.rows == len(rows) else [f"{result.rows} rows were taken up"])
        self.report.timed("small", f"a window of one file of {len(rows)} rows", times[3:], target=_SMALL_S)
        key = LINEITEM.key
        found = sorted(self.table().to_arrow().to_pylist(), key=lambda row: [row[k] for k in key])
        expected = sorted(rows, key=lambda row: [row[k] for k in key])
        self.report.check("small", [] if found == expected else ["the table has other rows than the file"])


def _read_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.string() if pa.types.is_date(kind) else kind


def _plan(report: Report, folder: Path, count: int, rounds: int) -> None:
    for number in range(count):
        path = folder / "many" / f"{number // 1000:03}" / f"{number % 1000:03}.json"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_text('{"k": 1}\n')
    found, what = _planned_elsewhere(folder / "many", rounds), f"{count:,} files"
    right = found["files"] == found["blocks"] == count
    report.check(what, [] if right else [f"planned {found}"])
    for floor, name in (("bare", "a bare walk"), ("store", "the store's listing")):
        line = f"{what}: discovered; floor: {name}"
        report.timed("plan", line, found["discovered"], found[floor], target=_LISTING)
    report.timed("plan", f"{what}: planned", [found["planned"]])
    memory = f"{what}: memory of discovery and planning"
    report.value("plan", memory, "bytes", found["peak"], target=_PLAN_BYTES)
    peaks = []
    for size in (_GIGABYTE, _GIGABYTE << 10):
        sparse = folder / f"sparse-{size}"
        sparse.mkdir()
        with open(sparse / "one.json", "wb") as file:
            file.truncate(size)
        found, blocks = _planned_elsewhere(sparse, 1), size // _BLOCK_BYTES
        report.check("sparse", [] if found["blocks"] == blocks else [f"{found['blocks']} blocks, not {blocks}"])
        peaks.append(found["peak"])
    what = "a file of 1 TB, memory; floor: 1 GB"
    report.value("plan", what, "bytes", peaks[1], peaks[0], target=_ONE_FILE)


def _planned_elsewhere(folder: Path, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = elsewhere(__name__, "planned", folder=str(folder), rounds=rounds)
    return found


def planned(folder: str, rounds: int) -> dict[str, Any]:
    """Discovery and planning in a process of its own, whose memory is measured."""
    files, store = Files(folder, format="json"), LocalStore(folder)
    times: dict[str, list[float]] = {"bare": [], "store": [], "discovered": []}

    def discovered() -> int:
        with listing_of(files) as listing:
            return listing.rows

    calls: dict[str, Callable[[], int]] = {
        "bare": lambda: sum(1 for _ in _bare_listing(folder)),
        "store": lambda: sum(1 for _ in store.list("")),
        "discovered": discovered,
    }
    for number in range(rounds + 1):  # the first one warms up
        counts = {}
        for name, call in calls.items():
            started = time.perf_counter()
            counts[name] = call()
            times[name] += [time.perf_counter() - started] if number else []
        if counts["discovered"] != counts["bare"]:
            raise AssertionError(f"{counts} files were found")
    started = time.perf_counter()
    seen, blocks = _windows(files)
    seconds = time.perf_counter() - started
    return {**times, "planned": seconds, "files": seen, "blocks": blocks, "peak": peak_bytes()}


def _bare_listing(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of every file, in the order of their paths: what a listing cannot do without."""
    children = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            children.append((f"{entry.name}/" if is_folder else entry.name, entry))
    for name, entry in sorted(children, key=lambda child: child[0]):
        if name.endswith("/"):
            yield from _bare_listing(entry.path)
        else:
            found = entry.stat()
            yield entry.path, found.st_size, found.st_mtime_ns


def _windows(files: Files) -> tuple[int, int]:
    """Files and blocks of a first run over what is there."""
    gathering = Gathering(files, chosen_format("json", {}, columns=("k",)), 200, 1 << 34)
    seen: set[int] = set()
    blocks = 0
    with listing_of(files) as listing:
        found = found_by(
            listing, iter(()), settling=Settling(0), overwrites="ingest", exists=lambda path: False, keeps_done=False,
            now_ms=0,
        )  # fmt: skip
        for window in Windows(gathering).of(found):
            if not isinstance(window, Window):
                raise AssertionError(window.reason)
            blocks += sum(member.piece.blocks for member in window.members)
            seen.update(hash(member.candidate.path) for member in window.members)
        found.close()
    return len(seen), blocks
