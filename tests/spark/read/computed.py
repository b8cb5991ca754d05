"""Expressions computed as filters compute them, row by row, and what Spark makes of the same."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from lakemerge.errors import FilterError
from lakemerge.sql.compiling import compile_value
from lakemerge.sql.nodes import Rows
from lakemerge.sql.parsing import parsed

__all__ = ["Computed", "compute", "differences", "spark_fails"]


@dataclass(frozen=True, slots=True)
class Computed:
    sql: str
    rows: list[int]
    """The rows that have a value."""
    values: pa.Array
    errors: dict[int, str]
    """By row that has none, why."""


def compute(sql: str, table: pa.Table) -> Computed:
    """All rows in one batch; where that fails each row alone, and those that do not fail in one batch."""
    (batch,) = table.combine_chunks().to_batches()
    node = compile_value(parsed(sql), table.schema, dt.UTC)
    errors: dict[int, str] = {}
    try:
        node.evaluate(Rows(batch))
    except FilterError:
        for row in range(batch.num_rows):
            try:
                node.evaluate(Rows(batch.slice(row, 1)))
            except FilterError as error:
                errors[row] = error.message
        assert errors, sql
    rows = [row for row in range(batch.num_rows) if row not in errors]
    values = node.evaluate(Rows(batch.take(pa.array(rows, pa.int32()))))
    assert values.type == node.kind, sql
    assert not errors or node.may_fail, sql
    return Computed(sql, rows, values, errors)


def differences(frame: DataFrame, found: Sequence[Computed]) -> list[str]:
    """What Spark has otherwise: types and values, in one job. Where we have an error, Spark does not compute."""
    columns = [
        f"CASE WHEN id IN ({', '.join(map(str, one.rows)) or -1}) THEN {one.sql} END AS c{number}"
        for number, one in enumerate(found)
    ]
    theirs = frame.selectExpr("id", *columns).toArrow().sort_by("id")
    wrong = []
    for number, one in enumerate(found):
        column = theirs.column(f"c{number}").combine_chunks()
        if not pa.types.is_nested(column.type) and column.type != one.values.type:
            wrong.append(f"{one.sql} is {column.type} to Spark, {one.values.type} here")
            continue
        spark = _plain(column.take(pa.array(one.rows, pa.int32())))
        for row, here, there in zip(one.rows, _plain(one.values), spark, strict=True):
            if here != there:
                wrong.append(f"{one.sql} of row {row} is {there!r} to Spark, {here!r} here")
    return wrong


def spark_fails(frame: DataFrame, one: Computed, row: int) -> bool:
    """Whether Spark has no value for a row either."""
    try:
        frame.where(f"id = {row}").selectExpr(f"{one.sql} AS value").toArrow()
    except Exception:  # noqa: BLE001 - its class depends on the kind of error and on who runs the expression
        return True
    return False


def _plain(values: pa.Array) -> list[Any]:
    """Comparable in Python: times as integers, since there are some beyond its years, and NaN as itself."""
    if pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.view(pa.int32())
    return ["NaN" if isinstance(value, float) and value != value else value for value in values.to_pylist()]
