"""A catalog of each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakemerge
from tests.spark.connector.lake import Lake, new_name


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    name = new_name("lake")
    lakemerge.catalog(spark, name, warehouse=tmp_path / "lake")
    found = Lake(spark, name, tmp_path / "lake")
    found("CREATE NAMESPACE {}.db")
    return found
