"""Sets and clears under every merger: the fold restarts at the last of them, however records are folded or combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mergers
from mergers import Frame, Merger, RowKind, RowMerger, TableShape, default_registry
from mergers.errors import RecordRefusedError
from mergers.kernel import VERSION_COLUMN, combine, fold, overlay_rows
from mergers.restart import CLEAR, SET
from mergers.testing.records import State, remembering
from tests.property.effort import examples

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), *((name, pa.int64()) for name in ("t", "a", "b", "s"))])
LOOSE = pa.schema([field.with_nullable(True) for field in SCHEMA])
ORDERED, PLAIN = TableShape(SCHEMA, ("k",), ("t",)), TableShape(SCHEMA, ("k",), ())
SEEDS: Final = examples(300)


class Counting(RowMerger):
    """Adds in one column, and deletes at a value of another one."""

    id = "5a2f0c53-9d0b-4c5e-8ac7-0c3a1d5b7e21"
    name = "counting-row"

    def merge(self, older: mergers.Record, newer: mergers.Record) -> Any:
        if newer["a"] == 7:
            return mergers.DELETE
        return {**newer, "b": (older["b"] or 0) + (newer["b"] or 0)}


CONFIGURATIONS: Final[Mapping[str, tuple[str, dict[str, Any], TableShape]]] = {
    "event-time": ("event-time", {}, ORDERED),
    "event-time with delete_when": ("event-time", {"delete_when": {"column": "a", "values": [3]}}, ORDERED),
    "commit-time": ("commit-time", {}, PLAIN),
    "commit-time with ordering": ("commit-time", {}, ORDERED),
    "first-row": ("first-row", {"ignore_delete": True}, PLAIN),
    "first-row with ordering": ("first-row", {"ignore_delete": True}, ORDERED),
    "partial-update": ("partial-update", {"remove_record_on_delete": True}, PLAIN),
    "partial-update with ordering": ("partial-update", {"remove_record_on_delete": True}, ORDERED),
    "defaults": ("partial-update", {"unset": "default", "defaults": {"a": 1}}, PLAIN),
    "groups": (
        "partial-update", {"sequence_groups": {"s": ["a"], "t": ["b"]}, "aggregates": {"b": "sum"}}, PLAIN,
    ),
    "groups that keep the first": (
        "partial-update",
        {
            "sequence_groups": {"s": ["a"], "t": ["b"]}, "aggregates": {"b": "first_value"}, "ignore_retract": ["b"],
            "remove_record_on_sequence_group": ["s"],
        },
        PLAIN,
    ),
    "aggregate": ("aggregate", {"aggregates": {"a": "sum", "b": "count"}}, PLAIN),
    "aggregate with ordering": (
        "aggregate", {"aggregates": {"a": "sum", "b": "last_value", "s": "max"}, "ignore_retract": ["s"]}, ORDERED,
    ),
    "aggregate that removes": (
        "aggregate",
        {
            "aggregates": {"a": "product", "b": "first_value", "s": "first_non_null_value"},
            "remove_record_on_delete": True, "ignore_retract": ["s", "b"],
        },
        ORDERED,
    ),
    "a merger of rows": ("counting-row", {}, PLAIN),
    "a merger of rows with ordering": ("counting-row", {}, ORDERED),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A record and the columns that it carries."""

    kind: int
    values: dict[str, Any]

    def frame(self, version: int) -> Frame:
        return Frame(table([self.values], list(self.values)), np.array([self.kind], dtype=np.int8), version)


def table(records: list[dict[str, Any]], columns: list[str]) -> pa.Table:
    fields = [LOOSE.field(name) for name in columns]
    return pa.table([pa.array([r.get(f.name) for r in records], f.type) for f in fields], schema=pa.schema(fields))


def merger_of(name: str) -> tuple[Merger, TableShape]:
    merger, options, shape = CONFIGURATIONS[name]
    found = Counting if merger == Counting.name else default_registry().resolve(merger)
    made = found.from_options(options, shape)
    return made, remembering(made, shape)


def accepted(merger: Merger, shape: TableShape) -> list[int]:
    kinds = [int(RowKind.INSERT), int(RowKind.UPDATE_AFTER)]
    for kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
        try:
            merger.check_kinds(shape, frozenset({kind}))
        except RecordRefusedError:
            continue
        kinds.append(int(kind))
    return kinds


def drawn(random: Random, shape: TableShape, kinds: list[int]) -> Step:
    kind = random.choice([*kinds, *kinds, SET, SET, CLEAR])
    values: dict[str, Any] = {"k": random.randint(0, 1)}
    if kind == SET:
        return Step(kind, values | {name: random.choice([None, 1, 2, 3, 5, 7]) for name in ("t", "a", "b", "s")})
    if kind == CLEAR:
        return Step(kind, values | ({"t": random.choice([None, 1, 2, 3, 5])} if random.random() < 0.7 else {}))
    bare = kind == RowKind.DELETE and random.random() < 0.3
    for name in SCHEMA.names[1:]:
        if name in shape.ordering:
            if not bare:
                values[name] = random.choice([None, 1, 2, 3, 4, 5])
        elif random.random() < 0.75:
            values[name] = random.choice([None, 1, 2, 3, 5, 7])
    return Step(kind, values)


def after(merger: Merger, shape: TableShape, state: State, step: Step) -> State:
    """The state after one more record. What a set or clear leaves is written down here without the kernel."""
    if step.kind not in (SET, CLEAR):
        return state.fold(merger, shape, [step.frame(0)])
    other = pc.field("k") != step.values["k"]
    rows, tombstones = state.rows.filter(other), state.tombstones.filter(other)
    if step.kind == SET:
        rows = pa.concat_tables([rows, table([step.values], SCHEMA.names)]).sort_by("k")
    elif shape.ordering and "t" in step.values and merger.name not in ("commit-time", "first-row"):
        left = pa.table([[step.values["k"]], pa.array([step.values["t"]], pa.int64()), [state.version + 1]],
                        schema=tombstones.schema)  # fmt: skip
        tombstones = pa.concat_tables([tombstones, left]).sort_by("k")
    return State(rows, tombstones, state.version + 1)


def folded(merger: Merger, shape: TableShape, state: State, frame: Frame) -> State:
    """The state after a frame with a version for each record."""
    names = SCHEMA.names
    found = fold(merger, shape, base=state.rows, tombstones=state.tombstones, frames=[frame], columns=names)
    return State(overlay_rows(state.rows, found, names, sort=True), found.tombstones)


def shown(state: State, *, versions: bool = True) -> tuple[list[Any], list[Any]]:
    tombstones = state.tombstones if versions else state.tombstones.drop_columns([VERSION_COLUMN])
    return state.rows.to_pylist(), tombstones.to_pylist()


def history_of(seed: int, merger: Merger, shape: TableShape) -> tuple[list[Step], Random]:
    random = Random(seed)
    kinds = accepted(merger, shape)
    return [drawn(random, shape, kinds) for _ in range(random.randint(1, 9))], random


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_fold_is_that_of_one_record_at_a_time(name: str) -> None:
    """A part of the records is compacted, at any place."""
    merger, shape = merger_of(name)
    for seed in range(SEEDS):
        history, random = history_of(seed, merger, shape)
        wanted = found = State.empty(shape)
        for step in history:
            wanted = after(merger, shape, wanted, step)
        cut = random.randint(0, len(history))
        for part in (history[:cut], history[cut:]):
            found = found.fold(merger, shape, [step.frame(0) for step in part]) if part else found
        assert shown(found) == shown(wanted), (seed, cut, history)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_left_of_a_log_folds_as_all_of_it(name: str) -> None:
    """The logs are combined as log compaction does, over a base that has taken up some of the first records."""
    merger, shape = merger_of(name)
    cut_short = 0
    for seed in range(SEEDS):
        history, random = history_of(seed, merger, shape)
        history = [Step(step.kind, {name: step.values.get(name) for name in SCHEMA.names}) for step in history]
        order = sorted(range(len(history)), key=lambda i: (history[i].values["k"], i))
        log = Frame(
            table([history[i].values for i in order], SCHEMA.names),
            np.array([history[i].kind for i in order], dtype=np.int8),
            np.array(order, dtype=np.int64) + 1,
        )
        keep = combine(merger, shape, log, full=True)
        if keep is None or keep.all():
            continue
        cut_short += 1
        taken = random.randint(0, len(history))
        base = State.empty(shape)
        for step in history[:taken]:
            base = after(merger, shape, base, step)
        wanted = base
        for step in history[taken:]:
            wanted = after(merger, shape, wanted, step)
        assert log.kinds is not None
        assert isinstance(log.version, np.ndarray)
        left = keep & (log.version > taken)
        found = base
        if left.any():
            part = Frame(log.rows.filter(pa.array(left)), log.kinds[left], log.version[left])
            found = folded(merger, shape, base, part)
        # What was combined away may have set the version of a tombstone.
        assert shown(found, versions=False) == shown(wanted, versions=False), (seed, taken, history)
    assert cut_short > SEEDS // 20
