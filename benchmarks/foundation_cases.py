"""The cases of the foundation benchmark that run on Spark: load, upsert, read and compact.

The floor of each is Spark itself, with its default settings, on plain Parquet files of the same
rows. Every answer is compared with rows that DuckDB computed from the inputs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.foundation_data import DIRTY_FRAMES, RECENT_FRAMES, Inputs, merged_sql
from benchmarks.measure import Contender, Line, Report, files_below, interleave, size_of
from benchmarks.tpch import LINEITEM, compare, connect
from lakemerge import LakeTable, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Bench", "DeltaMerge", "compact", "load", "read", "upsert"]

_UPSERT_TARGETS = {"small": 1.2, "large": 1.4}
_CLEAN_TARGETS = dict.fromkeys(
    ("full scan", "two-column aggregate", "count", "filter on one week", "key look-up"), 1.05
)
_READ_TARGETS: Mapping[str, Mapping[str, float]] = {
    "clean, as loaded": _CLEAN_TARGETS,
    "clean, compacted": _CLEAN_TARGETS,
    "minor-compacted": {"full scan": 1.2, "two-column aggregate": 1.15, "filter on one week": 1.3, "key look-up": 1.3},
    "minor-compacted, recent keys": {"full scan": 1.05},
    "dirty": {"full scan": 2.5},
}
_DELTA_ROUNDS = 3
"""A Delta MERGE takes so long that a few rounds tell enough."""


@dataclass(frozen=True)
class Bench:
    """What the cases share. Tables are made on first use and kept for later cases."""

    spark: SparkSession
    inputs: Inputs
    scratch: Path
    """A folder of this run alone."""
    report: Report
    rounds: int
    delta: bool
    """Whether the session has Delta, to compare with its MERGE."""
    large: bool
    _tables: dict[str, LakeTable] = field(default_factory=dict)

    def parquet(self, path: Path) -> DataFrame:
        return self.spark.read.schema(LINEITEM.ddl).parquet(str(path))

    def table(self, name: str, base: Path, frames: Sequence[str] = ()) -> LakeTable:
        """The table of this name: loaded from ``base``, with ``frames`` upserted, one commit each."""
        if name not in self._tables:
            table = self.create(self.scratch / name)
            table.upsert(self.parquet(base))
            for frame in frames:
                table.upsert(self.parquet(self.inputs.frame(frame)))
            self._tables[name] = table
        return self._tables[name]

    def dirty(self) -> LakeTable:
        return self.table("dirty", self.inputs.initial, DIRTY_FRAMES)

    def create(self, path: Path) -> LakeTable:
        """A new, empty table, in place of any other."""
        shutil.rmtree(path, ignore_errors=True)
        return LakeTable.create(
            str(path), LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], spark=self.spark
        )

    def copy(self, table: LakeTable, name: str, settings: Settings | None = None) -> LakeTable:
        """A table of its own with the same files: they never change, so that links do."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(table.url, path, copy_function=os.link)
        return LakeTable.open(path, spark=self.spark, settings=settings)

    def check(self, what: str, frame: DataFrame, base: Path, frames: Sequence[str]) -> None:
        """Compare every value with the expected rows; not timed."""
        found, scratch = self.scratch / "found", self.scratch / "checks"
        scratch.mkdir(exist_ok=True)
        shutil.rmtree(found, ignore_errors=True)
        frame.write.parquet(str(found))
        with connect(scratch) as db:
            expected = merged_sql(base, [self.inputs.frame(name) for name in frames])
            db.execute(f"CREATE TEMP TABLE expected AS {expected}")
            self.report.check(what, compare(db, LINEITEM, f"read_parquet('{found}/*.parquet')", "expected").problems)
        shutil.rmtree(found)


def load(bench: Bench) -> None:
    """The first upsert of a table, against a plain write of the same frame."""
    source = bench.parquet(bench.inputs.initial)
    plain, path = bench.scratch / "load-plain", bench.scratch / "load"
    created: list[LakeTable] = []

    def create() -> None:
        created[:] = [bench.create(path)]

    times = interleave(
        [
            Contender(
                "plain", lambda: source.write.parquet(str(plain)), lambda: shutil.rmtree(plain, ignore_errors=True)
            ),
            Contender("load", lambda: created[0].upsert(source), create),
        ],
        rounds=bench.rounds,
    )
    detail = {"rows": bench.inputs.initial_rows, "buckets": created[0].view.config.buckets}
    what = f"first upsert of {bench.inputs.initial_rows:,} rows / plain write"
    bench.report.add(Line.timed("load", what, times["load"], times["plain"], target=1.6, detail=detail))
    size, floor = size_of(path), size_of(plain)
    bench.report.add(Line(case="load", what=f"{what}: bytes", unit="bytes", value=size, floor=floor, target=1.1))
    bench.check("load", created[0].to_df(), bench.inputs.initial, ())


def upsert(bench: Bench) -> None:
    """Upserts into a loaded table, against a plain append of the same frame, and Delta's MERGE."""
    base = bench.inputs.initial
    table = bench.table("upserted", base)
    plain = bench.scratch / "upsert-plain"
    merge = DeltaMerge(bench, base) if bench.delta else None
    for name, target in _UPSERT_TARGETS.items():
        frame = bench.parquet(bench.inputs.frame(name))
        append, insert = _append_to(plain, frame), _upsert_into(table, frame)
        contenders = [Contender("plain", append), Contender("upsert", insert)]
        if merge is not None:
            contenders.append(merge.contender(name))
        times = interleave(contenders, rounds=bench.rounds)
        what = f"upsert of {bench.inputs.frame_rows(name):,} rows"
        bench.report.add(Line.timed("upsert", f"{what} / plain append", times["upsert"], times["plain"], target=target))
        if merge is not None:
            line = Line.timed(
                "upsert", f"Delta MERGE / {what}", times["delta"], times["upsert"], target=8, at_least=True
            )
            bench.report.add(line)
            merge.check(name)
        ours, theirs = _written(Path(table.url), insert), _written(plain, append)
        tasks = sum(path.endswith(".parquet") for path in theirs)
        size, floor = sum(ours.values()), sum(theirs.values())
        bench.report.add(Line(case="upsert", what=f"{what}: bytes", unit="bytes", value=size, floor=floor, target=1.1))
        what = f"{what}, {tasks} tasks: objects"
        bench.report.add(Line(case="upsert", what=what, unit="objects", value=len(ours), target=tasks + 2))
    bench.check("upsert", table.to_df(), base, tuple(_UPSERT_TARGETS))
    _sizes(bench)


def _sizes(bench: Bench) -> None:
    """The same upserts into tables of different size: what an upsert costs must not depend on it."""
    inputs = bench.inputs
    bigger = ("tenfold", inputs.tenfold()) if bench.large else ("whole", inputs.initial)
    bases = dict([("third", inputs.third), bigger])
    tables = {name: bench.table(f"sized-{name}", base) for name, base in bases.items()}
    rows = {name: table.to_df(columns=["l_orderkey"]).count() for name, table in tables.items()}
    for name in _UPSERT_TARGETS:
        frame = bench.parquet(inputs.frame(name))
        contenders = [Contender(size, _upsert_into(table, frame)) for size, table in tables.items()]
        times = interleave(contenders, rounds=bench.rounds)
        what = f"upsert of {inputs.frame_rows(name):,} into {rows[bigger[0]]:,} rows / {rows['third']:,} rows"
        detail = {"buckets": {size: table.view.config.buckets for size, table in tables.items()}}
        bench.report.add(Line.timed("upsert", what, times[bigger[0]], times["third"], target=1.2, detail=detail))
    for name, table in tables.items():
        bench.check(f"upsert into {rows[name]:,} rows", table.to_df(), bases[name], tuple(_UPSERT_TARGETS))


def _upsert_into(table: LakeTable, frame: DataFrame) -> Callable[[], object]:
    return lambda: table.upsert(frame)


def _append_to(path: Path, frame: DataFrame) -> Callable[[], object]:
    return lambda: frame.write.mode("append").parquet(str(path))


class DeltaMerge:
    """Delta's MERGE with deletion vectors: the same meaning by hand, the same rows, the same frames."""

    def __init__(self, bench: Bench, base: Path) -> None:
        self._bench = bench
        self._base = base
        self._path = bench.scratch / "delta"
        writer = bench.parquet(base).write.format("delta").option("delta.enableDeletionVectors", "true")
        writer.save(str(self._path))
        for name in _UPSERT_TARGETS:
            bench.parquet(bench.inputs.frame(name)).createOrReplaceTempView(f"bench_{name}")

    def contender(self, name: str) -> Contender:
        """Each round starts from the table as loaded."""
        keys = " AND ".join(f"t.{key} = s.{key}" for key in LINEITEM.key)
        newer = f"s.{LINEITEM.ordering} >= t.{LINEITEM.ordering}"
        statement = f"""
            MERGE INTO delta.`{self._path}` t USING bench_{name} s ON {keys}
            WHEN MATCHED AND {newer} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
        restore = f"RESTORE TABLE delta.`{self._path}` TO VERSION AS OF 0"
        spark = self._bench.spark
        return Contender("delta", lambda: spark.sql(statement), lambda: spark.sql(restore), _DELTA_ROUNDS)

    def check(self, name: str) -> None:
        """The last round's rows: a MERGE that did less than an upsert would be no measure for it."""
        frame = self._bench.spark.read.format("delta").load(str(self._path))
        self._bench.check(f"Delta MERGE of {name}", frame, self._base, (name,))


def _written(folder: Path, write: Callable[[], object]) -> Mapping[str, int]:
    """The objects that one write added, by name, without those of a checkpoint, which any commit may be due for."""
    before = files_below(folder)
    write()
    after = files_below(folder)
    return {
        path: size
        for path, size in after.items()
        if path not in before and ".checkpoint" not in path and not path.endswith("_last_checkpoint")
    }


def read(bench: Bench) -> None:
    """Reads of a loaded, a dirty and a compacted table, against a scan of the same rows as plain Parquet."""
    inputs = bench.inputs
    dirty = bench.dirty()
    compacted = bench.copy(dirty, "read-compacted")
    compacted.compact()
    merged = bench.copy(dirty, "read-minor")
    merged.compact(minor=True)
    recent = bench.table("recent", inputs.initial, RECENT_FRAMES)
    recent.compact(minor=True)
    loaded = bench.table("dirty-base", inputs.initial)
    sources = {"initial": inputs.initial, "merged": inputs.merged, "recent": inputs.merged_recent}
    floors = {name: bench.scratch / f"read-plain-{name}" for name in sources}
    for name, source in sources.items():
        bench.parquet(source).write.mode("overwrite").parquet(str(floors[name]))
    subjects = {
        "clean, as loaded": (loaded, "initial"),
        "clean, compacted": (compacted, "merged"),
        "minor-compacted": (merged, "merged"),
        "minor-compacted, recent keys": (recent, "recent"),
        "dirty": (dirty, "merged"),
        "dirty, again": (dirty, "merged"),
    }
    frames: dict[str, Callable[..., DataFrame]] = {name: _plain(bench, path) for name, path in floors.items()}
    frames |= {name: table.to_df for name, (table, _) in subjects.items()}
    # An open table keeps what its first read merged; each read of this one is a first one.
    frames["dirty"] = lambda **asked: LakeTable.open(dirty.url, spark=bench.spark).to_df(**asked)
    for what, query in _queries(inputs).items():
        answers: dict[str, object] = {}
        contenders = [Contender(name, partial(query.answer, name, frame, answers)) for name, frame in frames.items()]
        times = interleave(contenders, rounds=bench.rounds)
        for name, (_, floor) in subjects.items():
            target = _READ_TARGETS.get(name, {}).get(what)
            line = Line.timed("read", f"{what}, {name} / plain", times[name], times[floor], target=target)
            bench.report.add(line)
            if answers[name] != answers[floor]:
                bench.report.check(f"read: {what}, {name}", [f"{answers[name]}, expected {answers[floor]}"])
        if what == "count":  # a ratio says little: plain Parquet's footers know the answer
            over = [ours - floor for ours, floor in zip(times["minor-compacted"], times["merged"], strict=True)]
            bench.report.add(Line.timed("read", "count, minor-compacted, beyond plain", over, target=0.2))
    bench.check("read of the loaded table", loaded.to_df(), inputs.initial, ())
    bench.check("read of the dirty table", dirty.to_df(), inputs.initial, DIRTY_FRAMES)
    bench.check("read of the minor-compacted table", merged.to_df(), inputs.initial, DIRTY_FRAMES)
    bench.check("read of the table with recent changes", recent.to_df(), inputs.initial, RECENT_FRAMES)
    bench.check("read of the compacted table", compacted.to_df(), inputs.initial, DIRTY_FRAMES)
    _first_read(bench, merged)


def _first_read(bench: Bench, merged: LakeTable) -> None:
    """The first read after a commit to a minor-compacted table, by a program that has nothing of it in memory, against
    a minor compaction of the commit and such a read after it."""
    pending = bench.copy(merged, "first-pending")
    pending.upsert(bench.parquet(bench.inputs.frame("small")))
    after = bench.copy(pending, "first-after")
    after.compact(minor=True)
    opened: dict[str, LakeTable] = {}

    def open_again(name: str, table: LakeTable) -> None:
        opened[name] = LakeTable.open(table.url, spark=bench.spark)

    def copy() -> None:
        opened["minor"] = bench.copy(pending, "first-minor")

    def scan(name: str) -> None:
        opened[name].to_df().write.format("noop").mode("overwrite").save()

    contenders = [
        Contender(name, partial(scan, name), partial(open_again, name, table))
        for name, table in (("first", pending), ("after", after))
    ]
    contenders.append(Contender("minor", lambda: opened["minor"].compact(minor=True), copy))
    times = interleave(contenders, rounds=bench.rounds)
    rows = bench.inputs.frame_rows("small")
    both = [sum(pair) for pair in zip(times["minor"], times["after"], strict=True)]
    what = f"first full scan after {rows:,} rows / their minor compaction and a scan"
    detail = {"premerged file slices": opened["first"].explain_read().first}
    bench.report.add(Line.timed("read", what, times["first"], both, target=1.0, detail=detail))
    frames = (*DIRTY_FRAMES, "small")
    for name in ("first", "after"):
        bench.check(f"{name} read after a commit", opened[name].to_df(), bench.inputs.initial, frames)


@dataclass(frozen=True, slots=True)
class _Query:
    columns: list[str] | None
    filter: str | None
    of: Callable[[DataFrame], object]

    def answer(self, name: str, frame: Callable[..., DataFrame], answers: dict[str, object]) -> None:
        """Run the query, planning included, and keep its answer under ``name``."""
        answers[name] = self.of(frame(columns=self.columns, filter=self.filter))


def _queries(inputs: Inputs) -> dict[str, _Query]:
    with connect(inputs.folder) as db:
        query = f"SELECT l_orderkey, l_linenumber FROM read_parquet('{inputs.frame('dirty_1')}/*.parquet') LIMIT 1"
        found = db.execute(query).fetchone()
    order, line = found or (0, 0)
    return {
        "full scan": _Query(None, None, lambda frame: frame.write.format("noop").mode("overwrite").save()),
        "two-column aggregate": _Query(
            ["l_shipmode", "l_extendedprice"],
            None,
            lambda frame: sorted(map(str, frame.groupBy("l_shipmode").sum("l_extendedprice").collect())),
        ),
        "count": _Query(["l_orderkey"], None, lambda frame: frame.count()),
        "filter on one week": _Query(
            ["l_shipdate", "l_extendedprice", "l_comment"],
            "l_shipdate >= DATE '1995-03-01' AND l_shipdate < DATE '1995-03-08'",
            lambda frame: frame.selectExpr("count(1)", "sum(l_extendedprice)", "min(l_comment)").collect(),
        ),
        "key look-up": _Query(
            list(LINEITEM.names),
            f"l_orderkey = {order} AND l_linenumber = {line}",
            lambda frame: frame.collect(),
        ),
    }


def _plain(bench: Bench, path: Path) -> Callable[..., DataFrame]:
    """Plain Parquet files behind the signature of ``LakeTable.to_df``."""

    def frame(*, columns: Sequence[str] | None, filter: str | None) -> DataFrame:
        rows = bench.parquet(path)
        rows = rows if filter is None else rows.where(filter)
        return rows if columns is None else rows.select(*columns)

    return frame


def compact(bench: Bench) -> None:
    """Compaction of the dirty table, against reading and writing its merged rows as plain Parquet."""
    dirty = bench.dirty()
    plain, target = bench.scratch / "compact-plain", bench.scratch / "compact-target"
    bench.parquet(bench.inputs.merged).write.mode("overwrite").parquet(str(plain))
    copies: dict[str, LakeTable] = {}

    def copy(name: str) -> None:
        copies[name] = bench.copy(dirty, name)

    def compact_copy(name: str) -> None:
        copies[name].compact(minor=name == "minor")

    def rewrite() -> None:
        bench.parquet(plain).write.parquet(str(target))

    times = interleave(
        [
            Contender("plain", rewrite, lambda: shutil.rmtree(target, ignore_errors=True)),
            *(Contender(name, partial(compact_copy, name), partial(copy, name)) for name in ("minor", "compact")),
        ],
        rounds=bench.rounds,
    )
    what = f"compaction of {len(DIRTY_FRAMES)} commits / plain read and write"
    bench.report.add(Line.timed("compact", what, times["compact"], times["plain"], target=1.3))
    line = Line.timed("compact", "minor compaction / full compaction", times["minor"], times["compact"], target=0.3)
    bench.report.add(line)
    size = sum(add.size_bytes for add in copies["compact"].view.snapshot.files.values())
    bench.report.add(Line(case="compact", what=f"{what}: bytes", unit="bytes", value=size, floor=size_of(target)))
    if not all(file_slice.is_clean for file_slice in copies["compact"].view.file_slices):
        bench.report.check("compact", ["logs are left"])
    for name, table in copies.items():
        bench.check(name, table.to_df(), bench.inputs.initial, DIRTY_FRAMES)
