"""TPC-H on tables of LakeMerge and of another format with the same commits, and on plain Parquet, in one Spark.

It runs in a process of its own, for Iceberg in the environment that ``make`` makes for it: Iceberg needs another Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lakemerge
from benchmarks.cases.tpch_texts import KIND
from benchmarks.compare import iceberg
from benchmarks.harness import session
from benchmarks.measure import Contender, interleave
from benchmarks.tables import OFF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["played"]


def played(
    peer: str,
    folder: str,
    tables: Mapping[str, str],
    keys: Mapping[str, Sequence[str]],
    ordering: str,
    changes: Mapping[str, Sequence[str]],
    outcomes: Mapping[str, str],
    refreshes: Mapping[str, Sequence[str]],
    texts: Mapping[int, str],
    rounds: int,
) -> dict[str, Any]:
    """Seconds and rows of each query on each engine, and seconds of each refresh.

    :param tables: name -> Parquet file, at the load.
    :param keys: the key columns of each table that changes.
    :param changes: the Parquet files of each such table, one for each commit.
    :param outcomes: name -> Parquet file with the rows after all commits.
    :param refreshes: a share of the rows -> Parquet files with changes of that many line items.
    """
    root = Path(folder)
    settings = {**iceberg.SETTINGS, **iceberg.warehouse(root / "rows")} if peer == "iceberg" else {}
    with session(root, settings, delta=peer == "delta") as spark:
        theirs = _Iceberg(spark, root) if peer == "iceberg" else _Delta(spark, root)
        plain, engines = _Parquet(spark, root, {name: outcomes[name] for name in keys}), (_Ours(spark, root), theirs)
        for engine in engines:
            for name, columns in keys.items():
                engine.load(name, tables[name], columns, ordering)
                for change in changes[name]:
                    engine.merge(name, change, columns, ordering)
        for name in outcomes.keys() - keys.keys():
            spark.read.parquet(outcomes[name]).createOrReplaceTempView(name)
        found: dict[str, Any] = {"spark": spark.version, "queries": {}, "refreshes": {}}
        contenders = (plain, *engines)
        for number, text in texts.items():
            rows: dict[str, list[tuple[Any, ...]]] = {}

            def run(engine: _Engine, text: str = text, rows: dict[str, list[tuple[Any, ...]]] = rows) -> None:
                rows[engine.name] = [tuple(row) for row in spark.sql(text).collect()]

            times = interleave(
                [Contender(each.name, partial(run, each), partial(each.show, keys)) for each in contenders],
                rounds=rounds,
            )
            found["queries"][number] = times, rows
        for share, files in refreshes.items():
            seconds = {}
            for engine in engines:
                given = iter(files)
                act = partial(_refresh, engine, given, keys["lineitem"], ordering)
                seconds.update(interleave([Contender(engine.name, act)], rounds=len(files) - 1))
            found["refreshes"][share] = seconds
        count = "SELECT count(*), sum(l_quantity), sum(l_extendedprice) FROM lineitem"
        for engine in engines:
            engine.show(keys)
            found[engine.name] = tuple(spark.sql(count).collect()[0])
        return found


def _refresh(engine: _Ours | _Merging, files: Any, key: Sequence[str], ordering: str) -> None:
    engine.merge("lineitem", next(files), key, ordering)


class _Engine(ABC):
    """The tables of an engine, and views of them for the queries."""

    name: str

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def show(self, changed: Iterable[str]) -> None:
        """Let the names of the tables that change be this engine's tables."""
        for name in changed:
            self.frame(name).createOrReplaceTempView(name)

    @abstractmethod
    def frame(self, table: str) -> DataFrame:
        """The rows of a table that changes."""

    def _files(self, file: str) -> DataFrame:
        """Rows for eight files, as large as those of LakeMerge."""
        rows = self.spark.read.parquet(file)
        return rows.repartition(8).sortWithinPartitions(rows.columns[0])


class _Parquet(_Engine):
    name = "parquet"

    def __init__(self, spark: SparkSession, root: Path, outcomes: Mapping[str, str]) -> None:
        """Rows are written again by Spark, as those of engines are."""
        super().__init__(spark)
        self._paths = {name: str(root / "plain" / name) for name in outcomes}
        for name, file in outcomes.items():
            self._files(file).write.parquet(self._paths[name])

    def frame(self, table: str) -> DataFrame:
        return self.spark.read.parquet(self._paths[table])


class _Ours(_Engine):
    name = "lakemerge"

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark)
        self._root = root / "ours"
        self._tables: dict[str, lakemerge.LakeTable] = {}

    def load(self, table: str, file: str, key: Sequence[str], ordering: str) -> None:
        rows = self.spark.read.parquet(file)
        ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
        made = lakemerge.LakeTable.create(
            self._root / table, ddl, key=list(key), ordering=[ordering], properties=OFF, spark=self.spark
        )
        made.upsert(rows)
        self._tables[table] = made

    def merge(self, table: str, file: str, key: Sequence[str], ordering: str) -> None:
        self._tables[table].upsert(self.spark.read.parquet(file), kind_column=KIND)

    def frame(self, table: str) -> DataFrame:
        return self._tables[table].to_df()


class _Merging(_Engine):
    """An engine that changes rows by SQL's MERGE."""

    made = ""
    """What follows ``CREATE TABLE name``."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark)
        self._root = root
        self._tables: dict[str, str] = {}

    @abstractmethod
    def named(self, path: Path) -> str:
        """The table in a folder, as SQL names it."""

    def load(self, table: str, file: str, key: Sequence[str], ordering: str) -> None:
        self._tables[table] = self.named(self._root / "rows" / table)
        self._files(file).createOrReplaceTempView("loaded")
        self.spark.sql(f"CREATE TABLE {self._tables[table]} {self.made} AS SELECT * FROM loaded")

    def merge(self, table: str, file: str, key: Sequence[str], ordering: str) -> None:
        records = self.spark.read.parquet(file)
        records.createOrReplaceTempView("records")
        names = [name for name in records.columns if name != KIND]
        same = " AND ".join(f"t.{name} = s.{name}" for name in key)
        sets = ", ".join(f"t.{name} = s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        self.spark.sql(
            f"MERGE INTO {self._tables[table]} t USING records s ON {same} "
            f"WHEN MATCHED AND s.{KIND} = '-D' AND s.{ordering} >= t.{ordering} THEN DELETE "
            f"WHEN MATCHED AND s.{ordering} >= t.{ordering} THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND s.{KIND} <> '-D' THEN INSERT ({', '.join(names)}) VALUES ({values})"
        ).collect()

    def frame(self, table: str) -> DataFrame:
        return self.spark.table(self._tables[table])


class _Delta(_Merging):
    name = "delta"
    made = "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"

    def named(self, path: Path) -> str:
        return f"delta.`{path}`"


class _Iceberg(_Merging):
    name = "iceberg"
    made = "USING iceberg TBLPROPERTIES ({})".format(
        ", ".join(f"'{name}' = '{value}'" for name, value in iceberg.PROPERTIES.items())
    )

    def named(self, path: Path) -> str:
        return iceberg.name_of(path)
