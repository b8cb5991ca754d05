"""Stable ids, overrides, limits of datasets and survivorship: full runs on Spark give what runs without Spark give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemerge.merge_source import MergeSource, run_plans
from tests.merge_source.test_stable_ids import CASES, world_of
from tests.merge_source.test_survivorship import crowd
from tests.property.effort import some

NAMES = (
    "split_of_equal_parts_the_first_member_keeps_the_id",
    "what_is_deleted_stays_together_and_lives_again",
    "different_wins_over_a_rule_and_is_withdrawn",
    "at_most_one_row_of_a_dataset",
)
CHOSEN = [case for case in CASES if case["name"] in NAMES]
RULES: list[dict[str, object]] = [
    {"name": "longest", "n": {"newest": "day"}, "tags": "union", "x": "first", "day": "most_frequent"},
    {"name": {"priority": ["b"]}, "n": {"expression": "old.n + new.n"}, "tags": "longest"},
]


@pytest.fixture(autouse=True)
def always_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full runs use Spark though the datasets are small."""
    monkeypatch.setattr(run_plans, "SPARK_FROM_BYTES", 0)


@pytest.mark.parametrize("case", some(CHOSEN), ids=lambda case: str(case["name"]))
def test_cases(case: dict[str, Any], tmp_path: Path, spark: SparkSession) -> None:
    world = world_of(case, tmp_path, spark)
    for step in case["steps"]:
        world.apply(step)
        assert world.run(full=True) == step["now"]


@pytest.mark.long
def test_survivorship(tmp_path: Path, spark: SparkSession) -> None:
    for number, rules in enumerate(RULES):
        made = crowd(tmp_path / str(number), rules, identity="stable")
        again = MergeSource.create(tmp_path / str(number) / "again", made.config, spark=spark)
        again.run()
        assert again.entities() == made.source.entities()
        assert again.check().ok
        assert again.run(full=True).emitted == 0
