"""The columns of a window: which columns of the table it carries, and which new ones.

A window holds files with one set of columns. Files that do not say their columns (JSON, text) have those that the
caller names, or all of the table's. Each record of JSON says by itself which columns it carries, unless the caller
names them: then a field that a record lacks is null. So which files share a window does not decide what a partial
update means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import pyarrow as pa

from lakemerge._internal.near import did_you_mean
from lakemerge.errors import FrameError, InputError, SchemaError
from lakemerge.format.config import TableConfig
from lakemerge.ingest.casting import EITHER, fits
from lakemerge.ingest.envelopes import KIND, OP
from lakemerge.ingest.formats.base import FileColumns, Format, Peek, WindowSchema
from lakemerge.ingest.formats.choose import FORMATS
from lakemerge.options import Settings
from lakemerge.schema.ddl import TIMESTAMP
from lakemerge.schema.evolution import with_columns_of_frame
from lakemerge.schema.limits import leaf_count
from lakemerge.write.carried import CARRIED
from mergers.type_names import type_name
from mergers.wording import argument, in_python

__all__ = ["ColumnOptions", "Envelope", "WindowFrame", "rescued_problem"]

Envelope = Literal["debezium", "dms"]
_DELIMITERS: Final = ";\t|"
"""Signs that people use in place of commas."""
_NONE: Final = FileColumns()
_HINTS: Final = 5
"""After so many problems, names get no hint any more."""


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """How the records of a window become the frame that is upserted. Picklable."""

    parse: WindowSchema
    """The columns that the format fills."""
    schema: pa.Schema
    """The columns that are upserted: with the kind column, without an operation that the table does not keep, and at
    the end :data:`lakemerge.write.carried.CARRIED` if records differ."""
    kind_column: str | None
    op: str | None = None
    """The column of ``parse`` that holds an operation of DMS."""
    of_file: FileColumns = _NONE
    """Columns of ``schema`` that are not in ``parse``."""
    folders: tuple[str, ...] = ()
    """Columns of ``parse`` that a partition folder fills where a record has no value."""

    @property
    def names(self) -> list[str]:
        """The columns that are upserted."""
        return [name for name in self.schema.names if name != CARRIED.name]


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """What the caller said about the columns."""

    format: Format
    columns: tuple[str, ...] | None = None
    kind_column: str | None = None
    envelope: Envelope | None = None
    rescued: str | None = None
    merge_schema: bool = False
    max_columns: int = Settings().max_columns
    """With more columns of Parquet than this no table grows."""
    fixed: tuple[str, ...] | None = field(default=None)
    """The columns that all files of the format have, whatever the table."""
    of_file: FileColumns = _NONE
    """Columns that no record fills."""

    def frame(self, config: TableConfig, peek: Peek | None, new: Mapping[str, pa.DataType]) -> WindowFrame:
        """The frame for files that say this about themselves. Raises :class:`FrameError`.

        :param new: columns that were found in records, and that the table lacks.
        """
        names, types = self._names(config, peek, new)
        problems = [
            *self._missing_keys(config, names, peek),
            *_twice(names),
            *_wrong_file_columns(config, self.of_file, names),
        ]
        table = self._table(config, names, types, new, problems)
        fields: dict[str, pa.Field] = {}
        for name, kind in zip(names, types, strict=True):
            found = _of_name(table, name)
            if self._is_kind(name) or (self.envelope == "dms" and name.lower() == OP.lower() and found is None):
                continue
            if found is None:
                if self.rescued is None or self.columns is not None:
                    problems.append(_unknown(name, config, names if len(problems) < _HINTS else ()))
            elif kind is not None and not fits(kind, found.type):
                hint = self._zone_hint(kind, found.type)
                problems.append(f"column {name!r} is {_told(kind)}, the table's is {type_name(found.type)}{hint}")
            elif kind is None and peek is not None and pa.types.is_nested(found.type):
                problems.append(
                    f"column {found.name!r} is {type_name(found.type)}, which {self.format.name} cannot hold"
                )
            else:
                fields[found.name] = found
        folders = self._of_folders(table, peek)
        if problems:
            raise FrameError("the file does not fit the table: " + "; ".join(problems), problems=tuple(problems))
        fields |= {column.name: column for column in folders}
        made = self._made(config, table, fields, {name.lower() for name in names}, set(new))
        if peek is None:  # a record may have the column or not
            folders = [column for column in made.parse.schema if column.name in fields]
        return replace(made, folders=tuple(column.name for column in folders if not pa.types.is_nested(column.type)))

    def _of_folders(self, table: pa.Schema, peek: Peek | None) -> list[pa.Field]:
        """The columns that only a partition folder has a value for."""
        wanted = None if self.columns is None else {name.lower() for name in self.columns}
        names = [] if peek is None else [name for name in peek.folders if wanted is None or name in wanted]
        found = [column for name in names if (column := _of_name(table, name)) is not None]
        own = {name.lower() for name in self.of_file.names}
        return [column for column in found if column.name != self.rescued and column.name.lower() not in own]

    def _zone_hint(self, kind: pa.DataType, wanted: pa.DataType) -> str:
        if not (pa.types.is_timestamp(kind) and pa.types.is_timestamp(wanted) and kind.tz is None):
            return ""
        if "timezone" in FORMATS[self.format.name]:
            return "; its times have no zone: say which it is (the option timezone), or let the column be TIMESTAMP_NTZ"
        return "; its times have no zone: let the column be TIMESTAMP_NTZ"

    def _missing_keys(self, config: TableConfig, names: Sequence[str], peek: Peek | None) -> list[str]:
        if peek is None or self.envelope is not None:
            return []
        return [
            f"key column {name!r} is missing; the file has {', '.join(names)}{did_you_mean(name, names)}"
            for name in config.key
            if not self._is_any(name, (*names, *peek.folders, *self.of_file.names))
        ]

    def _names(
        self, config: TableConfig, peek: Peek | None, new: Mapping[str, pa.DataType]
    ) -> tuple[list[str], list[pa.DataType | None]]:
        """Names, and types where they are known."""
        if peek is None:
            own = {name.lower() for name in self.of_file.names}
            names = list(
                self.columns or self.fixed or (name for name in config.schema.names if name.lower() not in own)
            )
            names += [name for name in new if not self._is_any(name, names)]
            if self.kind_column is not None and self.envelope is None and not self._is_any(self.kind_column, names):
                names.append(self.kind_column)
            if self.envelope == "dms" and not self._is_any(OP, names):
                names.append(OP)
            known = {name.lower() for name in config.schema.names}
            return names, [None if name.lower() in known else new.get(name) for name in names]
        types = list(peek.types) if peek.types is not None else [None] * len(peek.names)
        if self.columns is None:
            return list(peek.names), types
        there = {name.lower(): place for place, name in enumerate(peek.names)}
        asked = [name for name in self.columns if name.lower() in there or name.lower() not in peek.folders]
        lacking = [name for name in asked if name.lower() not in there]
        if lacking:
            raise FrameError(
                f"the file does not fit the table: it has no column {lacking[0]!r}", problems=tuple(lacking)
            )
        wanted = [*asked, *(name for name in peek.names if self._is_kind(name) or self._is_op(name))]
        wanted = list({name.lower(): name for name in wanted}.values())
        return wanted, [types[there[name.lower()]] for name in wanted]

    def _table(
        self,
        config: TableConfig,
        names: Sequence[str],
        types: Sequence[pa.DataType | None],
        new: Mapping[str, pa.DataType],
        problems: list[str],
    ) -> pa.Schema:
        """The table's schema. If it may grow, the columns and fields that files bring are added."""
        if not self.merge_schema or problems:
            return config.schema
        brought = [
            pa.field(name, kind or pa.string())
            for name, kind in zip(names, types, strict=True)
            if not (self._is_kind(name) or self._is_op(name))
            and (kind is not None or _of_name(config.schema, name) is None)
        ]
        brought += [pa.field(name, kind) for name, kind in new.items() if _of_name(config.schema, name) is not None]
        try:
            return with_columns_of_frame(
                config.schema, pa.schema(brought), kind_column=None, max_columns=self.max_columns
            )
        except SchemaError as error:
            raise FrameError(f"the file's columns cannot be added: {error.message}", **error.facts) from error

    def _made(
        self,
        config: TableConfig,
        table: pa.Schema,
        fields: dict[str, pa.Field],
        names: set[str],
        new: Collection[str],
    ) -> WindowFrame:
        kept = _of_name(table, OP) if self.envelope == "dms" else None
        for column in (kept, None if self.rescued is None else table.field(self.rescued)):
            if column is not None:
                fields[column.name] = column
        of_file = FileColumns(*(None if name is None else _named(table, name) for name in self.of_file))
        carried = [column for column in table if column.name in fields or column.name in of_file.names]
        kind, parsed = self._kind(names), [column for column in carried if column.name not in of_file.names]
        if self.envelope == "dms":
            parsed += [pa.field(OP, pa.string())] if kept is None else []
        elif kind is not None:
            parsed.append(pa.field(kind, pa.string()))
        grows = self.merge_schema and self.columns is None
        differs = self.format.records_differ and self.columns is None
        frame = WindowSchema.of(
            pa.schema(parsed),
            rescued=self.rescued,
            room=max(0, self.max_columns - leaf_count(table)) if grows else None,
            ignores=self.columns is not None,
            strict={*config.key, *config.ordering, *(column.name for column in table if not column.nullable)},
            fresh={*new} - {*config.schema.names},
            differs=differs,
        )
        ends = [] if kind is None else [pa.field(kind, pa.string())]
        ends += [CARRIED] if differs else []
        upserted = pa.schema([*(column.with_nullable(True) for column in carried), *ends]).remove_metadata()
        op = None if self.envelope != "dms" else OP if kept is None else kept.name
        return WindowFrame(frame, upserted, kind, op, of_file)

    def _kind(self, names: set[str]) -> str | None:
        if self.envelope is not None:
            return KIND
        return self.kind_column if self.kind_column is not None and self.kind_column.lower() in names else None

    def _is_kind(self, name: str) -> bool:
        return self.kind_column is not None and name.lower() == self.kind_column.lower()

    def _is_op(self, name: str) -> bool:
        return self.envelope == "dms" and name.lower() == OP.lower()

    @staticmethod
    def _is_any(name: str, names: Sequence[str]) -> bool:
        return name.lower() in {given.lower() for given in names}


def rescued_problem(config: TableConfig, rescued: str) -> InputError | None:
    """Why a column cannot be the rescued column; ``None`` if it can."""
    place = config.schema.get_field_index(rescued)
    if place >= 0 and config.schema.field(place).type == pa.string() and config.schema.field(place).nullable:
        return None
    return InputError(
        f"{argument('rescued_column')} {rescued!r} must be a STRING column of the table that may be null"
        + in_python(f': table.alter(add_columns="{rescued} STRING")'),
        column=rescued,
    )


def _told(kind: pa.DataType) -> str:
    return "a time that may have a zone or not" if kind == EITHER else type_name(kind)


def _of_name(schema: pa.Schema, name: str) -> pa.Field | None:
    return next((column for column in schema if column.name.lower() == name.lower()), None)


def _named(schema: pa.Schema, name: str) -> str:
    """The name as the schema spells it."""
    found = _of_name(schema, name)
    return name if found is None else str(found.name)


def _wrong_file_columns(config: TableConfig, columns: FileColumns, names: Sequence[str]) -> list[str]:
    problems = []
    for option, name, kind in (("path_column", columns.path, pa.string()), ("time_column", columns.time, TIMESTAMP)):
        if name is None:
            continue
        found, ddl = _of_name(config.schema, name), "STRING" if option == "path_column" else "TIMESTAMP"
        if found is None:
            add = in_python(f': table.alter(add_columns="{name} {ddl}")')
            problems.append(f"the table has no column {name!r}, which {option} names: add it{add}")
        elif found.type != kind:
            problems.append(
                f"column {found.name!r}, which {option} names, is {type_name(found.type)}; it must be {ddl}"
            )
        elif name.lower() in {given.lower() for given in names}:
            problems.append(f"records have a column {name!r} of their own; {option} must name another")
    if columns.path is not None and columns.time is not None and columns.path.lower() == columns.time.lower():
        problems.append("path_column and time_column name the same column")
    return problems


def _twice(names: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    problems = []
    for name in names:
        if name.lower() in seen:
            problems.append(f"it has column {name!r} twice")
        seen.add(name.lower())
    return problems


def _unknown(name: str, config: TableConfig, names: Sequence[str]) -> str:
    """:param names: those of the file, for a hint; none for no hint."""
    given = {one.lower() for one in names}
    hint = did_you_mean(name, [own for own in config.schema.names if own.lower() not in given]) if names else ""
    delimiter = next((sign for sign in _DELIMITERS if sign in name), None)
    if len(names) == 1 and delimiter is not None:
        hint = f"; do its columns end with {delimiter!r}? The format csv has an option delimiter"
    return (
        f"the table has no column {name!r}, only {', '.join(config.schema.names)}{hint}: add it "
        f"({argument('merge_schema', True)}, or table.alter), keep it in a column ({argument('rescued_column')}), "
        f"or name the columns to read ({argument('columns')})"
    )
