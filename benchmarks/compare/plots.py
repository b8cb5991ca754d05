"""Plots of a comparison as SVG files, for engines on Spark with their floors: the cost of commits as the table grows,
the cost of queries over pending commits, the total of a day, and the cost of compaction."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.report import Comparison
from benchmarks.compare.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_FLOOR = "plain Parquet"
_FLOOR_STYLE: Mapping[str, Any] = {"color": "black", "linestyle": "--"}


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the plots for which there are results. Returns the files. Their names begin with the comparison's name."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "lakemerge"  # the same numbers give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot as plt

    made = []
    for name, (title, x_label, y_label, plot) in _PLOTS.items():
        figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
        if plot(comparison, axes):
            axes.set(title=title, xlabel=x_label, ylabel=y_label)
            made.append(folder / f"{comparison.name}-{name}.svg")
            figure.savefig(made[-1], metadata={"Date": None})
        plt.close(figure)
    return made


def _growth(unit: str) -> Callable[[Comparison, Axes], bool]:
    def plot(comparison: Comparison, axes: Axes) -> bool:
        drawn = _lines(comparison, axes, "sizes", "commit", unit)
        axes.set(xscale="log", yscale="log")
        return drawn

    return plot


def _pending(comparison: Comparison, axes: Axes) -> bool:
    drawn = _lines(comparison, axes, "longevity", "two-column aggregate", "s")
    axes.set_ylim(bottom=0)
    return drawn


def _lines(comparison: Comparison, axes: Axes, case: str, step: str, unit: str) -> bool:
    """A line for each engine that has such rows, and one for the median of their floors."""
    floors: dict[float, list[float]] = {}
    for engine, rows in _rows(comparison, case, step, unit).items():
        points = [(row.at, row.value) for row in rows if row.at is not None and row.value is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=ENGINES[engine].title)
        for row in rows:
            if row.at is not None and row.floor is not None:
                floors.setdefault(row.at, []).append(row.floor)
    if floors:
        middle = {at: statistics.median(values) for at, values in sorted(floors.items())}
        axes.plot(list(middle), list(middle.values()), label=_FLOOR, **_FLOOR_STYLE)
        axes.legend()
    return bool(floors)


def _mix(stream: str) -> Callable[[Comparison, Axes], bool]:
    def plot(comparison: Comparison, axes: Axes) -> bool:
        for engine, rows in _rows(comparison, "mixes", f"{stream}: total, by default", "s").items():
            points = [(row.at, row.value) for row in rows if row.value is not None]
            axes.plot(*zip(*points, strict=True), marker="s", linestyle=":", label=f"{ENGINES[engine].title}, default")
        drawn = _lines(comparison, axes, "mixes", f"{stream}: total", "s")
        axes.set(xscale="log", yscale="log")
        return drawn

    return plot


def _compaction(comparison: Comparison, axes: Axes) -> bool:
    """A bar for each engine, with its own floor across it."""
    found = {
        engine: rows[0] for engine, rows in _rows(comparison, "history", "compaction", "s").items() if rows[0].value
    }
    for place, (engine, row) in enumerate(found.items()):
        axes.bar(place, row.value or 0.0, width=0.6, label=ENGINES[engine].title)
        if row.floor is not None:
            axes.hlines(row.floor, place - 0.4, place + 0.4, colors="black", linestyles="--")
    axes.set_xticks(range(len(found)), [ENGINES[engine].title for engine in found])
    return bool(found)


def _rows(comparison: Comparison, case: str, step: str, unit: str) -> dict[str, Sequence[Row]]:
    found = {
        engine: [row for row in result.rows if row.step == step and row.unit == unit and not row.cannot]
        for engine, result in comparison.of(case).items()
        if ENGINES[engine].spark
    }
    return {engine: rows for engine, rows in found.items() if rows}


_PLOTS: Mapping[str, tuple[str, str, str, Callable[[Comparison, Axes], bool]]] = {
    "commit-time": ("Time of a commit as the table grows", "rows of the table", "seconds", _growth("s")),
    "commit-bytes": ("Bytes of a commit as the table grows", "rows of the table", "bytes written", _growth("bytes")),
    "pending": ("Two-column aggregate over pending commits", "pending commits of 1 %", "seconds", _pending),
    **{
        f"mix-{stream.partition(' ')[0]}": (
            f"A day of commits, queries and maintenance: {stream}",
            "queries for each commit",
            "seconds in total",
            _mix(stream),
        )
        for stream in ("uniform", "recent keys", "partial updates")
    },
    "compaction": ("Compaction of six commits (dashed: plain Parquet read and written)", "", "seconds", _compaction),
}
