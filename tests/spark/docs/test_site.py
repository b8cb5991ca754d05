"""The pages of the site that need Spark run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.guides import blocks, run


def test_the_second_example_of_the_readme_prints_a_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = [block for block in blocks("../../README.md") if "spark" in block]
    # Spark runs in another folder than the test, and other tests have a catalog of this name in the session.
    code = [block.replace('"warehouse"', repr(str(tmp_path / "lake"))) for block in code]
    code = [block.replace("SparkSession.builder.getOrCreate()", "session") for block in code]
    run("../../README.md", code, session=spark.newSession())
    assert "|  1| paid| 30|" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../getting-started/with-spark.md", "foreach-batch.md", "platforms.md"])
def test_a_guide_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run(name, blocks(name), folder=str(tmp_path), spark=spark)
