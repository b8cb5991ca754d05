"""Whether pyarrow can be asked for the column chunks of a Parquet footer.

pyarrow raises an error for almost all damage. But if it finds damage while it is asked for a chunk or its statistics,
the process ends, because Arrow's exceptions do not pass these calls (seen with pyarrow 26, as in apache/arrow#45283).
So this module looks for such damage first. Source: Apache Parquet format, parquet.thrift (FileMetaData, RowGroup,
ColumnChunk, ColumnMetaData, Statistics, SizeStatistics), in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge._internal.cache import Cache
from lakemerge.format.names import LOG_FOLDER

__all__ = ["END", "Footer", "LogFooters", "check_chunks"]

END = 8
"""Bytes after a footer."""

_NAMES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_TYPES = dict(enumerate(_NAMES))
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_DEEPEST = 16
"""The most structs and lists around a value. No valid footer has so many."""

_ROW_GROUPS = 4
_COLUMNS = 1
_META_DATA, _CRYPTO, _ENCRYPTED = 3, 8, 9
_TYPE, _PATH, _STATISTICS, _SIZES = 1, 3, 12, 16
_BOUNDS = (1, 2, 5, 6)
_LENGTHS, _REPETITIONS, _DEFINITIONS = 1, 2, 3


class Footer:
    """A Parquet file's footer, as pyarrow parsed it. Until it is checked, the footer's bytes are kept, too."""

    def __init__(self, tail: bytes) -> None:
        """``tail`` is the footer, its size and the magic number. If it is not, pyarrow raises an error."""
        self.metadata: pq.FileMetaData = pq.read_metadata(pa.BufferReader(tail))
        self._unchecked: bytes | None = tail[:-END]
        self._starts: list[int] | None = None

    @property
    def starts(self) -> list[int]:
        """The position of each row group's first row, and the number of rows."""
        if self._starts is None:
            groups = range(self.metadata.num_row_groups)
            self._starts = list(accumulate((self.metadata.row_group(group).num_rows for group in groups), initial=0))
        return self._starts

    @property
    def checked(self) -> pq.FileMetaData:
        """For callers that read about columns of row groups. Raises :class:`ValueError`; see :func:`check_chunks`."""
        unchecked = self._unchecked
        if unchecked is not None:
            check_chunks(unchecked, self.metadata)
            self._unchecked = None
        return self.metadata


_GROWTH: Final = 8
"""How much more a footer takes in memory than in its file."""


class LogFooters(Cache[str, Footer]):
    """Footers of log files, for all file slices that a read or a service merges. A log file has a row group for each of
    a thousand file slices, say, and each of them would parse the footer anew. A footer of 880 row groups and ten
    columns takes 19 ms, and 1,024 file slices with records of 52 commits would parse 52 of them each.

    Once it is full it takes no more. File slices ask for the same files in turn, so a footer that made room for another
    one would be gone when the next file slice needs it.

    :param memory_bytes: about what the footers may take.
    """

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(memory_bytes // _GROWTH)
        self._memory_bytes = memory_bytes

    def __reduce__(self) -> tuple[type[LogFooters], tuple[int]]:
        return LogFooters, (self._memory_bytes,)

    def keep(self, key: str, value: Footer, size_bytes: int) -> None:
        if key.startswith(f"{LOG_FOLDER}/") and self.has_room(size_bytes):
            super().keep(key, value, size_bytes)


def check_chunks(data: bytes, footer: pq.FileMetaData) -> None:
    """Raise :class:`ValueError`, which says what is wrong, for a footer whose column chunks pyarrow cannot read.

    :param data: the footer's bytes in the file.
    :param footer: the footer as pyarrow parsed it.
    """
    leaves = [_Leaf(footer.schema.column(index)) for index in range(len(footer.schema))]

    def check(group: Mapping[int, Any]) -> None:
        chunks = group[_COLUMNS]
        if len(chunks) != len(leaves):
            raise ValueError(f"a row group of {len(chunks)} columns, not {len(leaves)}")
        for leaf, chunk in zip(leaves, chunks, strict=True):
            leaf.check(chunk)

    try:
        _Reader(data, check).struct(0)[_ROW_GROUPS]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the footer's row groups cannot be read: {error!r}") from error


class _Leaf:
    """What the schema says about a column. The column's chunks have to say the same."""

    def __init__(self, column: pq.ColumnSchema) -> None:
        self._path = column.path
        self._type = column.physical_type
        self._width = column.length if self._type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(self._type)
        self._levels = {
            _REPETITIONS: column.max_repetition_level + 1,
            _DEFINITIONS: column.max_definition_level + 1,
        }

    def check(self, chunk: Mapping[int, Any]) -> None:
        if _CRYPTO in chunk or _ENCRYPTED in chunk:
            raise ValueError(f"column {self._path!r} is encrypted")
        told = chunk[_META_DATA]
        if b".".join(told[_PATH]) != self._path.encode():
            raise ValueError(f"a chunk in place of one of column {self._path!r}")
        if _TYPES.get(told[_TYPE]) != self._type:
            raise ValueError(f"a chunk of column {self._path!r} is {_TYPES.get(told[_TYPE])}, not {self._type}")
        for bound in _BOUNDS:
            value = told.get(_STATISTICS, {}).get(bound)
            if value is not None and self._width is not None and len(value) != self._width:
                raise ValueError(f"a bound of column {self._path!r} has {len(value)} bytes, not {self._width}")
        sizes = told.get(_SIZES, {})
        for levels, count in self._levels.items():
            if len(sizes.get(levels, ())) not in (0, count):
                raise ValueError(f"column {self._path!r} has {count} levels, not {len(sizes[levels])}")
        if _LENGTHS in sizes and self._type != "BYTE_ARRAY":
            raise ValueError(f"column {self._path!r} tells lengths, but is {self._type}")


class _Reader:
    """Reads Thrift's compact protocol. A struct becomes a mapping from field numbers to values.

    :param group: is called with each row group, which is then forgotten. All of them as Python's values would take a
        hundred times the size of the footer.
    """

    def __init__(self, data: bytes, group: Callable[[Any], None]) -> None:
        self._data = data
        self._at = 0
        self._group = group

    def struct(self, depth: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        data = self._data
        while True:
            head = data[self._at]
            self._at += 1
            kind = head & 15
            if kind == _STOP:
                return found
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if number in found:  # pyarrow's reader would merge the two
                raise ValueError(f"the footer has a struct with two fields {number}")
            if depth == 0 and number == _ROW_GROUPS and kind == _LIST:
                element, size = self._list_head()
                for _ in range(size):
                    self._group(self._value(element, depth + 1))
                found[number] = None
            else:
                found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"the footer's values are nested deeper than {_DEEPEST}")
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            element, size = self._list_head()
            return [self._value(element, depth + 1) for _ in range(size)]
        if kind == _MAP:
            size = self._varint()
            kinds = self._bytes(1)[0] if size else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(size)]
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._bytes(1)[0]
        if kind in (_DOUBLE, _UUID):
            return self._bytes(8 if kind == _DOUBLE else 16)
        raise ValueError(f"the footer has a value of type {kind}")

    def _list_head(self) -> tuple[int, int]:
        """The type of a list's elements, and how many there are."""
        head = self._bytes(1)[0]
        return head & 15, head >> 4 if head >> 4 < 15 else self._varint()

    def _bytes(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError("the footer ends within a value")
        return self._data[start : self._at]

    def _varint(self) -> int:
        value = shift = 0
        data = self._data
        while True:
            byte = data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("the footer has a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
