"""The case of mixes: what a day of commits, queries and maintenance takes in total, in any ratio of queries to commits.

An engine lives each day once for each way to keep its table in order. Every few commits the queries are timed, twice.
Their answers and the table at the end of the day are checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.compare.book import Arena, Book, timed
from benchmarks.compare.engine import Engine, Place, Upkeep
from benchmarks.compare.mixture import READS, Day
from benchmarks.compare.queries import AGGREGATE, FILTER, FULL_SCAN, Query, look_up, wide_queries
from benchmarks.compare.results import Row
from benchmarks.compare.stage import new_places, plain_files, right_answers
from benchmarks.compare.workload import WIDE, WIDE_CHANGED, Frame, Workload
from benchmarks.tpch import LINEITEM, Entity

__all__ = ["mixes"]

_STOPS = 8
"""How often at most a day stops to query."""
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class _Stream:
    """Commits of one kind, and the queries between them."""

    name: str
    entity: Entity
    rows: Path
    frames: Sequence[Frame]
    queries: Sequence[Query]
    columns: tuple[str, ...] = ()
    """The columns that the frames set; none for all."""

    def state(self, work: Workload, commits: int) -> Path:
        frames = self.frames[:commits]
        return work.wide_state(frames) if self.columns else work.state(self.rows, frames)

    def write(self, engine: Engine, place: Place, frame: Frame) -> None:
        if self.columns:
            engine.update_columns(place, frame, self.columns)
        else:
            engine.upsert(place, frame)


def mixes(arena: Arena) -> Sequence[Row]:
    """Days of commits of 1 % each: uniform keys, recent keys, and updates of three of a hundred columns."""
    book = Book(arena)
    upkeeps = arena.engine.upkeeps
    for number, stream in enumerate(_streams(arena.workload) if upkeeps else ()):
        if stream.columns and "wide" in arena.engine.cannot:
            book.cannot(f"{stream.name}: total", arena.engine.cannot["wide"])
            continue
        if number == 0:
            _live(book, stream, upkeeps[0], _WARM_UP)
        lived = [_live(book, stream, upkeep, len(stream.frames)) for upkeep in upkeeps]
        _note(book, stream, lived)
    return book.rows()


def _note(book: Book, stream: _Stream, lived: Sequence[_Lived]) -> None:
    """Totals for each mix, of the best upkeep and of the default, and what they consist of."""
    tuned = any(one.day.upkeep.reads_per_write is not None for one in lived)
    for reads in READS:
        best = min((one for one in lived if one.day.suits(reads)), key=lambda one: one.day.total(reads))
        book.add(f"{stream.name}: total", "s", best.day.total(reads), best.floor.total(reads), reads)
        if tuned:
            one = next((one for one in lived if one.day.upkeep.counts and one.day.suits(reads)), lived[0])
            book.add(f"{stream.name}: total, by default", "s", one.day.total(reads), one.floor.total(reads), reads)
    for one in lived:
        day, floor = one.day, one.floor
        about = f"{stream.name}, {day.upkeep.title}"
        book.add(f"{about}: commits and maintenance", "s", day.writing, floor.writing)
        book.add(f"{about}: commits and maintenance", "bytes", day.written_bytes, floor.written_bytes)
        for which, ours, plain in (("first", day.first, floor.first), ("again", day.later, floor.later)):
            for place, query in enumerate(stream.queries):
                for seconds, floor_seconds in zip(ours, plain, strict=True):
                    book.add(f"{about}: {query.name}, {which}", "s", seconds[place], floor_seconds[place])
    book.void(list(dict.fromkeys(problem for one in lived for problem in one.problems)), stream.name)


@dataclass(frozen=True, slots=True)
class _Lived:
    day: Day
    floor: Day
    """The same day of plain files: commits are appended, queries read the merged rows."""
    problems: Sequence[str]


@dataclass(slots=True)
class _Times:
    """What a day takes, as it goes on."""

    writing: float = 0.0
    written_bytes: int = 0
    first: list[list[float]] = field(default_factory=list)
    later: list[list[float]] = field(default_factory=list)

    def write(self, work: Callable[[], object], folder: Path) -> None:
        seconds, written = timed(work, folder)
        self.writing += seconds
        self.written_bytes += written.bytes

    def day(self, upkeep: Upkeep, commits: int) -> Day:
        return Day(upkeep, commits, self.writing, self.first, self.later, self.written_bytes)


def _live(book: Book, stream: _Stream, upkeep: Upkeep, commits: int) -> _Lived:
    """One day of the engine, with its floor beside it."""
    arena, work = book.arena, book.arena.workload
    engine, floor = arena.engine, arena.floor
    place, appended = new_places(arena, stream.entity, stream.rows, properties=upkeep.properties)
    engine.load(place, stream.rows)
    ours, plain = _Times(), _Times()
    problems: list[str] = []

    def commit(number: int) -> None:
        stream.write(engine, place, stream.frames[number - 1])
        if upkeep.every is not None and number % upkeep.every == 0:
            engine.tidy(place)

    def count_reads(asked: int) -> None:
        if upkeep.counts:
            engine.note_reads(place, max(0, round(upkeep.reads_per_write or 0) - asked))

    every = -(-commits // _STOPS)
    for number in range(1, commits + 1):
        ours.write(partial(commit, number), place.path)
        plain.write(partial(stream.write, floor, appended, stream.frames[number - 1]), appended.path)
        if number % every:
            count_reads(0)
            continue
        state = stream.state(work, number)
        answers = right_answers(work, state, stream.queries)
        merged = plain_files(arena, state, stream.entity)
        for who, asked, times in ((engine, place, ours), (floor, merged, plain)):
            for seconds in (times.first, times.later):
                seconds.append([])
                for query, expected in answers.items():
                    started = time.perf_counter()
                    found = who.answer(asked, query)
                    seconds[-1].append(time.perf_counter() - started)
                    if found != expected:
                        problems.append(f"{upkeep.title}, after {number} commits: {query.name} is wrong")
        count_reads(2 * len(answers))
    problems += book.problems(place, stream.state(work, commits))
    return _Lived(ours.day(upkeep, commits), plain.day(upkeep, commits), problems)


def _streams(work: Workload) -> Sequence[_Stream]:
    numbers = range(1, work.parameters.commits + 1)
    asked = (FULL_SCAN, AGGREGATE, FILTER, look_up(*work.updated_key()))
    return (
        _Stream("uniform", LINEITEM, work.initial, [work.small(number) for number in numbers], asked),
        _Stream("recent keys", LINEITEM, work.initial, [work.recent(number) for number in numbers], asked),
        _Stream(
            "partial updates",
            WIDE,
            work.wide,
            [work.wide_change(number - 1) for number in numbers],
            wide_queries(work.updated_id()),
            WIDE_CHANGED,
        ),
    )
