"""Random histories with transactions on Spark, under every merger: the rows are those of the plain-Python model.

``LAKEMERGE_SPARK_HISTORIES`` sets how many there are (100 in ``make test-deep``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.property.effort import examples
from tests.property.histories import check_history
from tests.property.test_transaction_histories import SETTINGS, drawn
from tests.spark.mergers.test_conformance import SparkEngine

SEED = 1_000
"""Other histories than those without Spark."""


@pytest.fixture(scope="module", autouse=True)
def one_shuffle_partition(spark: SparkSession) -> Iterator[None]:
    """Histories have a handful of rows."""
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize("number", range(examples(10, variable="LAKEMERGE_SPARK_HISTORIES")))
def test_histories_with_transactions_on_spark(number: int, spark: SparkSession, tmp_path: Path) -> None:
    # Neighbours are alike, so each history takes a setting far from the one before.
    setting = SETTINGS[number * 11 % len(SETTINGS)]
    check_history(drawn(setting, SEED + number), SparkEngine(spark, tmp_path), again=number % 5 == 0)
