"""Columns that Spark sends in another form, put together again."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from lakemerge.spark.transport.transit import SentColumns

VALUES = [0, 1, -1, None, 999_999_999_999_999_999, -999_999_999_999_999_999, 2**32, -(2**32)]


@pytest.mark.parametrize(("offset", "length"), [(0, 8), (3, 5), (1, 0)])
@pytest.mark.parametrize("scale", [0, 2, 18])
def test_integers_become_the_decimals_they_stand_for(scale: int, offset: int, length: int) -> None:
    batch = pa.RecordBatch.from_pydict({"c0": pa.array(VALUES, pa.int64()), "c1": range(8)}).slice(offset, length)
    kind = pa.decimal128(18, scale)
    found = SentColumns(("a.b", "n"), (kind, None)).received(batch)
    assert found.schema == pa.schema([("a.b", kind), ("n", pa.int64())])
    expected = [None if value is None else Decimal(value).scaleb(-scale) for value in VALUES][offset : offset + length]
    assert found.column(0).to_pylist() == expected
    assert found.column(1).equals(batch.column(1))
    found.validate(full=True)
