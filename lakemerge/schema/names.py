"""Names of columns: the one that people use, and the one that files have (Delta's column mapping, mode ``name``).

A table has no mapping before a column is renamed or dropped for the first time. From then on each column has a *stored
name*, which never changes: Parquet files, statistics, partition values and log domains use it. Columns that were there
at that time are stored under their names. Later ones get ``col-`` and a UUID, so that a column never meets values of
one that had its name before. Only columns have stored names of their own; fields of structs are stored under their
names.
Source: docs/table-format.md, section 12; Delta protocol, "Column Mapping".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pyarrow as pa

from lakemerge.delta import Protocol
from lakemerge.errors import SchemaError, TableDamagedError, UnsupportedFeatureError
from lakemerge.schema.schema import json_entry, with_json_entry

__all__ = ["COLUMN_MAPPING", "MAX_ID", "MODE", "NAMES", "ColumnNames", "Former", "with_mapping"]

COLUMN_MAPPING: Final = "columnMapping"
"""Delta's feature."""
MODE: Final = "delta.columnMapping.mode"
MAX_ID: Final = "delta.columnMapping.maxColumnId"
NAMES: Final = "lakemerge.columnNames"
"""The table property with the former names of columns, and how often names changed."""
_ID: Final = "delta.columnMapping.id"
_STORED: Final = "delta.columnMapping.physicalName"
_BY_NAME: Final = "name"
_FIELD_ID: Final = b"PARQUET:field_id"
_NAMESPACE: Final = uuid.UUID("a0f3c1de-6e4b-4f0a-9a52-3c1e0b6f7d21")

_Path = tuple[str, ...]
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Former:
    """What became of a column that had some name."""

    now: str | None
    """Its name now; ``None``: it was dropped."""
    version: int
    """The version that changed it."""

    def told(self, name: str) -> str:
        """What to tell whoever uses the former name."""
        if self.now is None:
            return f"column {name!r} was dropped in version {self.version}"
        return f"column {name!r} was renamed to {self.now!r} in version {self.version}"


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The names of a table's columns. A value; without ``stored`` there is no mapping."""

    stored: Mapping[str, str] = field(default_factory=dict)
    """Column -> its name in files."""
    ids: Mapping[_Path, int] = field(default_factory=dict)
    """The path of a column or of a field of a struct -> the id that Delta wants it to have."""
    max_id: int = 0
    epoch: int = 0
    """How often columns were renamed or dropped."""
    table_id: str = ""
    former: Mapping[str, Former] = field(default_factory=dict)
    """By names that columns had, in small letters."""

    @property
    def is_on(self) -> bool:
        return bool(self.stored)

    def of(self, name: str) -> str:
        """The stored name of a column. Columns of the format itself have one name."""
        return self.stored.get(name, name)

    def all_of(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.of, names))

    def field(self, column: pa.Field) -> pa.Field:
        """A column as files have it."""
        return column.with_name(self.of(column.name)) if self.is_on else column

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Columns as files have them."""
        return pa.schema(map(self.field, schema)) if self.is_on else schema

    def identified(self, schema: pa.Schema) -> pa.Schema:
        """Columns as files have them, with the ids of columns and fields, for files that other engines read."""
        if not self.is_on:
            return schema

        def with_id(part: pa.Field, path: _Path) -> pa.Field:
            number = self.ids.get(path)
            return part if number is None else part.with_metadata({_FIELD_ID: str(number).encode()})

        return self.schema(_walked(schema, with_id))

    def carried(self, stored: Iterable[str]) -> frozenset[str]:
        """The table's columns of which a file with these columns has values."""
        if not self.is_on:
            return frozenset(stored)
        there = frozenset(stored)
        return frozenset(name for name, own in self.stored.items() if own in there)

    def of_table(self, values: Mapping[str, _V]) -> Mapping[str, _V]:
        """Values by stored name, such as statistics, by the names of the table's columns."""
        if not self.is_on:
            return values
        now = {own: name for name, own in self.stored.items()}
        return {name: value for own, value in values.items() if (name := now.get(own)) is not None}

    def noted(self, schema: pa.Schema) -> pa.Schema:
        """The schema with what Delta keeps of the mapping in the metadata of its fields."""
        if not self.is_on:
            return schema

        def note(part: pa.Field, path: _Path) -> pa.Field:
            stored = self.of(part.name) if len(path) == 1 else part.name
            named = part.with_metadata({**(part.metadata or {}), _STORED.encode(): stored.encode()})
            return with_json_entry(named, _ID, self.ids[path])

        return _walked(schema, note)

    def properties(self) -> dict[str, str]:
        """The table properties of the mapping."""
        if not self.is_on:
            return {}
        former = {name: [each.now, each.version] for name, each in sorted(self.former.items())}
        told = json.dumps({"epoch": self.epoch, "former": former}, ensure_ascii=False, separators=(",", ":"))
        return {MODE: _BY_NAME, MAX_ID: str(self.max_id), NAMES: told}

    def enabled(self, schema: pa.Schema, table_id: str) -> ColumnNames:
        """The names of a table that has a mapping from now on, if it had none: each column is stored under its name."""
        if self.is_on:
            return self
        return replace(self, stored={name: name for name in schema.names}, table_id=table_id).extended(schema)

    def extended(self, schema: pa.Schema, known: ColumnNames | None = None) -> ColumnNames:
        """The names of the same table with this schema, whose new columns and fields get stored names and ids.

        :param known: has the stored names of new columns, if files have these already.
        :raises SchemaError: two columns would have one stored name.
        """
        if not self.is_on:
            return self
        source = self if known is None else known
        stored = {name: self.stored.get(name) or source.fresh(name) for name in schema.names}
        if len(set(stored.values())) < len(stored):
            raise SchemaError("columns were renamed or dropped meanwhile; open the table again and retry")
        ids, number = {}, self.max_id
        for path in _paths(schema):
            if path in self.ids:
                ids[path] = self.ids[path]
            else:
                number += 1
                ids[path] = number
        former = {name: each for name, each in self.former.items() if name not in {n.lower() for n in stored}}
        return replace(self, stored=stored, ids=ids, max_id=number, former=former)

    def fresh(self, name: str) -> str:
        """The stored name of a column: its own, or that of a new one. Two writers that add the same column choose the
        same."""
        if not self.is_on or name in self.stored:
            return self.of(name)
        return f"col-{uuid.uuid5(_NAMESPACE, f'{self.table_id}/{self.epoch}/{name}')}"

    def renamed(self, changes: Mapping[str, str], version: int) -> ColumnNames:
        """The names after columns got other ones, by a commit that makes ``version``."""
        ids = {(changes.get(path[0], path[0]), *path[1:]): number for path, number in self.ids.items()}
        former = {old: replace(each, now=changes.get(each.now or "", each.now)) for old, each in self.former.items()}
        former |= {old.lower(): Former(new, version) for old, new in changes.items()}
        stored = {changes.get(name, name): own for name, own in self.stored.items()}
        return self._changed(stored, ids, former)

    def without(self, dropped: Sequence[str], version: int) -> ColumnNames:
        """The names after columns were dropped, by a commit that makes ``version``."""
        ids = {path: number for path, number in self.ids.items() if path[0] not in dropped}
        gone = {name: Former(None, version) for name in dropped}
        former = {old: gone.get(each.now or "", each) for old, each in self.former.items()}
        former |= {name.lower(): each for name, each in gone.items()}
        return self._changed({name: own for name, own in self.stored.items() if name not in dropped}, ids, former)

    def restored(self, earlier: ColumnNames, schema: pa.Schema, table_id: str) -> ColumnNames:
        """The names of an earlier version that becomes the present one. A mapping stays, and its numbers never fall.

        :param earlier: those of the earlier version.
        :param schema: that of the earlier version.
        """
        if not self.is_on:
            return earlier
        stored = {name: earlier.of(name) for name in schema.names}
        before = {own: name for name, own in self.stored.items()}
        ids = dict(earlier.ids)
        if not earlier.is_on:
            # Its columns are stored under their names, as those were that the mapping began with.
            ids = {
                path: self.ids[there]
                for path in _paths(schema)
                if (there := (before.get(path[0], ""), *path[1:])) in self.ids
            }
        kept = replace(
            self,
            stored=stored,
            ids=ids,
            max_id=max(self.max_id, earlier.max_id),
            epoch=max(self.epoch, earlier.epoch) + 1,
            table_id=table_id,
            former={},
        )
        return replace(kept.extended(schema), former=earlier.former)

    @staticmethod
    def read(schema: pa.Schema, configuration: Mapping[str, str], table_id: str) -> tuple[pa.Schema, ColumnNames]:
        """The schema of a table without what Delta notes of the mapping in it, and the names that this tells.

        :raises UnsupportedFeatureError: a mapping of another mode, or of fields within columns.
        :raises TableDamagedError: a mapping that is none.
        """
        mode = configuration.get(MODE, "none")
        if mode == "none":
            return schema, ColumnNames()
        plain = _walked(schema, lambda part, _: _without_notes(part))
        if mode != _BY_NAME:
            raise UnsupportedFeatureError(
                f"the table has a column mapping of mode {mode!r}, and this library knows mode 'name'", mode=mode
            )
        stored: dict[str, str] = {}
        ids: dict[_Path, int] = {}
        for path, part in _fields(schema):
            number, own = json_entry(part, _ID), (part.metadata or {}).get(_STORED.encode())
            if not isinstance(number, int) or own is None:
                raise TableDamagedError(f"column {'.'.join(path)!r} has no id or stored name in the column mapping")
            ids[path] = number
            if len(path) == 1:
                stored[path[0]] = own.decode()
            elif own.decode() != path[-1]:
                raise UnsupportedFeatureError(
                    f"field {'.'.join(path)!r} is stored as {own.decode()!r}, and this library knows no stored names "
                    "of fields in structs",
                    column=".".join(path),
                )
        if len(set(stored.values())) < len(stored):
            raise TableDamagedError("two columns have one stored name in the column mapping")
        try:
            told = json.loads(configuration.get(NAMES, "{}"))
            former = {str(name): Former(*each) for name, each in told.get("former", {}).items()}
            most = int(configuration.get(MAX_ID, "0"))
            epoch = int(told.get("epoch", 0))
        except (ValueError, TypeError, AttributeError) as error:
            raise TableDamagedError(f"the table properties of the column mapping are damaged: {error!r}") from error
        return plain, ColumnNames(stored, ids, max(most, *ids.values()), epoch, table_id, former)

    def _changed(
        self, stored: Mapping[str, str], ids: Mapping[_Path, int], former: Mapping[str, Former]
    ) -> ColumnNames:
        there = {name.lower() for name in stored}
        left = {old: each for old, each in former.items() if old not in there}
        return replace(self, stored=stored, ids=ids, former=left, epoch=self.epoch + 1)


def with_mapping(protocol: Protocol) -> Protocol:
    """The protocol of a table with a mapping. It is never lowered again.

    On reader version 2, which has the mapping in it, deltalake's readers give nulls for renamed columns.
    """
    features = frozenset({COLUMN_MAPPING})
    return Protocol(
        3, 7, protocol.reader_features | features, protocol.writer_features | features, extra=protocol.extra
    )


def _without_notes(part: pa.Field) -> pa.Field:
    gone = (_STORED.encode(), f"json:{_ID}".encode(), f"json:{_STORED}".encode())
    left = {name: value for name, value in (part.metadata or {}).items() if name not in gone}
    return part.with_metadata(left) if left else part.remove_metadata()


def _walked(schema: pa.Schema, change: Callable[[pa.Field, _Path], pa.Field]) -> pa.Schema:
    """The schema with every column and every field of a struct changed."""
    return pa.schema([_changed_field(part, (part.name,), change) for part in schema])


def _changed_field(part: pa.Field, path: _Path, change: Callable[[pa.Field, _Path], pa.Field]) -> pa.Field:
    return change(part.with_type(_changed_type(part.type, path, change)), path)


def _changed_type(kind: pa.DataType, path: _Path, change: Callable[[pa.Field, _Path], pa.Field]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_changed_field(child, (*path, child.name), change) for child in kind])
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_changed_type(kind.key_type, (*path, "key"), change))
        return pa.map_(key, kind.item_field.with_type(_changed_type(kind.item_type, (*path, "value"), change)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_changed_type(kind.value_type, (*path, "element"), change)))
    return kind


def _fields(schema: pa.Schema) -> Iterator[tuple[_Path, pa.Field]]:
    """Every column and every field of a struct, with its path."""
    found: list[tuple[_Path, pa.Field]] = []

    def note(part: pa.Field, path: _Path) -> pa.Field:
        found.append((path, part))
        return part

    _walked(schema, note)
    yield from found


def _paths(schema: pa.Schema) -> Iterator[_Path]:
    return (path for path, _ in sorted(_fields(schema), key=lambda each: len(each[0])))
