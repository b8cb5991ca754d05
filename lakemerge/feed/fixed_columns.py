"""The columns of a stream of changes, which stay as they are while the table's grow."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakemerge.errors import SchemaError
from lakemerge.read.parquet.files import shaped
from lakemerge.schema.evolution import common_type, nullable_throughout
from lakemerge.schema.schema import to_ddl

__all__ = ["FixedColumns"]


@dataclass(frozen=True, slots=True)
class FixedColumns:
    """Columns of a feed, given once. Those of the table that are not among them are left out."""

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
        """Whether a version's rows can be told in these columns.

        :param stop_at_new: whether columns that are not among these are a reason not to.
        :raises SchemaError: they cannot; the message has the schema to go on with.
        """
        mine = {field.name.lower(): field for field in self.schema}
        problems = []
        for field in map(nullable_throughout, table):
            own = mine.get(field.name.lower())
            if own is None:
                problems += [f"column {field.name!r} is new"] if stop_at_new else []
            elif common_type(own.type, field.type) != own.type:
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
