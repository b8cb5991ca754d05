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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["leaves", "writer_options"]

_SAMPLE_ROWS = 4 * 1024
_DISTINCT_SHARE = 0.83
"""At this share of distinct values in a sample (about 11,000 values) and above, a dictionary does not pay."""


def writer_options(rows: pa.Table, *, group_rows: int, bounded: Collection[str] | None = None) -> dict[str, object]:
    """Arguments of :class:`pyarrow.parquet.ParquetWriter` for a file of rows like these.

    :param rows: some or all rows of the file, with all its columns.
    :param group_rows: about how many rows a row group has. Each row group has its own dictionaries.
    :param bounded: the columns whose statistics are needed. ``None`` means all columns, for files that engines scan.
    """
    sample = _sample(rows, min(group_rows, _SAMPLE_ROWS))
    names = [name for name in rows.column_names if _repeats(sample.column(name))]
    found = [leaf for field in rows.schema for leaf in leaves(field.name, field.type)]
    # By path. A column "s.x" and the field x of a struct s have the same path.
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
    """Rows from all over the table, because neighbours in sorted rows are too similar."""
    if rows.num_rows <= count:
        return rows
    return rows.take(pa.array(np.linspace(0, rows.num_rows - 1, count, dtype=np.int64)))


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether values repeat enough for a dictionary. Nested values are assumed to."""
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
