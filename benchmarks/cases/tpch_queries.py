"""TPC-H's queries over tables that change, and small merges into a large table, beside Delta and Iceberg."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from benchmarks.cases.sql_peers import PEERS
from benchmarks.cases.tpch_data import CHANGED, KEYS, ORDERING, Input, frame, merged
from benchmarks.cases.tpch_texts import KIND, QUERIES, TABLES
from benchmarks.compare.engines import ENGINES
from benchmarks.elsewhere import elsewhere
from benchmarks.harness import Rounds, Run
from benchmarks.tpch import connect

__all__ = ["tpch"]

_JOIN = 12
"""The query that joins orders and line items on the key, and nothing else."""
_JOIN_RATIO = 1.05
_SHARES = (0.000_001, 0.000_01, 0.000_1, 0.001)


def tpch(
    run: Run,
    *,
    scale: Annotated[float, "of TPC-H: 6,000,000 line items at 1"] = 0.5,
    commits: Annotated[int, "that are pending, of orders and of line items"] = 10,
    share: Annotated[float, "of the rows that each commit touches"] = 0.01,
    queries: Annotated[tuple[int, ...], "the queries to run"] = tuple(QUERIES),
    peers: Annotated[tuple[str, ...], "other formats"] = PEERS,
    rounds: Rounds = 3,
) -> None:
    """TPC-H's 22 queries over tables with commits pending, and merges of few rows, beside Delta and Iceberg.

    Orders and line items are tables of LakeMerge and of a peer, with the same commits, which nothing has compacted; the
    other tables are plain Parquet. The floor is plain Parquet of the rows that come out. Then 0.0001 to 0.1 % of the
    line items are merged into them: three fifths changed, three tenths new, a tenth deleted. All answers are compared
    with DuckDB's. The query that joins orders and line items may take 1.05x of the floor.
    """
    data = Input.prepared(run.data, scale=scale, commits=commits, share=share)
    texts = {number: QUERIES[number].format(fraction=f"{0.0001 / scale:.10f}") for number in queries}
    expected = data.answers(texts)
    for peer in peers:
        python = ENGINES[peer].python(run.environments) if ENGINES[peer].environment else None
        if python is not None and not python.exists():
            run.report.say(f"NOT RUN: {peer}: there is no {python} (make bench-tpch makes it)")
            continue
        folder = run.folder / peer
        folder.mkdir(parents=True)
        refreshes, outcome = _refreshes(data, folder, rounds)
        found = elsewhere(
            "benchmarks.cases.tpch_engines",
            "played",
            python=python,
            peer=peer,
            folder=str(folder),
            tables={name: str(data.original(name)) for name in CHANGED},
            keys=KEYS,
            ordering=ORDERING,
            changes={name: list(map(str, data.changes(name))) for name in CHANGED},
            outcomes={name: str(data.outcome(name)) for name in TABLES},
            refreshes=refreshes,
            texts=texts,
            rounds=rounds,
        )
        _report(run, peer, found, expected)
        for engine in ("lakemerge", peer):
            same = _same([found[engine]], [outcome])
            run.report.check(f"{peer}, merges, {engine}", [] if same else [f"{found[engine]}, expected {outcome}"])


def _report(run: Run, peer: str, found: Mapping[str, Any], expected: Mapping[int, Sequence[Sequence[object]]]) -> None:
    spark, medians = found["spark"], {name: list[float]() for name in ("parquet", "lakemerge", peer)}
    for number, (times, rows) in found["queries"].items():
        for engine, answer in rows.items():
            wrong = [] if _same(answer, expected[number]) else [f"{len(answer)} rows, other than DuckDB's"]
            run.report.check(f"{peer}, query {number}, {engine}", wrong)
        for engine, own in medians.items():
            own.append(statistics.median(times[engine]))
        for engine in ("lakemerge", peer):
            target = _JOIN_RATIO if engine == "lakemerge" and number == _JOIN else None
            what = f"query {number}, {engine} / Parquet, on Spark {spark}"
            run.report.timed(f"beside {peer}", what, times[engine], times["parquet"], target=target)
    for engine in ("lakemerge", peer):
        mean = statistics.geometric_mean(map(operator.truediv, medians[engine], medians["parquet"]))
        what = f"all {len(medians[engine])} queries, {engine} / Parquet (geometric mean of the ratios {mean:.2f}x)"
        run.report.value(f"beside {peer}", what, "s", sum(medians[engine]), sum(medians["parquet"]))
    for share, seconds in found["refreshes"].items():
        what = f"{peer.title()}'s MERGE of {float(share):.4%} of the line items / LakeMerge's upsert"
        run.report.timed(f"beside {peer}", what, seconds[peer], seconds["lakemerge"], target=1, at_least=True)


def _refreshes(data: Input, folder: Path, rounds: int) -> tuple[dict[str, list[str]], tuple[object, ...]]:
    """Files with changes by share, one for each round and one to warm up, and sums of the line items after all."""
    files: dict[str, list[str]] = {}
    with connect(folder) as db:
        db.execute(f"CREATE TABLE rows AS SELECT * FROM read_parquet('{data.outcome('lineitem')}')")
        db.execute(f"CREATE TABLE log AS SELECT *, '+U' AS {KIND} FROM rows")
        for share in _SHARES:
            files[f"{share:g}"] = []
            for number in range(rounds + 1):
                salt = data.commits + 1 + len(files) * (rounds + 1) + number
                target = folder / f"refresh-{share:g}-{number}.parquet"
                db.execute(f"CREATE OR REPLACE TABLE records AS {frame('lineitem', 'rows', share, salt)}")
                db.execute("INSERT INTO log SELECT * FROM records")
                db.execute(f"COPY records TO '{target}' (FORMAT parquet)")
                files[f"{share:g}"].append(str(target))
        sums = db.execute(
            f"SELECT count(*), sum(l_quantity), sum(l_extendedprice) FROM ({merged('lineitem', 'log')})"
        ).fetchone()
    return files, tuple(sums or ())


def _same(found: Iterable[Sequence[object]], expected: Iterable[Sequence[object]]) -> bool:
    """Whether two answers have the same rows. Engines have other types for means and quotients, and round them."""
    rows, others = (sorted((tuple(map(_plain, row)) for row in answer), key=_order) for answer in (found, expected))
    return len(rows) == len(others) and all(map(_alike, rows, others))


def _plain(value: object) -> object:
    if isinstance(value, decimal.Decimal | int | float):
        return float(value)
    return value.isoformat() if isinstance(value, dt.date) else value


def _order(row: tuple[object, ...]) -> tuple[str, ...]:
    return tuple("" if isinstance(value, float) else str(value) for value in row) + tuple(
        f"{value:030.2f}" for value in row if isinstance(value, float)
    )


def _alike(row: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(row) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-4) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(row, other, strict=True)
    )
