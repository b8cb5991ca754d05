"""Inputs of the foundation benchmark: TPC-H line items in key order, and frames that change them.

Frames carry all columns, every key once, and take disjoint rows of the table, so that they can be
upserted in any order; but for those of recent keys, which are for a table of their own and take rows
among the last twentieth alone. Of a frame's rows 85 % are newer than the row they change, 10 % have new
keys and 5 % are late and must lose. The expected rows are computed by DuckDB with one window function.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.tpch import CHANGES_BEGIN_US, LINEITEM, connect, generate_tpch

__all__ = ["DIRTY_FRAMES", "RECENT_FRAMES", "Inputs", "merged_sql"]

_RECIPE = 2
"""Part of the cache folder's name: raise it when the files of one seed change."""

DIRTY_FRAMES = tuple(f"dirty_{number}" for number in range(1, 7))
RECENT_FRAMES = tuple(f"recent_{number}" for number in range(1, 7))
_PARTS = {"small": 0.01, "large": 0.1, **dict.fromkeys(DIRTY_FRAMES, 0.15 / len(DIRTY_FRAMES))}
"""Frames, with their part of the table's rows: at scale 0.5 that is 30,000, 300,000 and 6 x 75,000."""
_RECENT_PARTS = dict.fromkeys(RECENT_FRAMES, 0.02 / len(RECENT_FRAMES))
_RECENT = 0.05
"""The part of the table that frames of recent keys change rows of: the highest keys."""

_ROWS_PER_SCALE = 6_000_000
_FILES = 2
"""Files per frame, and so write tasks on two cores."""
_DAY_US = 86_400_000_000
_COPY_STRIDE = 2**40
"""Between the order keys of the copies that make the largest table."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of one scale: tables as one file each, in key order, frames as folders of two files."""

    folder: Path
    initial_rows: int

    @classmethod
    def prepare(cls, cache: Path, *, scale: float, seed: int) -> Inputs:
        """Generate into ``cache``, or return what an earlier call left there: a folder is complete
        or not there. Raises :class:`ValueError` for parameters outside their range."""
        if scale <= 0 or seed < 0:
            raise ValueError("scale > 0 and seed >= 0 are needed")
        folder = cache / f"foundation{_RECIPE}-scale{scale:g}-seed{seed}"
        if not folder.exists():
            cache.mkdir(parents=True, exist_ok=True)
            source = generate_tpch(cache, scale)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
            try:
                with connect(partial) as db:
                    for name in ("lineitem", "orders"):
                        db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{source / name}.parquet')")
                    rows = _write(db, partial, scale, seed)
                (partial / "parameters.json").write_text(json.dumps({"initial_rows": rows}) + "\n")
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return cls(folder, json.loads((folder / "parameters.json").read_text())["initial_rows"])

    @property
    def initial(self) -> Path:
        """The table before any frame."""
        return self.folder / "initial.parquet"

    @property
    def third(self) -> Path:
        """The first third of the table."""
        return self.folder / "third.parquet"

    def tenfold(self) -> Path:
        """Ten times as many rows as :attr:`third`: the table three times, and the third once more,
        under other keys. Made on the first call."""
        path = self.folder / "tenfold.parquet"
        if not path.exists():
            with connect(self.folder) as db:
                copies = [
                    f"SELECT * REPLACE (l_orderkey + {number * _COPY_STRIDE} AS l_orderkey) FROM read_parquet('{part}')"
                    for number, part in enumerate([self.initial, self.initial, self.initial, self.third])
                ]
                partial = path.with_suffix(".partial")
                _copy(db, " UNION ALL ".join(copies) + " ORDER BY l_orderkey, l_linenumber", partial)
                partial.rename(path)
        return path

    @property
    def merged(self) -> Path:
        """The table after all :data:`DIRTY_FRAMES`, in key order."""
        return self.folder / "merged.parquet"

    @property
    def merged_recent(self) -> Path:
        """The table after all :data:`RECENT_FRAMES`, in key order."""
        return self.folder / "merged-recent.parquet"

    def frame(self, name: str) -> Path:
        return self.folder / name

    def frame_rows(self, name: str) -> int:
        return sum(duckdb.read_parquet(str(file)).shape[0] for file in sorted(self.frame(name).glob("*.parquet")))


def merged_sql(base: Path, frames: Sequence[Path], deletes: Collection[Path] = ()) -> str:
    """A query for the rows of a table that was loaded from ``base`` and took ``frames``, in that order; those
    among ``deletes`` remove the rows that they name."""
    names = ", ".join(LINEITEM.names)
    parts = [f"SELECT {names}, 0 AS commit_number, false AS deleted FROM read_parquet('{base}')"]
    parts += [
        f"SELECT {names}, {number} AS commit_number, {frame in deletes} AS deleted "
        f"FROM read_parquet('{frame}/*.parquet')"
        for number, frame in enumerate(frames, start=1)
    ]
    return f"""
        SELECT {names} FROM ({" UNION ALL ".join(parts)})
        QUALIFY row_number() OVER (PARTITION BY {", ".join(LINEITEM.key)}
            ORDER BY {LINEITEM.ordering} DESC, commit_number DESC) = 1 AND NOT deleted"""


def _write(db: duckdb.DuckDBPyConnection, folder: Path, scale: float, seed: int) -> int:
    """All files but the largest table; returns the rows of the table."""
    keys = ", ".join(LINEITEM.key)
    db.execute(f"CREATE TEMP TABLE base AS {LINEITEM.base}")
    _copy(db, f"SELECT {_typed()} FROM base ORDER BY {keys}", folder / "initial.parquet")
    found = db.execute("SELECT count(*) FROM base").fetchone()
    rows = int(found[0]) if found else 0
    first = f"SELECT * FROM read_parquet('{folder / 'initial.parquet'}') ORDER BY {keys} LIMIT {rows // 3}"
    _copy(db, first, folder / "third.parquet")
    salts = {
        name: (seed * 1_000_003 + use * 104_729) % 2_147_483_647 for use, name in enumerate(("place", "fate", "v"))
    }
    drawn = ", ".join(f"mix(id, {salt}) AS {name}" for name, salt in salts.items())
    db.execute(f"CREATE TEMP TABLE drawn AS SELECT *, {drawn} FROM base")
    last = ", ".join(f"{key} DESC" for key in LINEITEM.key)
    newest = f"SELECT * FROM drawn ORDER BY {last} LIMIT {round(_RECENT * rows)}"
    _write_frames(db, folder, "SELECT * FROM drawn", {name: part * scale for name, part in _PARTS.items()})
    _write_frames(db, folder, newest, {name: part * scale for name, part in _RECENT_PARTS.items()})
    for target, frames in (("merged", DIRTY_FRAMES), ("merged-recent", RECENT_FRAMES)):
        merged = merged_sql(folder / "initial.parquet", [folder / name for name in frames])
        _copy(db, f"SELECT * FROM ({merged}) ORDER BY {keys}", folder / f"{target}.parquet")
    return rows


def _write_frames(db: duckdb.DuckDBPyConnection, folder: Path, source: str, scales: Mapping[str, float]) -> None:
    """Frames of disjoint rows of ``source``, a query, each with the rows of its scale."""
    ranked = f"SELECT *, row_number() OVER (ORDER BY place, id) - 1 AS rank FROM ({source})"
    db.execute(f"CREATE OR REPLACE TEMP TABLE ranked AS {ranked}")
    begin = 0
    for name, scale in scales.items():
        count = round(_ROWS_PER_SCALE * scale)
        _write_frame(db, folder / name, begin, count)
        begin += count
    found = db.execute("SELECT count(*) FROM ranked").fetchone()
    if found is None or begin > found[0]:
        raise AssertionError(f"the frames need {begin} rows, of {found}")


def _write_frame(db: duckdb.DuckDBPyConnection, folder: Path, begin: int, count: int) -> None:
    """The rows of rank ``begin`` (included) on, in random order, changed."""
    key, ordering = LINEITEM.key[0], LINEITEM.ordering
    changed = {
        **dict(LINEITEM.changes),
        key: f"CASE WHEN fate % 20 < 2 THEN {LINEITEM.fresh} ELSE {key} END",
        ordering: f"CASE WHEN fate % 20 = 2 THEN {ordering} - {_DAY_US} ELSE {CHANGES_BEGIN_US} + v END",
    }
    columns = ", ".join(f"{changed.get(name, name)} AS {name}" for name in LINEITEM.names)
    folder.mkdir()
    for number in range(_FILES):
        rows = f"rank BETWEEN {begin} AND {begin + count - 1} AND rank % {_FILES} = {number}"
        query = f"SELECT {columns}, rank FROM ranked WHERE {rows}"
        _copy(db, f"SELECT {_typed()} FROM ({query}) ORDER BY rank", folder / f"part-{number}.parquet")


def _typed() -> str:
    return ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in LINEITEM.columns)


def _copy(db: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    db.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
