"""The life of a table on an S3 server, through Spark, against the plain-Python model of what it means.

Credentials and endpoint come from the AWS variables of this process. Spark's JVM, and so the Python processes of its
executors, were started without them: what the tasks need goes along with the tasks.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from tests.model import ModelTable
from tests.s3.servers import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ts", pa.int64())])
NAMES = ["id", "name", "ts"]
KIND = "op"


def batches(seed: int) -> list[list[tuple[int, str, int, str]]]:
    """A load, and upserts of keys old and new with orderings early and late, one in ten a delete."""
    drawn = random.Random(seed)
    found = [[(i, f"base {i}", 50, "+I") for i in range(300)]]
    for number in range(5):
        keys = drawn.sample(range(400), 80)
        kinds = drawn.choices(["+U", "-D"], [9, 1], k=len(keys))
        found.append([(k, f"{number}", drawn.randrange(100), kind) for k, kind in zip(keys, kinds, strict=True)])
    return found


def rows_of(table: pa.Table) -> Rows:
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.long
def test_a_life_on_s3(endpoint: Endpoint, place: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, str(value))
    url = f"{place}/lake/table"
    table = LakeTable.create(
        url, SCHEMA, key=["id"], ordering=["ts"], buckets=2, spark=spark, properties={"delta.checkpointInterval": "3"}
    )
    model = ModelTable(SCHEMA, key=["id"], ordering=["ts"])
    states: dict[int, Rows] = {}

    def expected() -> Rows:
        return sorted(tuple(row.values()) for row in model.rows())

    def check() -> None:
        assert rows_of(table.to_df().toArrow()) == expected()
        assert rows_of(LakeTable.open(url).to_arrow()) == expected()

    for number, batch in enumerate(batches(7)):
        frame = spark.createDataFrame(batch, "id BIGINT, name STRING, ts BIGINT, op STRING").repartition(3)
        result = table.upsert(frame, kind_column=KIND)
        assert result.mode == ("load" if number == 0 else "append")
        model.write(NAMES, [dict(zip(NAMES, row[:3], strict=True)) for row in batch], [row[3] for row in batch])
        states[result.version] = expected()
        if number == 3:
            check()
            assert table.compact(minor=True).file_slices == 2
        check()
    assert table.compact().file_slices == 2
    assert not table.opened.view.log_commits
    check()
    for version, rows in states.items():
        assert rows_of(LakeTable.open(url, version=version, spark=spark).to_df().toArrow()) == rows
    some = rows_of(table.to_df(columns=["id", "ts"], filter="id BETWEEN 290 AND 310").toArrow())
    assert some == [(key, ts) for key, _, ts in expected() if 290 <= key <= 310]
    assert LakeTable.check(url).ok
    time.sleep(1.1)  # the server tells times in whole seconds
    assert table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False).files.keys() >= {"log"}
    check()
    assert LakeTable.check(url).ok
