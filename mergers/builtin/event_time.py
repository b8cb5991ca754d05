"""``event-time``: the record with the highest ordering wins, whenever it arrives."""

from __future__ import annotations

from dataclasses import dataclass

from mergers.builtin.latest import Latest
from mergers.builtin.overlay import Overlay
from mergers.contract import Groups, RowKind, TableShape
from mergers.laws import Laws
from mergers.ordering import order_codes

__all__ = ["EventTime"]


@dataclass(frozen=True, slots=True)
class EventTime(Latest):
    """Upserts and deletes apply when their ordering is not below the stored one.

    Semantics, options and traps: docs/merge-semantics.md, section 5. The strategy id is that of
    Hudi's ``EVENT_TIME_ORDERING``, which means the same.
    """

    id = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
    name = "event-time"

    @classmethod
    def shape_problems(cls, shape: TableShape) -> list[str]:
        return (
            []
            if shape.ordering
            else ["event-time needs ordering columns: name those that say which record is newer, or use commit-time"]
        )

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        # With partial frames a late record's columns would ride on a newer one's ordering.
        # Not replay-safe: the later of equal orderings wins, and an unconditional delete forgets.
        return Laws(associative=full_frames, commutative=full_frames, selective=full_frames)

    def overlay(self, groups: Groups) -> Overlay:
        deletes = groups.kinds == RowKind.DELETE
        resets = deletes & ~groups.has_ordering
        if self.delete_when is not None:
            deletes = deletes | self.delete_when.matches(groups)
        codes = order_codes([groups.column(name) for name in groups.shape.ordering])
        return Overlay(groups, codes=codes, deletes=deletes, resets=resets)
