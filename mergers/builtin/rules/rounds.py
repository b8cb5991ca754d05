"""Rules one record after the other: the i-th record of every key at a time.

A round costs some 100 microseconds for each rule, and what its records cost; there are as many rounds as the key with
most records has records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mergers.builtin.history import History, upserts_of
from mergers.builtin.rules.checked import Rule, Rules
from mergers.builtin.rules.computing import chosen, compute, failure, truths
from mergers.builtin.segments import Segments
from mergers.contract import Bools, Groups, Ints, RowKind, Status
from mergers.ordering import order_codes

__all__ = ["Judged", "Policies", "fold_in_rounds", "judge"]

Policies = Mapping[str, str]
"""What each column without a rule does: ``newer``, ``last``, ``first`` or ``keep``."""
_BOOL = pa.bool_()
_LOST = 3
"""The state of a key after a condition that failed, beside those of :class:`Status`."""


@dataclass(frozen=True, slots=True)
class _Arranged:
    """Records by their place in their group."""

    groups: Ints
    """The groups, those with most records first."""
    records: Ints
    """The first record of every group, then the second of those that have one, and so on; in each round, the groups are
    in their order."""
    starts: Ints
    """Where each round begins in ``records``, and where the last one ends."""

    @classmethod
    def of(cls, segments: Segments, mask: Bools) -> _Arranged:
        part, records, groups = segments.within(mask)
        order = np.argsort(-part.sizes, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        turn = part.index - part.spread(part.starts)
        starts = np.concatenate([[0], np.cumsum(np.bincount(turn))]).astype(np.int64)
        # The groups that have a record for a round are the first ones.
        arranged = np.empty_like(records)
        arranged[starts[turn] + place[part.group]] = records
        return cls(groups[order], arranged, starts)


class _Column:
    """The values of a column of the rows so far. Groups without further records are put aside."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        self._done: list[pa.Array] = []

    def shrink(self, count: int) -> None:
        if count < len(self.values):
            self._done.append(self.values.slice(count))
            self.values = self.values.slice(0, count)

    @property
    def whole(self) -> pa.Array:
        return pa.concat_arrays([self.values, *reversed(self._done)]) if self._done else self.values


@dataclass(slots=True)
class _Rows:
    """The columns of the rows so far, and the records of the present round."""

    groups: Groups
    rules: Rules
    policies: Policies
    arranged: _Arranged
    names: Collection[str]
    values: dict[str, _Column] = field(init=False)
    unknown: dict[str, Bools] = field(default_factory=dict)
    """Column -> the groups, by their place, whose value is not known. It is there if there is such a group."""
    problems: dict[tuple[str, int], str] = field(default_factory=dict)
    """Column, or text of a condition, and place of a group -> why it is not known."""
    _given: dict[str, pa.Array] = field(init=False)
    _sets: dict[str, Bools | None] = field(init=False)
    _low: int = 0
    _count: int = 0

    def __post_init__(self) -> None:
        records, groups = self.arranged.records, self.groups
        taken = pa.array(records)
        self._given = {name: groups.column(name).take(taken) for name in self.names}
        asked = {name for rule in self.rules.all for name in rule.asked} | set(self.names)
        self._sets = {}
        for name in asked:
            mask = groups.is_set(name)
            self._sets[name] = None if mask is None or mask.all() else mask[records]
        count = len(self.arranged.groups)
        self.values = {name: _Column(pa.nulls(count, self._kind(name))) for name in self.names}

    def _kind(self, name: str) -> pa.DataType:
        return self.groups.shape.schema.field(name).type

    def turn(self, low: int, high: int) -> None:
        """Go on to the records of a round."""
        self._low, self._count = low, high - low
        for column in self.values.values():
            column.shrink(self._count)

    def given(self, name: str) -> pa.Array:
        """The records' values; null where they are unset."""
        return self._given[name].slice(self._low, self._count)

    def is_set(self, name: str) -> Bools | None:
        mask = self._sets[name]
        if mask is None:
            return None
        own = mask[self._low : self._low + self._count]
        return None if own.all() else own

    def ask(self, rule: Rule, asked: Bools, *, is_first: bool) -> tuple[Bools, Bools]:
        """Which of the records meet a condition, and on which it cannot be said."""
        rows = asked if is_first else asked & self._applies(rule)
        nothing = np.zeros(self._count, dtype=np.bool_)
        if not rows.any():
            return nothing, nothing
        lost = nothing if is_first else rows & self._unknown_to(rule)
        values, failed = self._computed(rule, rule.text, _BOOL, rows & ~lost, is_first=is_first)
        return truths(values) & rows & ~failed, failed | lost

    def begin(self, rows: Bools, stored: Bools) -> None:
        """These records make their rows."""
        if not rows.any():
            return
        for name, column in self.values.items():
            values, failed = self.given(name), np.zeros(self._count, dtype=np.bool_)
            rule = self.rules.first.get(name)
            fresh = rows & ~stored
            if rule is not None and fresh.any():
                made, failed = self._computed(rule, name, self._kind(name), fresh, is_first=True)
                values = chosen(fresh, made, values)
            column.values = chosen(rows, values, column.values)
            self._know(name, rows, failed)

    def apply(self, rows: Bools, newer: Bools) -> None:
        """These records change their rows."""
        if not rows.any():
            return
        made: dict[str, pa.Array] = {}
        known: list[tuple[str, Bools, Bools]] = []
        for name in self.names:
            rule = self.rules.columns.get(name)
            before = self.values[name].values
            if rule is None:
                taken = rows & self._takes(name, before, newer)
                made[name] = chosen(taken, self.given(name), before)
                known.append((name, taken, np.zeros_like(taken)))
                continue
            own = rows & self._applies(rule)
            if not own.any():
                continue
            lost = own & self._unknown_to(rule)
            values, failed = self._computed(rule, name, self._kind(name), own & ~lost, is_first=False)
            made[name] = chosen(own, values, before)
            known.append((name, own, failed | lost))
        for name, values in made.items():
            self.values[name].values = values
        for name, own, failed in known:
            self._know(name, own, failed)

    def _takes(self, name: str, before: pa.Array, newer: Bools) -> Bools:
        """Which records give a column without a rule their value."""
        mask = self.is_set(name)
        there = np.ones(self._count, dtype=np.bool_) if mask is None else mask
        match self.policies[name]:
            case "newer":
                return there & newer
            case "last":
                return there
            case "first":
                return there & before.is_null().to_numpy(zero_copy_only=False)
            case _:
                return np.zeros(self._count, dtype=np.bool_)

    def _applies(self, rule: Rule) -> Bools:
        every = np.ones(self._count, dtype=np.bool_)
        if rule.always:
            return every
        masks = [self.is_set(name) for name in rule.new]
        found = np.zeros(self._count, dtype=np.bool_)
        for mask in masks:
            if mask is None:
                return every
            found |= mask
        return found

    def _unknown_to(self, rule: Rule) -> Bools:
        """Where a rule reads a value that is not known."""
        found = np.zeros(self._count, dtype=np.bool_)
        for name in self.unknown.keys() & rule.reads:
            unknown = self.unknown[name][: self._count]
            if name in rule.old:
                found |= unknown
            elif (mask := self.is_set(name)) is not None:
                found |= unknown & ~mask
        return found

    def _know(self, name: str, rows: Bools, failed: Bools) -> None:
        if failed.any() and name not in self.unknown:
            self.unknown[name] = np.zeros(len(self.arranged.groups), dtype=np.bool_)
        if name in self.unknown:
            self.unknown[name][: self._count][rows] = failed[rows]

    def _computed(
        self, rule: Rule, name: str, kind: pa.DataType, rows: Bools, *, is_first: bool
    ) -> tuple[pa.Array, Bools]:
        """The values of a rule for some of the records, and where it fails. Other records have null."""
        whole = bool(rows.all())
        mask = None if whole else pa.array(rows)
        places = np.flatnonzero(rows)

        def some(values: pa.Array) -> pa.Array:
            return values if mask is None else values.filter(mask)

        def old(column: str) -> pa.Array:
            return pa.nulls(len(places), self._kind(column)) if is_first else some(self.values[column].values)

        def new(column: str) -> pa.Array:
            own = self.given(column)
            there = None if is_first else self.is_set(column)
            return some(own if there is None else chosen(there, own, self.values[column].values))

        def is_set(column: str) -> Bools:
            there = self.is_set(column)
            return np.ones(len(places), dtype=np.bool_) if there is None else there[rows]

        found = compute(rule, kind, len(places), old=old, new=new, is_set=is_set, is_first=is_first)
        failed = np.zeros(self._count, dtype=np.bool_)
        if found.failed is not None:
            failed[places] = found.failed
            self.problems |= {(name, int(places[at])): why for at, why in found.problems.items()}
        if whole:
            return found.values, failed
        spread = np.full(self._count, -1, dtype=np.int64)
        spread[places] = np.arange(len(places))
        return found.values.take(pa.array(spread, mask=~rows)), failed


@dataclass(frozen=True, slots=True)
class Judged:
    history: History
    setters: Ints
    """For each group that is a tombstone in the end, the record that made it one."""


def judge(groups: Groups, rules: Rules, policies: Policies) -> Judged:
    """What each record does to the row of its key, where conditions decide.

    Raises :class:`MergeOverflowError` for a key whose row is not known, because a condition failed.
    """
    segments, shape = Segments.of(groups.offsets), groups.shape
    arranged = _Arranged.of(segments, np.ones(len(segments.index), dtype=np.bool_))
    rows = _Rows(groups, rules, policies, arranged, [name for name in shape.schema.names if name in rules.decisive])
    size, count = len(arranged.groups), len(segments.index)
    ordered = bool(shape.ordering)
    codes = order_codes([groups.column(name) for name in shape.ordering]) if ordered else np.zeros(count, np.int64)
    placed = groups.has_ordering if ordered else np.zeros(count, dtype=np.bool_)
    upserts, deletes = upserts_of(groups), groups.kinds == RowKind.DELETE
    row, tombstone, nothing = int(Status.ROW), int(Status.TOMBSTONE), int(Status.ABSENT)
    lowest = np.iinfo(np.int64).min
    status = np.full(size, nothing, dtype=np.int8)
    top, winner, setter, creator = (np.full(size, -1, dtype=np.int64) for _ in range(4))
    applied, newer = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    told: dict[int, tuple[Rule, str]] = {}
    for low, high in zip(arranged.starts[:-1].tolist(), arranged.starts[1:].tolist(), strict=True):
        rows.turn(low, high)
        size = high - low
        record = arranged.records[low:high]
        state, code, stored = status[:size], codes[record], groups.stored[record]
        upsert, delete = upserts[record], deletes[record]
        none = np.zeros(size, dtype=np.bool_)
        absent, higher = state == nothing, code >= top[:size]
        gone = delete & ~placed[record]
        buried = delete & ~gone & (absent | higher)
        first = upsert & (absent | ((state == tombstone) & higher))
        onto, lost = upsert & (state == row), upsert & (state == _LOST)
        removed, failed = none, none

        def ask(rule: Rule, asked: Bools, *, is_first: bool) -> Bools:
            nonlocal failed
            found, unsure = rows.ask(rule, asked, is_first=is_first)
            failed = failed | unsure
            for place in np.flatnonzero(unsure).tolist():
                told[place] = rule, rows.problems.get((rule.text, place), "it reads a value that is not known")
            return found

        if rules.remove_when is not None:
            removed = ask(rules.remove_when, first & ~stored, is_first=True)
        if rules.ignore_when is not None:
            ignored = ask(rules.ignore_when, onto, is_first=False)
            onto = onto & ~ignored & ~failed
        if rules.remove_when is not None:
            dropped = ask(rules.remove_when, onto, is_first=False)
            onto, removed = onto & ~dropped & ~failed, removed | dropped
        makes = first & ~removed & ~failed
        rows.begin(makes, stored)
        rows.apply(onto, higher)
        applied[record] = makes | onto
        newer[record] = makes | (onto & higher)
        creator[:size][makes] = record[makes]
        counted = (makes | onto | removed | failed | lost | buried) & (absent | higher)
        top[:size][counted], winner[:size][counted] = code[counted], record[counted]
        setter[:size][removed | buried] = record[removed | buried]
        state[makes] = row
        state[removed] = tombstone if ordered else nothing
        state[failed] = _LOST
        state[buried] = tombstone
        state[gone] = nothing
        # An absent key remembers nothing, so whatever comes next is newer.
        top[:size][state == nothing] = lowest
    if (status == _LOST).any():
        place = int(np.argmax(status == _LOST))
        raise failure(groups, int(arranged.groups[place]), None, *told[place])
    back = np.empty_like(arranged.groups)
    back[arranged.groups] = np.arange(len(back))
    status, winner, setter, creator = status[back], winner[back], setter[back], creator[back]
    creator[status != Status.ROW] = -1
    made = segments.spread(creator)
    live = applied & (made >= 0) & (segments.index >= made)
    return Judged(History(segments, live, live & newer, creator, status, winner), setter)


def fold_in_rounds(
    groups: Groups, history: History, rules: Rules, policies: Policies, names: Collection[str]
) -> dict[str, pa.Array]:
    """The values of columns, for all groups; null where there is no row.

    Raises :class:`MergeOverflowError` for a key of which one of them is not known.
    """
    arranged = _Arranged.of(history.segments, history.live)
    needed = rules.closure(names)
    rows = _Rows(groups, rules, policies, arranged, [name for name in groups.shape.schema.names if name in needed])
    for low, high in zip(arranged.starts[:-1].tolist(), arranged.starts[1:].tolist(), strict=True):
        rows.turn(low, high)
        record = arranged.records[low:high]
        if low == 0:
            rows.begin(np.ones(high, dtype=np.bool_), groups.stored[record])
        else:
            rows.apply(np.ones(high - low, dtype=np.bool_), history.newer[record])
    places = np.full(len(groups.offsets) - 1, -1, dtype=np.int64)
    places[arranged.groups] = np.arange(len(arranged.groups))
    for name in names:
        unknown = rows.unknown.get(name)
        if unknown is not None and unknown.any():
            place = int(np.argmax(unknown))
            rule = rules.columns.get(name) or rules.first[name]
            told = rows.problems.get((name, place), "it reads a value that is not known")
            raise failure(groups, int(arranged.groups[place]), name, rule, told)
    return {name: rows.values[name].whole.take(pa.array(places, mask=places < 0)) for name in names}
