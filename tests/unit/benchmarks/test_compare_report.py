"""How results of the comparison are shown: tables with ratios, void and impossible cells, and plots."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.plots import _LOOKS, draw, main
from benchmarks.compare.report import Comparison, markdown
from benchmarks.compare.results import CaseResult, Row
from benchmarks.compare.workload import Parameters

ROOT = Path(__file__).resolve().parents[3]


def comparison(*results: CaseResult) -> Comparison:
    parameters = Parameters(scale=0.1, commits=12, rounds=3, seed=7)
    return Comparison(
        name="some", date="2026-01-02", parameters=parameters, rows=600_572, machine={"cores": 2}, results=results
    )


def timed(step: str, seconds: float, floor: float | None = 0.5, at: float | None = None) -> Row:
    return Row(step=step, unit="s", samples=(seconds,), floor_samples=() if floor is None else (floor,), at=at)


def history(engine: str, *rows: Row) -> CaseResult:
    parts = {"driver": 500_000, "Java": 1_500_000, "workers": 0} if engine == "lakemerge" else {}
    return CaseResult(engine=engine, case="history", rows=rows, peak_memory_bytes=2_000_000, peak_memory_parts=parts)


def section(text: str, title: str) -> list[list[str]]:
    """The cells of the table under a heading, without the rule."""
    part = text.partition(f"### {title}")[2].partition("###")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def test_cells() -> None:
    wrong = Row(
        step="compaction", unit="s", samples=(9.0,), floor_samples=(1.0,), problems=("row count: 1, expected 2",)
    )
    written = Row(step="small commit", unit="bytes", samples=(3e6,), floor_samples=(2e6,))
    text = markdown(
        comparison(
            history("lakemerge", timed("load", 0.75), timed("small commit", 1.0), written, timed("compaction", 1.25)),
            history("delta", timed("load", 1.0), wrong, timed("only here", 2.0, floor=None)),
            history("iceberg", timed("load", 2.0), Row(step="compaction", unit="s", cannot="it has none")),
            CaseResult(engine="hudi", case="history", failure="exit status 1:\nboom"),
            CaseResult(engine="hudi-bucket", case="history", given_up="not done in 60 minutes"),
        )
    )
    assert "TPC-H scale 0.1 (600,572 line items), 2 cores, 2026-01-02." in text
    assert section(text, "One history") == [
        ["", "LakeMerge", "Delta", "Iceberg", "Hudi, default index", "Hudi, bucket index"],
        ["load", "1.50x (0.75 s)", "2.00x (1.00 s)", "4.00x (2.00 s)", "failed", "too slow"],
        ["small commit", "2.00x (1.00 s)", "", "", "failed", "too slow"],
        ["small commit: bytes written", "1.50x (3.0 MB)", "", "", "failed", "too slow"],
        ["compaction", "2.50x (1.25 s)", "wrong answer", "cannot", "failed", "too slow"],
        ["only here", "", "2.00 s", "", "failed", "too slow"],
        ["peak memory", "2.0 MB", "2.0 MB", "2.0 MB", "", ""],
        ["peak memory: driver", "0.5 MB", "", "", "", ""],
        ["peak memory: Java", "1.5 MB", "", "", "", ""],
    ]
    assert section(text, "In short")[:4] == [
        ["", "LakeMerge", "Delta", "Iceberg", "Hudi, default index", "Hudi, bucket index"],
        ["load", "1.50x", "2.00x", "4.00x", "failed", "too slow"],
        ["small commit", "2.00x", "", "", "failed", "too slow"],
        ["small commit: bytes written", "1.50x", "", "", "failed", "too slow"],
    ]
    assert section(text, "In short")[-1] == ["compaction", "2.50x", "wrong answer", "cannot", "failed", "too slow"]
    assert text.endswith(
        "\n- Iceberg, compaction: it has none\n- Hudi, bucket index, history: not done in 60 minutes\n"
    )


def test_json_holds_samples_configuration_and_machine(tmp_path: Path) -> None:
    result = CaseResult(
        engine="delta",
        case="history",
        rows=(Row(step="load", unit="s", samples=(3.0, 1.0, 2.0), floor_samples=(4.0, 1.0)),),
        configuration={"delta.enableDeletionVectors": "true"},
        versions={"spark": "4.2.0"},
    )
    comparison(result).write(tmp_path / "out.json")
    body = json.loads((tmp_path / "out.json").read_text())
    assert body["parameters"] == {"scale": 0.1, "commits": 12, "rounds": 3, "seed": 7}
    assert (body["rows"], body["machine"]) == (600_572, {"cores": 2})
    (found,) = body["results"]
    assert found["configuration"] == {"delta.enableDeletionVectors": "true"}
    assert found["versions"] == {"spark": "4.2.0"}
    assert found["rows"] == [{"step": "load", "unit": "s", "samples": [3.0, 1.0, 2.0], "floor_samples": [4.0, 1.0]}]
    assert len((tmp_path / "out.json").read_text().splitlines()) == 5  # one for each result and for each row


@pytest.fixture
def plotted() -> Comparison:
    results = []
    for engine, factor in (("lakemerge", 1.0), ("delta", 3.0), ("pypaimon", 9.0)):
        sizes = [
            Row(step="commit", unit=unit, samples=(factor * at,), floor_samples=(0.5 * at,), at=at)
            for at in (10.0, 30.0, 100.0)
            for unit in ("s", "bytes")
        ]
        pending = [timed("two-column aggregate", factor + at, at=at) for at in (0.0, 5.0, 10.0)]
        results += [
            history(engine, timed("compaction", factor)),
            CaseResult(engine=engine, case="sizes", rows=tuple(sizes)),
            CaseResult(engine=engine, case="longevity", rows=tuple(pending)),
        ]
    return comparison(*results)


def test_plots(plotted: Comparison, tmp_path: Path) -> None:
    files = draw(plotted, tmp_path)
    assert [path.name for path in files] == [
        f"some-{name}.svg" for name in ("commit-time", "commit-bytes", "pending", "compaction")
    ]
    for path in files:
        text = path.read_text()
        assert text.lstrip().startswith("<?xml")
        assert "LakeMerge" in text
        assert "Delta" in text
        assert "pypaimon" not in text  # it has another floor
        assert "plain Parquet" in text
    before = [path.read_bytes() for path in files]
    assert [path.read_bytes() for path in draw(plotted, tmp_path)] == before


@pytest.fixture
def day() -> Comparison:
    """Totals of a day, given with ours last."""
    results = []
    for engine, factor in (("delta", 3.0), ("iceberg", 2.0), ("lakemerge", 1.0)):
        steps = ("uniform: total", "uniform: total, by default") if engine == "lakemerge" else ("uniform: total",)
        rows = [timed(step, factor * (1 + at), at=at) for step in steps for at in (0.1, 1.0, 10.0, 100.0)]
        results.append(CaseResult(engine=engine, case="mixes", rows=tuple(rows)))
    return comparison(*results)


def test_labels_of_plots_are_plain_numbers(plotted: Comparison, day: Comparison, tmp_path: Path) -> None:
    (picture,) = draw(day, tmp_path)
    texts = re.findall(r">([^<>]+)</text>", picture.read_text())
    assert texts[:4] == ["0.1", "1", "10", "100"]
    assert "1,000" not in texts  # no label stands far beyond what was measured
    for path in [picture, *draw(plotted, tmp_path)]:
        text = path.read_text()
        assert "10^" not in text
        assert "tspan" not in text  # which powers of ten are set in
        assert "\u00d7" not in text


def test_our_line_is_the_first_and_the_widest(day: Comparison, tmp_path: Path) -> None:
    (picture,) = draw(day, tmp_path)
    text = picture.read_text()
    legend = [entry for entry in re.findall(r">([^<>]+)</text>", text) if entry[0].isalpha()][-5:]
    assert legend == ["LakeMerge", "LakeMerge, default", "Delta", "Iceberg", "plain Parquet"]
    lines = re.findall(r'<g id="line2d_\d+">\s*<path d="[^"]*" clip-path[^>]*style="([^"]*)"', text)
    widths: dict[str, float] = {}
    for style in lines:
        colour, width = re.findall(r"stroke: (#\w+)", style)[0], re.findall(r"stroke-width: ([\d.]+)", style)[0]
        widths[colour] = max(float(width), widths.get(colour, 0.0))
    ours = widths.pop(_LOOKS["lakemerge"].colour)
    assert len(widths) > 2
    assert ours >= 2 * max(widths.values())


def test_every_colour_has_a_twin_for_dark_screens(plotted: Comparison, day: Comparison, tmp_path: Path) -> None:
    """The ground too. A text or a line has a contrast of at least 3 to it, light or dark (WCAG's for large text)."""
    for path in [*draw(plotted, tmp_path), *draw(day, tmp_path)]:
        text = path.read_text()
        sheet = text[text.index("<style>@media (prefers-color-scheme: dark)") : text.index("</style>")]
        twins = dict(re.findall(r'\[style\*="fill: (#\w+)"\] { fill: (#\w+) !important; }', sheet))
        drawn = set(re.findall(r"(?:fill|stroke): (#\w+)", text.replace(sheet, "")))
        assert drawn <= twins.keys()
        assert "<text" in text
        grounds = {"#fffffe": "#161b22", "#dde3ea": "#343d48"}  # and the grid, which is to be faint
        assert grounds.items() <= twins.items()
        for light, dark in twins.items():
            if light not in grounds:
                assert contrast(light, "#fffffe") >= 3, light
                assert contrast(dark, "#161b22") >= 3, dark


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_engine_on_spark_has_a_look() -> None:
    assert _LOOKS.keys() == {name for name, entry in ENGINES.items() if entry.spark}


def test_published_results_are_read_as_they_were_written(plotted: Comparison, tmp_path: Path) -> None:
    """And their plots drawn again beside them."""
    plotted.write(tmp_path / "some.json")
    found = Comparison.read(tmp_path / "some.json")
    assert dataclasses.replace(found, results=tuple(found.results)) == dataclasses.replace(
        plotted, results=tuple(plotted.results)
    )
    assert main([str(tmp_path / "some.json")]) == 0
    assert len(list(tmp_path.glob("some-*.svg"))) == 4


def test_published_plots_are_those_of_published_results(tmp_path: Path) -> None:
    published = ROOT / "benchmarks" / "results"
    drawn = [path for results in published.glob("*.json") for path in draw(Comparison.read(results), tmp_path)]
    assert {path.name for path in drawn} == {path.name for path in published.glob("*.svg")}
    for path in drawn:
        assert path.read_text() == (published / path.name).read_text(), path.name
