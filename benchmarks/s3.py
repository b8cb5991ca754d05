"""What calls cost on object storage: a real S3 server that is 25 ms away, each request and byte counted.

    python -m benchmarks.s3 --server .venv/versitygw/versitygw

A table of line items takes commits of 1 % and is read before and after a compaction, without Spark. deltalake, Iceberg
on Spark, and plain Parquet files read by pyarrow do the same. The answers are compared with DuckDB's over the rows that
were written.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.queries import AGGREGATE, FILTER, FULL_SCAN, Answer, look_up
from benchmarks.compare.workload import Frame, Parameters, Workload
from benchmarks.s3_engines import Credentials, Deltalake, Engine, Iceberg, Lake, Plain, Reader
from benchmarks.s3_proxy import Proxy, depth, proxied
from benchmarks.tpch import LINEITEM
from benchmarks.versitygw import versitygw

__all__ = ["Row", "main", "measure"]

KEY, SECRET, BUCKET = "an-id", "a-secret", "bench"
DELAY_S = 0.025
_CHANGED = (*LINEITEM.key, LINEITEM.ordering)


@dataclass(frozen=True, slots=True)
class Row:
    """What one call cost. ``depth`` is the number of round trips that waited for each other."""

    engine: str
    step: str
    requests: int
    depth: int
    read_bytes: int
    written_bytes: int
    seconds: float
    problem: str = ""


class Meter:
    """Runs steps and keeps what each cost."""

    def __init__(self, proxy: Proxy, say: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._proxy, self._say = proxy, say

    def step(
        self, engine: str, step: str, run: Callable[[], Any], problem: Callable[[Any], str] = lambda _: ""
    ) -> None:
        self._proxy.taken()
        began = time.perf_counter()
        found = run()
        seconds = time.perf_counter() - began
        seen = self._proxy.taken()
        row = Row(
            engine, step, len(seen), depth(seen), sum(r.received for r in seen), sum(r.sent for r in seen), seconds,
            problem(found) or ("" if seen else "the store was asked for nothing"),
        )  # fmt: skip
        self.rows.append(row)
        self._say(
            f"{row.engine:<10} {row.step:<36} {row.requests:>6} requests {row.depth:>4} deep "
            f"{row.read_bytes / 1e6:>9.3f} MB read {row.written_bytes / 1e6:>8.3f} MB written {row.seconds:>8.3f} s"
            + (f"  WRONG: {row.problem}" if row.problem else "")
        )


def measure(
    workload: Workload,
    proxy: Proxy,
    bucket: str,
    *,
    commits: int,
    credentials: Credentials,
    iceberg: Path | None,
    scratch: Path,
    say: Callable[[str], None],
) -> list[Row]:
    """All steps of all engines, in the order in which they ran. ``iceberg`` is the Python of Iceberg's environment;
    without one Iceberg is left out."""
    meter = Meter(proxy, say)
    frames = [workload.small(number + 1) for number in range(commits)]
    state = workload.state(workload.initial, frames)
    asked = (FULL_SCAN, AGGREGATE, FILTER, look_up(*workload.updated_key()))
    answers = {query.name: workload.answer(state, query) for query in asked}

    def reads(engine: Reader, when: str) -> None:
        for query in asked:
            wrong = partial(_wrong, expected=answers[query.name])
            meter.step(engine.name, f"{when}: {query.name}", partial(engine.answer, query), wrong)

    at = (bucket, proxy.url, credentials)
    plain = Plain("plain", *at)
    plain.load(state)
    reads(plain, "clean")
    makers: list[Callable[[], Engine]] = [lambda: Lake("lakemerge", *at), lambda: Deltalake("deltalake", *at)]
    if iceberg is not None:
        makers.append(lambda: Iceberg("iceberg", *at, python=iceberg, scratch=scratch))
    for make in makers:
        with closing(make()) as engine:
            engine.load(workload.initial)
            for frame in frames[:-1]:
                engine.begin()
                engine.upsert(frame.path)
            meter.step(engine.name, "open", engine.begin)
            meter.step(engine.name, "upsert to an open table", partial(engine.upsert, frames[-1].path))
            again = engine.again()
            if again is not None:
                meter.step(engine.name, "an unchanged open table", again)
            reads(engine, f"{commits} commits")
            feed = engine.feed()
            if feed is not None:
                meter.step(
                    engine.name, f"{commits} commits: feed of the last", feed, partial(_strange, frame=frames[-1])
                )
            meter.step(engine.name, "compaction", engine.compact)
            reads(engine, "compacted")
    return meter.rows


def _wrong(found: Answer, expected: Answer) -> str:
    return "" if found == expected else f"{found!r}, not {expected!r}"[:200]


def _strange(feed: pa.Table, frame: Frame) -> str:
    """The frame's times are after those of all rows, so each of its records changed one."""
    changed = sorted(zip(*(feed[name].to_pylist() for name in _CHANGED), strict=True))
    written = pq.read_table(frame.path)
    expected = sorted(zip(*(written[name].to_pylist() for name in _CHANGED), strict=True))
    return "" if changed == expected else f"{len(changed)} changes, not those of the {len(expected)} records"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", required=True, help="the program versitygw; `make versitygw` builds it")
    parser.add_argument("--scale", type=float, default=1 / 6, help="TPC-H scale factor; 1/6 is a million line items")
    parser.add_argument("--commits", type=int, default=20, help="of 1 %% of the rows")
    parser.add_argument("--delay-ms", type=float, default=1000 * DELAY_S, help="that each request waits (%(default)s)")
    parser.add_argument("--path", type=Path, default=Path(".demo"), help="keeps the generated data in data/")
    parser.add_argument(
        "--environments", type=Path, default=Path(sys.prefix), help="where Iceberg's virtual environment is"
    )
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    given = parser.parse_args(arguments)
    logging.getLogger("lakemerge").setLevel(logging.WARNING)
    console = Console()
    parameters = Parameters(scale=given.scale, commits=max(given.commits, 4), rounds=1, seed=11)
    workload = Workload.prepare(given.path.resolve() / "data", parameters)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with (
        tempfile.TemporaryDirectory(prefix="lakemerge-s3-") as folder,
        versitygw(given.server, Path(folder), key=KEY, secret=SECRET) as port,
        proxied("127.0.0.1", port, delay_s=given.delay_ms / 1000) as proxy,
    ):
        (Path(folder) / "buckets" / BUCKET).mkdir()
        rows = measure(
            workload, proxy, f"s3://{BUCKET}", commits=given.commits, credentials=(KEY, SECRET),
            iceberg=ENGINES["iceberg"].python(given.environments.absolute()), scratch=Path(folder) / "spark", say=say,
        )  # fmt: skip
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    wrong = [row for row in rows if row.problem]
    say(f"{len(rows) - len(wrong)} of {len(rows)} answers are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
