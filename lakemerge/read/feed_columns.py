"""The columns of a change feed: those of all versions whose rows it shows, so that no value is lost.

A schema only grows, so the last version has all columns, unless one of the commits is a restore. The version that
comes back may lack columns, or have narrower or entirely different types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakemerge.delta import Metadata
from lakemerge.format.config import TableConfig
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.parquet.files import shaped
from lakemerge.schema.evolution import common_type, nullable_throughout

__all__ = ["FeedColumns"]


@dataclass(frozen=True, slots=True)
class FeedColumns:
    """The columns of the newest version, in its order, and then those that only earlier versions have. Null is
    allowed at every level."""

    schema: pa.Schema
    sources: tuple[str, ...]
    """For each column, the name of the table's column, in lower case. If the types of a table's column have no common
    type, its name is here several times."""

    @staticmethod
    def between(handle: Handle, before: TableView, until: TableView, *, reserved: Collection[str]) -> FeedColumns:
        """The columns for the rows of two versions and of all between them.

        :param reserved: names, in lower case, that columns of earlier versions do not get.
        """
        schemas = [(until.version, until.config.schema)]
        if before.state.restore_epoch != until.state.restore_epoch:
            schemas += reversed(list(_defined(handle, before.version, until.version)))
            schemas.append((before.version, before.config.schema))
        return FeedColumns.of(schemas, reserved=reserved)

    @staticmethod
    def of(schemas: Sequence[tuple[int, pa.Schema]], *, reserved: Collection[str] = ()) -> FeedColumns:
        """The columns for the rows of some versions, the newest first."""
        fields: list[pa.Field] = []
        sources: list[str] = []
        for version, schema in schemas:
            for field in map(nullable_throughout, schema):
                source = field.name.lower()
                for place in _places(sources, source):
                    if (both := common_type(fields[place].type, field.type)) is not None:
                        fields[place] = fields[place].with_type(both)
                        break
                else:
                    taken = {f.name.lower() for f in fields} | set(reserved if version != schemas[0][0] else ())
                    fields.append(field.with_name(_free(field.name, version, taken)))
                    sources.append(source)
        return FeedColumns(pa.schema(fields), tuple(sources))

    def shaped(self, rows: pa.Table) -> pa.Table:
        """Rows of one of the versions, in these columns; null where the version has none."""
        names = [self._name_of(field) for field in map(nullable_throughout, rows.schema)]
        return shaped(rows.rename_columns(names), self.schema)

    def _name_of(self, field: pa.Field) -> str:
        candidates = [self.schema.field(place) for place in _places(self.sources, field.name.lower())]
        return next(c.name for c in candidates if common_type(c.type, field.type) == c.type)


def _defined(handle: Handle, since: int, until: int) -> Iterator[tuple[int, pa.Schema]]:
    """The schemas that commits after ``since`` set, oldest first."""
    for version, actions in handle.log.commits(since=since, until=until):
        for action in actions:
            if isinstance(action, Metadata):
                yield version, TableConfig.of(action, url=handle.store.url).schema


def _places(sources: Sequence[str], source: str) -> Iterable[int]:
    return (place for place, name in enumerate(sources) if name == source)


def _free(name: str, version: int, taken: Collection[str]) -> str:
    """The name, or if it is taken, one with the number of a version that has the column."""
    free = name if name.lower() not in taken else f"{name}_v{version}"
    while free.lower() in taken:
        free += "_"
    return free
