"""The column mergers of the plain-Python model, and the users' mergers that the cases bring along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.conformance.model_expression import Expression
from tests.conformance.model_functions import Function, check_range, function_of
from tests.model import (
    DELETE,
    MERGERS,
    Merger,
    Misconfigured,
    Record,
    Refused,
    Row,
    Spec,
    State,
    Tombstone,
    UserRule,
    rank,
)

__all__ = ["ALL_MERGERS"]


@dataclass(frozen=True)
class _Group:
    name: str
    sequence: tuple[str, ...]
    members: tuple[str, ...]


def _functions(spec: Spec, columns: Sequence[str], default: str | None) -> dict[str, Function]:
    named: Mapping[str, Any] = spec.options.get("aggregates", {})
    for column in named:
        if column not in columns:
            raise Misconfigured(f"no function can be on {column!r}")
    chosen = {column: named.get(column, spec.options.get("default_aggregate", default)) for column in columns}
    return {c: function_of(f, spec.schema.field(c).type) for c, f in chosen.items() if f is not None}


def _check_retraction(functions: Mapping[str, Function], ignored: Sequence[str], record: Record) -> None:
    for column, function in functions.items():
        if column not in ignored:
            if not function.retracts:
                raise Refused(f"{column!r} cannot be retracted")
            function.check_retraction(record.values.get(column))


class PartialUpdate(Merger):
    """Section 5, ``partial-update``."""

    options = frozenset(
        {
            "aggregates",
            "default_aggregate",
            "defaults",
            "ignore_delete",
            "ignore_retract",
            "marker",
            "remove_record_on_delete",
            "remove_record_on_sequence_group",
            "sequence_groups",
            "unset",
        }
    )

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        names = spec.schema.names
        self.groups = [
            _Group(name, tuple(part.strip() for part in name.split(",")), tuple(members))
            for name, members in spec.options.get("sequence_groups", {}).items()
        ]
        taken = [column for group in self.groups for column in (*group.sequence, *group.members)]
        if any(column not in names or column in spec.key for column in taken):
            raise Misconfigured("a group has an unknown or a key column")
        if len(set(taken)) < len(taken):
            raise Misconfigured("a column is in two groups")
        if self.groups and spec.ordering:
            raise Misconfigured("ordering and sequence groups")
        self.members = [column for group in self.groups for column in group.members]
        self.functions = _functions(spec, self.members, None)
        self.ungrouped = [name for name in names if name not in taken and name not in spec.key]
        removes = spec.options.get("remove_record_on_delete")
        if removes and (self.groups or spec.options.get("ignore_delete")):
            raise Misconfigured("remove_record_on_delete with sequence groups or ignore_delete")
        self.ignored = spec.options.get("ignore_retract", ())

    def unset_mode(self) -> str:
        return str(self.spec.options.get("unset", "null"))

    def is_default(self, column: str, value: Any) -> bool:
        default: Any = self.spec.options.get("defaults", {}).get(column)
        return bool(value == default)

    def is_set(self, record: Record, column: str, *, nulls: bool = False) -> bool:
        """``nulls``: in a group, where a null replaces also in the mode that counts nulls as unset."""
        if column not in record.values:
            return False
        value = record.values[column]
        match self.unset_mode():
            case "null":
                return nulls or value is not None
            case "default":
                return not self.is_default(column, value)
            case "marker":
                marker = self.spec.options["marker"]
                return value not in (marker, marker.encode())
            case _:
                return True

    def new_row(self, record: Record, known: Mapping[str, Any] = MappingProxyType({})) -> Row:
        """The key, and the defaults that the record names as such. A function folds values that are set. ``known``: the
        sequences that a deleted key remembers; a group of the record that is older gives nothing."""
        row = {column: record.values[column] for column in self.spec.key}
        if self.unset_mode() == "default":
            groups = [g for g in self.groups if not self.skips(record, g) and self.is_newer(known, record, g)]
            members = [c for group in groups for c in group.members]
            plain = [c for c in (*self.ungrouped, *members) if c in record.values and c not in self.functions]
            row |= {c: record.values[c] for c in plain if self.is_default(c, record.values[c])}
        return row

    @staticmethod
    def skips(record: Record, group: _Group) -> bool:
        return all(record.values.get(column) is None for column in group.sequence)

    def check(self, record: Record) -> None:
        if record.kind in ("+I", "+U"):
            return
        if self.groups:
            _check_retraction(self.functions, self.ignored, record)
        elif not self.spec.options.get("ignore_delete") and not self.spec.options.get("remove_record_on_delete"):
            raise Refused("partial-update takes no deletes")

    def apply(self, state: State, record: Record) -> State:
        if self.groups:
            return self.apply_groups(state, record)
        ordering = self.ordering(record) if self.spec.ordering else ()
        if record.kind in ("-D", "-U"):
            if record.kind == "-U" or self.spec.options.get("ignore_delete"):
                return state
            if not ordering:
                return None
            return state if state is not None and ordering < self.stored_ordering(state) else Tombstone(ordering)
        assert ordering is not None
        older = state is not None and ordering < self.stored_ordering(state)
        if older and isinstance(state, Tombstone):
            return state
        row = dict(state) if isinstance(state, dict) else self.new_row(record)
        for column in self.ungrouped:
            if not self.is_set(record, column) or column in self.spec.ordering:
                continue
            stored = row.get(column)
            default = self.unset_mode() == "default" and self.is_default(column, stored)
            if not older or stored is None or default:
                row[column] = record.values[column]
        if not older:
            row |= {column: record.values[column] for column in self.spec.ordering}
        return row

    def apply_groups(self, state: State, record: Record) -> State:
        retraction = record.kind in ("-D", "-U")
        if not isinstance(state, dict):
            known = dict(state.sequences) if isinstance(state, Tombstone) else {}
            if retraction or self.stays_out(known, record):
                left = self.advanced(known, record)
                return Tombstone((), left) if left else None
            row = self.new_row(record, known) | known
        else:
            row = dict(state)
        if not retraction:
            row |= {c: record.values[c] for c in self.ungrouped if self.is_set(record, c)}
        for group in self.groups:
            sequence = [record.values.get(column) for column in group.sequence]
            if self.skips(record, group):
                continue
            stored = [row.get(column) for column in group.sequence]
            newer = [rank(v) for v in sequence] >= [rank(v) for v in stored]
            first = not isinstance(state, dict) or all(value is None for value in stored)
            removing = self.spec.options.get("remove_record_on_sequence_group", ())
            if record.kind == "-D" and newer and group.name in removing:
                assert isinstance(state, dict)
                names = [column for each in self.groups for column in each.sequence]
                return Tombstone((), self.advanced({name: state.get(name) for name in names}, record))
            for column in group.members:
                self.fold_member(row, column, record, newer=newer, first=first)
            if newer:
                row |= dict(zip(group.sequence, sequence, strict=True))
        return row

    def is_newer(self, known: Mapping[str, Any], record: Record, group: _Group) -> bool:
        own = [rank(record.values.get(column)) for column in group.sequence]
        return own >= [rank(known.get(column)) for column in group.sequence]

    def advanced(self, known: Row, record: Record) -> Row:
        """The sequences that a tombstone remembers after the record."""
        for group in self.groups:
            if not self.skips(record, group) and self.is_newer(known, record, group):
                known = known | {column: record.values.get(column) for column in group.sequence}
        return known

    def stays_out(self, known: Row, record: Record) -> bool:
        """Whether an upsert onto a tombstone with these sequences makes no row."""
        removing = self.spec.options.get("remove_record_on_sequence_group", ())
        named = [group for group in self.groups if not self.skips(record, group)]
        older = [group for group in named if not self.is_newer(known, record, group)]
        if any(group.name in removing for group in older):
            return True
        removed = any(known.get(c) is not None for g in self.groups if g.name in removing for c in g.sequence)
        return removed and bool(named) and len(older) == len(named)

    def fold_member(self, row: Row, column: str, record: Record, *, newer: bool, first: bool) -> None:
        function, x = self.functions.get(column), record.values.get(column)
        if record.kind in ("-D", "-U"):
            if function is None:
                row[column] = None if newer else row.get(column)
            elif column not in self.ignored and self.is_set(record, column, nulls=True):
                row[column] = function.retract(row.get(column), x)
        elif self.is_set(record, column, nulls=True):
            if function is not None:
                row[column] = function.fold(row.get(column), x, newer=newer, first=first)
            elif newer:
                row[column] = x

    def show(self, row: Row) -> Row:
        for column in self.functions:
            check_range(row.get(column), self.spec.schema.field(column).type)
        return row


class OverwriteNonDefaults(PartialUpdate):
    """``partial-update`` with ``unset="default"``."""

    options = frozenset({"defaults"})

    def unset_mode(self) -> str:
        return "default"


class AggregateMerger(Merger):
    """Section 5, ``aggregate``."""

    options = frozenset({"aggregates", "default_aggregate", "ignore_retract", "remove_record_on_delete"})

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        columns = [name for name in spec.schema.names if name not in (*spec.key, *spec.ordering)]
        self.functions = _functions(spec, columns, "last_non_null_value")
        self.ignored = spec.options.get("ignore_retract", ())

    def removes(self, record: Record) -> bool:
        return record.kind == "-D" and bool(self.spec.options.get("remove_record_on_delete"))

    def check(self, record: Record) -> None:
        if record.kind in ("-D", "-U") and not self.removes(record):
            _check_retraction(self.functions, self.ignored, record)

    def apply(self, state: State, record: Record) -> State:
        ordering = self.ordering(record)
        if record.kind == "-D" and (ordering is None or (self.removes(record) and not self.spec.ordering)):
            return None
        older = state is not None and ordering is not None and ordering < self.stored_ordering(state)
        if older and (isinstance(state, Tombstone) or self.removes(record)):
            return state
        if self.removes(record):
            assert ordering is not None
            return Tombstone(ordering)
        row = dict(state) if isinstance(state, dict) else {c: record.values[c] for c in self.spec.key}
        if not older and ordering is not None:
            row |= {column: record.values[column] for column in self.spec.ordering}
        for column, function in self.functions.items():
            x = record.values.get(column)
            if record.kind in ("-D", "-U"):
                if column not in self.ignored and column in record.values:
                    row[column] = function.retract(row.get(column), x)
            elif column in record.values:
                first = not isinstance(state, dict)
                row[column] = function.fold(row.get(column), x, newer=not older, first=first)
        return row

    def show(self, row: Row) -> Row:
        for column in self.functions:
            check_range(row.get(column), self.spec.schema.field(column).type)
        return row


class CappedSum(UserRule):
    @staticmethod
    def rule(older: Row, newer: Row) -> Row | str:
        if older["ts"] == newer["ts"]:
            return older
        counter = older["counter"] + newer["counter"]
        return DELETE if counter > 2 else newer | {"counter": counter, "ts": max(older["ts"], newer["ts"])}


class EvenKeyDrops(UserRule):
    @staticmethod
    def rule(older: Row, newer: Row) -> Row | str:
        winner = newer if newer["ts"] >= older["ts"] else older
        return DELETE if winner["id"] % 2 == 0 else winner


class StrictlyGreater(UserRule):
    @staticmethod
    def rule(older: Row, newer: Row) -> Row | str:
        return newer if rank(newer["ts"]) > rank(older["ts"]) else older


class OrderState(UserRule):
    @staticmethod
    def rule(older: Row, newer: Row) -> Row | str:
        steps = ["created", "paid", "cancelled"]
        filled = {column: older[column] if value is None else value for column, value in newer.items()}
        return filled | {"state": max(older["state"], newer["state"], key=steps.index)}


class Highest(Merger):
    """The record with the highest ``v``, whole; of several the last one."""

    orders = False

    def check(self, record: Record) -> None:
        if record.kind not in ("+I", "+U"):
            raise Refused("custom:highest takes no deletes")

    def apply(self, state: State, record: Record) -> State:
        if not isinstance(state, dict) or rank(record.values.get("v")) >= rank(state.get("v")):
            return dict(record.values)
        return state


ALL_MERGERS: dict[str, type[Merger]] = MERGERS | {
    "partial-update": PartialUpdate,
    "overwrite-non-defaults": OverwriteNonDefaults,
    "aggregate": AggregateMerger,
    "expression": Expression,
    "custom:capped-sum": CappedSum,
    "custom:even-key-drops": EvenKeyDrops,
    "custom:strictly-greater": StrictlyGreater,
    "custom:order-state": OrderState,
    "custom:highest": Highest,
}
