"""Sequence groups of ``partial-update``: columns with a sequence of their own.

Source: docs/merge-semantics.md, section 5, ``partial-update``, rules 3 to 5 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from mergers.builtin.aggregates import Choices, described, functions_of, irretractable, read_choices
from mergers.builtin.functions import ColumnEvents, Function
from mergers.builtin.functions.picks import settle, take
from mergers.builtin.history import carried, upserts_of
from mergers.builtin.options import OptionReader
from mergers.builtin.segments import Segments
from mergers.builtin.unset import Unset
from mergers.builtin.values import frozen, thawed
from mergers.contract import Bools, Groups, Ints, Merged, RowKind, Status, TableShape
from mergers.errors import RecordRefusedError
from mergers.ordering import order_codes

__all__ = ["SequenceGroup", "SequenceGroups"]


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """One group. ``name`` is the key it has in the options: its sequence columns, with commas."""

    name: str
    sequence: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turns:
    """What records say of the sequence of one group."""

    there: Bools
    """Records whose sequence is not all null."""
    newer: Bools
    """Those that are not older than any record of the key before them."""


@dataclass(frozen=True, slots=True)
class SequenceGroups:
    """All groups of a table and the functions of their members."""

    known: ClassVar[Mapping[str, object]] = {
        "sequence_groups": {},
        "aggregates": {},
        "default_aggregate": None,
        "ignore_retract": [],
        "remove_record_on_sequence_group": [],
    }
    """The options, with their defaults."""

    groups: tuple[SequenceGroup, ...]
    aggregates: Choices = field(default_factory=dict)
    default_aggregate: object = None
    ignore_retract: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)
    """The functions of the members that have one, from the options."""

    @classmethod
    def parse(cls, reader: OptionReader) -> Self | None:
        """``None`` where the table has no groups."""
        groups = tuple(
            SequenceGroup(name, tuple(part.strip() for part in name.split(",")), reader.strings(members, name))
            for name, members in reader.mapping("sequence_groups").items()
        )
        _check_columns(reader, groups)
        members = [column for group in groups for column in group.members]
        choices = read_choices(reader, members, "members of sequence groups")
        default = frozen(reader.options.get("default_aggregate"))
        functions = functions_of(reader, [m for m in members if m in reader.shape.schema.names], choices, default)
        ignored, removing = reader.names("ignore_retract"), reader.names("remove_record_on_sequence_group")
        for name in ignored:
            if reader.is_column(name, "ignore_retract") and name not in functions:
                reader.problems.append(f"ignore_retract names {name!r}, which no function aggregates")
        known = [group.name for group in groups]
        for name in removing:
            if name not in known:
                reader.problems.append(
                    f"remove_record_on_sequence_group names {name!r}; the groups are {', '.join(known) or 'none'}"
                )
        if not groups:
            if default is not None:
                reader.problems.append("default_aggregate needs sequence_groups")
            return None
        return cls(groups, choices, default, ignored, removing, functions)

    def require_nullable(self, reader: OptionReader, unset: Unset) -> None:
        """Note every NOT NULL column that may come out null."""
        schema, retracts = reader.shape.schema, not irretractable(self.functions, self.ignore_retract)
        sequences = {name for group in self.groups for name in group.sequence}
        unset.require_nullable(reader, [name for name in reader.shape.values if name not in sequences])
        for group in self.groups:
            # An upsert has values for NOT NULL columns. So it can skip the group only if the whole sequence may be
            # null.
            if all(schema.field(name).nullable for name in group.sequence if name in schema.names):
                reader.nullable(group.members, f"a record without sequence {group.name!r} leaves null in it")
                continue
            defaulted = [n for n in group.members if n in self.functions and unset.defaults.get(n) is not None]
            reader.nullable(defaulted, "its default counts as unset, and a function that folds nothing gives null")
            functions = {name: self.functions.get(name) for name in group.members if name not in defaulted}
            blanking = [name for name, function in functions.items() if function is not None and function.blanks]
            reader.nullable(blanking, "its function may leave null in it")
            if retracts:
                emptied = [
                    name
                    for name, function in functions.items()
                    # A late record may make a row after a delete that its group remembers.
                    if function is None or function.waits or (function.forgets and name not in self.ignore_retract)
                ]
                # A delete that is newer may hold nulls in its sequence, but not in the first column.
                reader.nullable([*group.sequence[1:], *emptied], "a delete or retraction may leave null in it")

    def options(self) -> Mapping[str, object]:
        given: dict[str, object] = {"sequence_groups": {group.name: list(group.members) for group in self.groups}}
        if self.aggregates:
            given["aggregates"] = {column: thawed(choice) for column, choice in self.aggregates.items()}
        if self.default_aggregate is not None:
            given["default_aggregate"] = thawed(self.default_aggregate)
        if self.ignore_retract:
            given["ignore_retract"] = list(self.ignore_retract)
        if self.removing:
            given["remove_record_on_sequence_group"] = list(self.removing)
        return given

    def described(
        self, shape: TableShape, before: Mapping[str, object] | None, record: Mapping[str, object], kind: RowKind
    ) -> Mapping[str, str]:
        """See :meth:`mergers.Merger.describe_step`."""
        remarks = [] if before is None else [self._lost(group, shape, before, record) for group in self.groups]
        said = "; ".join(remark for remark in remarks if remark is not None)
        words = dict(described(self.functions, self.ignore_retract, before, record, kind))
        return {**words, "": said} if said else words

    @staticmethod
    def _lost(
        group: SequenceGroup, shape: TableShape, before: Mapping[str, object], record: Mapping[str, object]
    ) -> str | None:
        """Why the record does not count as newer in a group; the record carries the group's sequence."""
        if not set(group.sequence) <= record.keys():
            return None
        if all(record[name] is None for name in group.sequence):
            return f"group {group.name} is skipped, since its sequence is null"
        kinds = [shape.schema.field(name).type for name in group.sequence]
        pairs = [(record[name], before.get(name)) for name in group.sequence]
        own, stored = order_codes([pa.array(pair, kind) for pair, kind in zip(pairs, kinds, strict=True)]).tolist()
        if own >= stored:
            return None
        sides = (", ".join(map(str, side)) for side in zip(*pairs, strict=True))
        return "group {}: {} is older than {}".format(group.name, *sides)

    def needs(self, columns: Collection[str]) -> frozenset[str]:
        """All sequences decide whether there is a row."""
        return frozenset((*columns, *self.sequences))

    def check_frame(self, rows: pa.RecordBatch) -> None:
        """Raise :class:`RecordRefusedError` if a frame has only a part of a sequence."""
        names = set(rows.schema.names)
        problems = [
            f"the sequence {group.name!r} lacks {', '.join(c for c in group.sequence if c not in names)}"
            for group in self.groups
            if names & set(group.sequence) and not names.issuperset(group.sequence)
        ]
        if problems:
            raise RecordRefusedError(
                "a frame carries all sequence columns of a group, or none: " + "; ".join(problems),
                problems=tuple(problems),
            )

    def merge(self, groups: Groups, unset: Unset) -> Merged:
        segments, upserts = Segments.of(groups.offsets), upserts_of(groups)
        # Sequences outlive the row, so what is newer does not depend on where the row begins.
        turns = {group.name: _turns(groups, group, segments) for group in self.groups}
        removed = segments.last(self._removals(groups, turns))
        stays_out = self._stays_out(segments, turns)
        creator = segments.first(upserts & ~stays_out & (segments.index > segments.spread(removed)))
        live = (segments.spread(creator) >= 0) & (segments.index >= segments.spread(creator))
        setter = segments.last(np.logical_or.reduce([each.newer for each in turns.values()]))
        status = np.where(creator >= 0, Status.ROW, np.where(setter >= 0, Status.TOMBSTONE, Status.ABSENT)).astype(
            np.int8
        )
        columns: dict[str, pa.Array] = {}
        for group in self.groups:
            columns |= self._fold_group(groups, group, turns[group.name], segments, live, creator, unset)
        for name in groups.rows.column_names:
            if name in groups.shape.values and name not in self._grouped:
                columns[name] = _overwritten(groups, name, segments, live & upserts, creator, unset)
        return Merged(status=status, winner=np.where(creator >= 0, creator, setter), columns=columns)

    def _removals(self, groups: Groups, turns: Mapping[str, Turns]) -> Bools:
        """Deletes that remove the row."""
        newer = [turns[name].newer for name in self.removing]
        none = np.zeros(len(groups.kinds), dtype=np.bool_)
        return (groups.kinds == RowKind.DELETE) & np.logical_or.reduce([none, *newer])

    def _stays_out(self, segments: Segments, turns: Mapping[str, Turns]) -> Bools:
        """Records that make no row, if they are upserts and meet a tombstone."""
        removing = [turns[name] for name in self.removing]
        if not removing:
            return np.zeros(len(segments.index), dtype=np.bool_)
        older = np.logical_or.reduce([each.there & ~each.newer for each in removing])
        remembered = segments.last_before(np.logical_or.reduce([each.there for each in removing])) >= 0
        named = np.logical_or.reduce([each.there for each in turns.values()])
        newer = np.logical_or.reduce([each.newer for each in turns.values()])
        return np.asarray(older | (remembered & named & ~newer))

    @property
    def sequences(self) -> tuple[str, ...]:
        """The sequence columns of all groups."""
        return tuple(name for group in self.groups for name in group.sequence)

    @property
    def _grouped(self) -> frozenset[str]:
        return frozenset(name for group in self.groups for name in (*group.sequence, *group.members))

    def _fold_group(
        self,
        groups: Groups,
        group: SequenceGroup,
        turns: Turns,
        segments: Segments,
        live: Bools,
        creator: Ints,
        unset: Unset,
    ) -> dict[str, pa.Array]:
        upserts = upserts_of(groups)
        counted = live & turns.there
        newer = live & turns.newer
        first = np.zeros_like(live)
        opening = segments.first(turns.there)
        first[opening[opening >= 0]] = True
        made = creator[creator >= 0]
        first[made] = True
        first &= counted
        columns = {name: take(groups.column(name), segments.last(turns.newer)) for name in group.sequence}
        there = frozenset(groups.rows.column_names)
        for name in group.members:
            if name not in there:
                continue
            sets = unset.sets(groups, name, nulls=True)
            # A stored row always has a value, which may be null, whatever its sequence is.
            adds = (counted | (live & groups.stored)) & upserts & sets
            function = self.functions.get(name)
            if function is None:
                if unset.has_defaults:
                    adds[made] |= counted[made] & carried(groups, name)[made]
                picks = settle(segments, adds & (newer | groups.stored), newer & ~upserts, np.zeros_like(adds))
                columns[name] = take(groups.column(name), picks)
                continue
            ignored = name in self.ignore_retract
            columns[name] = function.fold(
                ColumnEvents(
                    groups=groups,
                    segments=segments,
                    column=name,
                    adds=adds,
                    retracts=np.zeros_like(adds) if ignored else counted & ~upserts & sets,
                    newer=newer | groups.stored,
                    first=first | groups.stored,
                    values=groups.column(name),
                )
            )
        return columns


def _check_columns(reader: OptionReader, groups: Sequence[SequenceGroup]) -> None:
    taken: dict[str, str] = {}
    if groups and reader.shape.ordering:
        reader.problems.append("sequence_groups take the place of ordering; a table has one or the other")
    for group in groups:
        where = f"sequence group {group.name!r}"
        for column in (*group.sequence, *group.members):
            if not reader.is_column(column, where):
                continue
            if column in reader.shape.key:
                reader.problems.append(f"{where} has the key column {column!r}")
            if column in taken:
                reader.problems.append(f"column {column!r} is twice in sequence groups: {taken[column]} and {where}")
            taken[column] = where
        for column in group.sequence:
            if column in reader.shape.schema.names and pa.types.is_nested(reader.shape.schema.field(column).type):
                reader.problems.append(f"{where} goes by {column!r}, which has no order")


def _turns(groups: Groups, group: SequenceGroup, segments: Segments) -> Turns:
    columns = [groups.column(name) for name in group.sequence]
    there = np.logical_or.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
    return Turns(there, segments.at_highest(order_codes(columns), there))


def _overwritten(
    groups: Groups, name: str, segments: Segments, upserts: Bools, creator: Ints, unset: Unset
) -> pa.Array:
    """A column outside all groups: every value that is set overwrites."""
    last = segments.last(upserts & unset.sets(groups, name))
    if unset.has_defaults:
        made = (creator >= 0) & carried(groups, name)[creator]
        last = np.where((last < 0) & made, creator, last)
    return take(groups.column(name), last)
