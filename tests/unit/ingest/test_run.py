"""What lands is in the table, once: discovery, windows, late and changed files, restores, two runners."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import InputError, LakeTable, TableReplacedError
from lakemerge.format.ingests import ingests_of
from lakemerge.format.ledger import ledger_tables
from lakemerge.ingest import Files, IngestJob
from lakemerge.ingest.discovery import Candidate
from lakemerge.ingest.formats.json_lines import JsonLines
from lakemerge.ingest.windows import Gathering, Window, Windows
from tests.unit.ingest.landing import FEED, land, landed, numbered, rows, states, windows_of


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.create(tmp_path / "table", FEED, key=["k"], ordering=["o"])


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def job(table: LakeTable, landing: Path, **more: Any) -> IngestJob:
    files = {name: more.pop(name) for name in list(more) if name in _OF_FILES}
    return table.ingest("feed", Files(landing, **{"format": "json", **files}), **more)


_OF_FILES = {"format", "pattern", "recursive", "block_bytes", "columns", "options", "settle", "overwrites"}


def test_what_lands_is_in_the_table_once(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 3))
    result = job(table, landing).run()
    assert (result.windows, result.files, result.rows, result.rejected, result.failed) == (1, 1, 3, 0, 0)
    again = job(table, landing).run()
    assert (again.windows, again.files, again.rows) == (0, 0, 0)
    land(landing, "b.json", [{"k": 1, "o": 2, "v": "new"}, {"k": 2, "o": 0, "v": "stale"}, {"k": 9, "o": 1, "v": "y"}])
    assert job(table, landing).run().rows == 3
    assert rows(table) == [(0, 1, "x"), (1, 2, "new"), (2, 1, "x"), (9, 1, "y")]
    assert [(info["window"], info["files"]) for info in windows_of(table)] == [(1, 1), (2, 1)]
    assert [entry.operation for entry in table.history()] == ["INGEST", "INGEST", "CREATE TABLE"]


def test_one_commit_has_records_ledger_and_transaction(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 3))
    job(table, landing).run()
    snapshot = table.opened.view.snapshot
    assert snapshot.version == 1
    told = ingests_of(snapshot)["feed"]
    assert (told.window, told.generation, told.table_id) == (1, 1, snapshot.metadata.id)
    assert snapshot.txns["lakemerge.ingest.feed"].version == 1
    (ledger,) = ledger_tables(table.opened.handle.store, told.ledger)
    assert ledger.select(["path", "state", "rows", "window"]).to_pylist() == [
        {"path": str(landing / "a.json"), "state": "committed", "rows": 3, "window": 1}
    ]
    assert told.source == {"locations": [str(landing)], "format": "json"}


def test_hidden_and_unfinished_names_are_passed_over(table: LakeTable, landing: Path) -> None:
    names = [
        ".a.json",
        "_a.json",
        "a.json.tmp",
        "a.json.part",
        "a._COPYING_",
        "_tmp/a.json",
        ".x/a.json",
        "sub/ok.json",
    ]
    for number, name in enumerate(names):
        land(landing / Path(name).parent, Path(name).name, numbered(number, number + 1))
    land(landing / "_day=1", "b.json", numbered(50, 51))
    job(table, landing).run()
    assert [row[0] for row in rows(table)] == [7, 50]


def test_patterns_and_recursion(table: LakeTable, landing: Path) -> None:
    for number, name in enumerate(["orders-1.json", "orders-2.jsonl", "other.json", "sub/orders-3.json"]):
        land(landing / Path(name).parent, Path(name).name, numbered(number, number + 1))
    job(table, landing, pattern=r"orders-.*\.json", recursive=False).run()
    assert [row[0] for row in rows(table)] == [0]
    job(table, landing, pattern=r"orders-.*\.jsonl?").run()
    assert [row[0] for row in rows(table)] == [0, 1, 3]


def test_several_places_and_a_callers_own_list(table: LakeTable, landing: Path, tmp_path: Path) -> None:
    land(landing / "x", "a.json", numbered(0, 1))
    land(landing / "y", "b.json", numbered(1, 2))
    single = land(tmp_path, "single.json", numbered(2, 3))
    both = Files(landing / "x", f"{landing}/y/", landing, str(single), format="json")
    assert table.ingest("both", both).run().files == 3
    listed = Files(iter([single, landing / "x" / "a.json", landing / "gone.json"]), format="json")
    assert table.ingest("own", listed).run().files == 2
    asked: list[int] = []

    def own() -> list[Path]:
        asked.append(1)
        return [single]

    again = table.ingest("function", Files(own, format="json"))
    assert (again.run().files, again.run().files, len(asked)) == (1, 0, 2)
    assert rows(table) == [(0, 1, "x"), (1, 1, "x"), (2, 1, "x")]


def test_a_late_file_is_never_lost(table: LakeTable, landing: Path) -> None:
    land(landing, "b.json", numbered(0, 1), at=1000)
    job(table, landing).run()
    land(landing, "a.json", numbered(1, 2), at=-9_000_000)
    land(landing, "c.json", numbered(2, 3), at=1000)
    assert job(table, landing).run().files == 2
    assert len(rows(table)) == 3


def test_files_are_taken_by_time_and_path(tmp_path: Path, landing: Path) -> None:
    """With commit-time the last record wins, so the order shows."""
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING", key=["k"])
    for name, at in (("c", 1), ("a", 2), ("b", 2), ("d", 0)):
        land(landing, f"{name}.json", [{"k": 1, "v": name}, {"k": 0, "v": name}], at=at)
    table.ingest("feed", Files(landing, format="json"), blocks_per_window=1).run()
    assert rows(table) == [(0, "b"), (1, "b")]
    assert len(windows_of(table)) == 4


@pytest.mark.parametrize(("block_bytes", "blocks"), [(16, 3), (50, 1), (7, 200), (1 << 20, 2)])
def test_windows_are_bounded_and_files_span_them(
    table: LakeTable, landing: Path, block_bytes: int, blocks: int
) -> None:
    for number in range(3):
        land(landing, f"{number}.json", numbered(10 * number, 10 * number + 10), at=number)
    feed = job(table, landing, block_bytes=block_bytes, blocks_per_window=blocks)
    result = feed.run()
    assert (result.files, result.rows) == (3, 30)
    assert rows(table) == [(k, 1, "x") for k in range(30)]
    infos = windows_of(table)
    assert all(info["blocks"] <= blocks for info in infos)
    sizes = [file.size for file in feed.files()]
    expected = sum(-(-size // block_bytes) for size in sizes)
    assert sum(info["blocks"] for info in infos) == expected
    assert result.windows == len(infos) == -(-expected // blocks)
    assert all(file.state == "committed" and file.bytes == file.size for file in feed.files())


def test_bytes_bound_a_window(table: LakeTable, landing: Path) -> None:
    sizes = [os.stat(land(landing, f"{n}.json", numbered(n, n + 1), at=n)).st_size for n in range(4)]
    landed(landing / "4.json.gz", gzip.compress(b'{"k":4,"o":1,"v":"x"}\n'), at=4)
    result = job(table, landing, bytes_per_window=sizes[0] * 2).run()
    assert [info["files"] for info in windows_of(table)] == [2, 2, 1]
    assert result.rows == 5


def test_a_run_goes_on_in_the_middle_of_a_file(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 50))
    feed = job(table, landing, block_bytes=100, blocks_per_window=2)
    stop = iter([False, True])
    runner = feed._needed().runner(feed._table, "feed", lambda: next(stop))
    feed._run_once(runner, drain=False)
    (file,) = feed.files()
    assert (str(file.state), file.bytes, file.rows < 50) == ("seen", 200, True)
    assert feed.status().files == {"seen": 1}
    job(table, landing, block_bytes=77, blocks_per_window=3).run()
    assert rows(table) == [(k, 1, "x") for k in range(50)]
    assert [f.rows for f in feed.files()] == [50]


def test_a_changed_file_is_a_new_version_or_is_refused(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1))
    job(table, landing).run()
    land(landing, "a.json", [{"k": 0, "o": 5, "v": "again"}, {"k": 1, "o": 5, "v": "more"}])
    refusing = job(table, landing, overwrites="refuse")
    assert refusing.run().files == 0
    assert [str(file.state) for file in refusing.files()] == ["committed", "changed"]
    versions = table.version
    refusing.run()
    assert table.version == versions, "it is noted once"
    assert refusing.retry([landing / "a.json"]) == 1
    assert job(table, landing, overwrites="ingest").run().files == 1
    assert rows(table) == [(0, 5, "again"), (1, 5, "more")]


def test_files_of_the_same_instant_and_size_are_told_apart(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    job(table, landing).run()
    # It stays elsewhere, so that the new file cannot get its inode.
    (landing / "a.json").rename(landing.parent / "moved")
    land(landing, "a.json", numbered(1, 2), at=1)
    job(table, landing).run()
    assert len(rows(table)) == 2


def test_files_that_are_written_are_waited_for(table: LakeTable, landing: Path) -> None:
    path = land(landing, "a.json", numbered(0, 1))
    feed = job(table, landing, settle="1h")
    assert feed.run().files == 0
    assert states(feed) == {"a.json": "settling"}
    os.utime(path, ns=(0, time.time_ns() - 3_700 * 10**9))
    assert feed.run().files == 1


def test_a_file_that_grew_while_it_was_read_is_not_taken_in_part(
    table: LakeTable, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = land(landing, "a.json", numbered(0, 5))
    parsed = JsonLines.parsed

    def growing(self: JsonLines, *arguments: Any) -> Any:
        yield from parsed(self, *arguments)
        with path.open("a") as file:
            file.write('{"k": 77, "o": 1}\n')

    with monkeypatch.context() as patch:
        patch.setattr(JsonLines, "parsed", growing)
        land(landing, "b.json", numbered(90, 91))
        feed = job(table, landing)
        assert feed.run().files == 1
    assert [row[0] for row in rows(table)] == [90]
    assert feed.run().files == 1
    assert sorted(row[0] for row in rows(table)) == [0, 1, 2, 3, 4, 77, 90]


def test_columns_decide_which_files_share_a_window(tmp_path: Path, landing: Path) -> None:
    """Else a column that one file lacks would be null for its records, and overwrite values in a partial update."""
    table = LakeTable.create(tmp_path / "t", "k BIGINT, a STRING, b STRING", key=["k"], merger="partial-update")
    landed(landing / "1.csv", b"k,a,b\n1,a1,b1\n2,a2,b2\n", at=1)
    landed(landing / "2.csv", b"k,a\n1,A1\n", at=2)
    landed(landing / "3.csv", b"A,K\nA2,2\n", at=3)
    landed(landing / "4.csv", b"", at=4)
    landed(landing / "5.csv", b"b,k\nB2,2\n", at=5)
    result = table.ingest("feed", Files(landing, format="csv")).run()
    assert (result.windows, result.files, result.rows) == (3, 5, 5)
    assert rows(table) == [(1, "A1", "b1"), (2, "A2", "B2")]


def test_parquet_files_by_row_groups(table: LakeTable, landing: Path) -> None:
    for number in range(2):
        keys = range(number * 1000, number * 1000 + 1000)
        frame = pa.table({"k": keys, "o": pa.array([1] * 1000, pa.int16()), "v": [f"v{k}" for k in keys]})
        pq.write_table(frame, landing / f"{number}.parquet", row_group_size=100)
    result = job(table, landing, format="parquet", block_bytes=2000, blocks_per_window=3).run()
    assert (result.files, result.rows) == (2, 2000)
    assert rows(table) == [(k, 1, f"v{k}") for k in range(2000)]


def test_a_restored_table_is_not_filled_before_a_reset(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    feed = job(table, landing)
    feed.run()
    land(landing, "b.json", numbered(1, 2), at=2)
    feed.run()
    table.restore(version=1)
    assert feed.status().needs_reset
    assert "call reset" in str(feed.status())
    with pytest.raises(InputError, match=r"restored after window 2.*reset"):
        feed.run()
    feed.reset(seen="keep")
    assert feed.run().files == 0
    assert rows(table) == [(0, 1, "x")]
    feed.reset(seen="forget")
    assert (feed.run().files, feed.status().generation) == (2, 3)
    assert rows(table) == [(0, 1, "x"), (1, 1, "x")]
    assert table.opened.view.snapshot.txns["lakemerge.ingest.feed"].version == feed.status().window == 5


def test_a_table_made_anew_has_nothing_of_the_old_ones_files(table: LakeTable, landing: Path, tmp_path: Path) -> None:
    land(landing, "a.json", numbered(0, 1))
    old = job(table, landing)
    old.run()
    shutil.rmtree(tmp_path / "table")
    anew = LakeTable.create(tmp_path / "table", FEED, key=["k"], ordering=["o"])
    with pytest.raises(TableReplacedError):
        old.run()
    assert job(anew, landing).run().files == 1
    assert rows(anew) == [(0, 1, "x")]


def test_an_altered_table_takes_new_columns_from_its_next_window_on(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1), at=1)
    feed = job(table, landing)
    feed.run()
    LakeTable.open(table.url).alter(add_columns="w BIGINT")
    land(landing, "b.json", [{"k": 1, "o": 1, "v": "x", "w": 7}], at=2)
    assert feed.run().rows == 1
    assert rows(table) == [(0, 1, "x", None), (1, 1, "x", 7)]


def test_two_runners_take_each_file_once(table: LakeTable, landing: Path) -> None:
    for number in range(12):
        land(landing, f"{number:02d}.json", numbered(number, number + 1), at=number)
    table.upsert(pa.table({"k": [99], "o": [1], "v": ["x"]}))
    jobs = [job(LakeTable.open(table.url), landing, blocks_per_window=1) for _ in range(3)]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda feed=feed: results.append(feed.run())) for feed in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result.rows for result in results) == 12
    infos = windows_of(table)
    assert [info["window"] for info in infos] == list(range(1, 13))
    assert len(rows(table)) == 13


def test_jobs_of_different_names_do_not_know_each_other(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1))
    assert table.ingest("one", Files(landing, format="json")).run().files == 1
    assert table.ingest("two", Files(landing, format="json")).run().files == 1
    assert sorted(ingests_of(table.opened.view.snapshot)) == ["one", "two"]


def test_a_job_that_goes_on_scans_at_its_interval_and_when_asked(table: LakeTable, landing: Path) -> None:
    land(landing, "a.json", numbered(0, 1))
    feed = job(table, landing)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(feed.run(every="1h")))
    thread.start()
    try:
        _until(lambda: len(rows(LakeTable.open(table.url))) == 1)
        with pytest.raises(InputError, match="is running in another thread"):
            feed.run()
        land(landing, "b.json", numbered(1, 2))
        feed.trigger()
        _until(lambda: len(rows(LakeTable.open(table.url))) == 2)
    finally:
        feed.stop()
        thread.join()
    assert (results[0].files, results[0].windows) == (2, 2)


def _until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_million_blocks_are_not_made(table: LakeTable, landing: Path) -> None:
    """A file of a terabyte plans at once: its blocks are numbers."""
    gathering = Gathering(Files(landing, format="json", block_bytes=1000), JsonLines(), 200, 1 << 40)
    windows = Windows(gathering).of(iter([Candidate(0, "big", 10**12, "t", 0)]))
    first, second = next(windows), next(windows)
    assert isinstance(first, Window)
    assert isinstance(second, Window)
    assert [m.piece[1:5] for m in (*first.members, *second.members)] == [
        (0, 200, 0, 200_000),
        (200, 200, 200_000, 200_000),
    ]
