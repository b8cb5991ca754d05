"""SQL through the catalog, beside the calls in Python that do the same."""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import lakemerge
from benchmarks.cases.sql_peers import PEERS
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.memory import measured
from benchmarks.elsewhere import elsewhere
from benchmarks.harness import Rounds, Run, session
from benchmarks.measure import Contender, interleave
from benchmarks.tables import copied, loaded, random_rows
from lakemerge import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["change_all_in_sql", "sql"]

_RATIO, _LOOK_UP_S = 1.3, 0.15


def sql(
    run: Run,
    *,
    rows: Annotated[int, "of the table"] = 3_000_000,
    memory_rows: Annotated[int, "that statements write with the small heap"] = 10_000_000,
    rounds: Rounds = 5,
    parts: Annotated[tuple[str, ...], "what to time"] = (
        "look-up", "insert", "update", "delete", "merge", "delta", "iceberg", "memory",
    ),
    heap: Annotated[str, "of the JVM whose statements' memory is measured"] = "700m",
) -> None:  # fmt: skip
    """Statements in SQL beside the Python calls that do the same: at most 1.3x, and a look-up 0.15 s more.

    A look-up of one key is timed beside ``to_df``. An INSERT of 1 % of the rows is timed beside ``upsert`` of that
    frame, and UPDATE, DELETE and MERGE of 1 % beside ``update_where``, ``delete_where`` and ``merge``. The same three
    statements then change tables of Delta and of Iceberg, each in one Spark with LakeMerge's. Last, an INSERT, an
    UPDATE and a DELETE of all rows of a large table run in a JVM of ``heap``. Every outcome is compared with plain
    arithmetic on the rows.
    """
    if timed := [part for part in parts if part in _PARTS]:
        data = _Data(run, rows)
        with session(run.folder) as spark:
            lakemerge.catalog(spark, _name(run), warehouse=run.folder / "lake")
            bench = _Bench(data, spark, rounds)
            for part in timed:
                _PARTS[part](bench)
    for peer in PEERS:
        if peer in parts:
            _beside(_Data(run, rows), peer, rounds)
    if "memory" in parts:
        _memory(run, memory_rows, heap)


def _name(run: Run) -> str:
    """The catalog's. A session has one warehouse for each."""
    return "bench_" + re.sub(r"\W", "_", run.folder.name)


@dataclass(frozen=True)
class _Statement:
    text: str
    """With ``{t}`` for the table. It may read the view ``source``."""
    rows: int
    """How many rows it changes."""
    expected: tuple[int, ...]
    """Count and sums of the table's rows afterwards, by plain arithmetic."""


@dataclass
class _Data:
    """A table and what statements do to it."""

    run: Run
    rows: int
    original: Path = field(init=False)
    frame: pa.Table = field(init=False)
    """The rows of ``source``: 1 % of the table's, a tenth of them new."""

    def __post_init__(self) -> None:
        self.original = self.run.folder / "original"
        if not self.original.exists():
            loaded(self.original, self.rows, np.random.default_rng(3))
        there = np.arange(0, self.rows, 111)[: self.rows * 9 // 1000]
        keys = np.concatenate([there, np.arange(self.rows, self.rows + self.rows // 1000)])
        self.frame = random_rows(np.random.default_rng(5), keys, 100)

    def between(self) -> tuple[int, int]:
        """The first and the last key of 1 % of the rows."""
        return self.rows // 2, self.rows // 2 + self.rows // 100 - 1

    def columns(self) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
        found = LakeTable.open(self.original).to_arrow(columns=["k", "i0", "ts"])
        return found["k"], found["i0"], found["ts"]

    def update(self) -> _Statement:
        low, high = self.between()
        k, i0, ts = self.columns()
        changed = high - low + 1
        text = f"UPDATE {{t}} SET i0 = i0 + 1 WHERE k BETWEEN {low} AND {high}"
        return _Statement(text, changed, (len(k), _sum(k), _sum(i0) + changed, _sum(ts)))

    def delete(self) -> _Statement:
        low, high = self.between()
        columns = self.columns()
        kept = pc.or_(pc.less(columns[0], low), pc.greater(columns[0], high))
        sums = (_sum(column.filter(kept)) for column in columns)
        text = f"DELETE FROM {{t}} WHERE k BETWEEN {low} AND {high}"
        return _Statement(text, high - low + 1, (self.rows - (high - low + 1), *sums))

    def merge(self) -> _Statement:
        text = (
            "MERGE INTO {t} target USING source ON target.k = source.k "
            "WHEN MATCHED AND source.ts >= target.ts THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        return _Statement(text, self.frame.num_rows, self.with_frame())

    def with_frame(self) -> tuple[int, ...]:
        """Count and sums where each row of the frame, which are all newer, is in the table."""
        columns = self.columns()
        left = pc.invert(pc.is_in(columns[0], self.frame["k"].combine_chunks()))
        named = zip(columns, ("k", "i0", "ts"), strict=True)
        sums = [_sum(column.filter(left)) + _sum(self.frame[name]) for column, name in named]
        return _sum(left) + self.frame.num_rows, *sums


@dataclass
class _Bench:
    data: _Data
    spark: SparkSession
    rounds: int
    run: Run = field(init=False)
    original: Path = field(init=False)
    source: DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.run, self.original = self.data.run, self.data.original
        path = str(self.run.folder / "source")
        self.spark.createDataFrame(self.data.frame).write.parquet(path)
        self.source = self.spark.read.parquet(path)
        self.source.createOrReplaceTempView("source")

    def path(self, name: str) -> Path:
        return self.run.folder / "lake" / "db" / name

    def table(self, name: str) -> LakeTable:
        return LakeTable.open(self.path(name), spark=self.spark)

    def contender(self, name: str, act: Callable[[], object]) -> Contender:
        return Contender(name, act, lambda: copied(self.original, self.path(name)))

    def statement(self, part: str, text: str) -> Contender:
        name = f"{part}_sql"
        return self.contender(name, lambda: self.spark.sql(text.format(t=f"{_name(self.run)}.db.{name}")).collect())

    def call(self, part: str, act: Callable[[LakeTable], object]) -> Contender:
        name = f"{part}_call"
        return self.contender(name, lambda: act(self.table(name)))

    def compare(self, part: str, what: str, contenders: Sequence[Contender], expected: tuple[int, ...]) -> None:
        """Time a statement beside a call, and check the sums of both tables."""
        times = interleave(contenders, rounds=self.rounds)
        statement, call = (contender.name for contender in contenders)
        self.run.report.timed(part, what, times[statement], times[call], target=_RATIO)
        for name in (statement, call):
            found = self.table(name).to_arrow(columns=["k", "i0", "ts"])
            sums = (found.num_rows, *map(_sum, found.columns))
            self.run.report.check(name, [] if sums == expected else [f"sums are {sums}, not {expected}"])


def _look_up(bench: _Bench) -> None:
    copied(bench.original, bench.path("looked"))
    table, keys = bench.table("looked"), itertools.cycle(range(1, bench.data.rows, 997))

    def by_sql() -> None:
        bench.spark.sql(f"SELECT * FROM {_name(bench.run)}.db.looked WHERE k = {next(keys)}").collect()

    def by_call() -> None:
        table.to_df(filter=f"k = {next(keys)}").collect()

    times = interleave([Contender("sql", by_sql), Contender("call", by_call)], rounds=bench.rounds * 2)
    more = statistics.median(times["sql"]) - statistics.median(times["call"])
    what = f"look-up of a key of {bench.data.rows:,}"
    bench.run.report.timed("look-up", f"{what} by SQL / by to_df", times["sql"], times["call"])
    bench.run.report.value("look-up", f"{what}: SQL minus to_df", "s", max(more, 0.0), target=_LOOK_UP_S)
    [row] = bench.spark.sql(f"SELECT k, i0 FROM {_name(bench.run)}.db.looked WHERE k = 5").collect()
    expected = LakeTable.open(bench.original).get({"k": 5})
    right = expected is not None and (row.k, row.i0) == (5, expected["i0"])
    bench.run.report.check("look-up", [] if right else [f"the row of key 5 is {row}, not {expected}"])


def _insert(bench: _Bench) -> None:
    contenders = [
        bench.statement("insert", "INSERT INTO {t} SELECT * FROM source"),
        bench.call("insert", lambda table: table.upsert(bench.source)),
    ]
    what = f"INSERT of {bench.data.frame.num_rows:,} rows / upsert"
    bench.compare("insert", what, contenders, bench.data.with_frame())


def _update(bench: _Bench) -> None:
    found, (low, high) = bench.data.update(), bench.data.between()
    contenders = [
        bench.statement("update", found.text),
        bench.call("update", lambda table: table.update_where(f"k BETWEEN {low} AND {high}", {"i0": "i0 + 1"})),
    ]
    bench.compare("update", f"UPDATE of {found.rows:,} rows / update_where", contenders, found.expected)


def _delete(bench: _Bench) -> None:
    found, (low, high) = bench.data.delete(), bench.data.between()
    contenders = [
        bench.statement("delete", found.text),
        bench.call("delete", lambda table: table.delete_where(f"k BETWEEN {low} AND {high}")),
    ]
    bench.compare("delete", f"DELETE of {found.rows:,} rows / delete_where", contenders, found.expected)


def _merge(bench: _Bench) -> None:
    def by_call(table: LakeTable) -> None:
        merging = table.merge(bench.source, "target.k = source.k")
        merging.whenMatchedUpdateAll("source.ts >= target.ts").whenNotMatchedInsertAll().execute()

    found = bench.data.merge()
    contenders = [bench.statement("merge", found.text), bench.call("merge", by_call)]
    bench.compare("merge", f"MERGE of {found.rows:,} rows / merge", contenders, found.expected)


_PARTS = {"look-up": _look_up, "insert": _insert, "update": _update, "delete": _delete, "merge": _merge}


def _beside(data: _Data, peer: str, rounds: int) -> None:
    """UPDATE, DELETE and MERGE of 1 % of the rows, beside the same statements on a table of another format."""
    run, folder = data.run, data.run.folder / peer
    python = ENGINES[peer].python(run.environments) if ENGINES[peer].environment else None
    if python is not None and not python.exists():
        run.report.say(f"NOT RUN: {peer}: there is no {python} (make bench-sql makes it)")
        return
    folder.mkdir()
    rows = folder / "source"
    rows.mkdir()
    half = -(-data.frame.num_rows // 2)
    for number in range(2):
        pq.write_table(data.frame.slice(number * half, half), rows / f"{number}.parquet")
    found = {"UPDATE": data.update(), "DELETE": data.delete(), "MERGE": data.merge()}
    told = {name: statement.text for name, statement in found.items()}
    given = {"peer": peer, "original": str(data.original), "source": str(rows), "folder": str(folder)}
    answers = elsewhere("benchmarks.cases.sql_peers", "beside", python=python, texts=told, rounds=rounds, **given)
    for name, statement in found.items():
        times, sums = answers[name]
        what = f"{peer.title()}'s {name} of {statement.rows:,} rows / LakeMerge's, on Spark {answers['spark']}"
        run.report.timed(peer, what, times[peer], times["lakemerge"], target=1, at_least=True)
        for engine, own in sums.items():
            wrong = [] if own == statement.expected else [f"sums are {own}, not {statement.expected}"]
            run.report.check(f"{peer}, {name}, {engine}", wrong)


def _sum(column: Any) -> int:
    return int(pc.sum(column).as_py() or 0)


def _memory(run: Run, rows: int, heap: str) -> None:
    original = run.folder / "lake" / "db" / "large"
    loaded(original, rows, np.random.default_rng(3))
    before = _sum(LakeTable.open(original).to_arrow(columns=["i0"])["i0"])
    for name, text, expected in (
        ("INSERT", "INSERT INTO bench.db.{name} SELECT k, ts, i0 + 1, i1, i2, f0, f1, d0, s0, s1 FROM bench.db.large",
         (rows, before + rows)),
        ("UPDATE", "UPDATE bench.db.{name} SET i0 = i0 + 1", (rows, before + rows)),
        ("DELETE", "DELETE FROM bench.db.{name}", (0, 0)),
    ):  # fmt: skip
        work = copied(original, original.with_name(name.lower()))
        statement = text.format(name=name.lower())
        found = elsewhere(
            "benchmarks.cases.sql", "change_all_in_sql", warehouse=str(run.folder / "lake"), text=statement, heap=heap
        )
        left = LakeTable.open(work).to_arrow(columns=["i0"])["i0"]
        sums = (len(left), _sum(left))
        run.report.check(f"memory, {name}", [] if sums == expected else [f"count and sum are {sums}, not {expected}"])
        what = f"{name} of {rows:,} rows with -Xmx{heap}"
        run.report.value("memory", what, "s", found["seconds"])
        for part in ("driver", "workers", "Java"):
            run.report.value("memory", f"{what}: {part}", "bytes", found[part])


def change_all_in_sql(warehouse: str, text: str, heap: str) -> dict[str, float]:
    """Run a statement in a JVM of its own; the memory and the seconds."""
    settings = {"spark.driver.memory": heap}
    with session(Path(warehouse).parent / "spark", settings) as spark, measured(0.1) as peak:
        lakemerge.catalog(spark, "bench", warehouse=warehouse)
        started = time.perf_counter()
        spark.sql(text).collect()
        seconds = time.perf_counter() - started
    return {**peak.parts, "seconds": seconds}
