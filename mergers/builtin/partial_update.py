"""``partial-update``: a row is put together from the columns that its records set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import pyarrow as pa

from mergers.builtin.aggregates import check_retraction_kinds, check_values
from mergers.builtin.functions.picks import settle, take
from mergers.builtin.history import Events, History, replay, upserts_of
from mergers.builtin.options import OptionReader
from mergers.builtin.renaming import Rename, by_column, listed, renamed, sequence_names, sequences
from mergers.builtin.sequence_groups import SequenceGroups
from mergers.builtin.unset import Unset
from mergers.contract import Bools, Groups, Ints, Kinds, Merged, Merger, RowKind, Status, TableShape
from mergers.errors import RecordRefusedError
from mergers.laws import Laws
from mergers.traits import Traits

__all__ = ["PartialUpdate"]

_RETRACTING = (RowKind.UPDATE_BEFORE, RowKind.DELETE)


_NAMING: Final[Mapping[str, Rename]] = {
    "defaults": by_column,
    "aggregates": by_column,
    "ignore_retract": listed,
    "sequence_groups": sequences,
    "remove_record_on_sequence_group": sequence_names,
}
"""The options that name columns."""


@dataclass(frozen=True, slots=True)
class PartialUpdate(Merger):
    """Semantics and options: docs/merge-semantics.md, section 5."""

    id = "9bc70621-7bf9-4615-b262-51c0268ec216"
    name = "partial-update"

    unset: Unset = field(default_factory=Unset)
    groups: SequenceGroups | None = None
    ignore_delete: bool = False
    remove_record_on_delete: bool = False

    @classmethod
    def known_options(cls) -> Mapping[str, object]:
        return {**Unset.known, **SequenceGroups.known, "ignore_delete": False, "remove_record_on_delete": False}

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return renamed(options, names, _NAMING)

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        own = ("ignore_delete", "remove_record_on_delete")
        reader = OptionReader(cls, options, shape)
        unset = Unset.parse(reader)
        groups = SequenceGroups.parse(reader)
        ignores, removes = (reader.flag(name) for name in own)
        if ignores and removes:
            reader.problems.append("ignore_delete and remove_record_on_delete exclude each other")
        if groups is not None and (ignores or removes):
            reader.problems.append(
                "ignore_delete and remove_record_on_delete are for tables without sequence_groups; with them use "
                "ignore_retract or remove_record_on_sequence_group"
            )
        if groups is None:
            unset.require_nullable(reader, [name for name in shape.values if name not in shape.ordering])
        else:
            groups.require_nullable(reader, unset)
        reader.finish()
        return cls(unset, groups, ignores, removes)

    def options(self) -> Mapping[str, object]:
        given = dict(self.unset.options())
        if self.groups is not None:
            given |= self.groups.options()
        flags = {"ignore_delete": self.ignore_delete, "remove_record_on_delete": self.remove_record_on_delete}
        return given | {name: True for name, value in flags.items() if value}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        # With an ordering, an older record fills nulls of the row that it meets. With groups, a retraction does nothing
        # if there is no row. Both depend on the base, which is not known here.
        return Laws(associative=self.groups is None and not shape.ordering)

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return frozenset(columns) if self.groups is None else self.groups.needs(columns)

    def remembers(self, shape: TableShape) -> tuple[str, ...]:
        return () if self.groups is None else self.groups.sequences

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:
        given = kinds & set(_RETRACTING)
        if self.groups is not None:
            check_retraction_kinds(self.groups.functions, self.groups.ignore_retract, given)
        elif given and not (self.ignore_delete or self.remove_record_on_delete):
            symbols = sorted(kind.symbol for kind in given)
            raise RecordRefusedError(
                f"partial-update takes no deletes or retractions here, and the frame has {', '.join(symbols)}; create "
                "the table with ignore_delete=true to drop them, or remove_record_on_delete=true to let -D remove rows",
                kinds=tuple(symbols),
            )

    def check_records(self, shape: TableShape, rows: pa.RecordBatch, kinds: Kinds | None) -> None:
        if self.groups is not None:
            self.groups.check_frame(rows)
            check_values(self.groups.functions, self.groups.ignore_retract, rows, kinds, _RETRACTING)

    def traits(self, shape: TableShape) -> Traits:
        return Traits(
            lone_upsert_is_row=self.groups is None,
            only_picks=self.unset.mode != "default" and (self.groups is None or not self.groups.functions),
        )

    def bulk_load_vetoes(self, shape: TableShape) -> Mapping[str, pa.Array]:
        return self.unset.vetoes(shape)

    def describe_step(
        self, shape: TableShape, *, before: Mapping[str, object] | None, record: Mapping[str, object], kind: RowKind
    ) -> Mapping[str, str]:
        return {} if self.groups is None else self.groups.described(shape, before, record, kind)

    def merge_groups(self, groups: Groups) -> Merged:
        if self.groups is not None:
            return self.groups.merge(groups, self.unset)
        upserts, ordering = upserts_of(groups), groups.shape.ordering
        none = np.zeros_like(upserts)
        deletes = (groups.kinds == RowKind.DELETE) & ~groups.stored if self.remove_record_on_delete else none
        placed = groups.has_ordering if ordering else none
        history = replay(groups, Events(upserts, deletes & placed, deletes & ~placed))
        carried = frozenset().union(*(groups.presence[source] for source in np.unique(groups.sources[~groups.stored])))
        decided = history.status == Status.ROW
        own = [name for name in groups.rows.column_names if name in groups.shape.values and name not in ordering]
        columns: dict[str, pa.Array] = {}
        for name in own:
            if name in carried:
                picks = self._picks(groups, history, name)
                if not np.array_equal(picks[decided], history.winner[decided]):
                    columns[name] = take(groups.column(name), picks)
        # In a wide table most columns are in no record. They keep the stored row's values, which are taken at once.
        stored = history.segments.last(history.live & groups.stored)
        if not np.array_equal(stored[decided], history.winner[decided]):
            columns |= groups.values_at([name for name in own if name not in carried], stored)
        return Merged(status=history.status, winner=history.winner, columns=columns)

    def _picks(self, groups: Groups, history: History, name: str) -> Ints:
        """For each group, the record whose value the column has; -1 for null."""
        segments, creator = history.segments, history.creator
        states = history.live & self.unset.sets(groups, name)
        if not groups.shape.ordering:
            last = segments.last(states)
            return np.where(last >= 0, last, self._made(groups, creator, name))
        empty = self.unset.empty(groups, name)
        newer, older = states & history.newer, states & ~history.newer
        picks = settle(segments, newer & ~empty, newer & empty, older & ~empty)
        # All values are null or the default: the last record that wrote one counts, also an older null over a default.
        hollow = segments.last(states & empty)
        hollow = np.where(hollow >= 0, hollow, self._made(groups, creator, name))
        return np.where(picks >= 0, picks, hollow)

    def _made(self, groups: Groups, creator: Ints, name: str) -> Ints:
        """The creating record if it brings a default into a new row; else -1."""
        if not self.unset.has_defaults:
            return np.full_like(creator, -1)
        carried: Bools | None = groups.is_set(name)
        return creator if carried is None else np.where((creator >= 0) & carried[creator], creator, -1)
