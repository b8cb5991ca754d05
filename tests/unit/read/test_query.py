"""``table.query``: DuckDB's answers over a table with pending logs are those over its rows, and read no more."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import lakemerge.read.query as query_module
from lakemerge import DependencyMissingError, FilterError, InputError, LakeTable
from lakemerge.read.scan import scan as real_scan
from tests.unit.faults import create, frame

NAN = math.nan
DDL = """k BIGINT, o BIGINT, f DOUBLE, g FLOAT, s STRUCT<x: DOUBLE, y: INT>, l ARRAY<DOUBLE>, m MAP<STRING, INT>,
    t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, p DECIMAL(12,2), b BINARY, z BOOLEAN, w STRING, `odd "name"` SMALLINT"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LakeTable:
    """Base files, and logs that change and delete some rows."""
    table = LakeTable.create(tmp_path_factory.mktemp("query") / "t", DDL, key=["k"], ordering=["o"], buckets=2)

    def row(k: int, o: int) -> dict[str, Any]:
        number = None if k % 7 == 0 else NAN if k % 5 == 0 else -0.0 if k % 11 == 0 else k / 3
        day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=k)
        return {
            "k": k, "o": o, "f": number, "g": number, "s": None if k % 6 == 0 else {"x": number, "y": k + o},
            "l": [number, 1.0], "m": [("a", k)], "t": day, "n": day.replace(tzinfo=None), "d": day.date(),
            "p": decimal.Decimal(k) / 4, "b": b"\x00" * (k % 3), "z": k % 2 == 0, "w": f"w{k % 4}é",
            'odd "name"': k % 9,
        }  # fmt: skip

    for keys, o in ((range(100), 0), (range(0, 100, 3), 1)):
        table.upsert(pa.Table.from_pylist([row(k, o) for k in keys], schema=table.schema))
    table.delete(pa.table({"k": pa.array([10, 11]), "o": pa.array([2, 2])}))
    return table


QUERIES = [
    "SELECT * FROM self",
    "SELECT count(*) FROM self",
    "SELECT w, count(*), sum(p), max(o) FROM self GROUP BY w",
    "SELECT k FROM self WHERE f > 5",
    "SELECT k FROM self WHERE f = 'nan'::DOUBLE OR g > 20",
    "SELECT k, f, g FROM self WHERE f <= 0 OR f IS NULL",
    "SELECT k FROM self WHERE s.x > 10 AND s.y < 90",
    "SELECT k FROM self WHERE s.y = 34",
    "SELECT k FROM self WHERE t >= '2026-01-02' AND n < '2026-01-04 03:00:00' AND d <> '2026-01-03'",
    "SELECT k FROM self WHERE p > 3.5 AND p IN (4, 5.25) OR z",
    "SELECT k FROM self WHERE b = '\\x00'::BLOB AND w IN ('w1é', 'w2é')",
    'SELECT k FROM self WHERE w LIKE \'w1%\' AND k BETWEEN 10 AND 60 AND "odd ""name""" = 4',
    "SELECT a.k, b.o FROM self a JOIN self b ON a.k = b.k + 1 WHERE b.o = 1 AND a.k < 50",
    "SELECT max(k) FROM self WHERE k > (SELECT avg(k) FROM self WHERE z)",
    "SELECT k, l, m FROM self WHERE l[1] > 5 AND m['a'] < 60",
    "SELECT k FROM self WHERE NOT z AND (k < 5 OR k > 95)",
]


def shown(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


@pytest.mark.parametrize("sql", QUERIES)
def test_answers_are_those_over_the_rows(table: LakeTable, sql: str) -> None:
    """The other side is an Arrow table in DuckDB's own storage. DuckDB hands nothing down to it."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", table.to_arrow())
        connection.execute("CREATE TABLE self AS SELECT * FROM rows")
        expected = connection.sql(sql).to_arrow_table()
    found = table.query(sql)
    assert expected.num_rows
    assert shown(found) == shown(expected)
    assert found.schema.names == expected.schema.names


def test_it_reads_the_columns_and_conditions_that_are_asked_for(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[set[str], str]] = []

    def scan(*given: Any, columns: Any, filter: Any) -> pa.RecordBatchReader:
        asked.append((set(columns), str(filter)))
        return real_scan(*given, columns=columns, filter=filter)

    monkeypatch.setattr(query_module, "scan", scan)
    table.query("SELECT w FROM self WHERE k = 7")
    table.query("SELECT w FROM self WHERE f > 7")
    assert asked[0] in [({"k", "w"}, "(k == 7)"), ({"w"}, "(k == 7)")], "DuckDB 2 leaves the condition to the table"
    assert asked[1:] == [({"f", "w"}, "None")]


def test_all_scans_of_a_query_see_one_version(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    past = LakeTable.open(tmp_path / "t", version=1)
    table.upsert(frame([(2, 1, "b")]))
    assert table.query("SELECT count(*) AS n FROM self").to_pylist() == [{"n": 2}]
    assert past.query("SELECT count(*) AS n FROM self").to_pylist() == [{"n": 1}]


def test_names_of_this_program_are_no_tables(table: LakeTable) -> None:
    rows = pa.table({"x": [1]})
    assert rows.num_rows == 1
    with pytest.raises(InputError, match="rows does not exist"):
        table.query("SELECT * FROM rows")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nothing FROM self", '"nothing" not found.*The table is called self, and its columns are k, o, f'),
        ("SELEC k", "syntax error"),
        (" ", "a query is a text such as 'SELECT count"),
        (7, "sql must be text, not 7"),
        ("CREATE TABLE x (a INT)", "the query gives no rows"),
    ],
)
def test_queries_that_cannot_be_answered(table: LakeTable, sql: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"(?s){words}"):
        table.query(sql)


def test_what_a_scan_fails_with_is_raised(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **asked: Any) -> pa.RecordBatchReader:
        schema = table.schema.empty_table().select(asked["columns"]).schema
        return pa.RecordBatchReader.from_batches(schema, map(fail, [0]))

    def fail(number: int) -> pa.RecordBatch:
        raise FilterError("a value cannot be judged")

    monkeypatch.setattr(query_module, "scan", broken)
    with pytest.raises(FilterError, match="a value cannot be judged"):
        table.query("SELECT k FROM self")


def test_without_duckdb_it_says_what_to_install(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DependencyMissingError, match=r"pip install 'lakemerge\[query\]'"):
        table.query("SELECT 1")


def test_an_interrupt_ends_the_query(table: LakeTable) -> None:
    """Ctrl-C, in a query that would take hours."""
    code = """
import os, signal, sys, threading, lakemerge
table = lakemerge.LakeTable.open(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore the signal
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    table.query("SELECT sum(sin(self.k * a.range * b.range)) FROM self, range(1000000) a, range(1000000) b")
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, table.url], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr


def test_rows_can_be_copied_into_a_file(table: LakeTable, tmp_path: Path) -> None:
    assert table.query(f"COPY (SELECT k FROM self ORDER BY k) TO '{tmp_path / 'k.csv'}'").num_rows == 0
    assert (tmp_path / "k.csv").read_text().splitlines()[:2] == ["k", "0"]
    with pytest.raises(InputError, match="gives no rows"):
        table.query(f"ATTACH '{tmp_path / 'x.db'}'")
    assert not (tmp_path / "x.db").exists()


def test_a_process_ends_after_a_query_that_wants_few_rows(table: LakeTable) -> None:
    """Nothing goes on reading behind it: a thread that needs the interpreter after its end would hang or abort it."""
    code = (
        "import sys, lakemerge\n"
        "print(lakemerge.LakeTable.open(sys.argv[1]).query('SELECT k FROM self LIMIT 3').num_rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, table.url], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
