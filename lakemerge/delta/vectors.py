"""Deletion vectors: which rows of a data file do not count (Delta protocol, "Deletion Vectors").

A vector names a place in a file of vectors below the table's root. The file is one byte, the version 1, and then for
each vector its size (big endian), its data and the CRC-32 of the data (big endian). The data are the number 1681511377
(little endian) and a 64-bit Roaring bitmap in its portable form. The offset of a vector is
where its size stands. The size counts the data alone.

Vectors inside the log and vectors at absolute paths are refused by name.
"""

from __future__ import annotations

import base64
import re
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lakemerge.errors import InputError, TableDamagedError, UnsupportedFeatureError
from lakemerge.storage.base import Store, check_path, is_own_failure

__all__ = ["DeletionVector", "EncodedVector", "encode_vector", "read_vector", "vector_file", "write_vectors"]

Bools = npt.NDArray[np.bool_]

_UUID_CHARS: Final = 20
_MAGIC: Final = 1681511377
_VERSION: Final = 1
_NO_RUNS: Final = 12346
_RUNS: Final = 12347
_NO_OFFSETS_BELOW: Final = 4
"""Bitmaps with runs have no offsets if they have fewer containers."""
_ARRAY_LIMIT: Final = 4096
"""A container of more values is a bitmap."""
_CONTAINER: Final = 1 << 16

_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_B85, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)
_STRANGE: Final = re.compile(f"[^{re.escape(_Z85.decode())}]")


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where a vector is."""

    location: str
    """The folder of its file, which may be empty, and the file's UUID in Z85."""
    offset: int
    size_bytes: int
    """The size of its data."""
    cardinality: int
    """How many rows it takes away."""

    @property
    def id(self) -> str:
        """What tells two vectors of a data file apart (Delta protocol, "Derived Fields")."""
        return f"u{self.location}@{self.offset}"

    @property
    def path(self) -> str:
        """The path of its file. Raises :class:`InputError` if the location is none."""
        folder, spelled = self.location[:-_UUID_CHARS], self.location[-_UUID_CHARS:]
        if len(spelled) != _UUID_CHARS or _STRANGE.search(spelled):
            raise InputError(f"{self.location!r} is not the place of a deletion vector", location=self.location)
        try:
            name = uuid.UUID(bytes=base64.b85decode(spelled.encode().translate(_FROM_Z85)))
        except ValueError as error:
            raise InputError(f"{self.location!r} is not the place of a deletion vector: {error}") from error
        return check_path(f"{folder}/{_name(name)}" if folder else _name(name))

    def to_json(self) -> dict[str, object]:
        return {
            "storageType": "u",
            "pathOrInlineDv": self.location,
            "offset": self.offset,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.cardinality,
        }

    @staticmethod
    def from_json(fields: object) -> DeletionVector | None:
        """The vector of an action; ``None`` for ``None``.

        Raises ``ValueError`` if the fields are not those of a vector, and :class:`UnsupportedFeatureError` for a
        storage type that is not understood.
        """
        if fields is None:
            return None
        if not isinstance(fields, Mapping):
            raise ValueError("a deletion vector is not a JSON object")
        kind = fields.get("storageType")
        if kind in ("i", "p"):
            where = "in the log itself" if kind == "i" else "at absolute paths"
            raise UnsupportedFeatureError(
                f"the table has deletionVectors of storage type {kind!r}, which are {where}; those of type 'u' are "
                "understood. A rewrite of the table by its own engine (REORG TABLE ... APPLY (PURGE)) removes them",
                features=("deletionVectors",),
            )
        if kind != "u":
            raise ValueError(f"the storage type of a deletion vector is {kind!r}")
        location = fields.get("pathOrInlineDv")
        offset = fields.get("offset")
        numbers = (0 if offset is None else offset, fields.get("sizeInBytes"), fields.get("cardinality"))
        if not isinstance(location, str):
            raise ValueError("a deletion vector has no place")
        whole = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
        if len(whole) < len(numbers) or min(whole) < 0:
            raise ValueError("a number of a deletion vector is missing or not an integer")
        vector = DeletionVector(location, *whole)
        _ = vector.path  # which says whether there is one
        return vector


def vector_file(folder: str, name: uuid.UUID) -> tuple[str, str]:
    """The path of a file of vectors, and the location of its vectors.

    :param folder: a folder at the root, of letters and digits alone: other readers take no other.
    """
    return f"{folder}/{_name(name)}", folder + base64.b85encode(name.bytes).translate(_TO_Z85).decode()


@dataclass(frozen=True, slots=True)
class EncodedVector:
    """A vector that is in no file yet."""

    data: bytes
    cardinality: int


def encode_vector(taken: Bools) -> EncodedVector:
    """The vector that takes rows away, at least one.

    :param taken: whether each row is taken away.
    """
    rows = np.flatnonzero(taken)
    if not len(rows):
        raise InputError("a deletion vector that takes no row away is never written")
    return EncodedVector(_MAGIC.to_bytes(4, "little") + _encoded(rows), len(rows))


def write_vectors(store: Store, folder: str, name: uuid.UUID, vectors: Iterable[EncodedVector]) -> list[DeletionVector]:
    """Write vectors, in order, as one new file."""
    path, location = vector_file(folder, name)
    written, at = [], 1
    with store.open_output(path) as sink:
        sink.write(bytes([_VERSION]))
        for vector in vectors:
            size, checksum = (n.to_bytes(4, "big") for n in (len(vector.data), zlib.crc32(vector.data)))
            sink.write(size + vector.data + checksum)
            written.append(DeletionVector(location, at, len(vector.data), vector.cardinality))
            at += len(vector.data) + 8
    return written


def read_vector(store: Store, vector: DeletionVector, *, rows: int | None = None) -> Bools:
    """Whether each row of a file is taken away. It ends after the last one that is, or is as long as ``rows`` says.

    Raises :class:`TableDamagedError` for a file that does not hold the vector that the log names, or one that takes
    away rows that the file does not have.
    """
    path = vector.path
    try:
        with store.open_input(path) as source:
            source.seek(vector.offset)
            found = source.read(vector.size_bytes + 8)
    except FileNotFoundError as error:
        raise TableDamagedError(f"the deletion vectors {path!r} are missing", path=path) from error
    except (OSError, ValueError) as error:
        if not is_own_failure(error):
            raise
        raise TableDamagedError(f"the deletion vectors {path!r} cannot be read: {error}", path=path) from error
    data = found[4:-4]
    if len(found) < vector.size_bytes + 8 or int.from_bytes(found[:4], "big") != vector.size_bytes:
        raise _damaged(path, vector, "the file has no vector of its size there")
    if zlib.crc32(data) != int.from_bytes(found[-4:], "big"):
        raise _damaged(path, vector, "its checksum is wrong")
    if int.from_bytes(data[:4], "little") != _MAGIC:
        raise _damaged(path, vector, "it is of an unknown kind")
    try:
        taken = _decoded(memoryview(data)[4:])
    except (ValueError, IndexError) as error:
        raise _damaged(path, vector, str(error)) from error
    if len(taken) != vector.cardinality:
        raise _damaged(path, vector, f"it takes {len(taken)} rows away, and the log says {vector.cardinality}")
    count = int(taken[-1]) + 1 if len(taken) else 0
    if rows is not None and count > rows:
        raise _damaged(path, vector, f"it takes row {count - 1} away of a file of {rows} rows")
    bits = np.zeros(count if rows is None else rows, dtype=np.bool_)
    bits[taken] = True
    return bits


def _name(name: uuid.UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _damaged(path: str, vector: DeletionVector, problem: str) -> TableDamagedError:
    return TableDamagedError(f"the deletion vector at {vector.offset} of {path!r} is damaged: {problem}", path=path)


# 64-bit Roaring bitmaps: https://github.com/RoaringBitmap/RoaringFormatSpec


def _encoded(rows: npt.NDArray[np.int64]) -> bytes:
    """Ascending row numbers, of which each is below 2^32. A container is the numbers of the same upper bits."""
    if rows[-1] >> 32:
        raise InputError("a file of more than 2^32 rows has no deletion vector here")
    highs, starts = np.unique(rows >> 16, return_index=True)
    lows = (rows & (_CONTAINER - 1)).astype("<u2")
    parts = [_container(part) for part in np.split(lows, starts[1:])]
    counts = np.diff(starts, append=len(rows))
    keys = np.empty((len(highs), 2), dtype="<u2")
    keys[:, 0], keys[:, 1] = highs, counts - 1
    begin = 8 + 8 * len(highs)
    offsets = begin + np.cumsum([0, *(len(part) for part in parts[:-1])])
    head = np.array([_NO_RUNS, len(highs)], dtype="<u4").tobytes()
    whole = b"".join([head, keys.tobytes(), offsets.astype("<u4").tobytes(), *parts])
    # One bitmap, of the numbers whose upper 32 bits are 0.
    return (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + whole


def _container(lows: npt.NDArray[np.uint16]) -> bytes:
    if len(lows) <= _ARRAY_LIMIT:
        return lows.tobytes()
    bits = np.zeros(_CONTAINER, dtype=np.bool_)
    bits[lows] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _decoded(data: memoryview) -> npt.NDArray[np.int64]:
    """The numbers in a bitmap, ascending. Raises ``ValueError`` and ``IndexError`` if it is none."""
    count, at = int.from_bytes(data[:8], "little"), 8
    found = [np.empty(0, dtype=np.int64)]
    for _ in range(count):
        high = int.from_bytes(data[at : at + 4], "little")
        if high >> 31:
            raise ValueError("it takes rows away beyond any file")
        rows, size = _decoded_32(data[at + 4 :])
        found.append(rows + (high << 32))
        at += 4 + size
    if at != len(data):
        raise ValueError("it does not end where its bitmaps end")
    rows = np.concatenate(found)
    if (rows[1:] <= rows[:-1]).any():
        raise ValueError("its rows are not in order")
    return rows


def _decoded_32(data: memoryview) -> tuple[npt.NDArray[np.int64], int]:
    """The numbers in a 32-bit bitmap, and how many bytes it has."""
    cookie = int.from_bytes(data[:4], "little")
    is_run = np.empty(0, dtype=np.bool_)
    if cookie == _NO_RUNS:
        count, at = int.from_bytes(data[4:8], "little"), 8
    elif cookie & 0xFFFF == _RUNS:
        count, at = (cookie >> 16) + 1, 4 + ((cookie >> 16) + 8) // 8
        is_run = np.unpackbits(np.frombuffer(data[4:at], np.uint8), bitorder="little").astype(np.bool_)
    else:
        raise ValueError("it is not a Roaring bitmap")
    if count > _CONTAINER:
        raise ValueError("it is not a Roaring bitmap")
    keys = np.frombuffer(data[at : at + 4 * count], "<u2").reshape(count, 2).astype(np.int64)
    at += 4 * count
    if not len(is_run) or count >= _NO_OFFSETS_BELOW:
        at += 4 * count
    found = [np.empty(0, dtype=np.int64)]
    for place, (high, size) in enumerate(keys.tolist()):
        runs = bool(len(is_run) and is_run[place])
        rows, length = _decoded_container(data[at:], size + 1, runs=runs)
        if len(rows) != size + 1:
            raise ValueError("it has another number of rows than it says")
        found.append(rows + (high << 16))
        at += length
    return np.concatenate(found), at


def _decoded_container(data: memoryview, count: int, *, runs: bool) -> tuple[npt.NDArray[np.int64], int]:
    if runs:
        number = int.from_bytes(data[:2], "little")
        pairs = np.frombuffer(data[2 : 2 + 4 * number], "<u2").reshape(number, 2).astype(np.int64)
        lengths = pairs[:, 1] + 1
        before = np.cumsum(lengths) - lengths
        rows = np.repeat(pairs[:, 0] - before, lengths) + np.arange(int(lengths.sum()))
        return rows, 2 + 4 * number
    if count <= _ARRAY_LIMIT:
        return np.frombuffer(data[: 2 * count], "<u2").astype(np.int64), 2 * count
    bits = np.unpackbits(np.frombuffer(data[: _CONTAINER // 8], np.uint8), bitorder="little")
    return np.flatnonzero(bits), _CONTAINER // 8
