"""Times an engine and its floor side by side, counts what they write, and keeps rows of it all."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.compare.engine import Engine, Place
from benchmarks.compare.queries import Answer, Query
from benchmarks.compare.results import Row
from benchmarks.compare.workload import Workload
from benchmarks.measure import Contender, interleave

__all__ = ["Arena", "Book", "Both", "Written", "timed", "written"]

_Step = tuple[str, Literal["s", "bytes", "objects", "rate"], float | None]
_CHECKSUMS = ".crc"
"""Spark's local file system writes one beside each file; an object store has none."""
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Arena:
    """An engine, its floor in the same process, the data and a folder for tables."""

    engine: Engine
    floor: Engine
    workload: Workload
    scratch: Path
    _latest: dict[str, Path] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, name: str) -> Path:
        """A path where nothing is or ever was, because engines remember tables by their paths. What was made
        under this name before goes."""
        if name in self._latest:
            shutil.rmtree(self._latest[name], ignore_errors=True)
        self._latest[name] = self.scratch / f"{name}_{next(self._numbers)}"
        return self._latest[name]


@dataclass(frozen=True, slots=True)
class Written:
    """Files that were added or replaced. What came and went in between does not show."""

    bytes: int
    objects: int


@dataclass(frozen=True, slots=True)
class Both:
    """The same step of the engine and of its floor: what to run, and the folders that grow by it."""

    step: str
    engine: Callable[[], object]
    floor: Callable[[], object]
    engine_folder: Path
    floor_folder: Path
    at: float | None = None


@dataclass(slots=True)
class Book:
    """Samples by step, in the order in which steps first came."""

    arena: Arena
    _samples: dict[_Step, tuple[list[float], list[float]]] = field(default_factory=dict)
    _problems: dict[_Step, list[str]] = field(default_factory=dict)
    _cannot: dict[str, str] = field(default_factory=dict)

    def run(self, both: Both, *, engine_first: bool, counted: bool = True) -> float:
        """Run a step of engine and floor once each; the engine's seconds. A step that is not counted warms up."""
        taken: dict[str, tuple[float, Written]] = {}
        order = ["engine", "floor"] if engine_first else ["floor", "engine"]
        for who in order:
            action, folder = (both.engine, both.engine_folder) if who == "engine" else (both.floor, both.floor_folder)
            taken[who] = timed(action, folder)
        if counted:
            (seconds, ours), (floor_seconds, theirs) = taken["engine"], taken["floor"]
            self.add(both.step, "s", seconds, floor_seconds, both.at)
            self.add(both.step, "bytes", ours.bytes, theirs.bytes, both.at)
            self.add(both.step, "objects", ours.objects, theirs.objects, both.at)
        return taken["engine"][0]

    def ask(
        self,
        queries: Mapping[Query, Answer],
        step: str,
        place: Place,
        *,
        plain: Place,
        rounds: int,
        at: float | None = None,
    ) -> float:
        """Time queries on a table and on plain files, ``step`` being the first words of their names; a wrong
        answer, the floor's too, voids its row. A query that takes longer than a minute is asked once. Returns the sum
        of the engine's medians."""
        total = 0.0
        for query, expected in queries.items():
            answers: dict[str, set[Answer]] = {"engine": set(), "floor": set()}
            subject = partial(_answer, self.arena.engine, place, query, answers["engine"])
            floor = partial(_answer, self.arena.floor, plain, query, answers["floor"])
            contenders = [Contender("engine", subject), Contender("floor", floor)]
            times = interleave(contenders, rounds=rounds, patience_s=_PATIENCE_S)
            name = f"{step}{query.name}"
            for seconds, floor_seconds in itertools.zip_longest(times["engine"], times["floor"]):
                self.add(name, "s", seconds, floor_seconds, at)
            self._problems[name, "s", at] += [
                f"{who} gave {_short(answer)}, expected {_short(expected)}"
                for who, given in answers.items()
                for answer in sorted(given - {expected})
            ]
            total += statistics.median(times["engine"])
        return total

    def add(
        self,
        step: str,
        unit: Literal["s", "bytes", "objects", "rate"],
        value: float | None,
        floor: float | None = None,
        at: float | None = None,
    ) -> None:
        samples, floors = self._samples.setdefault((step, unit, at), ([], []))
        self._problems.setdefault((step, unit, at), [])
        if value is not None:
            samples.append(value)
        if floor is not None:
            floors.append(floor)

    def problems(self, place: Place, state: Path) -> Sequence[str]:
        """Compare every value of a table with the right rows."""
        found = self.arena.fresh("found")
        self.arena.engine.dump(place, found)
        problems = self.arena.workload.problems(place.entity, found, state)
        shutil.rmtree(found)
        return problems

    def void(self, problems: Sequence[str], *beginnings: str, at: float | None = None) -> None:
        """Note problems at all rows so far whose step begins with one of these words; at one place, or all."""
        for (step, _, place), noted in self._problems.items():
            if step.startswith(beginnings) and at in (None, place):
                noted += [problem for problem in problems if problem not in noted]

    def cannot(self, step: str, reason: str) -> None:
        self._cannot[step] = reason

    def rows(self) -> Sequence[Row]:
        found = [
            Row(
                step=step,
                unit=unit,
                samples=tuple(samples),
                floor_samples=tuple(floors),
                at=at,
                problems=tuple(self._problems[step, unit, at]),
            )
            for (step, unit, at), (samples, floors) in self._samples.items()
        ]
        return [*found, *(Row(step=step, unit="s", cannot=reason) for step, reason in self._cannot.items())]


def written(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> Written:
    """What two listings (of size and time of change, by path) say was written between them."""
    sizes = [entry[0] for path, entry in after.items() if before.get(path) != entry]
    return Written(sum(sizes), len(sizes))


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of the files below a folder, without checksum files."""
    found = {}
    for path in folder.rglob("*"):
        if path.suffix != _CHECKSUMS and path.is_file():
            status = path.stat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found


def timed(action: Callable[[], object], folder: Path) -> tuple[float, Written]:
    before = listing(folder)
    os.sync()  # some engines sync what they commit, and would wait for what others left in the page cache
    started = time.perf_counter()
    action()
    seconds = time.perf_counter() - started
    return seconds, written(before, listing(folder))


def _answer(engine: Engine, place: Place, query: Query, answers: set[Answer]) -> None:
    answers.add(engine.answer(place, query))


def _short(answer: Answer, length: int = 200) -> str:
    text = str(answer)
    return text if len(text) <= length else f"{text[:length]}..."
