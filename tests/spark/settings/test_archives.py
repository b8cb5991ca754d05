"""Spark starts its Python workers in the way that :mod:`lakemerge.spark.archives` knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def importers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many importers of archives a worker has after it looked for a module, and after it forgot some."""
    import importlib.util
    import sys
    import zipimport

    from lakemerge.spark.archives import forget_archives

    def count() -> int:
        found = sys.path_importer_cache.values()
        return sum(isinstance(importer, zipimport.zipimporter) for importer in found)

    for _ in batches:
        importlib.util.find_spec("no_module_has_this_name")
        before = count()
        forget_archives()
        yield pa.record_batch({"before": [before], "after": [count()]})


def test_workers_forget_sparks_archives(spark: SparkSession) -> None:
    [row] = spark.range(1, numPartitions=1).mapInArrow(importers, "before BIGINT, after BIGINT").collect()
    assert row.before >= 2, "Spark's own package and its jar"
    assert row.after == 0
