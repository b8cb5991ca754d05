"""Spark's Python workers work in the way that :mod:`lakemerge.spark.archives` knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def importers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many importers of archives a worker has when a task begins, and after it looked for a module."""
    import importlib.util
    import sys
    import zipimport

    import lakemerge.spark  # noqa: F401 - which has the worker forget them from now on

    def count() -> int:
        found = sys.path_importer_cache.values()
        return sum(isinstance(importer, zipimport.zipimporter) for importer in found)

    for _ in batches:
        began = count()
        importlib.util.find_spec("no_module_has_this_name")
        yield pa.record_batch({"began": [began], "looked": [count()]})


def test_workers_forget_sparks_archives_after_each_task(spark: SparkSession) -> None:
    for _ in range(3):
        [row] = spark.range(1, numPartitions=1).mapInArrow(importers, "began BIGINT, looked BIGINT").collect()
        assert row.looked >= 2, "Spark's own package and its jar"
    assert row.began == 0, "the task before was of the same worker"
