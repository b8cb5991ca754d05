"""An erasure whose file slices are rewritten by Spark's tasks, with keys from a DataFrame."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.unit.compaction.test_forget import PERSON, age, as_records, left_of, people
from tests.unit.faults import rows_of


@pytest.mark.long
@pytest.mark.parametrize("publish", ["off", "deletionVectors"])
def test_nothing_of_the_folder_holds_the_key(spark: SparkSession, tmp_path: Path, publish: str) -> None:
    path = tmp_path / "t"
    made = people(path, properties={"lakemerge.publish": publish})
    as_records(made)
    made.compact(minor=True)
    expected = [row for row in rows_of(made.to_arrow()) if row[0] != PERSON]
    table = LakeTable.open(path, spark=spark)
    keys = spark.createDataFrame([(PERSON,)], "email STRING")
    first = table.forget(keys)
    assert (first.state, first.rows) == ("waiting", 1)
    age(path)
    assert table.forget(keys).state == "done"
    assert left_of(path) == []
    assert sorted(map(tuple, table.to_df().collect())) == expected
