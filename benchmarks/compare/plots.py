"""Plots of a comparison as SVG files, for engines on Spark with their floors: the cost of commits as the table grows,
the cost of queries over pending commits, the total of a day, and the cost of compaction.

    python -m benchmarks.compare.plots benchmarks/results/2026-11-30-mixes.json

draws the plots of published results again, beside them.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.report import Comparison
from benchmarks.compare.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "main"]


@dataclass(frozen=True, slots=True)
class _Look:
    """How the rows of an engine are drawn. A colour has a twin for dark screens."""

    colour: str
    dark: str
    width: float = 1.6
    marker: str = "o"

    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linewidth": self.width, "marker": self.marker, "markersize": 3 + self.width}


_OURS: Final = _Look("#0b5cd5", "#70b5ff", width=3.4)
_OURS_INLINE: Final = _Look("#4f8fe6", "#a9d1ff", width=2.4, marker="D")
_LOOKS: Final[Mapping[str, _Look]] = {
    "lakemerge": _OURS,
    "lakemerge-4.1": _OURS,
    "lakemerge-inline": _OURS_INLINE,
    "lakemerge-inline-4.1": _OURS_INLINE,
    "delta": _Look("#bf4f17", "#f2a071", marker="^"),
    "iceberg": _Look("#2c8764", "#74cfa9", marker="s"),
    "hudi-bucket": _Look("#96479b", "#d596da", marker="v"),
    "hudi": _Look("#8f7a1f", "#d8c25c", marker="P"),
}
"""Ours first, so that its line is on top and its entry the first of a legend."""
_INK, _INK_DARK = "#1d2733", "#e7ecf2"
_PAPER, _PAPER_DARK = "#fffffe", "#161b22"
_GRID, _GRID_DARK = "#dde3ea", "#343d48"
_FLOOR: Final = "plain Parquet"
_FLOOR_LOOK: Final = _Look("#5a6573", "#aab4c1")
_FLOOR_LINE: Final[Mapping[str, Any]] = {"color": _FLOOR_LOOK.colour, "linestyle": "--", "linewidth": 1.6}
_TWINS: Final = {
    _INK: _INK_DARK,
    _PAPER: _PAPER_DARK,
    _GRID: _GRID_DARK,
    **{look.colour: look.dark for look in (*_LOOKS.values(), _FLOOR_LOOK)},
}
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "lakemerge",  # the same numbers give the same file
    "svg.fonttype": "none",  # text stays text
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "text.color": _INK,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
}
_MILLION: Final = 1e6


def main(paths: Sequence[str]) -> int:
    """Draw the plots of results again. The exit status is 0."""
    for path in map(Path, paths):
        draw(Comparison.read(path), path.parent)
    return 0


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the plots for which there are results. Returns the files. Their names begin with the comparison's name."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    made = []
    with mpl.rc_context(_SETTINGS):
        for name, (title, x_label, y_label, plot) in _PLOTS.items():
            figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
            if plot(comparison, axes):
                if axes.get_legend_handles_labels()[0]:
                    figure.legend(*_ours_first(axes), loc="outside lower center", ncols=3)
                axes.set(title=title, xlabel=x_label, ylabel=y_label)
                made.append(folder / f"{comparison.name}-{name}.svg")
                figure.savefig(made[-1], metadata={"Date": None})
                made[-1].write_text(_with_dark_colours(made[-1].read_text()))
            plt.close(figure)
    return made


def _with_dark_colours(svg: str) -> str:
    """With a style sheet that puts each colour's twin in its place on a dark screen. The ground is a colour of the
    picture, too, so that it can be read on any page."""
    rules = "".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important; }}\n'
        for light, dark in _TWINS.items()
        for kind in ("fill", "stroke")
    )
    sheet = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n"
    plain = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    return plain.replace(" <defs>\n", f"{sheet} <defs>\n", 1)


def _growth(unit: str) -> Callable[[Comparison, Axes], bool]:
    def plot(comparison: Comparison, axes: Axes) -> bool:
        drawn = _lines(comparison, axes, "sizes", "commit", unit, across=_MILLION, up=_scale(unit))
        _plain_logarithms(axes)
        return drawn

    return plot


def _pending(comparison: Comparison, axes: Axes) -> bool:
    drawn = _lines(comparison, axes, "longevity", "two-column aggregate", "s")
    axes.set_ylim(bottom=0)
    return drawn


def _lines(
    comparison: Comparison, axes: Axes, case: str, step: str, unit: str, *, across: float = 1, up: float = 1
) -> bool:
    """A line for each engine that has such rows, ours first, and one for the median of their floors.

    :param across: what one is on the horizontal axis.
    :param up: what one is on the vertical axis.
    """
    floors: dict[float, list[float]] = {}
    for place, (engine, rows) in enumerate(_rows(comparison, case, step, unit).items()):
        points = [(row.at / across, row.value / up) for row in rows if row.at is not None and row.value is not None]
        if points:
            axes.plot(
                *zip(*points, strict=True), label=ENGINES[engine].title, zorder=9 - place, **_LOOKS[engine].line()
            )
        for row in rows:
            if row.at is not None and row.floor is not None:
                floors.setdefault(row.at / across, []).append(row.floor / up)
    if floors:
        middle = {at: statistics.median(values) for at, values in sorted(floors.items())}
        axes.plot(list(middle), list(middle.values()), label=_FLOOR, **_FLOOR_LINE)
    return bool(floors)


def _mix(stream: str) -> Callable[[Comparison, Axes], bool]:
    def plot(comparison: Comparison, axes: Axes) -> bool:
        drawn = _lines(comparison, axes, "mixes", f"{stream}: total", "s")
        for engine, rows in _rows(comparison, "mixes", f"{stream}: total, by default", "s").items():
            points = [(row.at, row.value) for row in rows if row.value is not None]
            look = {**_LOOKS[engine].line(), "linestyle": ":", "linewidth": 2.0}
            axes.plot(*zip(*points, strict=True), label=f"{ENGINES[engine].title}, default", zorder=5, **look)
        _plain_logarithms(axes)
        return drawn

    return plot


def _ours_first(axes: Axes) -> tuple[list[Any], list[str]]:
    """The entries of a legend."""
    entries = zip(*axes.get_legend_handles_labels(), strict=True)
    ordered = sorted(entries, key=lambda entry: not entry[1].startswith("LakeMerge"))
    return [handle for handle, _ in ordered], [label for _, label in ordered]


def _plain_logarithms(axes: Axes) -> None:
    """Logarithmic scales with numbers that can be read: 0.1, 1, 10, 100; across, those that were measured."""
    import numpy as np
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set(xscale="log", yscale="log")
    measured = sorted({at for line in axes.lines for at in np.asarray(line.get_xdata(), dtype=float).tolist()})
    axes.xaxis.set_major_locator(FixedLocator(measured))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > _WIDE else (1.0, 2.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))


_WIDE: Final = 3000
"""From this ratio of the ends of a scale on, only powers of ten have labels."""


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _scale(unit: str) -> float:
    return _MILLION if unit == "bytes" else 1


def _compaction(comparison: Comparison, axes: Axes) -> bool:
    """A bar for each engine, ours first, with its own floor across it."""
    found = {
        engine: rows[0] for engine, rows in _rows(comparison, "history", "compaction", "s").items() if rows[0].value
    }
    for place, (engine, row) in enumerate(found.items()):
        seconds = row.value or 0.0
        axes.bar(place, seconds, width=0.6, color=_LOOKS[engine].colour)
        axes.annotate(
            f"{seconds:.2f}",
            (place, seconds),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            bbox={"facecolor": _PAPER, "edgecolor": "none", "pad": 1},
            zorder=5,
        )
        if row.floor is not None:
            axes.hlines(row.floor, place - 0.4, place + 0.4, colors=_INK, linestyles="--")
    titles = [ENGINES[engine].title.replace(", ", ",\n") for engine in found]
    axes.set_xticks(range(len(found)), titles)
    axes.grid(visible=False, axis="x")
    return bool(found)


def _rows(comparison: Comparison, case: str, step: str, unit: str) -> dict[str, Sequence[Row]]:
    """By engine, ours first."""
    results = comparison.of(case)
    found = {
        engine: [row for row in results[engine].rows if row.step == step and row.unit == unit and not row.cannot]
        for engine in _LOOKS
        if engine in results
    }
    return {engine: rows for engine, rows in found.items() if rows}


_PLOTS: Mapping[str, tuple[str, str, str, Callable[[Comparison, Axes], bool]]] = {
    "commit-time": ("Time of a commit as the table grows", "rows of the table, in millions", "seconds", _growth("s")),
    "commit-bytes": (
        "Bytes of a commit as the table grows",
        "rows of the table, in millions",
        "MB written",
        _growth("bytes"),
    ),
    "pending": ("Two-column aggregate over pending commits", "pending commits of 1 %", "seconds", _pending),
    **{
        f"mix-{stream.partition(' ')[0]}": (
            f"A day of commits, queries and maintenance: {stream}",
            "queries for each commit",
            "seconds in total (less is better)",
            _mix(stream),
        )
        for stream in ("uniform", "recent keys", "partial updates")
    },
    "compaction": ("Compaction of six commits", "dashed: plain Parquet read and written", "seconds", _compaction),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
