"""The guides on streams run as they stand, with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.unit.test_docs_streaming import blocks


@pytest.mark.parametrize("name", ["cdc-from-postgres.md", "following.md"])
def test_a_guide_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    names: dict[str, object] = {"folder": str(tmp_path), "spark": spark}
    for code in blocks(name):
        exec(compile(code, name, "exec"), names)  # noqa: S102 - the guide's own code
