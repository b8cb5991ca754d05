"""The pages of the site that need Spark run as they stand."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.guides import blocks, run


@pytest.mark.parametrize("name", ["../getting-started/with-spark.md", "foreach-batch.md", "platforms.md"])
def test_a_guide_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run(name, blocks(name), folder=str(tmp_path), spark=spark)


def test_the_readme_runs(spark: SparkSession, tmp_path: Path) -> None:
    name = "../../README.md"
    (code,) = blocks(name)
    code = code.replace("/tmp/orders", str(tmp_path / "orders"))  # noqa: S108 - the text of the page
    names = run(name, [code])
    table = names["table"]
    assert isinstance(table, LakeTable)
    rows = {row["id"]: (row["state"], row["amount"]) for row in table.to_arrow().to_pylist()}
    assert rows == {1: ("paid", Decimal("10.00")), 2: ("new", Decimal("5.00"))}
