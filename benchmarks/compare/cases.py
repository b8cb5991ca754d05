"""The cases of the comparison. Each takes an engine through one history, next to its floor, and checks every state.

The floor of a write is Spark's (or Arrow's) plain Parquet write of the same frame; that of a read and of a
compaction is plain Parquet of the merged rows, in key order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.compare.book import Arena, Book, Both
from benchmarks.compare.engine import Place
from benchmarks.compare.mixes import mixes
from benchmarks.compare.queries import AGGREGATE, FULL_SCAN, Query, look_up, queries
from benchmarks.compare.results import Row
from benchmarks.compare.stage import new_places, plain_files, right_answers
from benchmarks.compare.workload import SIZES, WIDE, WIDE_CHANGED, Frame
from benchmarks.tpch import LINEITEM

__all__ = ["CASES", "degradation"]

_STOPS = 8
"""How often at most a longevity run stops to query, beside its start."""


def history(arena: Arena) -> Sequence[Row]:
    """Load, six commits of 1 %, queries, compaction, the same queries, and a commit of 10 %; once to warm up
    and then once per round. Queries run in the last round only, as often as there are rounds."""
    work, book = arena.workload, Book(arena)
    commits = [(work.small(number), "small commit") for number in (1, 2, 3)]
    commits += [(work.late, "late records"), (work.duplicates, "duplicates")]
    if "delete" not in arena.engine.cannot:
        commits.append((work.deletes, "deletes"))
    frames = [frame for frame, _ in commits]
    merged, final = work.state(work.initial, frames), work.state(work.initial, [*frames, work.large])
    plain = plain_files(arena, merged, LINEITEM)
    expected = right_answers(work, merged, queries(*work.updated_key()))
    asked = partial(book.ask, expected, plain=plain, rounds=work.parameters.rounds)
    for number in range(work.parameters.rounds + 1):
        last = number == work.parameters.rounds
        run = partial(book.run, engine_first=number % 2 == 0, counted=number > 0)
        verify = partial(_verify, book) if number else _do_nothing
        place, appended = new_places(arena, LINEITEM, work.initial)
        run(_load(arena, place, appended, work.initial))
        verify(place, work.initial, "load")
        for frame, step in commits:
            run(_commit(arena, step, place, appended, frame))
        if last:
            asked("dirty: ", place)
        verify(place, merged, *(step for _, step in commits), "dirty: ")
        if "compact" not in arena.engine.cannot:
            run(_compaction(arena, place, plain))
            if last:
                asked("clean: ", place)
            verify(place, merged, "compaction", "clean: ")
        run(_commit(arena, "large commit", place, appended, work.large))
        verify(place, final, "large commit")
    for step, task in (("deletes", "delete"), ("compaction", "compact")):
        if task in arena.engine.cannot:
            book.cannot(step, arena.engine.cannot[task])
    return book.rows()


def sizes(arena: Arena) -> Sequence[Row]:
    """Commits of one size into tables of three: what a commit costs as the table grows."""
    work, book = arena.workload, Book(arena)
    rounds = range(work.parameters.rounds + 1)
    places = {}
    for size in SIZES:
        places[size] = new_places(arena, LINEITEM, work.table(size), name=size)
        arena.engine.load(places[size][0], work.table(size))
    for number in rounds:
        for size, (place, appended) in places.items():
            commit = _commit(arena, "commit", place, appended, work.sized(size, number), at=work.rows(size))
            book.run(commit, engine_first=number % 2 == 0, counted=number > 0)
    for size, (place, _) in places.items():
        state = work.state(work.table(size), [work.sized(size, number) for number in rounds])
        book.void(book.problems(place, state), "commit", at=work.rows(size))
    return book.rows()


def merge(arena: Arena) -> Sequence[Row]:
    """Merges of 1 %: the rows are read, a condition decides, and all is one transaction."""
    work, book = arena.workload, Book(arena)
    if "merge" in arena.engine.cannot:
        book.cannot("merge", arena.engine.cannot["merge"])
        return book.rows()
    frames = [work.small(number) for number in range(1, work.parameters.rounds + 2)]
    place, appended = new_places(arena, LINEITEM, work.initial)
    arena.engine.load(place, work.initial)
    for number, frame in enumerate(frames):
        act, floor = partial(arena.engine.merge, place, frame), partial(arena.floor.upsert, appended, frame)
        both = Both("merge", act, floor, place.path, appended.path)
        book.run(both, engine_first=number % 2 == 0, counted=number > 0)
    _verify(book, place, work.state(work.initial, frames), "")
    return book.rows()


def longevity(arena: Arena) -> Sequence[Row]:
    """Many small commits and no compaction, with queries between: what pending commits cost."""
    work, book = arena.workload, Book(arena)
    total = work.parameters.commits
    frames = [work.small(number) for number in range(1, total + 1)]
    _lived(Book(arena), frames[:2], every=1)  # warms up
    place, commit_seconds, query_seconds = _lived(book, frames, every=-(-total // _STOPS))
    book.add("degradation of commits", "rate", degradation(commit_seconds))
    book.add("degradation of queries", "rate", degradation(query_seconds))
    _verify(book, place, work.state(work.initial, frames), "")
    return book.rows()


def _lived(book: Book, frames: Sequence[Frame], *, every: int) -> tuple[Place, Sequence[float], Sequence[float]]:
    """A table that took all frames; the seconds of the commits between two stops, and of the queries at each."""
    arena, work = book.arena, book.arena.workload
    asked = (FULL_SCAN, AGGREGATE, look_up(*work.updated_key()))
    place, appended = new_places(arena, LINEITEM, work.initial)
    arena.engine.load(place, work.initial)
    commit_seconds, query_seconds, since = list[float](), list[float](), 0.0
    for number in range(len(frames) + 1):
        if number:
            commit = _commit(arena, "commit", place, appended, frames[number - 1], at=number)
            since += book.run(commit, engine_first=number % 2 == 0)
        if number % every == 0:
            state = work.state(work.initial, frames[:number])
            plain = plain_files(arena, state, LINEITEM)
            answers = right_answers(work, state, asked)
            query_seconds.append(book.ask(answers, "", place, plain=plain, rounds=2, at=number))
            if number:
                commit_seconds.append(since)
                since = 0.0
    return place, commit_seconds, query_seconds


def wide(arena: Arena) -> Sequence[Row]:
    """Updates of three of a hundred columns."""
    work, book = arena.workload, Book(arena)
    if "wide" in arena.engine.cannot:
        book.cannot("partial update", arena.engine.cannot["wide"])
        return book.rows()
    frames = [work.wide_change(number) for number in range(work.parameters.rounds + 1)]
    place, appended = new_places(arena, WIDE, work.wide)
    arena.engine.load(place, work.wide)
    for number, frame in enumerate(frames):
        update = partial(arena.engine.update_columns, place, frame, WIDE_CHANGED)
        floor = partial(arena.floor.update_columns, appended, frame, WIDE_CHANGED)
        both = Both("partial update", update, floor, place.path, appended.path)
        book.run(both, engine_first=number % 2 == 0, counted=number > 0)
    state = work.wide_state(frames)
    plain = plain_files(arena, state, WIDE)
    touched = Query("aggregate of an updated column", ("id", "i0"), "count(*), sum(i0)")
    answers = right_answers(work, state, (FULL_SCAN, touched))
    book.ask(answers, "dirty: ", place, plain=plain, rounds=work.parameters.rounds)
    _verify(book, place, state, "")
    return book.rows()


def degradation(values: Sequence[float]) -> float:
    """LST-Bench's degradation rate: the mean relative change from one iteration to the next; 0 is none. Needs two
    values. Source: microsoft/lst-bench, ``metrics/stability/degradation_analysis.py``."""
    changes = [(after - before) / before for before, after in itertools.pairwise(values)]
    return sum(changes) / len(changes)


def _verify(book: Book, place: Place, state: Path, *beginnings: str) -> None:
    """Where the table's rows are not the right ones, void the rows of all steps that begin so."""
    book.void(book.problems(place, state), *beginnings)


def _do_nothing(place: Place, state: Path, *beginnings: str) -> None:
    """What is not counted needs no check."""


def _load(arena: Arena, place: Place, appended: Place, rows: Path) -> Both:
    return Both(
        "load",
        partial(arena.engine.load, place, rows),
        partial(arena.floor.load, appended, rows),
        place.path,
        appended.path,
    )


def _commit(arena: Arena, step: str, place: Place, appended: Place, frame: Frame, *, at: float | None = None) -> Both:
    act = arena.engine.delete if frame.deletes else arena.engine.upsert
    append = partial(arena.floor.upsert, appended, frame)
    return Both(step, partial(act, place, frame), append, place.path, appended.path, at)


def _compaction(arena: Arena, place: Place, plain: Place) -> Both:
    return Both(
        "compaction",
        partial(arena.engine.compact, place),
        partial(arena.floor.compact, plain),
        place.path,
        plain.path.parent / f"{plain.path.name}-compacted",
    )


CASES: Mapping[str, Callable[[Arena], Sequence[Row]]] = {
    "history": history,
    "sizes": sizes,
    "merge": merge,
    "longevity": longevity,
    "wide": wide,
    "mixes": mixes,
}
