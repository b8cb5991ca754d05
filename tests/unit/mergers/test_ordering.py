"""Order codes against Python's own comparison, value by value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mergers.ordering import is_orderable, order_codes, plain_integers
from tests.model import rank

BIG = 2**63 - 1
DIGITS_38 = Decimal("9" * 38)

_at = dt.datetime.fromisoformat

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [127, None, -128, 0, 127]),
    "int32": (pa.int32(), [5, -(2**31), 2**31 - 1, 0, None]),
    "int64": (pa.int64(), [BIG, -BIG - 1, 0, -1, 1, None, BIG]),
    "float32": (pa.float32(), [1.5, -0.0, 0.0, math.nan, math.inf, -math.inf, None, -1.5]),
    "float64": (pa.float64(), [5e-324, -5e-324, 0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, None, 1e308]),
    "bool": (pa.bool_(), [True, False, None, True]),
    "string": (pa.string(), ["b", "", "a", None, "é", "z", "\U0001f600", "\uffff", "ab", "a\0", "B"]),
    "binary": (pa.binary(), [b"\xff", b"", b"\x00", b"\x7f\x80", None, b"\x80", b"\x7f"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [
            _at("1969-12-31T23:59:59.999999Z"),
            _at("1970-01-01T00Z"),
            None,
            _at("9999-12-31T23:59:59.999999Z"),
            _at("0001-01-01T00Z"),
        ],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [_at("2026-01-01T00:00:00.000001"), None, _at("2026-01-01")]),
    "decimal18": (pa.decimal128(18, 2), [Decimal("-9999999999999999.99"), Decimal("0.01"), None, Decimal("-0.01")]),
    "decimal38": (
        pa.decimal128(38, 0),
        [DIGITS_38, Decimal("-" + "9" * 38), Decimal(0), None, Decimal("9" * 37 + "8"), Decimal(2**64)],
    ),
}


def agree(codes: list[int], tuples: list[tuple[Any, ...]]) -> None:
    """Each pair of codes compares as the pair of tuples."""
    for code, values in zip(codes, tuples, strict=True):
        for other, others in zip(codes, tuples, strict=True):
            assert (code < other, code == other) == (values < others, values == others), (values, others)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("nulls", [True, False])
def test_one_column(name: str, nulls: bool) -> None:
    kind, values = COLUMNS[name]
    kept = [value for value in values if nulls or value is not None]
    array = pa.array([None, *kept, None], kind)[1:-1]  # an offset, as buckets of a log block have
    assert array.offset == 1
    agree(order_codes([array]).tolist(), [rank(value) for value in kept])


@pytest.mark.parametrize(("first", "second"), [("int64", "string"), ("float64", "decimal38"), ("bool", "int8")])
def test_two_columns_compare_as_tuples(first: str, second: str) -> None:
    (left_kind, left), (right_kind, right) = COLUMNS[first], COLUMNS[second]
    pairs = [(a, b) for a in left for b in right]
    columns = [pa.array([a for a, _ in pairs], left_kind), pa.array([b for _, b in pairs], right_kind)]
    agree(order_codes(columns).tolist(), [(rank(a), rank(b)) for a, b in pairs])


def test_three_columns_of_many_distinct_values() -> None:
    """The product of the columns' sizes is far above 63 bits; the codes stay dense."""
    rows = [(i * 7919 % 1000, f"{i * 104729 % 1000:04}", -i) for i in range(1000)]
    codes = order_codes([pa.array(column) for column in zip(*rows, strict=True)])
    assert [rows[i] for i in np.argsort(codes, kind="stable")] == sorted(rows)
    assert len(set(codes.tolist())) == 1000


def test_no_rows_and_only_nulls() -> None:
    for kind, _ in COLUMNS.values():
        assert order_codes([pa.array([], kind)]).tolist() == []
        assert len(set(order_codes([pa.nulls(3, kind)]).tolist())) == 1


@pytest.mark.parametrize("name", ["int8", "int64", "bool", "date", "timestamp", "decimal18"])
def test_plain_integers_of_a_slice(name: str) -> None:
    kind, values = COLUMNS[name]
    array = pa.array([value for value in values if value is not None], kind)
    whole, part = plain_integers(array), plain_integers(array[1:])
    assert whole is not None
    assert part is not None
    assert part.tolist() == whole.tolist()[1:]
    assert np.argsort(whole, kind="stable").tolist() == sorted(range(len(array)), key=array.to_pylist().__getitem__)
    none = plain_integers(pa.array([], kind))
    assert none is not None
    assert len(none) == 0


def test_types_without_plain_integers() -> None:
    for name in ("string", "binary", "decimal38", "float64"):
        assert plain_integers(pa.array([], COLUMNS[name][0])) is None


def test_what_has_an_order() -> None:
    assert all(is_orderable(kind) for kind, _ in COLUMNS.values())
    nested = [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.int8(), pa.int8()), pa.null()]
    assert not any(is_orderable(kind) for kind in nested)


def test_no_column_has_no_order() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        order_codes([])
