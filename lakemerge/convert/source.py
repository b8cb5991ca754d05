"""The rows of a plain Delta table, file by file, in the columns that the converted table has.

A file may lack columns, have narrower types, other names of columns (column mapping), and rows that a deletion vector
takes away. Partition columns are not in the files, but in the log.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.delta import AddFile, Metadata, Snapshot, read_vector
from lakemerge.errors import TableDamagedError, UnsupportedFeatureError
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.schema.names import MAX_ID, MODE, NAMES, ColumnNames
from lakemerge.schema.schema import from_delta_json, json_entry
from lakemerge.storage.base import Store
from mergers.type_names import type_name

__all__ = ["DeltaSource", "partition_scalar"]

_ID: Final = "delta.columnMapping.id"
_STORED: Final = b"delta.columnMapping.physicalName"
_FIELD_ID: Final = b"PARQUET:field_id"
_ABSENT: Final = "\0"
"""The name of a field that a file surely does not have."""
_REBASED: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK: Final = b"org.apache.spark.version"
_GREGORIAN: Final = dt.date(1582, 10, 15)
_ZONES_ALIKE: Final = dt.datetime(1900, 1, 1)  # noqa: DTZ001 - compared in the column's own zone


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """The files of one version, as rows. Picklable."""

    store: Store
    schema: pa.Schema
    """The columns under the names that people use, without notes of the mapping."""
    names: ColumnNames
    """The names that the converted table's files have. Fields within columns are stored under their own names there."""
    noted: pa.Schema
    """The columns with the notes of the mapping."""
    by_id: bool
    """Whether columns are found in files by ids, and not by stored names."""
    partition_by: Mapping[str, str]
    """Partition column -> its name in ``partitionValues``."""

    @staticmethod
    def of(store: Store, snapshot: Snapshot) -> DeltaSource:
        """Raises :class:`lakemerge.SchemaError` for types that this library does not know."""
        metadata = snapshot.metadata
        noted = from_delta_json(metadata.schema_string)
        plain, names = _names(noted, metadata)
        mapped = {field.name: _stored(field) if names.is_on else field.name for field in noted}
        return DeltaSource(
            store=store,
            schema=plain,
            names=names,
            noted=noted,
            by_id=metadata.configuration.get(MODE) == "id",
            partition_by={name: mapped[name] for name in metadata.partition_columns},
        )

    @property
    def frame_schema(self) -> pa.Schema:
        """That of the batches. All parts may be null: what a table forbids is checked when rows are written."""
        return pa.schema([pa.field(field.name, _loose(field.type)) for field in self.schema])

    def batches(
        self, adds: Sequence[AddFile], *, columns: Sequence[str] | None = None, budget_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some files, in order.

        :param columns: the wanted columns, by default all.
        """
        wanted = list(self.schema.names if columns is None else columns)
        with ParquetFiles(self.store) as files:
            for add in adds:
                yield from self._of_file(add, wanted, files, budget_bytes)

    def _of_file(
        self, add: AddFile, wanted: Sequence[str], files: ParquetFiles, budget_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        stored = StoredFile(add.path, add.size_bytes)
        footer = files.footer(stored)
        inner = [name for name in wanted if name not in self.partition_by]
        there = (
            {field.name: field for field in footer.schema.to_arrow_schema()} if self.by_id or self.names.is_on else {}
        )
        if self.by_id and there and not any(_file_id(field) is not None for field in there.values()):
            raise UnsupportedFeatureError(
                f"file {add.path!r} has no ids of columns, and the table finds columns by id (column mapping of mode "
                "'id'); let its own engine rewrite the file",
                path=add.path,
            )
        found = pa.schema([self._in_file(self.noted.field(name), there) for name in inner])
        vector = None if add.vector is None else read_vector(self.store, add.vector, rows=footer.num_rows)
        is_rebased = _is_rebased(footer.metadata or {})
        stream = files.stream(stored, schema=found, names=ColumnNames(), budget_bytes=budget_bytes)
        for table, at, _ in stream if inner else _without_columns(footer.num_rows):
            rows = table
            if vector is not None:
                rows = table.filter(pa.array(~vector[at : at + table.num_rows]))
            arrays = {name: rows.column(place) for place, name in enumerate(inner)}
            count = rows.num_rows
            for name in wanted:
                kind = self.schema.field(name).type
                if name in self.partition_by:
                    value = partition_scalar(add.partition_values.get(self.partition_by[name]), kind, add.path)
                    arrays[name] = pa.repeat(value, count)
                elif is_rebased:
                    _check_calendar(arrays[name], name, add.path)
            own = pa.table([_as(arrays[name], self.schema.field(name).type) for name in wanted], names=list(wanted))
            yield from own.to_batches()

    def _in_file(self, field: pa.Field, there: Mapping[str, pa.Field]) -> pa.Field:
        """A column under the names that a file has. All parts of it may be null."""
        return _located(field, list(there.values()), by_id=self.by_id, mapped=self.names.is_on)


def partition_scalar(text: str | None, kind: pa.DataType, path: str) -> pa.Scalar:
    """A value of ``partitionValues``. Times without a zone are in UTC, as in the Delta protocol.

    Raises :class:`TableDamagedError` for what is no such value.
    """
    if not text:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            zoned = text[-1] in "zZ" or "+" in text[10:] or "-" in text[10:]
            moment = pa.scalar(text).cast(pa.timestamp("us", "UTC" if zoned else None))
            return moment if moment.type == kind else moment.cast(kind)
        if pa.types.is_binary(kind):
            return pa.scalar(text.encode(), kind)
        return pa.scalar(text).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise TableDamagedError(
            f"file {path!r}: {text!r} is not a partition value of type {type_name(kind)}", path=path
        ) from error


def _names(noted: pa.Schema, metadata: Metadata) -> tuple[pa.Schema, ColumnNames]:
    """The columns without notes, and the names that they get. The stored names of columns stay; fields within columns
    are stored under their own names from now on, because all files are written anew."""
    has = {name: value for name, value in metadata.configuration.items() if name != NAMES}
    if has.get(MODE, "none") == "none":
        return noted, ColumnNames()
    flat = pa.schema([field.with_type(_own_names(field.type)) for field in noted])
    return ColumnNames.read(flat, {MAX_ID: "0", **has, MODE: "name"}, metadata.id)


def _own_names(kind: pa.DataType) -> pa.DataType:
    """The type with fields of structs noted as stored under their own names."""
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                part.with_type(_own_names(part.type)).with_metadata(
                    {**(part.metadata or {}), _STORED: part.name.encode()}
                )
                for part in kind
            ]
        )
    if pa.types.is_map(kind):
        return pa.map_(_own_names(kind.key_type), kind.item_field.with_type(_own_names(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_own_names(kind.value_type)))
    return kind


def _stored(field: pa.Field) -> str:
    own = (field.metadata or {}).get(_STORED)
    return field.name if own is None else own.decode()


def _file_id(field: pa.Field) -> int | None:
    told = (field.metadata or {}).get(_FIELD_ID)
    return None if told is None else int(told)


def _located(field: pa.Field, there: Sequence[pa.Field], *, by_id: bool, mapped: bool) -> pa.Field:
    """A field as a file has it: its name there, and those of the fields in it.

    :param there: the fields among which it is.
    """
    name, match = field.name, None
    if by_id:
        number = json_entry(field, _ID)
        match = next((part for part in there if _file_id(part) == number), None)
        name = f"{_ABSENT}{field.name}" if match is None else match.name
    elif mapped:
        name = _stored(field)
        match = next((part for part in there if part.name == name), None)
    inner = _located_type(field.type, None if match is None else match.type, by_id=by_id, mapped=mapped)
    return pa.field(name, inner)


def _located_type(kind: pa.DataType, there: pa.DataType | None, *, by_id: bool, mapped: bool) -> pa.DataType:
    if pa.types.is_struct(kind):
        own = list(there) if there is not None and pa.types.is_struct(there) else []
        return pa.struct([_located(part, own, by_id=by_id, mapped=mapped) for part in kind])
    if pa.types.is_map(kind):
        is_map = there is not None and pa.types.is_map(there)
        keys, items = (there.key_type, there.item_type) if is_map and there is not None else (None, None)
        return pa.map_(
            _located_type(kind.key_type, keys, by_id=by_id, mapped=mapped),
            pa.field("value", _located_type(kind.item_type, items, by_id=by_id, mapped=mapped)),
        )
    if pa.types.is_list(kind):
        is_list = there is not None and (pa.types.is_list(there) or pa.types.is_large_list(there))
        inner = there.value_type if is_list and there is not None else None
        return pa.list_(pa.field("element", _located_type(kind.value_type, inner, by_id=by_id, mapped=mapped)))
    return kind


def _without_columns(rows: int) -> Iterator[tuple[pa.Table, int, bool]]:
    """As many rows without columns."""
    yield pa.table({_ABSENT: pa.nulls(rows)}), 0, True


def _as(values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray:
    """Values under the names that people use, at all depths. Which of them may be null is judged later."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    loose = _loose(kind)
    return pa.chunked_array([_renamed(chunk, loose) for chunk in chunks], loose)


def _loose(kind: pa.DataType) -> pa.DataType:
    """The type, all parts of which may be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _loose(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(_loose(kind.key_type), pa.field("value", _loose(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _loose(kind.value_type)))
    return kind


def _renamed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in a type that differs in names alone."""
    if array.type == kind or not array.type.num_fields:
        return array
    if array.offset:
        array = pa.concat_arrays([array])
    if pa.types.is_struct(kind):
        children = [_renamed(array.field(place), kind.field(place).type) for place in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        pairs = pa.struct([pa.field("key", kind.key_type, nullable=False), kind.item_field])
        keys, items = _renamed(array.keys, kind.key_type), _renamed(array.items, kind.item_type)
        children = [pa.StructArray.from_arrays([keys, items], fields=list(pairs))]
    else:
        children = [_renamed(array.values, kind.value_type)]
    own = array.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), own, null_count=array.null_count, children=children)


def _is_rebased(notes: Mapping[bytes, bytes]) -> bool:
    """Whether a file's dates and times are of the calendar that Spark used before version 3."""
    version = notes.get(_SPARK, b"")
    return any(name in notes for name in _REBASED) or version[:2] in (b"1.", b"2.")


def _check_calendar(values: pa.ChunkedArray, name: str, path: str) -> None:
    """Raise :class:`UnsupportedFeatureError` for a date or time that means another day in today's calendar."""
    kind = values.type
    if pa.types.is_date(kind):
        oldest = pa.scalar(_GREGORIAN, kind)
    elif pa.types.is_timestamp(kind):
        oldest = pa.scalar(_ZONES_ALIKE, pa.timestamp("us")).cast(kind)
    else:
        return
    if pc.any(pc.less(values, oldest)).as_py():
        raise UnsupportedFeatureError(
            f"file {path!r} has values before {_ZONES_ALIKE.year if pa.types.is_timestamp(kind) else _GREGORIAN} in "
            f"column {name!r} in the calendar of Spark 2; let Spark 3 or newer rewrite the file",
            path=path,
            column=name,
        )
