"""Spark's Python daemon, which forks a worker for each task and for each question to the data source.

It imports this library before it forks. With Spark's own daemon each worker imports it, which takes most of a second.
"""

from __future__ import annotations

from pyspark.daemon import manager

import lakemerge.datasource.source  # noqa: F401

if __name__ == "__main__":
    manager()
