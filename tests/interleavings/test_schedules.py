"""Schedules that were once bad, played again, and the scheduler's own rules."""

from __future__ import annotations

import pytest

from tests.interleavings.explore import replayed
from tests.interleavings.operations import WORLDS, operations_of
from tests.interleavings.oracle import Case, Judge
from tests.interleavings.turns import FAULTS, Killed, Schedule

ONCE_BAD = [
    # A table was made anew while its log, or the ledger of a job, was read. It was called damaged.
    "filled: TRUNCATE TABLE beside create anew: A14 B A",
    "filled: CALL compact beside create anew: A13 B A",
    "filled: CALL compact beside create anew: A28 B A",
    "filled: retry of a file beside create anew: A2 B A",
    # A vacuum took records of earlier versions while they were replayed. The table was called damaged.
    "filled: replay beside vacuum: A22 B A",
    "filled: replay beside vacuum: A39 B A",
    # A micro-batch had landed, and its query was told that it failed.
    "filled: batch of a sink: A27!gone",
    # Rows were read for a constraint, and the table was called damaged.
    "filled: constraint beside create anew: A4 B A",
    "filled: constraint beside drop: A3 B A",
    # What came out was the store's error.
    "filled: consumer beside drop: A30 B A",
    # A drop deleted by name what somebody made in its place meanwhile.
    "filled: drop beside create anew: A24 B A",
    # A checkpoint that came after all that was left could not be dropped.
    "logged: drop: A15!late",
    # A table whose drop is under way was called damaged.
    "filled: follower beside drop: A18 B22 A B",
    "filled: drop beside DELETE FROM: A25 B A",
    "filled: drop beside TRUNCATE TABLE: A22 B A",
    "filled: drop beside replace: A22 B A",
    # Files of a log were listed, and a drop deleted them before they were read. What came out was the store's error.
    "filled: vacuum beside drop: A14 B A",
    "filled: vacuum beside drop: A35 B A",
    "filled: vacuum beside drop: A38 B A",
    "filled: drop beside drop: A3 B A",
    # A commit was carried out after its table was dropped, and a checkpoint of it made a table without files.
    "filled: compaction beside drop: A16 B A",
    "filled: minor compaction beside drop: A22 B A",
    "filled: maintenance beside drop: A22 B A",
    # What was right was called bad: two operations of two commits each took turns, a file without a place in the table
    # was set aside, a replay did not go over a new name, and a savepoint kept a table from its drop.
    "filled: stream that goes on beside sink that goes on: A4 B A",
    "filled: ingest beside rename of a column: A2 B A",
    "filled: replay beside rename of a column: A22 B A",
    "filled: drop beside savepoint: A16 B A",
    # An erasure read files that another one had deleted with the history. The table was called damaged.
    "alone: forget beside forget: A4 B A",
    "alone: forget beside forget: A20 B A",
    "alone: forget beside forget: A51 B14 A B",
    # A vacuum looked into a checkpoint that an erasure had deleted since it was listed. What came out was the store's.
    "alone: vacuum beside forget: A27 B A",
    # So did a conversion that looked for former files in the log.
    "alone: forget beside there and back: A55 B31 A B",
]


@pytest.mark.parametrize("text", ONCE_BAD)
def test_a_schedule_that_was_bad(text: str) -> None:
    assert replayed(text).problems == ()


def test_a_schedule_is_a_line_of_text() -> None:
    text = "A4!gone-late B A+ A^7 B^^9 A"
    assert str(Schedule.of(text)) == text
    for wrong in ("a", "A!lost", "A4!unheard", "A-1", "A4!", "4A"):
        with pytest.raises(ValueError, match="no step"):
            Schedule.of(wrong)


def _played(text: str) -> tuple[str, list[str]]:
    verdict = replayed(text)
    return "; ".join(verdict.problems), [str(verdict.outcomes[tag]) for tag in sorted(verdict.outcomes)]


def test_faults_do_what_they_say() -> None:
    """The commit of an append is its second call."""
    world = WORLDS["filled"]
    append = next(one for one in operations_of("filled") if one.name == "append")
    touches = replayed("filled: append: A").outcomes["A"].touches
    commit = next(number for number, touch in enumerate(touches, start=1) if touch.method == "put_if_absent")
    ended = {}
    for fault in FAULTS:
        verdict = Judge().play(Case(world, (append,), Schedule.of(f"A{commit}!{fault}")))
        assert verdict.problems == (), fault
        error = verdict.outcomes["A"].error
        ended[fault] = None if error is None else type(error).__name__
    unknown = "OutcomeUnknownError"
    assert ended == {
        "fail": None,  # it is tried again
        "lost": None,  # it is read back
        "late": None,
        "stuck": unknown,
        "gone": unknown,
        "gone-after": unknown,
        "gone-late": unknown,
        "kill": Killed.__name__,
        "kill-after": Killed.__name__,
    }


def test_the_same_schedule_gives_the_same_calls() -> None:
    text = "filled: append beside minor compaction: A2 B5 A"
    first, second = replayed(text).outcomes, replayed(text).outcomes
    assert {tag: one.touches for tag, one in first.items()} == {tag: one.touches for tag, one in second.items()}
    assert first["A"].touches != replayed("filled: append: A").outcomes["A"].touches
