"""Errors on the command line speak of its options, and from Python of parameters: one message, marked once."""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

import lakemerge
from lakemerge import CompactionStrategy, InputError, LakeMergeError, LakeTable
from lakemerge.cli import main
from lakemerge.cli.app import app
from lakemerge.cli.spelling import spelled
from mergers.wording import argument, in_python
from tests.property.effort import some
from tests.unit.faults import create, frame
from tests.unit.project.test_architecture import PRODUCT
from tests.unit.project.test_errors import Custom

ROOT = Path(__file__).resolve().parents[3]


def parameters_of(owner: type) -> set[str]:
    public = [value for name, value in inspect.getmembers(owner, callable) if not name.startswith("_")]
    return {name for value in public for name in inspect.signature(value).parameters} - {"self"}


PARAMETERS = (
    parameters_of(LakeTable)
    | set(inspect.signature(lakemerge.register).parameters)
    | {field.name for field in dataclasses.fields(CompactionStrategy)}
)
"""What callers from Python name things by."""
_ANY = "|".join(sorted(PARAMETERS, key=len, reverse=True))
_LONG = "|".join(sorted(name for name in PARAMETERS if "_" in name))
NAMED = rf"\b(?:{_ANY})=(?!=)|(?<![\w.])(?:{_LONG})\b"
"""A parameter as Python writes it: given a value, or with an underscore in its name."""
PYTHON = re.compile(rf"\b[A-Za-z_]+=(?:True|False|None)\b|{NAMED}")
ALL_COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined] # of a group
MAKERS = ("demo", "init")
"""Commands that make a table; all others look for one."""
COMMANDS = {
    name: command
    for name, command in ALL_COMMANDS.items()
    if not hasattr(command, "commands") and name not in (*MAKERS, "jar", "probe")  # which take no table
}
IN_GROUPS = {
    f"{group} {name}": command
    for group in ("consumers", "ingest")
    for name, command in ALL_COMMANDS[group].commands.items()
}
"""Those of a group that take a table; commands of merge sources take a file (tests/merge_source/test_cli.py)."""


def test_the_pattern_knows_python() -> None:
    for text in ("Pass enforce_retention=False", "x=None", "mergers=[...]", "merge_schema", "where='p = 1'"):
        assert PYTHON.search(text), text
    for text in ("--no-enforce-retention", "where p = 1", "remove_record_on_delete", "p == 1", "order == 2"):
        assert not PYTHON.search(text), text


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of all sorts, by name."""
    folder = tmp_path_factory.mktemp("tables")
    table = create(folder / "good", schema="p STRING, k BIGINT, o BIGINT", key=["p", "k"], partition_by=["p"])
    for number in range(3):
        table.upsert(frame([("p0", 1, number), ("p1", 1, number)], ["p", "k", "o"]))
    stranger = create(folder / "stranger", merger="custom", mergers=[Custom])
    for number in range(3):
        stranger.upsert(frame([(1, number, "x")]))
    gap = create(folder / "gap")
    for number in range(2):
        gap.upsert(frame([(1, number, "x")]))
    (folder / "gap/_delta_log" / f"{1:020d}.json").unlink()
    vacuumed = create(folder / "vacuumed")
    for number in range(3):
        vacuumed.upsert(frame([(number, number, "x")]))
    vacuumed.compact()
    vacuumed.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    (folder / "plain").mkdir()
    write_deltalake(folder / "plain", pa.table({"k": [1]}))
    return folder


WITH_PLAIN = ("check", "convert")
"""Commands that look at plain Delta tables, too."""
NEEDED = {
    "explain": ["k=1"],
    "associate": ["order-7"],
    "record-send": ["warehouse"],
    "init": ["--schema", "k BIGINT", "--key", "k"],
    "upsert": ["file.csv"],
    "get": ["k=1"],
    "query": ["SELECT 1"],
    "diff": ["1", "2"],
    "replay": ["elsewhere"],
    "copy": ["elsewhere"],
    "forget": ["--keys", "keys.csv"],
    "convert": ["--key", "k"],
    "report": ["--out", "report.html"],
    "consumers register": ["name"],
    "consumers advance": ["name", "1"],
    "consumers drop": ["name"],
    "ingest run": ["landing", "--format", "json"],
    "ingest replay": ["landing", "--format", "json"],
}
"""What commands ask for beside a path."""

BAD: list[tuple[str, int, str]] = [
    *((f"{command} nothing", 2, "there is no Delta log") for command in [*COMMANDS, *IN_GROUPS]),
    *(
        (f"{command} plain", code, "")
        for command, code in dict.fromkeys(COMMANDS, 2).items()
        if command not in WITH_PLAIN
    ),
    *((f"{command} gap", 4, "missing") for command in COMMANDS if command != "check"),
    *((f"{command} file://host/x", 2, "names the host") for command in [*COMMANDS, *IN_GROUPS]),
    *((f"{command} http://me:secret@host/x", 2, "use --storage-option") for command in [*COMMANDS, *IN_GROUPS]),
    *(
        (f"{command} s3://me:secret@b/x", 2, "credentials go into --storage-option")
        for command in [*COMMANDS, *IN_GROUPS]
    ),
    *((f"{command} s3://bucket/x -o strange=1", 2, "'strange' is unknown") for command in [*COMMANDS, *IN_GROUPS]),
    *((f"{command} good -o nonsense", 2, "is not NAME=VALUE") for command in [*COMMANDS, *IN_GROUPS]),
    *((f"{command} gap", 4, "missing") for command in IN_GROUPS),
    *((f"{command} good", 2, "there is already a table at") for command in MAKERS),
    *((f"{command} file://host/x", 2, "names the host") for command in MAKERS),
    *((f"{command} s3://me:secret@b/x", 2, "credentials go into --storage-option") for command in MAKERS),
    *((f"{command} new -o nonsense", 2, "is not NAME=VALUE") for command in MAKERS),
    ("show good --version 99", 2, "99"),
    ("show good --version -1", 2, "-1"),
    ("show good --version x", 2, "--version"),
    ("show vacuumed --version 1", 2, "version 1"),
    ("history good --limit 0", 2, "--limit"),
    ("buckets good --limit x", 2, "--limit"),
    ("compact good --max-bytes 0", 2, "--max-bytes must be a number of bytes from 1 on, not 0"),
    ("compact good --max-bytes much", 2, "'much' is not a size"),
    ("compact good --where k=1", 2, "partition columns are: p"),
    ("compact good --where p=", 2, "is not SQL"),
    ("compact good --order newest", 2, "--order"),
    ("compact stranger", 5, "Install the package that holds it."),
    ("maintain good --every 5", 2, "'5' is not a duration"),
    ("vacuum good --retention 0s", 2, "Pass --no-enforce-retention if there are none"),
    ("vacuum good --retention -1d", 2, "is not a duration"),
]


@pytest.mark.parametrize(("line", "code", "says"), some(BAD), ids=str)
def test_no_command_speaks_python(
    line: str, code: int, says: str, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = line.split()
    if f"{words[0]} {words[1]}" in IN_GROUPS:
        words[:2] = [f"{words[0]} {words[1]}"]
    command, path, *options = words
    options = [*NEEDED.get(command, ()), *options]
    place = path if ":" in path else str(tables / path)
    assert main([*command.split(), place, *options]) == code
    captured = capsys.readouterr()
    # Typer shows what it refuses in a box, with lines of its own.
    told = " ".join((captured.err + captured.out).replace("│", " ").split()).replace(str(tables), "")
    assert says in told
    assert not PYTHON.search(told), told


def test_from_python_the_same_errors_name_parameters(tables: Path) -> None:
    table = LakeTable.open(tables / "good")
    with pytest.raises(InputError, match=r"Pass enforce_retention=False if there are none"):
        table.vacuum(retention=dt.timedelta(0))
    with pytest.raises(InputError, match="max_bytes must be a number of bytes from 1 on, not 0"):
        table.compact(max_bytes=0)
    with pytest.raises(LakeMergeError, match=r"or pass mergers=\[TheClass\] to LakeTable.open"):
        LakeTable.open(tables / "stranger").compact()


def test_parameters_of_commands_are_those_of_the_library() -> None:
    """By these an option is found for a parameter that a message names."""
    own = {
        "every", "quiet", "drop_orphans", "dot", "explained", "json", "out", "key_columns", "like", "data_file",
        "format", "format_options", "earlier", "later", "check", "diff", "paths", "url",
        "warehouse", "turn", "at_once", "target", "target_options", "keys_file",
    }  # fmt: skip
    for name, command in COMMANDS.items():
        given = {parameter.name for parameter in command.params} - {"help"}
        assert given - PARAMETERS <= own, name
    for parameter in PARAMETERS:
        seen = {
            spelled(name, parameter, None)
            for name in COMMANDS
            if any(p.name == parameter for p in COMMANDS[name].params)
        }
        assert len(seen) <= 1, "one parameter is one option"


@pytest.mark.parametrize(
    ("command", "name", "value", "words"),
    [
        ("vacuum", "enforce_retention", "False", "--no-enforce-retention"),
        ("vacuum", "enforce_retention", "True", "--enforce-retention"),
        ("vacuum", "dry_run", "False", "--delete"),
        ("compact", "dry_run", "True", "--dry-run"),
        ("compact", "dry_run", "False", "no --dry-run"),
        ("compact", "where", None, "--where"),
        ("compact", "max_bytes", "10", "--max-bytes 10"),
        ("check", "repair", "True", "--repair"),
        ("show", "storage_options", None, "--storage-option"),
        ("show", "path", None, "PATH"),
        ("maintain", "max_bytes", None, "`lakemerge compact --max-bytes`"),
        (None, "enforce_retention", "False", "`lakemerge vacuum --no-enforce-retention`"),
        ("show", "merge_schema", "True", "`lakemerge upsert --merge-schema`"),
        ("show", "kind_column", None, "`lakemerge upsert --kind-column`"),
        ("show", "before_images", "True", "before images True"),
        ("show", "max_rows", None, "max rows"),
    ],
)
def test_how_parameters_are_spelled(command: str | None, name: str, value: str | None, words: str) -> None:
    assert spelled(command, name, value) == words


def test_marks_are_seen_by_nobody() -> None:
    text = f"give {argument('merge_schema', True)} or {argument('where')}{in_python(', or register it')}."
    error = InputError(text, problem=text, problems=(text, text), number=7, names=["a"])
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "[input] give merge_schema=True or where, or register it."
        assert one.args == (one.message,) == ("give merge_schema=True or where, or register it.",)
        assert one.facts == {
            "problem": one.message, "problems": (one.message, one.message), "number": 7, "names": ["a"],
        }  # fmt: skip
        assert one.worded(lambda name, value: f"<{name} {value}>") == "give <merge_schema True> or <where None>."
    assert PYTHON.search(repr(argument("where")[0])) is None
    assert repr(argument("where")).isprintable(), "quoted text of a user's holds no mark"


def prose() -> Iterator[tuple[str, str]]:
    """Texts of the library that are sentences, with their places; docstrings and representations aside."""
    for path in (path for top in PRODUCT for path in (ROOT / top).rglob("*.py")):
        if "testing" in path.parts or "cli" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        aside: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                aside.add(id(node.value))
            shown = isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__")
            if shown or (isinstance(node, ast.Call) and ast.unparse(node.func) == "in_python"):
                aside |= {id(part) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in aside
                and " " in node.value
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def test_messages_mark_the_parameters_that_they_name() -> None:
    """With ``argument`` or ``in_python``: else the command line would show them as Python has them."""
    wrong = [f"{place}: {text!r}" for place, text in prose() if re.search(NAMED, text)]
    assert not wrong, "\n".join(wrong)
