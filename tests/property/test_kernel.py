"""The kernel against the plain-Python model, and the law that lets writers pre-combine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge.read.runs import Run, key_ranges
from mergers import Frame, Merger, RowKind, TableShape, default_registry, fold
from mergers.kernel import combine, overlay_rows, tombstone_schema
from mergers.keys import key_columns, sort_order
from tests.model import MERGERS, Record, Spec, State, Tombstone, rank
from tests.property.effort import examples

EXAMPLES = examples(60) * 3

SCHEMA = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("a", pa.string()), ("b", pa.string())])
SHAPE = TableShape(SCHEMA, ("k",), ("o",))
SYMBOLS = {kind.symbol: kind for kind in RowKind}
MARKER = {"delete_when": {"column": "a", "values": ["gone"]}}
Values = tuple[Any, ...]


@dataclass(frozen=True)
class Batch:
    """Records of one commit: their kinds, and values of the columns carried."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[Values, ...]

    def records(self) -> list[Record]:
        return [
            Record(kind, dict(zip(self.columns, row, strict=True)))
            for kind, row in zip(self.kinds, self.rows, strict=True)
        ]

    def frame(self, version: int) -> Frame:
        arrays = [pa.array([row[i] for row in self.rows], SCHEMA.field(n).type) for i, n in enumerate(self.columns)]
        kinds = np.array([SYMBOLS[kind] for kind in self.kinds], dtype=np.int8)
        return Frame(pa.table(arrays, names=list(self.columns)), kinds, version)


@st.composite
def batches(draw: st.DrawFn, shapes: Sequence[tuple[str, ...]], symbols: Sequence[str]) -> Batch:
    columns = draw(st.sampled_from(shapes))
    values = {
        "k": st.integers(0, 4),
        "o": st.sampled_from([None, -(2**63), 0, 1, 2, 3, 2**63 - 1]),
        "a": st.sampled_from([None, "x", "y", "gone"]),
        "b": st.sampled_from([None, "p", "q"]),
    }
    rows = draw(st.lists(st.tuples(*(values[name] for name in columns)), max_size=14))
    kinds = st.sampled_from(symbols if "o" in columns else [s for s in symbols if s in ("-D", "-U")])
    return Batch(columns, tuple(draw(st.lists(kinds, min_size=len(rows), max_size=len(rows)))), tuple(rows))


FULL = [("k", "o", "a", "b")]
SOME = [*FULL, ("k", "o", "a"), ("b", "o", "k"), ("k", "o"), ("k",)]
ALL = ["+I", "+U", "+U", "-D", "-U"]
CONFIGURATIONS = st.tuples(st.sampled_from(["event-time", "commit-time"]), st.sampled_from([{}, MARKER]))


@st.composite
def stored_states(draw: st.DrawFn, *, tombstones: bool) -> dict[int, State]:
    states: dict[int, State] = {}
    for key in range(5):
        kind = draw(st.sampled_from(["absent", "row", "tombstone" if tombstones else "row"]))
        ordering = draw(st.sampled_from([None, 0, 1, 2, 3]))
        if kind == "row":
            states[key] = {"k": key, "o": ordering, "a": draw(st.sampled_from([None, "s", "gone"])), "b": "t"}
        elif kind == "tombstone":
            states[key] = Tombstone((rank(ordering),))
    return states


def product(name: str, options: dict[str, Any]) -> Merger:
    return default_registry().resolve(name).from_options(options, SHAPE)


def fold_states(merger: Merger, states: dict[int, State], frames: Sequence[Frame]) -> dict[int, State]:
    """The kernel's answer in the model's terms."""
    base = pa.Table.from_pylist(
        [state for _, state in sorted(states.items()) if isinstance(state, dict)], schema=SCHEMA
    )
    remembered = [
        {"k": key, "o": state.ordering[0][1] if state.ordering[0][0] else None, "_lm_version": 1}
        for key, state in sorted(states.items())
        if isinstance(state, Tombstone)
    ]
    stored = pa.Table.from_pylist(remembered, schema=tombstone_schema(SHAPE))
    result = fold(merger, SHAPE, base=base, tombstones=stored, frames=frames, columns=SCHEMA.names)
    merged = overlay_rows(base, result, SCHEMA.names, sort=True)
    keys = merged.column("k").to_pylist()
    assert keys == sorted(set(keys))
    tomb_keys = result.tombstones.column("k").to_pylist()
    assert tomb_keys == sorted(set(tomb_keys))
    assert not set(keys) & set(tomb_keys)
    states_after: dict[int, State] = {row["k"]: row for row in merged.to_pylist()}
    for row in result.tombstones.to_pylist():
        states_after[row["k"]] = Tombstone((rank(row["o"]),))
    return states_after


def model_fold(
    name: str, options: dict[str, Any], states: dict[int, State], records: Sequence[Record]
) -> dict[int, State]:
    rule = MERGERS[name](Spec(SCHEMA, ("k",), ("o",), options))
    after = dict(states)
    for record in records:
        key = record.values["k"]
        after[key] = rule.apply(after.get(key), record)
    filled: dict[int, State] = {}
    for key, state in after.items():
        if isinstance(state, dict):
            filled[key] = {column: state.get(column) for column in SCHEMA.names}
        elif state is not None:
            filled[key] = state
    return filled


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(CONFIGURATIONS, st.data(), st.lists(batches(SOME, ALL), max_size=4))
def test_the_kernel_is_the_model(
    configuration: tuple[str, dict[str, Any]], data: st.DataObject, log: list[Batch]
) -> None:
    """Any stored state, any commits, all kinds, full and partial: rows and tombstones are the left fold."""
    name, options = configuration
    states = data.draw(stored_states(tombstones=name == "event-time"))
    frames = [batch.frame(version) for version, batch in enumerate(log, start=2)]
    records = [record for batch in log for record in batch.records()]
    assert fold_states(product(name, options), states, frames) == model_fold(name, options, states, records)


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(CONFIGURATIONS, st.data(), st.booleans(), batches(SOME, ALL))
def test_combining_a_frame_changes_no_answer(
    configuration: tuple[str, dict[str, Any]], data: st.DataObject, full: bool, batch: Batch
) -> None:
    """Over every stored state, and with more records after it."""
    name, options = configuration
    merger = product(name, options)
    states = data.draw(stored_states(tombstones=name == "event-time"))
    later = data.draw(batches(SOME, ALL))
    frame = batch.frame(2)
    order = sort_order(key_columns(frame.rows, ["k"]))
    assert frame.kinds is not None
    arranged = Frame(frame.rows.take(pa.array(order)), frame.kinds[order], 2)
    keep = combine(merger, SHAPE, arranged, full=full and len(batch.columns) == 4)
    short = arranged
    if keep is not None:
        assert arranged.kinds is not None
        short = Frame(arranged.rows.filter(pa.array(keep)), arranged.kinds[keep], 2)
    expected = model_fold(name, options, states, [*batch.records(), *later.records()])
    assert fold_states(merger, states, [short, later.frame(3)]) == expected


Cut = tuple[list[tuple[int, str]], list[int], bool]
"""Keys of a run, where it is cut into batches, and whether the last batch says that it is the last."""


@st.composite
def sorted_runs(draw: st.DrawFn) -> list[Cut]:
    runs = []
    for _ in range(draw(st.integers(1, 5))):
        keys = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=12))
        cuts = draw(st.lists(st.integers(0, len(keys)), max_size=6))
        runs.append((sorted(keys), sorted(cuts), draw(st.booleans())))
    return runs


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(sorted_runs())
def test_ranges_are_a_cut_of_all_runs_at_common_keys(runs: list[Cut]) -> None:
    """However the streams are cut: every row comes once, in order, and no key comes in two steps."""
    schema = pa.schema([("i", pa.int32()), ("s", pa.string()), ("row", pa.int64())])

    def stream(keys: list[tuple[int, str]], cuts: list[int], told: bool) -> Run:
        table = pa.Table.from_pylist([{"i": i, "s": s, "row": n} for n, (i, s) in enumerate(keys)], schema=schema)
        parts = [table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(keys)], strict=True)]
        ends = [*[False] * (len(parts) - 1), told]
        return Run(zip(parts, ends, strict=True), schema, ("i", "s"))

    taken: list[list[dict[str, Any]]] = [[] for _ in runs]
    last: tuple[int, str] | None = None
    for step in key_ranges([stream(*run) for run in runs]):
        keys = [(row["i"], row["s"]) for table in step for row in table.to_pylist()]
        assert keys
        assert last is None or min(keys) > last
        last = max(keys)
        for rows, table in zip(taken, step, strict=True):
            rows.extend(table.to_pylist())
    for (keys, _, _), rows in zip(runs, taken, strict=True):
        assert [(row["i"], row["s"]) for row in rows] == keys
        assert [row["row"] for row in rows] == list(range(len(keys)))
