"""Every command has ``--json``: standard output is then one JSON document, or a JSON object a line for rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

from lakemerge import LakeTable
from lakemerge.cli import main
from lakemerge.cli.app import app
from tests.merge_source.world import World
from tests.unit.faults import create, frame

Captured = pytest.CaptureFixture[str]

DOCUMENTS: dict[str, str] = {
    "demo": "demo {tmp}/demo",
    "init": "init {tmp}/new --schema id~BIGINT --key id",
    "upsert": "upsert {t} {tmp}/more.csv",
    "get": "get {t} k=1",
    "jar": "jar",
    "show": "show {t}",
    "compact": "compact {t} --minor",
    "vacuum": "vacuum {t}",
    "forget": "forget {t} --keys {tmp}/keys.csv --drop-history",
    "check": "check {t} --drop-orphans",
    "probe": "probe {tmp}/place",
    "copy": "copy {t} {tmp}/copy",
    "convert": "convert {tmp}/delta --key k",
    "unconvert": "unconvert {tmp}/own --quiet",
    "verify": "verify {t} --merger commit-time",
    "replay": "replay {t} {tmp}/again",
    "record-send": "record-send {t} warehouse --since 1 --key k=1 --info ticket=7",
    "associate": "associate {t} https://tickets.example/7",
    "report": "report {t} --out {tmp}/page.html",
    "consumers register": "consumers register {t} other",
    "consumers advance": "consumers advance {t} billing 2",
    "consumers expire": "consumers expire {t} --older-than 1d",
    "consumers drop": "consumers drop {t} billing",
    "ingest run": "ingest {t} {tmp}/landing --format csv",
    "ingest status": "ingest status {t}",
    "ingest retry": "ingest retry {t}",
    "ingest reset": "ingest reset {t}",
    "ingest replay": "ingest replay {t} {tmp}/landing --format csv --force",
    "merge-source run": "merge-source run {job}",
    "merge-source explain": "merge-source explain {job} 0|a1|1|b1",
    "merge-source check": "merge-source check {job}",
    "merge-source report": "merge-source report {job}",
}
"""Commands whose answer is one document; ``~`` stands for a space."""
LINES: dict[str, str] = {
    "maintain": "maintain {t}",
    "query": "query {t} SELECT~k~FROM~self",
    "diff": "diff {t} 1 2",
    "changes": "changes {t} --since 1 --until 2",
    "explain": "explain {t} k=1",
    "lineage": "lineage {t}",
    "what-if": "what-if {t} --merger commit-time",
    "failed-keys": "failed-keys {summed}",
    "history": "history {t}",
    "buckets": "buckets {t}",
    "metrics": "metrics {t}",
    "consumers list": "consumers list {t}",
    "ingest files": "ingest files {t}",
}
"""Commands whose answer is rows, or entries of a list; that of ``maintain`` is a line for each run."""
ENDLESS = {"merge-source follow"}
"""It ends by a signal alone; a line is what ``run`` prints."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """A table with a log, a consumer and an ingest job, and a merge source that ran."""
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.upsert(frame([(1, 2, "c")]))
    table.consumers.register("billing", version=1)
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing/one.csv").write_text("k,o,v\n7,1,x\n")
    (tmp_path / "more.csv").write_text("k,o,v\n8,1,y\n")
    (tmp_path / "keys.csv").write_text("k\n")
    assert main(["ingest", str(tmp_path / "t"), str(tmp_path / "landing"), "--format", "csv", "--quiet"]) == 0
    world = World(tmp_path)
    world.create("A", "_id STRING, x BIGINT", [{"_id": "a1", "x": 1}])
    world.create("B", "_id STRING, x BIGINT", [{"_id": "b1", "x": 1}])
    source = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": ["a.x = b.x"]}
    summed = create(tmp_path / "summed", schema="k BIGINT, n TINYINT", ordering=[], merger="aggregate",
                    options={"aggregates": {"n": "sum"}}, properties={"lakemerge.maintenance": "off"})  # fmt: skip
    for _ in range(2):
        summed.upsert(frame([(1, 100)], ["k", "n"], n=pa.int8()))
    write_deltalake(tmp_path / "delta", frame([(1, 1, "a")]))
    create(tmp_path / "own").upsert(frame([(1, 1, "a")]))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"output": str(tmp_path / "out"), "tables": world.paths, "source": source}))
    assert main(["merge-source", "run", str(job)]) == 0
    return {"t": str(tmp_path / "t"), "summed": summed.url, "tmp": str(tmp_path), "job": str(job)}


def answer(line: str, places: dict[str, str], capsys: Captured) -> list[Any]:
    capsys.readouterr()
    words = [word.format(**places).replace("~", " ") for word in line.split()]
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {
        f"{name} {inner}".strip(): command
        for name, top in group.commands.items()
        for inner, command in getattr(top, "commands", {"": top}).items()
        if not command.hidden
    }


def test_every_command_has_the_option_and_says_what_it_prints() -> None:
    found = commands()
    assert set(found) == {*DOCUMENTS, *LINES, *ENDLESS}
    for name, command in found.items():
        (option,) = (parameter for parameter in command.params if parameter.name == "json")
        assert option.opts == ["--json"]
        assert ("per line" in option.help) == (name in LINES or name in ENDLESS), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_one_document(name: str, places: dict[str, str], capsys: Captured) -> None:
    (found,) = answer(DOCUMENTS[name], places, capsys)
    assert isinstance(found, dict)
    assert found


@pytest.mark.parametrize("name", LINES)
def test_a_line_for_each(name: str, places: dict[str, str], capsys: Captured) -> None:
    found = answer(LINES[name], places, capsys)
    assert found
    assert all(isinstance(row, dict) and row for row in found)


def test_they_say_what_the_table_says(places: dict[str, str], capsys: Captured) -> None:
    table = LakeTable.open(places["t"])
    (shown,) = answer("show {t}", places, capsys)
    assert (shown["version"], shown["key"], shown["columns"]["k"]) == (table.version, ["k"], "BIGINT NOT NULL")
    assert shown["read_amplification"] == table.detail().read_amplification
    versions = [entry["version"] for entry in answer("history {t}", places, capsys)]
    assert versions == list(range(table.version, -1, -1))
    (plan,) = answer("compact {t} --dry-run", places, capsys)
    assert (plan["mode"], len(plan["groups"])) == ("full", 1)
    (result,) = answer("compact {t}", places, capsys)
    assert (result["version"], result["rows"]) == (LakeTable.open(places["t"]).version, 3)
    rows = answer("what-if {t} --merger commit-time --limit 1", places, capsys)
    assert sorted(row["k"] for row in rows) == [1, 2, 7]
    (done,) = answer("ingest {t} {tmp}/landing --format csv", places, capsys)
    assert (done["windows"], done["rows"]) == (0, 0)
    (consumer,) = answer("consumers list {t}", places, capsys)
    assert (consumer["name"], consumer["version"], consumer["expires_after"]) == ("billing", 1, 604_800.0)


def test_a_damaged_table_is_a_document_too(places: dict[str, str], capsys: Captured) -> None:
    next((Path(places["t"]) / "base").rglob("*.parquet")).unlink()
    capsys.readouterr()
    assert main(["check", places["t"], "--json", "--quiet"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert "missing" in found["findings"][0]["problem"]


def test_a_graph_is_no_json(places: dict[str, str], capsys: Captured) -> None:
    assert main(["lineage", places["t"], "--dot", "--json"]) == 2
    assert "give --dot or --json, not both" in capsys.readouterr().err
