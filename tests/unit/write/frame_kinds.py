"""Frames of every make, of the same rows: what an upsert takes, and every flow takes, too."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

from tests.packages import halves

__all__ = ["KINDS", "Kind"]

Data = Mapping[str, Sequence[Any]]

AWARE = [dt.datetime(2025, 1, day, 8, tzinfo=dt.UTC) for day in (1, 2, 3)]
DAYS = [day.replace(tzinfo=None) for day in AWARE]
UUIDS = [uuid.UUID(int=2**100 + number) for number in range(3)]
PAIRS = [[{"key": "a", "value": 1}], [{"key": "b", "value": 2}], [{"key": "b", "value": 3}, {"key": "c", "value": 0}]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A make of frames, or a type of their column ``v``."""

    values: Sequence[Any]
    """Three values for the column, all different."""
    make: Callable[[Data], Any]
    stored: Sequence[Any] | None = None
    """The values as the table gives them back, if they differ."""
    schema: str = "v STRING"
    """A type of the table that takes them."""

    @property
    def wanted(self) -> Sequence[Any]:
        return self.values if self.stored is None else self.stored


class Capsule:
    """Anything with the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def typed(kind: pa.DataType | None = None, *, nullable: bool = True) -> Callable[[Data], pa.Table]:
    def make(data: Data) -> pa.Table:
        types = {"id": pa.int64(), "seq": pa.int64(), "op": pa.string(), "v": kind or pa.string()}
        fields = [pa.field(name, types[name], nullable=nullable) for name in data]
        arrays = [_array(values, types[name]) for name, values in data.items()]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    return make


def _array(values: Sequence[Any], kind: Any) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        plain = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(plain, kind.storage_type))
    if kind == pa.float16():
        return halves(values)
    if isinstance(kind, pa.RunEndEncodedType):
        ends = pa.array(range(1, len(values) + 1), pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind.value_type))
    if isinstance(kind, pa.DictionaryType):
        return pa.DictionaryArray.from_arrays(
            pa.array(range(len(values)), kind.index_type), pa.array(values, kind.value_type)
        )
    return pa.array(values, kind)


def chunked(data: Data) -> pa.Table:
    table = typed()(data)
    parts = [table.slice(row, 1) for row in range(table.num_rows)]
    return pa.concat_tables([table.slice(0, 1), *parts, table.slice(0, 0)]).slice(1)


def renamed(data: Data) -> pa.Table:
    table = typed()(data)
    names = ["op" if name == "op" else name.upper() for name in table.column_names]
    return table.rename_columns(names).select(list(reversed(names)))


def in_pandas(kind: Any) -> Callable[[Data], pd.DataFrame]:
    def make(data: Data) -> pd.DataFrame:
        frame = pd.DataFrame({**data, "v": pd.Series(list(data["v"])).astype(kind)})
        frame.index = [9] * len(frame)
        return frame

    return make


_DUCKDB = duckdb.connect()


def relation(data: Data) -> Any:
    held = typed()(data)
    return _DUCKDB.from_arrow(held)


ABC = ["a", "ü", "c"]
KINDS: dict[str, Kind] = {
    "table": Kind(ABC, typed()),
    "sliced, chunked table": Kind(ABC, chunked),
    "record batch": Kind(ABC, lambda data: typed()(data).to_batches()[0]),
    "reader": Kind(ABC, lambda data: typed()(data).to_reader(max_chunksize=1)),
    "capsule": Kind(ABC, lambda data: Capsule(typed()(data))),
    "relation of DuckDB": Kind(ABC, relation),
    "pandas": Kind(ABC, pd.DataFrame),
    "pandas, category": Kind(ABC, in_pandas("category")),
    "pandas, string": Kind(ABC, in_pandas("string")),
    "pandas, Arrow": Kind(ABC, in_pandas(pd.ArrowDtype(pa.large_string()))),
    "pandas, datetime64[s]": Kind(DAYS, in_pandas("datetime64[s]"), schema="v TIMESTAMP_NTZ"),
    "pandas, datetime64[ns]": Kind(DAYS, in_pandas("datetime64[ns]"), schema="v TIMESTAMP_NTZ"),
    "pandas, datetime64[ns, UTC]": Kind(AWARE, in_pandas("datetime64[ns, UTC]"), schema="v TIMESTAMP"),
    "pandas, Int64": Kind([1, None, 3], in_pandas("Int64"), schema="v BIGINT"),
    "polars": Kind(ABC, pl.DataFrame),
    "polars, lazy": Kind(ABC, pl.LazyFrame),
    "polars, categorical": Kind(ABC, lambda data: pl.DataFrame(data).with_columns(pl.col("v").cast(pl.Categorical))),
    "polars, enum": Kind(ABC, lambda data: pl.DataFrame(data).with_columns(pl.col("v").cast(pl.Enum(ABC)))),
    "polars, large strings": Kind(ABC, lambda data: pl.DataFrame(data).to_arrow(compat_level=pl.CompatLevel.oldest())),
    "polars, entries": Kind(PAIRS, pl.DataFrame, schema="v ARRAY<STRUCT<key: STRING, value: BIGINT>>"),
    "another case and order": Kind(ABC, renamed),
    "not nullable": Kind(ABC, typed(nullable=False)),
    "large_string": Kind(ABC, typed(pa.large_string())),
    "string_view": Kind(ABC, typed(pa.string_view())),
    "dictionary": Kind(ABC, typed(pa.dictionary(pa.int8(), pa.string()))),
    "dictionary of large strings": Kind(ABC, typed(pa.dictionary(pa.uint16(), pa.large_string()))),
    "run-end encoded": Kind(ABC, typed(pa.run_end_encoded(pa.int32(), pa.string()))),
    "int8": Kind([1, -2, 3], typed(pa.int8()), schema="v BIGINT"),
    "uint8": Kind([1, 200, 3], typed(pa.uint8()), schema="v SMALLINT"),
    "uint64": Kind([1, 2**63, 3], typed(pa.uint64()), schema="v DECIMAL(20,0)"),
    "float16": Kind([0.5, 2.0, -0.25], typed(pa.float16()), schema="v DOUBLE"),
    "decimal256": Kind(
        [Decimal("1.50"), Decimal("-2.25"), None], typed(pa.decimal256(20, 2)), schema="v DECIMAL(38,2)"
    ),
    "timestamp[s]": Kind(DAYS, typed(pa.timestamp("s")), schema="v TIMESTAMP_NTZ"),
    "timestamp[ms]": Kind(DAYS, typed(pa.timestamp("ms")), schema="v TIMESTAMP_NTZ"),
    "timestamp[ns]": Kind(DAYS, typed(pa.timestamp("ns")), schema="v TIMESTAMP_NTZ"),
    "timestamp[us, Europe/Oslo]": Kind(AWARE, typed(pa.timestamp("us", "Europe/Oslo")), schema="v TIMESTAMP"),
    "date64": Kind([day.date() for day in DAYS], typed(pa.date64()), schema="v DATE"),
    "large_binary": Kind([b"a", b"", None], typed(pa.large_binary()), schema="v BINARY"),
    "binary_view": Kind([b"a", b"b", b"c"], typed(pa.binary_view()), schema="v BINARY"),
    "binary(2)": Kind([b"ab", b"cd", b"ef"], typed(pa.binary(2)), schema="v BINARY"),
    "uuid": Kind(UUIDS, typed(pa.uuid()), [str(one) for one in UUIDS]),
    "json": Kind(["{}", "[]", "1"], typed(pa.json_())),
    "bool8": Kind([1, 0, None], typed(pa.bool8()), [True, False, None], schema="v BOOLEAN"),
    "fixed list": Kind([[1, 2], [3, 4], [5, 6]], typed(pa.list_(pa.int32(), 2)), schema="v ARRAY<BIGINT>"),
    "large list": Kind([[1], [], None], typed(pa.large_list(pa.int64())), schema="v ARRAY<BIGINT>"),
    "list view": Kind([[1], [], [3, None]], typed(pa.list_view(pa.int64())), schema="v ARRAY<BIGINT>"),
    "struct of odd types": Kind(
        [{"x": "a", "y": [DAYS[0]]}, {"x": None, "y": []}, None],
        typed(pa.struct([("x", pa.large_string()), ("y", pa.list_(pa.timestamp("ns")))])),
        schema="v STRUCT<x: STRING, y: ARRAY<TIMESTAMP_NTZ>>",
    ),
    "map": Kind(
        [[("a", 1)], [("b", None)], []], typed(pa.map_(pa.large_string(), pa.int32())), schema="v MAP<STRING, INT>"
    ),
}
