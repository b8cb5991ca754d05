"""Which keys an Arrow expression asks for: told by hand, and against all rows of a small domain."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from itertools import product
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import LakeTable, TableDamagedError
from lakemerge.read.filter.points import points_of
from lakemerge.read.filter.predicates import Points

SCHEMA = pa.schema([("a", pa.int64()), ("aa", pa.int32()), ("s", pa.string()), ("d", pa.date32()), ("f", pa.float64())])
a, aa, s, d, f = (pc.field(name) for name in SCHEMA.names)


@pytest.mark.parametrize(
    ("expression", "points"),
    [
        (a == 5, {"a": (5,)}),
        ((a == 5) & (s == "x"), {"a": (5,), "s": ("x",)}),
        ((a == 5) & a.is_valid(), {"a": (5,)}),
        ((a == -7) | (a == 3), {"a": (-7, 3)}),
        ((a == 4) | (a == 5), {"a": (4, 5)}),
        (((a == 4) | (a == 5)) & (aa > 1), {"a": (4, 5)}),
        (s == 'a "quoted" text, \\ and ø', {"s": ('a "quoted" text, \\ and ø',)}),
        ((s == "a == 5") & (aa == 1), {"aa": (1,), "s": ("a == 5",)}),
        ((a == 5) | (aa == 5), {}),
        ((a == 5) | a.is_null(), {}),
        (~(a == 5), {}),
        (a != 5, {}),
        (a >= 5, {}),
        ((a == 5) | (a > 7), {}),
        ((a + 1) == 5, {}),
        (a.cast(pa.int32()) == 5, {}),
        (a.isin([7, -1, 7]), {"a": (-1, 7)}),
        (a.isin([1, 2, 3]) & a.isin([2, 3, 4]) & (s == "x"), {"a": (2, 3), "s": ("x",)}),
        (a.isin([1, 2]) | (a == 5), {"a": (1, 2, 5)}),
        (a.isin(range(51)) & (s == "x"), {"s": ("x",)}),
        ((a >= 7) & (a <= 9), {"a": (7, 8, 9)}),
        ((a > 7) & (a < 9), {"a": (8,)}),
        ((a >= 7) & (a <= 60), {}),
        ((d >= dt.date(2026, 1, 2)) & (d <= dt.date(2026, 1, 3)), {}),
        (a.isin([1, None]), {}),
        (~a.isin([1]), {}),
        (d == dt.date(2026, 1, 2), {"d": (dt.date(2026, 1, 2),)}),
        (d.isin([dt.date(2026, 1, 3), dt.date(2026, 1, 2)]), {"d": (dt.date(2026, 1, 2), dt.date(2026, 1, 3))}),
        (a.cast(pa.float64(), safe=False) == 2.0**53, {}),
        (a.isin([float(2**53)]), {}),
        (f == 5.0, {}),
        (f.isin([5.0]), {}),
        (aa == 2**40, {}),
        (pc.match_substring_regex(s, "a.*"), {}),
    ],
    ids=str,
)
def test_what_an_expression_names(expression: pc.Expression, points: dict[str, tuple[Any, ...]]) -> None:
    assert named(points_of(expression, SCHEMA)) == points


def named(points: Points) -> dict[str, tuple[Any, ...]]:
    """The points of single columns, by name."""
    return {columns[0]: tuple(row[0] for row in rows) for columns, rows in points.items() if len(columns) == 1}


def test_many_values_take_too_long_to_prove() -> None:
    some = reduce(or_, (a == value for value in range(20)))
    assert named(points_of(some, SCHEMA)) == {"a": tuple(range(20))}
    assert points_of(some | (a == 20), SCHEMA) == {}
    assert named(points_of(a.isin(range(50)), SCHEMA)) == {"a": tuple(range(50))}
    assert points_of(a.isin(range(51)), SCHEMA) == {}


def test_no_row_with_another_value_matches() -> None:
    """Random conditions over all rows of a domain: Arrow's own filter must agree with the points."""
    draw = random.Random(5)
    numbers, texts = [None, -1, 0, 1, 2], [None, "", "x", "y"]
    rows = pa.table(
        {"a": [n for n in numbers for _ in texts], "s": texts * len(numbers)},
        schema=pa.schema([("a", pa.int64()), ("s", pa.string())]),
    )

    def condition(depth: int) -> pc.Expression:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice(
                [
                    a == draw.choice([-1, 0, 1, 2]),
                    s == draw.choice(["", "x", "y"]),
                    a.isin(draw.sample([*numbers, 7], 2)),
                    s.isin(draw.sample(texts, 2)),
                    a > 0,
                    a <= draw.choice([-1, 1]),
                    s.is_null(),
                    a != 1,
                ]
            )
        left, right = condition(depth - 1), condition(depth - 1)
        return draw.choice([left & right, left & right, left | right, ~left])

    proven = 0
    for _ in range(400):
        expression = condition(3)
        for name, values in named(points_of(expression, rows.schema)).items():
            found = set(rows.filter(expression).column(name).to_pylist())
            assert found <= set(values), expression
            proven += bool(found)
    assert proven > 50


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "TINYINT": (pa.int8(), [-128, -1, 0, 1, 5, 127]),
    "BIGINT": (pa.int64(), [-(2**63), -1, 0, 1, 5, 2**53, 2**53 + 1, 2**63 - 1]),
    "STRING": (pa.string(), ["", "a", "A", "5", "ø", "a\x00"]),
    "BINARY": (pa.binary(), [b"", b"a", b"5", b"\x00", b"\xff"]),
    "DATE": (pa.date32(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 2)]),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), [-1, 0, 1, 1000, 86_400_000_000]),
    "TIMESTAMP_NTZ": (pa.timestamp("us"), [-1, 0, 1, 1000, 86_400_000_000]),
    "DECIMAL(9, 2)": (pa.decimal128(9, 2), [Decimal("-0.25"), Decimal("0.00"), Decimal("1.00"), Decimal("1.50")]),
    "BOOLEAN": (pa.bool_(), [False, True]),
}
LITERALS = [
    *[pa.array([0, 1, 5], kind) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32())],
    pa.array([1.0, 1.5, 2.0**53]),
    *[pa.array(["a", "5", "2026-01-02"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())],
    pa.array([b"a", b"5", b"\xff"]),
    pa.array([dt.date(1970, 1, 1), dt.date(2026, 1, 2)]),
    *[pa.array([0, 1, 1000], pa.timestamp(unit, zone)) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")],
    *[pa.array([Decimal("1.5"), Decimal("1.0")], pa.decimal128(digits, digits - 1)) for digits in (2, 5)],
    pa.array([False, True]),
]


@pytest.mark.parametrize("ddl", VALUES)
def test_columns_and_literals_of_every_type(ddl: str, tmp_path: Path) -> None:
    """What Arrow's own filter accepts, a table's read accepts, and it finds the same rows."""
    kind, values = VALUES[ddl]
    table = LakeTable.create(tmp_path / "t", f"k {ddl}, w {ddl}", key=["k"], buckets=4)
    table.upsert(pa.table({"k": pa.array(values, kind), "w": pa.array([*values[1:], None], kind)}))
    table.compact()
    rows, asked = table.to_arrow(), 0
    for name, literals in product(("k", "w"), [*LITERALS, pa.array(values, kind)]):
        column = pc.field(name)
        for condition in (
            column.isin(literals),
            column == literals[-1],
            (column == literals[0]) | column.isin(literals),
        ):
            try:
                expected = rows.filter(condition)
            except pa.ArrowException:  # it compares no such types
                continue
            asked += 1
            assert sorted(map(str, table.to_arrow(filter=condition).to_pylist())) == sorted(
                map(str, expected.to_pylist())
            ), condition
    assert asked >= 12


def test_a_look_up_by_an_expression_reads_one_bucket(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "id BIGINT, name STRING, v INT", key=["id", "name"], buckets=8)
    for v in range(3):
        table.upsert(pa.table({"id": range(100), "name": [f"n{i}" for i in range(100)], "v": [v] * 100}))
    asked = (pc.field("id") == 7) & (pc.field("name") == "n7")
    paths = sorted((tmp_path / "t" / "base").rglob("*.parquet"))
    assert len(paths) == 8
    assert len([path for path in paths if _fails_without(path, lambda new: new.to_arrow(filter=asked), table)]) == 1
    assert table.to_arrow(filter=asked).to_pylist() == [{"id": 7, "name": "n7", "v": 2}]
    assert table.query("SELECT v FROM self WHERE id = 7 AND name = 'n7'").to_pylist() == [{"v": 2}]
    listed = pc.field("id").isin([7, 8, 9]) & (pc.field("name") == "n7")
    assert len([path for path in paths if _fails_without(path, lambda new: new.to_arrow(filter=listed), table)]) < 4
    query = "SELECT v FROM self WHERE id IN (7, 8) AND name = 'n7'"
    assert len([path for path in paths if _fails_without(path, lambda new: new.query(query), table)]) < 3
    assert table.query(query).to_pylist() == [{"v": 2}]


def _fails_without(path: Path, read: Callable[[LakeTable], pa.Table], table: LakeTable) -> bool:
    """Whether a read needs the file."""
    kept = path.read_bytes()
    path.unlink()
    try:
        read(LakeTable.open(table.url))
    except TableDamagedError:
        return True
    finally:
        path.write_bytes(kept)
    return False
