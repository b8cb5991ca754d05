"""What calls cost on object storage: a real S3 server that is 25 ms away, each request and byte counted.

    python -m benchmarks.s3 --server .venv/versitygw/versitygw

A table of line items takes commits of 1 % and is read before and after a compaction, without Spark. deltalake and plain
Parquet files, read by pyarrow, do the same. The answers are compared with DuckDB's over the rows that were written.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.compare.on_arrow import expression
from benchmarks.compare.queries import AGGREGATE, FILTER, FULL_SCAN, Query, look_up, normalised
from benchmarks.compare.workload import Frame, Parameters, Workload
from benchmarks.s3_proxy import Proxy, depth, proxied
from benchmarks.tpch import LINEITEM
from benchmarks.versitygw import versitygw
from lakemerge import LakeTable

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


class Reader(ABC):
    """A table on S3 that is read. Each call begins with nothing in memory."""

    def __init__(self, name: str, bucket: str, endpoint: str, credentials: tuple[str, str]) -> None:
        self.name, self.url, self.endpoint = name, f"{bucket}/{name}", endpoint
        self.key, self.secret = credentials

    @abstractmethod
    def load(self, rows: pa.Table) -> None:
        """Make the table, with these rows."""

    @abstractmethod
    def rows(self, query: Query) -> pa.Table:
        """Open the table and take the rows and columns of a query."""


class Engine(Reader):
    """A table on S3 that is written to."""

    @abstractmethod
    def begin(self) -> None:
        """Open the table for what follows."""

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Write to the table that :meth:`begin` opened."""

    @abstractmethod
    def compact(self) -> None:
        """Open the table and compact all of it."""

    def feed(self) -> Callable[[], pa.Table] | None:
        """Opens the table and takes the changes of the last commit. ``None`` if the engine has no such feed."""
        return None

    def again(self) -> Callable[[], object] | None:
        """A look at a table that is open already and has not changed."""
        return None


class Lake(Engine):
    """LakeMerge with no maintenance but what a step asks for."""

    @property
    def options(self) -> Mapping[str, object]:
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def _open(self) -> LakeTable:
        return LakeTable.open(self.url, storage_options=self.options)

    def load(self, rows: pa.Table) -> None:
        table = LakeTable.create(
            self.url, LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], buckets=4,
            storage_options=self.options, properties={"lakemerge.maintenance": "off"},
        )  # fmt: skip
        table.upsert(rows)

    def begin(self) -> None:
        self._table = self._open()

    def upsert(self, rows: pa.Table) -> None:
        self._table.upsert(rows)

    def rows(self, query: Query) -> pa.Table:
        table = self._open()
        keys = {name: value for name, sign, value in query.bounds if sign == "="}
        if set(keys) == set(LINEITEM.key):
            row = table.get(keys, columns=list(query.columns))
            return pa.Table.from_pylist([] if row is None else [row])
        return table.to_arrow(columns=list(query.columns) or None, filter=expression(query.bounds))

    def compact(self) -> None:
        self._open().compact()

    def feed(self) -> Callable[[], pa.Table]:
        def changes() -> pa.Table:
            table = self._open()
            return table.changes(table.version - 1, before_images=False).read_all()

        return changes

    def again(self) -> Callable[[], object]:
        table = self._open()
        return lambda: table.version


class Deltalake(Engine):
    """Delta through deltalake. Its MERGE rewrites the files that it touches."""

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }

    def _open(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.url, storage_options=self.options)

    def load(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.url, rows, storage_options=self.options, target_file_size=rows.nbytes // 16)

    def begin(self) -> None:
        self._table = self._open()

    def upsert(self, rows: pa.Table) -> None:
        keys = " AND ".join(f"t.{key} = s.{key}" for key in LINEITEM.key)
        newer = f"s.{LINEITEM.ordering} >= t.{LINEITEM.ordering}"
        merge = self._table.merge(rows, keys, source_alias="s", target_alias="t")
        merge.when_matched_update_all(predicate=newer).when_not_matched_insert_all().execute()

    def rows(self, query: Query) -> pa.Table:
        dataset = self._open().to_pyarrow_dataset()
        return dataset.to_table(columns=list(query.columns) or None, filter=expression(query.bounds))

    def compact(self) -> None:
        self._open().optimize.compact()


class Plain(Reader):
    """Parquet files that pyarrow writes and reads. The floor of reads loads the rows as they are in the end."""

    @property
    def _files(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key=self.key, secret_key=self.secret, region="us-east-1", endpoint_override=self.endpoint.partition("://")[2],
            scheme="http",
        )  # fmt: skip

    @property
    def _folder(self) -> str:
        return self.url.removeprefix("s3://")

    def load(self, rows: pa.Table) -> None:
        part = -(-rows.num_rows // 4)
        for number in range(4):
            pq.write_table(rows.slice(number * part, part), f"{self._folder}/{number}.parquet", filesystem=self._files)

    def rows(self, query: Query) -> pa.Table:
        dataset = ds.dataset(self._folder, filesystem=self._files, format="parquet")
        return dataset.to_table(columns=list(query.columns) or None, filter=expression(query.bounds))


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
            problem(found),
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
    credentials: tuple[str, str],
    say: Callable[[str], None],
) -> list[Row]:
    """All steps of all engines, in the order in which they ran."""
    meter = Meter(proxy, say)
    frames = [workload.small(number + 1) for number in range(commits)]
    state = workload.state(workload.initial, frames)
    asked = (FULL_SCAN, AGGREGATE, FILTER, look_up(*workload.updated_key()))
    answers = {query.name: workload.answer(state, query) for query in asked}

    def reads(engine: Reader, when: str) -> None:
        for query in asked:
            wrong = partial(_wrong, query=query, answers=answers)
            meter.step(engine.name, f"{when}: {query.name}", partial(engine.rows, query), wrong)

    at = (bucket, proxy.url, credentials)
    plain = Plain("plain", *at)
    plain.load(pq.read_table(state))
    reads(plain, "clean")
    for engine in (Lake("lakemerge", *at), Deltalake("deltalake", *at)):
        engine.load(pq.read_table(workload.initial))
        for frame in frames[:-1]:
            engine.begin()
            engine.upsert(_rows(frame))
        meter.step(engine.name, "open", engine.begin)
        meter.step(engine.name, "upsert to an open table", partial(engine.upsert, _rows(frames[-1])))
        again = engine.again()
        if again is not None:
            meter.step(engine.name, "an unchanged open table", again)
        reads(engine, f"{commits} commits")
        feed = engine.feed()
        if feed is not None:
            meter.step(engine.name, f"{commits} commits: feed of the last", feed, partial(_strange, frame=frames[-1]))
        meter.step(engine.name, "compaction", engine.compact)
        reads(engine, "compacted")
    return meter.rows


def _rows(frame: Frame) -> pa.Table:
    return pq.read_table(frame.path)


def _wrong(found: pa.Table, query: Query, answers: Mapping[str, object]) -> str:
    if query.select:
        with duckdb.connect() as db:
            db.register("found", found)
            answer = normalised(db.execute(query.over("found")).fetchall())
    else:
        answer = normalised([[found.num_rows]])
    expected = answers[query.name]
    return "" if answer == expected else f"{answer!r}, not {expected!r}"[:200]


def _strange(feed: pa.Table, frame: Frame) -> str:
    """The frame's times are after those of all rows, so each of its records changed one."""
    changed = sorted(zip(*(feed[name].to_pylist() for name in _CHANGED), strict=True))
    written = sorted(zip(*(_rows(frame)[name].to_pylist() for name in _CHANGED), strict=True))
    return "" if changed == written else f"{len(changed)} changes, not those of the {len(written)} records"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", required=True, help="the program versitygw; `make versitygw` builds it")
    parser.add_argument("--scale", type=float, default=1 / 6, help="TPC-H scale factor; 1/6 is a million line items")
    parser.add_argument("--commits", type=int, default=20, help="of 1 %% of the rows")
    parser.add_argument("--delay-ms", type=float, default=1000 * DELAY_S, help="that each request waits (%(default)s)")
    parser.add_argument("--path", type=Path, default=Path(".demo"), help="keeps the generated data in data/")
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
        rows = measure(workload, proxy, f"s3://{BUCKET}", commits=given.commits, credentials=(KEY, SECRET), say=say)
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    wrong = [row for row in rows if row.problem]
    say(f"{len(rows) - len(wrong)} of {len(rows)} answers are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
