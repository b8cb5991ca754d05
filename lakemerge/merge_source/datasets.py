"""A dataset of a merge source: the table whose rows are entities."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakemerge._internal.arguments import check_fields, names, shown
from lakemerge.errors import InputError
from lakemerge.storage import absolute_location, place_of
from lakemerge.table.table import LakeTable
from mergers.wording import argument

__all__ = ["Dataset", "TableLike"]

TableLike = str | os.PathLike[str] | LakeTable


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table whose rows are entities.

    :param table: a path or URL, or an open :class:`lakemerge.LakeTable`. A relative path becomes absolute at once.
    :param name: its name in messages and results; by default its alias.
    :param id: the column, or columns, of an entity's id; by default the table's key. A plain Delta table needs one.
    :param deleted: the BOOLEAN column that marks deleted entities; by default ``_deleted``, if there is one.
    :param storage_options: as for :meth:`lakemerge.LakeTable.open`, if they differ from those of the source.
    """

    table: TableLike
    name: str | None = None
    id: str | Sequence[str] | None = None
    deleted: str | None = None
    storage_options: Mapping[str, object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.table, str | os.PathLike | LakeTable):
            raise InputError(f"{argument('table')} must be a path or a LakeTable, not {shown(self.table)}")
        if not isinstance(self.table, LakeTable):
            object.__setattr__(self, "table", absolute_location(self.table))
        if self.id is not None and not isinstance(self.id, str):
            object.__setattr__(self, "id", names(self.id, "id"))

    @property
    def url(self) -> str:
        return self.table.url if isinstance(self.table, LakeTable) else os.fspath(self.table)

    @property
    def place(self) -> str:
        """Where the table is, in one spelling."""
        return place_of(self.url)

    @property
    def id_columns(self) -> tuple[str, ...] | None:
        if self.id is None or isinstance(self.id, str):
            return None if self.id is None else (self.id,)
        return tuple(self.id)
