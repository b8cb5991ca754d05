"""``aggregate``: every column has a function that folds its values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa

from mergers.builtin.aggregates import (
    Choices,
    check_retraction_kinds,
    check_values,
    described,
    functions_of,
    irretractable,
    read_choices,
)
from mergers.builtin.functions import ColumnEvents, Function
from mergers.builtin.history import Events, carried, replay, upserts_of
from mergers.builtin.options import OptionReader
from mergers.builtin.renaming import by_column, listed, renamed
from mergers.builtin.values import frozen, thawed
from mergers.contract import Bools, Groups, Kinds, Merged, Merger, RowKind, TableShape
from mergers.laws import Laws
from mergers.traits import Traits

__all__ = ["Aggregate"]

_DEFAULT = "last_non_null_value"


@dataclass(frozen=True, slots=True)
class Aggregate(Merger):
    """Semantics, options and functions: docs/merge-semantics.md, section 5."""

    id = "33fd0a4f-d3ed-4372-a9d9-0e5ff7698ff2"
    name = "aggregate"

    aggregates: Choices = field(default_factory=dict)
    default_aggregate: object = _DEFAULT
    ignore_retract: tuple[str, ...] = ()
    remove_record_on_delete: bool = False
    functions: Mapping[str, Function] = field(default_factory=dict)
    """The function of every column that is neither key nor ordering, from the options."""

    @classmethod
    def known_options(cls) -> Mapping[str, object]:
        return {
            "aggregates": {},
            "default_aggregate": _DEFAULT,
            "ignore_retract": [],
            "remove_record_on_delete": False,
        }

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return renamed(options, names, {"aggregates": by_column, "ignore_retract": listed})

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        columns = [name for name in shape.values if name not in shape.ordering]
        choices = read_choices(reader, columns, "columns that are neither key nor ordering")
        default = frozen(options.get("default_aggregate", _DEFAULT))
        ignored = reader.names("ignore_retract")
        for name in ignored:
            reader.is_column(name, "ignore_retract")
        removes = reader.flag("remove_record_on_delete")
        functions = functions_of(reader, columns, choices, _DEFAULT if default is None else default)
        if not irretractable(functions, ignored):
            # Also for ignored columns: a retraction may be the first record of a key, and carry no value at all.
            reader.nullable(shape.values, "a delete or retraction of an absent key leaves null in it")
        else:
            blanking = [name for name, function in functions.items() if function.blanks]
            reader.nullable(blanking, "its function may leave null in it")
        reader.finish()
        return cls(choices, default, ignored, removes, functions)

    def options(self) -> Mapping[str, object]:
        given: dict[str, object] = {}
        if self.aggregates:
            given["aggregates"] = {column: thawed(choice) for column, choice in self.aggregates.items()}
        if self.default_aggregate != _DEFAULT:
            given["default_aggregate"] = thawed(self.default_aggregate)
        if self.ignore_retract:
            given["ignore_retract"] = list(self.ignore_retract)
        if self.remove_record_on_delete:
            given["remove_record_on_delete"] = True
        return given

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        functions = self.functions.values()
        commutative = all(function.commutative for function in functions)
        exact = all(function.associative and not _rounds(function) for function in functions)
        if shape.ordering:
            # The clear of a transaction remembers its ordering, and keeps out a record that is older only as long as no
            # newer one has made a row: so it matters where the records stand, and in which order they come.
            return Laws()
        in_any_order = commutative and not self.remove_record_on_delete
        return Laws(
            associative=exact,
            commutative=exact and in_any_order,
            replay_safe=in_any_order and all(function.idempotent for function in functions),
        )

    def unites(self, shape: TableShape, columns: Collection[str]) -> bool:
        functions = [function for name, function in self.functions.items() if name in columns]
        return not shape.ordering and all(function.unites and not _rounds(function) for function in functions)

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return frozenset(columns)

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:
        check_retraction_kinds(self.functions, self.ignore_retract, kinds & set(self._retracting))

    def check_records(self, shape: TableShape, rows: pa.RecordBatch, kinds: Kinds | None) -> None:
        check_values(self.functions, self.ignore_retract, rows, kinds, self._retracting)

    def traits(self, shape: TableShape) -> Traits:
        return Traits(
            lone_upsert_is_row=all(function.keeps_lone for function in self.functions.values()),
        )

    def describe_step(
        self, shape: TableShape, *, before: Mapping[str, object] | None, record: Mapping[str, object], kind: RowKind
    ) -> Mapping[str, str]:
        return described(self.functions, self.ignore_retract, before, record, kind)

    def merge_groups(self, groups: Groups) -> Merged:
        upserts = upserts_of(groups)
        retractions, removes, resets = self._deletes(groups)
        history = replay(groups, Events(upserts | retractions, removes, resets))
        first = np.zeros(len(upserts), dtype=np.bool_)
        first[history.creator[history.creator >= 0]] = True
        columns: dict[str, pa.Array] = {}
        there = frozenset(groups.rows.column_names)
        for name, function in self.functions.items():
            if name not in there:
                continue
            # A record neither adds nor takes back a column that it does not carry.
            sets = history.live & carried(groups, name)
            ignored = name in self.ignore_retract
            columns[name] = function.fold(
                ColumnEvents(
                    groups=groups,
                    segments=history.segments,
                    column=name,
                    adds=sets & upserts,
                    retracts=np.zeros_like(sets) if ignored else sets & retractions,
                    newer=history.newer,
                    first=first,
                    values=groups.column(name),
                )
            )
        return Merged(status=history.status, winner=history.winner, columns=columns)

    def _deletes(self, groups: Groups) -> tuple[Bools, Bools, Bools]:
        """Records that retract, records that remove by ordering, and records that remove everything before them."""
        deletes = (groups.kinds == RowKind.DELETE) & ~groups.stored
        retractions = groups.kinds == RowKind.UPDATE_BEFORE
        placed = groups.has_ordering
        if not self.remove_record_on_delete:
            return retractions | (deletes & placed), np.zeros_like(deletes), deletes & ~placed
        if not groups.shape.ordering:
            return retractions, np.zeros_like(deletes), deletes
        return retractions, deletes & placed, deletes & ~placed

    @property
    def _retracting(self) -> tuple[RowKind, ...]:
        """The kinds that call a function's retraction."""
        return (RowKind.UPDATE_BEFORE,) if self.remove_record_on_delete else (RowKind.UPDATE_BEFORE, RowKind.DELETE)


def _rounds(function: Function) -> bool:
    return function.name == "sum" and pa.types.is_floating(function.kind)
