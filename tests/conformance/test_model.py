"""The model and the runner hold each other: cases of every merger in every mode, on the model."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.conformance.model_engine import ModelEngine
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.modes import MODES
from tests.conformance.runner import CASES, Case, Compact, Expect, Mode, Write, load_cases, plan, run_case
from tests.model import CommitTime, EventTime, Merger, Record, State, Tombstone
from tests.property.effort import some

CASES_PER_FILE = {
    "aggregate.json": 29,
    "cdc.json": 8,
    "commit_time.json": 6,
    "configuration.json": 10,
    "custom.json": 4,
    "deletes_and_tombstones.json": 9,
    "event_time.json": 13,
    "expression.json": 38,
    "first_row.json": 4,
    "frame_types.json": 4,
    "ordering.json": 9,
    "overwrite.json": 31,
    "partial_frames.json": 9,
    "partial_update.json": 14,
    "sequence_groups.json": 25,
    "traps.json": 10,
    "transactions.json": 47,
}
ALL = [case for cases in load_cases().values() for case in cases]


def test_no_case_is_lost_in_loading() -> None:
    assert {name: len(cases) for name, cases in load_cases().items()} == CASES_PER_FILE
    assert {path.name: len(json.loads(path.read_text())) for path in CASES.glob("*.json")} == CASES_PER_FILE
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize(("case", "mode"), some([*itertools.product(ALL, MODES)]), ids=str)
def test_model_agrees_with_every_case(case: Case, mode: Mode) -> None:
    run_case(case, mode, ModelEngine())


class StrictlyNewer(EventTime):
    """Lets the stored row win a tie."""

    def apply(self, state: State, record: Record) -> State:
        if state is not None and self.ordering(record) == self.stored_ordering(state):
            return state
        return super().apply(state, record)


class Forgetful(EventTime):
    """Leaves no tombstone."""

    def apply(self, state: State, record: Record) -> State:
        result = super().apply(state, record)
        return None if isinstance(result, Tombstone) else result


class Whole(EventTime):
    """Takes unset for null."""

    def apply(self, state: State, record: Record) -> State:
        return super().apply(None if isinstance(state, dict) and len(record.values) > 2 else state, record)


class Ordered(CommitTime):
    """Deletes leave the row's columns behind for the next record."""

    def apply(self, state: State, record: Record) -> State:
        return state if record.kind == "-D" else super().apply(state, record)


@pytest.mark.parametrize(
    ("name", "wrong", "noticed"),
    [
        ("event-time", StrictlyNewer, "event-time-higher-equal-lower"),
        ("event-time", Forgetful, "tombstone-survives-compaction"),
        ("event-time", Whole, "partial-frame-event-time"),
        ("commit-time", Ordered, "commit-time-delete-insert-delete-in-one-batch"),
    ],
)
def test_runner_notices_a_wrong_merger(name: str, wrong: type[Merger], noticed: str) -> None:
    [case] = [case for case in ALL if case.name == noticed]
    for mode in MODES:
        with pytest.raises(AssertionError, match=noticed):
            run_case(case, mode, ModelEngine(ALL_MERGERS | {name: wrong}))


def test_plan_keeps_the_meaning_of_as_of() -> None:
    [case] = [case for case in ALL if case.name == "time-travel-over-compactions"]
    by_rows = plan(case, Mode("rows", compaction="never", batching="rows"))
    assert [s.number for s in by_rows if isinstance(s, Write)] == [0, None, 1, 2, 3]
    assert [s.as_of for s in by_rows if isinstance(s, Expect)] == [None, 0, 1, 2, 3]
    joined = plan(case, Mode("joined", compaction="never", batching="joined"))
    assert [(s.number, len(s.rows)) for s in joined if isinstance(s, Write)] == [(1, 3), (2, 1), (3, 1)]
    assert [s.as_of for s in joined if isinstance(s, Expect)] == [None, 1, 2, 3]


def test_plan_places_compactions() -> None:
    [case] = [case for case in ALL if case.name == "time-travel-over-compactions"]
    assert not any(isinstance(s, Compact) for s in plan(case, Mode("never", compaction="never")))
    always = plan(case, Mode("always", compaction="always"))
    assert all(isinstance(b, Compact) for a, b in itertools.pairwise(always) if isinstance(a, Write))
    seeds = [plan(case, Mode("random", compaction="random", seed=seed)) for seed in range(8)]
    assert len({str(steps) for steps in seeds}) > 4
