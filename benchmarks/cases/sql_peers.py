"""Statements in SQL on tables of LakeMerge and of another format, in one Spark.

It runs in a process of its own, for Iceberg in the environment that ``make`` makes for it: Iceberg needs another Spark.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lakemerge
from benchmarks.compare import iceberg
from benchmarks.harness import session
from benchmarks.measure import Contender, interleave
from benchmarks.tables import copied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PEERS", "beside"]

PEERS = ("delta", "iceberg")
_Sums = tuple[int, ...]


def beside(peer: str, original: str, source: str, folder: str, texts: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Seconds of each statement on a table of LakeMerge and on one of the peer, and count and sums afterwards.

    :param original: the table of LakeMerge whose rows both have.
    :param source: a folder of Parquet files, the view ``source`` of the statements.
    :param texts: by name, with ``{t}`` for the table.
    """
    root = Path(folder)
    settings = {**iceberg.SETTINGS, **iceberg.warehouse(root / "rows")} if peer == "iceberg" else {}
    with session(root, settings, delta=peer == "delta") as spark:
        catalog = "ours_" + re.sub(r"\W", "_", root.parent.name)  # a session has one warehouse for each
        lakemerge.catalog(spark, catalog, warehouse=root / "lake")
        spark.read.parquet(source).createOrReplaceTempView("source")
        rows = spark.table(f"lakemerge.`{original}`").repartition(8).sortWithinPartitions("k")
        rows.createOrReplaceTempView("loaded")
        theirs = _Iceberg(spark, root) if peer == "iceberg" else _Delta(spark, root)
        engines: Sequence[_Engine] = (_Ours(spark, root, Path(original), catalog), theirs)
        found: dict[str, Any] = {"spark": spark.version}
        for name, text in texts.items():
            contenders = [Contender(engine.name, partial(engine.run, text), engine.renew) for engine in engines]
            times = interleave(contenders, rounds=rounds)
            found[name] = times, {engine.name: engine.sums() for engine in engines}
        return found


class _Engine(ABC):
    name: str

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.table = ""

    @abstractmethod
    def renew(self) -> None:
        """Make the table what it was before all statements."""

    def run(self, text: str) -> None:
        self.spark.sql(text.format(t=self.table)).collect()

    def sums(self) -> _Sums:
        found = self.spark.table(self.table).selectExpr("count(*)", "sum(k)", "sum(i0)", "sum(ts)").collect()[0]
        return tuple(int(value) for value in found)


class _Copied(_Engine):
    """Each statement gets a copy of the table, under a name that no cache knows."""

    def __init__(self, spark: SparkSession, original: Path, copies: Path, name: str) -> None:
        super().__init__(spark)
        self._original, self._copies, self._name = original, copies, name
        self._numbers = itertools.count()

    def renew(self) -> None:
        path = copied(self._original, self._copies / f"copy_{next(self._numbers)}")
        self.table = self._name.format(path=path, name=path.name)


class _Ours(_Copied):
    name = "lakemerge"

    def __init__(self, spark: SparkSession, root: Path, original: Path, catalog: str) -> None:
        super().__init__(spark, original, root / "lake" / "db", f"{catalog}.db.{{name}}")


class _Delta(_Copied):
    name = "delta"

    def __init__(self, spark: SparkSession, root: Path) -> None:
        loaded = spark.table("loaded").write.format("delta").option("delta.enableDeletionVectors", "true")
        loaded.save(str(root / "loaded"))
        super().__init__(spark, root / "loaded", root / "copies", "delta.`{path}`")


class _Iceberg(_Engine):
    """Its metadata have absolute paths, so the table is rolled back instead of copied."""

    name = "iceberg"

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark)
        path = root / "rows"
        self.table = iceberg.name_of(path)
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in iceberg.PROPERTIES.items())
        spark.sql(f"CREATE TABLE {self.table} USING iceberg TBLPROPERTIES ({properties}) AS SELECT * FROM loaded")
        [self._snapshot] = spark.sql(f"SELECT snapshot_id FROM {self.table}.snapshots").collect()
        self._catalog, _, self._below = self.table.partition(".")

    def renew(self) -> None:
        where = f"table => '{self._below}', snapshot_id => {self._snapshot[0]}"
        self.spark.sql(f"CALL {self._catalog}.system.rollback_to_snapshot({where})")
