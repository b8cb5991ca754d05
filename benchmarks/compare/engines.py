"""The engines of the comparison by name, and the environment that each runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare.engine import Engine

__all__ = ["CORE", "ENGINES", "FULL", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine and its floor, made in a process of their own for tables in a folder."""

    title: str
    make: Callable[[Path], tuple[Engine, Engine]]
    environment: str = ""
    """The folder of its virtual environment, below that of this project; empty for the project's own."""
    spark: bool = True

    def python(self, environments: Path) -> Path:
        return environments / self.environment / "bin" / "python"


def _lakemerge(scratch: Path, properties: Mapping[str, str] | None = None) -> tuple[Engine, Engine]:
    from benchmarks.compare.lakemerge_spark import LakeMergeOnSpark
    from benchmarks.compare.on_spark import SparkParquet, session

    spark = session(scratch, {})
    return LakeMergeOnSpark(spark, properties), SparkParquet(spark)


def _lakemerge_inline(scratch: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.lakemerge_spark import INLINE

    return _lakemerge(scratch, INLINE)


def _delta(scratch: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare import delta
    from benchmarks.compare.on_spark import SparkParquet, session

    spark = session(scratch, delta.SETTINGS)
    return delta.Delta(spark), SparkParquet(spark)


def _iceberg(scratch: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare import iceberg
    from benchmarks.compare.on_spark import SparkParquet, session

    spark = session(scratch, {**iceberg.SETTINGS, **iceberg.warehouse(scratch)})
    return iceberg.Iceberg(spark), SparkParquet(spark)


def _hudi_bucket(scratch: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.hudi import BUCKET_INDEX

    return _hudi(scratch, BUCKET_INDEX)


def _hudi(scratch: Path, index: Mapping[str, str] | None = None) -> tuple[Engine, Engine]:
    from benchmarks.compare import hudi
    from benchmarks.compare.on_spark import SparkParquet, session

    spark = session(scratch, hudi.SETTINGS)
    return hudi.Hudi(spark, index or {}), SparkParquet(spark)


def _lakemerge_arrow(_: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.lakemerge_arrow import LakeMergeOnArrow
    from benchmarks.compare.on_arrow import ArrowParquet

    return LakeMergeOnArrow(), ArrowParquet()


def _deltalake(_: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.deltalake import Deltalake
    from benchmarks.compare.on_arrow import ArrowParquet

    return Deltalake(), ArrowParquet()


def _ducklake(_: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.ducklake import DuckLake
    from benchmarks.compare.on_arrow import ArrowParquet

    return DuckLake(), ArrowParquet()


def _lance(_: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.lance import Lance
    from benchmarks.compare.on_arrow import ArrowParquet

    return Lance(), ArrowParquet()


def _paimon(_: Path) -> tuple[Engine, Engine]:
    from benchmarks.compare.on_arrow import ArrowParquet
    from benchmarks.compare.paimon import Paimon

    return Paimon(), ArrowParquet()


CORE = ("lakemerge", "delta", "iceberg")
ENGINES: Mapping[str, Entry] = {
    "lakemerge": Entry("LakeMerge", _lakemerge),
    "lakemerge-inline": Entry("LakeMerge, inline maintenance", _lakemerge_inline),
    "delta": Entry("Delta", _delta),
    "iceberg": Entry("Iceberg", _iceberg, "iceberg"),
    "hudi-bucket": Entry("Hudi, bucket index", _hudi_bucket, "hudi"),
    "hudi": Entry("Hudi, default index", _hudi, "hudi"),
    "lakemerge-arrow": Entry("LakeMerge without Spark", _lakemerge_arrow, spark=False),
    "deltalake": Entry("deltalake", _deltalake, spark=False),
    "ducklake": Entry("DuckLake", _ducklake, spark=False),
    "lance": Entry("Lance", _lance, spark=False),
    "pypaimon": Entry("pypaimon", _paimon, "paimon", spark=False),
    "lakemerge-4.1": Entry("LakeMerge, Spark 4.1", _lakemerge, "iceberg"),
    "lakemerge-inline-4.1": Entry("LakeMerge, inline maintenance, Spark 4.1", _lakemerge_inline, "iceberg"),
}
FULL = tuple(name for name in ENGINES if not name.endswith("-4.1"))
"""All but the engines that run a second time, in the Spark of a peer."""
