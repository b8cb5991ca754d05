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

__all__ = ["deleting"]


def deleting(
    handle: Handle, spark: SparkSession | None, condition: str, info: Mapping[str, object]
) -> Callable[[TableView, Sequence[str]], UpsertResult]:
    """The function that deletes the rows that meet a condition; see :func:`lakemerge.write.delete.delete_where`."""
    if spark is None:
        return partial(delete_matching, handle, condition=condition, info=info)
    from lakemerge.spark.writer import delete_matching_dataframe

    return partial(delete_matching_dataframe, spark, handle, condition=condition, info=info)
