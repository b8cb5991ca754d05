"""Input of the TPC-H case: the tables, changes of orders and line items, and what must come out.

A change stream that SQL's MERGE can take: a frame has a key once, and no record is late. Each commit changes rows,
makes some and deletes some.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.cases.tpch_texts import KIND, TABLES
from benchmarks.tpch import connect

__all__ = ["CHANGED", "KEYS", "ORDERING", "Input", "frame", "merged"]

KEYS: Mapping[str, tuple[str, ...]] = {"orders": ("o_orderkey",), "lineitem": ("l_orderkey", "l_linenumber")}
"""The tables that change."""
CHANGED = tuple(KEYS)
ORDERING = "changed"
"""A column of these tables beside TPC-H's: the number of the commit that changed the row."""
_IDS = {"orders": "o_orderkey", "lineitem": "l_orderkey * 8 + l_linenumber"}
_VALUES: Mapping[str, Mapping[str, str]] = {
    "orders": {"o_orderstatus": "CASE v % 3 WHEN 0 THEN 'F' WHEN 1 THEN 'O' ELSE 'P' END",
               "o_totalprice": "CAST(o_totalprice + v % 1000 AS DECIMAL(15, 2))"},
    "lineitem": {"l_quantity": "CAST(1 + v % 50 AS DECIMAL(15, 2))",
                 "l_extendedprice": "CAST(l_extendedprice + v % 1000 AS DECIMAL(15, 2))",
                 "l_shipdate": "CAST(l_shipdate + CAST(v % 30 AS INTEGER) AS DATE)"},
}  # fmt: skip
"""What a change sets, by a random number ``v``."""


@dataclass(frozen=True, slots=True)
class Input:
    """A folder with a file for each table. A table that changes has more: one for each commit, one for the outcome."""

    folder: Path
    commits: int

    @classmethod
    def prepared(cls, cache: Path, *, scale: float, commits: int, share: float) -> Input:
        """Made now, or by an earlier call.

        :param share: of the rows that each commit touches.
        """
        folder = cache / f"tpch-queries-scale{scale:g}-commits{commits}-share{share:g}"
        if not folder.exists():
            cache.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
            try:
                tool = Path(sys.executable).with_name("tpchgen-cli")
                command = [str(tool), "parquet", "--scale-factor", f"{scale:g}", "--output-dir", str(partial)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                with connect(partial) as db:
                    for name in CHANGED:
                        _write(db, partial, name, commits, share)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return cls(folder, commits)

    def original(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def changes(self, table: str) -> list[Path]:
        return [self.folder / f"{table}-{commit}.parquet" for commit in range(1, self.commits + 1)]

    def outcome(self, table: str) -> Path:
        return self.folder / f"{table}-outcome.parquet" if table in CHANGED else self.original(table)

    def answers(self, texts: Mapping[int, str]) -> dict[int, list[tuple[object, ...]]]:
        """What DuckDB answers, by its own Parquet reader."""
        with duckdb.connect() as db:
            for name in TABLES:
                db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{self.outcome(name)}')")
            return {number: db.execute(text).fetchall() for number, text in texts.items()}


def frame(table: str, source: str, share: float, salt: int) -> str:
    """SQL for DuckDB: a commit that touches a share of the rows. Three fifths of its records change a row,
    three tenths make one, and a tenth delete one.

    :param source: the relation with the table's rows, for ``FROM``.
    :param salt: another number, other rows.
    """
    key, ident, values = KEYS[table][0], _IDS[table], _VALUES[table]
    chosen = ", ".join(f"{value} AS {name}" for name, value in values.items())
    return f"""
        SELECT * EXCLUDE (act, v) REPLACE (
                 {chosen}, CASE WHEN act BETWEEN 6 AND 8 THEN {key} + 8 ELSE {key} END AS {key},
                 CAST({salt} AS BIGINT) AS {ORDERING}),
               CASE WHEN act = 9 THEN '-D' ELSE '+U' END AS {KIND}
        FROM (SELECT *, mix({ident}, {salt * 7 + 1}) % 10 AS act, mix({ident}, {salt * 7 + 2}) AS v
              FROM {source} WHERE mix({ident}, {salt * 7 + 3}) < {round(share * 2147483647)})"""


def merged(table: str, log: str) -> str:
    """SQL for DuckDB: the rows that a relation with all records leaves, the newest of each key."""
    newest = f"row_number() OVER (PARTITION BY {', '.join(KEYS[table])} ORDER BY {ORDERING} DESC) = 1"
    return f"SELECT * EXCLUDE ({KIND}) FROM (SELECT * FROM {log} QUALIFY {newest} AND {KIND} <> '-D')"


def _write(db: duckdb.DuckDBPyConnection, folder: Path, table: str, commits: int, share: float) -> None:
    original = folder / f"{table}.parquet"
    db.execute(f"CREATE TABLE base AS SELECT *, CAST(0 AS BIGINT) AS {ORDERING} FROM read_parquet('{original}')")
    db.execute(f"CREATE TABLE log AS SELECT *, '+U' AS {KIND} FROM base")
    for commit in range(1, commits + 1):
        db.execute(f"CREATE OR REPLACE TABLE records AS {frame(table, 'base', share, commit)}")
        db.execute("INSERT INTO log SELECT * FROM records")
        _copy(db, "SELECT * FROM records", folder / f"{table}-{commit}.parquet")
    _copy(db, merged(table, "log"), folder / f"{table}-outcome.parquet")
    original.unlink()
    _copy(db, "SELECT * FROM base", original)
    db.execute("DROP TABLE base; DROP TABLE log; DROP TABLE records")


def _copy(db: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    db.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
