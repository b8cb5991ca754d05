"""All results of a comparison: as JSON, and as Markdown tables with ratios to each engine's own floor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.results import CaseResult, Row
from benchmarks.compare.workload import Parameters
from benchmarks.measure import with_lines

__all__ = ["Comparison", "markdown"]

_TITLES = {
    "history": "One history: load, six commits of 1 %, queries, compaction, queries, one commit of 10 %",
    "sizes": "Commits of one size into tables of three sizes",
    "merge": "A merge of 1 % of the rows, as a transaction",
    "longevity": "Many commits without a compaction",
    "wide": "Updates of 3 of 100 columns",
    "mixes": "Days of commits, queries and maintenance: totals for 0.1, 1, 10 and 100 queries for each commit",
}
_SUMMARY = (
    *(("history", step, "s") for step in ("load", "small commit", "large commit")),
    ("history", "small commit", "bytes"),
    *(
        ("history", f"{state}: {query}", "s")
        for state in ("dirty", "clean")
        for query in ("full scan", "two-column aggregate", "count", "filter on one week", "key look-up")
    ),
    ("history", "compaction", "s"),
    ("merge", "merge", "s"),
    ("wide", "partial update", "s"),
)
"""What the first table shows: case, step and unit."""
_MOST_PLACES = 4
_FAILED, _GIVEN_UP = "failed", "too slow"
_UNITS = {"bytes": "bytes written", "objects": "objects written"}
_Key = tuple[str, Literal["s", "bytes", "objects", "rate"], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The results of all engines, in their order, with what they depend on."""

    name: str
    """What the names of its files begin with."""
    date: str
    parameters: Parameters
    rows: int
    machine: Mapping[str, object]
    results: Sequence[CaseResult]

    @property
    def engines(self) -> Sequence[str]:
        return list(dict.fromkeys(result.engine for result in self.results))

    @property
    def problems(self) -> Sequence[str]:
        """Every wrong answer."""
        return [
            f"{result.engine}, {result.case}, {_label(row)}: {problem}"
            for result in self.results
            for row in result.rows
            if row.unit == "s"
            for problem in row.problems
        ]

    @property
    def failures(self) -> Sequence[str]:
        return [f"{result.engine}, {result.case}: {result.failure}" for result in self.results if result.failure]

    def of(self, case: str) -> dict[str, CaseResult]:
        """The results of one case by engine."""
        return {result.engine: result for result in self.results if result.case == case}

    def write(self, path: Path) -> None:
        body = {
            "date": self.date,
            "parameters": {
                "scale": self.parameters.scale,
                "commits": self.parameters.commits,
                "rounds": self.parameters.rounds,
                "seed": self.parameters.seed,
            },
            "rows": self.rows,
            "machine": dict(self.machine),
        }
        path.write_text(with_lines(body, "results", map(CaseResult.text, self.results)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Comparison:
        """What :meth:`write` wrote there. The file has the comparison's name."""
        body = json.loads(path.read_text())
        return cls(
            name=path.stem,
            date=body["date"],
            parameters=Parameters(**body["parameters"]),
            rows=body["rows"],
            machine=body["machine"],
            results=[CaseResult.of_json(result) for result in body["results"]],
        )


def markdown(comparison: Comparison) -> str:
    """One table per case and kind of engine. A cell has the ratio to the engine's own floor and the value; what an
    engine cannot do is explained below the tables."""
    parameters = comparison.parameters
    about = f"TPC-H scale {parameters.scale:g} ({comparison.rows:,} line items), {comparison.machine['cores']} cores"
    how = f"Ratios are to plain Parquet in the same session, medians of {parameters.rounds} runs; smaller is better."
    lines = [f"{about}, {comparison.date}. {how}", ""]
    reasons: dict[str, None] = {}
    summary = _summary(comparison)
    lines += ["### In short", "", *_ruled(summary), ""] if len(summary) > 1 else []
    for case, title in _TITLES.items():
        for spark in (True, False):
            found = {engine: result for engine, result in comparison.of(case).items() if ENGINES[engine].spark is spark}
            if found:
                lines += [f"### {title}{'' if spark else ', without Spark'}", "", *_table(found, reasons), ""]
    lines += [f"- {reason}" for reason in reasons]
    return "\n".join(lines).rstrip() + "\n"


def _summary(comparison: Comparison) -> Sequence[Sequence[str]]:
    """The ratios alone, all engines side by side, below a heading."""
    table = [["", *(ENGINES[engine].title for engine in comparison.engines)]]
    for case, step, unit in _SUMMARY:
        found = comparison.of(case)
        cells = []
        for engine in comparison.engines:
            rows = [row for row in found[engine].rows if row.step == step] if engine in found else []
            row = next((row for row in rows if row.unit == unit or row.cannot), None)
            ratio = f"{row.ratio:.2f}x" if row is not None and row.ratio is not None else ""
            cells.append((_lost(found[engine]) if engine in found else "") or ratio or _word(row))
        if set(cells) - {"", _FAILED, _GIVEN_UP}:
            table.append([f"{step}: {_UNITS[unit]}" if unit in _UNITS else step, *cells])
    return table


def _lost(result: CaseResult) -> str:
    """What stands in place of all its numbers; empty where it has some."""
    return _FAILED if result.failure else _GIVEN_UP if result.given_up else ""


def _word(row: Row | None) -> str:
    """What stands in place of a number; empty where there is one, or nothing at all."""
    if row is None:
        return ""
    return "cannot" if row.cannot else "wrong answer" if row.is_void else ""


def _ruled(table: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in table[0][1:])]
    return [f"| {' | '.join(row)} |" for row in (table[0], rule, *table[1:])]


def _table(found: Mapping[str, CaseResult], reasons: dict[str, None]) -> list[str]:
    by_engine = {engine: {(row.step, row.unit, row.at): row for row in result.rows} for engine, result in found.items()}
    # What an engine cannot do has a row of its own among those of the others.
    keys = _ends(list(dict.fromkeys(key for rows in by_engine.values() for key in rows if not _is_detail(key))))
    table = [["", *(ENGINES[engine].title for engine in found)]]
    for key in keys:
        label = next(_label(rows[key]) for rows in by_engine.values() if key in rows)
        cells = [_cell(engine, found[engine], by_engine[engine].get(key), key[0], reasons) for engine in found]
        table.append([label, *cells])
    peaks = [_bytes(result.peak_memory_bytes) if result.peak_memory_bytes else "" for result in found.values()]
    table.append(["peak memory", *peaks])
    for part in dict.fromkeys(part for result in found.values() for part in result.peak_memory_parts):
        held = [result.peak_memory_parts.get(part) for result in found.values()]
        if any(held):
            table.append([f"peak memory: {part}", *(_bytes(value) if value else "" for value in held)])
    return _ruled(table)


def _is_detail(key: _Key) -> bool:
    """Whether a row only explains the totals of a mix. There are many such rows, and the JSON has them."""
    return key[0].endswith((", first", ", again"))


def _ends(keys: Sequence[_Key]) -> Sequence[_Key]:
    """The first and the last place of each step that has many on an axis. The others are only plotted."""
    places: dict[tuple[str, str], list[float]] = {}
    for step, unit, at in keys:
        if at is not None:
            places.setdefault((step, unit), []).append(at)
    dropped = {(*step, at) for step, found in places.items() if len(found) > _MOST_PLACES for at in found[1:-1]}
    return [key for key in keys if key not in dropped]


def _cell(engine: str, result: CaseResult, row: Row | None, step: str, reasons: dict[str, None]) -> str:
    title = ENGINES[engine].title
    if result.given_up:
        reasons[f"{title}, {result.case}: {result.given_up}"] = None
    if lost := _lost(result):
        return lost
    impossible = [other for other in result.rows if other.cannot]
    for other in impossible:
        reasons[f"{title}, {other.step}: {other.cannot}"] = None
    if row is None or row.cannot:
        return "cannot" if any(other.step == step for other in impossible) else ""
    if row.value is None:
        return "wrong answer" if row.is_void else ""
    shown = _shown(row)
    return shown if row.ratio is None else f"{row.ratio:.2f}x ({shown})"


def _label(row: Row) -> str:
    at = "" if row.at is None else f", at {row.at:,.0f}" if row.at >= 1 else f", at {row.at:g}"
    return f"{row.step}{at}" if row.unit in ("s", "rate") else f"{row.step}{at}: {_UNITS[row.unit]}"


def _shown(row: Row) -> str:
    value = row.value or 0.0
    match row.unit:
        case "s":
            return f"{value:,.2f} s"
        case "bytes":
            return _bytes(value)
        case "objects":
            return f"{value:,.0f}"
        case "rate":
            return f"{value:+.1%}"


def _bytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"
