"""What a table means, in plain Python: one dictionary of states, one record at a time.

Written from ``docs/merge-semantics.md`` alone. It shares no code with the product, knows no files,
no versions of files and no Arrow kernels; it is slow and obvious, and every test that compares an
engine with it compares two independent readings of the same document.

Values are what ``pa.Table.to_pylist`` gives: ``Decimal``, ``date``, aware ``datetime``, ``bytes``,
lists, dictionaries for structs, lists of pairs for maps, ``None`` for null.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import pyarrow as pa

__all__ = [
    "DELETE",
    "MERGERS",
    "CommitTime",
    "EventTime",
    "Merger",
    "Misconfigured",
    "ModelTable",
    "Record",
    "Refused",
    "Row",
    "Spec",
    "State",
    "Tombstone",
    "Unreadable",
    "UserRule",
    "has_equal",
    "rank",
]

KINDS = ("+I", "+U", "-U", "-D")
Row = dict[str, Any]
Ordering = tuple[tuple[Any, ...], ...]


class Refused(Exception):
    """A write that the document says is an error; the model is unchanged."""


class Misconfigured(Exception):
    """A table that the document says cannot be created."""


class Unreadable(Exception):
    """A row whose total does not fit its column."""


def has_equal(value: Any, to: pa.DataType) -> bool:
    """Whether a column of a type can hold a number, by Python's own numbers, which are exact; whether maps in a value
    have each key once."""
    if value is None:
        return True
    if isinstance(to, pa.StructType):
        return all(has_equal(value.get(field.name), field.type) for field in to)
    if isinstance(to, pa.MapType):
        keys = [rank(key) for key, _ in value]
        pairs = all(has_equal(key, to.key_type) and has_equal(item, to.item_type) for key, item in value)
        return pairs and len(set(keys)) == len(keys)
    if isinstance(to, pa.ListType):
        return all(has_equal(item, to.value_type) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return True
    if pa.types.is_integer(to):
        return bool(-(2 ** (to.bit_width - 1)) <= value < 2 ** (to.bit_width - 1))
    if pa.types.is_floating(to):
        code = "<f" if to == pa.float32() else "<d"
        try:
            return bool(struct.unpack(code, struct.pack(code, value))[0] == value)
        except OverflowError:
            return False
    if isinstance(to, pa.Decimal128Type):
        scaled = Fraction(value) * 10**to.scale
        return scaled.denominator == 1 and abs(scaled) < 10**to.precision
    return True


def rank(value: Any) -> tuple[Any, ...]:
    """A tuple that sorts as the document's section 4 says: null lowest, NaN highest."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


@dataclass(frozen=True)
class Record:
    """One record: its row kind and the columns that its frame carries."""

    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Tombstone:
    """A deleted key that remembers the ordering of its delete, or the sequences of its groups."""

    ordering: Ordering
    sequences: Mapping[str, Any] = field(default_factory=dict)
    """With sequence groups: column -> the highest value."""


State = Row | Tombstone | None
"""A row (columns it lacks are null), a tombstone, or ``None``: absent. Never changed in place."""


@dataclass(frozen=True)
class Spec:
    """A table's definition as a merger sees it at creation."""

    schema: pa.Schema
    key: tuple[str, ...]
    ordering: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class Merger(ABC):
    """``apply`` of one merger. Subclasses say what a configuration error is in ``__init__``."""

    options: ClassVar[frozenset[str]] = frozenset()
    orders: ClassVar[bool] = True
    """False where ordering columns are ordinary data."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        unknown = set(spec.options) - self.options
        if unknown:
            raise Misconfigured(f"unknown options {sorted(unknown)}")

    def check(self, record: Record) -> None:
        """Raise :class:`Refused` where this merger does not take the record. Here: where its ordering
        cannot be understood."""
        self.ordering(record)

    @abstractmethod
    def apply(self, state: State, record: Record) -> State: ...

    def deletes(self, record: Record) -> bool:
        """Whether it is, or is taken for, a delete."""
        return record.kind == "-D"

    def show(self, row: Row) -> Row:
        """The row as a reader sees it. Raises :class:`Unreadable`."""
        return row

    def positions(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """What is compared: the values of the ordering columns, or what they stand for."""
        return tuple(values.get(column) for column in self.spec.ordering)

    def ordering(self, record: Record) -> Ordering | None:
        """The record's ordering, or ``None`` where its frame carries none."""
        if not all(column in record.values for column in self.spec.ordering):
            return None
        return tuple(rank(value) for value in self.positions(record.values))

    def stored_ordering(self, state: Row | Tombstone) -> Ordering:
        if isinstance(state, Tombstone):
            return state.ordering
        return tuple(rank(value) for value in self.positions(state))


def _row(state: State) -> Row:
    """The columns an upsert lands on: those of a row; nothing of a tombstone."""
    return state if isinstance(state, dict) else {}


def _marks_delete(record: Record, marker: Mapping[str, Any] | None) -> bool:
    if record.kind == "-D":
        return True
    return marker is not None and record.values.get(marker["column"]) in [v for v in marker["values"] if v is not None]


class EventTime(Merger):
    """Section 5, ``event-time``."""

    options = frozenset({"delete_when"})

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if not spec.ordering:
            raise Misconfigured("event-time needs ordering columns")

    def delete_marker(self) -> Mapping[str, Any] | None:
        marker: Mapping[str, Any] | None = self.spec.options.get("delete_when")
        return marker

    def deletes(self, record: Record) -> bool:
        return _marks_delete(record, self.delete_marker())

    def set_columns(self, record: Record) -> Row:
        return dict(record.values)

    def apply(self, state: State, record: Record) -> State:
        if record.kind == "-U":
            return state
        ordering = self.ordering(record)
        if ordering is None:
            return None
        if state is not None and ordering < self.stored_ordering(state):
            return state
        if self.deletes(record):
            return Tombstone(ordering)
        return _row(state) | self.set_columns(record)


class CommitTime(Merger):
    """Section 5, ``commit-time``."""

    options = frozenset({"delete_when"})
    orders = False

    def delete_marker(self) -> Mapping[str, Any] | None:
        marker: Mapping[str, Any] | None = self.spec.options.get("delete_when")
        return marker

    def deletes(self, record: Record) -> bool:
        return _marks_delete(record, self.delete_marker())

    def apply(self, state: State, record: Record) -> State:
        if record.kind == "-U":
            return state
        if self.deletes(record):
            return None
        return _row(state) | dict(record.values)


class FirstRow(Merger):
    """Section 5, ``first-row``."""

    options = frozenset({"ignore_delete"})

    def check(self, record: Record) -> None:
        if record.kind in ("-D", "-U") and not self.spec.options.get("ignore_delete"):
            raise Refused("first-row takes no deletes")

    def apply(self, state: State, record: Record) -> State:
        if record.kind in ("-D", "-U"):
            return state
        if not isinstance(state, dict):
            return dict(record.values)
        ordering = self.ordering(record)
        assert ordering is not None
        return state | dict(record.values) if ordering < self.stored_ordering(state) else state


class DebeziumMysql(EventTime):
    """``event-time`` on (number of the binlog file, position)."""

    options = frozenset({"op_column"})

    def delete_marker(self) -> Mapping[str, Any]:
        return {"column": self.spec.options["op_column"], "values": ["d"]}

    def positions(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        file, position = super().positions(values)
        if file is None:
            return (None, position)
        digits = file.rsplit(".", 1)[-1]
        if not (digits.isascii() and digits.isdigit()):
            raise Refused(f"no file number in {file!r}")
        return (int(digits), position)


class DebeziumPostgres(EventTime):
    """``event-time`` on the LSN; the marker of an unavailable value counts as unset."""

    options = frozenset({"op_column"})
    marker = "__debezium_unavailable_value"

    def delete_marker(self) -> Mapping[str, Any]:
        return {"column": self.spec.options["op_column"], "values": ["d"]}

    def set_columns(self, record: Record) -> Row:
        return {c: v for c, v in record.values.items() if v not in (self.marker, self.marker.encode())}


class AwsDms(CommitTime):
    """``commit-time`` with operation ``D``."""

    options = frozenset({"op_column"})

    def delete_marker(self) -> Mapping[str, Any]:
        return {"column": self.spec.options["op_column"], "values": ["D"]}


DELETE = "the key goes away"


class UserRule(Merger):
    """Section 5, user mergers by row: ``merge(older, newer)`` between two rows, else event or commit time."""

    @staticmethod
    @abstractmethod
    def rule(older: Row, newer: Row) -> Row | str:
        """The merged row, or :data:`DELETE`. Both arguments hold all columns."""

    def apply(self, state: State, record: Record) -> State:
        if record.kind == "-U":
            return state
        ordering = self.ordering(record) if self.spec.ordering else None
        if record.kind == "-D" and ordering is None:
            return None
        if isinstance(state, dict) and record.kind != "-D":
            full = {column: state.get(column) for column in self.spec.schema.names}
            merged = self.rule(full, full | dict(record.values))
            return None if isinstance(merged, str) else merged
        if state is not None and ordering is not None and ordering < self.stored_ordering(state):
            return state
        if record.kind == "-D":
            assert ordering is not None
            return Tombstone(ordering)
        return dict(record.values)


MERGERS: dict[str, type[Merger]] = {
    "event-time": EventTime,
    "commit-time": CommitTime,
    "first-row": FirstRow,
    "debezium-mysql": DebeziumMysql,
    "debezium-postgres": DebeziumPostgres,
    "aws-dms": AwsDms,
}
"""By name; the modules beside the conformance cases add the larger ones and the users' own."""


@dataclass(frozen=True)
class _Snapshot:
    schema: pa.Schema
    states: Mapping[tuple[Any, ...], State]
    merger: Merger
    deleted_at: Mapping[tuple[Any, ...], int]
    """Key that is or was a tombstone -> the number of the change that set its last tombstone."""


class ModelTable:
    """A table: key to state, and every state it ever had.

    ``merger`` names an entry of ``mergers``; ``None`` takes the default of section 5. Raises
    :class:`Misconfigured`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        ordering: Sequence[str] = (),
        merger: str | None = None,
        options: Mapping[str, Any] | None = None,
        mergers: Mapping[str, type[Merger]] = MERGERS,
        partition_by: Sequence[str] = (),
    ) -> None:
        name = merger or ("event-time" if ordering else "commit-time")
        if name not in mergers:
            raise Misconfigured(f"unknown merger {name!r}")
        for column in ordering:
            if pa.types.is_nested(schema.field(column).type):
                raise Misconfigured(f"{column!r} has no order")
        self._key = tuple(key)
        self._ordering = tuple(ordering)
        self._partition_by = tuple(partition_by)
        self._mergers = mergers
        self._merger = mergers[name](Spec(schema, self._key, self._ordering, dict(options or {})))
        self._snapshots = [_Snapshot(schema, {}, self._merger, {})]

    @property
    def version(self) -> int:
        """The number of changes so far; every earlier number stays readable."""
        return len(self._snapshots) - 1

    @property
    def schema(self) -> pa.Schema:
        return self._snapshots[-1].schema

    def write(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> int:
        """Fold one commit, whose frame carries ``columns`` (any case), in the order given; the new
        version. Raises :class:`Refused`, and then nothing has changed."""
        names = {name.lower(): name for name in self.schema.names}
        if len({c.lower() for c in columns}) < len(columns) or any(c.lower() not in names for c in columns):
            raise Refused("unknown or duplicate column")
        carried = {column: names[column.lower()] for column in columns}
        records = [Record(kind, {carried[c]: row[c] for c in columns}) for kind, row in zip(kinds, rows, strict=True)]
        self._check_frame(set(carried.values()), records)
        states, deleted_at = dict(self._snapshots[-1].states), dict(self._snapshots[-1].deleted_at)
        for record in records:
            key = tuple(record.values[column] for column in self._key)
            before = states.get(key)
            states[key] = self._merger.apply(before, record)
            if isinstance(states[key], Tombstone) and states[key] is not before:
                deleted_at[key] = self.version + 1
        self._snapshots.append(_Snapshot(self.schema, states, self._merger, deleted_at))
        return self.version

    def add_columns(self, fields: Sequence[pa.Field[Any]]) -> int:
        """Nullable columns at the end of the schema; unset in every record before."""
        schema = pa.schema([*self.schema, *fields])
        self._merger = type(self._merger)(replace(self._merger.spec, schema=schema))
        self._snapshots.append(replace(self._snapshots[-1], schema=schema, merger=self._merger))
        return self.version

    def change_merger(self, merger: str, options: Mapping[str, Any]) -> int:
        """Fold what comes from now on by another merger, onto the states as they are. Raises
        :class:`Misconfigured`, and then nothing has changed."""
        self._merger = self._mergers[merger](Spec(self.schema, self._key, self._ordering, dict(options)))
        self._snapshots.append(replace(self._snapshots[-1], merger=self._merger))
        return self.version

    def expire(self, horizon: int) -> int:
        """Tombstones that changes numbered up to ``horizon`` set become absent."""
        last = self._snapshots[-1]
        kept = {
            key: state
            for key, state in last.states.items()
            if not (isinstance(state, Tombstone) and last.deleted_at[key] <= horizon)
        }
        self._snapshots.append(replace(last, states=kept))
        return self.version

    def transact(self, states: Mapping[tuple[Any, ...], Row | None]) -> int:
        """What a transaction says of keys: the row of each is exactly this, or there is none. A key that is cleared
        remembers the ordering of its row where the merger remembers that of a delete. Raises :class:`Refused`, and then
        nothing has changed."""
        for given in filter(None, states.values()):
            if any(given.get(field.name) is None for field in self.schema if not field.nullable):
                raise Refused("a required column is null")
            self._merger.check(Record("+U", given))
        after, deleted_at = dict(self._snapshots[-1].states), dict(self._snapshots[-1].deleted_at)
        remembers = self._ordering and self._merger.orders and not isinstance(self._merger, FirstRow)
        for key, row in states.items():
            before = after.get(key)
            if row is not None:
                after[key] = row
            elif remembers and isinstance(before, dict):
                after[key] = Tombstone(self._merger.stored_ordering(before))
                deleted_at[key] = self.version + 1
            else:
                after[key] = None
        self._snapshots.append(replace(self._snapshots[-1], states=after, deleted_at=deleted_at))
        return self.version

    def overwrite(
        self,
        columns: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        *,
        covers: Callable[[Mapping[str, Any]], bool] | None = None,
        dynamic: bool = False,
    ) -> int:
        """Everything in the scope is forgotten, and these rows are there instead. The scope is what ``covers`` says of
        keys, the partitions of the rows, or the table."""
        last = self._snapshots[-1]
        self._check_frame(set(columns), [])
        named = [{name: row.get(name) for name in last.schema.names} for row in rows]
        keys = [self.key_of(row) for row in named]
        if len(set(keys)) < len(keys) or any(value is None for key in keys for value in key):
            raise Refused("an overwrite has each key once")
        if covers is not None and not all(covers(row) for row in named):
            raise Refused("a row outside of the condition")
        there = {tuple(row[name] for name in self._partition_by) for row in named}

        def is_covered(key: tuple[Any, ...]) -> bool:
            values = dict(zip(self._key, key, strict=True))
            if covers is not None:
                return covers(values)
            partition = tuple(values[name] for name in self._partition_by)
            return not (dynamic and self._partition_by) or partition in there

        states = {key: state for key, state in last.states.items() if not is_covered(key)}
        deleted_at = {key: at for key, at in last.deleted_at.items() if not is_covered(key)}
        states |= dict(zip(keys, named, strict=True))
        self._snapshots.append(replace(last, states=states, deleted_at=deleted_at))
        return self.version

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in self._key)

    def restore(self, version: int) -> int:
        """Everything is as it was at an earlier number."""
        self._snapshots.append(self._snapshots[version])
        self._merger = self._snapshots[-1].merger
        return self.version

    def rows(self, version: int | None = None) -> list[Row]:
        """Every row, all columns of that version's schema. Raises :class:`Unreadable`."""
        snapshot = self._snapshots[self.version if version is None else version]
        shown = (self._merger.show(state) for state in snapshot.states.values() if isinstance(state, dict))
        return [{name: row.get(name) for name in snapshot.schema.names} for row in shown]

    def row(self, key: tuple[Any, ...]) -> Row | None:
        """The row of one key. Raises :class:`Unreadable` for it alone."""
        snapshot = self._snapshots[-1]
        state = snapshot.states.get(key)
        if not isinstance(state, dict):
            return None
        shown = self._merger.show(state)
        return {name: shown.get(name) for name in snapshot.schema.names}

    def schema_at(self, version: int) -> pa.Schema:
        return self._snapshots[version].schema

    def _check_frame(self, columns: set[str], records: Sequence[Record]) -> None:
        if not columns.issuperset(self._key):
            raise Refused("a key column is missing")
        upserts = [record for record in records if record.kind in ("+I", "+U")]
        missing = [column for column in self._ordering if column not in columns]
        if self._merger.orders and missing and records and (upserts or len(missing) < len(self._ordering)):
            raise Refused(f"ordering columns {missing} are missing")
        kinds = {field.name: field.type for field in self.schema}
        for record in records:
            if not all(has_equal(value, kinds[column]) for column, value in record.values.items()):
                raise Refused("a number has no equal in its column's type")
            if record.kind not in KINDS:
                raise Refused(f"unknown kind {record.kind!r}")
            if any(record.values[column] is None for column in self._key):
                raise Refused("a key is null")
            self._merger.check(record)
        required = [f.name for f in self.schema if not f.nullable]
        kept = [record for record in upserts if not self._merger.deletes(record)]
        if any(record.values.get(column) is None for record in kept for column in required):
            raise Refused("a required column is null or missing")
