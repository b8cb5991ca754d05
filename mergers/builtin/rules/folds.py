"""The columns of rows that rules make: folds over segments where a rule has such a form, and rounds elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.sql.decimals import from_unscaled, to_unscaled
from mergers.builtin.functions.numbers import fold_steps
from mergers.builtin.functions.picks import take
from mergers.builtin.history import History, carried
from mergers.builtin.rules.checked import Rule, Rules
from mergers.builtin.rules.computing import chosen, compute, failure, truths
from mergers.builtin.rules.lowering import Form, Lowered, Nulls
from mergers.builtin.rules.rounds import Policies, fold_in_rounds
from mergers.contract import Bools, Groups, Ints, Status
from mergers.ordering import order_codes
from mergers.type_names import type_name

__all__ = ["fold_columns"]


def fold_columns(
    groups: Groups, history: History, rules: Rules, policies: Policies, forms: Mapping[str, Lowered]
) -> dict[str, pa.Array]:
    """The columns whose values are not all those of the record that gives the ordering, for all groups.

    Raises :class:`MergeOverflowError` for a key on which a rule fails.
    """
    shape, there = groups.shape, frozenset(groups.rows.column_names)
    names = [name for name in shape.values if name in there and name not in shape.ordering]
    fold = _Fold(groups, history, rules, policies, forms)
    is_row = history.status == Status.ROW
    columns: dict[str, pa.Array] = {}
    # Columns that the same records give share the answer.
    picks: dict[bytes, tuple[Ints, bool]] = {}
    left = []
    for name in names:
        form = forms.get(name)
        if form is not None and form.form is Form.SUM:
            made = fold.sum(name, form)
            if made is not None:
                columns[name] = made
                continue
        given = fold.given_by(name)
        if given is None:
            left.append(name)
            continue
        same = given.tobytes()
        if same not in picks:
            last = history.segments.last(given)
            picks[same] = last, not np.array_equal(last[is_row], history.winner[is_row])
        pick, differs = picks[same]
        if differs or name in fold.begun:
            columns[name] = take(fold.values(name), pick)
    if left:
        columns |= fold_in_rounds(groups, history, rules, policies, left)
    return columns


@dataclass(slots=True)
class _Fold:
    groups: Groups
    history: History
    rules: Rules
    policies: Policies
    forms: Mapping[str, Lowered]
    begun: dict[str, pa.Array] = field(default_factory=dict)
    """Column with a rule for first records -> its values, with those that the rule gives."""
    _given: dict[str, Bools | None] = field(default_factory=dict)
    _by_policy: dict[str, Bools] = field(default_factory=dict)
    _unsure: set[str] = field(default_factory=set)
    """Columns that take rounds because a first record does not give them a value."""
    _creators: Bools = field(init=False)
    _later: Bools = field(init=False)

    def __post_init__(self) -> None:
        self._creators = np.zeros(len(self.history.live), dtype=np.bool_)
        self._creators[self.history.creator[self.history.creator >= 0]] = True
        self._later = self.history.live & ~self._creators
        for name, rule in self.rules.first.items():
            if name in self.groups.rows.column_names:
                self._begin(name, rule)

    def _begin(self, name: str, rule: Rule) -> None:
        fresh = self._creators & ~self.groups.stored
        values = self.groups.column(name)
        records = np.flatnonzero(fresh)
        if not len(records):
            return
        at = pa.array(records)

        def nothing(column: str) -> pa.Array:
            return pa.nulls(len(records), self._kind(column))

        found = compute(
            rule,
            self._kind(name),
            len(records),
            old=nothing,
            new=lambda column: self.groups.column(column).take(at),
            is_set=lambda column: carried(self.groups, column)[records],
            is_first=True,
        )
        if found.failed is not None:
            # A later record may give the value anew, which only the rounds know.
            self._unsure.add(name)
            return
        spread = np.zeros(len(fresh), dtype=np.int64)
        spread[records] = np.arange(len(records))
        self.begun[name] = chosen(fresh, found.values.take(pa.array(spread)), values)

    def _kind(self, name: str) -> pa.DataType:
        return self.groups.shape.schema.field(name).type

    def values(self, name: str) -> pa.Array:
        """What each record gives the column, if it gives it anything."""
        return self.begun[name] if name in self.begun else self.groups.column(name)

    def _valid(self, name: str) -> Bools:
        return np.asarray(self.values(name).is_valid().to_numpy(zero_copy_only=False))

    def given_by(self, name: str) -> Bools | None:
        """The records whose value the column takes, each after the one before it; the one that makes the row is the
        first. ``None`` if its values are not those of records, or it takes rounds to say which."""
        if name not in self._given:
            self._given[name] = None  # while it is looked for: a column that depends on itself takes rounds
            found = None if name in self._unsure else self._later_givers(name)
            self._given[name] = None if found is None else found | self._creators
        return self._given[name]

    def _later_givers(self, name: str) -> Bools | None:
        later, shape = self._later, self.groups.shape
        if name in shape.ordering:
            return later & self.history.newer
        if name in shape.key:
            return np.zeros_like(later)
        if name in self.rules.columns:
            form = self.forms.get(name)
            return None if form is None else self._of_form(name, form)
        mask, policy = self.groups.is_set(name), self.policies[name]
        if policy == "first":
            return self._first_known(name, later if mask is None else later & mask)
        if policy not in self._by_policy:
            taking = {"newer": self.history.newer, "last": later}.get(policy)
            self._by_policy[policy] = np.zeros_like(later) if taking is None else later & taking
        found = self._by_policy[policy]
        return found if mask is None else found & mask

    def _first_known(self, name: str, there: Bools) -> Bools:
        """The first record with a value that is not null, unless the record that makes the row has one."""
        segments, known = self.history.segments, self._valid(name)
        first = segments.first((there | self._creators) & known)
        found = np.zeros_like(there)
        found[first[first >= 0]] = True
        return found & there

    def _of_form(self, name: str, form: Lowered) -> Bools | None:
        there = self._later & carried(self.groups, name)
        match form.form:
            case Form.TAKE:
                return there
            case Form.KEEP:
                return np.zeros_like(there)
            case Form.TAKE_KNOWN:
                return there & self._valid(name)
            case Form.KEEP_KNOWN:
                return self._first_known(name, there)
            case Form.EXTREME:
                return self._extremes(name, form, there)
            case Form.PICK:
                return self._picked(there, form)
            case Form.SUM:
                return None

    def _extremes(self, name: str, form: Lowered, there: Bools) -> Bools:
        segments, known = self.history.segments, self._valid(name)
        codes = order_codes([self.values(name)])
        codes = ~codes if form.lowest else codes
        taking = (there | self._creators) & known
        if form.nulls is Nulls.STICK:
            taking &= segments.spread(segments.first(self._creators & known)) >= 0
        highest = segments.at_highest(codes, taking)
        if not form.ties:
            before = segments.last_before(highest)
            highest &= (before < 0) | (codes > codes[before])
        return highest & there

    def _picked(self, there: Bools, form: Lowered) -> Bools | None:
        if form.operand is None or not there.any():
            return there
        found = self._operand(form.operand, there, pa.bool_())
        if found is None:
            return None
        records, values = found
        picked = np.zeros_like(there)
        picked[records[truths(values)]] = True
        return picked

    def _operand(self, operand: Rule, mask: Bools, kind: pa.DataType | None = None) -> tuple[Ints, pa.Array] | None:
        """The records in the mask, and the values of a part of a rule for them. ``None`` if it takes rounds to say what
        it reads."""
        records = np.flatnonzero(mask)
        before: dict[str, Ints] = {}
        for name in operand.reads:
            if name in operand.old or not carried(self.groups, name)[records].all():
                given = self.given_by(name)
                if given is None:
                    return None
                before[name] = self.history.segments.last_before(given)[records]

        def old(name: str) -> pa.Array:
            return take(self.values(name), before[name])

        def new(name: str) -> pa.Array:
            own = self.groups.column(name).take(pa.array(records))
            sets = carried(self.groups, name)[records]
            return own if sets.all() else chosen(sets, own, old(name))

        found = compute(
            operand,
            operand.node.kind if kind is None else kind,
            len(records),
            old=old,
            new=new,
            is_set=lambda name: carried(self.groups, name)[records],
            is_first=False,
        )
        return None if found.failed is not None else (records, found.values)

    def sum(self, name: str, form: Lowered) -> pa.Array | None:
        """The sums of all groups. ``None`` if it takes rounds to say what is added."""
        rule, operand = self.rules.columns[name], form.operand
        if operand is None or name in self._unsure:
            return None
        mask = self._later if rule.always else self._later & self._any_set(rule)
        found = self._operand(operand, mask)
        if found is None:
            return None
        records, values = found
        kind = self._kind(name)
        numbers = _Numbers.of(kind)
        own, adds = self.values(name), numbers.of_operand(values)
        if form.negative and not numbers.floating and (adds == np.iinfo(np.int64).min).any():
            return None  # it has no opposite in 64 bits
        amounts = np.zeros(len(mask), dtype=adds.dtype)
        known = np.zeros(len(mask), dtype=np.bool_)
        creators = np.flatnonzero(self._creators)
        start = own.take(pa.array(creators))
        amounts[creators] = numbers.of_column(start)
        known[creators] = start.is_valid().to_numpy(zero_copy_only=False)
        amounts[records] = -adds if form.negative else adds
        known[records] = values.is_valid().to_numpy(zero_copy_only=False)
        steps = self._creators | mask
        nulls = steps & ~known
        amounts[nulls] = 0
        segments = self.history.segments
        if form.nulls is Nulls.RESTART:
            amounts[nulls] = numbers.whole(form.start)
            last_null, there = segments.last(nulls), segments.last(steps) >= 0
            there &= ~nulls[segments.last(steps)]
        elif form.nulls is Nulls.STICK:
            # What comes after a null changes nothing.
            first = segments.spread(segments.first(nulls))
            steps = steps & ((first < 0) | (segments.index < first))
            last_null, there = np.full(len(segments.sizes), -1, dtype=np.int64), segments.first(nulls) < 0
        else:
            steps = steps & known
            last_null, there = np.full(len(segments.sizes), -1, dtype=np.int64), segments.any(steps)
        there = there & (self.history.creator >= 0)
        if numbers.floating:
            run = steps & (segments.index >= segments.spread(np.maximum(last_null, segments.starts)))
            totals = fold_steps(segments, amounts, run, np.add)
            return pa.array(totals, type=kind, mask=~there, from_pandas=False)
        starts = segments.first(self._creators)
        begin = self._creators | (nulls if form.nulls is Nulls.RESTART else np.zeros_like(nulls))
        self._check(name, rule, numbers, segments.spread(starts), begin, steps, amounts)
        total = self._totals(begin, steps, amounts)
        last = segments.last(steps)
        return numbers.column(np.where(there, total[last], 0), there)

    def _any_set(self, rule: Rule) -> Bools:
        found = np.zeros(len(self._later), dtype=np.bool_)
        for name in rule.new:
            found |= carried(self.groups, name)
        return found

    @staticmethod
    def _totals(begin: Bools, steps: Bools, amounts: Ints) -> Ints:
        """For each record the sum from the last beginning on, in arithmetic modulo 2**64."""
        sums = np.cumsum(np.where(steps, amounts, 0))
        at = np.maximum.accumulate(np.where(begin, np.arange(len(begin)), 0))
        return np.asarray(sums - sums[at] + np.where(steps, amounts, 0)[at])

    def _check(
        self, name: str, rule: Rule, numbers: _Numbers, starts: Ints, begin: Bools, steps: Bools, amounts: Ints
    ) -> None:
        """Raise :class:`MergeOverflowError` if a sum does not fit its column after a step."""
        totals = self._totals(begin, steps, amounts)
        before = totals - np.where(steps, amounts, 0)
        wraps = ((before ^ totals) & (np.where(steps, amounts, 0) ^ totals)) < 0
        outside = steps & self._later & (wraps | (totals < numbers.low) | (totals > numbers.high)) & (starts >= 0)
        if outside.any():
            group = int(self.history.segments.group[int(np.argmax(outside))])
            kind = type_name(self._kind(name))
            raise failure(self.groups, group, name, rule, f"the sum does not fit {kind}")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The values of a column as numbers of numpy. Decimals are the integers that store them."""

    kind: pa.DataType
    floating: bool
    low: int
    high: int

    @classmethod
    def of(cls, kind: pa.DataType) -> _Numbers:
        if pa.types.is_floating(kind):
            return cls(kind, floating=True, low=0, high=0)
        if pa.types.is_decimal(kind):
            return cls(kind, floating=False, low=-(10**kind.precision) + 1, high=10**kind.precision - 1)
        limit = 2 ** (kind.bit_width - 1)
        return cls(kind, floating=False, low=-limit, high=limit - 1)

    def of_column(self, values: pa.Array) -> npt.NDArray[Any]:
        if self.floating:
            return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False))
        return np.asarray(to_unscaled(values))

    def of_operand(self, values: pa.Array) -> npt.NDArray[Any]:
        if self.floating:
            return np.asarray(values.cast(self.kind, safe=False).fill_null(0).to_numpy(zero_copy_only=False))
        numbers = to_unscaled(values)
        if pa.types.is_decimal(self.kind):
            scale = values.type.scale if pa.types.is_decimal(values.type) else 0
            numbers = numbers * 10 ** (self.kind.scale - scale)
        return np.asarray(numbers)

    def whole(self, number: int) -> int:
        return number * 10**self.kind.scale if pa.types.is_decimal(self.kind) else number

    def column(self, numbers: Ints, there: Bools) -> pa.Array:
        if pa.types.is_decimal(self.kind):
            return from_unscaled(numbers, there, self.kind)
        return pa.array(numbers, mask=~there).cast(self.kind)
