"""What the merger benchmark merges: configurations of every built-in, and generated records.

Records have 12 columns: key, ordering, numbers, decimals and texts, among them an operation and a
binlog file for the change-capture presets. The same seed gives the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers import Frame, Merger, Record, RowKind, RowMerger, TableShape, default_registry, fold
from mergers.contract import Bools, Kinds
from mergers.kernel import overlay_rows, tombstone_schema

__all__ = [
    "AS_EXPRESSIONS",
    "CASES",
    "HOT_KEY",
    "IN_ROUNDS",
    "MARKER",
    "ROW_CASE",
    "SCHEMA",
    "Case",
    "Inputs",
    "NewestRow",
    "hot_key",
    "logs_only",
    "merged",
    "one_table",
    "updates",
]

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("ts", pa.int64()),
        *(pa.field(f"i{n}", pa.int64()) for n in range(3)),
        *(pa.field(f"f{n}", pa.float64()) for n in range(2)),
        *(pa.field(f"d{n}", pa.decimal128(15, 2)) for n in range(2)),
        pa.field("s0", pa.string()),
        pa.field("op", pa.string()),
        pa.field("file", pa.string()),
    ]
)
MARKER = "__debezium_unavailable_value"
HOT_KEY = 0
"""The key with a tenth of the records, where one has so many."""
_NULLABLE = ("i2", "f0", "d0", "s0")


class NewestRow(RowMerger):
    """``event-time`` for full rows, in the row contract."""

    id = "7c1f6a5e-95e5-4a0b-93bb-3a1d9b9e8d52"
    name = "newest-row"

    def merge(self, older: Record, newer: Record) -> Record:
        return newer if newer["ts"] >= older["ts"] else older


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration. ``target``: how many times the floor the merge may take; ``None`` for no bound.
    ``takes_back``: the kind of records that take something back; ``None`` where all are upserts."""

    name: str
    merger: str
    target: float | None
    ordering: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA
    takes_back: RowKind | None = None

    @property
    def shape(self) -> TableShape:
        shape = TableShape(self.schema, ("k",), self.ordering)
        return replace(shape, remembers=self._built(shape).remembers(shape))

    def built(self) -> Merger:
        return self._built(self.shape)

    def _built(self, shape: TableShape) -> Merger:
        registry = default_registry().extended([NewestRow])
        return registry.resolve(self.merger).from_options(dict(self.options), shape)


_SUMS = {"i0": "sum", "i1": "count", "i2": "max", "f0": "sum", "f1": "min", "d0": "sum", "s0": "first_value"}
_OP = {"op_column": "op"}
_LAST = ("ts", "f1", "d1", "op", "file")
_ADDED = ("i0", "f0", "d0")
_RULES = {
    **{name: f"coalesce(old.{name} + new.{name}, old.{name}, new.{name})" for name in _ADDED},
    **{name: f"coalesce(new.{name}, old.{name})" for name in _LAST},
    "i1": "old.i1 + 1",
    "i2": "greatest(old.i2, new.i2)",
    "f1": "least(old.f1, new.f1)",
    "s0": "old.s0",
}
AS_EXPRESSIONS: Mapping[str, Case] = {
    "event-time": Case("event-time, as an expression", "expression", 2.0, ("ts",)),
    "aggregate": Case("aggregate, as an expression", "expression", 2.0, (), {"columns": _RULES, "first": {"i1": "1"}}),
}
"""Name of a case -> the same as rules that are folds."""
CASES = (
    Case("event-time", "event-time", 1.0, ("ts",)),
    Case("commit-time", "commit-time", 1.0),
    Case("first-row", "first-row", 1.0),
    Case("first-row, ordered", "first-row", 1.0, ("ts",)),
    Case("debezium-mysql", "debezium-mysql", 1.0, ("file", "ts"), _OP),
    Case("aws-dms", "aws-dms", 1.0, (), _OP),
    Case("debezium-postgres", "debezium-postgres", 2.0, ("ts",), _OP),
    Case("overwrite-non-defaults", "overwrite-non-defaults", 2.0, (), {"defaults": {"i1": 0}}),
    Case("partial-update", "partial-update", 2.0),
    Case("partial-update, ordered", "partial-update", 2.0, ("ts",)),
    Case(
        "partial-update, groups",
        "partial-update",
        2.0,
        (),
        {"sequence_groups": {"ts": ["i0", "i1", "f0", "d0", "s0"]}, "aggregates": {"i0": "sum"}},
    ),
    Case("aggregate", "aggregate", 2.0, (), {"aggregates": _SUMS}),
    Case("aggregate, ordered", "aggregate", 2.0, ("ts",), {"aggregates": {**_SUMS, "d1": "product"}}),
    *AS_EXPRESSIONS.values(),
)
ROW_CASE = Case("row contract", "newest-row", None, ("ts",))
IN_ROUNDS = Case(
    "row contract, as an expression",
    "expression",
    None,
    ("ts",),
    {"default": "keep", "ignore_when": "new.ts < old.ts"}
    | {"columns": {name: f"new.{name}" for name in SCHEMA.names if name not in ("k", "ts")}},
)
"""``event-time`` for full rows, by a condition. Conditions take rounds."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Stored rows, sorted by key, and log frames in commit order, each sorted by key."""

    name: str
    base: pa.Table
    frames: Sequence[pa.Table]
    taken_back: Sequence[Bools] = ()
    """Per frame, which records take back what came before, in cases that have such records."""

    @property
    def log_rows(self) -> int:
        return sum(frame.num_rows for frame in self.frames)

    @property
    def rows(self) -> int:
        return self.base.num_rows + self.log_rows


def updates(scale: float, *, seed: int) -> Inputs:
    """2 M stored rows, and 200,000 changes to them in four commits."""
    rng = np.random.default_rng(seed)
    keys = max(40, int(2_000_000 * scale))
    logs = [_rows(rng, np.sort(rng.integers(0, keys, keys // 40)), stored=False) for _ in range(4)]
    return Inputs("updates", _rows(rng, np.arange(keys), stored=True), logs)


def logs_only(scale: float, *, seed: int) -> Inputs:
    """1 M records of five versions a key in five commits, a tenth of them of one key."""
    rng = np.random.default_rng(seed)
    keys, hot = max(9, int(180_000 * scale)), max(1, int(20_000 * scale))
    numbers = np.sort(np.concatenate([np.full(hot, HOT_KEY), np.arange(1, keys + 1)]))
    return Inputs("versions", SCHEMA.empty_table(), [_rows(rng, numbers, stored=False) for _ in range(5)])


def hot_key(count: int, *, seed: int) -> Inputs:
    """So many records of one key in one commit."""
    return Inputs(
        "hot key", SCHEMA.empty_table(), [_rows(np.random.default_rng(seed), np.zeros(count, np.int64), stored=False)]
    )


def one_table(scale: float, *, seed: int) -> Inputs:
    """1 M rows, and five commits of 100,000 changes to them; no key twice in a commit."""
    rng = np.random.default_rng(seed)
    keys = max(10, int(1_000_000 * scale))
    logs = [_rows(rng, np.sort(rng.choice(keys, keys // 10, replace=False)), stored=False) for _ in range(5)]
    return Inputs("table", _rows(rng, np.arange(keys), stored=True), logs)


def merged(case: Case, inputs: Inputs, built: tuple[TableShape, Merger] | None = None) -> pa.Table:
    """The rows after the merge, sorted by key.

    :param built: the case's shape and merger, if making them, which a table does once, is not to be timed.
    """
    shape, merger = (case.shape, case.built()) if built is None else built
    kinds: Sequence[Kinds | None] = [None] * len(inputs.frames)
    if case.takes_back is not None:
        upsert = np.int8(RowKind.UPDATE_AFTER)
        kinds = [np.where(mask, np.int8(case.takes_back), upsert) for mask in inputs.taken_back]
    frames = [Frame(rows, kinds[version], version) for version, rows in enumerate(inputs.frames)]
    tombstones = tombstone_schema(shape).empty_table()
    columns = case.schema.names
    folded = fold(merger, shape, base=inputs.base, tombstones=tombstones, frames=frames, columns=columns)
    return overlay_rows(inputs.base, folded, columns, sort=True)


def _rows(rng: np.random.Generator, keys: np.ndarray[Any, np.dtype[np.int64]], *, stored: bool) -> pa.Table:
    """``stored``: rows that a table can hold, so no deletes and no marker."""
    count = len(keys)
    columns: dict[str, Any] = {
        "k": keys,
        "ts": rng.integers(0, 2**40, count),
        "i0": rng.integers(-(10**6), 10**6, count),
        "i1": rng.integers(0, 10, count),
        "i2": rng.integers(-(10**6), 10**6, count),
        "f0": rng.integers(-(2**20), 2**20, count) / 1024,  # sums are exact in any order
        "f1": rng.random(count),
        "s0": _texts("customer-", rng.integers(0, 10**5, count), digits=0),
        "op": pa.array(["u", "d", "D"]).take(pa.array(rng.choice(3, count, p=(0.96, 0.02, 0.02)))),
        "file": _texts("mysql-bin.", rng.integers(1, 1000, count), digits=6),
    }
    for name in ("d0", "d1"):
        # One or minus one, so that a product of any number of versions stays in range.
        units = pa.array(np.where(rng.random(count) < 0.5, 1, -1))
        columns[name] = units.cast(pa.decimal128(19, 0)).cast(pa.decimal128(15, 2))
    if stored:
        columns["op"] = pa.repeat(pa.scalar("u"), count)
    else:
        columns["s0"] = pc.if_else(pa.array(rng.random(count) < 0.05), MARKER, columns["s0"])
    for name in _NULLABLE:
        columns[name] = pc.if_else(pa.array(rng.random(count) < 0.2), None, pa.array(columns[name]))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _texts(prefix: str, numbers: np.ndarray[Any, np.dtype[np.int64]], *, digits: int) -> pa.Array:
    texts = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), digits, "0")
    return pc.binary_join_element_wise(pa.scalar(prefix), texts, "")
