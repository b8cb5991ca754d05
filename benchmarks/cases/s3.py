"""What calls cost on object storage: a real S3 server that is 25 ms away, each request and byte counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases.s3_engines import UPDATED, Credentials, Deltalake, Engine, Iceberg, Lake, Plain
from benchmarks.cases.s3_proxy import Proxy, depth, proxied
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.queries import AGGREGATE, FILTER, FULL_SCAN, Answer, Query, look_up
from benchmarks.compare.workload import Frame, Parameters, Workload
from benchmarks.harness import Run
from benchmarks.measure import Report
from benchmarks.tpch import LINEITEM
from benchmarks.versitygw import versitygw

__all__ = ["measure", "s3"]

_KEY, _SECRET, _BUCKET = "an-id", "a-secret", "bench"
_CHANGED = (*LINEITEM.key, LINEITEM.ordering)


def s3(
    run: Run,
    *,
    server: Annotated[str, "the program versitygw; `make versitygw` builds it"],
    scale: Annotated[float, "TPC-H scale factor; 1/6 is a million line items"] = 1 / 6,
    commits: Annotated[int, "of 1 %% of the rows"] = 20,
    delay_ms: Annotated[float, "that each request waits"] = 25.0,
) -> None:
    """What calls cost on object storage: a real S3 server that is 25 ms away, each request and byte counted.

    A table of line items takes commits of 1 % and is read before and after a compaction, without Spark. deltalake,
    Iceberg on Spark, and plain Parquet files read by pyarrow do the same. The answers are compared with DuckDB's over
    the rows that were written.
    """
    logging.getLogger("lakemerge").setLevel(logging.WARNING)
    parameters = Parameters(scale=scale, commits=max(commits, 4), rounds=1, seed=11)
    workload = Workload.prepare(run.data, parameters)
    iceberg = ENGINES["iceberg"].python(run.environments)
    if not iceberg.exists():
        run.report.say(f"NOT RUN: iceberg: there is no {iceberg} (make bench-s3 makes it)")
    folder = run.folder / "store"
    folder.mkdir()
    with (
        versitygw(server, folder, key=_KEY, secret=_SECRET) as port,
        proxied("127.0.0.1", port, delay_s=delay_ms / 1000) as proxy,
    ):
        (folder / "buckets" / _BUCKET).mkdir()
        measure(run, workload, proxy, f"s3://{_BUCKET}", (_KEY, _SECRET), commits=commits, iceberg=iceberg)


@dataclass(frozen=True, slots=True)
class _Meter:
    """Runs the steps of one engine, and reports what each cost."""

    report: Report
    proxy: Proxy
    engine: str

    def step(self, step: str, run: Callable[[], Any], problem: Callable[[Any], str] = lambda _: "") -> None:
        self.proxy.taken()
        began = time.perf_counter()
        found = run()
        seconds = time.perf_counter() - began
        seen = self.proxy.taken()
        wrong = problem(found) or ("" if seen else "the store was asked for nothing")
        self.report.check(f"{self.engine}, {step}", [wrong] if wrong else [])
        deep = {"deep": depth(seen)}  # round trips that waited for each other
        self.report.value(self.engine, step, "requests", len(seen), detail=deep)
        self.report.value(self.engine, f"{step}: deep", "requests", deep["deep"])
        self.report.value(self.engine, f"{step}: read", "bytes", sum(request.received for request in seen))
        self.report.value(self.engine, f"{step}: written", "bytes", sum(request.sent for request in seen))
        self.report.value(self.engine, step, "s", seconds)


def measure(
    run: Run,
    workload: Workload,
    proxy: Proxy,
    bucket: str,
    credentials: Credentials,
    *,
    commits: int,
    iceberg: Path,
) -> None:
    """All steps of all engines. ``iceberg`` is the Python of Iceberg's environment; without it Iceberg is left out."""
    frames = [workload.small(number + 1) for number in range(commits)]
    state = workload.state(workload.initial, frames)
    row = look_up(*workload.updated_key())
    asked = (FULL_SCAN, AGGREGATE, FILTER, row)
    answers = {query.name: workload.answer(state, query) for query in asked}
    at = (bucket, proxy.url, credentials)

    def engines() -> Iterator[Engine]:
        yield Lake("lakemerge", *at)
        yield Deltalake("deltalake", *at)
        if iceberg.exists():
            yield Iceberg("iceberg", *at, python=iceberg, scratch=run.folder / "spark")

    plain, meter = Plain("plain", *at), _Meter(run.report, proxy, "plain")
    plain.load(state)
    for query in asked:
        meter.step(f"clean: {query.name}", partial(plain.answer, query), partial(_wrong, answers[query.name]))
    for engine in engines():
        meter = _Meter(run.report, proxy, engine.name)
        with closing(engine):
            meter.step("load", partial(engine.load, workload.initial))
            for frame in frames[:-1]:
                engine.begin()
                engine.upsert(frame.path)
            meter.step("open", engine.begin)
            meter.step("upsert to an open table", partial(engine.upsert, frames[-1].path))
            if (again := engine.again()) is not None:
                meter.step("an unchanged open table", again)
            for when in (f"{commits} commits", "compacted"):
                if when == "compacted":
                    meter.step("compaction", engine.compact)
                for query in asked:
                    wrong = partial(_wrong, answers[query.name])
                    meter.step(f"{when}: {query.name}", partial(engine.answer, query), wrong)
                if when != "compacted" and (feed := engine.feed()) is not None:
                    meter.step(f"{when}: feed of the last", feed, partial(_strange, frames[-1]))
            _change_one_row(meter, engine, row, answers[row.name])


def _change_one_row(meter: _Meter, engine: Engine, row: Query, answer: Answer) -> None:
    """Update and delete the row of a look-up, which has an answer, and look it up after each."""
    condition = row.condition
    if condition is None:
        raise ValueError(f"{row.name} has no condition: the whole table would be changed")
    for step, change, left in (("update", engine.update, _updated(answer, row)), ("delete", engine.delete, Answer())):
        meter.step(f"{step} of one row", partial(change, condition))
        wrong = _wrong(left, engine.answer(row))
        meter.report.check(f"{engine.name}, the row after its {step}", [wrong] if wrong else [])


def _wrong(expected: Answer, found: Answer) -> str:
    return "" if found == expected else f"{found!r}, not {expected!r}"[:200]


def _updated(found: Answer, row: Query) -> Answer:
    """The answer of a look-up once the row's comment was updated."""
    place = row.columns.index("l_comment")
    return tuple((*values[:place], UPDATED, *values[place + 1 :]) for values in found)


def _strange(frame: Frame, feed: pa.Table) -> str:
    """The frame's times are after those of all rows, so each of its records changed one."""
    changed = sorted(zip(*(feed[name].to_pylist() for name in _CHANGED), strict=True))
    written = pq.read_table(frame.path)
    expected = sorted(zip(*(written[name].to_pylist() for name in _CHANGED), strict=True))
    return "" if changed == expected else f"{len(changed)} changes, not those of the {len(expected)} records"
