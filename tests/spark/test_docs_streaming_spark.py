"""The guides on streams run as they stand, with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.guides import blocks, run


@pytest.mark.parametrize("name", ["cdc-from-postgres.md", "following.md"])
def test_a_guide_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run(name, blocks(name), folder=str(tmp_path), spark=spark)
