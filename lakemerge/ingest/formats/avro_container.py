"""Avro's container: header, blocks and codecs, and its schema as types of Arrow.

fastavro decodes the records, but what it is given is judged before: a container that is cut or foreign, or a schema
that nests without end, would end in errors of every kind, or end the process. Each block is unpacked here, so that
every codec of the specification is there without further packages, and it must be used up exactly: else a length in
it is wrong, and a value may be, too.
Source: Apache Avro specification 1.12, "Object Container Files" and "Logical Types".
"""

from __future__ import annotations

import bz2
import importlib
import io
import json
import lzma
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from lakemerge.errors import DependencyMissingError, LakeMergeError
from lakemerge.ingest.casting import EITHER
from lakemerge.ingest.formats.record_rows import MAX_VALUE_LEVELS, nests_deeper
from lakemerge.ingest.logical import (
    CONNECT_DECIMAL,
    CONNECT_TEXTS,
    CONNECT_TIMES,
    VARIABLE_DECIMAL,
    Clock,
    Day,
    Moment,
    Span,
    unscaled,
    zoneless,
)
from lakemerge.ingest.source import FileUnreadableError
from mergers.interrupts import is_interrupt

__all__ = ["Container"]

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_SCHEMA_LEVELS: Final = 250
"""How deep the JSON of a schema nests: about four levels for a record in a record."""
_MOST_LEAVES: Final = 100_000
"""So many fields, with those of named types wherever they are used."""
_MOST_EMPTY: Final = 1 << 20
"""More records than bytes in a block are believed up to this number."""
_SNAPPY_RATIO: Final = 64
_MOST_BYTES: Final = 1 << 30
"""Bytes of a block once it is unpacked."""
_OWN: Final = "lakemerge"
"""The name by which fastavro calls the decoders here. All other logical types are taken out of the schema."""


@dataclass(slots=True)
class Container:
    """An open file, read up to its first block. Raises :class:`FileUnreadableError` for all that is wrong with it."""

    data: pa.NativeFile
    codec: str
    types: _Type
    """The type of a record."""
    schema: Any
    """The schema for fastavro."""
    sync: bytes

    @staticmethod
    def opened(data: pa.NativeFile) -> Container:
        if _exactly(data, len(_MAGIC)) != _MAGIC:
            raise FileUnreadableError("it is not an Avro file: it does not begin with 'Obj' and 1")
        meta: dict[bytes, bytes] = {}
        while count := _long(data):
            if count < 0:
                _long(data)  # the size of the part
            for _ in range(abs(count)):
                key = _exactly(data, _long(data))
                meta[key] = _exactly(data, _long(data))
        sync = _exactly(data, _SYNC_BYTES)
        codec = meta.get(b"avro.codec", b"null").decode()
        if codec not in _CODECS:
            raise FileUnreadableError(
                f"its codec is {codec!r}, and Avro's specification has {', '.join(_CODECS)}: write it with one of these"
            )
        try:
            given = json.loads(meta[b"avro.schema"])
        except (KeyError, ValueError, RecursionError) as error:
            raise FileUnreadableError("it has no readable schema") from error
        if nests_deeper(given, _SCHEMA_LEVELS):
            raise FileUnreadableError("its schema nests too deeply")
        walk = _Walk()
        schema, kind = walk.of(given, "")
        return Container(data, codec, kind, schema, sync)

    def counts(self) -> Iterator[int]:
        """The numbers of records of the blocks. No block is read."""
        while (head := self._head()) is not None:
            count, size = head
            self.data.seek(self.data.tell() + size)
            self._check_sync()
            yield count

    def records(self) -> Iterator[Any]:
        """The values, one after the other. Times and decimals are those of :mod:`lakemerge.ingest.logical`."""
        stream = _Stream(self)
        try:
            for block in fastavro().block_reader(stream):
                yield from block
                if block.bytes_.tell() != stream.size:
                    raise FileUnreadableError("it is damaged: the records of a block do not end where the block does")
        except (LakeMergeError, OSError):
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            raise FileUnreadableError(f"it is damaged: {error!r}") from error

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """The number of records of each block, and its bytes, unpacked."""
        while (head := self._head()) is not None:
            count, size = head
            packed = _exactly(self.data, size)
            self._check_sync()
            try:
                unpacked = _CODECS[self.codec](packed)
            except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                raise FileUnreadableError(f"a block cannot be unpacked by {self.codec}: {error}") from error
            if count > len(unpacked) and count > _MOST_EMPTY:
                raise FileUnreadableError(f"it is damaged: a block of {len(unpacked)} bytes claims {count:,} records")
            yield count, unpacked

    def _head(self) -> tuple[int, int] | None:
        if self.data.tell() >= self.data.size():
            return None
        count, size = _long(self.data), _long(self.data)
        if count < 0:
            raise FileUnreadableError("it is damaged: a block has a negative number of records")
        return count, size

    def _check_sync(self) -> None:
        if _exactly(self.data, _SYNC_BYTES) != self.sync:
            raise FileUnreadableError("it is damaged: the mark at the end of a block is not that of the file")


class _Stream:
    """The container once more, unpacked and with the schema for fastavro, as a file that is read from front to end.

    Behind the bytes of a block there is one more. If a record reads it, a length in the block goes beyond its end."""

    def __init__(self, container: Container) -> None:
        self._sync = container.sync
        self._blocks = container.blocks()
        meta = {b"avro.schema": json.dumps(container.schema).encode(), b"avro.codec": b"null"}
        parts = [part for pair in meta.items() for text in pair for part in (_coded(len(text)), text)]
        self._part = io.BytesIO(_MAGIC + _coded(len(meta)) + b"".join(parts) + _coded(0) + self._sync)
        self.size = 0
        """Bytes of the last block."""

        self._before = 0

    def tell(self) -> int:
        return self._before + self._part.tell()

    def read(self, size: int = -1) -> bytes:
        found = self._part.read(size)
        if found or not size:
            return found
        block = next(self._blocks, None)
        if block is None:
            return b""
        count, data = block
        self.size = len(data)
        self._before += self._part.tell()
        self._part = io.BytesIO(_coded(count) + _coded(len(data) + 1) + data + b"\0" + self._sync)
        return self._part.read(size)


@dataclass(frozen=True, slots=True)
class _Type:
    arrow: pa.DataType
    fields: tuple[tuple[str, pa.DataType], ...] | None = None
    """The fields of a record; ``None`` for other types."""
    leaves: int = 1
    levels: int = 0
    is_empty: bool = False
    """Whether a value may take no byte at all."""


@dataclass(slots=True)
class _Walk:
    """Goes through a schema once. Named types are known by their full names."""

    names: dict[str, _Type | None] = field(default_factory=dict)
    """``None``: the type is not complete yet."""

    def of(self, given: Any, space: str) -> tuple[Any, _Type]:
        """The schema for fastavro, and its type.

        :param space: the namespace around it.
        """
        if isinstance(given, str):
            return self._named(given, space)
        if isinstance(given, list):
            return self._union(given, space)
        if not isinstance(given, dict) or "type" not in given:
            raise FileUnreadableError(f"its schema has a part that is not a schema: {str(given)[:80]}")
        inner = given["type"]
        kept = {name: value for name, value in given.items() if name != "logicalType"}
        if inner == "array":
            items, kind = self.of(given.get("items"), space)
            if kind.is_empty:
                raise FileUnreadableError("its schema has an array of values without bytes")
            return kept | {"items": items}, _Type(pa.list_(kind.arrow), None, kind.leaves, kind.levels + 1)
        if inner == "map":
            values, kind = self.of(given.get("values"), space)
            arrow = pa.map_(pa.string(), kind.arrow)
            return kept | {"values": values}, _Type(arrow, None, kind.leaves + 1, kind.levels + 1)
        if inner in ("record", "error"):
            return self._record(given, kept, space)
        if inner in ("enum", "fixed"):
            return self._small(given, kept, space)
        if isinstance(inner, str) and inner in _PRIMITIVE:
            return _meant(given, kept, inner, _Type(_PRIMITIVE[inner], is_empty=inner == "null"))
        return self.of(inner, space)

    def _named(self, name: str, space: str) -> tuple[Any, _Type]:
        if name in _PRIMITIVE:
            return name, _Type(_PRIMITIVE[name], is_empty=name == "null")
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self.names and name in self.names:
            full = name
        if full not in self.names:
            raise FileUnreadableError(f"its schema names a type that it does not have: {name!r}")
        kind = self.names[full]
        if kind is None:
            raise FileUnreadableError(f"its type {name!r} contains itself, and no column can nest without end")
        return full, kind

    def _union(self, given: list[Any], space: str) -> tuple[Any, _Type]:
        parts = [self.of(part, space) for part in given]
        kinds = [kind for part, kind in parts if part != "null"]
        schemas = [schema for schema, _ in parts]
        if len(kinds) == 1:
            one = kinds[0]
            return schemas, _Type(one.arrow, one.fields, one.leaves, one.levels)
        levels = max((kind.levels for kind in kinds), default=0)
        both = {kind.arrow for kind in kinds} == {pa.int32(), pa.int64()}
        return schemas, _Type(pa.int64() if both else pa.string(), None, 1, levels)

    def _record(self, given: Mapping[str, Any], kept: dict[str, Any], space: str) -> tuple[Any, _Type]:
        full = _full_name(given, space)
        self.names[full] = None
        fields, kinds = [], []
        for part in given.get("fields") or ():
            if not isinstance(part, dict) or not isinstance(part.get("name"), str):
                raise FileUnreadableError(f"its schema has a field without a name in {full!r}")
            schema, kind = self.of(part.get("type"), full.rpartition(".")[0])
            # A default is for schemas that resolve into others; here it could only be wrong.
            fields.append({"name": part["name"], "type": schema})
            kinds.append((part["name"], kind))
        leaves = sum(kind.leaves for _, kind in kinds)
        levels = 1 + max((kind.levels for _, kind in kinds), default=0)
        if leaves > _MOST_LEAVES:
            raise FileUnreadableError(f"its schema has more than {_MOST_LEAVES:,} fields")
        if levels > MAX_VALUE_LEVELS:
            raise FileUnreadableError(f"its schema nests more than {MAX_VALUE_LEVELS} levels deep")
        own = tuple((name, kind.arrow) for name, kind in kinds)
        made = _Type(pa.struct(list(own)), own, leaves, levels, all(kind.is_empty for _, kind in kinds))
        schema = {"type": "record", "name": full, "fields": fields}
        if given.get("connect.name") == VARIABLE_DECIMAL and {name for name, _ in own} == {"scale", "value"}:
            schema |= {"logicalType": _OWN, _OWN: "variable-decimal"}
            made = _Type(pa.string())
        self.names[full] = made
        return schema, made

    def _small(self, given: Mapping[str, Any], kept: dict[str, Any], space: str) -> tuple[Any, _Type]:
        """An enum or a type of fixed size."""
        full = _full_name(given, space)
        kept = {name: value for name, value in kept.items() if name not in ("namespace", "default")} | {"name": full}
        if given["type"] == "enum":
            kind = _Type(pa.string())
        else:
            size = given.get("size")
            if type(size) is not int or size < 0:
                raise FileUnreadableError(f"its type {full!r} has no size")
            kept, kind = _meant(given, kept, "fixed", _Type(pa.binary(), is_empty=not size))
        self.names[full] = kind
        return kept, kind


def _full_name(given: Mapping[str, Any], space: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise FileUnreadableError("its schema has a type without a name")
    inner = given.get("namespace", space)
    return name if "." in name or not inner else f"{inner}.{name}"


def _meant(given: Mapping[str, Any], kept: dict[str, Any], base: str, plain: _Type) -> tuple[dict[str, Any], _Type]:
    """What a logical type or the name of a schema in Kafka Connect says. What the specification does not have, or not
    of this base, counts for nothing, as it demands."""
    named = given.get("connect.name")
    if isinstance(named, str) and named in CONNECT_TIMES and base in ("int", "long"):
        example = CONNECT_TIMES[named](0)
        arrow = EITHER if isinstance(example, Moment) else pa.date32() if isinstance(example, Day) else pa.string()
        return kept | {"logicalType": _OWN, _OWN: named}, _Type(arrow)
    if named in CONNECT_TEXTS and base == "string":
        return kept | {"logicalType": _OWN, _OWN: "zoneless"}, plain
    logical = given.get("logicalType")
    scale, precision = given.get("scale", 0), given.get("precision")
    if named == CONNECT_DECIMAL and logical != "decimal" and base == "bytes":
        scale, precision = (given.get("connect.parameters") or {}).get("scale"), None
        if isinstance(scale, str) and scale.lstrip("-").isdecimal():
            return kept | {"logicalType": _OWN, _OWN: "decimal", "scale": int(scale)}, _Type(pa.string())
    if logical == "decimal" and base in ("bytes", "fixed"):
        if not (isinstance(scale, int) and isinstance(precision, int) and 0 <= scale <= precision and precision > 0):
            return kept, plain
        return kept | {"logicalType": _OWN, _OWN: "decimal", "scale": scale}, _Type(_decimal_type(precision, scale))
    if logical == "uuid" and base == "fixed" and given.get("size") != 16:
        return kept, plain
    if logical == "duration" and given.get("size") != 12:
        return kept, plain
    found = _LOGICAL.get((base, logical)) if isinstance(logical, str) else None
    if found is None:
        return kept, plain
    return kept | {"logicalType": _OWN, _OWN: logical}, _Type(found)


def _decimal_type(precision: int, scale: int) -> pa.DataType:
    if precision <= 38:
        return pa.decimal128(precision, scale)
    return pa.decimal256(precision, scale) if precision <= 76 else pa.string()


_PRIMITIVE: Final[Mapping[str, pa.DataType]] = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_MOMENT, _WALL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.string(),
    ("long", "time-micros"): pa.string(),
    **{("long", f"timestamp-{unit}"): _MOMENT for unit in ("millis", "micros", "nanos")},
    **{("long", f"local-timestamp-{unit}"): _WALL for unit in ("millis", "micros", "nanos")},
    ("fixed", "uuid"): pa.string(),
    ("fixed", "duration"): pa.string(),
    ("bytes", "big-decimal"): pa.string(),
}
"""The logical types whose values are not those of their base, and the types of new columns for them."""


def _big_decimal(data: bytes) -> Decimal:
    """Bytes of the whole number, then the scale."""
    stream = pa.BufferReader(data)
    number = _exactly(stream, _long(stream))
    return unscaled(number, _long(stream))


def _span(data: bytes) -> Span:
    months, days, millis = (int.from_bytes(data[start : start + 4], "little") for start in (0, 4, 8))
    return Span(months, days, millis)


_DECODERS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "date": lambda value, _: Day(value),
    "time-millis": lambda value, _: Clock(value, "ms"),
    "time-micros": lambda value, _: Clock(value, "us"),
    "timestamp-millis": lambda value, _: Moment(value, "ms", True),
    "timestamp-micros": lambda value, _: Moment(value, "us", True),
    "timestamp-nanos": lambda value, _: Moment(value, "ns", True),
    "local-timestamp-millis": lambda value, _: Moment(value, "ms", False),
    "local-timestamp-micros": lambda value, _: Moment(value, "us", False),
    "local-timestamp-nanos": lambda value, _: Moment(value, "ns", False),
    "uuid": lambda value, _: uuid.UUID(bytes=value),
    "duration": lambda value, _: _span(value),
    "decimal": lambda value, schema: unscaled(value, schema["scale"]),
    "big-decimal": lambda value, _: _big_decimal(value),
    "variable-decimal": lambda value, _: unscaled(value["value"], value["scale"]),
    "zoneless": lambda value, _: zoneless(value),
    **{name: lambda value, schema: CONNECT_TIMES[schema[_OWN]](value) for name in CONNECT_TIMES},
}


def _decoded(value: Any, schema: Mapping[str, Any], _: Any = None) -> Any:
    return _DECODERS[schema[_OWN]](value, schema)


def fastavro() -> Any:
    """The module, which knows the decoders here. Raises :class:`DependencyMissingError`."""
    try:
        module = importlib.import_module("fastavro")
    except ImportError as error:
        raise DependencyMissingError(
            "Avro files need fastavro: pip install 'lakemerge[ingest]'", package="fastavro"
        ) from error
    for base in ("int", "long", "bytes", "fixed", "string", "record"):
        module.read.LOGICAL_READERS.setdefault(f"{base}-{_OWN}", _decoded)
    return module


def _zstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return _bounded(bytes(stream.read(_MOST_BYTES + 1)))


def _bounded(found: bytes) -> bytes:
    """A few bytes can be unpacked to so many that the process would end."""
    if len(found) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
    return found


def _unpacked(stream: Any, data: bytes) -> bytes:
    """:param stream: an object of Python's own modules for compression."""
    found = _bounded(stream.decompress(data, _MOST_BYTES + 1))
    if not stream.eof:
        raise ValueError("it is truncated")
    return found


def _snappy(data: bytes) -> bytes:
    """A block of Snappy, and the CRC-32 of what it holds."""
    packed, check = data[:-4], data[-4:]
    size = shift = 0
    for byte in packed[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if len(check) < 4 or size > min(_SNAPPY_RATIO * len(packed), _MOST_BYTES):
        raise ValueError("it is truncated, or too large")
    found = pa.Codec("snappy").decompress(packed, size, asbytes=True)
    if zlib.crc32(found).to_bytes(4, "big") != check:
        raise ValueError("its checksum does not match")
    return bytes(found)


_CODECS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": lambda data: data,
    "deflate": lambda data: _unpacked(zlib.decompressobj(-zlib.MAX_WBITS), data),
    "bzip2": lambda data: _unpacked(bz2.BZ2Decompressor(), data),
    "snappy": _snappy,
    "xz": lambda data: _unpacked(lzma.LZMADecompressor(), data),
    "zstandard": _zstd,
}


def _exactly(data: Any, size: int) -> bytes:
    if size < 0 or size > data.size() - data.tell():
        raise FileUnreadableError("it is damaged: it is not an Avro file, or it was truncated")
    return bytes(data.read(size))


def _long(data: Any) -> int:
    """A whole number as Avro writes it."""
    number = shift = 0
    while True:
        byte = _exactly(data, 1)[0]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)
        if shift > 63:
            raise FileUnreadableError("it is damaged: a number has more than ten bytes")


def _coded(number: int) -> bytes:
    """A number from 0 on as Avro writes it."""
    number, found = number << 1, bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
