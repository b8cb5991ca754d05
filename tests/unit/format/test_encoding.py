"""Which columns of a file get a dictionary and which statistics, seen in the files that are written."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge import LakeTable
from lakemerge.write.parquet.encoding import writer_options

ROWS = 20_000
FLOATS = pa.list_(pa.float64())


def dictionaries(path: Path, table: pa.Table, *, group_rows: int) -> dict[str, bool]:
    pq.write_table(table, path, row_group_size=group_rows, **writer_options(table, group_rows=group_rows))
    return _dictionaries(path)


def _dictionaries(path: Path) -> dict[str, bool]:
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return {column.path_in_schema: "RLE_DICTIONARY" in column.encodings for column in columns}


def test_columns_that_repeat_have_a_dictionary_and_others_none(tmp_path: Path) -> None:
    table = pa.table({"few": np.arange(ROWS) % 7, "all": np.arange(ROWS), "text": [f"t{i}" for i in range(ROWS)]})
    found = dictionaries(tmp_path / "f", table, group_rows=ROWS)
    assert found == {"few": True, "all": False, "text": False}
    assert pq.read_table(tmp_path / "f").equals(table)


def test_a_sorted_column_is_judged_by_rows_from_all_over_it(tmp_path: Path) -> None:
    # Each value twenty times in a row: neighbours repeat, and so does the column.
    table = pa.table({"runs": np.arange(ROWS) // 20, "pairs": np.arange(ROWS) // 2})
    assert dictionaries(tmp_path / "f", table, group_rows=ROWS) == {"runs": True, "pairs": False}


def test_a_dictionary_pays_within_a_row_group_or_not_at_all(tmp_path: Path) -> None:
    table = pa.table({"v": np.random.default_rng(1).integers(0, 2_000, ROWS)})
    assert dictionaries(tmp_path / "large", table, group_rows=ROWS) == {"v": True}
    assert dictionaries(tmp_path / "small", table, group_rows=500) == {"v": False}


def test_leaves_of_nested_columns_have_dictionaries(tmp_path: Path) -> None:
    nested = pa.array([{"x": i % 3, "y": [i % 2]} for i in range(100)])
    table = pa.table({"s": nested, "m": pa.array([[("k", 1)]] * 100, pa.map_(pa.string(), pa.int64()))})
    found = dictionaries(tmp_path / "f", table, group_rows=100)
    assert found == {"s.x": True, "s.y.list.element": True, "m.key_value.key": True, "m.key_value.value": True}


def test_each_leaf_of_a_nested_column_is_judged_by_its_values(tmp_path: Path) -> None:
    """A list of ids beside each row would else get a dictionary that is as large as the ids."""
    ids = pa.array([[{"id": f"a{i}", "kind": i % 2}, {"id": f"b{i}", "kind": 2}] for i in range(ROWS)])
    tags = pa.array([[(f"name {i}", "tag")] for i in range(ROWS)], pa.map_(pa.string(), pa.string()))
    empty = pa.array([[]] * ROWS, pa.list_(pa.string()))
    found = dictionaries(tmp_path / "f", pa.table({"ids": ids, "tags": tags, "empty": empty}), group_rows=ROWS)
    assert found == {
        "ids.list.element.id": False,
        "ids.list.element.kind": True,
        "tags.key_value.key": False,
        "tags.key_value.value": True,
        "empty.list.element": False,
    }


def test_nulls_are_no_repeated_values(tmp_path: Path) -> None:
    rows = range(ROWS)
    table = pa.table(
        {
            "ids": pa.array([f"id {i}" if i % 3 == 0 else None for i in rows]),
            "tags": pa.array([f"tag {i % 5}" if i % 3 == 0 else None for i in rows]),
            "none": pa.nulls(ROWS, pa.string()),
        }
    )
    assert dictionaries(tmp_path / "f", table, group_rows=ROWS) == {"ids": False, "tags": True, "none": False}


def test_floats_have_no_statistics_and_all_else_has(tmp_path: Path) -> None:
    """Arrow's minimum and maximum pass over NaN, which is above every number."""
    kind = pa.struct({"f": pa.float32(), "i": pa.int64(), "l": FLOATS})
    nested = pa.array([{"f": math.nan, "i": 1, "l": [1.0]}], kind)
    mapped = pa.array([[(1.0, "a")]], pa.map_(pa.float64(), pa.string()))
    plain = {"f": [math.nan], "i": [1], "d": [Decimal("1.5")], "t": ["x"], "s.f": ["a column with the path of a leaf"]}
    table = pa.table(plain | {"s": nested, "l": pa.array([[1.0]], FLOATS), "m": mapped})
    pq.write_table(table, tmp_path / "f", **writer_options(table, group_rows=1))
    group = pq.ParquetFile(tmp_path / "f").metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    found = [column.path_in_schema for column in columns if column.is_stats_set]
    assert found == ["i", "d", "t", "s.i", "m.key_value.value"]


def test_files_that_engines_scan_tell_the_bounds_of_their_pages(tmp_path: Path) -> None:
    """Not those of floats, which would pass over NaN, and not logs."""
    table = pa.table({"id": np.arange(ROWS), "f": np.full(ROWS, math.nan)})
    for name, bounded, expected in [("base", None, [True, False]), ("log", ["id"], [False, False])]:
        pq.write_table(table, tmp_path / name, **writer_options(table, group_rows=ROWS, bounded=bounded))
        group = pq.ParquetFile(tmp_path / name).metadata.row_group(0)
        assert [group.column(i).has_column_index for i in range(2)] == expected


def test_an_empty_file_has_the_columns(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([], pa.int64())})
    pq.write_table(table, tmp_path / "f", **writer_options(table, group_rows=1))
    assert pq.read_table(tmp_path / "f").equals(table)


def test_base_files_of_a_compaction_are_encoded_so(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("kind", pa.string())]), key=["id"])
    table.upsert(pa.table({"id": np.arange(ROWS), "kind": ["a", "b"] * (ROWS // 2)}))
    table.upsert(pa.table({"id": [3], "kind": ["c"]}))
    table.compact()
    for path in table.opened.view.snapshot.files:
        assert _dictionaries(tmp_path / "t" / path) == {"id": False, "kind": True, "_lm_file": True}


def test_logs_have_statistics_of_the_key_alone(tmp_path: Path) -> None:
    """Only look-ups ask them, for keys."""
    table = LakeTable.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), key=["id"])
    table.upsert(pa.table({"id": [1], "v": [1]}))
    table.upsert(pa.table({"id": [1], "v": [2]}))
    (log,) = (tmp_path / "t" / "_lakemerge" / "log").glob("*.parquet")
    group = pq.ParquetFile(log).metadata.row_group(0)
    assert [group.column(i).is_stats_set for i in range(group.num_columns)] == [True, False]
