"""Times a floor and its subjects side by side, and says what the numbers mean against a target."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Contender", "Line", "Report", "files_below", "interleave", "size_of", "usable_cores", "with_lines"]

Unit: TypeAlias = Literal["s", "ms", "bytes", "objects", "requests"]
_HEADINGS = ("case", "what", "value", "floor", "ratio", "target", "verdict")
_WIDTHS = (9, 58, 12, 12, 8, 8, 0)


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the things to time. ``before`` makes it ready and is not timed."""

    name: str
    run: Callable[[], object]
    before: Callable[[], object] | None = None
    rounds: int | None = None
    """Fewer rounds than the others get, for something slow."""


def interleave(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    settle: Callable[[], object] | None = None,
    patience_s: float = math.inf,
) -> dict[str, tuple[float, ...]]:
    """Seconds of each contender, by name, one sample a round.

    A first round warms up and is not counted, but for contenders that take longer than ``patience_s`` in it: they
    are not run again. Each round runs every contender once and starts with
    another one, so that noise and drift of the machine hit all alike. ``settle`` runs before each
    sample: by default it writes back what earlier samples left in the page cache, which would
    otherwise slow down the next one that syncs its files.
    """
    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    if len(samples) < len(contenders) or rounds < 1:
        raise ValueError("contenders need names of their own, and at least one round")
    slow: set[str] = set()
    for number in range(rounds + 1):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            if contender.name in slow or (contender.rounds is not None and number > contender.rounds):
                continue
            if contender.before is not None:
                contender.before()
            (settle or os.sync)()
            started = clock()
            contender.run()
            seconds = clock() - started
            if seconds > patience_s and not number:
                slow.add(contender.name)
            if number or contender.name in slow:
                samples[contender.name].append(seconds)
    return {name: tuple(times) for name, times in samples.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One number, as a ratio to its floor where it has one.

    ``target`` bounds the ratio, or the value where there is no floor: from above, or from below
    with ``at_least``.
    """

    case: str
    what: str
    unit: Unit
    value: float
    floor: float | None = None
    target: float | None = None
    at_least: bool = False
    samples: Sequence[float] = ()
    floor_samples: Sequence[float] = ()
    detail: Mapping[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return None if self.floor is None else self.value / self.floor

    @property
    def missed_by(self) -> float | None:
        """By what part of the target it is missed; 0 where it is met, ``None`` where there is none."""
        if self.target is None:
            return None
        judged = self.value if self.ratio is None else self.ratio
        excess = 1 - judged / self.target if self.at_least else judged / self.target - 1
        return max(0.0, excess)

    @property
    def verdict(self) -> str:
        if self.missed_by is None:
            return ""
        return f"missed by {self.missed_by:.0%}" if self.missed_by else "met"

    def cells(self) -> tuple[str, ...]:
        bound = "" if self.target is None else f"{'>=' if self.at_least else '<='}{self.target:g}"
        return (
            self.case,
            self.what,
            _shown(self.value, self.unit),
            "" if self.floor is None else _shown(self.floor, self.unit),
            "" if self.ratio is None else f"{self.ratio:.2f}x",
            bound,
            self.verdict,
        )

    def as_json(self) -> dict[str, object]:
        return {
            "case": self.case,
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "floor": self.floor,
            "ratio": self.ratio,
            "target": self.target,
            "at_least": self.at_least,
            "missed_by": self.missed_by,
            "samples": list(self.samples),
            "floor_samples": list(self.floor_samples),
            "detail": dict(self.detail),
        }


class Report:
    """Collects lines and wrong answers, and prints each line as it comes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.lines: list[Line] = []
        self.problems: list[str] = []

    def add(self, line: Line) -> None:
        if not self.lines:
            self._row(_HEADINGS)
        self.lines.append(line)
        self._row(line.cells())

    def timed(
        self,
        case: str,
        what: str,
        samples: Sequence[float],
        floor_samples: Sequence[float] = (),
        *,
        target: float | None = None,
        at_least: bool = False,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """Add a line of medians of seconds."""
        self.add(
            Line(
                case=case,
                what=what,
                unit="s",
                value=statistics.median(samples),
                floor=statistics.median(floor_samples) if floor_samples else None,
                target=target,
                at_least=at_least,
                samples=samples,
                floor_samples=floor_samples,
                detail=detail or {},
            )
        )

    def value(
        self,
        case: str,
        what: str,
        unit: Unit,
        value: float,
        floor: float | None = None,
        *,
        target: float | None = None,
        samples: Sequence[float] = (),
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """Add a line of a number that was counted, or timed once."""
        self.add(
            Line(case=case, what=what, unit=unit, value=value, floor=floor, target=target, samples=samples,
                 detail=detail or {})
        )  # fmt: skip

    def check(self, what: str, problems: Sequence[str]) -> None:
        """Note how an answer differs from the expected one; nothing if it does not."""
        self.problems += [f"{what}: {problem}" for problem in problems]

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Print what missed its target and what was wrong."""
        missed = [line for line in self.lines if line.missed_by]
        judged = sum(line.target is not None for line in self.lines)
        self.say(f"{judged - len(missed)} of {judged} targets met")
        for line in missed:
            judged_value = line.cells()[2] if line.ratio is None else f"{line.ratio:.2f}x"
            self.say(f"MISSED {line.case}: {line.what}: {judged_value}, target {line.cells()[5]}, {line.verdict}")
        for problem in self.problems:
            self.say(f"WRONG {problem}")

    def _row(self, cells: Sequence[str]) -> None:
        padded = [
            f"{cell:<{width}}" if index in (0, 1) else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
        ]
        self.say(" ".join(padded).rstrip())


def with_lines(body: Mapping[str, object], name: str, items: Iterable[str]) -> str:
    """JSON of ``body`` whose last entry is a list of items, which are JSON, each on a line of its own."""
    lines = ",\n".join(items)
    return f"{json.dumps({**body, name: []}, default=str)[:-2]}\n{lines}\n]}}"


def files_below(folder: Path) -> dict[str, int]:
    """Sizes by path of the files below ``folder``, without the checksum files of Spark's local file system."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".crc"
    }


def size_of(folder: Path) -> int:
    return sum(files_below(folder).values())


def usable_cores() -> int:
    """Those that this process may run on: fewer than the machine has, where ``taskset`` or a container says so."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e6:,.3f} MB"
    if unit == "ms":
        return f"{value:,.2f} ms"
    return f"{value:,.3f} s" if unit == "s" else f"{value:,.0f}"
