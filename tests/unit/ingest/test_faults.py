"""Every call of the table's store and of the source fails in turn, or ends the process: each record is there once.

The table sums, so that a record that is lost or doubled shows in every row.
"""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable, OutcomeUnknownError, Settings
from lakemerge.ingest import Files, IngestJob
from lakemerge.ingest.places import Places
from lakemerge.ingest.source import Outcome, Source, SourceFile
from lakemerge.ingest.source_local import LocalSource
from lakemerge.layout.references import references
from lakemerge.testing.faults import Call, Fail, Fault
from tests.property.effort import some
from tests.unit.faults import listing, open_over
from tests.unit.ingest.landing import land, landed, rows, states, windows_of

SPREAD = Settings(inline_blocks=1, threads=1)
KEYS = 4


def create(path: Path) -> LakeTable:
    options = {"aggregates": {"n": "sum"}}
    table = LakeTable.create(
        path, "k BIGINT, n BIGINT", key=["k"], merger="aggregate", options=options, buckets=2, settings=SPREAD
    )
    table.upsert(pa.table({"k": range(KEYS), "n": [0] * KEYS}))
    return table


def fill(landing: Path) -> None:
    for number in range(3):
        land(landing, f"{number}.json", [{"k": k, "n": 10**number} for k in range(KEYS)], at=number)
    landed(landing / "3.json", b"junk\n", at=3)


def feed(table: LakeTable, landing: Path, *, after: Any = "keep", **more: Any) -> IngestJob:
    files = Files(landing, format="json", block_bytes=40)
    return table.ingest("feed", files, blocks_per_window=3, after=after, **more)


WHOLE = [(k, 111) for k in range(KEYS)]


def check(path: Path, landing: Path) -> None:
    """Run to the end without faults: each record is there once, and the ledger says so."""
    job = feed(LakeTable.open(path), landing)
    job.run()
    assert rows(LakeTable.open(path)) == WHOLE
    assert states(job) == {"0.json": "committed", "1.json": "committed", "2.json": "committed", "3.json": "failed"}
    assert job.status().rows == 3 * KEYS
    numbers = [info["window"] for info in windows_of(LakeTable.open(path))]
    assert numbers == list(range(1, len(numbers) + 1)), "windows follow each other"
    checked = LakeTable.check(path)
    assert checked.ok, str(checked)


def sums(path: Path) -> set[int]:
    """What the rows of a table in between may hold: files come in their order."""
    return {row[1] for row in rows(LakeTable.open(path))}


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    create(tmp_path / "ready")
    fill(tmp_path / "landing")
    return tmp_path


def calls_of(stage: Path, do: Callable[[IngestJob], object]) -> tuple[Call, ...]:
    shutil.copytree(stage / "ready", stage / "done")
    table, store = open_over(stage / "done", settings=SPREAD)
    do(feed(table, stage / "landing"))
    check(stage / "done", stage / "landing")
    return store.calls


@pytest.mark.long
@pytest.mark.parametrize("lasting", some([False, True]))
def test_the_tables_store_fails_at_every_call(lasting: bool, stage: Path) -> None:
    calls = calls_of(stage, lambda job: job.run())
    assert len(calls) > 30
    outcomes = set()
    for number, call in enumerate(calls, start=1):
        for after in (False, True):
            path = stage / f"{number} {after}"
            shutil.copytree(stage / "ready", path)
            fault = Fault(action=Fail(ConnectionError("gone")), at=number, after=after, lasting=lasting)
            table, _ = open_over(path, fault, settings=SPREAD)
            try:
                feed(table, stage / "landing").run()
                outcomes.add("done")
            except OutcomeUnknownError:
                outcomes.add("unknown")
            except (ConnectionError, LakeMergeError):
                outcomes.add("failed")
            assert sums(path) <= {0, 1, 11, 111}, call
            check(path, stage / "landing")
            shutil.rmtree(path)
    assert {"failed", "unknown" if lasting else "done"} <= outcomes


def test_what_failed_leaves_no_file(stage: Path) -> None:
    """But where the cleaning itself failed, or the outcome is not known."""
    path = stage / "ready"
    for number, call in enumerate(calls_of(stage, lambda job: job.run()), start=1):
        if call.method not in ("open_output", "publish", "put_if_absent") or "_delta_log/_" in call.path:
            continue
        copy = stage / f"copy {number}"
        shutil.copytree(path, copy)
        table, _ = open_over(copy, Fault(action=Fail(ConnectionError("gone")), at=number), settings=SPREAD)
        try:
            feed(table, stage / "landing").run()
        except (ConnectionError, LakeMergeError):
            there = {file for file in listing(copy) if not file.startswith("_delta_log/")}
            known = LakeTable.open(copy)
            store = known.opened.handle.store
            commits = known.opened.handle.log.commits(since=-1, until=known.version)
            named = {file for _, actions in commits for file in references(actions, store)}
            left = {file for file in there - named if not file.endswith(".clock")}
            assert not left, (call, left)
        shutil.rmtree(copy)


KILLED = """
import sys
from pathlib import Path
from lakemerge.layout.references import references
from lakemerge.testing.faults import Fault, Kill
from tests.unit.faults import open_over
from tests.unit.ingest.test_faults import SPREAD, feed
path, landing, number, after, end = sys.argv[1:]
fault = Fault(action=Kill(77), at=int(number), after=after == "True")
feed(open_over(Path(path), fault, settings=SPREAD)[0], Path(landing), after=end).run()
"""


@pytest.mark.long
def test_a_kill_at_calls_of_every_kind(stage: Path) -> None:
    calls = calls_of(stage, lambda job: job.run())
    kinds: dict[tuple[str, str, bool], int] = {}
    for number, call in enumerate(calls, start=1):
        for after in (False, True):
            if call.method in ("publish", "put_if_absent", "open_output"):
                kinds.setdefault((call.method, call.path.split("/")[-2], after), number)
    assert len(kinds) >= 10
    root = Path(__file__).resolve().parents[3]
    for place, ((_, _, after), number) in enumerate(sorted(kinds.items(), key=lambda kind: kind[1])):
        path, landing = stage / f"killed {place}", stage / f"landing {place}"
        shutil.copytree(stage / "ready", path)
        shutil.copytree(stage / "landing", landing)
        end = "archive" if place % 2 else "keep"
        command = [sys.executable, "-c", KILLED, str(path), str(landing), str(number), str(after), end]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
        assert done.returncode == 77, done.stderr
        assert sums(path) <= {0, 1, 11, 111}
        check(path, landing) if end == "keep" else feed(LakeTable.open(path), landing, after=end).run()
        assert rows(LakeTable.open(path)) == WHOLE


class FaultSource(Source):
    """Passes everything on, and raises at one call."""

    def __init__(self, action: Callable[[Call], object] | None, at: int) -> None:
        self.calls: list[Call] = []
        self._action, self._at = action, at
        self._source = LocalSource()

    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        for file in self._source.list(folder, recursive=recursive):
            self._call("list", file.path)
            yield file

    def stat(self, path: str) -> SourceFile | None:
        self._call("stat", path)
        return self._source.stat(path)

    def open(self, file: SourceFile) -> AbstractContextManager[pa.NativeFile]:
        return self._opened(file)

    @contextmanager
    def _opened(self, file: SourceFile) -> Iterator[pa.NativeFile]:
        self._call("open", file.path)
        with self._source.open(file) as data:
            yield data
            self._call("read", file.path)

    def delete(self, file: SourceFile) -> Outcome:
        self._call("delete", file.path)
        return self._source.delete(file)

    def move(self, file: SourceFile, target: str) -> Outcome:
        self._call("move", file.path)
        return self._source.move(file, target)

    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        return self._source.archived(folder)

    def _call(self, method: str, path: str) -> None:
        call = Call(method, path)
        self.calls.append(call)
        if self._action is not None and len(self.calls) == self._at:
            self._action(call)


@contextmanager
def over(source: Source) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Places, "of", lambda self, path: source)
        yield


@pytest.mark.parametrize("end", ["keep", "delete", "archive"])
def test_the_source_fails_at_every_call(end: str, stage: Path) -> None:
    quiet = FaultSource(None, 0)
    shutil.copytree(stage / "ready", stage / "done")
    shutil.copytree(stage / "landing", stage / "away")
    with over(quiet):
        feed(LakeTable.open(stage / "done", settings=SPREAD), stage / "away", after=end).run()
    assert {call.method for call in quiet.calls} >= {"list", "stat", "open", "read"}
    for number, call in enumerate(quiet.calls, start=1):
        path, landing = stage / f"{number}", stage / f"landing {number}"
        shutil.copytree(stage / "ready", path)
        shutil.copytree(stage / "landing", landing)
        with over(FaultSource(Fail(ConnectionError("gone")), number)), pytest.raises(ConnectionError):
            feed(LakeTable.open(path, settings=SPREAD), landing, after=end).run()
        result = feed(LakeTable.open(path, settings=SPREAD), landing, after=end)
        result.run()
        assert rows(LakeTable.open(path)) == WHOLE, call
        assert states(result)["3.json"] == "failed"


@dataclass(frozen=True)
class _Altering:
    alter: Callable[[Path], object]
    path: Path

    def __call__(self, call: Call) -> None:
        self.alter(self.path)


def _replace(path: Path) -> None:
    path.unlink()
    land(path.parent, path.name, [{"k": 0, "n": 5}], at=9)


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "vanishes": lambda path: path.unlink(),
    "shrinks": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "grows": lambda path: path.write_bytes(path.read_bytes() * 2),
    "is replaced": _replace,
    "becomes a folder": _make_folder,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_at_any_call_is_taken_as_it_was_or_as_it_is(change: str, stage: Path) -> None:
    """Never a mixture: the table has what its ledger tells of versions, and the last one whole."""
    (stage / "landing" / "3.json").unlink()
    before = (stage / "landing" / "1.json").stat().st_size
    quiet = FaultSource(None, 0)
    shutil.copytree(stage / "ready", stage / "done")
    with over(quiet):
        feed(LakeTable.open(stage / "done", settings=SPREAD), stage / "landing").run()
    for number in range(1, len(quiet.calls) + 1):
        path, landing = stage / f"{number}", stage / f"landing {number}"
        shutil.copytree(stage / "ready", path)
        shutil.copytree(stage / "landing", landing)
        target = landing / "1.json"
        with over(FaultSource(_Altering(CHANGES[change], target), number)):
            feed(LakeTable.open(path, settings=SPREAD), landing).run()
        job = feed(LakeTable.open(path, settings=SPREAD), landing)
        job.run()
        told = {str(Path(file.path).name) + str(file.size): file for file in job.files()}
        value = {"0": 1, "1": 10, "2": 100}
        replaced = change == "is replaced"
        expected = sum(
            file.rows * (5 if replaced and name[0] == "1" and file.size != before else value[name[0]])
            for name, file in told.items()
        )
        assert sum(row[1] for row in rows(LakeTable.open(path))) == expected, (number, quiet.calls[number - 1])
        present = [file for name, file in told.items() if target.is_file() and name == f"1.json{target.stat().st_size}"]
        states_now = {str(file.state) for file in present}
        assert states_now <= ({"failed", "committed"} if change == "shrinks" else {"committed"})
        others = {str(file.state) for name, file in told.items() if name[0] != "1"}
        assert others <= ({"committed", "failed"} if change == "shrinks" else {"committed"})


def test_a_runner_that_was_overtaken_by_a_vacuum_plans_anew(stage: Path) -> None:
    """Its ledger file went into a newer one, and a vacuum without retention took it."""
    path = stage / "ready"
    feed(LakeTable.open(path), stage / "landing").run()
    land(stage / "landing", "4.json", [{"k": 0, "n": 1000}], at=4)

    def overtake(call: Call) -> None:
        land(stage / "landing", "5.json", [{"k": 0, "n": 10_000}], at=5)
        other = LakeTable.open(path)
        feed(other, stage / "landing").run()
        other.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)

    table, _ = open_over(path, Fault(action=overtake, method="open_input", path="ledger"), settings=SPREAD)
    feed(table, stage / "landing").run()
    assert rows(LakeTable.open(path))[0] == (0, 11111)
