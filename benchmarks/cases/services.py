"""What table services cost, without Spark: compaction, log compaction, vacuum."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Rounds, Run
from benchmarks.measure import Contender, Report, interleave
from benchmarks.tables import OFF, add_file, commit, copied, counted, new_table, random_rows
from lakemerge import CompactionResult, LakeTable, Settings, VacuumResult
from lakemerge.commits.compaction import removal
from lakemerge.delta import Action, AddFile, DomainMetadata
from lakemerge.format.block_index import LogCommit
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile

__all__ = ["compaction", "log_compaction", "rewrite_once", "vacuum"]

_BUCKETS = 8
_FILES = 8
"""Base files a bucket, about."""
_ROW_BYTES = 48
"""About the size of a row in a base file."""
_BUDGET_FILES = 4
"""Base files that a merge may hold in memory, where their rows take about as much."""
_COMMITS = 6
_STEP = 100
"""By so much orderings rise from commit to commit; more than rows of one commit differ by."""


def compaction(run: Run, *, rows: Annotated[int, "of the table"] = 2_000_000, rounds: Rounds = 3) -> None:
    """What a compaction costs for what changed, on one thread.

    If 15 % of the rows changed all over the table, a minor compaction takes at most 0.3x the time of a full one. If 2 %
    changed among the newest keys only, a full one takes time in proportion to the files touched. Rows are compared with
    what numpy makes of the same changes.
    """
    size = max(1, rows * _ROW_BYTES // _BUCKETS // _FILES)
    # Files end where key ranges do, and those are as large as the budget allows.
    many_files = Settings(threads=1, target_file_bytes=size, merge_budget_bytes=_BUDGET_FILES * size)
    dirty = partial(_changed, rows=rows, settings=Settings(threads=1), share=0.15, newest=1.0)
    spread = partial(_changed, rows=rows, settings=many_files, share=0.02, newest=1.0)
    recent = partial(_changed, rows=rows, settings=many_files, share=0.02, newest=0.05)
    makers = {"full": dirty, "spread": spread, "recent": recent}
    expected = {name: make(run.folder / name) for name, make in makers.items()}
    runs = {"full": ("full", False), "minor": ("full", True), "spread": ("spread", False), "recent": ("recent", False)}
    done: dict[str, CompactionResult] = {}

    def compact(name: str) -> None:
        table, minor = runs[name]
        settings: Settings = makers[table].keywords["settings"]
        done[name] = LakeTable.open(run.folder / f"{name} at work", settings=settings).compact(minor=minor)

    def copy(name: str) -> Path:
        return copied(run.folder / runs[name][0], run.folder / f"{name} at work")

    times = interleave([Contender(name, partial(compact, name), partial(copy, name)) for name in runs], rounds=rounds)
    for name, (original, _) in runs.items():
        table = LakeTable.open(run.folder / f"{name} at work")
        run.report.check(name, ["logs are left"] if table.opened.view.log_commits else [])
        found = table.to_arrow().sort_by("k").combine_chunks()
        same = found.equals(expected[original].cast(found.schema))
        run.report.check(name, [] if same else ["the rows are not those of the changes"])
    if run.report.problems:
        return
    what = "minor compaction / full compaction, 15 % changed"
    run.report.timed("compact", what, times["minor"], times["full"], target=0.3)
    touched, whole = done["recent"], done["spread"]
    floor = [seconds * touched.bytes_read / whole.bytes_read for seconds in times["spread"]]
    what = "full compaction, 2 % changed among the newest / its share of the bytes where all files are touched"
    detail = {
        name: {"files": done[name].replaced_files, "bytes": done[name].bytes_read} for name in ("recent", "spread")
    }
    run.report.timed("compact", what, times["recent"], floor, target=1.5, detail=detail)
    what = "base files rewritten for 2 % changed among the newest / all over"
    run.report.value("compact", what, "objects", touched.replaced_files, whole.replaced_files, target=0.5)


def _changed(path: Path, *, rows: int, settings: Settings, share: float, newest: float) -> pa.Table:
    """A table with changes in its logs. Gives the rows that it has to have, by key.

    :param share: of the rows that all commits together change.
    :param newest: of the keys, the highest, that they are drawn from.
    """
    table, rng = new_table(path, buckets=_BUCKETS, settings=settings), np.random.default_rng(7)
    first, count = int(rows * (1 - newest)), int(rows * share / _COMMITS)
    frames = [random_rows(rng, np.arange(rows), 0)]
    frames += [random_rows(rng, rng.integers(first, rows, count), (i + 1) * _STEP) for i in range(_COMMITS)]
    for frame in frames:
        table.upsert(frame)
    every = pa.concat_tables(frames).combine_chunks()
    keys, orderings = (every.column(name).to_numpy() for name in ("k", "ts"))
    order = np.lexsort((np.arange(len(keys)), orderings, keys))
    return every.take(pa.array(order[np.append(np.diff(keys[order]) != 0, True)]))


def log_compaction(
    run: Run,
    *,
    commits: Annotated[int, "that are pending"] = 100,
    rows: Annotated[int, "of a commit"] = 10_000,
    rounds: Rounds = 3,
) -> None:
    """Log compaction of many small commits, beside rewriting their rows once, and reads before and after.

    The floor reads all log files with pyarrow, sorts the rows by key and writes one file, as the log compaction does
    but for buckets, commit order and bookkeeping.
    """
    kept = {"event-time": "only deciding records are kept", "aggregate": "all records are kept"}
    for merger, what in kept.items():
        original, work = run.folder / merger, run.folder / f"{merger} at work"
        table, rng = new_table(original, merger=merger, buckets=16), np.random.default_rng(1)
        table.upsert(random_rows(rng, np.arange(commits * rows), 0))
        for number in range(1, commits + 1):  # four in five records update a key
            table.upsert(random_rows(rng, rng.integers(0, commits * rows * 5 // 4, rows), number))
        _compact_logs(run.report, original, work, what, rounds)
        _reads(run.report, original, work, what, rounds)


def _compact_logs(report: Report, original: Path, work: Path, kept: str, rounds: int) -> None:
    floor = partial(rewrite_once, original, original.parent / "floor.parquet")

    def compact() -> int:
        return LakeTable.open(work).compact_logs().records

    fresh = partial(copied, original, work)
    times = interleave([Contender("compact", compact, fresh), Contender("rewrite", floor)], rounds=rounds)
    report.timed("logs", f"log compaction, {kept}", times["compact"], times["rewrite"], target=1.5)
    fresh()
    before, given, records = _rows(original), floor(), compact()
    report.check(f"log compaction, {kept}", [] if before.equals(_rows(work)) else ["the rows are not what they were"])
    problem = f"{records} records were merged, there are {given}"
    report.check(f"log compaction, {kept}", [] if records == given else [problem])


def rewrite_once(path: Path, target: Path) -> int:
    """The floor: every log row of a table in one file, sorted by key; how many there are."""
    logs = sorted(str(file) for file in (path / "_lakemerge" / "log").glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in logs]).combine_chunks()
    in_order = rows.take(pc.sort_indices(rows, sort_keys=[("k", "ascending")]))
    pq.write_table(in_order, target, compression="zstd", compression_level=1, store_decimal_as_integer=True)
    return rows.num_rows


def _reads(report: Report, original: Path, work: Path, kept: str, rounds: int) -> None:
    """Reads of the compacted table, as ratios to those of the original."""
    reads: Mapping[str, Callable[[LakeTable], object]] = {
        "full read": LakeTable.to_arrow,
        "look-up of a key": lambda table: table.get({"k": 7}),
    }
    for what, read in reads.items():
        tables = {"after": LakeTable.open(work), "before": LakeTable.open(original)}
        times = interleave([Contender(name, partial(read, table)) for name, table in tables.items()], rounds=rounds)
        report.timed("reads", f"{what} after / before, {kept}", times["after"], times["before"])
        opened, once = (_files_opened(path, read) for path in (work, original))
        report.value("reads", f"{what}: files opened, {kept}", "requests", opened, once, target=1)


def _files_opened(path: Path, read: Callable[[LakeTable], object]) -> int:
    table, store = counted(path)
    store.reset()
    read(table)
    return store.counts().calls["open_input"]


def _rows(path: Path) -> pa.Table:
    return LakeTable.open(path).to_arrow().sort_by("k").combine_chunks()


_VACUUM_S = 5.0
_FILES_PER_COMMIT = 200
_WEEK_AND_A_DAY_S = 8 * 86_400


def vacuum(run: Run, *, files: Annotated[int, "of the table"] = 100_000, rounds: Rounds = 3) -> None:
    """How long a dry run of vacuum takes over many files on a local disk, and what deleting them costs.

    The table's log is real, its files are empty. Half of them are base files, half logs. Each commit replaces those of
    the one before, and the last tenth of the versions is within the retention. The floor lists the same files with
    their times.
    """
    folder, commits = run.folder / "table", files // _FILES_PER_COMMIT
    table, oldest = _with_dead_files(folder, commits), commits - commits // 10
    for path in (folder / "_delta_log").glob("*.json"):
        if int(path.stem) <= oldest:  # make it older than the retention, by the clock of the disk
            seconds = path.stat().st_mtime - _WEEK_AND_A_DAY_S
            os.utime(path, (seconds, seconds))
    contenders = [Contender("listing", partial(_count_files, folder)), Contender("vacuum", table.vacuum)]
    times = interleave(contenders, rounds=rounds)
    made, dead = commits * _FILES_PER_COMMIT, (oldest - 1) * _FILES_PER_COMMIT
    run.report.timed("vacuum", f"dry run over {made:,} files", times["vacuum"], target=_VACUUM_S)
    run.report.timed("vacuum", "the same / listing them", times["vacuum"], times["listing"])
    run.report.check("dry run", _vacuum_problems(table.vacuum(), oldest, dead))
    done = table.vacuum(dry_run=False)
    run.report.value("vacuum", f"deleting {dead:,} of them", "s", done.seconds)
    run.report.check("vacuum", _vacuum_problems(done, oldest, dead))
    left = _count_files(folder)
    problem = f"{left} files are left of {made}, of which {dead} were to go"
    run.report.check("vacuum", [] if left == made - dead else [problem])


def _vacuum_problems(found: VacuumResult, oldest: int, dead: int) -> Sequence[str]:
    seen, expected = (dict(found.files), found.oldest_version), ({"base": dead // 2, "log": dead // 2}, oldest)
    return [] if seen == expected else [f"files and oldest version are {seen}, expected {expected}"]


def _with_dead_files(folder: Path, commits: int) -> LakeTable:
    table = LakeTable.create(folder, "k BIGINT, v STRING", key=["k"], buckets=1, properties=OFF)
    tip, config, state = table.opened.view.snapshot, table.opened.view.config, table.opened.view.state
    before: tuple[list[AddFile], LogCommit] | None = None
    half = range(_FILES_PER_COMMIT // 2)
    for number in range(commits):
        name = f"{tip.version:020d}-{number:08d}"
        adds = [add_file(f"base/{name}/{i:05d}.parquet", i, lower=(i,) if i else None) for i in half]
        logs = [LogFile(f"_lakemerge/log/{name}-{i:05d}.parquet", 0, ("k", "v")) for i in half]
        blocks = tuple(LogBlock(file, 0, 1, BucketId((), 0), 1, 1, 1, None, None) for file in logs)
        pending = LogCommit(name, -1, 0, ("k", "v"), blocks, None)
        for path in (*(add.path for add in adds), *(log.path for log in logs)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        actions: list[Action] = [*adds, pending.domain(config=config, state=state, version=tip.version + 1)]
        if before is not None:
            actions += [DomainMetadata(before[1].domain_name, "", True), *(removal(add, 0) for add in before[0])]
        tip = commit(table.opened.handle, tip, actions)
        before = (adds, pending)
    return table


def _count_files(folder: Path) -> int:
    """The number of the table's files, each looked at for its time."""
    count = 0
    for top in ("base", "_lakemerge"):
        for parent, _, names in os.walk(folder / top):
            for name in names:
                os.stat(os.path.join(parent, name))
                count += not name.startswith(".")
    return count
