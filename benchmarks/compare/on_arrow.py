"""Engines without Spark: rows as Arrow tables, DuckDB for what a query computes from them, and pyarrow's plain
Parquet as floor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.queries import Answer, Bound, Query, normalised
from benchmarks.compare.workload import Frame
from benchmarks.tpch import Entity

__all__ = ["ArrowParquet", "OnArrow", "expression", "newest"]


class OnArrow(ABC):
    """Half of an engine: what is the same for all that give Arrow tables."""

    cannot: Mapping[str, str] = {}
    upkeeps: Sequence[Upkeep] = ()

    @abstractmethod
    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        """The merged rows that meet all bounds; ``columns`` empty for all."""

    @abstractmethod
    def upsert(self, place: Place, frame: Frame) -> None:
        """See :class:`benchmarks.compare.engine.Engine`."""

    def merge(self, place: Place, frame: Frame) -> None:
        """Most engines read on each upsert, and do it by a statement that is a transaction."""
        self.upsert(place, frame)

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {"pyarrow": pa.__version__, "duckdb": duckdb.__version__}

    def answer(self, place: Place, query: Query) -> Answer:
        rows = self.rows(place, query.columns, query.bounds)
        if not query.select:
            return normalised([[rows.num_rows]])
        with duckdb.connect() as db:
            db.register("answered", rows)
            return normalised(db.execute(query.over("answered")).fetchall())

    def tidy(self, place: Place) -> None:
        raise AssertionError("an engine with an upkeep every n commits says how it tidies")

    def note_reads(self, place: Place, reads: int) -> None:
        raise AssertionError("an engine with an upkeep that counts reads says how")

    def dump(self, place: Place, target: Path) -> None:
        target.mkdir()
        pq.write_table(self.rows(place, place.entity.names, ()), target / "rows.parquet")

    def close(self) -> None:
        return


class ArrowParquet(OnArrow):
    """The floor: plain Parquet files, one for each write. Upserts append; compaction reads the files and writes
    one, in a folder that ends in ``-compacted``."""

    configuration: Mapping[str, str] = {"writes": "pyarrow.parquet.write_table", "reads": "pyarrow.dataset"}

    def load(self, place: Place, rows: Path) -> None:
        place.path.mkdir()
        self._append(place.path, pq.read_table(rows))

    def upsert(self, place: Place, frame: Frame) -> None:
        place.path.mkdir(exist_ok=True)
        self._append(place.path, pq.read_table(frame.path))

    def delete(self, place: Place, frame: Frame) -> None:
        self.upsert(place, frame)

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        self.upsert(place, frame)

    def compact(self, place: Place) -> None:
        target = place.path.with_name(f"{place.path.name}-compacted")
        target.mkdir(exist_ok=True)
        pq.write_table(pq.read_table(place.path), target / "0.parquet")

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        return ds.dataset(place.path).to_table(columns=list(columns) or None, filter=expression(bounds))

    @staticmethod
    def _append(folder: Path, rows: pa.Table) -> None:
        pq.write_table(rows, folder / f"{len(list(folder.iterdir()))}.parquet")


def expression(bounds: Sequence[Bound]) -> pc.Expression | None:
    """The bounds as a filter of Arrow."""
    tests = [(name, "==" if sign == "=" else sign, value) for name, sign, value in bounds]
    return pq.filters_to_expression(tests) if tests else None


def newest(entity: Entity, frame: Frame) -> pa.Table:
    """The frame with each key once, as a MERGE needs it. If a key comes twice, the newest record is taken."""
    rows = pq.read_table(frame.path)
    if frame.unique:
        return rows
    keys = [(name, "ascending") for name in entity.key]
    rows = rows.sort_by([*keys, (entity.ordering, "descending")])
    numbered = rows.append_column("place", pa.array(range(rows.num_rows)))
    firsts = numbered.group_by(list(entity.key), use_threads=False).aggregate([("place", "min")])
    return rows.take(firsts.column("place_min"))
