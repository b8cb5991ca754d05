"""TPC-H tables with a change stream, and the answer an upsert of that stream must give.

The data come from ``tpchgen-cli``; the change stream is integer arithmetic over the keys, so one
seed gives the same files everywhere. The expected rows are computed by DuckDB with one window
function over all records (last by ordering, commit, position; deletes drop out), which is what
``event-time`` means for frames that carry every column.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import duckdb

__all__ = [
    "CHANGES_BEGIN_US",
    "ENTITIES",
    "KIND_COLUMN",
    "LINEITEM",
    "ORDERS",
    "Comparison",
    "Entity",
    "Workload",
    "compare",
    "connect",
    "generate_tpch",
]

KIND_COLUMN = "op"

_RECIPE = 1
"""Part of the cache folder's name: raise it when the files of one seed change."""

_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
CHANGES_BEGIN_US = 10_957 * _DAY_US
"""2000-01-01: after every date of TPC-H, so that a change is newer than the row it changes."""

# A hash in [0, 2**31 - 1) with nothing but 64-bit integer arithmetic: the same in every engine and version.
_MACROS = """
CREATE OR REPLACE MACRO fold(h, bits) AS xor(h, h >> bits);
CREATE OR REPLACE MACRO scramble(k, salt) AS fold(((k % 2147483647) * 48271 + salt) % 2147483647, 15);
CREATE OR REPLACE MACRO mix(k, salt) AS
    (fold((scramble(k, salt) * 69621 + salt) % 2147483647, 13) * 39373) % 2147483647;
"""


@dataclass(frozen=True, slots=True)
class Entity:
    """One table: its columns with Spark SQL types, and SQL that makes and changes its rows.

    ``base`` selects every column and a BIGINT ``id`` that is unique per key, from the views
    ``lineitem`` and ``orders``; ``fresh`` turns a row's first key column into that of a new row;
    ``changes`` gives the columns that an update sets, in terms of the row and of ``v``, a random
    non-negative integer.
    """

    name: str
    key: tuple[str, ...]
    ordering: str
    columns: tuple[tuple[str, str], ...]
    base: str
    fresh: str
    changes: tuple[tuple[str, str], ...]

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {kind}{' NOT NULL' if name in self.key else ''}" for name, kind in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)


LINEITEM = Entity(
    name="lineitem",
    key=("l_orderkey", "l_linenumber"),
    ordering="updated_at",
    columns=(
        ("l_orderkey", "BIGINT"),
        ("l_partkey", "BIGINT"),
        ("l_suppkey", "BIGINT"),
        ("l_linenumber", "INT"),
        ("l_quantity", "DECIMAL(15,2)"),
        ("l_extendedprice", "DECIMAL(15,2)"),
        ("l_discount", "DECIMAL(15,2)"),
        ("l_tax", "DECIMAL(15,2)"),
        ("l_returnflag", "STRING"),
        ("l_linestatus", "STRING"),
        ("l_shipdate", "DATE"),
        ("l_commitdate", "DATE"),
        ("l_receiptdate", "DATE"),
        ("l_shipinstruct", "STRING"),
        ("l_shipmode", "STRING"),
        ("l_comment", "STRING"),
        ("updated_at", "BIGINT"),
    ),
    base=f"""
        SELECT lineitem.*, l_orderkey * 8 + l_linenumber AS id,
               epoch_us(CAST(o_orderdate AS TIMESTAMP)) + mix(id, 1) % {_DAY_US} AS updated_at
        FROM lineitem JOIN orders ON o_orderkey = l_orderkey
    """,
    fresh="l_orderkey + 8",  # of each 32 order keys TPC-H uses the first 8
    changes=(
        ("l_quantity", "1 + v % 50"),
        ("l_extendedprice", "l_extendedprice + v % 1000 / 100"),
        ("l_returnflag", "CASE WHEN v % 3 = 0 THEN 'R' ELSE l_returnflag END"),
        ("l_shipdate", "l_shipdate + CAST(v % 30 AS INTEGER)"),
        ("l_shipmode", "CASE v % 4 WHEN 0 THEN 'AIR' WHEN 1 THEN 'RAIL' WHEN 2 THEN 'SHIP' END"),
        ("l_comment", "'changed ' || v"),
    ),
)

ORDERS = Entity(
    name="orders",
    key=("o_orderkey",),
    ordering="updated_at",
    columns=(
        ("o_orderkey", "BIGINT"),
        ("o_custkey", "BIGINT"),
        ("o_orderstatus", "STRING"),
        ("o_totalprice", "DECIMAL(15,2)"),
        ("o_orderdate", "DATE"),
        ("o_orderpriority", "STRING"),
        ("o_clerk", "STRING"),
        ("o_shippriority", "INT"),
        ("o_comment", "STRING"),
        ("updated_at", "TIMESTAMP"),
    ),
    base=f"""
        SELECT *, o_orderkey AS id,
               epoch_us(CAST(o_orderdate AS TIMESTAMP)) + mix(o_orderkey, 1) % {_DAY_US} AS updated_at
        FROM orders WHERE mix(o_orderkey, 2) % 10 = 0
    """,
    fresh="o_orderkey + 8",
    changes=(
        ("o_orderstatus", "CASE v % 3 WHEN 0 THEN 'F' WHEN 1 THEN 'O' ELSE 'P' END"),
        ("o_totalprice", "o_totalprice + v % 100000 / 100"),
        ("o_shippriority", "v % 5"),
        ("o_comment", "CASE WHEN v % 10 > 0 THEN 'changed ' || v END"),
    ),
)

ENTITIES = (ORDERS, LINEITEM)


@dataclass(frozen=True, slots=True)
class Workload:
    """The files of one run: per entity ``initial.parquet`` (the bulk load, no kind column),
    ``change_<n>.parquet`` for n in 1..``commits`` (with :data:`KIND_COLUMN`) and
    ``expected.parquet`` (the rows after all of them)."""

    folder: Path
    commits: int

    @classmethod
    def prepare(cls, cache: Path, *, scale: float, commits: int, fraction: float, seed: int) -> Workload:
        """Generate into ``cache``, or return what an earlier call left there.

        ``fraction`` of the table's rows is touched by each commit. Raises :class:`ValueError` for
        parameters outside their range and :class:`subprocess.CalledProcessError` when the
        generator fails; a folder is complete or not there.
        """
        if scale <= 0 or commits < 1 or not 0 < fraction <= 1 or seed < 0:
            raise ValueError("scale > 0, commits >= 1, 0 < fraction <= 1 and seed >= 0 are needed")
        parameters = {"scale": scale, "commits": commits, "fraction": fraction, "seed": seed, "recipe": _RECIPE}
        folder = cache / "-".join(f"{name}{value:g}" for name, value in parameters.items())
        if not folder.exists():
            cache.mkdir(parents=True, exist_ok=True)
            source = generate_tpch(cache, scale)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
            try:
                with connect(partial) as db:
                    for name in ("lineitem", "orders"):
                        db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{source / name}.parquet')")
                    for entity in ENTITIES:
                        _Stream(db, entity, partial / entity.name, seed).write(commits, fraction)
                (partial / "parameters.json").write_text(json.dumps(parameters, indent=1) + "\n")
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return cls(folder, commits)

    def initial(self, entity: Entity) -> Path:
        return self.folder / entity.name / "initial.parquet"

    def change(self, entity: Entity, number: int) -> Path:
        return self.folder / entity.name / f"change_{number:03}.parquet"

    def expected(self, entity: Entity) -> Path:
        return self.folder / entity.name / "expected.parquet"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a relation differs from the expected one. ``problems`` is empty when they hold the same
    rows, each as often."""

    rows: int
    problems: tuple[str, ...]


def connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB that works in UTC, has the macros of the change stream and spills to ``scratch``."""
    db = duckdb.connect(config={"temp_directory": str(scratch / ".duckdb")})
    db.execute("SET TimeZone = 'UTC'")
    db.execute(_MACROS)
    return db


def compare(db: duckdb.DuckDBPyConnection, entity: Entity, actual: str, expected: str) -> Comparison:
    """Compare two relations, given as SQL that can stand after FROM: columns and types, row count,
    one checksum per column, and every value of every row, matched by key."""
    shapes = [db.sql(f"SELECT * FROM {relation}") for relation in (actual, expected)]
    described = [dict(zip(shape.columns, map(str, shape.types), strict=True)) for shape in shapes]
    rows = _one(db, f"SELECT count(*) FROM {actual}")[0]
    if described[0] != described[1]:
        return Comparison(rows, (f"columns {described[0]}, expected {described[1]}",))
    problems: list[str] = []
    checksums = ", ".join(f"coalesce(sum(hash({name})::HUGEINT), 0)" for name in entity.names)
    sums = [_one(db, f"SELECT count(*), {checksums} FROM {relation}") for relation in (actual, expected)]
    for label, ours, theirs in zip(("row count", *entity.names), *sums, strict=True):
        if ours != theirs:
            problems.append(f"{label}: {ours}, expected {theirs}" if label == "row count" else f"checksum of {label}")
    # With equal counts, "every actual row has an equal partner" and "every expected row has one" make the two equal.
    first = entity.key[0]
    values = [name for name in entity.names if name not in entity.key]
    differing = ", ".join(
        f"count(*) FILTER (a.{first} IS NOT NULL AND e.{first} IS NOT NULL AND a.{name} IS DISTINCT FROM e.{name})"
        for name in values
    )
    condition = " AND ".join(f"a.{name} = e.{name}" for name in entity.key)
    found = _one(
        db,
        f"""SELECT count(*) FILTER (a.{first} IS NULL), count(*) FILTER (e.{first} IS NULL), {differing}
            FROM {actual} AS a FULL JOIN {expected} AS e ON {condition}""",
    )
    labels = ("rows missing", "rows not expected", *(f"rows with another {name}" for name in values))
    problems += [f"{label}: {count}" for label, count in zip(labels, found, strict=True) if count]
    return Comparison(rows, tuple(problems))


@dataclass(frozen=True, slots=True)
class _Stream:
    """Writes the files of one entity."""

    db: duckdb.DuckDBPyConnection
    entity: Entity
    folder: Path
    seed: int

    def write(self, commits: int, fraction: float) -> None:
        self.folder.mkdir()
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE base AS {self.entity.base}")
        self._copy("initial", f"SELECT {self._typed()} FROM base", with_kind=False)
        self.db.execute("CREATE OR REPLACE TEMP TABLE previous AS SELECT *, '+U' AS op FROM base LIMIT 0")
        for commit in range(1, commits + 1):
            self.db.execute(f"CREATE OR REPLACE TEMP TABLE records AS {self._records(commit, fraction)}")
            order = f"mix(id, {self._salt(commit, 5)}), updated_at"
            self._copy(
                f"change_{commit:03}", f"SELECT {self._typed()}, op FROM records ORDER BY {order}", with_kind=True
            )
            self.db.execute("CREATE OR REPLACE TEMP TABLE previous AS SELECT * FROM records")
        self._copy("expected", self._expected(commits), with_kind=False)
        self.db.execute("DROP TABLE base; DROP TABLE previous; DROP TABLE IF EXISTS records")

    def _records(self, commit: int, fraction: float) -> str:
        """One commit: of the rows drawn 65 % are updated, 12 % give a row with a new key, 12 % are
        deleted (some under a key that was never seen) and 11 % are late, half of them later than
        the row they change but not than recent commits, half older than any. On top come a second,
        newer record for some keys, exact duplicates, and from the commit before exact repeats and
        other values under an equal ordering (the later commit wins)."""
        name, ordering = self.entity.name, self.entity.ordering
        now = CHANGES_BEGIN_US + commit * _HOUR_US
        drawn = f"""
            SELECT *, mix(id, {self._salt(commit, 1)}) % 100 AS act, mix(id, {self._salt(commit, 2)}) AS v
            FROM base WHERE mix(id, {self._salt(commit, 0)}) < {int(fraction * 2147483647)}"""
        changed = dict(self.entity.changes)
        fresh = "act BETWEEN 65 AND 76 OR (act BETWEEN 77 AND 88 AND v % 8 = 0)"
        values = {name: f"CASE WHEN NOT deleted THEN {changed.get(name, name)} END" for name in self.entity.names}
        values[self.entity.key[0]] = f"CASE WHEN {fresh} THEN {self.entity.fresh} ELSE {self.entity.key[0]} END"
        values.update({key: key for key in self.entity.key[1:]})
        values[ordering] = f"""CASE WHEN act < 89 THEN {now} + v % {_HOUR_US}
            WHEN v % 2 = 0 THEN {now - 3 * _HOUR_US} + v % {_HOUR_US} ELSE {ordering} - {_DAY_US} - {commit} END"""
        made = ", ".join(f"{value} AS {column}" for column, value in values.items())
        text = self.entity.columns[-2][0]
        part = f"mix(id, {self._salt(commit, 3)}) % 50"
        return f"""
            WITH {name}_drawn AS ({drawn}),
            first AS (SELECT {made}, id, CASE WHEN deleted THEN '-D' ELSE '+U' END AS op
                      FROM (SELECT *, act BETWEEN 77 AND 88 AS deleted FROM {name}_drawn))
            SELECT * FROM first
            UNION ALL SELECT * REPLACE ({ordering} + 1 AS {ordering}, 'again' AS {text}, '+U' AS op)
                      FROM first WHERE {part} = 0 AND op = '+U'
            UNION ALL SELECT * FROM first WHERE {part} = 1
            UNION ALL SELECT * FROM previous WHERE {part} = 2
            UNION ALL SELECT * REPLACE ('tie in {commit}' AS {text}) FROM previous WHERE {part} = 3 AND op = '+U'"""

    def _expected(self, commits: int) -> str:
        """The state after all commits, from the files as written."""
        names = ", ".join(self.entity.names)
        files = [f"SELECT {names}, '+U' AS op, 0 AS commit_number, file_row_number FROM {self._file('initial')}"]
        files += [
            f"SELECT {names}, op, {commit} AS commit_number, file_row_number FROM {self._file(f'change_{commit:03}')}"
            for commit in range(1, commits + 1)
        ]
        return f"""
            SELECT {names} FROM ({" UNION ALL ".join(files)})
            QUALIFY row_number() OVER (PARTITION BY {", ".join(self.entity.key)}
                ORDER BY {self.entity.ordering} DESC, commit_number DESC, file_row_number DESC) = 1 AND op <> '-D'"""

    def _typed(self) -> str:
        return ", ".join(self._cast(name, kind) for name, kind in self.entity.columns)

    def _cast(self, name: str, kind: str) -> str:
        if kind == "TIMESTAMP":
            return f"CAST(make_timestamp({name}) AS TIMESTAMPTZ) AS {name}"
        return f"CAST({name} AS {kind}) AS {name}"

    def _file(self, name: str) -> str:
        return f"read_parquet('{self.folder / name}.parquet', file_row_number = true)"

    def _salt(self, commit: int, use: int) -> int:
        return (self.seed * 1_000_003 + commit * 7_919 + use * 104_729 + 12_345) % 2_147_483_647

    def _copy(self, name: str, query: str, *, with_kind: bool) -> None:
        columns = (*self.entity.names, KIND_COLUMN) if with_kind else self.entity.names
        target = self.folder / f"{name}.parquet"
        self.db.execute(
            f"COPY (SELECT {', '.join(columns)} FROM ({query})) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
        )


def generate_tpch(cache: Path, scale: float) -> Path:
    """The folder with the Parquet files of the tables, generated once per scale factor."""
    folder = cache / f"tpch-{scale:g}"
    if not folder.exists():
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
        try:
            tool = Path(sys.executable).with_name("tpchgen-cli")
            command = [str(tool), "parquet", "--scale-factor", f"{scale:g}", "--tables", "lineitem,orders"]
            command += ["--output-dir", str(partial)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _one(db: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    row = db.execute(query).fetchone()
    if row is None:
        raise AssertionError(f"an aggregate gave no row: {query}")
    return row
