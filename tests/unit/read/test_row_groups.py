"""Row groups that a filter passes over: never one that holds a matching row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge.format.keys import KeySpan
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.parquet.row_groups import in_span, key_bounds, matching, with_keys
from lakemerge.schema.names import ColumnNames

SCHEMA = pa.schema(
    [("s", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])), ("k", pa.int64()), ("f", pa.float64())]
)
NAN = float("nan")


@pytest.fixture
def footer(tmp_path: Path) -> pq.FileMetaData:
    """Three row groups of keys 0-9, 10-19 and 20-29; ``f`` is null, then 1 and NaN, then 5."""
    rows = [{"s": {"a": 99 - k, "b": [k]}, "k": k, "f": (None, (1.0, NAN)[k % 2], 5.0)[k // 10]} for k in range(30)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "f", row_group_size=10)
    return pq.read_metadata(tmp_path / "f")


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        ("k < 10", [0]),
        ("k = 19 or k = 20", [1, 2]),
        ("k > 29", []),
        ("k in (5, 25)", [0, 2]),
        ("f > 100", [1, 2]),  # NaN is above all, and no statistic tells of it
        ("f is null", [0]),
        ("f = 5 and k < 12", [1]),
        ("s.a > 90", [0, 1, 2]),  # fields of structs are not asked
    ],
)
def test_by_condition(footer: pq.FileMetaData, condition: str, groups: list[int]) -> None:
    parsed = parse_filter(condition, SCHEMA)
    assert parsed is not None
    assert matching(parsed, ColumnNames())(footer, range(3)) == groups
    assert matching(parsed, ColumnNames())(footer, [1]) == [group for group in groups if group == 1]


@pytest.mark.parametrize(
    ("low", "high", "groups"), [(3, 3, [0]), (9, 10, [0, 1]), (30, 40, []), (-5, 99, [0, 1, 2]), (15, 25, [1, 2])]
)
def test_by_span_of_keys(footer: pq.FileMetaData, low: int, high: int, groups: list[int]) -> None:
    assert (
        in_span([SCHEMA.field("k"), SCHEMA.field("f")], KeySpan.closed((low, 7), (high, 0)))(footer, range(3)) == groups
    )


def test_by_span_of_keys_of_several_columns(tmp_path: Path) -> None:
    """Where a column does not vary in a row group, the next one tells."""
    rows = pa.table({"a": [1] * 6 + [1, 2, 2, 2, 2, 2], "b": [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]})
    pq.write_table(rows, tmp_path / "f", row_group_size=3)
    footer, key = pq.read_metadata(tmp_path / "f"), list(rows.schema)
    assert key_bounds(footer, range(4), key) == [((1, 1), (1, 3)), ((1, 4), (1, 6)), ((1,), (2,)), ((2, 3), (2, 5))]
    for span, groups in [
        (KeySpan.closed((1, 5), (1, 5)), [1, 2]),
        (KeySpan.closed((1, 6), (1, 7)), [1, 2]),
        (KeySpan.closed((2, 1), (2, 2)), [2]),
        (KeySpan(None, (1, 4)), [0, 2]),
        (KeySpan((1, 4), (2,)), [1, 2]),
        (KeySpan((2,), None), [2, 3]),
        (KeySpan((2, 6), None), [2]),
        (KeySpan(None, None), [0, 1, 2, 3]),
    ]:
        assert in_span(key, span)(footer, range(4)) == groups, span


def test_a_column_that_the_file_lacks_tells_nothing(footer: pq.FileMetaData) -> None:
    parsed = parse_filter("x = 1", pa.schema([("x", pa.int64())]))
    assert parsed is not None
    assert matching(parsed, ColumnNames())(footer, range(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        ([(3,)], [0]),
        ([(0,), (29,)], [0, 2]),
        ([(9,), (10,)], [0, 1]),
        ([(-1,), (30,)], []),
        ([(5,), (15,), (25,)], [0, 1, 2]),
    ],
)
def test_by_single_keys(footer: pq.FileMetaData, keys: list[tuple[int]], groups: list[int]) -> None:
    fields = [pa.field("k", pa.int64())]
    assert with_keys(fields, keys)(footer, range(3)) == groups
    assert with_keys(fields, keys)(footer, [1]) == [group for group in groups if group == 1]


def test_by_single_keys_of_which_bounds_tell_the_beginning(tmp_path: Path) -> None:
    """Two key columns: the first varies within a row group, so that its bounds say nothing of the second."""
    pq.write_table(pa.table({"a": [1, 2, 2, 3], "b": [9, 0, 5, 1]}), tmp_path / "f", row_group_size=2)
    fields = [pa.field("a", pa.int64()), pa.field("b", pa.int64())]
    told = pq.read_metadata(tmp_path / "f")
    for keys, groups in [([(2, 3)], [0, 1]), ([(1, 0)], [0]), ([(3, 7)], [1]), ([(0, 9), (4, 0)], [])]:
        assert with_keys(fields, keys)(told, range(2)) == groups
