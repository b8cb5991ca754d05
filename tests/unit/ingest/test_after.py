"""What becomes of files afterwards, back-pressure, and windows that are read once more."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lakemerge import InputError, LakeTable
from lakemerge.ingest import Archive, Bins, Files, Fragments, IngestJob
from lakemerge.ingest.results import entries_of
from lakemerge.ingest.source_local import LocalSource
from tests.unit.ingest.landing import FEED, land, landed, numbered, rows, states, windows_of


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.create(tmp_path / "table", FEED, key=["k"], ordering=["o"])


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def job(table: LakeTable, landing: Path, **more: Any) -> IngestJob:
    files = {name: more.pop(name) for name in ("block_bytes", "pattern") if name in more}
    return table.ingest("feed", Files(landing, format="json", **files), **more)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_kept_unless_told_otherwise(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1))
    job(table, landing).run()
    assert names(landing) == ["a.json"]


def test_files_are_deleted_once_all_of_them_is_in_the_table(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 30), at=1)
    feed = job(table, landing, after="delete", block_bytes=50, blocks_per_window=2)
    stop = iter([False, True])
    runner = feed._needed().runner(feed._table, "feed", lambda: next(stop))
    feed._run_once(runner, drain=False)
    assert names(landing) == ["a.json"]
    feed.run()
    assert names(landing) == []
    landed(landing / "b.json", b"junk\n", at=2)
    assert (feed.run().failed, names(landing)) == (1, ["b.json"])
    assert len(rows(table)) == 30
    assert states(feed) == {"a.json": "committed", "b.json": "failed"}


def test_files_are_moved_to_an_archive(table: LakeTable, landing: Path, tmp_path: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    land(landing / "sub", "b.json", numbered(1, 2), at=2)
    job(table, landing, after="archive", blocks_per_window=1).run()
    assert names(landing) == [f"_archive/{1:020d}/a.json", f"_archive/{2:020d}/sub/b.json"]
    land(landing, "a.json", numbered(5, 6), at=3)
    elsewhere = Archive(folder=str(tmp_path / "archive"))
    assert job(table, landing, after=elsewhere).run().files == 1
    assert names(tmp_path / "archive") == [f"{3:020d}/a.json"]
    assert job(table, landing, after=elsewhere).run().files == 0


def test_what_a_killed_run_did_not_get_to_is_done_by_the_next(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    job(table, landing).run()
    assert job(table, landing, after="delete").run().files == 0
    assert names(landing) == []


def test_another_version_of_the_file_stays(table: LakeTable, landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    feed = job(table, landing, after="delete")
    runner = feed._needed().runner(feed._table, "feed", lambda: False)
    assert runner.afterwards is not None
    before = type(runner.afterwards).do

    def late(self: Any, files: Any) -> None:
        taken_up = list(files)
        if taken_up:
            land(landing, "a.json", numbered(7, 8), at=9)
        before(self, taken_up)

    with monkeypatch.context() as patch:
        patch.setattr(type(runner.afterwards), "do", late)
        feed.run()
    assert names(landing) == ["a.json"]
    assert feed.run().files == 1
    assert ([row[0] for row in rows(table)], names(landing)) == ([0, 7], [])


def test_a_file_that_changed_as_it_was_moved_goes_back(landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = landed(landing / "a", b"old", at=1)
    source = LocalSource()
    file = source.stat(str(path))
    assert file is not None
    rename = os.rename

    def late(before: str, after: str) -> None:
        landed(path, b"newer", at=2)
        rename(before, after)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", late)
        assert source.move(file, str(landing / "_archive" / "a")).value == "changed"
    assert (names(landing), path.read_bytes()) == (["a"], b"newer")


def test_a_move_to_another_file_system_is_a_copy(landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = landed(landing / "a", b"data", at=1)
    source = LocalSource()
    file = source.stat(str(path))
    assert file is not None

    def refuse(before: str, after: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        assert source.move(file, str(landing / "_archive" / "a")).value == "done"
        assert source.move(file, str(landing / "_archive" / "b")).value == "gone"
    assert names(landing) == ["_archive/a"]


def test_an_archive_is_bounded_by_bytes_and_age_oldest_first(table: LakeTable, landing: Path) -> None:
    size = 0
    for number in range(4):
        size = os.stat(land(landing, f"{number}.json", numbered(number, number + 1), at=number)).st_size
    job(table, landing, after=Archive(max_bytes=2 * size), blocks_per_window=1).run()
    assert names(landing) == [f"_archive/{3:020d}/2.json", f"_archive/{4:020d}/3.json"]
    time.sleep(0.05)
    land(landing, "4.json", numbered(4, 5), at=4)
    job(table, landing, after=Archive(max_age="20ms")).run()
    assert names(landing) == [f"_archive/{5:020d}/4.json"]


@pytest.mark.parametrize(
    ("archive", "problem"),
    [({"folder": "{landing}/done"}, "name its folder with an underscore"), ({"max_age": "x"}, "is not a duration")],
)
def test_archives_that_cannot_be_are_refused(
    archive: dict[str, Any], problem: str, table: LakeTable, landing: Path
) -> None:
    given = {name: value.format(landing=landing) for name, value in archive.items()}
    with pytest.raises(InputError, match=problem):
        job(table, landing, after=Archive(**given))
    bounded = Archive(max_bytes=1)
    with pytest.raises(InputError, match="needs a folder"):
        table.ingest("feed", Files(iter([landing]), format="json"), after=bounded)


def test_above_the_limit_maintenance_comes_first(table: LakeTable, landing: Path) -> None:
    for number in range(6):
        land(landing, f"{number}.json", numbered(0, 200, o=number), at=number)
    result = job(table, landing, blocks_per_window=1, max_read_amplification=1.5).run()
    operations = [entry.operation for entry in reversed(table.history())]
    assert (result.windows, result.waiting) == (6, None)
    compactions = [place for place, operation in enumerate(operations) if operation == "COMPACT"]
    assert compactions
    assert operations[-1] == "INGEST"
    assert {row[1] for row in rows(table)} == {5}


def test_a_job_that_maintenance_does_not_help_waits_and_says_so(
    table: LakeTable, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(landing, "a.json", numbered(0, 9), at=1)
    job(table, landing).run()
    land(landing, "b.json", numbered(0, 9, o=2), at=2)
    job(table, landing).run()
    land(landing, "c.json", numbered(0, 9, o=3), at=3)
    for name in ("maintain_open", "compact_open"):
        monkeypatch.setattr(f"lakemerge.ingest.settings.{name}", lambda table: None)
    result = job(table, landing, max_read_amplification=1.0, bins=Bins()).run()
    assert (result.windows, result.files) == (0, 0)
    assert "read amplification is" in str(result.waiting)
    assert "above 1, also after maintenance" in str(result.waiting)
    monkeypatch.undo()
    assert job(table, landing, max_read_amplification=1.0).run().files == 1


def test_windows_are_replayed_into_another_table_once(table: LakeTable, landing: Path, tmp_path: Path) -> None:
    for number in range(3):
        land(landing, f"{number}.json", numbered(10 * number, 10 * number + 10), at=number)
    landed(landing / "1.json", b'{"k":10,"o":1,"v":"x"}\njunk\n' * 2, at=1)
    feed = job(table, landing, block_bytes=40, blocks_per_window=3, bad_records="quarantine", max_bad_records=None)
    first = feed.run()
    other = LakeTable.create(tmp_path / "other", FEED, key=["k"], ordering=["o"])
    result = job(table, landing, bad_records="quarantine", max_bad_records=None).replay(into=other)
    assert (result.windows, result.rows, result.rejected) == (first.windows, first.rows, 2)
    assert rows(other) == rows(table)
    again = feed.replay(into=str(tmp_path / "other"))
    assert (again.windows, again.rows) == (0, 0)
    assert feed.replay(into=other, windows=[1], force=True).windows == 1
    replayed = [info["replayOf"] for info in windows_of(other)]
    assert replayed == [*range(1, first.windows + 1), 1]
    assert names(tmp_path / "other" / "_lakemerge" / "ingest") == []


def test_a_window_is_what_it_was(tmp_path: Path, landing: Path) -> None:
    """Its blocks are those of then, also where the job cuts blocks otherwise by now."""
    table = summing(tmp_path / "t", "sum")
    land(landing, "a.json", [{"k": k % 2, "n": 1} for k in range(30)], at=1)
    feed = table.ingest("feed", Files(landing, format="json", block_bytes=50), blocks_per_window=2)
    feed.run()
    counts = [entry.rows for entries in _entries(feed) for entry in entries]
    for number, count in enumerate(counts, start=1):
        other = summing(tmp_path / f"t{number}", "sum")
        otherwise = table.ingest("feed", Files(landing, format="json", block_bytes=7))
        assert otherwise.replay(windows=number, into=other).rows == count
        assert sum(row[1] for row in rows(other)) == count
    assert sum(counts) == 30


def test_a_replay_of_some_windows_does_not_stand_for_those_before(tmp_path: Path, landing: Path) -> None:
    """In whatever order windows are replayed, each is there once in the end."""
    table, other = summing(tmp_path / "t", "sum"), summing(tmp_path / "other", "sum")
    feed = table.ingest("feed", Files(landing, format="json"))
    for number in range(4):
        land(landing, f"{number}.json", [{"k": number, "n": 1}], at=number)
        feed.run()
    taken = [feed.replay(into=other, windows=windows).windows for windows in ([3], [2], [3, 4], None, None, [1])]
    assert taken == [1, 1, 1, 1, 0, 0]
    assert rows(other) == [(number, 1) for number in range(4)]


def summing(path: Path, function: str) -> LakeTable:
    options = {"aggregates": {"n": function}}
    return LakeTable.create(path, "k BIGINT, n BIGINT", key=["k"], merger="aggregate", options=options)


def _entries(feed: IngestJob) -> Any:
    return entries_of(feed._table.handle, feed._standing())


def test_a_replay_into_the_own_table_needs_a_merger_that_does_not_mind(tmp_path: Path, landing: Path) -> None:
    land(landing, "a.json", [{"k": 1, "n": 5}], at=1)
    for function, safe in (("max", True), ("sum", False)):
        table = summing(tmp_path / function, function)
        feed = table.ingest("feed", Files(landing, format="json"))
        feed.run()
        if safe:
            assert feed.replay(windows=[1]).rows == 1
            assert rows(table) == [(1, 5)]
            continue
        before = table.version
        with pytest.raises(InputError, match="replay_safe"):
            feed.replay(windows=[1])
        assert (table.version, rows(table)) == (before, [(1, 5)])
        feed.replay(windows=[1], force=True)
        assert rows(table) == [(1, 10)]


def test_a_replay_reads_the_archive(table: LakeTable, landing: Path, tmp_path: Path) -> None:
    land(landing, "a.json", numbered(0, 3), at=1)
    feed = job(table, landing, after="archive")
    feed.run()
    other = LakeTable.create(tmp_path / "other", FEED, key=["k"], ordering=["o"])
    assert feed.replay(into=other).rows == 3
    assert rows(other) == rows(table)


def test_what_cannot_be_replayed_is_told(table: LakeTable, landing: Path, tmp_path: Path) -> None:
    land(landing, "a.json", numbered(0, 3), at=1)
    land(landing, "b.json", numbered(3, 6), at=2)
    feed = job(table, landing, blocks_per_window=1)
    feed.run()
    other = LakeTable.create(tmp_path / "other", FEED, key=["k"], ordering=["o"])
    with pytest.raises(InputError, match="window 9 of ingest job 'feed' has no records"):
        feed.replay(windows=[1, 9], into=other)
    land(landing, "a.json", numbered(50, 60), at=3)
    with pytest.raises(InputError, match=r"window 1 cannot be replayed: .*a\.json was changed since"):
        feed.replay(windows=[1], into=other)
    os.unlink(landing / "b.json")
    with pytest.raises(InputError, match=r"window 2 cannot be replayed: .*b\.json is not there any more"):
        feed.replay(windows=2, into=other)
    assert rows(other) == []


def test_a_set_is_replayed_in_the_order_of_its_indices(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING", key=["k"])
    for at, index in enumerate((10, 2, 9)):
        land(landing, f"x-{index}-of-3.json", [{"k": 0, "v": str(index)}], at=at)
    pattern = r"(?P<identifier>x)-(?P<index>\d+)-of-(?P<count>\d)\.json"
    feed = table.ingest("feed", Files(landing, format="json", pattern=pattern), fragments=Fragments())
    feed.run()
    other = LakeTable.create(tmp_path / "other", "k BIGINT, v STRING", key=["k"])
    feed.replay(into=other)
    assert rows(other) == rows(table) == [(0, "10")]
