"""Statements in SQL under every merger: conformance cases, and random histories whose rows are those of a model.

``LAKEMERGE_SQL_HISTORIES`` sets how many there are (70 in ``make test-deep``: one of each setting).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.runner import SUPPORTED, Case, load_cases, run_case
from tests.property.effort import examples, some
from tests.property.histories import check_history
from tests.property.test_transaction_histories import SETTINGS, drawn
from tests.spark.connector.sql_engine import SqlEngine
from tests.spark.mergers.test_conformance import AS_WRITTEN

SEED = 2_000
"""Other histories than those of the Python calls."""
CASES = [
    case
    for name, cases in load_cases(supported=SUPPORTED).items()
    if name.partition(".")[0] in ("transactions", "overwrite")
    for case in cases
    if not case.create_error
]


@pytest.fixture(scope="module", autouse=True)
def one_shuffle_partition(spark: SparkSession) -> Iterator[None]:
    """Tables have a handful of rows."""
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def test_cases_are_collected() -> None:
    assert len(CASES) > 60


# The same cases run by the Python calls, in every mode; here only the way through SQL is new.
@pytest.mark.parametrize("case", some(some(CASES)), ids=str)
def test_case_in_sql(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    run_case(case, AS_WRITTEN, SqlEngine(spark, tmp_path))


@pytest.mark.parametrize("number", range(examples(10, variable="LAKEMERGE_SQL_HISTORIES")))
def test_histories_in_sql(number: int, spark: SparkSession, tmp_path: Path) -> None:
    """In four of five a vacuum of all earlier versions follows each other service, so these are not read again."""
    setting, again = SETTINGS[number * 11 % len(SETTINGS)], number % 5 == 0
    check_history(drawn(setting, SEED + number), SqlEngine(spark, tmp_path, vacuums=not again), again=again)
