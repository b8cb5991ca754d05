"""Ingest beside the services of a table: vacuum, check, restore, savepoints, damage; and its commands."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, TableDamagedError
from lakemerge.cli import main
from lakemerge.delta import Attempt, DomainMetadata
from lakemerge.format.ingests import INGEST_FOLDER, Ingest, NamedFile, ingests_of
from lakemerge.format.ledger import ledger_tables
from lakemerge.ingest import Files, IngestJob
from lakemerge.layout.references import snapshot_references
from tests.unit.faults import listing
from tests.unit.ingest.landing import FEED, land, landed, numbered, rows

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.create(tmp_path / "table", FEED, key=["k"], ordering=["o"])


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def job(table: LakeTable, landing: Path) -> IngestJob:
    return table.ingest(
        "feed", Files(landing, format="json"), blocks_per_window=1, bad_records="quarantine", max_bad_records=None
    )


def fill(table: LakeTable, landing: Path, start: int, stop: int) -> IngestJob:
    for number in range(start, stop):
        landed(landing / f"{number}.json", b'junk\n{"k":%d,"o":1,"v":"x"}\n' % number, at=number)
    feed = job(table, landing)
    feed.run()
    return feed


def test_a_vacuum_keeps_what_the_job_needs_and_takes_the_rest(table: LakeTable, landing: Path) -> None:
    feed = fill(table, landing, 0, 12)
    written = {path for path in listing(Path(table.url)) if path.startswith(INGEST_FOLDER)}
    needed = set(ingests_of(table.opened.view.snapshot)["feed"].paths)
    assert needed < written
    assert needed <= snapshot_references(table.opened.view.snapshot, table.opened.handle.store)
    result = table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    left = {path for path in listing(Path(table.url)) if path.startswith(INGEST_FOLDER)}
    assert result.files["ingest"] == len(written) - len(left)
    assert left == needed
    assert (feed.rejects().num_rows, feed.status().rows) == (12, 12)
    assert job(LakeTable.open(table.url), landing).run().files == 0
    assert len(rows(table)) == 12


def test_files_of_a_killed_run_go_with_a_vacuum(table: LakeTable, landing: Path) -> None:
    fill(table, landing, 0, 1)
    left = Path(table.url) / INGEST_FOLDER / f"{0:020d}-11111111-2222-3333-4444-555555555555-ledger.parquet"
    left.write_bytes(b"half")
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert not left.exists()


def test_a_savepoint_keeps_the_ledger_of_its_version(table: LakeTable, landing: Path) -> None:
    fill(table, landing, 0, 1)
    table.savepoint("early")
    fill(table, landing, 1, 9)
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    then = LakeTable.open(table.url, savepoint="early")
    assert [Path(file.path).name for file in then.ingest("feed").files()] == ["0.json"]


def test_check_looks_at_ledgers_and_rejects(table: LakeTable, landing: Path) -> None:
    fill(table, landing, 0, 3)
    assert LakeTable.check(table.url).ok
    told = ingests_of(table.opened.view.snapshot)["feed"]
    ledger, rejects = (Path(table.url) / files[-1].path for files in (told.ledger, told.rejects))
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-1])
    assert "the log says" in str(LakeTable.check(table.url))
    ledger.write_bytes(b"\0" * len(whole))
    (finding,) = LakeTable.check(table.url).findings
    assert (finding.path, "cannot be read" in finding.problem) == (told.ledger[-1].path, True)
    assert "reset the ingest job" in finding.remedy
    ledger.write_bytes(whole)
    rejects.unlink()
    assert "this file is missing" in str(LakeTable.check(table.url))


def test_a_ledger_that_says_other_things_than_its_domain_is_told(table: LakeTable, landing: Path) -> None:
    fill(table, landing, 0, 3)
    told = ingests_of(table.opened.view.snapshot)["feed"]
    wrong = replace(told, ledger=tuple(replace(file, rows=file.rows + 1) for file in told.ledger))
    _with_domain(table, wrong.domain())
    assert "rows; the log says" in str(LakeTable.check(table.url))
    _with_domain(LakeTable.open(table.url), replace(told, window=1).domain())
    assert "the last one of job 'feed' is 1" in str(LakeTable.check(table.url))


def test_pieces_that_do_not_follow_each_other_are_told(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 30), at=1)
    table.ingest("feed", Files(landing, format="json", block_bytes=100), blocks_per_window=1).run()
    told = ingests_of(table.opened.view.snapshot)["feed"]
    pieces = pa.concat_tables(ledger_tables(table.opened.handle.store, told.ledger))
    left = pa.concat_tables([pieces.slice(0, 1), pieces.slice(2)])
    path = Path(table.url) / told.ledger[0].path
    pq.write_table(left, path)
    file = NamedFile(told.ledger[0].path, path.stat().st_size, left.num_rows)
    _with_domain(table, replace(told, ledger=(file,)).domain())
    assert f"pieces of {landing / 'a.json'} do not follow each other" in str(LakeTable.check(table.url))


def _with_domain(table: LakeTable, domain: DomainMetadata) -> None:
    table.opened.handle.log.commit(
        table.opened.view.snapshot, lambda tip: Attempt([domain]), operation="TEST", parameters={}
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", -1),
        ("window", "x"),
        ("ledger", [["../outside.parquet", 1, 1]]),
        ("ledger", [["/etc/passwd", 1, 1]]),
        ("ledger", [[1]]),
        ("rejects", 5),
        ("tableId", 7),
        ("source", []),
        ("generation", None),
    ],
)
def test_a_damaged_domain_is_damage(name: str, value: object, table: LakeTable, landing: Path) -> None:
    fill(table, landing, 0, 1)
    domain = table.opened.view.snapshot.domains["lakemerge.ingest.feed"]
    body = {**orjson.loads(domain.configuration), name: value}
    _with_domain(table, DomainMetadata(domain.domain, orjson.dumps(body).decode(), False))
    with pytest.raises(TableDamagedError, match=r"domain 'lakemerge\.ingest\.feed' is damaged"):
        job(LakeTable.open(table.url), landing).run()


def test_a_domain_is_what_it_was() -> None:
    told = Ingest(
        "a.b-c", "id", 2, 3, 4, (NamedFile("x/y.parquet", 5, 6),), (NamedFile("z.parquet", 7, 8),), {"format": "json"}
    )
    assert Ingest.of(told.domain()) == told


def test_a_restore_keeps_the_job_of_now(table: LakeTable, landing: Path) -> None:
    fill(table, landing, 0, 2)
    before = ingests_of(table.opened.view.snapshot)
    table.restore(version=1)
    assert ingests_of(table.opened.view.snapshot) == before
    table.restore(version=2)
    assert job(table, landing).status().needs_reset, "even where the rows are back: nobody can tell"


def test_compactions_and_log_compactions_do_not_disturb_it(table: LakeTable, landing: Path) -> None:
    feed = fill(table, landing, 0, 4)
    table.compact(minor=True)
    fill(table, landing, 4, 6)
    table.compact_logs()
    fill(table, landing, 6, 7)
    table.compact()
    assert len(rows(table)) == 7
    assert feed.run().files == 0


def test_inline_maintenance_comes_after_windows(landing: Path, tmp_path: Path) -> None:
    properties = {"lakemerge.maintenance.inline": "true", "lakemerge.compaction.afterCommits": "2"}
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"], properties=properties)
    fill(table, landing, 0, 6)
    assert "COMPACT" in {entry.operation for entry in table.history()}


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_the_command_takes_up_what_is_there(
    table: LakeTable, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(landing, "a.json", numbered(0, 3), at=1)
    assert run("ingest", table.url, landing, "--format", "json") == 0
    told = capsys.readouterr()
    assert "1 loaded, 0 failed" in told.out
    assert "ingest default: window 1, 1 blocks of 1 files, 3 rows" in told.err
    assert run("ingest", "status", table.url) == 0
    out = capsys.readouterr().out
    assert "1 committed" in out
    assert "3 rows" in out
    size = (landing / "a.json").stat().st_size
    landed(landing / "b.json", b"junk\n", at=2)
    assert run("ingest", table.url, landing, "--format", "json", "-q") == 1
    capsys.readouterr()
    assert run("show", table.url) == 0
    shown = " ".join(capsys.readouterr().out.split())
    expected = f"window 2, 1 committed, 1 failed; 3 rows of {size} bytes, 0 rejected; json from {landing}"
    assert f"ingest default {expected} column" in shown
    table.restore(version=1)
    assert run("show", table.url) == 0
    assert "the table was restored: call reset" in " ".join(capsys.readouterr().out.split())


def test_the_command_ends_with_1_where_files_failed(
    table: LakeTable, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = landed(landing / "a.json", b"junk\n", at=1)
    assert run("ingest", table.url, landing, "--format", "json", "--name", "feed", "-q") == 1
    capsys.readouterr()
    assert run("ingest", "files", table.url, "--state", "failed") == 0
    assert f"{path}" in capsys.readouterr().out
    assert run("ingest", "retry", table.url, path) == 0
    assert "1 files are put back" in capsys.readouterr().out
    more = ["--bad-records", "quarantine", "--max-bad-records", "any", "--name", "feed", "-q"]
    assert run("ingest", table.url, landing, "--format", "json", *more) == 0
    capsys.readouterr()
    assert run("ingest", "files", table.url, "--rejects") == 0
    assert "junk" in capsys.readouterr().out


def test_options_of_the_command_are_those_of_the_call(
    table: LakeTable, landing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in (2, 1):
        landed(landing / f"x-{part}-of-2.csv", b"%d;1;x;9\n" % part, at=part)
    options = ["--format", "csv", "--option", "delimiter=;", "--option", "header=false", "--column", "k", "--column"]
    options += ["o", "--column", "v", "--column", "extra", "--merge-schema", "--fragments", "--max-age", "1h"]
    options += ["--pattern", r"(?P<identifier>x)-(?P<index>\d)-of-(?P<count>\d)\.csv", "--after", "archive"]
    options += ["--archive", str(tmp_path / "archive"), "--archive-max-bytes", "1GiB", "--block-bytes", "1KiB"]
    assert run("ingest", table.url, landing, *options) == 0
    assert rows(table) == [(1, 1, "x", "9"), (2, 1, "x", "9")]
    assert len(list((tmp_path / "archive").rglob("*.csv"))) == 2
    other = LakeTable.create(tmp_path / "other", FEED + ", extra STRING", key=["k"], ordering=["o"])
    again = [*options[:15], "--archive", str(tmp_path / "archive"), "--into", other.url, "--window", "1"]
    assert run("ingest", "replay", table.url, landing, *again) == 0
    assert rows(other) == rows(table)
    assert run("ingest", "reset", table.url, "--seen", "forget") == 0
    assert "generation 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{table}", "{landing}", "--format", "json", "--max-bad-records", "few"], "must be a number, or 'any'"),
        (["{table}", "{landing}", "--format", "json", "--archive", "x"], "need --after archive"),
        (["{table}", "{landing}", "--format", "json", "--option", "x"], "is not NAME=VALUE"),
        (["{table}", "{landing}", "--format", "xml"], "format must be one of"),
        (["{table}", "{landing}", "--format", "json", "--every", "often"], "is not a duration"),
        (["status", "{table}"], "which ingest job of the table is meant? it has none"),
        (["retry", "{table}", "--name", "feed"], "the table has no ingest job 'feed'"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, table: LakeTable, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("ingest", *(part.format(table=table.url, landing=landing) for part in arguments)) == 2
    assert message in capsys.readouterr().err


def test_a_command_that_goes_on_ends_when_it_is_told_to(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    code = "import sys; from lakemerge.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "ingest", table.url, str(landing), "--format", "json", "--every", "50ms"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        for number, name in enumerate(("a.json", "b.json"), start=1):
            while len(rows(LakeTable.open(table.url))) < number:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            if name == "a.json":
                land(landing, "b.json", numbered(1, 2), at=2)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert b"2 loaded" in out
    finally:
        process.kill()


def test_nothing_secret_is_in_the_tables_folder(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    files = Files(landing, format="json", storage_options={"key": "SECRETKEY", "secret": "SECRETVALUE"})
    table.ingest("feed", files).run()
    assert "SECRET" not in repr(table.ingest("feed", files))
    for path in Path(table.url).rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes()
