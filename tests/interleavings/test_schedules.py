"""Schedules that were once bad, played again; schedules that hold the promises of docs/guarantees.md, each promise with
a test of its own; and the scheduler's own rules.
"""

from __future__ import annotations

import pytest

from tests.interleavings.explore import alone, is_commit, replayed
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


@pytest.mark.every_variant
@pytest.mark.parametrize("text", ONCE_BAD)
def test_a_schedule_that_was_bad(text: str) -> None:
    assert replayed(text).problems == ()


@pytest.mark.every_variant
@pytest.mark.parametrize(
    "text", ["filled: DELETE FROM", "filled: follower", "filled: create anew", "filled: compaction", "logged: append"]
)
def test_a_drop_that_is_halted_while_it_deletes(text: str) -> None:
    """Files of rows were gone and the log was there, and the table was called damaged. A checkpoint, or what names the
    last one, came between a listing and a deletion, and stayed. A table that was made there was deleted."""
    world, name = text.split(": ")
    known = {operation.name: operation for operation in operations_of(world)}
    drops = alone(WORLDS[world], known["drop"]).touches
    commit = next(at for at, touch in enumerate(drops, start=1) if is_commit(touch))
    calls = len(alone(WORLDS[world], known[name]).touches)
    for halt in range(commit, len(drops) + 4):  # it makes more calls if the other one has committed before
        for at in range(0, calls + 1, max(1, calls // 12)):
            case = f"{text} beside drop: A{at} B{halt} A B" if at else f"{text} beside drop: B{halt} A B"
            assert replayed(case).problems == (), case


# What holds each promise. The schedules are made where they are played, so that a switch stays where it is meant to be
# when an operation makes other calls than before.

_ends = tuple[str | None, ...]
"""For each operation the name of its error, or ``None``."""


def schedules(text: str) -> list[str]:
    """``WORLD: A beside B`` with B as a whole before each commit of A, or ``WORLD: A!FAULT`` with the fault at each.
    What commits nothing has B before its last call."""
    head, _, fault = text.partition("!")
    world, names = head.split(": ")
    (first,) = [one for one in operations_of(world) if one.name == names.split(" beside ")[0]]
    touches = alone(WORLDS[world], first).touches
    commits = [at for at, touch in enumerate(touches, start=1) if is_commit(touch)] or [len(touches)]
    return [f"{head}: A{at}!{fault}" if fault else f"{head}: A{at - 1} B A" for at in commits]


def right(text: str) -> list[_ends]:
    """Plays the schedules, and checks that nothing is wrong. Returns how the operations of each ended."""
    found = []
    for schedule in schedules(text):
        verdict = replayed(schedule)
        assert verdict.problems == (), schedule
        errors = [verdict.outcomes[tag].error for tag in sorted(verdict.outcomes)]
        found.append(tuple(None if error is None else type(error).__name__ for error in errors))
    return found


def held_by(*texts: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("text", texts)


@held_by(
    "filled: append!lost",
    "filled: append!gone",
    "filled: append!gone-after",
    "filled: append!kill",
    "filled: append!kill-after",
    "filled: read beside append",
)
def test_a_commit_is_there_completely_or_not_at_all(text: str) -> None:
    right(text)


@held_by(
    "published: publication beside append",
    "published: publication beside compaction",
    "published: compaction beside publication",
    "published: publication!lost",
    "published: publication!kill-after",
)
def test_a_publication_is_one_commit(text: str) -> None:
    right(text)


@held_by(
    "filled: read beside compaction",
    "filled: read beside restore",
    "filled: read beside overwrite",
    "filled: changes beside append",
)
def test_a_reader_stays_at_its_version(text: str) -> None:
    assert right(text) == [(None, None)]


@held_by(
    *(
        f"filled: append beside {other}"
        for other in ("append", "compaction", "minor compaction", "log compaction", "rescale", "vacuum")
    )
)
def test_a_writer_that_loses_a_race_lands_nevertheless(text: str) -> None:
    assert right(text) == [(None, None)]


@held_by(
    "filled: overwrite beside append",
    "filled: append beside overwrite",
    "filled: compaction beside overwrite",
    "filled: log compaction beside overwrite",
    "filled: rescale beside overwrite",
)
def test_an_overwrite_replaces_what_landed_before_it(text: str) -> None:
    right(text)


@held_by("filled: append beside restore", "published: append beside upkeep")
def test_a_write_begun_before_a_restore_or_a_fence_does_not_land(text: str) -> None:
    assert right(text) == [("CommitConflictError", None)]


@held_by(
    "filled: append beside create anew",
    "filled: compaction beside create anew",
    "logged: vacuum beside create anew",
    "logged: checkpoint beside create anew",
)
def test_an_old_object_leaves_a_new_table_alone(text: str) -> None:
    for first, _ in right(text):
        assert first in (None, "TableReplacedError")  # its work was done before, or is refused


@held_by(
    "filled: TRUNCATE TABLE beside append",
    "filled: DELETE FROM beside append",
    "filled: merge beside append",
    "filled: update_where beside merge",
)
def test_a_statement_beside_a_writer(text: str) -> None:
    right(text)


@held_by(
    "filled: append beside replace",
    "filled: compaction beside replace",
    "filled: replace beside append",
    "filled: replace beside compaction",
)
def test_a_replaced_table_has_its_own_rows_only(text: str) -> None:
    right(text)


@held_by(
    *(
        f"filled: {service} beside append"
        for service in ("compaction", "minor compaction", "log compaction", "rescale", "expiry")
    )
)
def test_maintenance_changes_no_row(text: str) -> None:
    assert set(right(text)) == {(None, None)}


@held_by(
    "filled: append beside rename of a column",
    "filled: append beside drop of a column",
    "filled: compaction beside rename of a column",
)
def test_names_of_columns_are_no_matter_of_rows(text: str) -> None:
    right(text)


@held_by("filled: append beside constraint", "filled: constraint beside append")
def test_every_row_meets_the_constraints(text: str) -> None:
    assert right(text) == [("CommitConflictError", None)]


@held_by(
    "alone: append beside there and back",
    "alone: append beside unconvert",
    "alone: there and back beside append",
    "alone: there and back!kill-after",
    "alone: unconvert!kill",
)
def test_a_conversion_that_is_cut_short_or_met_by_a_writer(text: str) -> None:
    right(text)


@held_by(
    "filled: append!stuck",
    "filled: append!gone-late",
    "filled: log compaction!gone-late",
    "filled: ingest!stuck",
)
def test_no_file_of_a_commit_that_may_land_is_deleted(text: str) -> None:
    assert {first for (first,) in right(text)} == {"OutcomeUnknownError"}


@held_by(
    "filled: batch of a stream beside stream that goes on",
    "filled: batch of a stream!kill-after",
    "filled: batch of a stream!gone-after",
)
def test_a_numbered_write_lands_once(text: str) -> None:
    right(text)


@held_by(
    "filled: append!kill",
    *(
        f"filled: {name}!kill-after"
        for name in ("append", "compaction", "minor compaction", "log compaction", "rescale", "vacuum")
    ),
)
def test_what_was_killed_leaves_a_correct_table(text: str) -> None:
    assert {first for (first,) in right(text)} == {"Killed"}


@held_by(*(f"filled: {name} beside vacuum" for name in ("compaction", "minor compaction", "log compaction", "rescale")))
def test_a_vacuum_beside_a_service(text: str) -> None:
    right(text)


@held_by(
    "filled: replay!kill-after",
    "filled: replay beside replay",
    "landed: replay of a window!kill-after",
    "landed: replay of a window beside append",
)
def test_a_replay_commits_each_record_once(text: str) -> None:
    right(text)


@held_by(
    "filled: vacuum beside append",
    "filled: vacuum beside compaction",
    "filled: vacuum beside restore",
    "filled: vacuum beside savepoint",
    "filled: savepoint beside vacuum",
)
def test_vacuum_deletes_nothing_that_is_needed(text: str) -> None:
    right(text)


@held_by(
    "alone: forget!kill-after",
    "alone: forget beside append",
    "alone: append beside forget",
)
def test_an_erasure_that_is_cut_short_or_met_by_a_writer(text: str) -> None:
    right(text)


@held_by(*(f"filled: follower beside {other}" for other in ("append", "compaction", "rescale", "restore", "vacuum")))
def test_a_follower_has_the_table(text: str) -> None:
    right(text)


@held_by(
    "filled: batch of a sink!kill-after",
    "filled: batch of a sink!gone",
    "filled: sink that goes on beside batch of a sink",
)
def test_a_micro_batch_counts_once(text: str) -> None:
    right(text)


@held_by("filled: vacuum beside consumer", "filled: consumer beside vacuum", "filled: vacuum beside consumer moves")
def test_vacuum_keeps_what_a_consumer_has_yet_to_read(text: str) -> None:
    right(text)


@held_by("filled: ingest!kill-after", "filled: ingest!lost", "filled: retry of a file!kill-after")
def test_a_record_of_a_file_counts_once(text: str) -> None:
    right(text)


@held_by("filled: ingest beside ingest")
def test_two_runners_of_a_job(text: str) -> None:
    right(text)


@held_by(
    "sources: merge source!kill",
    "sources: merge source!kill-after",
    "unmerged: merge source!kill-after",
    "stable: merge source!kill-after",
    "sources: merge source beside merge source",
    "sources: merge source beside upkeep of a dataset",
)
def test_the_next_run_completes_one_that_was_cut_short(text: str) -> None:
    right(text)


@held_by("stable: merge source beside override")
def test_a_run_beside_a_decision(text: str) -> None:
    right(text)


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
