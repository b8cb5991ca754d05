"""Goes through schedules: single operations with each fault, crash and exception, and pairs with switches.

Only orders that can differ are played: a switch before a call that conflicts with none of the other operation's calls
gives what a switch before the next one gives.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Final

from tests.interleavings.operations import WORLDS, Operation, World, operations_of
from tests.interleavings.oracle import Case, Judge, Verdict
from tests.interleavings.turns import MUTATING, Outcome, Schedule, Touch

__all__ = ["KINDS", "Bad", "Coverage", "Explorer", "alone", "is_commit", "replayed", "singles"]

_READ_FAULTS = ("fail", "gone")
_PUT_FAULTS = ("fail", "lost", "late", "gone", "gone-after", "gone-late", "kill-after")
_AFTER = ("lost", "stuck", "gone-late", "kill-after")
"""Faults of a call that changes something, with another operation afterwards."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A schedule that ends in something wrong."""

    case: Case
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.case}\n    " + "\n    ".join(self.problems)


@dataclass(slots=True)
class Coverage:
    """What was played, and what was not."""

    played: Counter[str] = field(default_factory=Counter)
    cut_off: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    bad: list[Bad] = field(default_factory=list)
    judged: int = 0

    def __str__(self) -> str:
        lines = [
            f"{kind}: {count} schedules played, {self.cut_off[kind]} cut off, {self.seconds[kind]:.0f} s of CPU"
            for kind, count in self.played.items()
        ]
        lines += [f"{kind}: all {count} cut off" for kind, count in self.cut_off.items() if kind not in self.played]
        lines.append(f"{self.judged} different ends were judged")
        if self.bad:
            shortest = min(self.bad, key=lambda bad: (len(bad.case.schedule.steps), len(str(bad.case))))
            lines.append(f"{len(self.bad)} schedules are bad; the shortest one, which `replayed` plays again:")
            lines.append(str(shortest))
        return "\n".join(lines)


@dataclass(slots=True)
class Explorer:
    """Plays the schedules of each kind, as long as its time lasts."""

    judge: Judge = field(default_factory=Judge)
    coverage: Coverage = field(default_factory=Coverage)
    most_bad: int = 20
    tell: Callable[[str], object] | None = None
    """Called with the text of each bad schedule, as soon as it is found."""

    def explore(self, kind: str, cases: Iterable[Case], *, seconds: float = float("inf"), seed: int = 0) -> None:
        """Play the cases in an order drawn from the seed, until their time is over. Of the others only the number is
        noted.

        :param seconds: of CPU, for this kind.
        """
        waiting = list(cases)
        Random(seed).shuffle(waiting)
        began = time.process_time()
        while waiting and time.process_time() - began < seconds and len(self.coverage.bad) < self.most_bad:
            case = waiting.pop()
            self.coverage.played[kind] += 1
            verdict = self.judge.play(case)
            if verdict.problems:
                self.coverage.bad.append(Bad(case, verdict.problems))
                if self.tell is not None:
                    self.tell(str(self.coverage.bad[-1]))
        self.coverage.cut_off[kind] += len(waiting)
        self.coverage.seconds[kind] += time.process_time() - began
        self.coverage.judged = self.judge.judged


def replayed(text: str) -> Verdict:
    """Play ``WORLD: OPERATION beside OPERATION: SCHEDULE`` again."""
    world, names, schedule = text.split(": ", 2)
    known = {operation.name: operation for operation in operations_of(world)}
    operations = tuple(known[name] for name in names.split(" beside "))
    return Judge().play(Case(WORLDS[world], operations, Schedule.of(schedule)))


@cache
def alone(world: World, operation: Operation) -> Outcome:
    """The operation without anything in its way."""
    return Judge().play(Case(world, (operation,), Schedule(()))).outcomes["A"]


@cache
def lines_of(world: World, operation: Operation, *, opcodes: bool = False) -> int:
    """How many lines run after the commit was sent."""
    schedule = Schedule.of("A^^999999" if opcodes else "A^999999")
    return Judge().play(Case(world, (operation,), schedule)).outcomes["A"].lines


def faults_of(touch: Touch) -> Sequence[str]:
    if touch.method not in MUTATING:
        return _READ_FAULTS
    return (*_PUT_FAULTS, "stuck") if is_commit(touch) else _PUT_FAULTS


def is_commit(touch: Touch) -> bool:
    return touch.method == "put_if_absent" and "_delta_log/" in touch.paths[0]


def singles(world: World, operations: Iterable[Operation]) -> Iterator[Case]:
    """Each operation with each fault at each of its calls."""
    for operation in operations:
        touches = alone(world, operation).touches
        yield Case(world, (operation,), Schedule.of("A"))
        yield Case(world, (operation,), Schedule.of("A1!kill"))
        for at, touch in enumerate(touches, start=1):
            for fault in faults_of(touch):
                yield Case(world, (operation,), Schedule.of(f"A{at}!{fault}"))


def exceptions(
    world: World, operations: Iterable[Operation], *, one_in: int = 1, opcodes: bool = False
) -> Iterator[Case]:
    """Each operation with an exception at each line, or bytecode, that runs after its first commit was sent."""
    for operation in operations:
        mark = "^^" if opcodes else "^"
        for line in range(1, lines_of(world, operation, opcodes=opcodes) + 1, one_in):
            yield Case(world, (operation,), Schedule.of(f"A{mark}{line}"))


def switches(world: World, first: Operation, second: Operation) -> list[int]:
    """The numbers of calls of the first after which the second can make a difference."""
    touches, others = alone(world, first).touches, alone(world, second).touches
    found = [0]
    for at, touch in enumerate(touches):
        if any(touch.conflicts(other) for other in others) and at not in found:
            found.append(at)
    return found


def pairs(world: World, operations: Sequence[Operation]) -> Iterator[Case]:
    """Two operations with one switch: the second runs as a whole before a call of the first."""
    for first in operations:
        for second in operations:
            for at in switches(world, first, second):
                yield Case(world, (first, second), Schedule.of(f"A{at} B A" if at else "B A"))


def twice_switched(world: World, operations: Sequence[Operation]) -> Iterator[Case]:
    """Two operations with two switches: the second is halted, too."""
    for first in operations:
        for second in operations:
            for at in switches(world, first, second):
                for halt in switches(world, second, first)[1:]:
                    yield Case(world, (first, second), Schedule.of(f"A{at} B{halt} A B" if at else f"B{halt} A B"))


def pairs_with_faults(world: World, operations: Sequence[Operation]) -> Iterator[Case]:
    """A call that changes something meets a fault, and then the other operation runs."""
    for first in operations:
        for second in operations:
            for at, touch in enumerate(alone(world, first).touches, start=1):
                for fault in _AFTER if touch.method in MUTATING else ():
                    if fault != "stuck" or is_commit(touch):
                        yield Case(world, (first, second), Schedule.of(f"A{at}!{fault} B A"))
                        if fault in ("stuck", "gone-late"):
                            yield Case(world, (first, second), Schedule.of(f"A{at}!{fault} A A+ B"))


KINDS: Final[Mapping[str, Callable[[World, Sequence[Operation]], Iterator[Case]]]] = {
    "one operation, one fault": singles,
    "one operation, an exception at a line": exceptions,
    "one operation, an exception at a bytecode": partial(exceptions, opcodes=True),
    "two operations, one switch": pairs,
    "two operations, one fault": pairs_with_faults,
    "two operations, two switches": twice_switched,
}
"""What there is to go through, from little to much."""
