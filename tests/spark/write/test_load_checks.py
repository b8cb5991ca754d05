"""A bulk load skips the kernel and no check of the merger: records that a merger refuses do not get in by it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from lakemerge import FrameError, LakeTable, Record, RecordRefusedError, RowMerger
from lakemerge.results.writes import UpsertResult
from lakemerge.spark import load, writer
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
    """The other of two tasks has written its log by then. Nothing deletes that but a vacuum."""
    logs = tmp_path / "_lakemerge" / "log"

    def late(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(1200):
                if 7 not in batch.column(0).to_pylist() or any(logs.glob("*.parquet")):
                    break
                time.sleep(0.05)
            else:
                raise AssertionError("the other task wrote nothing")
            yield batch

    table = LakeTable.create(tmp_path, "id BIGINT, v STRING", key=["id"], buckets=2, spark=spark)
    rows = spark.range(0, 10, 1, 2).selectExpr("id", f"{BAD} AS v").mapInArrow(late, "id BIGINT, v STRING")
    with pytest.raises(PySparkException, match="column 'v' holds text that is not UTF-8"):
        rows.write.format("lakemerge").mode("append").save(str(tmp_path))
    assert table.version == 0
    assert [file.parent for file in tmp_path.rglob("*.parquet")] == [logs]
    for _ in range(2):  # a write that began at the latest version may be under way: the first vacuum adds one
        table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[UpsertResult | None]:
    """What loads in the JVM came to; ``None`` where the kernel had to be asked."""
    results: list[UpsertResult | None] = []
    real = load.bulk_load

    def seen(*arguments: Any) -> UpsertResult | None:
        results.append(real(*arguments))
        return results[-1]

    monkeypatch.setattr(writer, "bulk_load", seen)
    return results


NARROW = (
    "id INT, a TINYINT NOT NULL, f FLOAT, g FLOAT, d DOUBLE, n DECIMAL(6,2), m DECIMAL(6,2), l ARRAY<STRUCT<x: INT>>"
)
WIDE = [
    *(
        "id",
        "id AS a",
        "CAST(id / 4 AS DOUBLE) AS f",
        "id AS g",
        "id AS d",
        "id AS n",
        "CAST(id AS DECIMAL(38,18)) AS m",
    ),
    "array(named_struct('x', id)) AS l",
]
UNFIT = {
    "a": ("128L", "'a' is BIGINT, the table has TINYINT: 128"),
    "f": ("0.1D", "'f' is DOUBLE, the table has FLOAT: 0.1"),
    "g": ("16777217L", "'g' is BIGINT, the table has FLOAT: 16777217"),
    "d": ("9007199254740993L", "'d' is BIGINT, the table has DOUBLE: 9007199254740993"),
    "n": ("10000L", "'n' is BIGINT, the table has .*: 10000"),
    "m": ("CAST('0.001' AS DECIMAL(38,18))", "'m' is .*: Decimal.'0.001"),
    "l": ("array(named_struct('x', 2147483648L))", "'l' is .*: .*2147483648"),
    "id": ("4294967296L", "'id' is BIGINT, the table has INT: 4294967296"),
}


@pytest.mark.long
def test_numbers_of_other_types(spark: SparkSession, tmp_path: Path, loads: list[UpsertResult | None]) -> None:
    """A load in the JVM takes those that fit, and leaves it to the kernel to name one that does not."""
    table = LakeTable.create(tmp_path, NARROW, key=["id"], buckets=2, spark=spark)
    good = spark.range(0, 8, 1, 2).selectExpr(*WIDE)
    for column, (value, says) in UNFIT.items():
        bad = good.withColumn(column, functions.expr(f"if(a = 6, {value}, {column})"))
        with pytest.raises(FrameError, match=rf"partition 1 of the frame: .*{says}.* in row 2 does not fit") as caught:
            table.upsert(bad)
        assert (caught.value.column, caught.value.row, caught.value.partition) == (column, 2, 1)
    assert (loads, table.version) == ([None] * len(UNFIT), 0)
    table.upsert(good)
    assert loads[-1] is not None
    table.upsert(good)
    found = table.to_arrow().sort_by("id").to_pylist()
    assert [row["id"] for row in found] == list(range(8))
    assert found[5] == {
        "id": 5, "a": 5, "f": 1.25, "g": 5.0, "d": 5.0, "n": Decimal("5.00"), "m": Decimal("5.00"), "l": [{"x": 5}],
    }  # fmt: skip
    assert table.schema.field("a").type == pa.int8()


def test_numbers_that_only_the_kernel_knows_to_fit(
    spark: SparkSession, tmp_path: Path, loads: list[UpsertResult | None]
) -> None:
    """Large ones that floats happen to hold, and decimals with more digits between them than Spark compares."""
    table = LakeTable.create(tmp_path, "id BIGINT, d DOUBLE, n DECIMAL(38,2)", key=["id"], buckets=2, spark=spark)
    rows = spark.range(4).selectExpr("id", f"{2**60}L AS d", "CAST('1.5' AS DECIMAL(38,30)) AS n")
    assert table.upsert(rows).mode == "load"
    assert loads == [None]
    assert set(table.to_arrow().column("d").to_pylist()) == {2.0**60}
    assert set(table.to_arrow().column("n").to_pylist()) == {Decimal("1.50")}


LARGE = {
    "v": "repeat('x', 1001)",
    "b": "unhex(repeat('00', 1001))",
    "s": "named_struct('t', repeat('x', 1001))",
    "l": "array_repeat(1, 300)",
    "m": "map('k', array_repeat('xyz', 60))",
}
"""Values of over 1,000 bytes as Arrow data, by column."""


@pytest.mark.long
def test_values_that_are_large_are_left_to_the_kernel(
    spark: SparkSession, tmp_path: Path, loads: list[UpsertResult | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses values of over 960 MiB, and Spark's writer would take them."""
    monkeypatch.setattr("lakemerge.spark.load.VALUE_BYTES", 1000)
    ddl = "id BIGINT, v STRING, b BINARY, s STRUCT<t: STRING, n: INT>, l ARRAY<INT>, m MAP<STRING, ARRAY<STRING>>"
    small = {
        "v": "repeat('x', 900)",
        "b": "unhex(repeat('00', 900))",
        "s": "named_struct('t', repeat('x', 900))",
        "l": "array_repeat(1, 50)",
        "m": "map('k', array_repeat('xyz', 30))",
    }
    for column in [None, *LARGE]:
        table = LakeTable.create(tmp_path / str(column), ddl, key=["id"], buckets=2, spark=spark)
        names = {name: LARGE[name] if name == column else value for name, value in small.items()}
        values = [f"IF(id = 6, {value}, NULL) AS {name}" for name, value in names.items() if name != "s"]
        struct = f"IF(id = 6, {names['s'][:-1]}, 'n', 1), NULL) AS s"
        table.upsert(spark.range(0, 8, 1, 2).selectExpr("id", *values, struct))
        (rows,) = (row for row in table.to_arrow().to_pylist() if row["id"] == 6)
        assert len(rows["v"]) == (1001 if column == "v" else 900)
        assert (loads.pop() is None) == (column is not None), column
    assert not loads
