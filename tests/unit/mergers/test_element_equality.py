"""Elements of arrays compared: NaN equals NaN and -0.0 equals 0.0 at any depth, whatever was compacted when."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from mergers.builtin.functions.equal import equality_codes
from tests.unit.mergers.folds import build, fold_frames, shape_of

NAN = math.nan
FLOATS = pa.list_(pa.float64())
MAPS = pa.list_(pa.map_(pa.string(), pa.float64()))
KEYED = pa.list_(pa.struct({"a": pa.float64(), "v": pa.int64()}))
DISTINCT = {"function": "collect", "distinct": True}
BY_KEY = {"function": "nested_update", "nested_key": ["a"]}
# A retraction of something else at the end makes no difference.
CASES: dict[str, tuple[pa.DataType, Any, list[tuple[str, list[Any]]], list[Any]]] = {
    "distinct": (FLOATS, DISTINCT, [("+U", [NAN, 0.0]), ("+U", [-0.0, NAN, 1.5])], [NAN, 0.0, 1.5]),
    "distinct arrays": (
        pa.list_(FLOATS),
        DISTINCT,
        [("+U", [[0.0], [NAN, 1.5]]), ("+U", [[-0.0], [NAN, 1.5], [], None])],
        [[0.0], [NAN, 1.5], [], None],
    ),
    "distinct maps": (
        MAPS,
        DISTINCT,
        [("+U", [[("a", 1.0), ("b", 0.0)], []]), ("+U", [[("b", -0.0), ("a", 1.0)], [("a", 0.0), ("b", 1.0)], []])],
        [[("a", 1.0), ("b", 0.0)], [], [("a", 0.0), ("b", 1.0)]],
    ),
    "retracted maps": (
        MAPS,
        "collect",
        [("+U", [[("a", 1.0), ("b", NAN)], [("a", 1.0)]]), ("-U", [[("b", NAN), ("a", 1.0)]])],
        [[("a", 1.0)]],
    ),
    "retracted": (FLOATS, "collect", [("+U", [NAN, 1.5, 0.0, NAN]), ("-U", [NAN, -0.0])], [1.5, NAN]),
    "keys": (
        KEYED,
        BY_KEY,
        [("+U", [{"a": 0.0, "v": 1}, {"a": NAN, "v": 2}]), ("+U", [{"a": NAN, "v": 3}, {"a": -0.0, "v": 4}])],
        [{"a": 0.0, "v": 4}, {"a": NAN, "v": 3}],
    ),
    "retracted keys": (
        KEYED,
        BY_KEY,
        [("+U", [{"a": 0.0, "v": 1}, {"a": NAN, "v": 2}, {"a": 1.5, "v": 3}]), ("-U", [{"a": NAN}, {"a": -0.0}])],
        [{"a": 1.5, "v": 3}],
    ),
    "retracted elements": (
        KEYED,
        "nested_update",
        [
            ("+U", [{"a": 0.0, "v": 1}, {"a": NAN, "v": 2}, {"a": NAN, "v": 3}]),
            ("-U", [{"a": -0.0, "v": 1}, {"a": NAN, "v": 3}]),
        ],
        [{"a": NAN, "v": 2}],
    ),
}


def plain(value: Any) -> Any:
    """The value with a text in place of NaN, which equals nothing, and with 0.0 in place of -0.0."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("retracting", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_elements_that_are_equal(name: str, retracting: bool, compact: bool) -> None:
    kind, function, records, expected = CASES[name]
    shape = shape_of({"c": kind})
    merger = build("aggregate", {"default_aggregate": function}, shape)
    elsewhere: list[Any] = [{"a": 99.0, "v": 99}] if kind is KEYED else [99.0]
    if kind.value_type == FLOATS:
        elsewhere = [[99.0]]
    elif kind is MAPS:
        elsewhere = [[("z", 99.0)]]
    commits = [[(record, 1, value)] for record, value in records] + [[("-U", 1, elsewhere)]] * retracting
    ((_, found),) = fold_frames(merger, shape, *commits, compact=compact)
    assert plain(found) == plain(expected)


@pytest.mark.parametrize(
    ("kind", "values", "codes"),
    [
        (pa.list_(pa.float32()), [[0.0], [-0.0], [NAN], [NAN], [], None, None, [None], [0.0, NAN]], "AABBCDDEF"),
        (pa.map_(pa.int64(), pa.float64()), [[(1, NAN)], [(1, NAN)], [], None, [(1, None)], [(2, NAN)]], "AABCDE"),
        (pa.list_(pa.list_(pa.string())), [[["a"], ["b"]], [["a", "b"]], [["a"], ["b"]], [["ab"]]], "ABAC"),
        (pa.struct({"l": FLOATS}), [{"l": [NAN]}, {"l": [NAN]}, {"l": None}, None, {"l": []}], "AABCD"),
        (pa.list_(pa.int64()), [], ""),
    ],
)
def test_codes_are_equal_where_values_are(kind: pa.DataType, values: list[Any], codes: str) -> None:
    array = pa.array([None, *values, None], kind).slice(1, len(values))
    found = equality_codes(array).tolist()
    assert [[a == b for a in found] for b in found] == [[a == b for a in codes] for b in codes]


NESTED = pa.struct({"l": FLOATS, "m": pa.map_(pa.string(), pa.int64())})


@pytest.mark.parametrize(
    ("kind", "default", "same", "others"),
    [
        (pa.float64(), 0.0, [0.0, -0.0], [1.5, NAN]),
        (pa.float32(), 0.1, [0.1], [0.0]),
        (FLOATS, [], [[]], [[0.0], [None]]),
        (FLOATS, [0.0, 1.5], [[0.0, 1.5], [-0.0, 1.5]], [[0.0], [0.0, None], [1.5, 0.0], [], [0.0, 1.5, 0.0]]),
        (pa.list_(FLOATS), [[0.0], []], [[[-0.0], []]], [[[0.0]], [[], [0.0]], [[0.0], None]]),
        (
            NESTED,
            {"l": [-0.0], "m": [["a", 1]]},
            [{"l": [0.0], "m": [("a", 1)]}],
            [{"l": None, "m": [("a", 1)]}, {"l": [0.0], "m": []}, {"l": [0.0], "m": [("a", None)]}],
        ),
    ],
    ids=str,
)
def test_values_that_equal_a_default_are_unset(kind: pa.DataType, default: Any, same: Any, others: Any) -> None:
    """A record with the default value leaves the stored value as it is."""
    shape = shape_of({"c": kind})
    merger = build("partial-update", {"unset": "default", "defaults": {"c": default}}, shape)
    stored = others[0]
    for value in same:
        ((_, found),) = fold_frames(merger, shape, [("+U", 1, stored)], [("+U", 1, value)])
        assert plain(found) == plain(stored)
    for value in others:
        ((_, found),) = fold_frames(merger, shape, [("+U", 1, stored)], [("+U", 1, value)])
        assert plain(found) == plain(value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_zeros_of_either_sign_delete(value: float) -> None:
    shape = shape_of({"c": pa.float64()})
    merger = build("commit-time", {"delete_when": {"column": "c", "values": [7.5, value]}}, shape)
    rows = [[("+U", key, float(key)) for key in (1, 2, 3, 4)], [("+U", 1, 0.0), ("+U", 2, -0.0), ("+U", 3, 7.5)]]
    assert fold_frames(merger, shape, *rows) == [(4, 4.0)]
    assert merger.options() == {"delete_when": {"column": "c", "values": [7.5, value]}}
