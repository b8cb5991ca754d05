"""What provenance costs, without Spark: ``explain`` of a key, ``what_if`` beside a merged read, ``replay``."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Rounds, Run
from benchmarks.measure import Contender, Report, interleave
from benchmarks.tables import SCHEMA, counted, loaded, milliseconds, random_rows, requests_of
from lakemerge import LakeTable

__all__ = ["provenance"]

_COMMITS = 20
_EXPLAIN_MS, _WHAT_IF, _REPLAY = 150.0, 1.3, 1.5
_MOST_REQUESTS = 1 + 3 * (_COMMITS + 1)
"""A listing, and for the base file and each commit: a footer, a row group, a commit file."""


def provenance(
    run: Run,
    *,
    rows: Annotated[int, "of the table"] = 10_000_000,
    records: Annotated[int, "in the pending commits, together"] = 1_000_000,
    keys: Annotated[int, "that are explained"] = 100,
    rounds: Rounds = 3,
) -> None:
    """``explain``, ``what_if`` and ``replay`` of a table with 20 pending commits.

    The floor of ``what_if`` is the table's own read. The floor of ``replay`` reads the same log files with pyarrow and
    upserts them, commit by commit.
    """
    path, rng = run.folder / "table", np.random.default_rng(1)
    changes = [
        random_rows(rng, rng.choice(rows, records // _COMMITS, replace=False), number)
        for number in range(1, _COMMITS + 1)
    ]
    table = loaded(path, rows, rng)
    for change in changes:
        table.upsert(change)
    sought = rng.choice(pa.concat_tables(changes).column("k").to_numpy(), keys, replace=False).tolist()
    _explain(run.report, path, sought)
    _what_if(run.report, path, rounds)
    _replay(run.report, path, run.folder / "again", records, rounds)


def _explain(report: Report, path: Path, keys: Sequence[int]) -> None:
    table = LakeTable.open(path)
    table.explain({"k": keys[0]})
    times, found = milliseconds(lambda key: table.explain({"k": key}), keys)
    wrong = [key for key in keys if found[key].row != table.get({"k": key}) or not found[key].steps]
    report.check("explain", [f"{len(wrong)} keys end in another row, such as {wrong[0]}"] if wrong else [])
    what = f"a key with {_COMMITS} commits pending"
    report.value("explain", what, "ms", statistics.median(times), samples=times, target=_EXPLAIN_MS)
    opened, store = counted(path)
    requests = []
    for key in keys:
        fresh = LakeTable(opened.opened.handle, opened.opened.view.snapshot, pinned=False, spark=None)
        store.reset()
        fresh.explain({"k": key})
        requests.append(requests_of(store.counts()))
    report.value("explain", what, "requests", statistics.median(requests), samples=requests)
    report.value("explain", "most of them", "requests", max(requests), target=_MOST_REQUESTS)


def _what_if(report: Report, path: Path, rounds: int) -> None:
    table = LakeTable.open(path)
    times = interleave(
        [
            Contender("read", table.to_arrow),
            Contender("the table's own merger", lambda: table.what_if().to_arrow()),
            Contender("commit-time", lambda: table.what_if("commit-time").to_arrow()),
        ],
        rounds=rounds,
    )
    same = _sorted(table.what_if().to_arrow()).equals(_sorted(table.to_arrow()))
    report.check("what_if", [] if same else ["the table's own merger gives other rows than the table has"])
    for name in ("the table's own merger", "commit-time"):
        report.timed("what_if", f"{name} / a merged read", times[name], times["read"], target=_WHAT_IF)


def _replay(report: Report, path: Path, again: Path, records: int, rounds: int) -> None:
    table = LakeTable.open(path)
    begin = table.version - _COMMITS
    logs = [[path / name for name in sorted(log.paths)] for log in table.opened.view.log_commits]
    empty = partial(shutil.rmtree, again, ignore_errors=True)

    def by_hand() -> None:
        other = LakeTable.create(again, SCHEMA, key=["k"], ordering=["ts"], buckets=table.detail().buckets)
        other.upsert(LakeTable.open(path, version=begin).scan())
        for files in logs:
            other.upsert(pa.concat_tables([pq.read_table(file) for file in files]))

    times = interleave(
        [
            Contender("by hand", by_hand, before=empty),
            Contender("replay", lambda: table.replay(again, since=begin), before=empty),
        ],
        rounds=rounds,
    )
    empty()
    done = table.replay(again, since=begin)
    same = _sorted(LakeTable.open(again).to_arrow()).equals(_sorted(table.to_arrow()))
    report.check("replay", [] if same else ["the other table has other rows"])
    report.check("replay", [] if done.records == records else [f"{done.records} records were replayed"])
    what = f"{records:,} records onto the rows before / reading and upserting them"
    report.timed("replay", what, times["replay"], times["by hand"], target=_REPLAY)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by("k").combine_chunks()
