"""Avro: a file is one block, and fastavro reads its records one after the other."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa

from lakemerge.errors import DependencyMissingError
from lakemerge.ingest.formats.base import Format, Frame, Origin, Parsed, Peek, Piece
from lakemerge.ingest.formats.json_lines import Unwrap
from lakemerge.ingest.formats.records import MAX_VALUE_LEVELS, nests_deeper, rows_of
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from lakemerge.ingest.values import json_text

__all__ = ["AvroRecords"]

_BATCH_RECORDS = 8192


@dataclass(frozen=True, slots=True)
class AvroRecords(Format):
    """``unwrap`` takes a row out of its envelope; ``None``: a record is a row."""

    unwrap: Unwrap | None = None
    name: ClassVar[str] = "avro"

    @property
    def describes_itself(self) -> bool:  # type: ignore[override]
        return self.unwrap is None

    def splits(self, path: str) -> bool:
        return False

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        fields = _fastavro().reader(data).writer_schema.get("fields", [])
        return Peek(tuple(field["name"] for field in fields), tuple(_kind(field["type"]) for field in fields))

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        return sum(block.num_records for block in _fastavro().block_reader(data))

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: Frame) -> Iterator[Parsed]:
        records = _read(data)
        first = 0
        while found := list(islice(records, _BATCH_RECORDS)):
            yield self._rows(found, first, frame)
            first += len(found)

    def _rows(self, found: list[Any], first: int, frame: Frame) -> Parsed:
        records: list[Mapping[str, Any]] = []
        places: list[int] = []
        unread: list[tuple[Origin, str]] = []
        for place, value in enumerate(found):
            try:
                if nests_deeper(value, MAX_VALUE_LEVELS):
                    raise ValueError(f"a value in it nests more than {MAX_VALUE_LEVELS} levels deep")
                record = value if self.unwrap is None else self.unwrap(value)
                if record is not None and not isinstance(record, dict):
                    raise ValueError("it is no record")
            except (ValueError, TypeError, ArithmeticError) as error:
                text = json_text(value) if not nests_deeper(value, MAX_VALUE_LEVELS) else ""
                unread.append((Origin(text, None, first + place), str(error)))
                continue
            if record is not None:
                records.append(record)
                places.append(place)
        rows, problems, new = rows_of(records, frame)

        def origin(row: int) -> Origin:
            return Origin(json_text(found[places[row]]), None, first + places[row])

        return Parsed(rows, problems, origin, tuple(unread), new)


def _read(data: pa.NativeFile) -> Iterator[Any]:
    try:
        yield from _fastavro().reader(data)
    except (ValueError, EOFError, TypeError, KeyError, IndexError, StopIteration, RecursionError) as error:
        raise FileUnreadableError(f"it is damaged: {error!r}") from error


def _fastavro() -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError as error:
        raise DependencyMissingError(
            "Avro files need fastavro: pip install 'lakemerge[ingest]'", package="fastavro"
        ) from error


def _kind(kind: Any) -> pa.DataType:
    """The type of a new column of the table, for a field of an Avro schema."""
    if isinstance(kind, list):
        rest = [part for part in kind if part != "null"]
        return _kind(rest[0]) if len(rest) == 1 else pa.string()
    if isinstance(kind, dict):
        return _complex(kind)
    simple = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
    }
    return simple.get(kind, pa.string())


def _complex(kind: dict[str, Any]) -> pa.DataType:
    logical, inner = kind.get("logicalType"), kind["type"]
    if logical == "decimal":
        return pa.decimal128(min(kind["precision"], 38), kind.get("scale", 0))
    if logical == "date":
        return pa.date32()
    if logical in ("timestamp-millis", "timestamp-micros"):
        return pa.timestamp("us", "UTC")
    if logical in ("local-timestamp-millis", "local-timestamp-micros"):
        return pa.timestamp("us")
    if inner == "array":
        return pa.list_(_kind(kind["items"]))
    if inner == "map":
        return pa.map_(pa.string(), _kind(kind["values"]))
    if inner == "record":
        return pa.struct([(field["name"], _kind(field["type"])) for field in kind["fields"]])
    return pa.binary() if inner == "fixed" else _kind(inner)
