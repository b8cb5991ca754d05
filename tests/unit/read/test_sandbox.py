"""``table.query(sandbox=True)``: SQL from outside reads the table's rows, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakemerge.read.query as query_module
from lakemerge import InputError, LakeTable, Settings
from lakemerge.cli import main
from tests.unit.faults import create, frame
from tests.unit.read.test_query import QUERIES, shown
from tests.unit.read.test_query import table as of_many_types

__all__ = ["of_many_types"]

SECRET = "not-for-you"  # noqa: S105 - it stands for one


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and files that hold a secret."""
    folder = tmp_path_factory.mktemp("sandbox")
    create(folder / "t").upsert(frame([(1, 1, "a"), (2, 1, "b"), (3, 1, "b")]))
    (folder / "secret.csv").write_text(f"x\n{SECRET}\n")
    (folder / "secret.json").write_text(json.dumps({"x": SECRET}))
    pq.write_table(pa.table({"x": [SECRET]}), folder / "secret.parquet")
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, and the program is in it."""
    monkeypatch.chdir(made)
    monkeypatch.setenv("TOKEN", SECRET)
    return made


@pytest.fixture
def table(folder: Path) -> LakeTable:
    return LakeTable.open(folder / "t")


def state(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


FILES = [
    "SELECT * FROM 'secret.csv'",
    "FROM 'secret.parquet'",
    'SELECT * FROM "secret.json"',
    "SELECT * FROM read_csv('secret.csv')",
    "SELECT * FROM read_csv_auto(['secret.csv'])",
    "SELECT * FROM read_json('secret.json')",
    "SELECT * FROM read_parquet('secret.parquet')",
    "SELECT * FROM parquet_scan('secret.parquet')",
    "SELECT * FROM parquet_metadata('secret.parquet')",
    "SELECT * FROM parquet_schema('secret.parquet')",
    "SELECT * FROM read_text('secret.csv')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM glob('*')",
    "SELECT * FROM sniff_csv('secret.csv')",
    "SELECT * FROM read_csv('https://example.invalid/x.csv')",
    "SELECT v FROM self WHERE v IN (SELECT x FROM 'secret.csv')",
    "SELECT (SELECT content FROM read_text('secret.csv')) FROM self",
    "WITH t AS (SELECT * FROM read_csv('secret.csv')) SELECT * FROM t",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n FROM t, 'secret.csv') SELECT * FROM t",
    "SELECT * FROM self JOIN 'secret.csv' ON true",
    "SELECT * FROM self, LATERAL (SELECT * FROM read_text('secret.csv'))",
    "SELECT 1 UNION ALL SELECT x FROM 'secret.csv'",
    "PIVOT 'secret.csv' ON x IN ('a') USING count(*)",
    "DESCRIBE SELECT * FROM 'secret.csv'",
    "SUMMARIZE 'secret.parquet'",
    "SELECT * FROM query('SELECT * FROM read_csv(''secret.csv'')')",
    "SELECT * FROM query_table('secret.csv')",
    "SELECT json_serialize_plan('SELECT * FROM read_csv(''secret.csv'')')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_csv(''secret.csv'')'))",
    "COPY self TO 'out.csv'",
    "COPY (SELECT * FROM self) TO 'out.parquet' (FORMAT parquet)",
    "COPY self FROM 'secret.csv'",
    "EXPORT DATABASE 'out'",
    "IMPORT DATABASE 'out'",
    "ATTACH 'out.db'",
    "ATTACH 'out.db' AS x (READ_WRITE)",
    "CREATE TABLE x AS SELECT * FROM 'secret.csv'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD './x.duckdb_extension'",
    "FORCE INSTALL spatial FROM community",
    "EXPLAIN ANALYZE SELECT * FROM 'secret.csv'",
]
SETTINGS = [
    "SET threads = 64",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "SET VARIABLE x = 1",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "PRAGMA threads = 64",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "USE memory",
]
LOOKS = [
    "SELECT getenv('TOKEN')",
    "SELECT GetEnv('TOKEN') OVER () FROM self",
    "SELECT current_setting('temp_directory')",
    "SELECT system.main.current_setting('memory_limit')",
    "SELECT getvariable('x')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM duckdb_functions()",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM sqlite_master",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SHOW DATABASES",
    "SELECT * FROM (SHOW ALL TABLES)",
    "SELECT * FROM _lm_stored",
    "SELECT * FROM temp.self",
    "SELECT * FROM memory.main._lm_stored",
    "SELECT * FROM rows",
    "SELECT * FROM arrow_scan(140000000, 140000000, 140000000)",
    "SELECT * FROM pandas_scan(140000000)",
    "SELECT * FROM seq_scan('self')",
    "SELECT sleep_ms(10)",
    "SELECT pg_sleep(1)",
    "SELECT write_log('x')",
]
CHANGES = [
    "SELECT 1; SELECT 2",
    "SELECT count(*) FROM self; COPY self TO 'out.csv'",
    "CREATE TABLE x (a INT)",
    "CREATE MACRO f() AS 1",
    "CREATE OR REPLACE TEMP VIEW self AS SELECT 1 AS k",
    "DROP VIEW self",
    "INSERT INTO self VALUES (1)",
    "DELETE FROM self",
    "UPDATE self SET v = 'x'",
    "PREPARE q AS SELECT 1",
    "EXECUTE q",
    "",
    ";",
    "-- nothing",
    "SELECT " + "NOT " * 900 + "true",
    "SELECT " + "(" * 100_000 + "1" + ")" * 100_000,
]


@pytest.mark.parametrize("sql", [*FILES, *SETTINGS, *LOOKS, *CHANGES], ids=lambda sql: sql[:60])
def test_hostile_sql_is_refused_and_touches_nothing(table: LakeTable, folder: Path, sql: str) -> None:
    rows = pa.table({"x": [SECRET]})
    assert rows.num_rows
    before = state(folder)
    with pytest.raises(InputError) as caught:
        table.query(sql, sandbox=True)
    assert SECRET not in str(caught.value)
    assert state(folder) == before


@pytest.mark.parametrize("sql", [*FILES, *SETTINGS[:3]], ids=lambda sql: sql[:60])
def test_duckdb_itself_has_no_files_either(
    table: LakeTable, folder: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """The second wall, without the first."""
    before = state(folder)
    monkeypatch.setattr(query_module, "check_query", lambda *_: None)
    told = ""
    try:
        told = str(table.query(sql, sandbox=True).to_pylist())
    except InputError as error:
        told = error.message
    assert SECRET not in told
    assert state(folder) == before


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM 'secret.csv'", r"it names 'secret.csv'; the only table is self"),
        ("SELECT * FROM main.rows", r"it names 'main.rows'"),
        ("SELECT * FROM read_csv('x')", "it reads from read_csv"),
        ("SELECT current_setting('x')", "it calls current_setting"),
        ("COPY self TO 'x'", "it is not a SELECT"),
        ("SHOW TABLES", "it shows"),
        ("SELECT 1; SELECT 2", "it is 2 statements"),
        ("SELEC k", "syntax error"),
        ("SELECT nothing FROM self", "(?s)nothing.*its columns are k, o, v"),
    ],
)
def test_an_error_names_what_is_refused(table: LakeTable, sql: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        table.query(sql, sandbox=True)


@pytest.mark.parametrize("sql", QUERIES)
def test_plain_queries_have_the_same_answers(of_many_types: LakeTable, sql: str) -> None:
    assert shown(of_many_types.query(sql, sandbox=True)) == shown(of_many_types.query(sql))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM SELF", [(1, 1, "a"), (2, 1, "b"), (3, 1, "b")]),
        ("WITH t AS (SELECT v, count(*) AS n FROM self GROUP BY v) SELECT * FROM T WHERE n > 1", [("b", 2)]),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT sum(n) FROM t", [(6,)]),
        ("SELECT * FROM (VALUES (1), (2)) AS t(x)", [(1,), (2,)]),
        ("SELECT sum(r.range) FROM range(4) r, self", [(18,)]),
        ("SELECT k FROM self s WHERE EXISTS (SELECT 1 FROM self z WHERE z.k = s.k + 1)", [(1,), (2,)]),
        ("SELECT k, row_number() OVER (PARTITION BY v ORDER BY k) FROM self", [(1, 1), (2, 1), (3, 2)]),
        ("PIVOT self ON v IN ('a', 'b') USING count(k) GROUP BY o", [(1, 1, 2)]),
        ("SELECT column_name FROM (DESCRIBE self)", [("k",), ("o",), ("v",)]),
        ("SELECT list_transform([k], lambda x: x * 2)[1] FROM self WHERE k = 3", [(6,)]),
        ("SELECT unnest([k, k + 10]) FROM self WHERE k = 1", [(1,), (11,)]),
        ("SELECT timezone('Asia/Tokyo', TIMESTAMPTZ '2026-01-01 00:00:00+00')::VARCHAR", [("2026-01-01 09:00:00",)]),
        ("SELECT 'read_csv', 'COPY self TO ''x''' FROM self WHERE k = 1", [("read_csv", "COPY self TO 'x'")]),
    ],
)
def test_what_a_select_can_do(table: LakeTable, sql: str, expected: list[tuple[object, ...]]) -> None:
    found = table.query(sql, sandbox=True)
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected


def test_memory_is_bounded_and_nothing_goes_to_disk(table: LakeTable, folder: Path) -> None:
    small = LakeTable.open(folder / "t", settings=Settings(sandbox_memory_bytes=32 * 2**20, threads=1))
    before = state(folder)
    wide = "SELECT count(DISTINCT md5(i::VARCHAR) || md5((i + 1)::VARCHAR)) FROM range({}) t(i)"
    assert small.query(wide.format(1_000), sandbox=True).num_rows == 1
    with pytest.raises(InputError, match=r"(?i)out of memory"):
        small.query(wide.format(3_000_000), sandbox=True)
    assert state(folder) == before


def test_it_is_true_or_false(table: LakeTable) -> None:
    wrong: Any = "yes"
    with pytest.raises(InputError, match="sandbox must be True or False, not 'yes'"):
        table.query("SELECT 1", sandbox=wrong)


def test_on_the_command_line(table: LakeTable, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: Callable[..., int] = lambda *given: main(["query", "t", *given])  # noqa: E731 - short
    assert asked("SELECT max(k) AS m FROM self", "--sandbox", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"m": 3}
    assert asked("COPY self TO 'out.csv'", "--sandbox") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "it is not a SELECT: with --sandbox a query is one SELECT" in captured.err
    assert not (folder / "out.csv").exists()
