"""What OpenLineage is told of calls, as its own client writes it to a file."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakemerge import DependencyMissingError, FrameError, LakeTable
from lakemerge.ingest import Files
from lakemerge.openlineage import READS, WRITES, dataset_of, emit
from lakemerge.transactions.builder import MergeBuilder
from tests.unit.faults import create, frame

openlineage = pytest.importorskip("openlineage.client", reason="the extra openlineage is not installed")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """Where the client of this test writes its events."""
    file = tmp_path / "events"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    end = emit(openlineage.OpenLineageClient(config={"transport": transport}), namespace="tests")
    yield file
    end()


def told(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_runs_of_writes_services_and_ingests(tmp_path: Path, written: Path) -> None:
    table, name = create(tmp_path / "t"), str(tmp_path / "t")
    began = dt.datetime.now(dt.UTC)
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    assert table.get({"k": 1}) is not None  # a read is no run
    table.upsert(frame([(1, 2, "c")]))
    table.compact()
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"k": 3, "o": 1, "v": "d"}\n')
    table.ingest("landed", Files(tmp_path / "landing", format="json")).run()
    ended = dt.datetime.now(dt.UTC)
    events = told(written)
    jobs = [f"{name}.{operation}" for operation in ("upsert", "upsert", "compact", "ingest")]
    starts, ends = events[::2], events[1::2]
    assert [event["job"] for event in ends] == [{"namespace": "tests", "name": job, "facets": {}} for job in jobs]
    assert {event["eventType"] for event in starts} == {"START"}
    assert {event["eventType"] for event in ends} == {"COMPLETE"}
    assert [event["run"]["runId"] for event in starts] == [event["run"]["runId"] for event in ends]
    assert len({event["run"]["runId"] for event in ends}) == 4
    moments = [dt.datetime.fromisoformat(event["eventTime"]) for event in events]
    assert moments == sorted(moments)
    assert began <= moments[0] < moments[-1] <= ended
    for event in ends:
        (output,) = event["outputs"]
        assert (output["namespace"], output["name"]) == ("file", name)
    first, second, compacted, taken = ends
    assert first["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert first["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    assert second["outputs"][0]["facets"]["version"]["datasetVersion"] == "2"
    assert (first["inputs"], second["inputs"]) == ([], [])
    assert [(each["namespace"], each["name"]) for each in compacted["inputs"]] == [("file", name)]
    assert [each["name"] for each in taken["inputs"]] == [str(tmp_path / "landing")]
    assert taken["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1


def test_a_run_that_fails(tmp_path: Path, written: Path) -> None:
    table = create(tmp_path / "t")
    with pytest.raises(FrameError):
        table.upsert(frame([(1, "a")], ["k", "unknown"]))
    start, failed = told(written)
    assert (start["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert failed["run"]["facets"]["errorMessage"]["message"].startswith("FrameError: ")
    assert "errorMessage" not in start["run"]["facets"]


def test_events_that_cannot_be_sent_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(openlineage.OpenLineageClient):  # type: ignore[misc, name-defined] # the module is found at run time
        def emit(self, event: object) -> None:
            raise OSError("no lineage today")

    end = emit(Broken(config={"transport": {"type": "noop"}}))
    try:
        assert create(tmp_path / "t").upsert(frame([(1, 1, "a")])).rows == 1
    finally:
        end()
    assert "no lineage today" in caplog.text


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(DependencyMissingError, match=r"lakemerge\[openlineage\]"):
        emit()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("/data/orders", ("file", "/data/orders")),
        ("file:///data/orders", ("file", "/data/orders")),
        ("s3://bucket/lake/orders", ("s3://bucket", "lake/orders")),
        ("s3a://bucket/lake/orders/", ("s3://bucket", "lake/orders")),
        ("gs://bucket", ("gs://bucket", "/")),
        ("abfss://box@account.dfs.core.windows.net/o#1", ("abfss://box@account.dfs.core.windows.net", "o#1")),
    ],
)
def test_names_of_datasets(url: str, named: tuple[str, str]) -> None:
    assert dataset_of(url) == named


def test_each_observed_operation_is_a_run_or_is_none() -> None:
    """A new method of a table has to be decided on."""
    observed = {name for name, method in vars(LakeTable).items() if hasattr(method, "__lakemerge_observed__")}
    assert len(observed) > 15
    assert observed <= WRITES.keys() | READS
    assert not WRITES.keys() & READS
    assert (WRITES.keys() | READS) - observed == {"ingest", "merge"}  # a job's run, and a builder's execute
    assert vars(MergeBuilder.execute)["__lakemerge_observed__"] == "merge"
