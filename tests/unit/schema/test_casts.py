"""Numbers of other types than the table's: taken where each has an equal there, else named with their row."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge import FrameError, LakeTable
from lakemerge.schema.schema import castable, safe_cast
from tests.model import has_equal
from tests.packages import halves
from tests.unit.faults import create, frame, listing, rows_of, state_of

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
DECIMALS = [
    pa.decimal128(digits, scale)
    for digits, scale in ((1, 0), (1, 1), (5, 2), (10, 0), (18, 18), (19, 1), (38, 0), (38, 10), (38, 37))
]
TABLE_TYPES = [*INTEGERS[:4], pa.float32(), pa.float64(), *DECIMALS]
FRAME_TYPES = [*INTEGERS, pa.float16(), pa.float32(), pa.float64(), *DECIMALS, pa.decimal256(50, 12)]


def sort_of(kind: pa.DataType) -> str:
    return "integer" if pa.types.is_integer(kind) else "float" if pa.types.is_floating(kind) else "decimal"


def numbers(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, many of them near the ends of other types."""
    if pa.types.is_integer(kind):
        low, high = (0, 2**kind.bit_width) if str(kind).startswith("u") else (-(2 ** (kind.bit_width - 1)), 0)
        high = high or -low
        edges = [s * 2**bits + d for bits in range(kind.bit_width + 1) for d in (-1, 0, 1) for s in (1, -1)]
        tens = [s * 10**digits - d for digits in range(20) for d in (0, 1) for s in (1, -1)]
        near = [number for number in (*edges, *tens) if low <= number < high]
        return st.integers(low, high - 1) | st.sampled_from(near)
    if pa.types.is_floating(kind):
        width: Any = kind.bit_width
        return st.floats(width=width) | st.floats(width=16)
    limit = 10**kind.precision - 1
    exact = Context(prec=100)
    return (st.integers(-limit, limit) | st.integers(-99, 99).map(lambda n: max(-limit, min(limit, n)))).map(
        lambda unscaled: Decimal(unscaled).scaleb(-kind.scale, exact)
    )


def of_type(values: list[Any], kind: pa.DataType) -> pa.Array:
    return halves(values) if kind == pa.float16() else pa.array(values, kind)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(FRAME_TYPES), st.sampled_from(TABLE_TYPES))
def test_a_number_is_taken_where_the_table_has_its_equal(data: st.DataObject, kind: Any, to: Any) -> None:
    assert castable(kind, to) == (sort_of(kind) == "integer" or sort_of(kind) == sort_of(to))
    if not castable(kind, to):
        return
    values = data.draw(st.lists(st.none() | numbers(kind), max_size=6))
    fits = [has_equal(value, to) for value in values]
    batch, target = pa.record_batch([of_type(values, kind)], names=["c"]), pa.schema([pa.field("c", to)])
    if not all(fits):
        with pytest.raises(FrameError, match=f"in row {7 + fits.index(False)} does not fit") as caught:
            safe_cast(batch, target, 7)
        assert (caught.value.column, caught.value.row) == ("c", 7 + fits.index(False))
        return
    done = safe_cast(batch, target)
    done.validate(full=True)
    assert done.schema == target
    pairs: list[tuple[Any, Any]] = list(zip(values, done.column(0).to_pylist(), strict=True))
    for value, got in pairs:
        assert value == got or (math.isnan(value) and math.isnan(got))
        assert not isinstance(value, float) or math.copysign(1, value) == math.copysign(1, got)


@pytest.mark.parametrize(
    ("value", "kind", "to"),
    [
        (35, pa.int8(), pa.decimal128(38, 37)),  # 35 * 10**37 is more than 128 bits hold, and Arrow wraps around
        (9, pa.int8(), pa.decimal128(38, 38)),
        (Decimal(35), pa.decimal128(38, 0), pa.decimal128(38, 37)),
        (-(2**31), pa.int32(), pa.float32()),  # has no positive of its type
        (-(2**63), pa.int64(), pa.float64()),
        (2**63 - 1, pa.int64(), pa.float64()),  # becomes 2**63, and back on some machines
        (2**64 - 1, pa.uint64(), pa.float32()),
    ],
)
def test_numbers_at_the_ends(value: Any, kind: Any, to: Any) -> None:
    batch, target = pa.record_batch([pa.array([value], kind)], names=["c"]), pa.schema([pa.field("c", to)])
    if has_equal(value, to):
        assert safe_cast(batch, target).column(0).to_pylist() == [value]
    else:
        with pytest.raises(FrameError, match="does not fit"):
            safe_cast(batch, target)


@pytest.mark.parametrize(
    ("given_", "to", "says"),
    [
        (pa.array([1, 300]), pa.int8(), "'c' is BIGINT, the table has TINYINT: 300 in row 1 does not fit"),
        (pa.array([0.5, 0.1]), pa.float32(), "'c' is DOUBLE, the table has FLOAT: 0.1 in row 1 does not fit"),
        (pa.array([0, 2**53 + 1]), pa.float64(), "9007199254740993 in row 1 does not fit"),
        (pa.array([5, 1000]), pa.decimal128(3, 0), "1000 in row 1 does not fit"),
        (pa.array([[1], [2, 300]]), pa.list_(pa.int8()), r"\[2, 300\] in row 1 does not fit"),
        (pa.array([{"x": 1}, {"x": 300}]), pa.struct([("x", pa.int8())]), r"\{'x': 300\} in row 1 does not fit"),
        (pa.array([1, 300, 1]).dictionary_encode(), pa.int8(), "300 in row 1 does not fit"),
        (pa.array([1, 2**62], pa.timestamp("s")), pa.timestamp("us"), "4611686018427387904> ] in row 1 does not fit"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_the_first_number_that_does_not_fit_is_named(given_: Any, to: Any, says: str) -> None:
    with pytest.raises(FrameError, match=f"{says} .*: correct it"):
        safe_cast(pa.record_batch({"c": given_}), pa.schema([pa.field("c", to)]))


DDL = "k INT, o BIGINT, tiny TINYINT, f FLOAT, n DECIMAL(6,2), l ARRAY<SMALLINT>"
ROWS = [(1, 1, -128, 0.5, Decimal("7.00"), [1]), (2, 1, 127, -1.25, None, [2, None])]
FRAMES: dict[str, Callable[[], object]] = {
    "pandas": lambda: pd.DataFrame(
        {
            "k": [1, 2],
            "o": [1, 1],
            "tiny": [-128, 127],
            "f": [0.5, -1.25],
            "n": pd.array([7, None], dtype="Int64"),
            "l": [[1], [2, None]],
        }
    ),
    "polars": lambda: pl.DataFrame(
        {"k": [1, 2], "o": [1, 1], "tiny": [-128, 127], "f": [0.5, -1.25], "n": [7, None], "l": [[1], [2, None]]}
    ),
    "polars decimals": lambda: pl.DataFrame(
        {"k": [1, 2], "o": [1, 1], "tiny": [-128, 127], "f": [0.5, -1.25], "n": [7, None], "l": [[1], [2, None]]}
    ).with_columns(pl.col("n").cast(pl.Decimal(None, 2))),
    "polars, lazy": lambda: pl.LazyFrame(
        {"k": [0, 1], "o": [1, 1], "tiny": [-128, 127], "f": [0.5, -1.25], "n": [7, None], "l": [[1], [2, None]]}
    ).with_columns(pl.col("k") + 1),
    "unsigned": lambda: pa.table(
        {
            "k": pa.array([1, 2], pa.uint64()),
            "o": pa.array([1, 1], pa.uint64()),
            "tiny": pa.array([-128, 127], pa.int16()),
            "f": halves([0.5, -1.25]),
            "n": pa.array([7, None], pa.uint32()),
            "l": pa.array([[1], [2, None]], pa.large_list(pa.uint8())),
        }
    ),
}


@pytest.mark.parametrize("make", FRAMES)
def test_frames_with_numbers_of_other_types(make: str, tmp_path: Path) -> None:
    table = create(tmp_path, schema=DDL)
    for _ in range(2):
        table.upsert(FRAMES[make]())
        assert rows_of(table.to_arrow()) == ROWS
    assert table.schema.field("tiny").type == pa.int8()
    assert table.delete(pl.LazyFrame({"k": [1, 5]})).rows == 2
    assert state_of(tmp_path) == ROWS[1:]


def test_numbers_that_do_not_fit_leave_nothing(tmp_path: Path) -> None:
    """In the last of several batches, with rows counted through the frame."""
    table = create(tmp_path, schema=DDL)
    table.upsert(FRAMES["polars"]())
    before = listing(tmp_path)
    bad = pa.table({"k": range(9), "o": range(9), "tiny": [*range(8), 128]})
    for given_ in (bad, bad.to_reader(max_chunksize=2)):
        with pytest.raises(
            FrameError, match="'tiny' is BIGINT, the table has TINYINT: 128 in row 8 does not fit"
        ) as caught:
            table.upsert(given_)
        assert (caught.value.column, caught.value.row) == ("tiny", 8)
    with pytest.raises(FrameError, match="'k' is BIGINT, the table has INT: 4294967296 in row 0"):
        table.delete(frame([(2**32,)], ["k"]))
    with pytest.raises(FrameError, match=r"'tiny' is DOUBLE, the table's is TINYINT; cast it .* 'Int64'"):
        table.upsert(pd.DataFrame({"k": [1, 2], "o": [2, 2], "tiny": [1, None]}))
    assert listing(tmp_path) == before


def test_look_ups_take_keys_of_other_types(tmp_path: Path) -> None:
    table = create(tmp_path, schema=DDL)
    table.upsert(FRAMES["polars"]())
    for keys in (pl.DataFrame({"k": [2, 3]}), pl.LazyFrame({"k": [2, 3]}), pd.DataFrame({"k": [2]}, index=[7])):
        assert table.get(keys, columns=["k"]).to_pylist() == [{"k": 2}]
    with pytest.raises(FrameError, match="4294967298 in row 1 does not fit"):
        table.get(pl.DataFrame({"k": [2, 2**32 + 2]}))


def test_columns_do_not_get_wider_by_a_frame(tmp_path: Path) -> None:
    table = create(tmp_path, schema=DDL)
    rows = {"k": [1], "o": [1], "tiny": [1], "l": [[1]], "new": [2**40]}
    table.upsert(pl.DataFrame(rows), merge_schema=True)
    assert table.schema.names == ["k", "o", "tiny", "f", "n", "l", "new"]
    assert [str(field.type) for field in table.schema][2:] == [
        "int8", "float", "decimal128(6, 2)", "list<element: int16>", "int64",
    ]  # fmt: skip
    with pytest.raises(FrameError, match="'tiny' is BIGINT, the table has TINYINT: 1000 in row 0"):
        table.upsert(pl.DataFrame(rows | {"tiny": [1000]}), merge_schema=True)


MAPS = pa.map_(pa.string(), pa.int32())
TWICE: dict[str, tuple[Any, str, str]] = {
    "text": (pa.array([[("a", 1)], [("a", 1), ("b", 2), ("a", 3)]], MAPS), "MAP<STRING, INT>", "'a'"),
    "other type": (pa.array([[], [(1, 1), (1, 2)]], pa.map_(pa.int64(), pa.int64())), "MAP<INT, INT>", "1"),
    "zeros": (pa.array([None, [(0.0, 1), (-0.0, 1)]], pa.map_(pa.float64(), pa.int32())), "MAP<DOUBLE, INT>", "-0.0"),
    "long": (pa.array([[], [(n % 39, n) for n in range(40)]], pa.map_(pa.int32(), pa.int32())), "MAP<INT, INT>", "0"),
    "in a list": (
        pa.array([[[("a", 1)]], [[("a", 1)], [("a", 1), ("a", 1)]]], pa.list_(MAPS)),
        "ARRAY<MAP<STRING, INT>>",
        "'a'",
    ),
    "in a struct": (
        pa.array([{"m": None}, {"m": [("a", 1), ("a", 1)]}], pa.struct([("m", MAPS)])),
        "STRUCT<m: MAP<STRING, INT>>",
        "'a'",
    ),
    "in a map": (
        pa.array([[("x", [("a", 1)])], [("x", [("a", 1), ("a", 2)])]], pa.map_(pa.string(), MAPS)),
        "MAP<STRING, MAP<STRING, INT>>",
        "'a'",
    ),
    "structs": (
        pa.array([[], [({"x": 1}, 1), ({"x": 1}, 2)]], pa.map_(pa.struct([("x", pa.int32())]), pa.int32())),
        "MAP<STRUCT<x: INT>, INT>",
        r"\{'x': 1\}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_a_map_that_has_a_key_twice_is_refused(name: str, tmp_path: Path) -> None:
    maps, ddl, key = TWICE[name]
    table = create(tmp_path, schema=f"k BIGINT, m {ddl}", ordering=[])
    rows = pa.table({"k": range(len(maps)), "m": maps})
    for given_ in (rows, rows.to_reader(max_chunksize=1)):
        with pytest.raises(FrameError, match=f"column 'm' has a map with the key {key} twice in row 1; keep one"):
            table.upsert(given_)
    assert table.version == 0
    table.upsert(rows.slice(0, 1))
    assert table.to_arrow().num_rows == 1


def test_maps_may_share_keys(tmp_path: Path) -> None:
    table = create(tmp_path, schema="k BIGINT, m MAP<STRING, INT>", ordering=[])
    long = [(str(n), n) for n in range(40)]
    values = [[("a", 1), ("b", 2)], [("a", 1), ("b", 2)], None, [], long, long, [("a", 1)]]
    table.upsert(pa.table({"k": range(7), "m": pa.array(values, MAPS)}))
    assert table.to_arrow().sort_by("k").column("m").to_pylist() == values


@pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3)], ids=repr)
def test_application_transactions_take_numpy_integers(number: Any, tmp_path: Path) -> None:
    table = create(tmp_path)
    assert table.upsert(frame([(1, 1, "a")]), txn=("app", number)).version == 1
    again: Any = ("app", np.int32(3))
    assert table.upsert(frame([(2, 1, "b")]), txn=again).mode == "repeated"
    assert LakeTable.open(tmp_path).opened.view.snapshot.txns["app"].version == 3


@pytest.mark.parametrize(
    "txn", [("app", True), ("app", np.True_), ("app", 1.0), ("app", np.int64(-1)), ("\ud800", 1)], ids=repr
)
def test_application_transactions_that_are_none(txn: Any, tmp_path: Path) -> None:
    table = create(tmp_path)
    with pytest.raises(FrameError, match=r"txn must be|cannot be encoded"):
        table.upsert(frame([(1, 1, "a")]), txn=txn)
    assert table.version == 0
