"""Base files as they lie on disk, and their statistics against the rows themselves."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.write.base_file import ordinals_needed
from lakemerge.write.parquet.stats import file_statistics
from tests.unit.faults import create, frame, listing, rows_of


def test_hidden_columns_number_the_rows(tmp_path: Path) -> None:
    """``_lm_file`` is the ordinal in the tag, and not in the schema."""
    table = create(tmp_path, settings=Settings(target_file_bytes=1, merge_budget_bytes=1, row_group_rows=2))
    table.upsert(frame([(k, 1, "x") for k in range(5)]))
    for k in range(5, 9):
        table.upsert(frame([(k, 1, "y")]))
    table.compact()
    ordinals = set()
    for base in table.opened.view.base_files:
        data = pq.read_table(tmp_path / base.add.path)
        assert data.column_names == ["k", "o", "v", "_lm_file"]
        assert data.column("_lm_file").to_pylist() == [base.ordinal] * base.rows
        keys = data.column("k").to_pylist()
        assert keys == sorted(set(keys))
        ordinals.add(base.ordinal)
    assert len(ordinals) == len(table.opened.view.base_files) > 2
    assert max(ordinals) < table.opened.view.state.next_ordinal
    assert table.to_arrow().column_names == ["k", "o", "v"]


def test_ordinals_are_enough_for_the_files_a_tile_can_give() -> None:
    settings = Settings(target_file_bytes=100)
    assert [ordinals_needed(size, settings) for size in (0, 49, 50, 100, 1000)] == [1, 1, 2, 3, 21]


def test_an_empty_slice_has_no_file(tmp_path: Path) -> None:
    table = create(tmp_path, buckets=64)
    table.upsert(frame([(1, 1, "x")]))
    assert len(table.opened.view.base_files) == 1
    assert len([file for file in listing(tmp_path) if file.startswith("base/")]) == 1


COLUMNS: dict[str, tuple[pa.DataType, list[Any], Any, Any]] = {
    "integers": (pa.int64(), [3, None, -(2**63), 2**63 - 1], -(2**63), 2**63 - 1),
    "floats": (pa.float64(), [1.5, None, -2.5], -2.5, 1.5),
    "infinite": (pa.float64(), [math.inf, -math.inf], None, None),
    "strings": (pa.string(), ["b", None, "a", ""], "", "b"),
    "long strings": (pa.string(), ["a" * 40, "b" * 40], "a" * 32, "b" * 32 + "\U0010ffff"),
    "dates": (pa.date32(), [dt.date(1, 2, 3), dt.date(9999, 12, 31)], "0001-02-03", "9999-12-31"),
    "instants": (
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(1, 1, 1, 0, 0, 0, 1999, dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 1001, dt.UTC)],
        "0001-01-01T00:00:00.001Z",
        "2026-01-01T00:00:00.002Z",
    ),
    "the last instant": (
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC)],
        "9999-12-31T23:59:59.999Z",
        "9999-12-31T23:59:59.999Z",
    ),
    "local times": (
        pa.timestamp("us"),
        [dt.datetime.fromisoformat("0999-01-01T00:00:00.000000"), dt.datetime.fromisoformat("2026-01-01T01:02:03")],
        "0999-01-01T00:00:00.000",
        "2026-01-01T01:02:03.000",
    ),
    "decimals": (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("-7.50")], -7.5, 1.25),
    "wide decimals": (pa.decimal128(38, 0), [Decimal(10**37 + 1)], None, None),
    "booleans": (pa.bool_(), [True, False], None, None),
    "binary": (pa.binary(), [b"a"], None, None),
    "lists": (pa.list_(pa.int64()), [[1]], None, None),
    "only nulls": (pa.int64(), [None, None], None, None),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_statistics(name: str) -> None:
    kind, values, low, high = COLUMNS[name]
    table = pa.table({"c": pa.array(values, kind)})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2, store_decimal_as_integer=True)
    body = json.loads(file_statistics(pq.read_metadata(sink), table.schema) or "")
    assert body["numRecords"] == len(values)
    assert body["minValues"].get("c") == low
    assert body["maxValues"].get("c") == high
    if name != "lists":
        assert body["nullCount"] == {"c": values.count(None)}


def test_statistics_of_a_file_without_rows() -> None:
    table = pa.table({"c": pa.array([], pa.int64())})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    body = json.loads(file_statistics(pq.read_metadata(sink), table.schema) or "")
    assert (body["numRecords"], body["minValues"], body["maxValues"]) == (0, {}, {})


def test_only_the_first_columns_have_statistics() -> None:
    table = pa.table({f"c{i}": [i] for i in range(40)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    body = json.loads(file_statistics(pq.read_metadata(sink), table.schema) or "")
    assert body["minValues"] == {f"c{i}": i for i in range(32)}


def test_statistics_never_hide_a_row(tmp_path: Path) -> None:
    """Each value is found by a filter for it, in file slices that only their statistics tell apart."""
    values = ["a" * 40, "a" * 40 + "b", "\U0010ffff" * 40, "é" * 33, ""]
    table = create(tmp_path, settings=Settings(target_file_bytes=1, merge_budget_bytes=1))
    table.upsert(frame([(k, k, value) for k, value in enumerate(values)]))
    assert len(table.opened.view.base_files) > 2
    for k, value in enumerate(values):
        assert rows_of(table.to_arrow(columns=["k"], filter=pa.compute.field("v") == value)) == [(k,)]


def test_nan_is_above_every_bound(tmp_path: Path) -> None:
    """This holds for a clean file, too: no statistics say that its floats end at 1.0."""
    table = create(tmp_path, schema="k BIGINT, o BIGINT, v DOUBLE", buckets=1)
    table.upsert(frame([(1, 1, "1.0"), (2, 1, "NaN")]).set_column(2, "v", pa.array([1.0, math.nan])))
    assert rows_of(table.to_arrow(columns=["k"], filter="v > 100")) == [(2,)]
    (add,) = table.opened.view.snapshot.files.values()
    assert add.stats is not None
    assert json.loads(add.stats)["maxValues"] == {"k": 2, "o": 1}


def test_a_column_is_not_judged_by_a_field_of_its_path(tmp_path: Path) -> None:
    """A column ``s.x`` and the field ``x`` of a struct ``s`` have one path in Parquet."""
    nested = pa.array([{"x": 1}], pa.struct({"x": pa.int64()}))
    table = LakeTable.create(tmp_path, "`s.x` BIGINT, s STRUCT<x: BIGINT>, v INT", key=["s.x"], buckets=1)
    table.upsert(pa.table({"s.x": [100], "s": nested}))
    assert table.to_arrow(filter="`s.x` = 100").num_rows == 1
    (add,) = table.opened.view.snapshot.files.values()
    assert add.stats is not None
    assert json.loads(add.stats)["minValues"] == {"s.x": 100}
