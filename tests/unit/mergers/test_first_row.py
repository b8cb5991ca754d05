"""``first-row``: options, kinds and laws; its rows stand in the conformance cases."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from mergers import Laws, RowKind
from mergers.builtin.first_row import FirstRow
from mergers.errors import MergerConfigurationError, RecordRefusedError
from tests.unit.mergers.folds import build, fold_frames, problems_of, shape_of

SHAPE = shape_of({"ts": pa.int64(), "a": pa.string()})
ORDERED = shape_of({"ts": pa.int64(), "a": pa.string()}, ordering=["ts"])


def test_options_make_a_round_trip() -> None:
    for options in ({}, {"ignore_delete": True}):
        merger = build("first-row", options, SHAPE)
        assert merger.options() == options
        assert pickle.loads(pickle.dumps(merger)) == merger


def test_every_problem_is_reported() -> None:
    with pytest.raises(MergerConfigurationError) as caught:
        build("first-row", {"ignore_delete": 1, "ignore": True}, SHAPE)
    assert len(problems_of(caught.value)) == 2


def test_deletes_are_refused_unless_ignored() -> None:
    for kind in (RowKind.DELETE, RowKind.UPDATE_BEFORE):
        with pytest.raises(RecordRefusedError, match=kind.symbol):
            FirstRow().check_kinds(SHAPE, frozenset({kind}))
        FirstRow(ignore_delete=True).check_kinds(SHAPE, frozenset({kind}))


@pytest.mark.parametrize("compact", [False, True])
def test_lower_partial_record_overlays_its_columns(compact: bool) -> None:
    merger = FirstRow()
    rows = fold_frames(merger, ORDERED, [("+U", 1, 5, "a"), ("+U", 1, 5, "tie")], compact=compact)
    assert rows == [(1, 5, "a")]
    # The lowest ordering there is, and null below it; neither may wrap around.
    lowest = [("+U", 1, -(2**63), "b")], [("+U", 1, None, "c")], [("+U", 1, -(2**63), "d")]
    assert fold_frames(merger, ORDERED, *lowest, compact=compact) == [(1, None, "c")]


def test_laws() -> None:
    merger = FirstRow()
    assert merger.laws(SHAPE, full_frames=True) == Laws(associative=True, replay_safe=True, selective=True)
    assert merger.laws(SHAPE, full_frames=False) == Laws(associative=True, replay_safe=True)
    assert merger.laws(ORDERED, full_frames=False) == Laws(replay_safe=True)
