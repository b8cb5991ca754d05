"""How Parquet files are encoded, so that Spark's vectorised reader and Arrow's read them fast and right.

Float columns get no statistics. Arrow's writer leaves NaN out of a minimum and maximum; for Spark, as
here, NaN is above every number, so a row group that holds 1.0 and NaN would be skipped where ``f > 100``.

Files that engines scan have page indexes (Parquet's ``PageIndex.md``): of a file sorted by key, a
look-up decodes a page, not a row group.

One choice depends on the rows: which columns get a dictionary. Arrow's writer builds one for every
column it is asked to and gives up only where the dictionary outgrows a page, by when the chunk holds
the dictionary, indices into it and plain values besides: larger, and slow to read. parquet-mr keeps a
dictionary only where it is smaller than the plain values (its ``DictionaryValuesWriter``); so do these
options, judged by a sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["leaves", "writer_options"]

_SAMPLE_ROWS = 4 * 1024
_DISTINCT_SHARE = 0.83
"""From this share of distinct values in a sample on, a dictionary does not pay: some 11,000 of them."""


def writer_options(rows: pa.Table, *, group_rows: int, bounded: Collection[str] | None = None) -> dict[str, object]:
    """Arguments of :class:`pyarrow.parquet.ParquetWriter` for a file of rows like these.

    :param rows: some or all rows of the file, with all its columns.
    :param group_rows: rows of a row group, about: each has dictionaries of its own.
    :param bounded: the columns whose statistics somebody will ask for; ``None``: all, of files that engines scan.
    """
    sample = _sample(rows, min(group_rows, _SAMPLE_ROWS))
    names = [name for name in rows.column_names if _repeats(sample.column(name))]
    found = [leaf for field in rows.schema for leaf in leaves(field.name, field.type)]
    # By path: a column "s.x" and the field x of a struct s have the same one.
    floats = {path for path, kind in found if pa.types.is_floating(kind)}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "store_decimal_as_integer": True,
        "version": "2.6",
        "use_dictionary": [path for name in names for path, _ in leaves(name, rows.schema.field(name).type)],
        "write_statistics": [path for path, _ in found if path not in floats and (bounded is None or path in bounded)],
        "write_page_index": bounded is None,
    }


def _sample(rows: pa.Table, count: int) -> pa.Table:
    """Rows from all over the table: neighbours of sorted rows are too much alike."""
    if rows.num_rows <= count:
        return rows
    return rows.take(pa.array(np.linspace(0, rows.num_rows - 1, count, dtype=np.int64)))


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether values repeat enough for a dictionary; nested ones are taken to."""
    if pa.types.is_nested(column.type):
        return True
    return pc.count_distinct(column).as_py() < _DISTINCT_SHARE * len(column)


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The Parquet paths of a column's leaves, as Arrow's writer names them, and their types."""
    if pa.types.is_map(kind):
        yield from leaves(f"{path}.key_value.key", kind.key_type)
        yield from leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from leaves(f"{path}.{field.name}", field.type)
    else:
        yield path, kind
