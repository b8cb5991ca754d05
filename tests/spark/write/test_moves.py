"""``upsert(frame, before=...)`` of Spark DataFrames: the same records as of Arrow frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import FrameError, LakeTable
from tests.unit.write.test_moves import frame, made, rows_of


def test_a_dataframe_moves_what_an_arrow_frame_moves(spark: SparkSession, tmp_path: Path) -> None:
    first: list[tuple[Any, ...]] = [("a", k, 1, "x", None) for k in range(20)]
    moves = [(chr(ord("a") + k % 3), k, 2, "y", "a") for k in range(0, 20, 2)]
    late = [("c", k, 1, "z", None) for k in range(3)]
    kinds = [("c", 3, 3, "w", "a", "+U"), ("c", 5, 3, "w", "a", "-D")]
    tables = [made(tmp_path / "spark", spark=spark), made(tmp_path / "arrow")]
    for rows in (first, moves, late):
        tables[0].upsert(spark.createDataFrame(frame(rows)), before={"region": "was"})
        tables[1].upsert(frame(rows), before={"region": "was"})
    tables[0].upsert(spark.createDataFrame(frame(kinds, "op")), before={"region": "was"}, kind_column="op")
    tables[1].upsert(frame(kinds, "op"), before={"region": "was"}, kind_column="op")
    expected = {k: ("a", k, 1, "x") for k in range(20)} | {row[1]: row[:4] for row in moves}
    expected[3] = ("c", 3, 3, "w")
    del expected[5]
    # Late records of keys that were never in partition c make rows there; that of 2 is older than what moved there.
    added = [row[:4] for row in late if row[:2] != ("c", 2)]
    assert rows_of(tables[0]) == rows_of(tables[1]) == sorted([*expected.values(), *added])


def test_partition_values_have_the_tables_type(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "p INT, id BIGINT", key=["p", "id"], partition_by=["p"], spark=spark)
    rows = spark.createDataFrame(pa.table({"p": [1], "id": [1], "was": [2**40]}))
    with pytest.raises(FrameError, match="'p' is BIGINT, the table has INT: with before, cast it"):
        table.upsert(rows, before={"p": "was"})
