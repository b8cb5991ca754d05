"""The fixed columns of a stream of changes. They stay the same while the table gets new columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakemerge.errors import SchemaError
from lakemerge.read.parquet.files import shaped
from lakemerge.schema.evolution import common_type, new_columns, nullable_throughout, only_fields_of
from lakemerge.schema.schema import to_ddl

__all__ = ["FixedColumns"]


@dataclass(frozen=True, slots=True)
class FixedColumns:
    """The columns of a feed, given once. Other columns of the table and other fields of structs are left out."""

    schema: pa.Schema

    @staticmethod
    def of(schema: pa.Schema) -> FixedColumns:
        return FixedColumns(pa.schema([nullable_throughout(field) for field in schema]))

    def shaped(self, rows: pa.Table) -> pa.Table:
        """Rows of one of the table's versions, in these columns; null where the version has none."""
        known = {name.lower(): name for name in rows.column_names}
        there = {known[field.name.lower()]: field.name for field in self.schema if field.name.lower() in known}
        return shaped(rows.select(list(there)).rename_columns(list(there.values())), self.schema)

    def check(self, table: pa.Schema, version: int, *, stop_at_new: bool) -> None:
        """Check that a version's rows fit these columns.

        :param stop_at_new: whether a new column, or a new field of a struct, counts as a misfit.
        :raises SchemaError: they do not fit; the message has the schema to go on with.
        """
        every = pa.schema(map(nullable_throughout, table))
        spelled = {name.lower(): name for name in every.names}
        own = [field.with_name(spelled.get(field.name.lower(), field.name)) for field in self.schema]
        mine = {field.name: field.type for field in own}
        new = new_columns(pa.schema(own), every) if stop_at_new else []
        problems = [f"column {name!r} is new" for name in new]
        for field in every:
            kind = mine.get(field.name)
            if kind is not None and common_type(kind, only_fields_of(field.type, kind)) != kind:
                problems.append(f"column {field.name!r} has another type")
        if problems:
            ddl = to_ddl(pa.schema([field.with_nullable(True) for field in table]))
            raise SchemaError(
                f"version {version} does not fit the stream's columns: {', '.join(problems)}. The stream stopped "
                "before that batch; nothing is lost. Start it again with the same checkpoint, and it has the columns "
                f"{ddl}",
                problems=tuple(problems),
                version=version,
            )
