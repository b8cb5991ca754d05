"""The data of the comparison: line items, frames that change them, a wide table, and the right answers.

Frames carry all columns and draw their rows at random from the whole table, so commits touch all of
it. Times grow from frame to frame; the state after any frames is computed by DuckDB with one window
function over all their records. Everything is integer arithmetic over the keys and a seed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.compare.queries import Answer, Query, normalised
from benchmarks.foundation_data import Inputs, merged_sql
from benchmarks.tpch import CHANGES_BEGIN_US, LINEITEM, Entity, compare, connect

__all__ = ["RECENT", "SIZES", "SMALL_PART", "WIDE", "WIDE_CHANGED", "Frame", "Parameters", "Workload"]

_RECIPE = 2
"""Part of the cache folder's name: raise it when the files of one seed change."""

SMALL_PART, _LARGE_PART = 0.01, 0.1
"""The share of the table's rows that a small commit and the large commit touch."""
SIZES = ("third", "initial", "tenfold")
"""Tables of a third of the rows, of all, and of ten thirds."""
RECENT = 0.1
"""The share of the rows that count as recent."""
_FILES = 2
"""Files per frame, and so write tasks on two cores."""
_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_WIDE_ROWS_PER_SCALE = 400_000
_INTEGERS, _DOUBLES, _STRINGS = 40, 40, 18


@dataclass(frozen=True, slots=True)
class Frame:
    """A folder of Parquet files: rows to upsert, or to delete by their key and time."""

    name: str
    path: Path
    deletes: bool = False
    unique: bool = True
    """Whether no key is there twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What the data depend on. Raises :class:`ValueError` for values outside their range."""

    scale: float
    """TPC-H scale factor; 1 is 6 M line items."""
    commits: int
    """Small commits of the longevity run and of a day of mixes."""
    rounds: int
    """Samples of each timing."""
    seed: int

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.commits < 4 or self.rounds < 1 or self.seed < 0:
            raise ValueError("scale > 0, commits >= 4, rounds >= 1 and seed >= 0 are needed")

    @property
    def folder(self) -> str:
        return f"compare{_RECIPE}-scale{self.scale:g}-commits{self.commits}-rounds{self.rounds}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Workload:
    """The files of one run."""

    parameters: Parameters
    folder: Path
    initial_rows: int

    @classmethod
    def prepare(cls, cache: Path, parameters: Parameters) -> Workload:
        """Generate into ``cache``, or return what an earlier call left there: a folder is complete
        or not there."""
        folder = cache / parameters.folder
        if not folder.exists():
            inputs = Inputs.prepare(cache, scale=parameters.scale, seed=parameters.seed)
            with _complete(folder) as partial, connect(partial) as db:
                _Generator(db, inputs, partial, parameters).write()
        return cls.open(cache, parameters)

    @classmethod
    def open(cls, cache: Path, parameters: Parameters) -> Workload:
        """What :meth:`prepare` made."""
        folder = cache / parameters.folder
        return cls(parameters, folder, json.loads((folder / "parameters.json").read_text())["rows"])

    def table(self, size: str) -> Path:
        """The rows to load, for one of :data:`SIZES`, in key order."""
        return self.folder / "tables" / f"{size}.parquet"

    def rows(self, size: str) -> int:
        """How many :meth:`table` has."""
        return duckdb.read_parquet(str(self.table(size))).shape[0]

    @property
    def initial(self) -> Path:
        return self.table("initial")

    def small(self, number: int) -> Frame:
        """The ``number``-th small commit, from 1: 90 % updates, 10 % new keys."""
        return self._frame(f"small_{number:03}")

    @property
    def late(self) -> Frame:
        """A small commit half of whose updates are older than the row they meet."""
        return self._frame("late")

    @property
    def duplicates(self) -> Frame:
        """A small commit in which a third of the keys come twice, and another third three times."""
        return Frame("duplicates", self.folder / "duplicates", unique=False)

    @property
    def deletes(self) -> Frame:
        return Frame("deletes", self.folder / "deletes", deletes=True)

    @property
    def large(self) -> Frame:
        return self._frame("large")

    def recent(self, number: int) -> Frame:
        """As :meth:`small`, drawn from the tenth of the rows with the largest keys."""
        return self._frame(f"recent_{number:03}")

    def sized(self, size: str, number: int) -> Frame:
        """A commit of as many rows as a small one, drawn from the table of this size."""
        return self._frame(f"size_{size}_{number}")

    @property
    def wide(self) -> Path:
        return self.folder / "wide.parquet"

    def wide_change(self, number: int) -> Frame:
        """Key, time and :data:`WIDE_CHANGED` of 1 % of the rows of :attr:`wide`; from 0."""
        return self._frame(f"wide_{number}")

    def state(self, base: Path, frames: Sequence[Frame]) -> Path:
        """The rows of a table that was loaded from ``base`` and took ``frames``, in key order, as one file."""
        text = merged_sql(base, [frame.path for frame in frames], [f.path for f in frames if f.deletes])
        return self._computed(f"SELECT * FROM ({text}) ORDER BY {', '.join(LINEITEM.key)}", base, frames)

    def wide_state(self, frames: Sequence[Frame]) -> Path:
        """The rows of :attr:`wide` after ``frames``: each sets its columns in the rows it names."""
        changed = (WIDE.ordering, *WIDE_CHANGED)
        parts = " UNION ALL ".join(f"SELECT * FROM read_parquet('{frame.path}/*.parquet')" for frame in frames)
        newest = f"SELECT * FROM ({parts}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY updated_at DESC) = 1"
        values = ", ".join(f"CASE WHEN n.id IS NULL THEN w.{c} ELSE n.{c} END AS {c}" for c in changed)
        joined = f"SELECT w.* REPLACE ({values}) FROM read_parquet('{self.wide}') AS w LEFT JOIN newest AS n USING (id)"
        return self._computed(f"WITH newest AS ({newest}) {joined} ORDER BY id", self.wide, frames)

    def answer(self, state: Path, query: Query) -> Answer:
        """The right answer over the rows of ``state``, by DuckDB."""
        where = f" WHERE {query.condition}" if query.condition else ""
        with connect(self.folder) as db:
            return normalised(db.execute(query.over(f"(SELECT * FROM read_parquet('{state}'){where})")).fetchall())

    def updated_key(self) -> tuple[int, int]:
        """The key of a row that the first small commit changed."""
        with connect(self.folder) as db:
            files = f"read_parquet('{self.small(1).path}/*.parquet')"
            keys = ", ".join(LINEITEM.key)
            found = db.execute(f"SELECT {keys} FROM {files} ORDER BY {keys} LIMIT 1").fetchone()
        if found is None:
            raise ValueError(f"{self.small(1).path} has no rows")
        return found[0], found[1]

    def updated_id(self) -> int:
        """The key of a row of :attr:`wide` that the first change sets."""
        with connect(self.folder) as db:
            found = db.execute(f"SELECT min(id) FROM read_parquet('{self.wide_change(0).path}/*.parquet')").fetchone()
        if found is None:
            raise ValueError(f"{self.wide_change(0).path} has no rows")
        return int(found[0])

    def problems(self, entity: Entity, found: Path, state: Path) -> tuple[str, ...]:
        """How the Parquet files in ``found`` differ from the rows of ``state``; empty if they do not."""
        with connect(self.folder) as db:
            files, expected = f"read_parquet('{found}/*.parquet')", f"read_parquet('{state}')"
            names = ", ".join(entity.names)
            return compare(db, entity, f"(SELECT {names} FROM {files})", expected).problems

    def _frame(self, name: str) -> Frame:
        return Frame(name, self.folder / name)

    def _computed(self, query: str, base: Path, frames: Sequence[Frame]) -> Path:
        name = hashlib.sha256("\n".join([base.name, *(frame.name for frame in frames)]).encode()).hexdigest()[:16]
        path = self.folder / "states" / f"{name}.parquet"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with connect(self.folder) as db:
                _copy(db, query, path.with_suffix(".partial"))
            path.with_suffix(".partial").rename(path)
        return path


@dataclass(frozen=True, slots=True)
class _Generator:
    """Writes all files of a workload."""

    db: duckdb.DuckDBPyConnection
    inputs: Inputs
    folder: Path
    parameters: Parameters

    def write(self) -> None:
        (self.folder / "tables").mkdir()
        for size in SIZES:
            path = self.inputs.tenfold() if size == "tenfold" else getattr(self.inputs, size)
            shutil.copy(path, self.folder / "tables" / f"{size}.parquet")
        rows, rounds = self.inputs.initial_rows, self.parameters.rounds
        count = max(_FILES, round(rows * SMALL_PART))
        commits = self.parameters.commits
        self._draw_from("initial")
        for number in range(1, commits + 1):
            self._frame(f"small_{number:03}", number, count)
        self._frame("late", commits + 1, count, late="rank % 2 = 0")
        self._frame("duplicates", commits + 2, count, copies="rank % 3")
        self._frame("deletes", commits + 3, count, new="false")
        self._frame("large", commits + 4, max(_FILES, round(rows * _LARGE_PART)))
        self._draw_from("initial", RECENT)
        for number in range(1, commits + 1):
            self._frame(f"recent_{number:03}", number, count)
        for size in SIZES:
            self._draw_from(size)
            for number in range(rounds + 1):
                self._frame(f"size_{size}_{number}", number + 1, count)
        self._wide()
        (self.folder / "parameters.json").write_text(json.dumps({"rows": rows}) + "\n")

    def _draw_from(self, size: str, share: float = 1.0) -> None:
        """Let frames be drawn from a table, or from this share of it: the rows with the largest keys."""
        source = f"read_parquet('{self.folder / 'tables' / size}.parquet')"
        identity = "l_orderkey * 8 + l_linenumber AS id"
        least = f"(SELECT quantile_disc(l_orderkey, {1 - share}) FROM {source})"
        self.db.execute(
            f"CREATE OR REPLACE TEMP VIEW base AS SELECT *, {identity} FROM {source} WHERE l_orderkey >= {least}"
        )

    def _frame(
        self, name: str, number: int, count: int, *, new: str = "rank % 10 = 0", late: str = "false", copies: str = "0"
    ) -> None:
        """``count`` rows, changed; ``new`` and ``late`` tell which by their random ``rank``, ``copies`` how many
        more records a row gets, each newer than the one before and with a value of its own."""
        key, ordering = LINEITEM.key[0], LINEITEM.ordering
        now = CHANGES_BEGIN_US + number * _HOUR_US
        changed = {
            **dict(LINEITEM.changes),
            key: f"CASE WHEN {new} THEN {LINEITEM.fresh} ELSE {key} END",
            ordering: f"CASE WHEN {late} THEN {ordering} - {_DAY_US} ELSE {now} + v % {_HOUR_US // 2} + copy END",
            "l_tax": "copy / 100",
        }
        columns = ", ".join(f"CAST({changed.get(c, c)} AS {kind}) AS {c}" for c, kind in LINEITEM.columns)
        drawn = f"SELECT *, mix(id, {self._salt(name, 0)}) AS place, mix(id, {self._salt(name, 1)}) AS v FROM base"
        ranked = f"SELECT *, row_number() OVER (ORDER BY place, id) - 1 AS rank FROM ({drawn})"
        self.db.execute(
            f"""CREATE OR REPLACE TEMP TABLE drawn AS
                SELECT *, rank + copy AS part
                FROM (SELECT *, unnest(range({copies} + 1)) AS copy FROM ({ranked} QUALIFY rank < {count}))"""
        )
        self._write_parts(name, columns, "drawn", f"mix(id + copy * 7, {self._salt(name, 2)}), id, copy")

    def _wide(self) -> None:
        rows = max(100, round(_WIDE_ROWS_PER_SCALE * self.parameters.scale))
        made = {"id": "id", "updated_at": f"{CHANGES_BEGIN_US - _DAY_US} + id"}
        made |= {name: _wide_value(kind, use, 0) for use, (name, kind) in enumerate(WIDE.columns) if name not in made}
        columns = ", ".join(f"CAST({made[name]} AS {kind}) AS {name}" for name, kind in WIDE.columns)
        _copy(self.db, f"SELECT {columns} FROM (SELECT range AS id FROM range({rows}))", self.folder / "wide.parquet")
        for number in range(max(self.parameters.rounds + 1, self.parameters.commits)):
            self._wide_change(number, rows)

    def _wide_change(self, number: int, rows: int) -> None:
        kinds = dict(WIDE.columns)
        values = [f"CAST({_wide_value(kinds[c], 500 + use, number + 1)} AS {kinds[c]}) AS {c}" for use, c in _CHANGED]
        columns = f"id, CAST({CHANGES_BEGIN_US + number * _HOUR_US} AS BIGINT) AS updated_at, {', '.join(values)}"
        drawn = f"""SELECT id, row_number() OVER (ORDER BY mix(id, {self._salt(f"wide_{number}", 0)}), id) - 1 AS part
                    FROM (SELECT range AS id FROM range({rows}))"""
        count = max(_FILES, round(rows * SMALL_PART))
        self._write_parts(f"wide_{number}", columns, f"({drawn} QUALIFY part < {count})", "part")

    def _write_parts(self, name: str, columns: str, source: str, order: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        for number in range(_FILES):
            rows = f"SELECT {columns} FROM {source} WHERE part % {_FILES} = {number} ORDER BY {order}"
            _copy(self.db, rows, folder / f"part-{number}.parquet")

    def _salt(self, name: str, use: int) -> int:
        digest = hashlib.sha256(f"{self.parameters.seed} {name} {use}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % 2_147_483_647


def _wide_value(kind: str, use: int, number: int) -> str:
    """SQL over ``id`` for a value of this type, another one for each ``use`` and ``number``."""
    drawn = f"mix(id, {use * 7_919 + number * 104_729 + 1})"
    return {"BIGINT": drawn, "DOUBLE": f"{drawn} / 1024", "STRING": f"'value ' || {drawn} % 10000"}[kind]


@contextmanager
def _complete(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end, or goes."""
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        yield partial
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(db: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    db.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")


WIDE = Entity(
    name="wide",
    key=("id",),
    ordering="updated_at",
    columns=(
        ("id", "BIGINT"),
        ("updated_at", "BIGINT"),
        *((f"i{number}", "BIGINT") for number in range(_INTEGERS)),
        *((f"d{number}", "DOUBLE") for number in range(_DOUBLES)),
        *((f"s{number}", "STRING") for number in range(_STRINGS)),
    ),
    base="",
    fresh="",
    changes=(),
)
"""A hundred columns. Rows and frames are made here, not by the generator of the TPC-H change stream."""
WIDE_CHANGED = ("i0", "d0", "s0")
_CHANGED = tuple(enumerate(WIDE_CHANGED))
