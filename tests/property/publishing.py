"""Histories of a table that publishes, the rows that it has in plain Python, and how other engines read it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa

from benchmarks.duckdb_with import duckdb_with
from lakemerge import LakeTable

__all__ = ["DDL", "READERS", "Published", "Step", "frame"]

DDL = "p STRING, id BIGINT, at BIGINT, v STRING"
SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64()), ("at", pa.int64()), ("v", pa.string())])
Row = tuple[Any, ...]
Rows = dict[tuple[str, int], Row]
"""By key."""
Step = tuple[str, int]
"""What is done, and a number that varies it."""

KEYS = 40
PLACES = ("a", "b")


def frame(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns: list[Sequence[Any]] = [*zip(*rows, strict=True)] or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb_with("delta")


def _with_deltalake(path: Path) -> pa.Table:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    return pa.table(builder.execute("SELECT p, id, at, v FROM t").read_all())


def _with_polars(path: Path) -> pa.Table:
    return pl.scan_delta(str(path)).select(SCHEMA.names).collect().to_arrow()


def _with_duckdb(path: Path) -> pa.Table:
    return pa.table(_duckdb().execute(f"SELECT * FROM delta_scan('{path}')").to_arrow_table())


def _count_with_deltalake(path: Path) -> int:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    return int(pa.table(builder.execute("SELECT count(*) AS n FROM t WHERE id >= 20").read_all())["n"][0].as_py())


def _count_with_polars(path: Path) -> int:
    return int(pl.scan_delta(str(path)).filter(pl.col("id") >= 20).select(pl.len()).collect().item())


def _count_with_duckdb(path: Path) -> int:
    return int(_duckdb().execute(f"SELECT count(*) FROM delta_scan('{path}') WHERE id >= 20").fetchall()[0][0])


COUNTERS = (_count_with_deltalake, _count_with_polars, _count_with_duckdb)
"""They may answer from statistics, which tell of more rows than there are."""
READERS: dict[str, Callable[[Path], pa.Table]] = {
    "deltalake": _with_deltalake,
    "polars": _with_polars,
    "duckdb": _with_duckdb,
}


def sorted_rows(table: pa.Table) -> list[Row]:
    return sorted(tuple(row.values()) for row in table.select(SCHEMA.names).to_pylist())


@dataclass
class Moment:
    """A version whose rows are those of the dictionary, as all later ones until the next moment."""

    version: int
    rows: Rows
    tombstones: dict[tuple[str, int], int]
    """Key -> the ordering of its delete."""


class Published:
    """A table that publishes, beside a dictionary of its rows at each version."""

    def __init__(
        self,
        path: Path,
        *,
        partition_by: list[str],
        properties: dict[str, str],
        readers: dict[str, Callable[[Path], pa.Table]],
    ) -> None:
        self.path = path
        self.readers = readers
        self.definition: dict[str, Any] = {
            "key": ["p", "id"],
            "ordering": ["at"],
            "partition_by": partition_by,
            "buckets": 2,
            "properties": {"lakemerge.maintenance": "off", "delta.checkpointInterval": "7", **properties},
        }
        self.table = LakeTable.create(path, DDL, **self.definition)
        self.moments = [Moment(0, {}, {})]
        self.clock = 10
        self.saved: str | None = None

    def do(self, step: Step) -> None:
        kind, number = step
        getattr(self, f"_{kind}")(number)

    def check(self) -> None:
        """Compare what everybody reads with the dictionary."""
        now = self.moments[-1].rows
        fresh = LakeTable.open(self.path)
        assert sorted_rows(fresh.to_arrow()) == sorted(now.values())
        assert sorted_rows(self.table.to_arrow()) == sorted(now.values())
        detail = fresh.detail()
        shown = sorted_rows(fresh.to_arrow(mode="base"))
        if detail.publish != "off" and not detail.unpublished_slices:
            assert detail.published_version is not None
            assert shown == sorted(self._at(detail.published_version).rows.values())
        for name, read in self.readers.items():
            assert sorted_rows(read(self.path)) == shown, name
        for count in COUNTERS if len(self.readers) >= len(COUNTERS) else ():
            assert count(self.path) == sum(row[1] >= 20 for row in shown), count

    def check_all(self) -> None:
        """The checks of the library, and time travel to all versions that are there."""
        found = LakeTable.check(self.path)
        # A checkpoint of deltalake is one that readers pass over, and that is all.
        assert [f for f in found.findings if "another engine wrote it" not in f.problem] == []
        for moment in self.moments:
            if moment.version >= self._oldest():
                there = LakeTable.open(self.path, version=moment.version)
                assert sorted_rows(there.to_arrow()) == sorted(moment.rows.values())

    def _oldest(self) -> int:
        return LakeTable.open(self.path).opened.view.state.oldest_version

    def _at(self, version: int) -> Moment:
        return next(moment for moment in reversed(self.moments) if moment.version <= version)

    def _changed(self, rows: Rows, tombstones: dict[tuple[str, int], int]) -> None:
        self.moments.append(Moment(self.table.version, rows, tombstones))

    def _keys(self, number: int) -> list[tuple[str, int]]:
        """Some keys, which a number chooses."""
        count = 1 + number % 7
        return list(dict.fromkeys((PLACES[(number + i) % 2], (number * 7 + i * 5) % KEYS) for i in range(count)))

    def _upsert(self, number: int) -> None:
        self.clock += 1
        rows, dead = dict(self.moments[-1].rows), dict(self.moments[-1].tombstones)
        records = []
        for place, key in self._keys(number):
            at = self.clock - (0, 0, 0, 3, 9)[number % 5]  # some are late
            records.append((place, key, at, f"v{number}-{self.clock}"))
            if at < rows.get((place, key), (0, 0, 0))[2] or at < dead.get((place, key), 0):
                continue
            rows[place, key] = records[-1]
            dead.pop((place, key), None)
        self.table.upsert(frame(records))
        self._changed(rows, dead)

    def _load(self, number: int) -> None:
        """Many rows, so that a few changes are a small part."""
        self.clock += 1
        rows = {(p, k): (p, k, self.clock, f"l{number}") for p in PLACES for k in range(KEYS)}
        self.table.upsert(frame(list(rows.values())))
        self._changed(rows, {})

    def _delete(self, number: int) -> None:
        self.clock += 1
        rows, dead = dict(self.moments[-1].rows), dict(self.moments[-1].tombstones)
        keys = self._keys(number)
        for key in keys:
            rows.pop(key, None)
            dead[key] = self.clock
        self.table.delete(frame([(*key, self.clock) for key in keys], pa.schema(list(SCHEMA)[:3])))
        self._changed(rows, dead)

    def _transaction(self, number: int) -> None:
        before = self.moments[-1]
        chosen = number % KEYS
        rows = {k: ((*r[:3], f"t{number}") if r[1] == chosen else r) for k, r in before.rows.items()}
        self.table.update_where(f"id = {chosen}", {"v": f"'t{number}'"})
        self._changed(rows, dict(before.tombstones))

    def _overwrite(self, number: int) -> None:
        self.clock += 1
        rows: Rows = {k: (*k, self.clock, f"o{number}") for k in self._keys(number)}
        self.table.overwrite(frame(list(rows.values())))
        self._changed(rows, {})

    def _replace(self, number: int) -> None:
        self.table = LakeTable.create(self.path, DDL, replace=True, **self.definition)
        self._changed({}, {})

    def _minor(self, number: int) -> None:
        self.table.compact(minor=True)

    def _full(self, number: int) -> None:
        self.table.compact()

    def _logs(self, number: int) -> None:
        self.table.compact_logs()

    def _rescale(self, number: int) -> None:
        if self.table.opened.view.base_files:
            self.table.rescale(buckets=2 ** (number % 3))

    def _savepoint(self, number: int) -> None:
        name = f"s{number}-{self.table.version}"
        self.table.savepoint(name)
        self.saved = name

    def _restore(self, number: int) -> None:
        oldest = self._oldest()
        kept = [moment for moment in self.moments if oldest <= moment.version < self.table.version]
        if kept:
            target = kept[number % len(kept)]
            self.table.restore(version=target.version)
            self._changed(dict(target.rows), dict(target.tombstones))

    def _vacuum(self, number: int) -> None:
        import datetime as dt

        self.table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)

    def _checkpoint(self, number: int) -> None:
        log = self.table.opened.handle.log
        log.checkpoint(log.snapshot())

    def _deltalake_checkpoint(self, number: int) -> None:
        deltalake.DeltaTable(str(self.path)).create_checkpoint()

    def _switch(self, number: int) -> None:
        """On and off, or another way."""
        mode = (None, "deletionVectors", "rewrite", "deletionVectors")[number % 4]
        self.table.alter(properties={"lakemerge.publish": mode})

    def _reopen(self, number: int) -> None:
        self.table = LakeTable.open(self.path)
