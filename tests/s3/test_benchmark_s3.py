"""The benchmark of object storage at a tiny size: every engine answers right, and few requests stay few."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare.workload import Parameters, Workload
from benchmarks.s3 import measure
from benchmarks.s3_proxy import proxied
from tests.s3.servers import KEY, SECRET, Endpoint

pytestmark = pytest.mark.long


def test_every_step_of_every_engine(endpoint: Endpoint, place: str, tmp_path: Path) -> None:
    workload = Workload.prepare(tmp_path, Parameters(scale=0.001, commits=4, rounds=1, seed=3))
    host, port = endpoint.url.partition("://")[2].split(":")
    with proxied(host, int(port), delay_s=0.001) as proxy:
        rows = measure(
            workload, proxy, place, commits=3, credentials=(KEY, SECRET), iceberg=None, scratch=tmp_path,
            say=lambda _: None,
        )  # fmt: skip
    assert [row for row in rows if row.problem] == []
    assert {row.engine for row in rows} == {"plain", "lakemerge", "deltalake"}
    requests = {(row.engine, row.step): row.requests for row in rows}
    assert all(requests.values())
    assert requests["lakemerge", "upsert to an open table"] <= 5
    assert requests["lakemerge", "an unchanged open table"] == 1
    assert {row.step for row in rows if row.engine == "lakemerge"} == {
        "open", "upsert to an open table", "an unchanged open table", "3 commits: feed of the last", "compaction",
        *(f"{when}: {query}" for when in ("3 commits", "compacted")
          for query in ("full scan", "two-column aggregate", "filter on one week", "key look-up")),
    }  # fmt: skip
