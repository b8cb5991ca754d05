"""What tasks of a native scan read through the data source: the named file slices, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from lakemerge import LakeTable, ReadPolicy, Settings, TableDamagedError
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.spark.native import KernelSlices, name_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("st", pa.struct([("a", pa.string()), ("b", pa.string())])),
    ]
)
SPARK = StructType(
    [
        StructField("id", LongType()),
        StructField("n", LongType()),
        StructField("at", TimestampType()),
        StructField("st", StructType([StructField("b", StringType())])),
    ]
)


def made(path: Path) -> LakeTable:
    table = LakeTable.create(
        path, SCHEMA, key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}, buckets=4
    )
    for step in (1, 2):
        rows = [(key, key * step, key * 3_600_000_000, {"a": f"a{key}", "b": f"b{step}"}) for key in range(100)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        table.upsert(
            pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
        )
    return table


def read(table: LakeTable, slices: KernelSlices, **options: str) -> pa.Table:
    told = {
        "path": table.url,
        "version": str(table.version),
        "lakemerge.columns": json.dumps([[name, name] for name in SCHEMA.names]),
        "lakemerge.slices": slices.to_json(),
        **options,
    }
    reader = LakeMergeDataSource(told).reader(SPARK)
    batches: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return pa.Table.from_batches([*batches], batches[0].schema if batches else SCHEMA).sort_by("id")


def test_named_file_slices(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    names = frozenset(map(name_of, table.opened.view.file_slices))
    assert len(names) == 4
    found = read(table, KernelSlices(names, Settings(), 2))
    assert found["n"].to_pylist() == [key * 3 for key in range(100)]
    assert found["st"].to_pylist() == [{"b": "b2"}] * 100, "fields that nobody wants are left out"
    [one, *others] = sorted(names, key=repr)
    parts = [read(table, KernelSlices(some, Settings(), 2)) for some in (frozenset([one]), frozenset(others))]
    assert all(part.num_rows for part in parts)
    assert sorted(pa.concat_tables(parts)["id"].to_pylist()) == list(range(100))
    wanted = read(table, KernelSlices(names, Settings(), 2), **{"lakemerge.filter": "`id` >= 98"})
    assert wanted["id"].to_pylist() == [98, 99]


def test_a_filter_in_the_zone_of_the_session(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    names = frozenset(map(name_of, table.opened.view.file_slices))
    slices = KernelSlices(names, Settings(), 2, "at = TIMESTAMP '1970-01-01 05:00:00' -- noon", "America/New_York")
    assert read(table, slices)["id"].to_pylist() == [10]
    assert read(table, slices, **{"lakemerge.filter": "`n` > 900"}).num_rows == 0


def test_a_file_slice_that_is_not_there(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with pytest.raises(TableDamagedError, match="has not the file slices"):
        read(table, KernelSlices(frozenset([((), 7, None)]), Settings(), 2))


def test_a_second_scan_finds_the_version_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(tmp_path / "t")
    slices = KernelSlices(frozenset(map(name_of, table.opened.view.file_slices)), Settings(), 2)
    assert read(table, slices).num_rows == 100
    decoded: list[object] = []
    monkeypatch.setattr("lakemerge.layout.view.BaseFile.of", lambda *_: decoded.append(1))
    monkeypatch.setattr("lakemerge.delta.log_replay.decode", lambda *_: decoded.append(2))
    assert read(table, slices, **{"lakemerge.filter": "`id` >= 98"})["id"].to_pylist() == [98, 99]
    assert decoded == []


def test_they_are_told_in_json() -> None:
    settings = Settings(merge_budget_bytes=7, reads=ReadPolicy(premerge=False, premerge_rows=3))
    slices = KernelSlices(
        frozenset([(("x", None), 3, "base/a"), ((), 0, None)]), settings, 5, "a = 1", "UTC", computed=False
    )
    assert KernelSlices.of_json(slices.to_json()) == slices
