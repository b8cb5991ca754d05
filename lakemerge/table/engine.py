"""Which engine does the work of a call: Spark, or this process alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.results.results import UpsertResult
from lakemerge.write.delete import delete_matching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["deleting", "is_spark_frame"]


def deleting(
    handle: Handle, spark: SparkSession | None, condition: str, info: Mapping[str, object]
) -> Callable[[TableView, Sequence[str]], UpsertResult]:
    """What deletes the rows of a version that meet a condition; see :func:`lakemerge.write.delete.delete_where`."""
    if spark is None:
        return partial(delete_matching, handle, condition=condition, info=info)
    from lakemerge.spark.writer import delete_matching_dataframe

    return partial(delete_matching_dataframe, spark, handle, condition=condition, info=info)


def is_spark_frame(frame: object) -> bool:
    """By name, so that pyspark is not imported for other frames."""
    return any(
        base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(frame).__mro__
    )
