"""Spark's Python workers work in the way that :mod:`lakemerge.spark.archives` knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def importers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Which worker it is, and how many importers of archives it has as a task begins and after a look for a module."""
    import importlib.util
    import os
    import sys
    import zipimport

    import lakemerge.spark  # noqa: F401 - which has the worker forget them from now on

    def count() -> int:
        found = sys.path_importer_cache.values()
        return sum(isinstance(importer, zipimport.zipimporter) for importer in found)

    for _ in batches:
        began = count()
        importlib.util.find_spec("no_module_has_this_name")
        yield pa.record_batch({"worker": [os.getpid()], "began": [began], "looked": [count()]})


def test_workers_forget_sparks_archives_after_each_task(spark: SparkSession) -> None:
    workers: set[int] = set()
    for _ in range(20):
        frame = spark.range(1, numPartitions=1)
        [row] = frame.mapInArrow(importers, "worker BIGINT, began BIGINT, looked BIGINT").collect()
        assert row.looked >= 2, "Spark's own package and its jar"
        if row.worker in workers:
            assert row.began == 0
            return
        workers.add(row.worker)
    raise AssertionError("no worker did two tasks")
