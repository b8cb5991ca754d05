"""Histories that are long, or of many keys: where a fold that is right for three records of three keys
takes other ways. Against the plain-Python model, and where even that would take too long, by construction."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mergers import Groups, RowKind, Status
from mergers.builtin.history import first_from, last_above, next_below
from mergers.errors import MergeOverflowError
from tests.property.merger_configurations import Commit, Configuration, History, check
from tests.unit.mergers.folds import build, fold_frames, shape_of

_RETRACTING = ("+U", "+U", "+I", "-U")
_ELEMENTS: Sequence[Any] = (None, [], [1], [1, 2, 1], [3, None], [2, 2, 4], [1, 3], [5, 1, 5, 5])
_PAIRS: Sequence[Any] = (
    None,
    [],
    [{"a": 1, "v": "x"}],
    [{"a": 2, "v": "y"}, {"a": 1, "v": "z"}],
    [{"a": 2, "v": "x"}, {"a": 2, "v": "y"}, {"a": None, "v": None}],
    [{"a": 3, "v": "x"}, {"a": 1, "v": "x"}],
)
_TIMED: Sequence[Any] = (
    None,
    [],
    [(1, {"t": 1, "v": "x"})],
    [(1, {"t": 2, "v": "y"}), (2, {"t": None, "v": "n"})],
    [(2, {"t": 2, "v": "x"}), (1, None)],
    [(2, {"t": 3, "v": "a"}), (4, None), (3, {"t": 2, "v": "z"})],
    [(4, None), (3, {"t": 2, "v": "w"}), (1, {"t": 2, "v": "q"})],
)
_PRODUCTS = {
    "BIGINT": (1, -1, 1, -1, 1, -1, 2, -3, None),
    "DECIMAL(38,10)": tuple(map(Decimal, ("1", "-1", "0.5", "1.25", "-0.8", "12.3456789", "0.07", "3"))),
    "DECIMAL(12,4)": tuple(map(Decimal, ("1", "0.3333", "-3", "2.5", "-0.4", "1.0001"))),
    "DOUBLE": (1.0, -1.5, 0.1, 3.0, None),
}


def _aggregate(
    name: str,
    kind: str,
    function: Any,
    values: Sequence[Any],
    *,
    ordered: bool,
    kinds: tuple[str, ...] = _RETRACTING,
) -> Configuration:
    ordering = ("o",) if ordered else ()
    ddl = ", ".join(["k INT", *(f"{column} INT" for column in ordering), f"c {kind}"])
    options = {"aggregates": {"c": function}}
    tag = ", ordered" if ordered else ""
    numbers = {"o": range(30), "c": values}
    return Configuration(f"{name} {kind}{tag}", ddl, "aggregate", options, ordering, kinds, numbers)


_CONFIGURATIONS = [
    *(
        _aggregate(name, kind, {"function": name.partition(",")[0], **options}, values, ordered=ordered)
        for ordered in (False, True)
        for name, kind, options, values in (
            ("collect", "ARRAY<INT>", {}, _ELEMENTS),
            ("collect, distinct", "ARRAY<INT>", {"distinct": True}, _ELEMENTS),
            ("nested_update", "ARRAY<STRUCT<a:INT,v:STRING>>", {}, _PAIRS),
            ("nested_update, keyed", "ARRAY<STRUCT<a:INT,v:STRING>>", {"nested_key": ["a"]}, _PAIRS),
        )
    ),
    *(
        _aggregate(
            "merge_map_with_keytime",
            "MAP<INT,STRUCT<t:INT,v:STRING>>",
            {"function": "merge_map_with_keytime", "ts_field": "t"},
            _TIMED,
            ordered=ordered,
            kinds=("+U",),
        )
        for ordered in (False, True)
    ),
    *(_aggregate("product", kind, "product", values, ordered=False) for kind, values in _PRODUCTS.items()),
    Configuration(
        "removal by groups",
        "k INT, s INT, a INT, t INT, b INT, u INT, c INT",
        "partial-update",
        {
            "sequence_groups": {"s": ["a"], "t": ["b"], "u": ["c"]},
            "aggregates": {"a": "sum"},
            "remove_record_on_sequence_group": ["s", "t"],
        },
        (),
        ("+U", "+U", "-U", "-D", "-D"),
        {"s": (None, 1, 2, 3, 4, 5, 6), "t": (None, None, 1, 2, 3, 9)},
    ),
    Configuration(
        "retractions that start over",
        "k INT, o INT, c INT",
        "aggregate",
        {"aggregates": {"c": "sum"}, "remove_record_on_delete": True},
        ("o",),
        ("+U", "-D", "-D", "-U"),
        {"o": range(12), "c": range(5)},
    ),
]


@pytest.mark.parametrize("keys", [2, 40])
@pytest.mark.parametrize("configuration", _CONFIGURATIONS, ids=str)
def test_long_histories_are_the_left_fold(configuration: Configuration, keys: int) -> None:
    rng = random.Random(f"{configuration} {keys}")
    commits = tuple(_commit(rng, configuration, keys, compact=number == 3) for number in range(5))
    check(configuration, History(commits, ("k", configuration.schema.names[-1])))


def _commit(rng: random.Random, configuration: Configuration, keys: int, *, compact: bool) -> Commit:
    """A hundred records. Of a table whose deletes remove by ordering, some carry none."""
    names = configuration.schema.names
    loose = configuration.options.get("remove_record_on_delete", False) and rng.random() < 0.4
    columns = tuple(name for name in names if not (loose and name in configuration.ordering))
    kinds = ("-U",) if loose else configuration.kinds
    values: Mapping[str, Sequence[Any]] = {
        name: range(keys) if name == "k" else configuration.values_of(name) for name in columns
    }
    rows = tuple(tuple(rng.choice(values[name]) for name in columns) for _ in range(100))
    return Commit(columns, rows, tuple(rng.choice(kinds) for _ in rows), compact)


@pytest.mark.parametrize("keys", [3, 40])
@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.decimal128(38, 0), pa.decimal128(38, 9), pa.decimal128(18, 6)], ids=str
)
def test_products_that_leave_their_range_and_come_back(kind: pa.DataType, keys: int) -> None:
    """Each is taken back what it was multiplied by, in the reverse order."""
    shape = shape_of({"c": kind})
    merger = build("aggregate", {"aggregates": {"c": "product"}}, shape)
    number = int if pa.types.is_integer(kind) else Decimal
    commits = []
    for symbol, factors in (("+U", range(2, 60)), ("-U", range(59, 1, -1))):
        sizes = [[number(-1 if x % 5 == 0 else x * 10**9 % 10**11 + k) for x in factors] for k in range(keys)]
        commits.append([(symbol, k, size) for k in range(keys) for size in sizes[k]])
    start = [("+U", k, number(k - 7)) for k in range(keys)]
    assert fold_frames(merger, shape, start, *commits) == [(k, number(k - 7)) for k in range(keys)]
    with pytest.raises(MergeOverflowError):
        fold_frames(merger, shape, start, *commits[:1])


def test_a_product_far_outside_is_not_multiplied_any_further() -> None:
    """A number of two million bits else, after a hundred thousand steps."""
    shape = shape_of({"c": pa.decimal128(20, 2)})
    merger = build("aggregate", {"aggregates": {"c": "product"}}, shape)
    frame = [("+U", 1, Decimal("1234567.89"))] * 100_000
    with pytest.raises(MergeOverflowError):
        fold_frames(merger, shape, frame)
    assert fold_frames(merger, shape, frame, [("+U", 1, Decimal(0)), ("+U", 1, Decimal(5))]) == [(1, Decimal(0))]


def test_a_key_that_is_removed_a_hundred_thousand_times() -> None:
    """In turns: a row, its removal, and one more delete, which meets nothing."""
    shape = shape_of({"s": pa.int64(), "a": pa.int64()})
    options = {"sequence_groups": {"s": ["a"]}, "aggregates": {"a": "sum"}, "remove_record_on_sequence_group": ["s"]}
    merger, turns = build("partial-update", options, shape), 100_000
    rows = [record for n in range(turns) for record in (("+U", 1, n, 1), ("-D", 1, n, 0), ("-D", 1, n - 1, 0))]
    assert fold_frames(merger, shape, rows) == []
    assert fold_frames(merger, shape, rows, [("+U", 1, turns - 2, 3)]) == []
    assert fold_frames(merger, shape, rows, [("+U", 1, turns, 3), ("+U", 1, 0, 4)]) == [(1, turns, 7)]
    # A delete that is late for the row removes nothing.
    assert fold_frames(merger, shape, rows[:-2], [("-D", 1, 0, 0)]) == [(1, turns - 1, 1)]


def test_a_key_that_starts_over_a_hundred_thousand_times() -> None:
    """In turns: a row, its removal, and a retraction without ordering, which forgets the removal's."""
    shape = shape_of({"o": pa.int64(), "n": pa.int64()}, ordering=["o"])
    merger, turns = build("aggregate", {"aggregates": {"n": "sum"}, "remove_record_on_delete": True}, shape), 100_000
    placed = frozenset(shape.schema.names)
    loose = placed - {"o"}
    kinds = np.tile(np.array([RowKind.UPDATE_AFTER, RowKind.DELETE, RowKind.UPDATE_BEFORE], dtype=np.int8), turns)
    # Orderings go down from turn to turn: each forgets the one before.
    orderings, values = np.repeat(np.arange(turns, 0, -1), 3), np.tile([5, 0, 2], turns)
    count = len(kinds)
    groups = Groups(
        shape=shape,
        offsets=np.array([0, count]),
        kinds=kinds,
        stored=np.zeros(count, dtype=np.bool_),
        sources=(kinds == RowKind.UPDATE_BEFORE).astype(np.int32),
        presence=[placed, loose],
        rows=pa.table({"k": pa.array([1] * count, pa.int32()), "o": orderings, "n": values}),
        order=np.arange(count),
        versions=np.zeros(count, dtype=np.int64),
    )
    merged = merger.merge_groups(groups)
    # The last retraction made a row of its own.
    assert (merged.status.tolist(), merged.columns["n"].to_pylist()) == ([Status.ROW], [-2])
    assert merged.winner.tolist() == [count - 1]


def test_one_long_array_among_short_ones() -> None:
    """Arrays of arrays, told apart by their last element alone."""
    shape = shape_of({"c": pa.list_(pa.list_(pa.int64()))})
    merger = build("aggregate", {"aggregates": {"c": {"function": "collect", "distinct": True}}}, shape)
    long = list(range(30_001))
    other = [*long[:-1], 0]
    rows = [("+U", 1, [long, [1]]), ("+U", 1, [other, [1], long, [], [1, 0]]), ("-U", 1, [other, [0]])]
    ((_, found),) = fold_frames(merger, shape, rows)
    assert found == [long, [1], [], [1, 0]]


def test_searches() -> None:
    rng = np.random.default_rng(4)
    for count in (0, 1, 2, 7, 64, 100):
        values, bounds = rng.integers(-3, 4, count), rng.integers(-4, 5, count)
        above, below = last_above(values, bounds, count), next_below(values, bounds, count)
        from_ = first_from(values > 0)
        for i in range(count):
            assert above[i] == max((j for j in range(i) if values[j] > bounds[i]), default=-1)
            assert below[i] == min((j for j in range(i + 1, count) if values[j] < bounds[i]), default=count)
        for i in range(count + 1):
            assert from_[i] == min((j for j in range(i, count) if values[j] > 0), default=count)
        # What is further away than asked for may be found, or not; what is found is never nearer than it is.
        near = last_above(values, bounds, 3)
        assert all(a == b or a < i - 3 for i, (a, b) in enumerate(zip(near.tolist(), above.tolist(), strict=True)))
