"""``event-time``: the record with the highest ordering wins, whenever it arrives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from mergers.builtin.delete_when import DeleteWhen
from mergers.builtin.options import OptionReader
from mergers.builtin.overlay import Overlay
from mergers.contract import Bools, Groups, Merged, Merger, RowKind, TableShape
from mergers.laws import Laws
from mergers.ordering import order_codes

__all__ = ["EventTime"]


@dataclass(frozen=True, slots=True)
class EventTime(Merger):
    """Upserts and deletes apply when their ordering is not below the stored one.

    Semantics, options and traps: docs/merge-semantics.md, section 5. The strategy id is that of
    Hudi's ``EVENT_TIME_ORDERING``, which means the same.
    """

    id = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
    name = "event-time"

    delete_when: DeleteWhen | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls.name, options, shape, ("delete_when",))
        if not shape.ordering:
            reader.problems.append("event-time needs ordering columns; without them use commit-time")
        delete_when = DeleteWhen.parse(reader)
        reader.finish()
        return cls(delete_when)

    def options(self) -> Mapping[str, object]:
        return {} if self.delete_when is None else {"delete_when": self.delete_when.option()}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        # With partial frames a late record's columns would ride on a newer one's ordering.
        # Not replay-safe: the later of equal orderings wins, and an unconditional delete forgets.
        return Laws(associative=full_frames, selective=full_frames)

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        marker = () if self.delete_when is None else (self.delete_when.column,)
        return frozenset((*columns, *marker))

    def lone_upsert_is_row(self, shape: TableShape) -> bool:
        return True

    def delete_marks(self, shape: TableShape) -> Mapping[str, pa.Array]:
        return {} if self.delete_when is None else {self.delete_when.column: self.delete_when.array(shape)}

    def bare_delete_removes(self, shape: TableShape) -> bool:
        return True

    def only_picks(self, shape: TableShape) -> bool:
        return self.delete_when is None

    def merge_groups(self, groups: Groups) -> Merged:
        return self._overlay(groups).fold()

    def combine(self, groups: Groups) -> Bools:
        return self._overlay(groups).combine()

    def _overlay(self, groups: Groups) -> Overlay:
        deletes = groups.kinds == RowKind.DELETE
        resets = deletes & ~groups.has_ordering
        if self.delete_when is not None:
            deletes = deletes | self.delete_when.matches(groups)
        codes = order_codes([groups.column(name) for name in groups.shape.ordering])
        return Overlay(groups, codes=codes, deletes=deletes, resets=resets)
