"""Engines on Spark: one session each, with two cores and Spark's own settings, and Spark's plain Parquet as floor."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.engine import Place, Upkeep
from benchmarks.compare.queries import Answer, Query, normalised
from benchmarks.compare.workload import Frame
from benchmarks.tpch import Entity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COMMON", "OnSpark", "SparkParquet", "merge_source", "partial_columns", "pruned", "session"]

COMMON = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}
"""What all sessions have."""


def session(scratch: Path, settings: Mapping[str, str]) -> SparkSession:
    """A session with :data:`COMMON` and ``settings``; packages that they name are fetched on first use."""
    import pyspark
    from pyspark.sql import SparkSession

    # Workers unpickle functions by their module: they must find the tree as this process does.
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("lakemerge-compare").config(
        "spark.sql.warehouse.dir", f"{scratch}/warehouse"
    )
    for name, value in {**COMMON, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class OnSpark(ABC):
    """Half of an engine: what is the same for all that Spark reads."""

    cannot: Mapping[str, str] = {}
    upkeeps: Sequence[Upkeep] = ()

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @abstractmethod
    def rows(self, place: Place, columns: Sequence[str], condition: str | None) -> DataFrame:
        """The merged rows that meet a SQL condition; ``columns`` empty for all."""

    @abstractmethod
    def upsert(self, place: Place, frame: Frame) -> None:
        """See :class:`benchmarks.compare.engine.Engine`."""

    def merge(self, place: Place, frame: Frame) -> None:
        """Most engines read on each upsert, and do it by a statement that is a transaction."""
        self.upsert(place, frame)

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {"spark": self.spark.version}

    def parquet(self, path: Path, entity: Entity) -> DataFrame:
        return self.spark.read.schema(entity.ddl).parquet(str(path))

    def frame(self, frame: Frame, entity: Entity, columns: Sequence[str] = ()) -> DataFrame:
        rows = self.spark.read.schema(_ddl(entity, columns)).parquet(str(frame.path))
        rows.createOrReplaceTempView("source")
        return rows

    def answer(self, place: Place, query: Query) -> Answer:
        frame = self.rows(place, query.columns, query.condition)
        if not query.select:
            # Every row with all columns, into nothing: a Delta table with deletion vectors refuses the noop sink.
            return normalised([[frame._jdf.queryExecution().toRdd().count()]])
        frame.createOrReplaceTempView("answered")
        return normalised(self.spark.sql(query.over("answered")).collect())

    def tidy(self, place: Place) -> None:
        raise AssertionError("an engine with an upkeep every n commits says how it tidies")

    def note_reads(self, place: Place, reads: int) -> None:
        raise AssertionError("an engine with an upkeep that counts reads says how")

    def dump(self, place: Place, target: Path) -> None:
        self.rows(place, place.entity.names, None).write.parquet(str(target))

    def close(self) -> None:
        self.spark.stop()


class SparkParquet(OnSpark):
    """The floor: plain Parquet files as Spark writes them by default. Upserts append, compaction reads the files
    and writes them beside, in a folder that ends in ``-compacted``."""

    configuration: Mapping[str, str] = {"writes": "DataFrame.write.parquet", "reads": "DataFrameReader.parquet"}

    def load(self, place: Place, rows: Path) -> None:
        self.parquet(rows, place.entity).write.parquet(str(place.path))

    def upsert(self, place: Place, frame: Frame) -> None:
        self.parquet(frame.path, place.entity).write.mode("append").parquet(str(place.path))

    def delete(self, place: Place, frame: Frame) -> None:
        self.upsert(place, frame)

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        rows = self.frame(frame, place.entity, partial_columns(place.entity, columns))
        rows.write.mode("append").parquet(str(place.path))

    def compact(self, place: Place) -> None:
        target = place.path.with_name(f"{place.path.name}-compacted")
        self.parquet(place.path, place.entity).write.mode("overwrite").parquet(str(target))

    def rows(self, place: Place, columns: Sequence[str], condition: str | None) -> DataFrame:
        return pruned(self.parquet(place.path, place.entity), columns, condition)


def pruned(rows: DataFrame, columns: Sequence[str], condition: str | None) -> DataFrame:
    rows = rows if condition is None else rows.where(condition)
    return rows.select(*columns) if columns else rows


def merge_source(entity: Entity, frame: Frame) -> str:
    """What a MERGE takes, of the view ``source``: each key once. Where keys come twice their newest record is
    picked by an aggregate, as the documentation of MERGE has it; else the view itself."""
    if frame.unique:
        return "source"
    keys, names = ", ".join(entity.key), ", ".join(entity.names)
    newest = f"SELECT max_by(struct({names}), {entity.ordering}) AS newest FROM source GROUP BY {keys}"
    return f"(SELECT newest.* FROM ({newest}))"


def partial_columns(entity: Entity, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a frame that sets only some: key, time and these."""
    return (*entity.key, entity.ordering, *columns)


def _ddl(entity: Entity, columns: Sequence[str]) -> str:
    kinds = dict(entity.columns)
    return ", ".join(f"{name} {kinds[name]}" for name in columns) if columns else entity.ddl
