"""``first-row``: the first record of a key stays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from mergers.builtin.options import OptionReader
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Groups, Merged, Merger, RowKind, Status, TableShape
from mergers.errors import RecordRefusedError
from mergers.laws import Laws
from mergers.ordering import order_codes
from mergers.traits import Traits

__all__ = ["FirstRow"]


@dataclass(frozen=True, slots=True)
class FirstRow(Merger):
    """Without ordering the first record wins; with it, the one with the lowest ordering.

    Semantics and options: docs/merge-semantics.md, section 5.
    """

    id = "70a3a575-2f8e-41b5-ab1b-d36342ccc99c"
    name = "first-row"

    ignore_delete: bool = False

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return options

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        ignore_delete = reader.flag("ignore_delete")
        reader.finish()
        return cls(ignore_delete)

    def options(self) -> Mapping[str, object]:
        return {"ignore_delete": True} if self.ignore_delete else {}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        # With an ordering, a lower record overlays the row, so partial records mix their columns.
        ordered = bool(shape.ordering)
        return Laws(
            associative=full_frames or not ordered,
            commutative=full_frames and ordered,
            replay_safe=True,
            selective=full_frames,
        )

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return frozenset(columns)

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:
        refused = sorted(kind.symbol for kind in kinds & {RowKind.DELETE, RowKind.UPDATE_BEFORE})
        if refused and not self.ignore_delete:
            raise RecordRefusedError(
                f"first-row takes no deletes or retractions, and the frame has {', '.join(refused)}; leave them out, "
                "or create the table with ignore_delete=true to drop them",
                kinds=tuple(refused),
            )

    def traits(self, shape: TableShape) -> Traits:
        return Traits(lone_upsert_is_row=True, only_picks=True, whole_records=True, tombstones=False)

    def merge_groups(self, groups: Groups) -> Merged:
        segments = Segments.of(groups.offsets)
        applied = self._applied(groups, segments)
        winner = segments.last(applied)
        status = np.where(winner < 0, Status.ABSENT, Status.ROW).astype(np.int8)
        # A tombstone of an earlier merger stays until a row comes.
        kept = (winner < 0) & groups.stored[segments.starts]
        status[kept] = Status.TOMBSTONE
        winner[kept] = segments.starts[kept]
        columns: dict[str, pa.Array] = {}
        for name in groups.rows.column_names:
            carried = groups.is_set(name) if name in groups.shape.values else None
            if carried is not None:
                pick = segments.last(applied & carried)
                if not np.array_equal(pick[status == Status.ROW], winner[status == Status.ROW]):
                    columns[name] = groups.column(name).take(pa.array(pick, mask=pick < 0))
        return Merged(status=status, winner=winner, columns=columns)

    def combine(self, groups: Groups) -> Bools:
        """Keep the deciding upsert of each key. All records of a frame carry the same columns, so it overlays
        everything that the frame's earlier records would have left."""
        segments = Segments.of(groups.offsets)
        keep = np.zeros(len(groups.kinds), dtype=np.bool_)
        winner = segments.last(self._applied(groups, segments))
        keep[winner[winner >= 0]] = True
        return keep

    @staticmethod
    def _applied(groups: Groups, segments: Segments) -> Bools:
        """Upserts that create the row, or have a lower ordering than all upserts before."""
        upserts = (groups.kinds == RowKind.INSERT) | (groups.kinds == RowKind.UPDATE_AFTER)
        if not groups.shape.ordering:
            applied = np.zeros(len(upserts), dtype=np.bool_)
            first = segments.first(upserts)
            applied[first[first >= 0]] = True
            return applied
        # ~code reverses the order and, unlike -code, exists for every int64. Among equals the first counts.
        backwards = ~order_codes([groups.column(name) for name in groups.shape.ordering])
        lowest = segments.at_highest(backwards, upserts)
        before = segments.last_before(lowest)
        ties = lowest & (before >= 0)
        ties[ties] = backwards[before[ties]] == backwards[ties]
        return lowest & ~ties
