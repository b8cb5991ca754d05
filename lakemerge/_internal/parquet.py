"""Parquet files that are decoded in the calling thread.

Threads of Arrow let go of a file after the call that read it has returned. A file of Python needs Python's lock for
that. A process that ends meanwhile is aborted, or never ends. Source: issues 34314 and 50482 of apache/arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ParquetFile", "parquet_table"]


class ParquetFile(pq.ParquetFile):  # type: ignore[misc]  # noqa: TID251 - pyarrow has no types
    """pyarrow's, which decodes in the calling thread. From a file, but not from a buffer, a thread of Arrow may still
    fetch what a call reads: it does so in few large reads."""

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        return super().read(columns, use_threads=False)

    def read_row_groups(self, row_groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        return super().read_row_groups(row_groups, columns, use_threads=False)

    def iter_batches(
        self, batch_size: int, *, row_groups: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return super().iter_batches(batch_size, row_groups=row_groups, columns=columns, use_threads=False)


def parquet_table(data: bytes, schema: pa.Schema | None = None, *, optional: pa.Field | None = None) -> pa.Table:
    """All rows of a small Parquet file.

    :param schema: the wanted columns; without it, all that the file has.
    :param optional: a column that is wanted too if the file has it.

    Raises :class:`KeyError` if the file lacks a column of ``schema``, and for a damaged file what pyarrow raises, which
    may be a :class:`UnicodeDecodeError`.
    """
    with ParquetFile(pa.BufferReader(data)) as file:
        if schema is None:
            return file.read()
        if optional is not None and optional.name in file.schema_arrow.names:
            schema = schema.append(optional)
        return file.read(schema.names).select(schema.names).cast(schema)
