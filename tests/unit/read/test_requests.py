"""How many objects a read asks for: each base file and each live log block once, and nothing that is not needed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.storage import LocalStore
from lakemerge.storage.base import FileStat
from lakemerge.table.opening import open_table
from lakemerge.testing.counting import CountingStore
from tests.packages import needs_newer_arrow
from tests.unit.faults import create, frame, listing

BUCKETS, COMMITS, ROWS = 8, 5, 400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Eight base files and five log files with a block for each of them."""
    table = create(tmp_path / "t", buckets=BUCKETS)
    table.upsert(frame([(k, 1, "base") for k in range(ROWS)]))
    for number in range(COMMITS):
        table.upsert(frame([(k, 2 + number, f"new {number}") for k in range(ROWS)]))
    assert len(table.opened.view.file_slices) == BUCKETS
    return tmp_path / "t"


def counted(path: Path) -> tuple[LakeTable, CountingStore]:
    store = CountingStore(LocalStore(path))
    handle = replace(LakeTable.open(path).opened.handle, store=store, log=DeltaLog(store))
    return LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None), store


def calls(store: CountingStore) -> Counter[str]:
    found = Counter(store.counts().calls)
    store.reset()
    return found


@needs_newer_arrow("reads the columns of a local file one by one")
def test_a_full_read(path: Path) -> None:
    table, store = counted(path)
    opening = calls(store)
    assert (opening["list"], opening["open_input"]) == (1, 0)
    assert opening["get"] <= 1 + 2 + COMMITS  # the checkpoint's hint, and commits
    assert table.to_arrow().num_rows == ROWS
    first = calls(store)
    assert first["open_input"] == BUCKETS * (1 + COMMITS)
    assert first["read"] <= 2 * first["open_input"]  # a footer and the rows
    assert (first["list"], first["get"], first["stat"]) == (1, 0, 0)  # whether there is a newer commit


@pytest.mark.parametrize(
    ("arguments", "opened"),
    [
        ({"filter": "k = 7"}, 1 + COMMITS),
        ({"filter": "k in (7, 7)"}, 1 + COMMITS),
        ({"filter": "k = -1"}, 1),  # below what any log holds
        ({"mode": "base"}, BUCKETS),
        ({"mode": "base", "filter": "k < 0"}, 0),
    ],
)
def test_a_read_of_less(path: Path, arguments: dict[str, Any], opened: int) -> None:
    table, store = counted(path)
    calls(store)
    table.to_arrow(**arguments)
    assert calls(store)["open_input"] <= opened


@needs_newer_arrow("reads the columns of a local file one by one")
def test_a_look_up(path: Path) -> None:
    """One question for a newer commit; of the key's bucket each file a footer, the first time, and one row group."""
    table, store = counted(path)
    calls(store)
    assert table.get({"k": 7}) == {"k": 7, "o": 1 + COMMITS, "v": f"new {COMMITS - 1}"}
    found = calls(store)
    assert found["open_input"] == 2 + COMMITS  # the base file first for its footer, beside the question
    assert found["read"] <= 2 * (1 + COMMITS)
    assert (found["list"], found["get"], found["stat"]) == (1, 0, 0)  # whether there is a newer commit
    assert table.get({"k": 7}) is not None
    assert calls(store)["read"] == 1 + COMMITS
    table.compact()
    for reads in (2, 1):
        calls(store)
        assert table.get({"k": 7}) is not None
        found = calls(store)
        assert (found["open_input"], found["read"]) == (reads, reads)


@needs_newer_arrow("reads the columns of a local file one by one")
def test_a_look_up_in_a_compacted_table_that_is_opened(path: Path) -> None:
    """At most ten requests, however many commits there were: the hint, the listing, the checkpoint and at most four
    commits; the question for a newer commit; a footer and a row group."""
    for number in range(7):
        LakeTable.open(path).upsert(frame([(k, 20 + number, f"newer {number}") for k in range(ROWS)]))
    LakeTable.open(path).compact()
    table, store = counted(path)
    assert table.get({"k": 7}) == {"k": 7, "o": 26, "v": "newer 6"}
    found = calls(store)
    requests = {name: found[name] for name in ("list", "get", "stat", "read")}
    assert requests["get"] <= 2 + 4
    assert (requests["list"], requests["stat"], requests["read"]) == (2, 0, 2)
    assert sum(requests.values()) <= 10


@pytest.mark.parametrize("before", range(8))
def test_a_compaction_leaves_few_commits_to_read(tmp_path: Path, before: int) -> None:
    """At most four after the last checkpoint, wherever the interval of checkpoints stands."""
    table = create(tmp_path / "t")
    for number in range(before + 2):
        table.upsert(frame([(1, number, "v")]))
    table.compact()
    snapshot = LakeTable.open(tmp_path / "t").opened.view.snapshot
    assert snapshot.version - (-1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version) <= 4
    assert LakeTable.check(tmp_path / "t").ok
    written = listing(tmp_path / "t")
    table.compact()  # nothing is due, and nothing is written
    assert listing(tmp_path / "t") == written


class Waiting(CountingStore):
    """A store whose listing ends when another thread has asked for a file's end."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self.asked, self.waits = threading.Event(), False

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        self.asked.set()
        return super().open_input(path, size_bytes=size_bytes)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        if self.waits:
            assert self.asked.wait(30), "the footer was not requested beside the listing"
        return super().list(folder, start_after=start_after)


def test_a_look_up_asks_for_the_footer_beside_the_question_for_a_newer_commit(path: Path) -> None:
    LakeTable.open(path).compact()
    store = Waiting(LocalStore(path))
    handle = replace(LakeTable.open(path).opened.handle, store=store, log=DeltaLog(store))
    table = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)
    store.waits = True
    assert table.get({"k": 7}) is not None


def test_a_look_up_of_keys_far_apart(tmp_path: Path) -> None:
    """None of the row groups between the keys is read: not of the base file, nor of the log."""
    table = create(tmp_path / "t", buckets=1, settings=Settings(row_group_rows=10))
    table.upsert(frame([(k, 1, f"base {k}" * 20) for k in range(0, 2000, 2)]))
    table.upsert(frame([(k, 2, f"log {k}" * 20) for k in range(500, 1500)]))
    reader, store = counted(tmp_path / "t")
    reader.to_arrow()
    everything = store.counts().bytes_read
    reader.get({"k": 700})  # reads the footers
    store.reset()
    found = reader.get(pa.table({"k": [1998, 0, 501, 1400, 1]}))
    expected = {0: "base 0", 501: "log 501", 1400: "log 1400", 1998: "base 1998"}
    assert {row["k"]: row["v"] for row in found.to_pylist()} == {k: v * 20 for k, v in expected.items()}
    assert store.counts().bytes_read < everything / 10


def test_a_version_is_decoded_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names the latest version reads no more of the log than who names none."""
    stores: list[CountingStore] = []

    def counting(url: str, _: object) -> CountingStore:
        stores.append(CountingStore(LocalStore(url)))
        return stores[-1]

    monkeypatch.setattr("lakemerge.table.opening.open_store", counting)
    latest = open_table(path)
    assert open_table(path, version=latest.standing.version).standing.version == latest.standing.version
    plain, pinned = (store.counts().calls for store in stores)
    assert pinned == plain
    earlier = open_table(path, version=1)
    assert (earlier.standing.version, earlier.pinned) == (1, True)
