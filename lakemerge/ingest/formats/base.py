"""What a format does for ingest: say what a file holds, and turn pieces of it into rows of the window's frame."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from lakemerge.ingest.casting import Problems
from lakemerge.ingest.source import SourceFile
from lakemerge.write.carried import Sets

__all__ = [
    "FileColumns",
    "Format",
    "Origin",
    "Parsed",
    "Peek",
    "Piece",
    "Reject",
    "WindowSchema",
    "folder_values",
    "with_folders",
]

_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Peek:
    """What a file says about itself before its records."""

    names: tuple[str, ...]
    """Its columns, in its order."""
    types: tuple[pa.DataType, ...] | None = None
    """``None``: they are texts."""
    data_start: int = 0
    """How many bytes come before the first record."""
    folders: tuple[str, ...] = ()
    """Names, in lower case, of the partition folders of its path that it has no column of."""

    @property
    def likeness(self) -> str:
        """A digest of names and types. Files with the same digest can share a window."""
        types = [""] * len(self.names) if self.types is None else [str(kind) for kind in self.types]
        columns = sorted(f"{name.lower()} {kind}" for name, kind in zip(self.names, types, strict=True))
        columns += [f"{name}=" for name in self.folders]
        return hashlib.sha256("\n".join(columns).encode()).hexdigest()[:16]


def folder_values(path: str) -> dict[str, str | None]:
    """The values of the partition folders of a path (``day=2020-01-02``), by their names in lower case.

    Source: Hive's and Spark's layout of partitioned folders, with ``%3A`` for a colon and a word for null.
    """
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            found[unquote(name).lower()] = None if value == _NULL_FOLDER else unquote(value)
    return found


def with_folders(peek: Peek, path: str) -> Peek:
    """What a file says, with the partition folders of its path that it has no column of."""
    names = {name.lower() for name in peek.names}
    folders = tuple(sorted(folder_values(path).keys() - names)) if peek.names else ()
    return replace(peek, folders=folders) if folders else peek


class Piece(NamedTuple):
    """Neighbouring blocks of one version of a file, read as one. Picklable."""

    file: SourceFile
    block: int
    """The number of the first block."""
    blocks: int
    offset: int
    length: int
    peek: Peek | None = None
    """``None``: the format says nothing before its records."""
    landed: str | None = None
    """Where the file landed, if it is read from elsewhere: its folders there have values."""

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class WindowSchema:
    """The columns of a window. Picklable."""

    schema: pa.Schema
    """The table's columns in its order, with its types, and then other columns. All fields are nullable here."""
    rescued: str | None = None
    """The column for fields for which the table has no column, and for values that do not fit their column."""
    room: int | None = None
    """How many columns of Parquet the table may get for fields for which it has none; ``None``: it gets none."""
    ignores: bool = False
    """Whether the caller named the columns, so that others are left out on purpose."""
    strict: frozenset[str] = frozenset()
    """Columns whose values are needed. A record with a value that does not fit them is bad, also where other values
    that do not fit are rescued."""
    fresh: frozenset[str] = frozenset()
    """Columns that the table gets with these records."""
    differs: bool = False
    """Whether what a record does not name is left unset, so that :attr:`Parsed.named` is wanted."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Lower-case name -> column number. The rescued column is left out, because no field of a file fills it."""

    @staticmethod
    def of(
        schema: pa.Schema,
        *,
        rescued: str | None = None,
        room: int | None = None,
        ignores: bool = False,
        strict: Collection[str] = (),
        fresh: Collection[str] = (),
        differs: bool = False,
    ) -> WindowSchema:
        loose = pa.schema([column.with_nullable(True) for column in schema]).remove_metadata()
        places = {column.name.lower(): number for number, column in enumerate(schema) if column.name != rescued}
        return WindowSchema(loose, rescued, room, ignores, frozenset(strict), frozenset(fresh), differs, places)

    @property
    def grows(self) -> bool:
        return self.room is not None


class FileColumns(NamedTuple):
    """Columns of the table that get something of the file; ``None``: none does."""

    path: str | None = None
    """Its path, as text."""
    time: str | None = None
    """The time of its last change, by the clock of its folder or bucket."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self if name is not None)


class Origin(NamedTuple):
    """Where a record is in its file."""

    text: str
    """The record as it is in the file, or as JSON if its format is not text."""
    offset: int | None = None
    """The place of its first byte; for a compressed file, the place in the decompressed bytes."""
    row: int | None = None
    """The number of the row, if the format has no lines."""


class Reject(NamedTuple):
    """A record that is not taken up."""

    path: str
    origin: Origin
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """Records of a piece, as rows of the frame."""

    rows: pa.RecordBatch
    problems: Problems
    """Rows that must not be taken up, and why."""
    origin: Callable[[int], Origin]
    """Gives the origin of a row."""
    unread: tuple[tuple[Origin, str], ...] = ()
    """Records that did not become rows, and why."""
    new: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Fields without a column in the frame, and the types of their values, if the frame may grow."""
    named: Sets | None = None
    """The columns of the frame that each row names, if the format has records that may lack some; ``None``: all."""


class Format(ABC):
    """One file format with its options. Picklable."""

    name: ClassVar[str]
    describes_itself: ClassVar[bool] = True
    """Whether a file says which columns it has."""
    records_differ: ClassVar[bool] = False
    """Whether a record may lack a column that others name."""

    @abstractmethod
    def splits(self, path: str) -> bool:
        """Whether a file of that name can be read in blocks."""

    @abstractmethod
    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        """What the file says about its columns."""

    @abstractmethod
    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        """How many records a file has."""

    def line_of(self, data: pa.NativeFile, path: str, offset: int) -> int | None:
        """The number of the line that holds a byte, from 1 on. ``data`` stands at the beginning of the file. ``None``:
        the format has no lines, or they are too many to be counted for a message."""
        return None

    @abstractmethod
    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        """The records of a piece, in their order, in portions of some megabytes.

        If the file as a whole is damaged, pyarrow's error is raised."""
