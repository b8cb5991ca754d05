"""How results of the comparison are shown: tables with ratios, void and impossible cells, and plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.compare.plots import draw
from benchmarks.compare.report import Comparison, markdown
from benchmarks.compare.results import CaseResult, Row
from benchmarks.compare.workload import Parameters


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


def test_engines_without_spark_have_tables_of_their_own() -> None:
    text = markdown(comparison(history("lakemerge", timed("load", 1.0)), history("pypaimon", timed("load", 4.0))))
    title = "One history: load, six commits of 1 %, queries, compaction, queries, one commit of 10 %"
    assert section(text, f"{title}\n")[0] == ["", "LakeMerge"]
    assert section(text, f"{title}, without Spark")[:2] == [["", "pypaimon"], ["load", "8.00x (4.00 s)"]]


def test_of_many_places_the_ends_are_shown() -> None:
    rows = [timed("commit", number / 10, at=number) for number in range(1, 13)]
    rate = Row(step="degradation of commits", unit="rate", samples=(0.125,))
    text = markdown(comparison(CaseResult(engine="delta", case="longevity", rows=(*rows, rate))))
    labels = [row[0] for row in section(text, "Many commits")]
    assert "In short" not in text  # it has nothing of this case
    assert labels == ["", "commit, at 1", "commit, at 12", "degradation of commits", "peak memory"]
    assert section(text, "Many commits")[3] == ["degradation of commits", "+12.5%"]
    three = [timed("commit", 1.0, at=number) for number in (1, 2, 3)]
    text = markdown(comparison(CaseResult(engine="delta", case="sizes", rows=tuple(three))))
    assert len(section(text, "Commits of one size")) == 5


def test_problems_and_failures_are_named() -> None:
    wrong = Row(step="commit", unit="s", at=7.0, samples=(1.0,), problems=("row count: 1, expected 2",))
    failed = CaseResult(engine="hudi", case="wide", failure="exit status 1:\nboom")
    made = comparison(CaseResult(engine="delta", case="sizes", rows=(wrong,)), failed)
    assert made.problems == ["delta, sizes, commit, at 7: row count: 1, expected 2"]
    assert made.failures == ["hudi, wide: exit status 1:\nboom"]


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
    (row,) = found["rows"]
    assert (row["samples"], row["floor_samples"]) == ([3.0, 1.0, 2.0], [4.0, 1.0])
    assert (row["value"], row["floor"], row["ratio"], row["void"]) == (2.0, 2.5, 0.8, False)


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


def test_there_is_no_plot_of_nothing(tmp_path: Path) -> None:
    void = Row(step="compaction", unit="s", samples=(1.0,), floor_samples=(1.0,), problems=("row count",))
    assert draw(comparison(history("lakemerge", void)), tmp_path) == []
    assert draw(comparison(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
