"""The command line: what it shows, what it does, how it fails, and that it ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import lakemerge.cli
from lakemerge import LakeTable
from lakemerge.cli import main
from lakemerge.cli.arguments import byte_count, duration, storage_options
from lakemerge.errors import InputError
from tests.unit.faults import create, frame, listing, state_of

ROOT = Path(__file__).resolve().parents[3]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Two partitions with a base file each; p0 has two log commits."""
    table = create(tmp_path / "t", schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"])
    table.upsert(frame([(p, k, 0, "base") for p in ("p0", "p1") for k in range(10)], ["p", "k", "o", "v"]))
    for number in range(2):
        table.upsert(frame([("p0", 1, number, "new")], ["p", "k", "o", "v"]))
    return str(tmp_path / "t")


def lines_of(capsys: Captured) -> list[list[str]]:
    """What was printed, in cells."""
    return [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_show(path: str, capsys: Captured) -> None:
    assert main(["show", path]) == 0
    shown = {line[0]: line[1] for line in lines_of(capsys)}
    assert shown["version"] == "3"
    assert shown["merger"] == "event-time"
    assert (shown["key"], shown["ordering"], shown["partitioned by"]) == ("p, k", "o", "p")
    assert shown["buckets with rows"] == "2, 1 of them with live logs"
    assert shown["base"].startswith("2 files, 20 rows, ")
    assert shown["live logs"].startswith("2 blocks of 2 commits, ")
    assert shown["column k"] == "BIGINT NOT NULL"
    assert main(["show", path, "--version", "1"]) == 0
    assert {line[0]: line[1] for line in lines_of(capsys)}["version"] == "1"


def test_history(path: str, capsys: Captured) -> None:
    assert main(["history", path]) == 0
    lines = lines_of(capsys)
    assert [line[0] for line in lines] == ["version", "3", "2", "1", "0"]
    assert [line[2] for line in lines[1:]] == ["UPSERT", "UPSERT", "UPSERT", "CREATE TABLE"]
    assert "numSourceRows=20" in lines[3][4]
    assert main(["history", path, "-n", "1"]) == 0
    assert [line[0] for line in lines_of(capsys)] == ["version", "3"]


@pytest.mark.parametrize("command", ["buckets"])
def test_buckets(path: str, capsys: Captured, command: str) -> None:
    assert main([command, path]) == 0
    lines = lines_of(capsys)
    assert [(line[0], line[6]) for line in lines[1:]] == [("p=p0", "2"), ("p=p1", "0")], "the costliest first"
    assert main([command, path, "--limit", "1"]) == 0
    assert lines_of(capsys)[2] == ["1 more bucket; --limit shows more"]


def test_a_dry_run_shows_the_plan_and_changes_nothing(path: str, capsys: Captured) -> None:
    before = listing(Path(path))
    assert main(["compact", path, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "full compaction of version 3, oldest first: 1 bucket (1 base file) in 1 commit\n" in out
    assert re.search(r"^1 +p0 +0 +1 .* 2 +not merged yet$", out, re.MULTILINE)
    assert main(["compact", path, "--dry-run", "--minor", "--where", "p = 'p1'", "--max-bytes", "1GB"]) == 0
    assert capsys.readouterr().out.startswith("nothing to compact at version 3: a minor compaction takes ")
    assert listing(Path(path)) == before


def test_compact_reports_what_it_did(path: str, capsys: Captured) -> None:
    expected = state_of(Path(path))
    assert main(["compact", path, "--minor"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"^service +minor compaction *$", captured.out, re.MULTILINE)
    assert re.search(r"^merged +1 base file, 2 log blocks *$", captured.out, re.MULTILINE)
    assert "group 1 of 1 is version 5" in captured.err
    assert main(["compact", path, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["compact", path]) == 0
    assert capsys.readouterr().out.startswith("nothing to compact")
    assert not LakeTable.open(path).opened.view.log_commits
    assert state_of(Path(path)) == expected


def test_maintain_does_what_is_due(path: str, capsys: Captured) -> None:
    LakeTable.open(path).alter(
        properties={"lakemerge.minorCompaction.afterCommits": "2", "lakemerge.compaction.ratio": "off"}
    )
    assert main(["maintain", path]) == 0
    out = capsys.readouterr().out
    assert "maintenance, version" in out
    assert re.search(r"^due +logs of at least 2 commits \(1 bucket\) *$", out, re.MULTILINE)
    assert main(["maintain", path]) == 0
    assert capsys.readouterr().out.endswith("nothing is due\n")


def test_vacuum_says_what_it_would_delete(path: str, capsys: Captured) -> None:
    LakeTable.open(path).compact()
    before = listing(Path(path))
    zero = ["vacuum", path, "--retention", "0s", "--no-enforce-retention"]
    assert main(zero) == 0
    out = capsys.readouterr().out
    assert re.search(r"^vacuum +would be deleted *$", out, re.MULTILINE)
    assert out.endswith("nothing was deleted; add --delete to delete the files\n")
    assert listing(Path(path)) == before
    assert main([*zero, "--delete"]) == 0
    assert len(listing(Path(path))) < len(before)
    assert main(["vacuum", path]) == 0
    assert capsys.readouterr().out.endswith("vacuum: there is nothing to delete\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "{tmp}/nothing"], 2, "there is no Delta log"),
        (["show", "{path}", "--version", "99"], 2, "99"),
        (["compact", "{path}", "--where", "k = 1"], 2, "partition columns are: p"),
        (["compact", "{path}", "--max-bytes", "much"], 2, "'much' is not a size; write"),
        (["maintain", "{path}", "--every", "5"], 2, "'5' is not a duration; write"),
        (["vacuum", "{path}", "--retention", "0s"], 2, "Pass --no-enforce-retention if there are none"),
        (["show", "{path}", "-o", "nonsense"], 2, "storage option number 1 is not NAME=VALUE"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    path: str, tmp_path: Path, capsys: Captured, arguments: list[str], code: int, message: str
) -> None:
    filled = [argument.format(tmp=tmp_path, path=path) for argument in arguments]
    assert main(filled) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("lakemerge: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert captured.out == ""


def test_a_damaged_table_has_an_exit_code_of_its_own(path: str, capsys: Captured) -> None:
    (Path(path) / "_delta_log" / f"{2:020d}.json").unlink()
    assert main(["show", path]) == 4
    assert "commit 2 is missing" in capsys.readouterr().err


def test_check_says_what_is_wrong_and_mends_it_on_request(path: str, capsys: Captured) -> None:
    assert main(["check", path]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    table = LakeTable.open(path)
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    checkpoint = next((Path(path) / "_delta_log").glob("*.checkpoint.parquet"))
    checkpoint.write_bytes(b"no Parquet")
    assert main(["check", path, "--quiet"]) == 4
    assert f"{checkpoint.name} cannot be read" in capsys.readouterr().out
    assert main(["check", path, "--repair", "--drop-orphans"]) == 0
    assert "there is nothing to delete" in capsys.readouterr().out
    next((Path(path) / "base").rglob("*.parquet")).unlink()
    assert main(["check", path, "--drop-orphans"]) == 4
    assert "this file is missing" in capsys.readouterr().out


def test_a_home_folder_is_found_by_every_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("~/t", Path("~/u")):
        table = create(place)
        assert table.url == str(tmp_path / Path(place).name)
        table.upsert(frame([(1, 1, "a")]))
        assert LakeTable.open(place).version == 1
        assert LakeTable.check(place).ok
        assert main(["check", str(place)]) == 0
        assert main(["show", str(place)]) == 0
    shown = capsys.readouterr().out
    assert [shown.count(str(tmp_path / name)) for name in "tu"] == [1, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "u"]


def test_an_error_of_another_kind_is_one_line_too(path: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a merger that an installed package brought."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("first line\nsecond \x1b[2J line")

    monkeypatch.setattr(LakeTable, "detail", fail)
    assert main(["show", path, "--json"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("lakemerge: KeyError: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "LAKEMERGE_TRACEBACK=1 shows where it happened" in err
    monkeypatch.setenv("LAKEMERGE_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["show", path, "--json"])


def test_wrong_usage_is_refused(capsys: Captured) -> None:
    assert main(["compact"]) == 2
    assert main(["no-such-command"]) == 2
    assert main(["--help"]) == 0
    assert "maintain" in capsys.readouterr().out


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    for module in [name for name in sys.modules if name.startswith("lakemerge.cli.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delattr(lakemerge.cli, "app", raising=False)
    assert main(["show", "x"]) == 5
    assert capsys.readouterr().err == "lakemerge: the command line is not installed: pip install 'lakemerge[cli]'\n"


def test_what_people_type() -> None:
    assert [duration(text).total_seconds() for text in ("90s", "5m", "1.5h", "7d")] == [90, 300, 5400, 604_800]
    assert [byte_count(text) for text in ("10", "1k", "64MiB", "1.5GB")] == [10, 1024, 64 << 20, 1_500_000_000]
    for wrong in ("", "m", "-5m", "5 weeks"):
        with pytest.raises(InputError, match="is not a duration"):
            duration(wrong)
    with pytest.raises(InputError, match="too long"):
        duration("99999999999d")
    with pytest.raises(InputError, match="too large"):
        byte_count("9" * 400)


def test_storage_options_of_flags_go_over_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEMERGE_STORAGE_OPTIONS", '{"endpoint_url": "http://a", "key": "k"}')
    given = ["endpoint_url=http://b:9000/?x=1", "anon=true", "secret=0123", 'client_kwargs={"region_name": "eu"}']
    assert storage_options(given) == {
        "endpoint_url": "http://b:9000/?x=1", "key": "k", "anon": True, "secret": "0123",
        "client_kwargs": {"region_name": "eu"},
    }  # fmt: skip
    monkeypatch.setenv("LAKEMERGE_STORAGE_OPTIONS", "[]")
    with pytest.raises(InputError, match="is not a JSON object"):
        storage_options([])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_long_running_maintenance_ends_when_it_is_told_to(path: str, number: signal.Signals) -> None:
    """It maintains what becomes due while it runs, and on the signal ends with success."""
    LakeTable.open(path).alter(properties={"lakemerge.minorCompaction.afterCommits": "3"})
    command = [sys.executable, "-m", "lakemerge", "maintain", path, "--every", "0.2s"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        LakeTable.open(path).upsert(frame([("p0", 2, 5, "new")], ["p", "k", "o", "v"]))
        until = time.monotonic() + 60
        while LakeTable.open(path).opened.view.log_commits and time.monotonic() < until:
            time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopping after the current step" in err
    assert "Traceback" not in err
    assert "logs of at least 3 commits" in out
    assert not LakeTable.open(path).opened.view.log_commits


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_fault(path: str, closed: str) -> None:
    """A daemon may run a command so. Then no file that the command opens may become its output either."""
    before = LakeTable.open(path).version
    command = f'"$0" -m lakemerge compact "$1" --json {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = ["/bin/sh", "-c", command, sys.executable, path]
    done = subprocess.run(shell, check=False, env=environment, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert LakeTable.open(path).version > before
    assert LakeTable.check(path).ok


def test_the_script_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"lakemerge": "lakemerge.cli:main"}
    assert {requirement.split(">")[0] for requirement in project["optional-dependencies"]["cli"]} == {"rich", "typer"}
