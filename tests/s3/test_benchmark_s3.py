"""The benchmark of object storage at a tiny size: every engine answers right, and few requests stay few."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks.cases.s3 import measure
from benchmarks.cases.s3_engines import Lake
from benchmarks.cases.s3_proxy import depth, proxied
from benchmarks.compare.queries import look_up
from benchmarks.compare.workload import Parameters, Workload
from benchmarks.harness import Run
from benchmarks.measure import Report
from tests.s3.servers import KEY, SECRET, Endpoint

pytestmark = pytest.mark.bench


def _last_updated_key(workload: Workload) -> tuple[int, int]:
    """The last key of the first small commit. The steps delete the row of its first key."""
    rows = pq.read_table(workload.small(1).path).to_pylist()
    return max((row["l_orderkey"], row["l_linenumber"]) for row in rows)


def test_every_step_of_every_engine(endpoint: Endpoint, place: str, tmp_path: Path) -> None:
    workload = Workload.prepare(tmp_path, Parameters(scale=0.001, commits=4, rounds=1, seed=3))
    host, port = endpoint.url.partition("://")[2].split(":")
    report = Report(Console(quiet=True))
    with proxied(host, int(port), delay_s=0.001) as proxy:
        run = Run(report, tmp_path, tmp_path)
        measure(run, workload, proxy, place, (KEY, SECRET), commits=3, iceberg=tmp_path / "none")
    # On a busy machine one thread begins long after another. Requests of a far server still lie beside each other.
    with proxied(host, int(port), delay_s=0.5) as far:
        lake = Lake("lakemerge", place, far.url, (KEY, SECRET))
        row = lake.rows(look_up(*_last_updated_key(workload)))
        chain = far.taken()
    assert row.num_rows == 1
    # Files of this size come whole, so their rows wait for no footer.
    assert len(chain) <= 9
    assert depth(chain) == 4
    assert report.problems == []
    assert {line.case for line in report.lines} == {"plain", "lakemerge", "deltalake"}
    requests = {(line.case, line.what): line.value for line in report.lines if line.unit == "requests"}
    assert all(requests.values())
    assert requests["lakemerge", "upsert to an open table"] <= 5
    assert requests["lakemerge", "an unchanged open table"] == 1
    # The hint, the log's end, a checkpoint beside at most four commits, a newer commit beside the footer, the rows.
    assert requests["lakemerge", "compacted: key look-up"] <= 10
    assert {what for case, what in requests if case == "lakemerge" and not what.endswith(": deep")} == {
        "load", "open", "upsert to an open table", "an unchanged open table", "3 commits: feed of the last",
        "compaction", "update of one row", "delete of one row",
        *(f"{when}: {query}" for when in ("3 commits", "compacted")
          for query in ("full scan", "two-column aggregate", "filter on one week", "key look-up")),
    }  # fmt: skip
