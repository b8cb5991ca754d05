"""Text of strangers cannot command a terminal, forge a line, or turn the direction of text round."""

from __future__ import annotations

import ast
import io
import json
import logging
import pickle
import re
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakemerge import InputError, LakeTable
from lakemerge.cli import main
from lakemerge.ingest import Files
from lakemerge.report import report_html
from mergers.logs import logger
from mergers.wording import argument, printable, worded
from tests.merge_source.world import World
from tests.unit.cli.test_json import commands
from tests.unit.project.test_architecture import module_name, product_files

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\u2066\u061c\u2028\x7f\r\nforged :smile: <script>"
"""Sets a title, clears the screen, colours (with a control character of Latin-1), turns round, and begins a line."""
FILE = EVIL.replace("/", "")
LINES = {
    "jar": "jar",
    "demo": "demo {tmp}/demo-{evil}",
    "init": "init {tmp}/new-{evil} --schema id~BIGINT,~`{evil}`~INT --key id",
    "upsert": "upsert {t} {tmp}/{evil}.json --format json",
    "get": "get {t} p={evil} id={evil}",
    "get, none": "get {t} p={evil} id={evil}none",
    "query": 'query {t} SELECT~*,~1~AS~"{evil}"~FROM~self',
    "diff": "diff {t} 1 2",
    "diff, none": "diff {t} 2 2",
    "show": "show {t}",
    "history": "history {t}",
    "buckets": "buckets {t}",
    "metrics": "metrics {t}",
    "changes": "changes {t} --since 0",
    "consumers register": "consumers register {t} other",
    "consumers list": "consumers list {t}",
    "consumers advance": "consumers advance {t} billing 2",
    "consumers expire": "consumers expire {t} --older-than 1d",
    "consumers drop": "consumers drop {t} billing",
    "explain": "explain {t} p={evil} id={evil} --since 0",
    "lineage": "lineage {t}",
    "lineage of a key": "lineage {t} p={evil} id={evil}",
    "what-if": "what-if {t} --since 0",
    "verify": "verify {t} --merger commit-time",
    "replay": "replay {t} {tmp}/again-{evil}",
    "report": "report {t} --out {tmp}/{evil}.html",
    "ingest run": "ingest {t} {tmp}/landing-{evil} --format json --bad-records quarantine --max-bad-records any",
    "ingest status": "ingest status {t} --name job",
    "ingest files": "ingest files {t} --name job",
    "ingest files, rejects": "ingest files {t} --name default --rejects",
    "ingest retry": "ingest retry {t} --name job",
    "ingest reset": "ingest reset {t} --name job",
    "ingest replay": "ingest replay {t} {tmp}/landing-{evil} --name default --format json --force "
    "--bad-records quarantine --max-bad-records any",
    "merge-source run": "merge-source run {job} --full",
    "merge-source explain": "merge-source explain {job} {merged}",
    "merge-source check": "merge-source check {job}",
    "merge-source report": "merge-source report {job}",
    "failed-keys": "failed-keys {t}",
    "record-send": "record-send {t} to~{evil} --key p=x,id=b --info about~{evil}={evil}",
    "associate": "associate {t} {evil} --info about={evil}",
    "lineage, notes": "lineage {t} --kind SEND --kind ADDINFO",
    "compact, plan": "compact {t} --dry-run",
    "compact": "compact {t}",
    "maintain": "maintain {t}",
    "vacuum": "vacuum {t}",
    "forget": "forget {t} --keys {tmp}/keys-{evil}.csv --drop-history --search {tmp}/landing-{evil}",
    "check": "check {t}",
    "probe": "probe {tmp}/place-{evil}",
    "copy": "copy {t} {tmp}/copy-{evil}",
    "convert, plan": "convert {tmp}/delta --key id --dry-run",
    "convert": "convert {tmp}/delta --key id --ordering at",
    "unconvert": "unconvert {tmp}/delta",
}
"""Lines of commands, and more than one where a command shows different things; ``~`` stands for a space."""
CLEANED = {"lakemerge.storage.s3_client"}
"""Modules that take secrets out of the logs of other packages, whose loggers they name."""
WRONG = (
    "history {t} {evil}",
    "{evil} {t}",
    "get {t}-{evil} id=1",
    "get {t} {evil}=1",
    "get {t} {evil}",
    "query {t} {evil}",
    "lineage {t} --after {evil}",
    "get {t} p=x id=b --failed-keys {evil}",
    "record-send {t} x --info {evil}",
    "what-if {t} --options {evil}",
    "what-if {t} --where {evil}",
    "verify {t} --require {evil}",
    "compact {t} --where {evil}",
    "vacuum {t} --retention {evil}",
    "changes {t} --consumer {evil}",
    "consumers register {t} {evil}",
    "ingest {t} {tmp}/none-{evil} --format json",
    "ingest {t} {tmp}/landing-{evil} --format {evil}",
    "upsert {t} {tmp}/none-{evil}",
    "init {tmp}/n --schema {evil} --key id",
    "init {tmp}/n --schema id~INT --key {evil} --property {evil}",
    "merge-source run {tmp}/{evil}.json",
    "merge-source explain {job} {evil}",
)
"""Lines that are refused, and say with which of their words something is wrong."""


def unsafe(text: str) -> list[str]:
    """The characters that must not reach a terminal. Those are what Unicode calls controls, separators of lines, and
    the characters of bidirectional text."""
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return sorted(
        {
            char
            for char in text
            if (unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") and char != "\n")
            or unicodedata.bidirectional(char) in turning
            or char in "\u061c\u200e\u200f"
        }
    )


def forged(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith("forged")]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """A table whose every name and value is evil, with ingest jobs, a consumer, and a merge source that ran."""
    ddl = f"p STRING, id STRING, `v{EVIL}` STRING, at BIGINT"
    table = LakeTable.create(
        tmp_path / f"t{FILE}", ddl, key=["p", "id"], ordering=["at"], partition_by=["p"], name=EVIL, description=EVIL,
        properties={f"user.{EVIL}": EVIL},
    )  # fmt: skip
    for at, value in enumerate((EVIL, f"{EVIL} again")):
        rows = pa.table({"p": [EVIL, "x"], "id": [EVIL, "b"], f"v{EVIL}": [value, "x"], "at": [at, at]})
        table.upsert(rows, txn=(f"app {EVIL}", at), info={f"about {EVIL}": EVIL})
    table.consumers.register("billing", version=1)
    folder = tmp_path / f"landing-{FILE}"
    folder.mkdir()
    (folder / f"{FILE}.json").write_text(json.dumps({"p": EVIL, "id": "c", "at": 3}) + "\n{bad\x1b[2J\u202e\n")
    table.ingest("job", Files(folder, format="json")).run()
    (tmp_path / f"keys-{FILE}.csv").write_text("p,id\n")
    (tmp_path / f"{FILE}.json").write_text(json.dumps({"p": EVIL, "id": "d", "at": 3}) + "\n")
    world = World(tmp_path)
    world.create("A", "_id STRING, x STRING", [{"_id": EVIL, "x": EVIL}])
    world.create("B", "_id STRING, x STRING", [{"_id": f"b{EVIL}", "x": EVIL}])
    source = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": ["a.x = b.x"]}
    twice = pa.table({"id": [EVIL, EVIL], "at": [1, 2]})
    write_deltalake(tmp_path / "delta", twice, name=EVIL, description=EVIL)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"output": str(tmp_path / "out"), "tables": world.paths, "source": source}))
    assert main(["merge-source", "run", str(job)]) == 0
    (merged,) = {row["_id"] for row in LakeTable.open(tmp_path / "out").to_arrow(columns=["_id"]).to_pylist()}
    return {"t": str(tmp_path / f"t{FILE}"), "tmp": str(tmp_path), "job": str(job), "merged": merged, "evil": FILE}


def run(line: str, places: dict[str, str], capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([*(word.replace("~", " ").format(**places) for word in line.split()), *more])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.long
def test_no_command_lets_them_through(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    told = ""
    for name, line in LINES.items():
        code, out, err = run(line, places, capsys)
        assert code == 0, (name, err)
        assert unsafe(out + err) == [], (name, out, err)
        assert forged(out + err) == [], (name, out, err)
        told += out
    assert told.count(r"\x1b[2J") > 50
    assert ":smile:" in told


def test_each_command_is_looked_at() -> None:
    covered = {name.partition(",")[0] for name in LINES} | {"merge-source follow"}  # it prints what ``run`` prints
    assert set(commands()) <= covered


def test_no_refusal_lets_them_through(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for line in WRONG:
        code, out, err = run(line, places, capsys)
        assert code != 0, line
        assert r"\x1b[2J" in err or "characters" in err, (line, err)  # a name without a value is not shown at all
        assert unsafe(out + err) == [], (line, out, err)
        assert forged(out + err) == [], (line, out, err)


def test_json_has_the_exact_values(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("query {t} SELECT~id,~p~FROM~self", places, capsys, "--json")
    assert unsafe(out) == []
    assert {json.loads(line)["id"] for line in out.splitlines()} == {EVIL, "b"}
    _, out, _ = run("get {t} p={evil} id={evil}", places, capsys, "--json")
    assert json.loads(out)[f"v{EVIL}"] == f"{EVIL} again"


def test_errors_keep_values_in_their_facts_only(places: dict[str, str]) -> None:
    error = InputError(f"there is no {EVIL}; pass {argument('name')}", name=EVIL)
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert unsafe(str(found)) == []
        assert unsafe(found.worded(lambda name, value: f"--{name}")) == []
        assert found.message.endswith("pass name")
        assert found.name == EVIL
    with pytest.raises(InputError) as caught:
        LakeTable.open(places["t"] + EVIL)
    assert unsafe(str(caught.value)) == []


def test_reprs_and_pages(places: dict[str, str]) -> None:
    table = LakeTable.open(places["t"])
    key = {"p": EVIL, "id": EVIL}
    explained, lineage = table.explain(key, 0), table.lineage()
    shown = [
        repr(table), repr(explained), repr(lineage), lineage.to_dot(), repr(table.detail()), str(table.explain_read()),
        table._repr_html_(), explained._repr_html_(), lineage._repr_html_(), report_html(table, key=key),
    ]  # fmt: skip
    for text in shown:
        assert unsafe(text) == []
    for text in shown[:-4]:
        assert forged(text) == []
    for page in shown[-4:]:
        assert "<script>" not in page


@pytest.mark.parametrize("name", ["lakemerge.some", "compaction.some", "mergers.some"])
def test_a_record_of_a_log_is_one_line(name: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    found = logger(name)
    found.addHandler(handler)
    try:
        found.warning("file %s of %d", EVIL, 7)
        try:
            raise ValueError(EVIL)
        except ValueError:
            found.warning("plain", exc_info=True)
    finally:
        found.removeHandler(handler)
    first, *rest = stream.getvalue().split("\n")
    assert unsafe(stream.getvalue()) == []
    assert first == f"file {printable(EVIL)} of 7"
    assert rest[:2] == ["plain", "Traceback (most recent call last):"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00e4 \U0001f600 \u05d0", "plain \u00e4 \U0001f600 \u05d0"),
        ("a\x1b[2J", r"a\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x9b\x7f", r"\x9b\x7f"),
        ("\u202e\u2028\ud800", r"\u202e\u2028\ud800"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_of_the_program_itself_stay() -> None:
    assert printable("a\n\tb\r\x1b", lines=True) == "a\n\tb" + r"\r\x1b"


def test_every_character_that_a_terminal_obeys() -> None:
    wrong = [hex(code) for code in range(0x110000) if unsafe(printable(chr(code)))]
    assert wrong == []
    changed = [code for code in range(0x110000) if printable(chr(code)) != chr(code)]
    assert all(unsafe(chr(code)) or chr(code) == "\n" for code in changed)


def test_every_logger_escapes_and_only_one_module_prints() -> None:
    """So whoever adds a message or a command need not think of it."""
    wrong = []
    for path in product_files():
        module, text = module_name(path), path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "logging.getLogger" and module not in ("mergers.logs", "lakemerge.cli.common"):
                    wrong += [] if module in CLEANED else [f"{module}: {called}"]
                prints = re.fullmatch(r"typer\.s?echo|print|Console|sys\.std(out|err)\.write", called)
                if prints and module not in ("lakemerge.cli.output", "lakemerge.cli"):
                    wrong.append(f"{module}: {called}")
    assert wrong == []


def test_no_text_spells_a_type_as_arrow_does() -> None:
    """``BIGINT``, not ``int64``: see :func:`mergers.type_names.type_name`."""
    wrong = [
        f"{module_name(path)}:{node.lineno} has {{{ast.unparse(node.value)}}}"
        for path in product_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Attribute) and node.value.attr == "type"
    ]
    assert wrong == []


def test_marks_in_a_value_name_no_parameter() -> None:
    text = worded(f"{argument('path')} is \x0eoops", lambda name, value: name.upper())
    assert text.startswith("PATH is ")
