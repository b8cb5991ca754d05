"""deltalake finds with a filter what it finds without one, in columns of each type, whoever wrote the file."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.format.bounds import SKIPPING_COLUMNS, bounded_columns

DDL = (
    "id BIGINT NOT NULL, t TINYINT, h SMALLINT, i INT, f DOUBLE, g FLOAT, b BOOLEAN, d DECIMAL(10,2), m DECIMAL(15,0), "
    "w DECIMAL(18,2), e DECIMAL(38,10), s STRING, doc STRING, high STRING, at TIMESTAMP, last TIMESTAMP, "
    "nt TIMESTAMP_NTZ, day DATE, bin BINARY, none INT, `Odd, ``Name.` INT, st STRUCT<x: INT, y: DOUBLE>"
)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC)
ROWS: list[dict[str, Any]] = [
    {
        "id": n, "t": n, "h": n, "i": n, "f": n + 0.5, "g": n + 0.5, "b": n % 2 == 0, "d": Decimal(n),
        "m": Decimal(n * 10**14), "w": n * Decimal("1234567890123456.78"),
        "e": n * Decimal("12345678901234.5678901234"), "s": "abcde"[n], "doc": "abcde"[n] * 5000,
        "high": "\U0010ffff" * (30 + n), "at": dt.datetime(2020, 1, 1 + n, tzinfo=dt.UTC),
        "last": LAST - dt.timedelta(microseconds=4 - n), "nt": dt.datetime.fromisoformat(f"2020-01-0{1 + n}"),
        "day": dt.date(2020, 1, 1 + n), "bin": bytes([n]), "none": None, "Odd, `Name.": n,
        "st": {"x": n, "y": n + 0.5},
    }
    for n in range(5)
]  # fmt: skip
COMPARED = [name for name in ROWS[0] if name not in ("st", "none")]


def found(path: Path, condition: pc.Expression) -> int:
    return int(deltalake.DeltaTable(str(path)).to_pyarrow_dataset().to_table(filter=condition).num_rows)


def differences(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Where deltalake does not find the rows that plain Python finds."""
    wrong = []
    for name in COMPARED:
        for operator, compare in ((">=", pc.greater_equal), ("<=", pc.less_equal), ("=", pc.equal)):
            for value in (rows[2][name], rows[-1][name]):
                wanted = sum(_holds(operator, row[name], value) for row in rows)
                got = found(path, compare(pc.field(name), pa.scalar(value)))
                wrong += [] if got == wanted else [f"{name} {operator} {value!r:.40}: {got} of {wanted}"]
        if (got := found(path, pc.field(name).is_null())) != 0:
            wrong.append(f"{name} is null: {got} of 0")
    if (got := found(path, pc.field("none").is_null())) != len(rows):
        wrong.append(f"none is null: {got} of {len(rows)}")
    return wrong


def _holds(operator: str, left: Any, right: Any) -> bool:
    return bool(left >= right if operator == ">=" else left <= right if operator == "<=" else left == right)


def loaded(path: Path, spark: SparkSession | None) -> LakeTable:
    table = LakeTable.create(path, DDL, key=["id"], buckets=1, spark=spark)
    rows: Any = pa.Table.from_pylist(ROWS, table.schema)
    result = table.upsert(
        rows if spark is None else spark.createDataFrame(rows, schema=DDL.replace("BIGINT NOT NULL", "BIGINT"))
    )
    assert result.mode == "load"
    return table


@pytest.mark.long
def test_files_of_a_load_and_of_a_compaction(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t", None)
    assert differences(tmp_path / "t", ROWS) == []
    table.upsert(pa.Table.from_pylist(ROWS[:1], table.schema))
    table.compact()
    assert differences(tmp_path / "t", ROWS) == []


def test_files_of_a_load_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = loaded(tmp_path / "t", spark)
    assert differences(tmp_path / "t", ROWS) == []
    assert all(add.stats is not None for add in table.opened.view.snapshot.files.values())


def added_by_alter(table: LakeTable) -> None:
    table.alter(add_columns="new INT, real DOUBLE")
    table.upsert(pa.table({"id": [1], "new": pa.array([1], pa.int32()), "real": [1.5]}))


def added_by_a_write(table: LakeTable) -> None:
    table.upsert(pa.table({"id": [1], "new": pa.array([1], pa.int32()), "real": [1.5]}), merge_schema=True)


@pytest.mark.parametrize("add", [added_by_alter, added_by_a_write])
def test_columns_that_come_later(add: Callable[[LakeTable], None], tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT, v INT", key=["id"], buckets=1)
    table.upsert(pa.table({"id": [1, 2], "v": pa.array([1, 2], pa.int32())}))
    before = table.version
    add(table)
    table.compact()
    for name, value in (("new", 1), ("real", 1.5), ("v", 1)):
        assert found(tmp_path, pc.field(name) == value) == 1, name
    assert found(tmp_path, pc.field("real").is_null()) == 1
    assert table.opened.view.snapshot.metadata.configuration[SKIPPING_COLUMNS] == "`id`,`v`,`new`"
    table.restore(version=before)
    assert table.opened.view.snapshot.metadata.configuration[SKIPPING_COLUMNS] == "`id`,`v`"


def test_what_has_no_bounds_leaves_a_file_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    """No text spells a year after 9999 in each reader."""
    table = LakeTable.create(tmp_path, "id BIGINT, at TIMESTAMP, v INT", key=["id"], buckets=1, spark=spark)
    table.upsert(spark.sql("SELECT id, timestamp_micros(id * 253402300800000000) AS at, 1 AS v FROM range(3)"))
    table.compact()
    assert [add.stats for add in table.opened.view.snapshot.files.values()] == [None]
    assert found(tmp_path, pc.field("v") == 1) == table.to_arrow(filter="v = 1").num_rows == 3


def test_the_property_names_columns_that_always_have_bounds(tmp_path: Path) -> None:
    table = loaded(tmp_path, None)
    (add,) = table.opened.view.snapshot.files.values()
    body = json.loads(add.stats or "")
    names = bounded_columns(table.schema, ())
    assert {"f", "g", "b", "w", "e", "bin", "st"}.isdisjoint(names)
    assert set(names) - {"none"} <= body["minValues"].keys() & body["maxValues"].keys()
