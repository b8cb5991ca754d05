"""The report: one page that asks the network for nothing, in a real browser where there is one."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lakemerge import CompactionStrategy, LakeTable
from lakemerge.cli import main
from lakemerge.ingest import Files
from lakemerge.report import report_html
from lakemerge.report.facts import due, growth_of
from lakemerge.results.display import table_html
from tests.unit.faults import create, frame

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
NEEDS_BROWSER = "there is no Chromium on this machine: apt-get install chromium"
TITLES = [
    "State",
    "The row of k=7",
    "What maintenance would do now, and why",
    "Buckets by read amplification",
    "Commits and their sizes",
    "Growth",
    "Compactions and their reasons",
    "Ingest windows and failures",
    "Where rows came from and went to",
    "Keys that cannot be merged",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LakeTable:
    folder = tmp_path_factory.mktemp("report")
    table = create(folder / "t", buckets=4, properties={"lakemerge.logCompaction.afterCommits": "2"})
    table.upsert(frame([(k, 0, f"v{k}") for k in range(200)]))
    table.upsert(frame([(k, 1, "<b>bold</b>") for k in range(0, 200, 3)]))
    table.compact(minor=True)
    table.upsert(frame([(7, 5, "w")]))
    table.compact()
    (folder / "in").mkdir()
    job = table.ingest("orders", Files(folder / "in", format="json"))
    for name, line in [("good", '{"k": 7, "o": 9, "v": "in"}'), ("bad", '{"k": null, "o": 9}')]:
        (folder / "in" / f"{name}.json").write_text(line + "\n")
        job.run()
    table.upsert(frame([(8, 5, "w")]))
    return table


class Outline(html.parser.HTMLParser):
    """Headings, texts, and whatever would be fetched; fails on tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "line", "circle", "polygon"):
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        assert tag not in ("script", "link", "iframe", "img")

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "circle", "polygon"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_what_is_on_the_page(table: LakeTable) -> None:
    page = report_html(table, key={"k": 7})
    outline = Outline(page)
    assert outline.headings == TITLES
    assert outline.fetched == []
    assert "@import" not in page
    assert "url(" not in page
    text = " ".join(outline.texts)
    assert "applied: set v" in text
    assert "not merged yet" in text  # why a compaction ran
    assert "key column 'k' is null" in text  # why a file failed
    assert "2 commits have live logs. It starts at 2 commits." in text  # what maintenance would do
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in report_html(table, key={"k": 3})
    circles = page.count("<circle ")
    assert circles == len(table.history())
    bars = re.findall(r"bucket (\d): .*? base, .*? winners, .*? logs", page)
    assert sorted(bars) == ["0", "1", "2", "3"]


class Cells(html.parser.HTMLParser):
    """The texts of all cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag in ("td", "th")
        if self.inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False if tag in ("td", "th") else self.inside

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] += data


def test_every_column_is_filled_or_left_out(table: LakeTable) -> None:
    cells = Cells(report_html(table, key={"k": 7})).found
    assert len(cells) > 100
    assert [cell for cell in cells if not cell.strip()] == []
    assert table_html(("a", "b", "c"), [(1, "", "x"), ("", "", 0)]) == table_html(
        ("a", "c"), [(1, "x"), ("\u2013", 0)]
    ), "0 is a value"
    assert "<th" in table_html(("a",), [])
    assert {"full compaction", "minor compaction"} <= set(cells)
    for column in columns_of(report_html(table, key={"k": 7})):
        assert set(column) - {"\u2013"}, "a column of dashes says nothing"


def columns_of(page: str) -> list[tuple[str, ...]]:
    """The cells of each column of each table with a head."""
    found: list[tuple[str, ...]] = []
    for body in re.findall(r"</thead><tbody>(.*?)</tbody>", page):
        rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)]
        found += zip(*rows, strict=True)
    return found


def test_rules_are_sentences(tmp_path: Path) -> None:
    """No rule is a comparison of parameters."""
    thresholds = {"afterCommits": "3", "afterBytes": "2000000", "ratio": "0.25", "afterMinutes": "90"}
    properties = {
        f"lakemerge.{service}.{name}": value
        for service in ("compaction", "minorCompaction")
        for name, value in thresholds.items()
    }
    table = create(tmp_path / "t", properties={**properties, "lakemerge.logCompaction.afterCommits": "off"})
    said = {what: (would, why) for what, would, why in due(table)}
    nothing = (
        "No file slice has logs of at least 3 commits or changes of at least 1.9 MiB"
        " or changes of at least 0.25 times the size of the base file or changes that are at least 90 minutes old."
    )
    assert said["full compaction"] == said["minor compaction"] == ("nothing", nothing)
    assert said["log compaction"] == ("nothing", "Table properties switch it off.")
    for number in range(3):
        table.upsert(frame([(k, number, "v") for k in range(100)]))
    table.alter(properties={"lakemerge.compaction.ratio": "off", "lakemerge.compaction.afterCommits": "2"})
    would, why = next((would, why) for what, would, why in due(table) if what == "full compaction")
    assert would == "merge 1 bucket"
    assert re.fullmatch(
        r"Logs of at least 2 commits \(1 bucket\)\. It would read .+ KiB; read amplification falls from .+ to 1\.00\.",
        why,
    )
    for _, would, why in due(table):
        assert not re.search(r"[<>=]=|_", would + why)


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(1440, "1 day"), (2880, "2 days"), (120, "2 hours"), (90, "90 minutes"), (0.5, "0.5 minutes")],
)
def test_ages_are_in_the_largest_unit_that_fits(minutes: float, words: str) -> None:
    assert str(CompactionStrategy(after_minutes=minutes)) == (
        f"file slices with changes that are at least {words} old, oldest first"
    )


def test_growth_ends_with_the_present_sizes(table: LakeTable) -> None:
    """And begins with nothing: sizes are told from the end backwards."""
    found = growth_of(table, table.history())
    assert found.base[-1] == sum(add.size_bytes for add in table.opened.view.snapshot.files.values())
    assert (found.base[0], found.logs[0]) == (0, 0)
    assert len(found.times_ms) == table.version + 1
    logs = [sum((Path(table.url) / path).stat().st_size for path in log.paths) for log in table.opened.view.log_commits]
    assert found.logs[-1] == sum(logs)


def test_a_table_without_anything(tmp_path: Path) -> None:
    outline = Outline(report_html(create(tmp_path / "t")))
    assert outline.headings == [title for title in TITLES if not title.startswith("The row")]
    assert "No job ingests into this table." in outline.texts


def test_the_command(table: LakeTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    assert main(["report", table.url, "--out", str(out), "--key", "k=7"]) == 0
    assert Outline(out.read_text()).headings == TITLES
    assert str(out) in capsys.readouterr().out


@pytest.mark.skipif(not BROWSER, reason=NEEDS_BROWSER)
def test_in_a_browser(table: LakeTable, tmp_path: Path) -> None:
    """It is laid out: each plot has a height, no text runs over the right edge, and no error is logged."""
    page = tmp_path / "report.html"
    probe = (
        "<script>window.addEventListener('load', () => { const out = document.createElement('pre'); out.id = 'probe';"
        "const plots = [...document.querySelectorAll('section > svg')].map(p => p.getBoundingClientRect().height > 60);"
        "const wide = document.documentElement.scrollWidth > window.innerWidth;"
        "out.textContent = JSON.stringify({plots, wide, marks: document.querySelectorAll('circle').length});"
        "document.body.append(out); });</script>"
    )
    page.write_text(report_html(table, key={"k": 7}).replace("</head>", f"{probe}</head>"))
    common = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*common, "--window-size=1000,1200", "--dump-dom", page.as_uri()],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (told,) = re.findall(r'<pre id="probe">(.*?)</pre>', shown.stdout)
    assert told == f'{{"plots":[true,true,true],"wide":false,"marks":{len(table.history())}}}'
    picture = tmp_path / "report.png"
    taken = [*common, "--window-size=1000,2400", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(taken, check=True, capture_output=True, timeout=120)
    assert picture.stat().st_size > 20_000
