"""The pages of the site that need Spark run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.guides import blocks, run


@pytest.mark.parametrize("name", ["../getting-started/with-spark.md", "foreach-batch.md", "platforms.md"])
def test_a_guide_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run(name, blocks(name), folder=str(tmp_path), spark=spark)
