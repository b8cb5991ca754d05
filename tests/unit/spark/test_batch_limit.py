"""The session's limit of rows in a batch that a task gives back, which Spark 4.2 does not hold itself."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import TaskContext

from lakemerge.spark.transport.jobs import in_limit, limited


class Context:
    def __init__(self, limit: str | None) -> None:
        self.limit = limit

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.limit if name == "spark.sql.execution.arrow.maxRecordsPerOutputBatch" else "7"


BATCHES = [pa.RecordBatch.from_pydict({"n": pa.array(part, pa.int64())}) for part in ([], range(25), [25], [])]


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(None, [0, 25, 1, 0]), ("-1", [0, 25, 1, 0]), ("10", [10, 10, 5, 1]), ("25", [25, 1]), ("100", [25, 1])],
)
def test_batches_have_no_more_rows_than_the_limit(
    limit: str | None, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context(limit)))
    found = list(in_limit(BATCHES))
    assert [batch.num_rows for batch in found] == sizes
    assert [number for batch in found for number in batch["n"].to_pylist()] == list(range(26))
    assert list(limited(lambda batches: batches)(iter(BATCHES))) == found


def test_outside_of_tasks_batches_stay_as_they_are() -> None:
    assert list(in_limit(BATCHES)) == BATCHES
