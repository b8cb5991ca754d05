"""What a publication costs, and what a week of them leaves: ``lakemerge.publish = deletionVectors``, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import deltalake
import numpy as np
import pyarrow as pa

from benchmarks.harness import Rounds, Run
from benchmarks.measure import Contender, interleave
from benchmarks.tables import copied, new_table, random_rows
from lakemerge import LakeTable

__all__ = ["publish"]

_WEEK = 7 * 24 * 12
"""Publications of a week, one each five minutes."""
_MB = 10**6


def publish(
    run: Run,
    *,
    buckets: Annotated[int, "of the table, a power of two"] = 1024,
    rows: Annotated[int, "of the table"] = 10_000_000,
    share: Annotated[float, "of the rows that change between two publications"] = 0.01,
    publications: Annotated[int, "of the week; the log is counted up to a whole one"] = _WEEK,
    rounds: Rounds = 3,
) -> None:
    """A publication beside a minor compaction that others do not see, and the log after a simulated week.

    A publication takes at most 1.2x the time of a minor compaction. A week of them, five minutes apart, leaves at most
    100 MB of log beside the last checkpoint, and the table opens within two seconds, in LakeMerge and in deltalake. The
    published rows are compared with LakeMerge's, by deltalake.
    """
    original = run.folder / "original"
    rng = np.random.default_rng(7)
    count = max(1, int(rows * share))
    table = new_table(original, buckets=buckets)
    table.upsert(random_rows(rng, np.arange(rows), 0))
    table.upsert(random_rows(rng, rng.integers(0, rows, count), 100))
    published = copied(original, run.folder / "published")
    LakeTable.open(published).alter(properties={"lakemerge.publish": "deletionVectors"})
    originals = {"minor": original, "publish": published}

    def compact(name: str) -> None:
        LakeTable.open(run.folder / f"{name} at work").compact(minor=True)

    def copy(name: str) -> Path:
        return copied(originals[name], run.folder / f"{name} at work")

    times = interleave(
        [Contender(name, partial(compact, name), partial(copy, name)) for name in originals], rounds=rounds
    )
    run.report.timed("publish", "publication / minor compaction", times["publish"], times["minor"], target=1.2)

    week = LakeTable.open(copy("publish"))
    first = week.version
    seconds = []
    for number in range(publications):
        week.upsert(random_rows(rng, rng.integers(0, rows, count), 200 + 100 * number))
        began = time.monotonic()
        week.compact(minor=True)
        seconds.append(time.monotonic() - began)
    folder = Path(week.url)
    last = max(folder.glob("_delta_log/*.checkpoint.parquet"), default=None)
    commits = sorted(folder.glob("_delta_log/*.json"))[first + 1 :]
    changed = sum(file.stat().st_size for file in commits)
    files = publications * buckets
    run.report.timed("publish", "the last tenth of the publications / the first tenth", *_ends(seconds))
    run.report.value("publish", "log for each file slice of a publication", "bytes", changed / files)
    whole = changed / publications * _WEEK
    run.report.value("publish", "log of a week, beside the last checkpoint", "bytes", whole, 100 * _MB, target=1.0)
    if last is not None:
        size = last.stat().st_size
        run.report.value("publish", "last checkpoint, for each base file", "bytes", size / buckets)
    run.report.timed("publish", "opening in LakeMerge / two seconds", _opened(folder, rounds), [2.0], target=1.0)
    theirs = [_timed(lambda: deltalake.DeltaTable(str(folder)).version()) for _ in range(rounds)]
    run.report.timed("publish", "opening in deltalake / two seconds", theirs, [2.0], target=1.0)
    run.report.check("published rows", _difference(folder))


def _ends(seconds: list[float]) -> tuple[list[float], list[float]]:
    part = max(1, len(seconds) // 10)
    return seconds[-part:], seconds[:part]


def _opened(folder: Path, rounds: int) -> list[float]:
    return [_timed(lambda: LakeTable.open(folder)) for _ in range(rounds)]


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _difference(folder: Path) -> list[str]:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(folder)))
    theirs = pa.table(builder.execute("SELECT * FROM t ORDER BY k").read_all())
    ours = LakeTable.open(folder).to_arrow().sort_by("k")
    shown = theirs.select(ours.column_names).cast(ours.schema)
    return [] if shown.combine_chunks().equals(ours.combine_chunks()) else ["deltalake reads other rows"]
