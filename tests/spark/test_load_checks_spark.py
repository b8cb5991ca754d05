"""A bulk load skips the kernel and no check of the merger: records that a merger refuses do not get in by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
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


def test_a_first_load_does_not_check_what_its_operations_delete(spark: SparkSession, tmp_path: Path) -> None:
    """The kernel tells them from rows that lack a value; a load inside the JVM does not."""
    ddl = "id BIGINT, op STRING, v STRING NOT NULL"
    table = LakeTable.create(
        tmp_path, ddl, key=["id"], merger="aws-dms", options={"op_column": "op"}, buckets=1, spark=spark
    )
    frame = ddl.removesuffix(" NOT NULL")
    for bad in ([(1, "I", "a"), (2, "D", None), (3, "U", None)], [(3, "U", None)]):
        with pytest.raises(FrameError, match=r"'v' is.* null in 1"):
            table.upsert(spark.createDataFrame(bad, frame))
    assert table.version == 0
    table.upsert(spark.createDataFrame([(1, "I", "a"), (2, "D", None)], frame))
    assert table.to_arrow().to_pylist() == [{"id": 1, "op": "I", "v": "a"}]
    table.upsert(spark.createDataFrame([(1, "D")], "id BIGINT, op STRING"))
    assert table.to_arrow().num_rows == 0


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
