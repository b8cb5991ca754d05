"""The ledger: what became of each version of each file, and of each piece of it, as Parquet files of the table.

A ledger file is sorted by (path, token, first block). Each commit adds one file. It takes along the rows of the newest
files while these have no more rows than the new file has by then. So there are few files however many commits there
were, and a row is rewritten a logarithmic number of times. Reading merges the files; for each piece the latest file
counts. Source: docs/table-format.md, section 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemerge._internal.parquet import ParquetFile, parquet_table
from lakemerge.errors import TableDamagedError
from lakemerge.format.ingests import NamedFile
from lakemerge.storage.base import Store

__all__ = [
    "LEDGER",
    "REJECTS",
    "Entry",
    "FileState",
    "absorbed",
    "appended",
    "columns_of",
    "ledger_tables",
    "rejects_tables",
    "write_ledger",
    "write_rejects",
]


class FileState(StrEnum):
    """What became of a version of a file."""

    SEEN = "seen"
    """It was found, and is not taken up yet."""
    SETTLING = "settling"
    """It may still be growing."""
    BINNED = "binned"
    """In a bin that is still open."""
    COMMITTED = "committed"
    FAILED = "failed"
    """Its window failed; ``retry`` puts it back."""
    CHANGED = "changed"
    """The file has another version than this one, or this one is refused because another was taken up."""
    GONE = "gone"
    """It was removed before it was taken up."""


LEDGER: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("block", pa.int32(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified_ns", pa.int64(), nullable=False),
        pa.field("seen_ms", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("window", pa.int64(), nullable=False),
        pa.field("blocks", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("rejected", pa.int64(), nullable=False),
        pa.field("records", pa.int64()),
        pa.field("columns", pa.string()),
        pa.field("reason", pa.string()),
    ]
)


REJECTS: Final = pa.schema(
    [
        pa.field("window", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("row", pa.int64()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""Columns of rejects files: the place of the record, its text, and why it was set aside."""


class Entry(NamedTuple):
    """A row of the ledger: a piece of one version of a file, and what became of it."""

    path: str
    token: str
    block: int
    """The first block of the piece."""
    size: int
    """The size of the file."""
    modified_ns: int
    seen_ms: int
    """When this version was first found: in a job with bins by the clock of the table's store, else by that of the host
    that found it."""
    state: FileState
    window: int
    """The window whose commit says so."""
    blocks: int = 0
    offset: int = 0
    length: int = 0
    rows: int = 0
    rejected: int = 0
    records: int | None = None
    """How many records the file has, if a bin with limits of records counted them."""
    columns: str | None = None
    """The digest of the file's columns, if a bin needed it: files with the same columns have the same."""
    reason: str | None = None

    @staticmethod
    def of(row: Sequence[object]) -> Entry:
        entry = Entry(*row)  # type: ignore[arg-type]
        return entry._replace(state=FileState(entry.state))

    @property
    def is_whole(self) -> bool:
        """Whether the piece is the whole file."""
        return self.offset == 0 and self.length == self.size


_IDENTITY: Final = ("path", "token", "block")
_BATCH_ROWS: Final = 65_536


def ledger_tables(store: Store, files: Sequence[NamedFile]) -> Iterator[pa.Table]:
    """The ledger as tables sorted by (path, token, block). No path is in two of them.

    Raises :class:`TableDamagedError` if a file is missing or is no ledger.
    """
    runs = [_Run(store, file) for file in files]
    try:
        while any(run.has_rows for run in runs):
            open_ends = [run.last_path for run in runs if not run.is_ended]
            bound = min(open_ends) if open_ends else None
            parts = [run.take_below(bound) for run in runs]
            if any(part.num_rows for part in parts):
                yield _latest(parts)
            else:  # a path goes on in the next batch
                for run in runs:
                    if not run.is_ended and run.last_path == bound:
                        run.read_on()
    finally:
        for run in runs:
            run.close()


def rejects_tables(store: Store, files: Sequence[NamedFile]) -> list[pa.Table]:
    """The tables of rejects files. Raises :class:`TableDamagedError` like :func:`ledger_tables`."""
    tables = []
    for file in files:
        with _readable(file.path), store.open_input(file.path, size_bytes=file.size_bytes) as data:
            found = parquet_table(data.read())
            if not found.schema.equals(REJECTS):
                raise pa.ArrowInvalid("it has other columns than rejects")
            tables.append(found)
    return tables


def write_ledger(store: Store, path: str, tables: Iterable[pa.Table]) -> NamedFile:
    """Write a ledger file from sorted tables."""
    return _written(store, path, tables, LEDGER, statistics=False)


def write_rejects(store: Store, path: str, tables: Iterable[pa.Table]) -> NamedFile:
    """Write a file of rejected records."""
    return _written(store, path, tables, REJECTS, statistics=True)


def _written(store: Store, path: str, tables: Iterable[pa.Table], schema: pa.Schema, *, statistics: bool) -> NamedFile:
    rows = 0
    with (
        store.open_output(path) as sink,
        pq.ParquetWriter(sink, schema, compression="zstd", write_statistics=statistics) as writer,
    ):
        for table in tables:
            writer.write_table(table)
            rows += table.num_rows
        writer.close()
        size = int(sink.tell())
    return NamedFile(path, size, rows)


def absorbed(files: Sequence[NamedFile], rows: int) -> int:
    """How many of the newest files a new file with so many rows takes along."""
    count = 0
    for file in reversed(files):
        if file.rows > rows:
            break
        rows += file.rows
        count += 1
    return count


def appended(store: Store, files: Sequence[NamedFile], entries: Sequence[Entry], path: str) -> tuple[NamedFile, ...]:
    """The ledger with more entries, written to a file at ``path``."""
    if not entries:
        return tuple(files)
    new = _latest([pa.Table.from_batches([columns_of(entries, LEDGER)])])
    kept = len(files) - absorbed(files, new.num_rows)
    tables: Iterable[pa.Table] = [new]
    if kept < len(files):
        tables = _over(ledger_tables(store, files[kept:]), new)
    return (*files[:kept], write_ledger(store, path, tables))


def _over(older: Iterator[pa.Table], new: pa.Table) -> Iterator[pa.Table]:
    """Sorted tables, with the rows of a newer table merged in."""
    for table in older:
        upto = pc.less_equal(new["path"], table["path"][-1])
        yield _latest([table, new.filter(upto)])
        new = new.filter(pc.invert(upto))
    if new.num_rows:
        yield new


def _latest(parts: Sequence[pa.Table]) -> pa.Table:
    """The rows of several tables, sorted. Of rows with the same (path, token, block), that of the last table stays."""
    ranked = pa.concat_tables(parts).combine_chunks()
    ranked = ranked.append_column("rank", pa.array(range(ranked.num_rows), pa.int64()))
    ranked = ranked.sort_by([(name, "ascending") for name in (*_IDENTITY, "rank")])
    if ranked.num_rows < 2:
        return ranked.drop_columns("rank")
    same = pa.array([True] * (ranked.num_rows - 1))
    for name in _IDENTITY:
        column = ranked[name].combine_chunks()
        same = pc.and_(same, pc.equal(column[:-1], column[1:]))
    last = pa.concat_arrays([pc.invert(same), pa.array([True])])
    return ranked.filter(last).drop_columns("rank")


class _Run:
    """One ledger file, as a merge reads it."""

    def __init__(self, store: Store, file: NamedFile) -> None:
        self._path = file.path
        self._held = LEDGER.empty_table()
        self.is_ended = False
        with _readable(file.path):
            self._file = store.open_input(file.path, size_bytes=file.size_bytes)
            parquet = ParquetFile(self._file)
            if not parquet.schema_arrow.equals(LEDGER):
                raise pa.ArrowInvalid("it has other columns than a ledger")
            self._batches = parquet.iter_batches(_BATCH_ROWS)
        self.read_on()

    @property
    def has_rows(self) -> bool:
        return self._held.num_rows > 0

    @property
    def last_path(self) -> str:
        return str(self._held["path"][-1].as_py())

    def read_on(self) -> None:
        with _readable(self._path):
            batch = next((batch for batch in self._batches if batch.num_rows), None)
        if batch is None:
            self.is_ended = True
        else:
            self._held = pa.concat_tables([self._held, pa.Table.from_batches([batch])])

    def take_below(self, bound: str | None) -> pa.Table:
        """Take the rows of paths below the bound out of the run; without a bound, all rows."""
        count = self._held.num_rows
        if bound is not None and count:
            count = pc.sum(pc.less(self._held["path"], bound)).as_py()
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        if not self._held.num_rows and not self.is_ended:
            self.read_on()
        return taken

    def close(self) -> None:
        self._file.close()


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # Arrow reports bad input as a plain OSError; other errors mean that the store failed.
        if isinstance(error, OSError) and type(error) not in (OSError, FileNotFoundError):
            raise
        raise TableDamagedError(f"{path!r}, a file of an ingest job, cannot be read: {error}", path=path) from error


def columns_of(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
