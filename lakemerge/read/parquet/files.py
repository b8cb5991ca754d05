"""The Parquet files that one task reads. Each is opened once, and its footer is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge._internal.cache import Cache
from lakemerge._internal.parquet import ParquetFile
from lakemerge.errors import TableDamagedError
from lakemerge.read.parquet.footers import END, Footer
from lakemerge.schema.names import ColumnNames
from lakemerge.schema.nested import settled
from lakemerge.storage.base import RangedFile, Store

__all__ = ["ParquetFiles", "StoredFile", "shaped"]

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_TAIL, _TAIL_SHARE, _LONGEST_TAIL = 64 * 2**10, 512, 2 * 2**20
"""How many bytes from the end of a file are read first: so many, or this share of a larger file, up to a limit. Most
footers fit into this. Those of row groups of 65,536 rows are some 1/800 of their file."""
_DECIMAL = 16
_OFFSET = 4
_TYPICAL_LENGTH = 32
"""The assumed length of a string if there are no bounds."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the table."""

    path: str
    size_bytes: int | None = None
    """The size, if it is known. Opening the file then need not ask for it."""


class ParquetFiles:
    """Open Parquet files of a store, by path. Use it as a context manager. Several threads may use it, as long as no
    two ask for the same file.

    :param footers: the known footers. New ones are added.
    """

    def __init__(self, store: Store, footers: Cache[str, Footer] | None = None) -> None:
        self._store = store
        self._footers = footers
        self._open: dict[str, ParquetFile] = {}
        self._known: dict[str, Footer] = {}
        self._ranged: dict[str, RangedFile] = {}
        self._sizes: dict[tuple[str, int], dict[str, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._known.clear()
        self._ranged.clear()
        self._sizes.clear()

    def release(self, path: str) -> None:
        """Close a file, and let go of what its reader holds. Whoever asks for the file again opens it anew."""
        file = self._open.pop(path, None)
        if file is not None:
            file.close()
        self._known.pop(path, None)
        self._ranged.pop(path, None)

    def footer(self, stored: StoredFile, groups: Sequence[int] = ()) -> pq.FileMetaData:
        """The footer, for callers that read what it says about row groups, but not about their columns.

        Raises :class:`TableDamagedError` if the file lacks one of ``groups``. These ascend, and there may be billions.
        """
        footer = self._file(stored).metadata
        if groups and groups[-1] >= footer.num_row_groups:
            raise TableDamagedError(
                f"file {stored.path!r} has {footer.num_row_groups} row group(s); the table names number {groups[-1]}",
                path=stored.path,
            )
        return footer

    def column_footer(self, stored: StoredFile, groups: Sequence[int] = ()) -> pq.FileMetaData:
        """The same as :meth:`footer`, for callers that also read about the columns of row groups. Also raises
        :class:`TableDamagedError` if pyarrow cannot read those."""
        self.footer(stored, groups)
        path = stored.path
        try:
            return self._known[path].checked
        except ValueError as error:
            raise TableDamagedError(f"file {path!r} is not a readable Parquet file: {error}", path=path) from error

    def stream(
        self,
        stored: StoredFile,
        *,
        schema: pa.Schema,
        names: ColumnNames,
        budget_bytes: int,
        row_groups: Sequence[int] | None = None,
        row_bytes: float = 0.0,
    ) -> Iterator[tuple[pa.Table, int, bool]]:
        """Rows in file order, in tables of about ``budget_bytes``, or of one row. Each comes with the position of its
        first row in the file, and whether it is the last.

        :param schema: the wanted columns, by name. Columns that the file lacks are null.
        :param names: those that the table's columns have in files.
        :param row_groups: the row groups to read, ascending. ``None`` means all.
        :param row_bytes: the Arrow bytes of a row with all columns, if the table knows them. This is more exact than
            what a footer says.
        """
        footer = self.footer(stored, row_groups or ())
        file = self._file(stored)
        groups = list(range(footer.num_row_groups) if row_groups is None else row_groups)
        stored_schema = file.schema_arrow  # made anew by each call
        there = set(stored_schema.names)
        wanted = names.schema(schema)
        columns = [name for name in wanted.names if name in there]
        starts = self._known[stored.path].starts
        try:
            left = sum(starts[group + 1] - starts[group] for group in groups)
            growth = {name: _growth(stored_schema.field(name).type, wanted.field(name).type) for name in columns}
            size = partial(self._bytes, stored, columns=growth, row_bytes=row_bytes)
            longest = 0 if row_bytes else self._longest_value(stored, groups, columns)
            adjacent = all(following == group + 1 for group, following in pairwise(groups))
            if (
                longest * left <= budget_bytes
                and adjacent
                and (0 < row_bytes * left <= budget_bytes or size(groups) <= budget_bytes)
            ):
                self._announce(stored, groups, columns)
                table = file.read_row_groups(groups, columns=columns)
                yield _named(shaped(table, wanted), schema), starts[groups[0]] if groups else 0, True
                return
            batch_rows = max(1, left * budget_bytes // max(1, size(groups)))
            batch_rows = max(1, min(batch_rows, budget_bytes // longest)) if longest else batch_rows
            for portion in _portions(groups, size, budget_bytes):
                self._announce(stored, portion, columns)
                at = starts[portion[0]]
                batches = file.iter_batches(batch_rows, row_groups=portion, columns=columns)
                for table in _collected(batches, budget_bytes) if longest else map(_table, batches):
                    left -= table.num_rows
                    yield _named(shaped(table, wanted), schema), at, left == 0
                    at += table.num_rows
        except (pa.ArrowException, OSError, IndexError, UnicodeDecodeError) as error:
            if not _is_damage(error):
                raise
            raise TableDamagedError(f"file {stored.path!r} cannot be read: {error}", path=stored.path) from error

    def _file(self, stored: StoredFile) -> ParquetFile:
        path = stored.path
        if path not in self._open:
            try:
                known = None if self._footers is None else self._footers.get(path)
                source = self._store.open_input(path, size_bytes=stored.size_bytes)
                footer = known or Footer(_tail(source))
                self._open[path] = ParquetFile(source, metadata=footer.metadata, coerce_int96_timestamp_unit="us")
                if isinstance(source, RangedFile):
                    self._ranged[path] = source
                self._known[path] = footer
                if self._footers is not None:
                    self._footers.keep(path, footer, footer.metadata.serialized_size)
            except FileNotFoundError as error:
                raise TableDamagedError(
                    f"file {path!r} is missing; it belongs to this version of the table. If the version is old, vacuum "
                    "may have removed it; else restore the file from a backup. `lakemerge check` tells what else is "
                    "missing",
                    path=path,
                ) from error
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                if not _is_damage(error):
                    raise
                raise TableDamagedError(f"file {path!r} is not a readable Parquet file: {error}", path=path) from error
        return self._open[path]

    def _announce(self, stored: StoredFile, groups: Sequence[int], columns: Collection[str]) -> None:
        """Say which column chunks will be read, to a file that wants to know. pyarrow asks for one after the other."""
        source = self._ranged.get(stored.path)
        if source is None or not groups:
            return
        footer, wanted = self.column_footer(stored, groups), frozenset(columns)
        paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
        leaves = [i for i, path in enumerate(paths) if path in wanted or path.partition(".")[0] in wanted]
        source.will_read([_chunk_range(footer.row_group(group).column(leaf)) for group in groups for leaf in leaves])

    def _longest_value(self, stored: StoredFile, groups: Sequence[int], columns: Collection[str]) -> int:
        """The most bytes that a text or binary value can have, if the footer does not tell how many such values have:
        in a dictionary, a long value is small however often it comes. 0 if there is no such column.

        Arrow's and Spark's writers give no bounds of values of more than some KiB.
        """
        footer, wanted = self.column_footer(stored), frozenset(columns)
        longest = 0
        for group in groups:
            chunks = footer.row_group(group)
            for index in range(chunks.num_columns):
                chunk = chunks.column(index)
                named = chunk.path_in_schema in wanted or chunk.path_in_schema.partition(".")[0] in wanted
                if named and chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page and not _bounded(chunk):
                    longest = max(longest, chunk.total_uncompressed_size)
        return longest

    def _bytes(
        self, stored: StoredFile, groups: Sequence[int], *, columns: Mapping[str, float], row_bytes: float
    ) -> int:
        """About how many bytes the columns have as Arrow data.

        :param columns: for each column, the bytes of a value in the requested type, per byte in the file's type.
        """
        path, footer = stored.path, self.column_footer(stored)
        wanted, everything, rows = 0.0, 0, 0
        for group in groups:
            if (path, group) not in self._sizes:
                schema = self._file(stored).schema_arrow
                self._sizes[path, group] = _column_bytes(footer.row_group(group), schema)
            sizes = self._sizes[path, group]
            everything += sum(sizes.values())
            wanted += sum(sizes.get(name, 0) * factor for name, factor in columns.items())
            rows += footer.row_group(group).num_rows
        return max(int(wanted), int(row_bytes * rows * wanted / max(1, everything)))


def _chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Where a column chunk begins and ends in its file."""
    starts = [chunk.data_page_offset, *([chunk.dictionary_page_offset] if chunk.has_dictionary_page else [])]
    return min(starts), min(starts) + chunk.total_compressed_size


def _tail(source: pa.NativeFile) -> bytes:
    """The end of a Parquet file: its footer, the footer's size and the magic number, as far as they exist."""
    size = source.size()
    first = min(size, max(_TAIL, min(size // _TAIL_SHARE, _LONGEST_TAIL)))
    found = source.read_at(first, size - first)
    wanted = int.from_bytes(found[-END:][:4], "little") + END
    return found[-wanted:] if wanted <= first else source.read_at(min(wanted, size), max(0, size - wanted))


def _bounded(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether the statistics tell of the length of the values, or that there are none."""
    bounds = chunk.statistics
    return bounds is not None and (bounds.has_min_max or bounds.null_count == chunk.num_values)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _collected(batches: Iterable[pa.RecordBatch], budget_bytes: int) -> Iterator[pa.Table]:
    """The batches in tables of about the budget."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > budget_bytes:
            yield pa.Table.from_batches(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _portions(groups: Sequence[int], size: Callable[[Sequence[int]], int], budget_bytes: int) -> Iterator[list[int]]:
    """Adjacent row groups that together are within the budget, or a single one. pyarrow fetches all row groups of a
    call before it decodes the first."""
    portion: list[int] = []
    for group in groups:
        apart = bool(portion) and group != portion[-1] + 1
        if portion and (apart or size([*portion, group]) > budget_bytes):
            yield portion
            portion = []
        portion.append(group)
    if portion:
        yield portion


def _column_bytes(group: pq.RowGroupMetaData, schema: pa.Schema) -> dict[str, int]:
    """Bytes of a row group's columns as Arrow data, by name of the top-level column.

    The size in a footer is that of encoded values, and a dictionary can make it very small. So each value counts with
    the width of its type, and a string with the length of its bounds.
    """
    names = set(schema.names)
    sizes: dict[str, int] = {}
    for index in range(group.num_columns):
        chunk = group.column(index)
        path = chunk.path_in_schema
        name = path if path in names else next((n for n in names if path.startswith(f"{n}.")), path)
        width = _WIDTHS.get(chunk.physical_type, _DECIMAL)
        if name in names and pa.types.is_decimal(schema.field(name).type):
            width = _DECIMAL
        if chunk.physical_type == "BYTE_ARRAY":
            bounds = chunk.statistics
            known = bounds is not None and bounds.has_min_max
            width = _OFFSET + (max(len(bounds.min_raw), len(bounds.max_raw)) if known else _TYPICAL_LENGTH)
        sizes[name] = sizes.get(name, 0) + max(chunk.total_uncompressed_size, chunk.num_values * width)
    return sizes


def _growth(stored: pa.DataType, asked: pa.DataType) -> float:
    """How much wider values are in the requested type than in the file's: more than 1 if a column's type changed."""
    if stored == asked or not all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in (stored, asked)):
        return 1.0
    return max(1.0, asked.bit_width / stored.bit_width)


def _is_damage(error: Exception) -> bool:
    """Whether the file is damaged. pyarrow reports damage as a plain ``OSError``. An ``OSError`` with a number or of a
    subclass comes from the store (no connection, no permission), and may be temporary."""
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return True
    return type(error) is OSError and error.errno is None


def _named(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a file under the table's names."""
    return table if table.column_names == schema.names else table.rename_columns(schema.names)


def shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns in the schema's order and types. Columns that the table lacks are null."""
    if not schema.names:
        return table
    there, stored = set(table.column_names), settled(table)
    arrays = [
        _cast(stored.column(field.name), field.type) if field.name in there else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return settled(pa.table(arrays, schema=schema))


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return values if values.type == kind else values.cast(kind)
