"""A bulk load skips the kernel and no check of the merger: records that a merger refuses do not get in by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakemerge import FrameError, LakeTable, Record, RecordRefusedError, RowMerger
from mergers.builtin.event_time import EventTime
from mergers.contract import Kinds, TableShape

DDL = "id BIGINT, at INT, v STRING"


def no_junk(rows: pa.RecordBatch) -> None:
    if pc.any(pc.equal(rows.column("v"), "junk")).as_py():
        raise RecordRefusedError("junk")


class RowsChecked(RowMerger):
    id = "0dd5b2a1-56a8-4c0b-8e61-53d9ad8c0d11"
    name = "rows-checked"

    def merge(self, older: Record, newer: Record) -> Record:
        return newer

    def check_records(self, shape: TableShape, rows: pa.RecordBatch, kinds: Kinds | None) -> None:
        no_junk(rows)


class NewestChecked(EventTime):
    id = "0dd5b2a1-56a8-4c0b-8e61-53d9ad8c0d12"
    name = "newest-checked"

    def check_records(self, shape: TableShape, rows: pa.RecordBatch, kinds: Kinds | None) -> None:
        no_junk(rows)


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "sketches": ("aggregate", {"aggregates": {"v": "hll_sketch"}}, DDL.replace("STRING", "BINARY")),
    "rows": ("rows-checked", {}, DDL),
    "inherited": ("newest-checked", {}, DDL),
}


@pytest.mark.parametrize("name", CASES)
def test_a_first_load_is_checked(name: str, spark: SparkSession, tmp_path: Path) -> None:
    merger, options, ddl = CASES[name]
    table = LakeTable.create(
        tmp_path,
        ddl,
        key=["id"],
        ordering=["at"],
        merger=merger,
        options=options,
        mergers=[RowsChecked, NewestChecked],
        spark=spark,
    )
    value = bytearray(b"junk") if "BINARY" in ddl else "junk"
    with pytest.raises(RecordRefusedError):
        table.upsert(spark.createDataFrame([(1, 1, value)], ddl))
    assert table.version == 0
    assert table.upsert(spark.createDataFrame([(1, 1, None)], ddl)).mode == "load"
    assert table.to_arrow().to_pylist() == [{"id": 1, "at": 1, "v": None}]


BAD = "if(id = 7, cast(X'FFFE' as string), 'ok')"
"""Text that Spark does not look at; in the second of two partitions."""
NESTED = {
    "v STRING": BAD,
    "v ARRAY<STRING>": f"array('a', {BAD})",
    "v STRUCT<`x y`: STRING>": f"named_struct('x y', {BAD})",
    "v MAP<STRING, INT>": f"map({BAD}, 1)",
    "v MAP<INT, ARRAY<STRUCT<s: STRING>>>": f"map(1, array(named_struct('s', {BAD})))",
}


@pytest.mark.parametrize("ddl", NESTED)
def test_text_that_is_not_utf8(ddl: str, spark: SparkSession, tmp_path: Path) -> None:
    """By a load in the JVM and by an append; null and good text load there as ever."""
    table = LakeTable.create(tmp_path, f"id BIGINT, {ddl}", key=["id"], buckets=2, spark=spark)
    rows = spark.range(0, 10, 1, 2).selectExpr("id", f"{NESTED[ddl]} AS v")
    good = rows.where("id <> 7").selectExpr("id", "if(id = 5, null, v) AS v")
    for attempt in range(2):
        with pytest.raises(
            FrameError, match=r"partition 1 of the frame: column 'v' holds .* not UTF-8.* row 2;"
        ) as got:
            table.upsert(rows)
        assert (got.value.column, got.value.row, got.value.partition) == ("v", 2, 1)
        assert (table.version, table.to_arrow().num_rows) == (attempt, 9 * attempt)
        if not attempt:
            assert table.upsert(good).mode == "load"
            assert not [file for file in tmp_path.rglob("*.parquet") if "base" not in file.parts]


def test_text_that_is_not_utf8_through_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT, v STRING", key=["id"], buckets=2, spark=spark)
    rows = spark.range(0, 10, 1, 2).selectExpr("id", f"{BAD} AS v")
    with pytest.raises(PySparkException, match="column 'v' holds text that is not UTF-8"):
        rows.write.format("lakemerge").mode("append").save(str(tmp_path))
    assert table.version == 0
    assert not list(tmp_path.rglob("*.parquet"))
