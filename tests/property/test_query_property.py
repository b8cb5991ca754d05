"""``table.query`` answers as DuckDB does over a table of its own, whatever DuckDB passes on to the table's scan."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from tests.property.effort import examples

DDL = (
    "id BIGINT NOT NULL, n BIGINT, i INT, h SMALLINT, t TINYINT, f DOUBLE, g FLOAT, b BOOLEAN, d DECIMAL(10,2), "
    "e DECIMAL(38,10), s STRING, day DATE, at TIMESTAMP, nt TIMESTAMP_NTZ, bin BINARY, st STRUCT<x: INT, y: STRING>"
)
NAN = float("nan")
VALUES: dict[str, list[tuple[Any, str]]] = {
    "n": [(1, "1"), (-5, "-5"), (2**40, str(2**40)), (0, "0")],
    "i": [(1, "1"), (7, "7"), (-(2**31), str(-(2**31)))],
    "h": [(3, "3"), (-3, "-3")],
    "t": [(1, "1"), (127, "127")],
    "f": [(0.5, "0.5"), (NAN, "'NaN'::DOUBLE"), (-0.0, "0.0"), (float("inf"), "'inf'::DOUBLE")],
    "g": [(0.25, "0.25"), (NAN, "'NaN'::FLOAT"), (1.0, "1")],
    "b": [(True, "true"), (False, "false")],
    "d": [(Decimal("1.50"), "1.50"), (Decimal("-0.01"), "-0.01"), (Decimal(7), "7")],
    "e": [(Decimal("12345678901234.5678901234"), "12345678901234.5678901234"), (Decimal(1), "1")],
    "s": [("apple", "'apple'"), ("", "''"), ("A%b_c", "'A%b_c'"), ("ünï", "'ünï'"), ("it's", "'it''s'")],
    "day": [(dt.date(2020, 1, 1), "DATE '2020-01-01'"), (dt.date(1969, 7, 20), "DATE '1969-07-20'")],
    "at": [
        (dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC), "TIMESTAMPTZ '2020-01-01 12:00:00+00'"),
        (dt.datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC), "TIMESTAMPTZ '1900-01-01 00:00:00.000001+00'"),
    ],
    "nt": [(dt.datetime.fromisoformat("2020-01-01T12:00:00"), "TIMESTAMP '2020-01-01 12:00:00'")],
    "bin": [(b"\x00\xff", r"'\x00\xFF'::BLOB"), (b"", "''::BLOB")],
}
_COMPARED = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
ROWS = 60


def rows() -> list[dict[str, Any]]:
    random = Random(7)
    found = []
    for number in range(ROWS):
        row: dict[str, Any] = {"id": number}
        for name, values in VALUES.items():
            row[name] = None if random.random() < 0.2 else random.choice(values)[0]
        row["st"] = random.choice([None, {"x": number % 4, "y": "apple"}, {"x": None, "y": None}])
        found.append(row)
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeTable, duckdb.DuckDBPyConnection]:
    """A table, of which some rows are in base files and some in logs, and the same rows in DuckDB."""
    path = tmp_path_factory.mktemp("query")
    table = LakeTable.create(path, DDL, key=["id"], buckets=2, settings=Settings(row_group_rows=8))
    given = pa.Table.from_pylist(rows(), table.schema)
    table.upsert(given)
    table.compact()
    table.upsert(given.slice(ROWS - 9))
    own = duckdb.connect()
    own.execute("SET TimeZone = 'UTC'")
    own.register("given", given)
    own.execute("CREATE TABLE self AS SELECT * FROM given")
    return table, own


def leaf(random: Random) -> str:
    name = random.choice(list(VALUES))
    values = [text for _, text in VALUES[name]]
    value, other = random.choice(values), random.choice([*values, "NULL"])
    shapes = [
        *(f"{name} {operator} {value}" for operator in random.sample(_COMPARED, 3)),
        f"{value} {random.choice(_COMPARED)} {name}",
        f"{name} IN ({value}, {other})", f"{name} NOT IN ({value}, {other})",
        f"{name} BETWEEN {value} AND {other}", f"{name} NOT BETWEEN {other} AND {value}",
        f"{name} IS NULL", f"{name} IS NOT NULL", f"coalesce({name}, {value}) = {value}",
        f"{name} IS DISTINCT FROM {other}", f"CASE WHEN b THEN {name} END = {value}",
        f"CAST({name} AS VARCHAR) > '5'", f"{name} = (SELECT min({name}) FROM self)",
        f"{name} IN (SELECT {name} FROM self WHERE i = 7)", f"nullif({name}, {value}) IS NULL",
    ]  # fmt: skip
    if name == "s":
        pattern = random.choice(["'a%'", "'%p%'", "'%e'", "'A!%b!_c' ESCAPE '!'", "'_pple'"])
        shapes += [
            f"s LIKE {pattern}", f"s NOT LIKE {pattern}", "s ILIKE 'APP%'", "starts_with(s, 'ap')", "s ^@ 'A'",
            "regexp_matches(s, '^a.*')", "s SIMILAR TO 'a.*'", "s GLOB 'a*'", "contains(s, 'n')", "length(s) > 3",
            "suffix(s, 'le')", "s COLLATE NOCASE = 'APPLE'", "lower(s) = 'apple'", "s || 'x' = 'applex'",
        ]  # fmt: skip
    if name == "b":
        shapes += ["b", "NOT b", "b IS TRUE", "b IS NOT TRUE", "b IS FALSE"]
    if name in ("n", "i", "h", "t", "d"):
        shapes += [f"{name} + 1 > {value}", f"{name} % 2 = 0", f"{name} = {name}", f"abs({name}) < 5", f"{name} < id"]
    if name == "day":
        shapes += ["year(day) = 2020", "day + 1 > DATE '2020-01-01'", "day = TIMESTAMP '2020-01-01 00:00:00'"]
    shapes += [f"st.x {random.choice(_COMPARED)} 1", "st.y = 'apple'", "st IS NULL", "st.x IN (1, 2)", "st.x IS NULL"]
    return random.choice(shapes)


def condition(random: Random, depth: int = 3) -> str:
    if depth == 0 or random.random() < 0.25:
        return leaf(random)
    left, right = condition(random, depth - 1), condition(random, depth - 1)
    return random.choice([f"({left} AND {right})", f"({left} OR {right})", f"({left} OR {right})", f"NOT ({left})"])


def answer(own: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """The rows, or the kind of error."""
    try:
        return own.execute(sql).fetchall()
    except duckdb.Error as error:
        return type(error).__name__


def check(table: LakeTable, own: duckdb.DuckDBPyConnection, sql: str) -> None:
    wanted = answer(own, sql)
    if isinstance(wanted, str):
        return
    assert [tuple(row.values()) for row in table.query(sql).to_pylist()] == wanted, sql


FIXED = [
    f"{name} {first} {values[0][1]} OR {name} {second} {values[-1][1]}"
    for name, values in VALUES.items()
    for first, second in (("=", "IS DISTINCT FROM"), ("IS NOT DISTINCT FROM", "<"), ("IS DISTINCT FROM", ">="))
] + ["st.x = 1 OR st.x IS DISTINCT FROM 2", "n = 1 OR n IS NULL OR n IN (0, -5)"]


@pytest.mark.parametrize("start", range(0, len(FIXED), 10))
def test_all_operators_on_all_types(pair: tuple[LakeTable, duckdb.DuckDBPyConnection], start: int) -> None:
    for where in FIXED[start : start + 10]:
        check(*pair, f"SELECT id FROM self WHERE {where} ORDER BY id")


def test_random_conditions(pair: tuple[LakeTable, duckdb.DuckDBPyConnection]) -> None:
    random = Random()
    for _ in range(examples(400)):
        check(*pair, f"SELECT id FROM self WHERE {condition(random)} ORDER BY id")


def test_conditions_that_duckdb_makes_up_while_it_runs(pair: tuple[LakeTable, duckdb.DuckDBPyConnection]) -> None:
    """Joins and the first rows of an order bound what else is read."""
    random = Random()
    for _ in range(examples(50)):
        name, where = random.choice(["n", "i", "d", "e", "s", "day", "at", "nt", "bin"]), condition(random, 1)
        check(*pair, f"SELECT id FROM self WHERE {where} ORDER BY {name} DESC NULLS LAST, id LIMIT 5")
        check(
            *pair,
            f"SELECT a.id AS a, b.id AS b FROM self a JOIN (SELECT * FROM self WHERE {where}) b ON a.{name} = b.{name} "
            "ORDER BY 1, 2 LIMIT 50",
        )
