"""Spark's own functions read the unions of HLL sketches, and unite them further."""

from __future__ import annotations

import datasketches
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.unit.mergers.folds import build, fold_frames, shape_of

SHAPE = shape_of({"h": pa.binary()})


def united(lg_k: int, *sketches: bytes) -> bytes:
    merger = build("aggregate", {"aggregates": {"h": {"function": "hll_sketch", "lg_k": lg_k}}}, SHAPE)
    [(_, union)] = fold_frames(merger, SHAPE, *([("+U", 1, sketch)] for sketch in sketches), compact=True)
    return bytes(union)


def sketches_of(spark: SparkSession, lg_k: int, *ranges: tuple[int, int]) -> list[bytes]:
    """Sketches that Spark makes of numbers."""
    return [
        bytes(spark.range(start, end).selectExpr(f"hll_sketch_agg(id, {lg_k}) AS h").collect()[0]["h"])
        for start, end in ranges
    ]


def estimates(spark: SparkSession, *sketches: bytes) -> list[int]:
    rows = spark.createDataFrame([(place, bytearray(one)) for place, one in enumerate(sketches)], "i INT, h BINARY")
    return [row["n"] for row in rows.orderBy("i").selectExpr("hll_sketch_estimate(h) AS n").collect()]


@pytest.mark.long
def test_spark_estimates_unions_as_its_own(spark: SparkSession) -> None:
    """Of sketches that have hashes, registers, and each of both."""
    for ends in ((3, 5), (200, 300), (300, 500), (3000, 5000), (3, 5000), (60_000, 90_000)):
        pair = sketches_of(spark, 12, (0, ends[0]), (ends[0] // 2, ends[1]))
        rows = spark.createDataFrame([(bytearray(one),) for one in pair], "h BINARY")
        theirs = bytes(rows.selectExpr("hll_union_agg(h) AS h").collect()[0]["h"])
        ours = united(12, *pair)
        found = estimates(spark, ours)[0]
        assert found == round(datasketches.hll_sketch.deserialize(ours).get_estimate())
        assert found == pytest.approx(ends[1], rel=0.05)
        # Spark's union keeps an estimate of additions in their order where it has made the registers itself.
        assert found == pytest.approx(estimates(spark, theirs)[0], rel=0.05)
        again = spark.createDataFrame([(bytearray(ours), bytearray(pair[0]))], "a BINARY, b BINARY")
        assert again.selectExpr("hll_sketch_estimate(hll_union(a, b)) AS n").collect()[0]["n"] == found


def test_a_small_sketch_loses_nothing_of_larger_ones(spark: SparkSession) -> None:
    [large] = sketches_of(spark, 15, (0, 50_000))
    [small] = sketches_of(spark, 8, (0, 1_000))
    unions = [united(10, *order) for order in ((large, small), (small, large))]
    assert unions[0] == unions[1]
    assert estimates(spark, unions[0])[0] == pytest.approx(50_000, rel=5 * 1.04 / 2**4)
