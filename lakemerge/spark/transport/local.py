"""Frames of rows that the driver holds."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakemerge.spark.sessions import jvm_session, session_settings

__all__ = ["local_frame"]

_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows as a frame. In a session without a limit of rows in a batch (0 or less), PySpark makes none of Arrow's
    tables. Nor does it make one of a list's column that has no chunk, as a filter leaves it."""
    if not table.num_rows:
        table = pa.table([pa.array([], field.type) for field in table.schema], schema=table.schema)
    with _limited(spark):
        return spark.createDataFrame(table)


def _limited(spark: SparkSession) -> AbstractContextManager[None]:
    if jvm_session(spark) is None or int(str(spark.conf.get(_RECORDS))) > 0:
        return nullcontext()
    return session_settings(spark, {_RECORDS: "4096"})
