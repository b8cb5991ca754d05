"""The costs that LakeMerge is judged by, each as a ratio to a floor measured in the same run.

The floor of what runs on Spark is Spark itself, with its default settings, on plain Parquet files of the same rows.
Every answer is compared with rows that DuckDB computed from the inputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchmarks.cases.first_reads import first_reads
from benchmarks.cases.foundation_log import metadata, requests
from benchmarks.compare.queries import Answer, Query, normalised, queries
from benchmarks.foundation_data import DIRTY_FRAMES, RECENT_FRAMES, Inputs, merged_sql
from benchmarks.harness import Rounds, Run, Seed, session
from benchmarks.measure import Contender, Report, files_below, interleave, size_of
from benchmarks.tables import copied
from benchmarks.tpch import LINEITEM, compare, connect
from lakemerge import LakeTable, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Bench", "foundation"]

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
"""A Delta MERGE takes so long that a few rounds are enough."""


def foundation(
    run: Run,
    *,
    scale: Annotated[float, "TPC-H scale factor; 0.5 is 3 M line items"] = 0.5,
    parts: Annotated[tuple[str, ...], "what to time"] = (
        "load",
        "upsert",
        "read",
        "first",
        "compact",
        "metadata",
        "requests",
    ),
    rounds: Rounds = 5,
    delta: Annotated[bool, "also time Delta's MERGE of the same frames"] = True,
    large: Annotated[bool, "compare upserts with a table of ten times the rows, not three"] = False,
    profile: Annotated[bool, "print where the time of load, upsert and compact goes"] = False,
    seed: Seed = 7,
    files: Annotated[int, "of the table with a long log"] = 10_000,
    commits: Annotated[int, "of that log before its checkpoint, and as many after"] = 1_000,
) -> None:
    """The costs that LakeMerge is judged by, each as a ratio to a floor measured in the same run.

    One Spark session with two cores. Every part warms up, then takes the medians of rounds in which floor and subject
    alternate. In the part ``first`` each sample is a session of its own, and nothing warms up.
    """
    run.report.say(f"preparing line items of scale {scale:g}")
    inputs = Inputs.prepare(run.data, scale=scale, seed=seed)
    if asked := [name for name in _ON_SPARK if name in parts]:
        delta = delta and "upsert" in asked
        with session(run.folder, delta=delta) as spark:
            bench = Bench(spark, inputs, run.folder, run.report, rounds, delta, large)
            for name in asked:
                _ON_SPARK[name](bench)
            if profile:
                from benchmarks.cases import phases

                phases.profile(bench, asked)
    if "metadata" in parts:
        metadata(inputs, run.folder, run.report, rounds=rounds, files=files, commits=commits)
    if "requests" in parts:
        requests(inputs, run.folder, run.report)


@dataclass(frozen=True)
class Bench:
    """What the parts on Spark share. Tables are made on first use and kept for later parts."""

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

    def plain(self, name: str, rows: Path) -> Path:
        """The rows as Spark writes them by default."""
        path = self.scratch / f"plain-{name}"
        self.parquet(rows).write.mode("overwrite").parquet(str(path))
        return path

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
        key, ordering = list(LINEITEM.key), [LINEITEM.ordering]
        return LakeTable.create(str(path), LINEITEM.ddl, key=key, ordering=ordering, spark=self.spark)

    def copy(self, table: LakeTable, name: str, settings: Settings | None = None) -> LakeTable:
        return LakeTable.open(copied(Path(table.url), self.scratch / name), spark=self.spark, settings=settings)

    def check(self, what: str, frame: DataFrame, base: Path, frames: Sequence[str]) -> None:
        """Compare every value with the expected rows; not timed."""
        found, scratch = self.scratch / "found", self.scratch / "checks"
        scratch.mkdir(exist_ok=True)
        frame.write.mode("overwrite").parquet(str(found))
        with connect(scratch) as db:
            expected = merged_sql(base, [self.inputs.frame(name) for name in frames])
            db.execute(f"CREATE TEMP TABLE expected AS {expected}")
            self.report.check(what, compare(db, LINEITEM, f"read_parquet('{found}/*.parquet')", "expected").problems)
        shutil.rmtree(found)


def _load(bench: Bench) -> None:
    """The first upsert of a table, against a plain write of the same frame."""
    source = bench.parquet(bench.inputs.initial)
    plain, path = bench.scratch / "load-plain", bench.scratch / "load"
    created: dict[str, LakeTable] = {}
    contenders = [
        Contender("plain", lambda: source.write.parquet(str(plain)), lambda: _remove(plain)),
        Contender("load", lambda: created["load"].upsert(source), lambda: created.update(load=bench.create(path))),
    ]
    times = interleave(contenders, rounds=bench.rounds)
    detail = {"rows": bench.inputs.initial_rows, "buckets": created["load"].opened.view.config.buckets}
    what = f"first upsert of {bench.inputs.initial_rows:,} rows / plain write"
    bench.report.timed("load", what, times["load"], times["plain"], target=1.6, detail=detail)
    bench.report.value("load", f"{what}: bytes", "bytes", size_of(path), size_of(plain), target=1.1)
    bench.check("load", created["load"].to_df(), bench.inputs.initial, ())


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _upsert(bench: Bench) -> None:
    """Upserts into a loaded table, against a plain append of the same frame, and Delta's MERGE."""
    base, report = bench.inputs.initial, bench.report
    table = bench.table("upserted", base)
    plain = bench.scratch / "upsert-plain"
    if bench.delta:
        load_delta(bench, base)
    for name, target in _UPSERT_TARGETS.items():
        frame = bench.parquet(bench.inputs.frame(name))
        append, insert = _append_to(plain, frame), partial(table.upsert, frame)
        contenders = [Contender("plain", append), Contender("upsert", insert)]
        if bench.delta:
            contenders.append(delta_merge(bench, name))
        times = interleave(contenders, rounds=bench.rounds)
        what = f"upsert of {bench.inputs.frame_rows(name):,} rows"
        report.timed("upsert", f"{what} / plain append", times["upsert"], times["plain"], target=target)
        if bench.delta:
            report.timed("upsert", f"Delta MERGE / {what}", times["delta"], times["upsert"], target=8, at_least=True)
            check_delta(bench, base, name)
        ours, theirs = _written(Path(table.url), insert), _written(plain, append)
        tasks = sum(path.endswith(".parquet") for path in theirs)
        report.value("upsert", f"{what}: bytes", "bytes", sum(ours.values()), sum(theirs.values()), target=1.1)
        report.value("upsert", f"{what}, {tasks} tasks: objects", "objects", len(ours), target=tasks + 2)
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
        contenders = [Contender(size, partial(table.upsert, frame)) for size, table in tables.items()]
        times = interleave(contenders, rounds=bench.rounds)
        what = f"upsert of {inputs.frame_rows(name):,} into {rows[bigger[0]]:,} rows / {rows['third']:,} rows"
        detail = {"buckets": {size: table.opened.view.config.buckets for size, table in tables.items()}}
        bench.report.timed("upsert", what, times[bigger[0]], times["third"], target=1.2, detail=detail)
    for name, table in tables.items():
        bench.check(f"upsert into {rows[name]:,} rows", table.to_df(), bases[name], tuple(_UPSERT_TARGETS))


def _append_to(path: Path, frame: DataFrame) -> Callable[[], object]:
    return lambda: frame.write.mode("append").parquet(str(path))


def load_delta(bench: Bench, base: Path) -> None:
    """Delta's table of the same rows, with deletion vectors."""
    writer = bench.parquet(base).write.format("delta").option("delta.enableDeletionVectors", "true")
    writer.save(str(bench.scratch / "delta"))


def delta_merge(bench: Bench, name: str) -> Contender:
    """Delta's MERGE of the same frame, with the same meaning by hand. Each round starts from the table as loaded."""
    path, spark = bench.scratch / "delta", bench.spark
    bench.parquet(bench.inputs.frame(name)).createOrReplaceTempView(f"bench_{name}")
    keys = " AND ".join(f"t.{key} = s.{key}" for key in LINEITEM.key)
    statement = f"""
        MERGE INTO delta.`{path}` t USING bench_{name} s ON {keys}
        WHEN MATCHED AND s.{LINEITEM.ordering} >= t.{LINEITEM.ordering} THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *"""
    restore = f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0"
    return Contender("delta", lambda: spark.sql(statement), lambda: spark.sql(restore), _DELTA_ROUNDS)


def check_delta(bench: Bench, base: Path, name: str) -> None:
    """The last round's rows: a MERGE that did less than an upsert would be no measure for it."""
    frame = bench.spark.read.format("delta").load(str(bench.scratch / "delta"))
    bench.check(f"Delta MERGE of {name}", frame, base, (name,))


def _written(folder: Path, write: Callable[[], object]) -> Mapping[str, int]:
    """The objects that one write added, by name, without those of a checkpoint, which any commit may be due for."""
    before = files_below(folder)
    write()
    added = {path: size for path, size in files_below(folder).items() if path not in before}
    return {path: size for path, size in added.items() if "checkpoint" not in path}


def _read(bench: Bench) -> None:
    """Reads of a loaded, a dirty and a compacted table, against a scan of the same rows as plain Parquet."""
    inputs, dirty = bench.inputs, bench.dirty()
    compacted = bench.copy(dirty, "read-compacted")
    compacted.compact()
    merged = bench.copy(dirty, "read-minor")
    merged.compact(minor=True)
    recent = bench.table("recent", inputs.initial, RECENT_FRAMES)
    recent.compact(minor=True)
    loaded = bench.table("dirty-base", inputs.initial)
    sources = {"initial": inputs.initial, "merged": inputs.merged, "recent": inputs.merged_recent}
    subjects = {
        "clean, as loaded": (loaded, "initial"),
        "clean, compacted": (compacted, "merged"),
        "minor-compacted": (merged, "merged"),
        "minor-compacted, recent keys": (recent, "recent"),
        "dirty": (dirty, "merged"),
        "dirty, again": (dirty, "merged"),
    }
    frames = {name: _plain(bench, bench.plain(name, source)) for name, source in sources.items()}
    frames |= {name: table.to_df for name, (table, _) in subjects.items()}
    # An open table keeps what its first read merged; each read of this one is a first one.
    frames["dirty"] = lambda **asked: LakeTable.open(dirty.url, spark=bench.spark).to_df(**asked)
    for query in _queries(inputs):
        answers: dict[str, Answer] = {}
        contenders = [Contender(name, partial(_answer, query, name, frame, answers)) for name, frame in frames.items()]
        times = interleave(contenders, rounds=bench.rounds)
        for name, (_, floor) in subjects.items():
            target = _READ_TARGETS.get(name, {}).get(query.name)
            bench.report.timed("read", f"{query.name}, {name} / plain", times[name], times[floor], target=target)
            wrong = [] if answers[name] == answers[floor] else [f"{answers[name]}, expected {answers[floor]}"]
            bench.report.check(f"read: {query.name}, {name}", wrong)
        if query.name == "count":  # a ratio says little: plain Parquet's footers know the answer
            over = [ours - floor for ours, floor in zip(times["minor-compacted"], times["merged"], strict=True)]
            bench.report.timed("read", "count, minor-compacted, beyond plain", over, target=0.2)
    for what, table, upserted in (
        ("loaded table", loaded, ()),
        ("dirty table", dirty, DIRTY_FRAMES),
        ("minor-compacted table", merged, DIRTY_FRAMES),
        ("table with recent changes", recent, RECENT_FRAMES),
        ("compacted table", compacted, DIRTY_FRAMES),
    ):
        bench.check(f"read of the {what}", table.to_df(), inputs.initial, upserted)
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
    both = [sum(pair) for pair in zip(times["minor"], times["after"], strict=True)]
    rows, detail = bench.inputs.frame_rows("small"), {"premerged file slices": opened["first"].explain_read().first}
    what = f"first full scan after {rows:,} rows / their minor compaction and a scan"
    bench.report.timed("read", what, times["first"], both, target=1.0, detail=detail)
    for name in ("first", "after"):
        frames = (*DIRTY_FRAMES, "small")
        bench.check(f"{name} read after a commit", opened[name].to_df(), bench.inputs.initial, frames)


def _queries(inputs: Inputs) -> Sequence[Query]:
    """Those of the comparison; the look-up takes all columns."""
    with connect(inputs.folder) as db:
        query = f"SELECT l_orderkey, l_linenumber FROM read_parquet('{inputs.frame('dirty_1')}/*.parquet') LIMIT 1"
        order, line = db.execute(query).fetchone() or (0, 0)
    *others, look_up = queries(order, line)
    return [*others, replace(look_up, columns=LINEITEM.names, select=", ".join(LINEITEM.names))]


def _answer(query: Query, name: str, frame: Callable[..., DataFrame], answers: dict[str, Answer]) -> None:
    """Run the query, planning included, and keep its answer under ``name``. A full scan has none."""
    rows, select = frame(columns=list(query.columns) or None, filter=query.condition), query.select.split(", ")
    if not query.select:
        rows.write.format("noop").mode("overwrite").save()
        answers[name] = ()
    elif query.group_by:
        from pyspark.sql.functions import expr

        answers[name] = normalised(rows.groupBy(query.group_by).agg(*map(expr, select[1:])).collect())
    else:
        answers[name] = normalised(rows.selectExpr(*select).collect())


def _plain(bench: Bench, path: Path) -> Callable[..., DataFrame]:
    """Plain Parquet files behind the signature of ``LakeTable.to_df``."""

    def frame(*, columns: Sequence[str] | None, filter: str | None) -> DataFrame:
        rows = bench.parquet(path)
        rows = rows if filter is None else rows.where(filter)
        return rows if columns is None else rows.select(*columns)

    return frame


def _compact(bench: Bench) -> None:
    """Compaction of the dirty table, against reading and writing its merged rows as plain Parquet."""
    dirty, target = bench.dirty(), bench.scratch / "compact-target"
    plain = bench.plain("compact", bench.inputs.merged)
    copies: dict[str, LakeTable] = {}

    def copy(name: str) -> None:
        copies[name] = bench.copy(dirty, name)

    def compact(name: str) -> None:
        copies[name].compact(minor=name == "minor")

    contenders = [
        Contender("plain", lambda: bench.parquet(plain).write.parquet(str(target)), lambda: _remove(target)),
        *(Contender(name, partial(compact, name), partial(copy, name)) for name in ("minor", "compact")),
    ]
    times = interleave(contenders, rounds=bench.rounds)
    what = f"compaction of {len(DIRTY_FRAMES)} commits / plain read and write"
    bench.report.timed("compact", what, times["compact"], times["plain"], target=1.3)
    bench.report.timed("compact", "minor compaction / full compaction", times["minor"], times["compact"], target=0.3)
    view = copies["compact"].opened.view
    size = sum(add.size_bytes for add in view.snapshot.files.values())
    bench.report.value("compact", f"{what}: bytes", "bytes", size, size_of(target))
    clean = all(file_slice.is_clean for file_slice in view.file_slices)
    bench.report.check("compact", [] if clean else ["logs are left"])
    for name, table in copies.items():
        bench.check(name, table.to_df(), bench.inputs.initial, DIRTY_FRAMES)


def _first(bench: Bench) -> None:
    """The first read of a session, against a scan of the same rows as plain Parquet."""
    plain = bench.plain("first", bench.inputs.merged)
    first_reads(bench.report, bench.scratch, str(plain), bench.dirty().url, rounds=bench.rounds)


_ON_SPARK: Mapping[str, Callable[[Bench], None]] = {
    "load": _load,
    "upsert": _upsert,
    "read": _read,
    "first": _first,
    "compact": _compact,
}
