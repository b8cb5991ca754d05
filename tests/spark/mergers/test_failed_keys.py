"""Keys whose merge fails, in Spark's tasks: as without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakemerge
from lakemerge import LakeTable
from tests.unit.faults import rows_of


def test_tasks_skip_them(tmp_path: Path, spark: SparkSession) -> None:
    options = {"aggregates": {"n": "sum"}}
    table = LakeTable.create(
        tmp_path, "k BIGINT, n TINYINT", key=["k"], merger="aggregate", options=options, buckets=1, spark=spark,
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    for step in (100, 1, 100):
        keys = [3, 7] if step == 100 and table.version > 1 else list(range(10))
        table.upsert(pa.table({"k": keys, "n": pa.array([step] * len(keys), pa.int8())}))
    left = [(k, 101) for k in range(10) if k not in (3, 7)]
    with pytest.raises(lakemerge.MergeOverflowError), lakemerge.unwrap_errors():
        table.to_df().collect()
    found = table.to_df(failed_keys="skip").collect()
    assert sorted(map(tuple, found)) == left == rows_of(table.to_arrow(failed_keys="skip"))
    lakemerge.register(spark)
    source = spark.read.format("lakemerge").option("failedKeys", "skip").load(str(tmp_path))
    assert sorted(map(tuple, source.collect())) == left
