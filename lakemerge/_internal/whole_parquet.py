"""Small Parquet files of the log, read whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["parquet_table"]


def parquet_table(source: Any, schema: pa.Schema | None = None, *, optional: pa.Field | None = None) -> pa.Table:
    """All rows of a Parquet file, decoded in the calling thread.

    ``pyarrow.parquet.read_table`` takes three times as long, and threads of Arrow let go of ``source`` after it has
    returned. Each needs Python's lock for that. A process that ends meanwhile is aborted, or never ends. Source: issues
    34314 and 50482 of apache/arrow.

    :param source: an open file, or a buffer.
    :param schema: the wanted columns; without it, all that the file has.
    :param optional: a column that is wanted too if the file has it.

    Raises :class:`KeyError` if the file lacks a column of ``schema``, and what pyarrow raises for a damaged file.
    """
    with pq.ParquetFile(source) as file:
        if schema is None:
            return file.read(use_threads=False)
        if optional is not None and optional.name in file.schema_arrow.names:
            schema = schema.append(optional)
        return file.read(columns=schema.names, use_threads=False).select(schema.names).cast(schema)
