"""The Arrow hash function against Spark's own, on every key type."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge.layout.xxhash64 import buckets, hash_columns
from lakemerge.schema.schema import to_ddl

ROWS = 400


def _key_columns(source: random.Random) -> dict[str, pa.Array]:
    """One column of each key type: edges first, then random values, with nulls among both."""

    def integers(bits: int) -> list[int]:
        top = 2 ** (bits - 1) - 1
        return [0, 1, -1, top, -top - 1, *(source.randint(-top - 1, top) for _ in range(ROWS))][:ROWS]

    def decimals(precision: int) -> list[int]:
        edges = [0, 1, -1, 127, 128, -128, -129, 255, -256, 32767, 32768, -32768, 10**precision - 1, 1 - 10**precision]
        edges += [sign * 2**bits for bits in range(1, 126, 3) for sign in (1, -1) if 2**bits < 10**precision]
        return [*edges, *(source.randint(-(10 ** source.randint(1, precision)) + 1, 9) for _ in range(ROWS))][:ROWS]

    def with_nulls(values: list[Any], kind: Any) -> Any:
        return pa.array([None if source.random() < 0.1 else value for value in values], kind)

    def unscaled(precision: int, scale: int) -> Any:
        whole = with_nulls([Decimal(value) for value in decimals(precision)], pa.decimal128(precision, 0))
        return pa.Array.from_buffers(pa.decimal128(precision, scale), len(whole), whole.buffers())

    text = ["", "a", "é", "漢字かな", "🦆" * 9, *("x" * n for n in range(101))]
    text += ["".join(source.choices("ab é漢🦆", k=source.randint(0, 60))) for _ in range(ROWS)]
    raw = [bytes(source.randbytes(n)) for n in range(101)] + [
        source.randbytes(source.randint(0, 300)) for _ in range(ROWS)
    ]
    days = [0, -1, 1, -719162, 2932896, *(source.randint(-700000, 2900000) for _ in range(ROWS))][:ROWS]
    micros = [0, -1, 1, *(source.randint(-(2**55), 2**55) for _ in range(ROWS))][:ROWS]
    return {
        "bool": with_nulls([n % 2 == 0 for n in range(ROWS)], pa.bool_()),
        "i8": with_nulls(integers(8), pa.int8()),
        "i16": with_nulls(integers(16), pa.int16()),
        "i32": with_nulls(integers(32), pa.int32()),
        "i64": with_nulls(integers(64), pa.int64()),
        "d5": unscaled(5, 2),
        "d18": unscaled(18, 18),
        "d19": unscaled(19, 0),
        "d38": unscaled(38, 10),
        "s": with_nulls(text[:ROWS], pa.string()),
        "bin": with_nulls(raw[:ROWS], pa.binary()),
        "day": pc.cast(with_nulls(days, pa.int32()), pa.date32()),
        "at": pc.cast(with_nulls(micros, pa.int64()), pa.timestamp("us", "UTC")),
        "local": pc.cast(with_nulls(micros, pa.int64()), pa.timestamp("us")),
    }


def test_every_key_type_alone_and_chained(spark: SparkSession) -> None:
    table = pa.table(_key_columns(random.Random(7)))
    names = table.column_names
    keys = [[name] for name in names] + [["i32", "s"], ["s", "i32"], ["d38", "bin", "bool"], names]
    frame = spark.createDataFrame(table, to_ddl(table.schema))
    # The types that Spark hashed are the ones that were meant.
    assert [field.dataType.simpleString() for field in frame.schema.fields] == [
        "boolean", "tinyint", "smallint", "int", "bigint", "decimal(5,2)", "decimal(18,18)", "decimal(19,0)",
        "decimal(38,10)", "string", "binary", "date", "timestamp", "timestamp_ntz",
    ]  # fmt: skip
    hashes = [F.xxhash64(*key).alias(f"h{n}") for n, key in enumerate(keys)]
    modulo = [F.expr(f"pmod(h{n}, 8)").alias(f"b{n}") for n in range(len(keys))]
    result = frame.select(*hashes).select("*", *modulo).toArrow()
    for n, key in enumerate(keys):
        columns: list[Any] = [table[name] for name in key]
        np.testing.assert_array_equal(hash_columns(columns), result[f"h{n}"].to_numpy(), err_msg=str(key))
        np.testing.assert_array_equal(buckets(columns, 8), result[f"b{n}"].to_numpy(), err_msg=str(key))
