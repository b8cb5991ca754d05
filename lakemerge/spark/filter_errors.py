"""Turns errors of filters that Spark evaluates into errors of this library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from lakemerge.errors import FilterError
from lakemerge.results.unwrap import unwrap_error

__all__ = ["judging"]

_DATA_ERROR = "22"
"""The class of SQL states for values that cannot be computed with."""


@contextmanager
def judging() -> Iterator[None]:
    """Raise :class:`FilterError` if a job in the block fails because the filter cannot be evaluated on a row, by Spark
    or in one of our tasks."""
    try:
        yield
    except PySparkException as error:
        ours = unwrap_error(error)
        if ours is not None:
            raise ours from error
        if (error.getSqlState() or "").startswith(_DATA_ERROR):
            first, *_ = str(error).splitlines()
            raise FilterError(f"the filter cannot be judged: {first}") from error
        raise
