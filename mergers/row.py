"""The plain row contract: a merger in one Python function of two rows. Simple, and slow.

Source: docs/merge-semantics.md, section 5, "User mergers". This contract runs Python for each row, but only for keys
with more than one record.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mergers.contract import Groups, Ints, Merged, Merger, RowKind, Status, TableShape
from mergers.errors import LakeMergeError, MergerContractError
from mergers.interrupts import is_interrupt
from mergers.traits import Traits
from mergers.type_names import type_name

__all__ = ["DELETE", "Delete", "Record", "RowMerger"]

_DELETE, _RETRACT = int(RowKind.DELETE), int(RowKind.UPDATE_BEFORE)

_Rank = tuple[tuple[Any, ...], ...]


class Delete(enum.Enum):
    """The type of :data:`DELETE`."""

    DELETE = "delete"


DELETE: Final = Delete.DELETE
""":meth:`RowMerger.merge` returns this to delete the key."""


class Record(Mapping[str, Any]):
    """A row as :meth:`RowMerger.merge` sees it: all columns of the table, by name.

    Values are those of ``pa.Array.to_pylist``. Do not change the record, or a list or dictionary in it.
    """

    __slots__ = ("_carried", "_ordering", "_values", "_version")

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        carried: frozenset[str] | None,
        ordering: tuple[str, ...],
        version: int | None,
    ) -> None:
        self._values = values
        self._carried = carried
        self._ordering = ordering
        self._version = version

    def __getitem__(self, column: str) -> Any:
        return self._values[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Record({dict(self._values)!r})"

    def is_set(self, column: str) -> bool:
        """Whether the record's frame carried the column. Other columns are filled from the stored row. A stored row has
        all columns set, however it was made.

        Raises :class:`KeyError` for a column that the table does not have.
        """
        if column not in self._values:
            raise KeyError(column)
        return self._carried is None or column in self._carried

    @property
    def kind(self) -> RowKind:
        """Always an upsert. ``+I`` and ``+U`` are the same to a merger, and other kinds do not come here."""
        return RowKind.UPDATE_AFTER

    @property
    def ordering(self) -> tuple[Any, ...]:
        """The values of the ordering columns."""
        return tuple(self._values[name] for name in self._ordering)

    @property
    def version(self) -> int | None:
        """The table version that committed a newer record; ``None`` for the older one. The older one is the fold of
        many records, and must be the same whether or not it was compacted on the way."""
        return self._version


class RowMerger(Merger):
    """A merger that is one function of two rows.

    :meth:`merge` is called only if there are two rows: an absent key takes a record as it is. Deletes and retractions
    never reach it. They act as in ``event-time`` if the table has ordering columns, else as in ``commit-time``.
    """

    @abstractmethod
    def merge(self, older: Record, newer: Record) -> Mapping[str, Any] | Delete:
        """The row that follows from a key's row and the next record, in commit order.

        :param older: the row so far.
        :param newer: the next record. Columns that it does not carry are filled from ``older``. It is newer by commit;
            its ordering may be lower.
        :returns: a mapping of every column, with the key unchanged (``older`` or ``newer`` may be returned), or
            :data:`DELETE`: the key becomes absent and remembers nothing.
        """

    def traits(self, shape: TableShape) -> Traits:
        return Traits(lone_upsert_is_row=True)

    def merge_groups(self, groups: Groups) -> Merged:
        status = np.full(len(groups.sizes), Status.ROW, dtype=np.int8)
        winner = groups.offsets[:-1].copy()
        kinds = groups.kinds[winner]
        remembers = groups.has_ordering[winner] if groups.shape.ordering else np.zeros(len(winner), dtype=np.bool_)
        status[kinds == RowKind.UPDATE_BEFORE] = Status.ABSENT
        status[kinds == RowKind.DELETE] = Status.ABSENT
        status[(kinds == RowKind.DELETE) & remembers] = Status.TOMBSTONE
        several = np.flatnonzero(groups.sizes > 1)
        if not len(several):
            return Merged(status=status, winner=winner)
        fold, merged = _Fold(self, groups), dict[int, Mapping[str, Any]]()
        for group in several.tolist():
            state = fold.group(group)
            if state is None:
                status[group] = Status.ABSENT
            elif isinstance(state, _Tombstone):
                status[group], winner[group] = Status.TOMBSTONE, state.record
            elif state.record is None:
                status[group], merged[group] = Status.ROW, state.values
            else:
                status[group], winner[group] = Status.ROW, state.record
        return Merged(status=status, winner=winner, columns=_columns(groups, winner, merged))


@dataclass(frozen=True, slots=True)
class _Row:
    values: Mapping[str, Any]
    record: int | None
    """The number of the record, if the row is an unchanged record; ``None`` if it was merged."""


@dataclass(frozen=True, slots=True)
class _Tombstone:
    record: int
    ordering: _Rank


class _Fold:
    """The fold of groups of several records, one record at a time."""

    def __init__(self, merger: RowMerger, groups: Groups) -> None:
        self._merger = merger
        self._groups = groups
        self._shape = groups.shape
        self._checks = {field.name: _checker(field) for field in groups.shape.schema}
        names = groups.shape.schema.names
        records = np.flatnonzero(np.repeat(groups.sizes > 1, groups.sizes))
        taken = pa.array(groups.order[records])
        columns = [groups.rows.column(name).take(taken).to_pylist() for name in names]
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        self._rows = dict(zip(records.tolist(), rows, strict=True))
        self._ordered = groups.has_ordering if groups.shape.ordering else None
        # Python's own lists, because access to an element of a numpy array costs more than the computation.
        self._offsets: list[int] = groups.offsets.tolist()
        self._kinds: list[int] = groups.kinds.tolist()
        self._sources: list[int] = groups.sources.tolist()
        self._versions: list[int] = groups.versions.tolist()
        self._unset = [[name for name in names if name not in carried] for carried in groups.presence]

    def group(self, group: int) -> _Row | _Tombstone | None:
        """The state after the last record of a group."""
        state: _Row | _Tombstone | None = None
        for record in range(self._offsets[group], self._offsets[group + 1]):
            kind = self._kinds[record]
            if kind == _DELETE:
                state = self._deleted(state, record)
            elif kind != _RETRACT:
                state = self._upserted(state, record)
        return state

    def _deleted(self, state: _Row | _Tombstone | None, record: int) -> _Row | _Tombstone | None:
        if self._ordered is None or not self._ordered[record]:
            return None
        ordering = self._rank(self._rows[record])
        if state is not None and ordering < self._ordering_of(state):
            return state
        return _Tombstone(record, ordering)

    def _upserted(self, state: _Row | _Tombstone | None, record: int) -> _Row | _Tombstone | None:
        values = self._rows[record]
        if isinstance(state, _Row):
            return self._merged(state, record, values)
        if isinstance(state, _Tombstone) and self._rank(values) < state.ordering:
            return state
        return _Row(values, record)

    def _merged(self, state: _Row, record: int, values: Mapping[str, Any]) -> _Row | None:
        source = self._sources[record]
        unset = self._unset[source]
        filled = {**values, **{name: state.values[name] for name in unset}} if unset else values
        carried = self._groups.presence[source] if unset else None
        ordering = self._shape.ordering
        older = Record(state.values, carried=None, ordering=ordering, version=None)
        newer = Record(filled, carried=carried, ordering=ordering, version=self._versions[record])
        try:
            result = self._merger.merge(older, newer)
        except LakeMergeError:
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            raise self._error(state.values, (f"raised {error!r}",)) from error
        if result is older:
            return state
        if result is newer:
            return _Row(filled, None if unset else record)
        if result is DELETE:
            return None
        return _Row(self._checked(result, state.values, filled), None)

    def _checked(self, result: object, older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
        """The row that a merger returned, with each value in the form in which its column would give it back."""
        if not isinstance(result, Mapping):
            raise self._error(older, (f"returned {result!r}, which is neither a row nor DELETE",))
        problems = [f"returned the unknown column {name!r}" for name in result if name not in self._checks]
        row: dict[str, Any] = {}
        at_fault: list[str] = []
        for name, check in self._checks.items():
            if name not in result:
                problem: str | None = f"returned a row without column {name!r}"
            elif (value := result[name]) is older[name] or value is newer[name]:
                row[name], problem = value, None
            else:
                row[name], problem = check(value)
            if problem is None and name in self._shape.key and row[name] != older[name]:
                problem = f"changed the key column {name!r} to {row[name]!r}"
            if problem is not None:
                at_fault.append(name)
                problems.append(problem)
        if problems:
            raise self._error(older, tuple(problems), columns=tuple(at_fault))
        return row

    def _error(
        self, row: Mapping[str, Any], problems: tuple[str, ...], *, columns: tuple[str, ...] = ()
    ) -> MergerContractError:
        key = {name: row[name] for name in self._shape.key}
        return MergerContractError(
            f"merger {self._merger.name!r}, at key {key}: {'; '.join(problems)}",
            merger=self._merger.name,
            key=key,
            columns=columns,
            problems=problems,
        )

    def _ordering_of(self, state: _Row | _Tombstone) -> _Rank:
        return state.ordering if isinstance(state, _Tombstone) else self._rank(state.values)

    def _rank(self, row: Mapping[str, Any]) -> _Rank:
        """Tuples that compare as orderings do (docs/merge-semantics.md, section 4)."""
        values = (row[name] for name in self._shape.ordering)
        return tuple((0,) if v is None else (2,) if isinstance(v, float) and math.isnan(v) else (1, v) for v in values)


def _columns(groups: Groups, winner: Ints, merged: Mapping[int, Mapping[str, Any]]) -> dict[str, pa.Array]:
    """The value columns of all groups: from the merged row if there is one, else from the winner."""
    if not merged:
        return {}
    gather = groups.order[winner]
    gather[list(merged)] = groups.rows.num_rows + np.arange(len(merged))
    indices = pa.array(gather)
    columns: dict[str, pa.Array] = {}
    for name in groups.shape.values:
        kind = groups.shape.schema.field(name).type
        values = pa.array([row[name] for row in merged.values()], type=kind)
        both = pa.chunked_array([*pa.chunked_array(groups.rows.column(name)).chunks, values], type=kind)
        columns[name] = both.take(indices).combine_chunks()
    return columns


_Check = Callable[[Any], tuple[Any, str | None]]

_CLASSES: Sequence[tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...]]] = (
    (pa.types.is_boolean, (bool,), ()),
    (pa.types.is_integer, (int,), (bool,)),
    (pa.types.is_floating, (float, int), (bool,)),
    (pa.types.is_decimal, (decimal.Decimal, int), (bool,)),
    (pa.types.is_string, (str,), ()),
    (pa.types.is_binary, (bytes,), ()),
    (pa.types.is_date, (dt.date,), (dt.datetime,)),
    (pa.types.is_timestamp, (dt.datetime,), ()),
    (pa.types.is_struct, (Mapping,), ()),
    (pa.types.is_map, (Mapping, list, tuple), ()),
    (pa.types.is_list, (list, tuple), ()),
)
"""Kind of column -> the Python classes of its values, and subclasses that do not count."""


def _checker(field: pa.Field[Any]) -> _Check:
    """A function that gives for a value its form in the column, and what is wrong with it, if anything.

    pyarrow alone would take a datetime for a date, text for binary, and a time without a zone.
    """
    kind = field.type
    _, wanted, others = next(entry for entry in _CLASSES if entry[0](kind))
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None

    def check(value: Any) -> tuple[Any, str | None]:
        if value is None:
            return None, None if field.nullable else f"returned null in the NOT NULL column {field.name!r}"
        wrong = f"returned {value!r} in column {field.name!r}, which is {type_name(kind)}"
        if not isinstance(value, wanted) or isinstance(value, others):
            return None, wrong
        if isinstance(value, dt.datetime) and (value.tzinfo is not None) != zoned:
            return None, wrong
        try:
            return pa.scalar(value, type=kind).as_py(), None
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return None, f"{wrong}: {error}"

    return check
