"""What a format does for ingest: say what a file holds, and turn pieces of it into rows of the window's frame."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pyarrow as pa

from lakemerge.ingest.casting import Problems
from lakemerge.ingest.source import SourceFile

__all__ = ["Format", "Frame", "Origin", "Parsed", "Peek", "Piece", "Reject"]


@dataclass(frozen=True, slots=True)
class Peek:
    """What a file says of itself before its records."""

    names: tuple[str, ...]
    """Its columns, in its order."""
    types: tuple[pa.DataType, ...] | None = None
    """``None``: they are texts."""
    data_start: int = 0
    """Bytes before the first record."""

    @property
    def likeness(self) -> str:
        """The same for files whose records can share a window: a digest of names and types."""
        types = [""] * len(self.names) if self.types is None else [str(kind) for kind in self.types]
        columns = sorted(f"{name.lower()} {kind}" for name, kind in zip(self.names, types, strict=True))
        return hashlib.sha256("\n".join(columns).encode()).hexdigest()[:16]


class Piece(NamedTuple):
    """Neighbouring blocks of one version of a file, read as one. Picklable."""

    file: SourceFile
    block: int
    """Number of the first one."""
    blocks: int
    offset: int
    length: int
    peek: Peek | None = None
    """``None``: the format says nothing before its records."""

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Frame:
    """The columns of a window. Picklable."""

    schema: pa.Schema
    """In the order of the table, with its types; then what is not the table's. What may be null is not said here."""
    rescued: str | None = None
    """The column that takes what the table has no column for."""
    grows: bool = False
    """Whether the table gets columns for fields of records that it has none for."""
    ignores: bool = False
    """Whether the caller named the columns, so that others are left out knowingly."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Column numbers by lower-case name, but for the rescued column, which no field of a file fills."""

    @staticmethod
    def of(schema: pa.Schema, *, rescued: str | None = None, grows: bool = False, ignores: bool = False) -> Frame:
        loose = pa.schema([column.with_nullable(True) for column in schema]).remove_metadata()
        places = {column.name.lower(): number for number, column in enumerate(schema) if column.name != rescued}
        return Frame(loose, rescued, grows, ignores, places)


class Origin(NamedTuple):
    """Where a record is in its file."""

    text: str
    """As it is there, or as JSON where its format has no text."""
    offset: int | None = None
    """The place of its first byte; in a compressed file, the place in what the file holds."""
    row: int | None = None
    """Its number, where the format has no lines."""


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
    """Rows that are not to be taken up, and why."""
    origin: Callable[[int], Origin]
    """Gives the origin of a row."""
    unread: tuple[tuple[Origin, str], ...] = ()
    """Records that did not become rows, and why."""
    new: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Fields that the frame has no column for, where it may get them, and the types of their values."""


class Format(ABC):
    """One file format with its options. Picklable."""

    name: ClassVar[str]
    describes_itself: ClassVar[bool] = True
    """Whether files say which columns they have."""

    @abstractmethod
    def splits(self, path: str) -> bool:
        """Whether a file of that name can be read in blocks."""

    @abstractmethod
    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        """What the file says of its columns."""

    @abstractmethod
    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        """How many records a file has."""

    @abstractmethod
    def parsed(self, data: pa.NativeFile, piece: Piece, frame: Frame) -> Iterator[Parsed]:
        """The records of a piece, in their order, in portions of some megabytes.

        Raises what pyarrow raises for a file that is damaged as a whole."""
