"""Full runs on Spark give what runs without Spark give: cases, random histories, keys and types of all kinds."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource, run_plans
from lakemerge.merge_source import spark as on_spark
from lakemerge.merge_source.spark import entities_on_spark
from tests.merge_source.histories import History
from tests.merge_source.world import World
from tests.property.effort import some

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[2] / "merge_source" / "cases.json").read_text()
)["cases"]
NAMES = ("document_example", "strategy_list", "deleted_and_undeleted", "datasets_added_renamed_reordered_removed")
CHOSEN = [case for case in CASES if case["name"] in NAMES]


@pytest.fixture(autouse=True)
def always_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full runs use Spark though the datasets are small."""
    monkeypatch.setattr(run_plans, "SPARK_FROM_BYTES", 0)


def numbered(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**entity, "_updated": place} for place, entity in enumerate(entities)]


@pytest.mark.parametrize("case", some(CHOSEN), ids=lambda case: str(case["name"]))
def test_cases(case: dict[str, Any], tmp_path: Path, spark: SparkSession) -> None:
    """Every run a full one."""
    world, config = World(tmp_path, spark), case["config"]
    for dataset in case["datasets"]:
        world.create(dataset["name"], dataset["schema"], dataset["rows"])
    for number, expected in enumerate(case["expected"]):
        step = case["steps"][number - 1] if number else {"changes": {}}
        if "error" in expected:
            continue
        for old, new in step.get("rename", {}).items():
            world.rename(old, new)
        for name, schema in step.get("schemas", {}).items():
            world.create(name, schema)
        for name, changes in step["changes"].items():
            world.apply(name, changes)
        config = step.get("config", config)
        assert numbered(world.run(config, full=True)) == numbered(expected["emitted"])
        assert world.source is not None
        assert numbered(world.source.entities()) == numbered(expected["state"])


@pytest.mark.long
@pytest.mark.parametrize("seed", some(range(2)))
def test_random_histories(seed: int, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_spark, "BATCH_MEMBERS", 2)
    monkeypatch.setattr(on_spark, "TASK_MEMBERS", 3)
    history = History(seed, tmp_path, spark)
    for _ in range(4):
        history.step()
    history.finish()


@pytest.mark.long
def test_keys_and_types_of_all_kinds(tmp_path: Path, spark: SparkSession) -> None:
    moment = dt.datetime(2026, 7, 1, 12, 0, 0, 40, tzinfo=dt.UTC)
    a = LakeTable.create(
        tmp_path / "A",
        "at TIMESTAMP, `s.x` STRING, n INT, price DECIMAL(12,2), day DATE, `odd ``name` MAP<STRING, DOUBLE>, x BIGINT",
        key=["at", "s.x"],
    )
    a.upsert(
        pa.table(
            {
                "at": pa.array([moment], pa.timestamp("us", "UTC")),
                "s.x": ['q"'],
                "n": pa.array([7], pa.int32()),
                "price": pa.array([Decimal("1.50")], pa.decimal128(12, 2)),
                "day": [moment.date()],
                "odd `name": pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64())),
                "x": [1],
            }
        )
    )
    b = LakeTable.create(
        tmp_path / "B", "k BINARY, n BIGINT, price DECIMAL(14,4), x ARRAY<BIGINT>, gone BOOLEAN", key=["k"]
    )
    b.upsert(
        pa.table(
            {
                "k": pa.array([b"\x01\xff", b"\x02"]),
                "n": [2**40, 1],
                "price": pa.array([Decimal("0.0001"), None], pa.decimal128(14, 4)),
                "x": [[1, None], []],
                "gone": [False, True],
            }
        )
    )
    sources = []
    for name, session in (("with", spark), ("without", None)):
        config = MergeConfig(datasets={"a": a, "b": Dataset(b, deleted="gone")}, equality=["a.x = b.x"])
        source = MergeSource.create(tmp_path / name, config, spark=session)
        source.run()
        sources.append(source)
    with_spark, without = sources
    assert numbered(with_spark.entities()) == numbered(without.entities())
    assert [entity["_id"] for entity in without.entities()] == [
        '0|["2026-07-01T12:00:00.000040Z","q\\""]|1|01ff',
        "1|02",
    ]
    b.delete(pa.table({"k": pa.array([b"\x01\xff"])}))
    assert with_spark.run().full is False
    without.run(full=True)
    assert numbered(with_spark.entities()) == numbered(without.entities())
    assert with_spark.run(full=True).emitted == 0
    assert with_spark.check().ok


@pytest.mark.long
def test_nothing_stays_in_sparks_storage(tmp_path: Path, spark: SparkSession) -> None:
    """Neither of a dry run, nor of one that writes."""
    world = World(tmp_path, spark)
    world.create("A", "_id STRING, x BIGINT", [{"_id": "a1", "x": 1}])
    world.create("B", "_id STRING, x BIGINT", [{"_id": "b1", "x": 1}])
    config = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
    source = MergeSource.create(tmp_path / "out", world.config(config), spark=spark)
    held: Any = spark.sparkContext._jsc
    before = held.getPersistentRDDs().size()
    assert source.run(dry_run=True).emitted == 1
    assert held.getPersistentRDDs().size() == before
    assert source.table.version == 0
    assert source.run().emitted == 1
    assert held.getPersistentRDDs().size() == before


def test_only_full_runs_over_large_datasets_use_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def entities(session: SparkSession, inputs: Any, rules: Any) -> Any:
        asked.append(sum(one.stored_bytes for one in inputs))
        return entities_on_spark(session, inputs, rules)

    monkeypatch.setattr(on_spark, "entities_on_spark", entities)
    tables = {}
    for name in ("a", "b"):
        tables[name] = LakeTable.create(tmp_path / name, "id BIGINT, x BIGINT", key=["id"])
        tables[name].upsert(pa.table({"id": [1, 2], "x": [1, 2]}))
        tables[name].upsert(pa.table({"id": [3], "x": [3]}))
    size = sum(part.stored_bytes for table in tables.values() for part in table.opened.view.file_slices)
    for number, least in enumerate((size, size + 1)):
        monkeypatch.setattr(run_plans, "SPARK_FROM_BYTES", least)
        source = MergeSource.create(
            tmp_path / str(number), MergeConfig(datasets=dict(tables), equality=["a.x = b.x"]), spark=spark
        )
        source.run()
        assert len(source.entities()) == 3
    assert asked == [size]
