"""Generated records, and the state that the kernel makes of them."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

from mergers.contract import Merger, RowKind, TableShape
from mergers.errors import RecordRefusedError
from mergers.kernel import VERSION_COLUMN, Frame, fold, overlay_rows, tombstone_schema
from mergers.restart import RecordKind

__all__ = ["Domain", "State", "Step", "frame_of", "frames", "remembering", "steps"]

Domain = Mapping[str, Sequence[Any]]
"""Column -> the values to draw from, if not all values of the column's type make sense."""

_UPSERTS = (RecordKind.UPDATE_AFTER, RecordKind.INSERT)
_RESTARTS = (RecordKind.SET, RecordKind.CLEAR)


def remembering(merger: Merger, shape: TableShape) -> TableShape:
    """The shape of a table of that merger: with what its tombstones remember."""
    return replace(shape, remembers=merger.remembers(shape))


@dataclass(frozen=True)
class Step:
    """A record: its kind and the columns that it carries."""

    kind: RecordKind | RowKind
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.kind.symbol} {', '.join(f'{name}={value!r}' for name, value in self.values.items())}"


@dataclass(frozen=True)
class State:
    """The stored state of some keys."""

    rows: pa.Table
    tombstones: pa.Table
    version: int = 0

    @staticmethod
    def empty(shape: TableShape) -> State:
        # All columns are nullable, as when files are read. Writers check for nulls.
        schema = pa.schema([field.with_nullable(True) for field in shape.schema])
        return State(schema.empty_table(), tombstone_schema(shape).empty_table())

    def fold(self, merger: Merger, shape: TableShape, frames: Sequence[Frame]) -> State:
        """The state after the frames. Their versions count from this state's version."""
        numbered = [
            Frame(frame.rows, frame.kinds, self.version + 1 + i, frame.columns) for i, frame in enumerate(frames)
        ]
        names = shape.schema.names
        folded = fold(merger, shape, base=self.rows, tombstones=self.tombstones, frames=numbered, columns=names)
        rows = overlay_rows(self.rows, folded, names, sort=True)
        return State(rows, folded.tombstones, self.version + len(frames))

    def after(self, merger: Merger, shape: TableShape, history: Sequence[Step]) -> State:
        """The state after records, each in its own commit."""
        return self.fold(merger, shape, [frame_of(shape, [step]) for step in history])

    def __str__(self) -> str:
        kept = [str(row) for row in self.rows.to_pylist()]
        gone = [f"deleted {row}" for row in self.tombstones.drop_columns([VERSION_COLUMN]).to_pylist()]
        return ", ".join([*kept, *gone]) or "nothing"


def frame_of(shape: TableShape, records: Sequence[Step]) -> Frame:
    """Records that carry the same columns, as one frame."""
    fields = [shape.schema.field(name).with_nullable(True) for name in shape.schema.names if name in records[0].values]
    arrays = [pa.array([record.values[field.name] for record in records], type=field.type) for field in fields]
    kinds = np.array([record.kind for record in records], dtype=np.int8)
    return Frame(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), kinds, version=0)


@st.composite
def steps(
    draw: st.DrawFn,
    merger: Merger,
    shape: TableShape,
    domain: Domain,
    *,
    full_frames: bool,
    only_upserts: bool = False,
    restarts: bool = False,
) -> Step:
    """One record of a kind that the merger accepts.

    :param restarts: whether it may be one that only transactions write: a set, with all columns, or a clear.
    """
    if restarts and draw(st.integers(0, 4)) == 4:
        kind = draw(st.sampled_from(_RESTARTS))
        columns = tuple(shape.schema.names)
        if kind is RecordKind.CLEAR:
            columns = shape.key if draw(st.booleans()) else (*shape.key, *shape.ordering)
        return draw(_record(shape, domain, ((kind,), columns)))
    kinds = _accepted(merger, shape)
    return draw(_record(shape, domain, draw(_carried(merger, shape, kinds, full_frames, only_upserts))))


@st.composite
def frames(draw: st.DrawFn, merger: Merger, shape: TableShape, domain: Domain, *, full_frames: bool) -> list[Step]:
    """Records of one frame and one key: two to four that carry the same columns. Sets and clears may be among them, as
    in a log that was compacted."""
    kinds, columns = draw(_carried(merger, shape, _accepted(merger, shape), full_frames, False))
    if len(columns) == len(shape.schema) and draw(st.integers(0, 2)) == 2:
        kinds = (*kinds, *_RESTARTS)
    first = draw(_record(shape, domain, (kinds, columns)))
    key = {name: first.values[name] for name in shape.key}
    more = draw(st.lists(_record(shape, domain, (kinds, columns)), min_size=1, max_size=3))
    return [first, *(Step(step.kind, {**step.values, **key}) for step in more)]


def _accepted(merger: Merger, shape: TableShape) -> tuple[RecordKind, ...]:
    accepted = []
    for kind in (RowKind.UPDATE_AFTER, RowKind.INSERT, RowKind.DELETE, RowKind.UPDATE_BEFORE):
        try:
            merger.check_kinds(shape, frozenset({kind}))
        except RecordRefusedError:
            continue
        accepted.append(RecordKind(kind))
    return tuple(accepted)


@st.composite
def _carried(
    draw: st.DrawFn,
    merger: Merger,
    shape: TableShape,
    kinds: tuple[RecordKind, ...],
    full_frames: bool,
    only_upserts: bool,
) -> tuple[tuple[RecordKind, ...], tuple[str, ...]]:
    """The columns of a frame, and the kinds its records may have."""
    names = tuple(shape.schema.names)
    others = tuple(kind for kind in kinds if kind not in _UPSERTS)
    ordering = shape.ordering if merger.traits(shape).uses_ordering else ()
    if others and not only_upserts and draw(st.integers(0, 3)) == 0:
        bare = draw(st.booleans())
        wanted = frozenset(shape.key if bare else (*shape.key, *ordering))
        return others, tuple(name for name in names if name in wanted)
    if only_upserts:
        kinds = tuple(kind for kind in kinds if kind in _UPSERTS)
    if full_frames or draw(st.booleans()):
        return kinds, names
    required = {*shape.key, *ordering, *(field.name for field in shape.schema if not field.nullable)}
    optional = [name for name in names if name not in required]
    some = draw(st.sets(st.sampled_from(optional))) if optional else set()
    return kinds, tuple(name for name in names if name in required | some)


@st.composite
def _record(
    draw: st.DrawFn, shape: TableShape, domain: Domain, carried: tuple[tuple[RecordKind, ...], tuple[str, ...]]
) -> Step:
    kinds, columns = carried
    kind = draw(st.sampled_from(kinds))
    values = {name: draw(_column(shape, domain, name)) for name in columns}
    if kind is RecordKind.CLEAR:
        values = {name: value if name in (*shape.key, *shape.ordering) else None for name, value in values.items()}
    return Step(kind, values)


def _column(shape: TableShape, domain: Domain, name: str) -> st.SearchStrategy[Any]:
    field = shape.schema.field(name)
    if name in domain:
        return st.sampled_from(list(domain[name]))
    values = _values(field.type)
    return values | st.none() if field.nullable and name not in shape.key else values


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """A few values of a type. There are few, so that equal ones meet often."""
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        return st.integers(0, 3)
    if pa.types.is_floating(kind):
        return st.sampled_from([0.0, 1.0, 0.1, 0.2, 0.3, -2.5])
    if pa.types.is_decimal(kind):
        return st.integers(0, 3).map(lambda value: decimal.Decimal(value).scaleb(-kind.scale))
    if pa.types.is_string(kind):
        return st.sampled_from(["a", "b", "c", ""])
    if pa.types.is_binary(kind):
        return st.sampled_from([b"a", b"b", b""])
    if pa.types.is_date(kind):
        return st.integers(0, 3).map(lambda days: dt.date(2026, 1, 1) + dt.timedelta(days=days))
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else dt.UTC
        return st.integers(0, 3).map(lambda h: dt.datetime(2026, 1, 1, tzinfo=zone) + dt.timedelta(hours=h))
    if pa.types.is_map(kind):
        return st.dictionaries(
            st.sampled_from(["a", "b"]) if pa.types.is_string(kind.key_type) else _values(kind.key_type),
            _values(kind.item_type),
            max_size=2,
        ).map(lambda pairs: list(pairs.items()))
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: _values(field.type) for field in kind})
    return st.lists(_values(kind.value_type), max_size=2)
