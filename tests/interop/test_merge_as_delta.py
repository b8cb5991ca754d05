"""Random merges leave the rows that Delta's merge leaves, with and without Spark, by the same calls."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakemerge import InputError, LakeTable
from tests.property.effort import some
from tests.unit.faults import rows_of

CONDITIONS = (
    "source.n > target.n",
    "target.g = 'a'",
    "source.n IS NULL",
    "target.n + source.n < 20",
    "source.g <> target.g",
)
OF_SOURCE = ("source.n > 5", "source.g IN ('a', 'b')", "source.n IS NULL", "n % 2 = 0")
OF_TARGET = ("target.n > 5", "target.g = 'a'", "n IS NULL", "target.k % 2 = 0")
VALUES = ("source.n", "target.n + source.n", "coalesce(source.n, target.n, 0)", "target.k * 100", "NULL", "7")
SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string()), ("n", pa.int32())])
WIDE = pa.schema([*SCHEMA, ("extra", pa.string())])


def clause_of(rng: random.Random, side: str, condition: str | None, evolves: bool) -> tuple[str, dict[str, Any]]:
    if side == "Matched":
        kind = rng.choice(["Update", "UpdateAll", "Delete"])
        given = {"set": {"n": rng.choice(VALUES), "g": rng.choice(["source.g", "concat(target.g, '!')"])}}
        if evolves and rng.random() < 0.5:
            given["set"]["extra"] = "source.extra"
    elif side == "NotMatched":
        kind, given = rng.choice(["Insert", "InsertAll"]), {"values": {"k": "source.k", "n": rng.choice(["n", "1"])}}
    else:
        kind, given = rng.choice(["Update", "Delete"]), {"set": {"n": rng.choice(["n + 1", "target.k", "NULL"])}}
    return f"when{side}{kind}", {"condition": condition, **(given if kind in ("Update", "Insert") else {})}


def calls_of(rng: random.Random, evolves: bool) -> list[tuple[str, dict[str, Any]]]:
    calls = []
    sides = {"Matched": CONDITIONS, "NotMatched": OF_SOURCE, "NotMatchedBySource": OF_TARGET}
    chosen = rng.sample(list(sides), rng.randint(1, 3))
    for side in chosen:
        count = rng.randint(1, 3)
        for number in range(count):
            last = number == count - 1 and rng.random() < 0.6
            calls.append((number, clause_of(rng, side, None if last else rng.choice(sides[side]), evolves)))
    # Clauses of one side keep their order.
    return [call for _, call in sorted(calls, key=lambda one: (one[0], rng.random()))]


def rows_for(rng: random.Random, keys: list[int]) -> list[dict[str, Any]]:
    return [
        {"k": key, "g": rng.choice(["a", "b", None]), "n": rng.choice([None, *range(12)]), "extra": f"e{key}"}
        for key in keys
    ]


def merged(builder: Any, calls: list[tuple[str, dict[str, Any]]], evolves: bool) -> None:
    builder = builder.withSchemaEvolution() if evolves else builder
    for name, given in calls:
        builder = getattr(builder, name)(**given)
    builder.execute()


@pytest.mark.long
@pytest.mark.parametrize("seed", some(range(40)))
def test_random_merges(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed)
    evolves = rng.random() < 0.4
    target = rows_for(rng, rng.sample(range(12), 6))
    keys = rng.sample(range(12), 7)
    calls = calls_of(rng, evolves)
    if any(name.startswith("whenMatched") for name, _ in calls) and rng.random() < 0.3:
        keys.append(rng.choice([row["k"] for row in target]))
    source = pa.Table.from_pylist(rows_for(rng, keys), schema=WIDE if evolves else SCHEMA)
    on = "target.k = source.k" + rng.choice(["", "", " AND source.n < 8"])
    if "AND" in on:  # an insert beside a row of its key is refused here, and makes a second row in Delta
        calls = [call for call in calls if not call[0].startswith("whenNotMatchedInsert")] or [
            ("whenMatchedDelete", {})
        ]
    frame, held = spark.createDataFrame(source), pa.Table.from_pylist(target, schema=SCHEMA)
    spark.createDataFrame(held).coalesce(1).write.format("delta").save(str(tmp_path / "delta"))
    theirs = DeltaTable.forPath(spark, str(tmp_path / "delta")).alias("target")
    ours = {name: LakeTable.create(
        tmp_path / name, held.schema, key=["k"], buckets=2, merger="commit-time",
        spark=spark if name == "spark" else None,
    ) for name in ("spark", "arrow")}  # fmt: skip
    error = ""
    try:
        merged(theirs.merge(frame.alias("source"), on), calls, evolves)
    except PySparkException as raised:
        error = str(raised)
    expected = spark.read.format("delta").load(str(tmp_path / "delta")).toArrow()
    for name, table in ours.items():
        table.upsert(held)
        merge = table.merge(frame if name == "spark" else source, on)
        if error:
            assert "MULTIPLE_SOURCE_ROW" in error, calls
            with pytest.raises(InputError, match="several source rows"):
                merged(merge, calls, evolves)
            continue
        merged(merge, calls, evolves)
        found = table.to_arrow()
        assert found.column_names == expected.column_names, (name, calls, on)
        assert rows_of(found) == rows_of(expected), (name, calls, on)
