"""What ``event-time`` and ``commit-time`` share: the options, and the overlay of later records over earlier ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from mergers.builtin.delete_when import DeleteWhen
from mergers.builtin.options import OptionReader
from mergers.builtin.overlay import Overlay
from mergers.builtin.renaming import renamed
from mergers.contract import Bools, Groups, Merged, Merger, TableShape
from mergers.traits import Traits

__all__ = ["Latest"]


@dataclass(frozen=True, slots=True)
class Latest(Merger):
    """The latest record wins. Subclasses say what "latest" means, and which deletes are unconditional."""

    delete_when: DeleteWhen | None = None

    @classmethod
    def known_options(cls) -> Mapping[str, object]:
        return {"delete_when": None}

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return renamed(options, names, {"delete_when": DeleteWhen.renamed})

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        reader.problems += cls.shape_problems(shape)
        delete_when = DeleteWhen.parse(reader)
        reader.finish()
        return cls(delete_when)

    @classmethod
    def shape_problems(cls, shape: TableShape) -> list[str]:
        """Why the merger cannot be that of such a table."""
        return []

    def options(self) -> Mapping[str, object]:
        return {} if self.delete_when is None else {"delete_when": self.delete_when.option()}

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        marker = () if self.delete_when is None else (self.delete_when.column,)
        return frozenset((*columns, *marker))

    def traits(self, shape: TableShape) -> Traits:
        return Traits(lone_upsert_is_row=True, only_picks=self.delete_when is None, whole_records=True)

    def delete_marks(self, shape: TableShape) -> Mapping[str, pa.Array]:
        return {} if self.delete_when is None else {self.delete_when.column: self.delete_when.array(shape)}

    def merge_groups(self, groups: Groups) -> Merged:
        return self.overlay(groups).fold()

    def combine(self, groups: Groups) -> Bools:
        return self.overlay(groups).combine()

    @abstractmethod
    def overlay(self, groups: Groups) -> Overlay:
        """The records as the overlay sees them."""
