"""``partial-update``: what the conformance cases leave out; results worked out by hand."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mergers import Laws, RowKind
from mergers.errors import MergerConfigurationError, RecordRefusedError
from tests.unit.mergers.folds import build, fold_frames, problems_of, shape_of

INT, TEXT = pa.int64(), pa.string()
SHAPE = shape_of({"s": INT, "t": INT, "a": INT, "b": TEXT, "c": TEXT})
ORDERED = shape_of({"s": INT, "a": INT, "b": TEXT}, ordering=["s"])
GROUPS: dict[str, Any] = {"sequence_groups": {"s": ["a"], "t": ["b"]}, "aggregates": {"a": "sum"}}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unset": "absent", "ignore_delete": True},
        {"unset": "marker", "marker": "?", "remove_record_on_delete": True},
        {"unset": "default", "defaults": {"a": 0, "b": "", "c": None}},
        GROUPS | {"ignore_retract": ["a"], "remove_record_on_sequence_group": ["t"]},
        {"sequence_groups": {"s, t": ["b"]}, "default_aggregate": {"function": "listagg", "delimiter": "-"}},
    ],
)
def test_options_make_a_round_trip(options: dict[str, Any]) -> None:
    merger = build("partial-update", options, SHAPE)
    assert merger.options() == options
    assert build("partial-update", json.loads(json.dumps(dict(merger.options()))), SHAPE) == merger
    assert pickle.loads(pickle.dumps(merger)) == merger


def test_every_problem_is_reported() -> None:
    wrong = {
        "unset": "empty",
        "defaults": {"zz": 1},
        "marker": 3,
        "sequence_groups": {"s": ["k", "a"], "t": ["a", "nope"]},
        "aggregates": {"c": "sum", "a": "median"},
        "remove_record_on_sequence_group": ["x"],
        "remove_record_on_delete": True,
        "extra": 1,
    }
    with pytest.raises(MergerConfigurationError) as caught:
        build("partial-update", wrong, SHAPE)
    text = "\n".join(problems_of(caught.value))
    for word in ("empty", "zz", "marker", "'k'", "twice", "nope", "'c'", "median", "'x'", "remove_record", "extra"):
        assert word in text


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"unset": "marker"}, "marker"),
        ({"defaults": {"a": 1}}, 'unset="default"'),
        ({"unset": "default", "defaults": {"a": "x"}}, "BIGINT"),
        ({"unset": "default", "defaults": {"k": 1}}, "key"),
        ({"ignore_delete": True, "remove_record_on_delete": True}, "exclude"),
        ({"default_aggregate": "sum"}, "sequence_groups"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], word: str) -> None:
    with pytest.raises(MergerConfigurationError, match=word):
        build("partial-update", options, SHAPE)


def test_defaults_of_nested_columns() -> None:
    kind = pa.struct({"d": pa.date32(), "m": pa.map_(pa.string(), pa.decimal128(5, 2)), "b": pa.list_(pa.bool_())})
    shape = shape_of({"c": kind})

    def built(**fields: Any) -> Any:
        return build("partial-update", {"unset": "default", "defaults": {"c": fields}}, shape)

    merger = built(d="2024-02-29", m=[["a", "1.50"], ["b", None]], b=[True, None])
    unset = {"d": dt.date(2024, 2, 29), "m": [("a", Decimal("1.50")), ("b", None)], "b": [True, None]}
    other = unset | {"b": [True]}
    assert fold_frames(merger, shape, [("+U", 1, other)], [("+U", 1, unset)]) == [(1, other)]
    assert fold_frames(merger, shape, [("+U", 1, unset)], [("+U", 1, other)]) == [(1, other)]
    wrong: list[dict[str, Any]] = [{"x": 1}, {"m": [["a"]]}, {"m": {"a": "1"}}, {"b": True}, {"b": [1]}, {"d": "soon"}]
    for fields in wrong:
        with pytest.raises(MergerConfigurationError, match="the default of column 'c'"):
            built(**fields)


def test_groups_and_ordering_exclude_each_other() -> None:
    with pytest.raises(MergerConfigurationError, match="one or the other"):
        build("partial-update", {"sequence_groups": {"a": ["b"]}}, ORDERED)


def test_a_part_of_a_sequence_is_refused() -> None:
    merger = build("partial-update", {"sequence_groups": {"s,t": ["a"]}}, SHAPE)
    frame = pa.RecordBatch.from_pydict({"k": [1], "s": [1], "a": [1]})
    with pytest.raises(RecordRefusedError, match="lacks t"):
        merger.check_records(SHAPE, frame, None)
    merger.check_records(SHAPE, frame.drop_columns(["s"]), None)


def test_deletes_need_an_option() -> None:
    with pytest.raises(RecordRefusedError, match="-D"):
        build("partial-update", {}, SHAPE).check_kinds(SHAPE, frozenset({RowKind.DELETE}))


@pytest.mark.parametrize("compact", [False, True])
def test_older_record_fills_a_default(compact: bool) -> None:
    merger = build("partial-update", {"unset": "default", "defaults": {"a": 0}}, ORDERED)
    # The row begins with the default; the first late value fills it, the second does not.
    commits = [("+U", 1, 10, 0, "x")], [("+U", 1, 5, 7, "y")], [("+U", 1, 6, 8, "z")]
    assert fold_frames(merger, ORDERED, *commits, compact=compact) == [(1, 10, 7, "x")]
    # With a default, a null is a value: a late one takes the default's place.
    assert fold_frames(merger, ORDERED, commits[0], [("+U", 1, 5, None, "y")], compact=compact) == [(1, 10, None, "x")]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("turns", [1, 20])
def test_row_is_removed_again_and_again(turns: int, compact: bool) -> None:
    options = {"sequence_groups": {"s": ["a"]}, "aggregates": {"a": "sum"}, "remove_record_on_sequence_group": ["s"]}
    merger = build("partial-update", options, SHAPE)
    commits: list[list[tuple[Any, ...]]] = []
    for turn in range(turns):
        commits += [[("+U", 1, turn, 0, 5, "x", "x")], [("-D", 1, turn, None, None, None, None)]]
        commits += [[("+U", 1, turn - 1, 0, 5, "late", "x")]]
    rows = fold_frames(merger, SHAPE, *commits, [("+U", 1, turns, None, 3, "y", None)], compact=compact)
    assert rows == [(1, turns, None, 3, "y", None)]
    assert fold_frames(merger, SHAPE, *commits, [("-D", 1, 900, None, 1, "y", None)], compact=compact) == []
    assert fold_frames(merger, SHAPE, *commits, [("+U", 1, turns - 2, None, 3, "y", None)], compact=compact) == []


def test_projection_needs_the_sequence() -> None:
    merger = build("partial-update", GROUPS | {"remove_record_on_sequence_group": ["t"]}, SHAPE)
    assert merger.needs(SHAPE, ["a"]) == {"a", "s", "t"}
    assert merger.needs(SHAPE, ["c"]) == {"c", "s", "t"}, "the sequences of all groups decide whether there is a row"
    assert build("partial-update", GROUPS, SHAPE).needs(SHAPE, ["c"]) == {"c", "s", "t"}
    assert merger.remembers(SHAPE) == ("s", "t")


def test_laws() -> None:
    assert build("partial-update", {}, SHAPE).laws(SHAPE, full_frames=False) == Laws(associative=True)
    assert build("partial-update", {}, ORDERED).laws(ORDERED, full_frames=True) == Laws()
    assert build("partial-update", GROUPS, SHAPE).laws(SHAPE, full_frames=True) == Laws()
