"""Plots as SVG texts, without any script: bars, points over time, stacked areas over time.

Colours are from the page's style sheet, by class ``c0`` to ``c5``. Exact values are in the title of each mark, which
browsers show when the pointer rests on it.
"""

from __future__ import annotations

import datetime as dt
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lakemerge.results.display import html_text, readable_bytes

__all__ = ["Bar", "Mark", "areas", "bars", "legend", "marks", "short_labels"]

WIDTH: Final = 880
_LEFT: Final = 74
_RIGHT: Final = 16
_ROW: Final = 24
_HEIGHT: Final = 240
_TOP: Final = 14
_BOTTOM: Final = 30
_TICKS: Final = 5
_POWERS: Final = 5
"""How many powers of two lie between the lines of a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart. Its parts are drawn one after the other."""

    label: str
    parts: tuple[float, ...]
    note: str
    """The text after the bar."""
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in time with a size."""

    at_ms: int
    size: float
    series: int
    title: str


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars, in the order given."""
    labels = short_labels([row.label for row in rows])
    widest = max(map(_width, labels), default=0)
    left, right = 16 + math.ceil(widest * _LETTER), 150
    most = max((sum(row.parts) for row in rows), default=0) or 1
    height = _ROW * len(rows) + 6
    out = [_open(height)]
    for place, row in enumerate(rows):
        y = place * _ROW + 4
        x = float(left)
        out.append(
            f'<text x="{left - 8}" y="{y + 13}" class="label" text-anchor="end">{html_text(labels[place])}</text>'
        )
        out.append(f"<g><title>{html_text(row.title)}</title>")
        for series, part in enumerate(row.parts):
            width = part / most * (WIDTH - left - right)
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0):.1f}" height="16" rx="2" class="c{series}"/>')
            x += width
        out.append(f'</g><text x="{x + 8:.1f}" y="{y + 13}" class="note">{html_text(row.note)}</text>')
    return "".join([*out, "</svg>"])


def marks(points: Sequence[Mark]) -> str:
    """Points over time, on a logarithmic scale of bytes, so that small commits show beside large ones."""
    if not points:
        return ""
    first, last = min(p.at_ms for p in points), max(p.at_ms for p in points)
    top = math.log2(max(1.0, *(p.size for p in points)) * 1.5)
    out = [_open(_HEIGHT), *_times(first, last)]
    out += [_grid(_y(power, top), readable_bytes(2.0**power)) for power in range(0, math.ceil(top), _POWERS)]
    for point in sorted(points, key=lambda p: -p.size):
        x, y = _x(point.at_ms, first, last), _y(math.log2(max(1.0, point.size)), top)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="c{point.series} dot">')
        out.append(f"<title>{html_text(point.title)}</title></circle>")
    return "".join([*out, "</svg>"])


def areas(times_ms: Sequence[int], series: Sequence[Sequence[float]]) -> str:
    """Sizes over time in steps, one series upon the other."""
    if not times_ms:
        return ""
    first, last = times_ms[0], times_ms[-1]
    totals = [sum(values) for values in zip(*series, strict=True)]
    step = _round_step((max(totals) or 1) / _TICKS)
    top = step * (max(totals) // step + 1)
    out = [_open(_HEIGHT), *_times(first, last)]
    out += [_grid(_y(step * tick, top), readable_bytes(step * tick)) for tick in range(int(top / step) + 1)]
    below = [0.0] * len(times_ms)
    for number, values in enumerate(series):
        above = [low + value for low, value in zip(below, values, strict=True)]
        up = _steps(times_ms, above, top)
        down = list(reversed(_steps(times_ms, below, top)))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*up, *down])
        out.append(f'<polygon points="{path}" class="c{number} area"/>')
        below = above
    return "".join([*out, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """What the colours stand for."""
    entries = "".join(
        f'<span><svg width="12" height="12"><rect width="12" height="12" rx="2" class="c{number}"/></svg> '
        f"{html_text(name)}</span>"
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{entries}</p>'


def _round_step(least: float) -> float:
    """The next round number of bytes: 1, 2, 5, 10, ... of a unit."""
    unit = 1024.0 ** int(math.log(max(1.0, least), 1024))
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1024)
    return next(unit * step for step in steps if unit * step >= least)


def _open(height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" xmlns="http://www.w3.org/2000/svg">'


def _x(at_ms: int, first: int, last: int) -> float:
    span = max(1, last - first)
    return _LEFT + (at_ms - first) / span * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / (top or 1) * (_HEIGHT - _TOP - _BOTTOM)


def _grid(y: float, text: str) -> str:
    line = f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
    return f'{line}<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="tick" text-anchor="end">{html_text(text)}</text>'


def _times(first: int, last: int) -> list[str]:
    """The ticks of the time axis."""
    form = "%Y-%m-%d" if last - first > 3 * 86_400_000 else "%m-%d %H:%M" if last - first > 7_200_000 else "%H:%M:%S"
    out = []
    count = 4 if last > first else 0
    for tick in range(count + 1):
        at = first + (last - first) * tick // max(1, count)
        anchor = "start" if tick == 0 else "end" if tick == count else "middle"
        text = f"{dt.datetime.fromtimestamp(at / 1000, dt.UTC):{form}}"
        x = _x(at, first, last)
        out.append(f'<text x="{x:.1f}" y="{_HEIGHT - 10}" class="tick" text-anchor="{anchor}">{text}</text>')
    return out


def _steps(times_ms: Sequence[int], values: Sequence[float], top: float) -> list[tuple[float, float]]:
    first, last = times_ms[0], times_ms[-1]
    points: list[tuple[float, float]] = []
    for at, value in zip(times_ms, values, strict=True):
        x = _x(at, first, last)
        if points:
            points.append((x, points[-1][1]))
        points.append((x, _y(value, top)))
    if len(times_ms) == 1:
        points.append((float(WIDTH - _RIGHT), points[-1][1]))
    return points


def short_labels(labels: Sequence[str]) -> list[str]:
    """The labels, cut in the middle if they are long: what tells the bars of one partition apart stands at the end.
    Labels that would then look alike have their numbers."""
    short = [_short(label) for label in labels]
    alike = {text for text in short if short.count(text) > 1}
    return [f"{text} #{place}" if text in alike else text for place, text in enumerate(short, start=1)]


def _short(text: str) -> str:
    if _width(text) <= _LONGEST:
        return text
    first, last = _LONGEST // 2, _LONGEST - _LONGEST // 2 - 1
    while _width(text[:first]) + _width(text[-last:]) >= _LONGEST:
        first, last = first - 1, last - 1
    return f"{text[:first]}\u2026{text[-last:]}"


def _width(text: str) -> int:
    """In letters of usual width. Some scripts have letters that are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


_LONGEST: Final = 40
_LETTER: Final = 7.0
"""Pixels of a letter, at most on average."""
