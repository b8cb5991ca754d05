"""How Parquet files are encoded, so that Spark's vectorised reader and Arrow's read them fast and right.

Float columns get no statistics. Arrow's writer leaves NaN out of a minimum and maximum. For Spark, as here, NaN is
above every number, so a read with ``f > 100`` would wrongly skip a row group that holds 1.0 and NaN.

Files that engines scan have page indexes (Parquet's ``PageIndex.md``). In a file sorted by key, a look-up then decodes
one page instead of a row group.

One choice depends on the rows: which columns get a dictionary. Arrow's writer builds one for every column that is asked
for, and gives up only when the dictionary outgrows a page. The chunk then holds the dictionary, indices into it and
plain values, so it is larger and slow to read. parquet-mr keeps a dictionary only if it is smaller than the plain
values (its ``DictionaryValuesWriter``). These options do the same, judged by a sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.portions import gather

__all__ = ["leaves", "writer_options"]

_T = TypeVar("_T", pa.Table, pa.Array)

_SAMPLE_ROWS = 4 * 1024
_SAMPLE_BYTES = 64 * 2**20
_DISTINCT_SHARE = 0.83
"""At this share of distinct values in a sample (about 11,000 values) and above, a dictionary does not pay."""


def writer_options(rows: pa.Table, *, group_rows: int, bounded: Collection[str] | None = None) -> dict[str, object]:
    """Arguments of :class:`pyarrow.parquet.ParquetWriter` for a file of rows like these.

    :param rows: some or all rows of the file, with all its columns.
    :param group_rows: about how many rows a row group has. Each row group has its own dictionaries.
    :param bounded: the columns whose statistics are needed. ``None`` means all columns, for files that engines scan.
    """
    count = min(group_rows, _SAMPLE_ROWS, max(1, rows.num_rows * _SAMPLE_BYTES // max(1, rows.nbytes)))
    sample = _sample(rows, count).combine_chunks()
    values = [leaf for name in rows.column_names for leaf in _values(name, _one(sample.column(name)))]
    # By path. A column "s.x" and the field x of a struct s have the same path.
    floats = {path for path, column in values if pa.types.is_floating(column.type)}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "store_decimal_as_integer": True,
        "version": "2.6",
        "use_dictionary": [path for path, column in values if _repeats(_sample(column, count))],
        "write_statistics": [path for path, _ in values if path not in floats and (bounded is None or path in bounded)],
        "write_page_index": bounded is None,
    }


def _sample(rows: _T, count: int) -> _T:
    """Rows from all over the table, because neighbours in sorted rows are too similar."""
    if len(rows) <= count:
        return rows
    places = np.linspace(0, len(rows) - 1, count, dtype=np.int64)
    return gather(rows, places) if isinstance(rows, pa.Table) else rows.take(pa.array(places))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _values(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The Parquet paths of a column's leaves, as Arrow's writer names them, and their values.

    A leaf in lists has as many values as the lists have elements.
    """
    kind = column.type
    if pa.types.is_map(kind):
        yield from _values(f"{path}.key_value.key", column.keys)
        yield from _values(f"{path}.key_value.value", column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _values(f"{path}.list.element", column.flatten())
    elif pa.types.is_struct(kind):
        for field, values in zip(kind, column.flatten(), strict=True):
            yield from _values(f"{path}.{field.name}", values)
    else:
        yield path, column


def _repeats(values: pa.Array) -> bool:
    """Whether values repeat enough for a dictionary. Nulls are no values: Parquet does not store them."""
    return pc.count_distinct(values).as_py() < _DISTINCT_SHARE * (len(values) - values.null_count)


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The Parquet paths of a column's leaves, and their types."""
    return ((leaf, values.type) for leaf, values in _values(path, pa.array([], kind)))
