"""What a merge source remembers, in a LakeMerge table beside the output.

It is one table, so that one commit changes all of it. Every record is found by its whole key:

- ``e``, an entity: its cluster (known by its first member), the values that it holds, and the members if the cluster is
  small. The record of a first member always has all members, and the cluster's last output.
- ``v``, a value of an expression: how many entities hold it, and which. If they do not fit on one page, a hash of their
  ids spreads them over pages, so that one more holder costs one page even among a million.
- ``d``, rows that were deleted from their tables, several in one Arrow stream.
- ``o``, a value that is left out of matching, since it would make too many entities one.
- ``r``, the output ids that the last run retired or took out of the output.
- ``x``, the entities whose rows went in a run, and the output ids that it retired, until they are forgotten.
- ``u``, a row that overrides name: what it holds because of them, be it there or not.
- ``m``, the run's number, the configuration, and the version of each dataset that was taken up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lakemerge.merge_source.combine import MEMBER, STABLE
from lakemerge.merge_source.nested_arrays import Ints, contiguous
from lakemerge.options import Settings
from lakemerge.table.table import LakeTable

__all__ = [
    "APPLICATION",
    "ENTITY",
    "HOLDING",
    "KEY",
    "MEMBERS_EVERYWHERE",
    "NEXT_ID",
    "RETIRED",
    "SCHEMA",
    "STATE_SETTINGS",
    "VALUE",
    "DatasetState",
    "Meta",
    "State",
    "chunk_rows",
    "deletes",
    "departed",
    "records",
    "redated",
]

APPLICATION = "merge-source"
"""Runs commit to both tables under this application id."""
NEXT_ID = "merge-source-next-id"
"""The application id whose version is the next number that becomes a stable id. Unlike a record of the state, it never
goes back when the state is restored, so that no number is given twice."""
STATE_SETTINGS = Settings(row_group_rows=8192)
"""Row groups are small, because a look-up of one key reads a whole row group."""

KEY = ("part", "k", "a", "b")
HOLDING = pa.struct([("expression", pa.int32()), ("value", pa.string())])
ENTITY = pa.schema(
    [
        ("first_dataset", pa.int32()),
        ("first_id", pa.string()),
        ("deleted", pa.bool_()),
        ("gone", pa.bool_()),
        ("went", pa.int64()),
        ("chunk", pa.string()),
        ("place", pa.int32()),
        ("held", pa.list_(pa.field("element", HOLDING))),
        ("members", pa.list_(pa.field("element", MEMBER))),
        ("output_id", pa.string()),
        ("hash", pa.int64()),
        ("updated", pa.int64()),
        ("run", pa.int64()),
        ("singles", pa.list_(pa.field("element", pa.string()))),
        ("chain_dataset", pa.int32()),
        ("chain_id", pa.string()),
        ("chain_members", pa.list_(pa.field("element", MEMBER))),
        ("split_into", pa.list_(pa.field("element", pa.string()))),
    ]
)
"""The columns of an entity, other than dataset and id. ``gone``: its row was deleted; ``went`` is when a run found
that, in epoch milliseconds; ``chunk`` and ``place`` say where the row is kept. ``members`` is null for a cluster of
one. In a cluster of more than :data:`MEMBERS_EVERYWHERE` only the first member has it. ``output_id``, ``hash``,
``updated``, ``run`` and ``singles`` are filled at the first member, and describe the last output; ``output_id`` is null
if the entity is not output. ``chain_dataset`` and ``chain_id`` are the first of the entities that would be one if no
value had been left out to cut a chain; the record of that first one has all of them as ``chain_members``.
``split_into`` is filled at the first member where ids are stable and rows of the id went to other ones."""
MEMBERS_EVERYWHERE = 16
"""In clusters up to this size each member lists all members, so one look-up finds the whole cluster."""
VALUE = pa.schema([("count", pa.int64()), ("pages", pa.int32()), ("holders", pa.list_(pa.field("element", MEMBER)))])
"""The columns of a pair of a value and an expression. Page 0 has the count and the number of pages. It has the holders
only if it is the only page."""
SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("k", pa.string(), nullable=False),
        pa.field("a", pa.int32(), nullable=False),
        pa.field("b", pa.int32(), nullable=False),
        *ENTITY,
        *VALUE,
        ("data", pa.binary()),
        ("text", pa.string()),
    ]
)
_KIND = "_kind"
RETIRED = pa.schema([("_id", pa.string()), ("$replaced", pa.bool_()), ("_updated", pa.int64()), *STABLE])
"""Output ids that are retired; where ``_updated`` is null, the row is taken out of the output. The last two columns are
null unless ids are stable."""
_LEFT = pa.schema([("dataset", pa.int32()), ("id", pa.string())])
"""What went in a run: entities, and retired ids of the output as those of dataset -1."""


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset as the last run saw it."""

    table_id: str | None
    version: int | None
    restore_epoch: int
    schema: str
    """The schema as Delta's JSON; empty if there was no table."""
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Meta:
    """The record ``m``."""

    config: Mapping[str, Any]
    run: int = 0
    """The number of the last run; 0 before the first."""
    next_id: int = 1
    """The next number that becomes an id, where ids are stable."""
    updated: int = 0
    """The next number of an emitted entity."""
    emitted_run: int = 0
    """The last run that emitted something. While the output's own number is lower, the output is behind."""
    retired_chunks: int = 0
    """How many records ``r`` that run wrote."""
    datasets: tuple[DatasetState, ...] = ()
    overrides: DatasetState | None = None
    """The table of overrides as the last run saw it."""
    output_id: str = ""
    output_epoch: int = 0
    """The output's restore epoch that the last run saw."""
    state_epoch: int = 0
    live: int = 0
    """How many entities of the output are not deleted."""
    left_out: int = 0
    """How many values are left out of matching."""
    bars: bool = False
    """Whether an id with a bar was seen since the last full run. Only then can two composite ids be equal."""

    def to_text(self) -> str:
        return orjson.dumps(self).decode()

    @staticmethod
    def from_text(text: str) -> Meta:
        told = orjson.loads(text)
        datasets = tuple(DatasetState(**{**one, "key": tuple(one["key"])}) for one in told.pop("datasets", ()))
        one = told.pop("overrides", None)
        overrides = None if one is None else DatasetState(**{**one, "key": tuple(one["key"])})
        return Meta(**told, datasets=datasets, overrides=overrides)


@dataclass(frozen=True, slots=True)
class State:
    """The state table at one version."""

    table: LakeTable
    meta: Meta = field(repr=False)

    @staticmethod
    def at(table: LakeTable) -> State:
        """The state at the latest version of a table that follows the tip."""
        pinned = LakeTable(table.opened.handle, table.opened.view.snapshot, pinned=True, spark=None)
        found = pinned.get({"part": "m", "k": "", "a": 0, "b": 0}, columns=["text"])
        snapshot = pinned.opened.view.snapshot
        text = snapshot.metadata.configuration["mergeSource.config"] if found is None else found["text"]
        meta = Meta(config=orjson.loads(text)) if found is None else Meta.from_text(text)
        return State(pinned, meta)

    @property
    def number(self) -> int:
        """The last number that was committed. After a restore it is higher than the last run's number."""
        done = self.table.opened.view.snapshot.txns.get(APPLICATION)
        return 0 if done is None else done.version

    @property
    def next_id(self) -> int:
        """The next number that becomes an id, where ids are stable. After a restore it is that from before."""
        ever = self.table.opened.view.snapshot.txns.get(NEXT_ID)
        return max(self.meta.next_id, 0 if ever is None else ever.version)

    @property
    def restore_epoch(self) -> int:
        return self.table.opened.view.state.restore_epoch

    def entities(self, datasets: Ints, ids: pa.Array) -> pa.Table:
        """The records of the entities that exist, with ``dataset`` and ``id``, in no particular order."""
        return _as_entities(self._found("e", ids, datasets, np.zeros_like(datasets), ENTITY.names))

    def all_entities(self) -> Iterator[pa.Table]:
        """The records of all entities."""
        for batch in self._scan("e", ENTITY.names):
            yield _as_entities(batch)

    def values(self, texts: pa.Array, expressions: Ints, pages: Ints) -> pa.Table:
        """The records of the pages that exist: ``k``, ``a``, ``b`` and the columns of :data:`VALUE`."""
        return self._found("v", texts, expressions, pages, VALUE.names)

    def all_values(self) -> Iterator[pa.Table]:
        yield from self._scan("v", VALUE.names)

    def chunks(self, names: Sequence[str]) -> dict[str, pa.Table]:
        """Kept rows of deleted entities, by the name of their chunk."""
        texts = pa.array(sorted(set(names)), pa.string())
        zeros = np.zeros(len(texts), dtype=np.int64)
        found = self._found("d", texts, zeros, zeros, ["data"])
        pairs = zip(found.column("k").to_pylist(), found.column("data").to_pylist(), strict=True)
        return {name: read_rows(data) for name, data in pairs}

    def all_chunks(self) -> list[str]:
        """The names of all chunks."""
        return [name for batch in self._scan("d", []) for name in batch.column("k").to_pylist()]

    def retired(self) -> pa.Table:
        """The output ids that the last emitting run retired or took out, in columns of :data:`RETIRED`."""
        numbers = np.arange(self.meta.retired_chunks, dtype=np.int64)
        found = self._found("r", pa.array([""] * len(numbers), pa.string()), numbers, np.zeros_like(numbers), ["data"])
        return pa.concat_tables([RETIRED.empty_table(), *map(read_rows, found.column("data").to_pylist())])

    def left_out(self, classes: Ints, texts: pa.Array) -> pa.Table:
        """Which of these values of classes are left out: ``k``, ``a``, ``count``, and ``pages`` (1: for a chain)."""
        return self._found("o", texts, classes, np.zeros_like(classes), ["count", "pages"])

    def all_left_out(self) -> pa.Table:
        names = ["k", "a", "count", "pages"]
        empty = pa.schema([SCHEMA.field(name) for name in names]).empty_table()
        return pa.concat_tables([empty, *(part.select(names) for part in self._scan("o", ["count", "pages"]))])

    def overridden(self, datasets: Ints, ids: pa.Array) -> pa.Table:
        """What these rows hold because overrides name them: ``k``, ``a`` and ``held``."""
        return self._found("u", ids, datasets, np.zeros_like(datasets), ["held"])

    def all_overridden(self) -> Iterator[pa.Table]:
        """The same for all rows that overrides name."""
        for part in self._scan("u", ["held"]):
            yield part.select(["k", "a", "held"])

    def departure_keys(self) -> list[str]:
        """The keys of :meth:`departures`."""
        return [key for part in self._scan("x", []) for key in part.column("k").to_pylist()]

    def departures(self) -> dict[str, pa.Table]:
        """What went in earlier runs, by the key of its record, which begins with the time in epoch milliseconds."""
        found: dict[str, pa.Table] = {}
        for part in self._scan("x", ["data"]):
            for key, data in zip(part.column("k").to_pylist(), part.column("data").to_pylist(), strict=True):
                found[key] = read_rows(data)
        return found

    def _found(self, part: str, k: pa.Array, a: Ints, b: Ints, columns: Sequence[str]) -> pa.Table:
        names = [*KEY[1:], *columns]
        if not len(k):
            return pa.schema([SCHEMA.field(name) for name in names]).empty_table()
        keys = pa.table(
            {
                "part": pa.array([part]).take(pa.array(np.zeros(len(k), dtype=np.int64))),
                "k": k,
                "a": pa.array(a.astype(np.int32)),
                "b": pa.array(b.astype(np.int32)),
            }
        )
        return self.table.get(keys, columns=names)

    def _scan(self, part: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        for batch in self.table.scan(columns=[*KEY[1:], *columns], filter=f"part = '{part}'"):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])


def _as_entities(found: pa.Table) -> pa.Table:
    return found.drop_columns(["b"]).rename_columns({"k": "id", "a": "dataset"})


def records(part: str, k: pa.Array, a: Ints, b: Ints, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Whole records to write."""
    return _frame(part, k, a, b, columns, "+U")


def deletes(part: str, k: pa.Array, a: Ints, b: Ints) -> pa.Table:
    """Records to delete."""
    return _frame(part, k, a, b, {}, "-D")


def _frame(part: str, k: pa.Array, a: Ints, b: Ints, columns: Mapping[str, pa.Array], kind: str) -> pa.Table:
    count = len(k)
    given: dict[str, Any] = {
        "part": _repeated(part, count),
        "k": k,
        "a": pa.array(a.astype(np.int32)),
        "b": pa.array(b.astype(np.int32)),
        **columns,
    }
    arrays = [given.get(one.name) for one in SCHEMA]
    filled = [
        pa.nulls(count, one.type) if array is None else contiguous(array).cast(one.type)
        for one, array in zip(SCHEMA, arrays, strict=True)
    ]
    return pa.table([*filled, _repeated(kind, count)], schema=SCHEMA.append(pa.field(_KIND, pa.string())))


def chunk_rows(name: str, rows: pa.Table) -> pa.Table:
    """A record that keeps deleted rows."""
    data = pa.array([write_rows(rows)], pa.binary())
    return records("d", pa.array([name]), np.zeros(1, np.int64), np.zeros(1, np.int64), {"data": data})


def departed(time_ms: int, run: int, datasets: Ints, ids: pa.Array) -> pa.Table:
    """A record of what went in a run."""
    return _departures(f"{time_ms:015d}-{run:020d}", datasets, ids)


def redated(key: str, rows: pa.Table) -> pa.Table:
    """A record of what went, in place of the one with this key."""
    datasets = contiguous(rows.column("dataset")).to_numpy(zero_copy_only=False).astype(np.int64)
    return _departures(key, datasets, contiguous(rows.column("id")))


def _departures(key: str, datasets: Ints, ids: pa.Array) -> pa.Table:
    zero = np.zeros(1, dtype=np.int64)
    data = write_rows(pa.table([pa.array(datasets.astype(np.int32)), contiguous(ids)], schema=_LEFT))
    return records("x", pa.array([key]), zero, zero, {"data": pa.array([data], pa.binary())})


def write_rows(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    ) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def read_rows(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()


def _repeated(value: str, count: int) -> pa.Array:
    return pa.array([value]).take(pa.array(np.zeros(count, dtype=np.int64)))
